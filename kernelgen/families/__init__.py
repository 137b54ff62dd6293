"""The families: what each can express, how it is scheduled, and which schedules are legal.

A family is a module with a `FAMILY` (`families/family.py`), named in `spec.model.FAMILIES`; what others ask is here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from kernelgen.errors import Mistake, SpecError, UnsupportedError
from kernelgen.families import calls, lanes, npu, plane_schedules, planes, reduction
from kernelgen.families import family as declared
from kernelgen.families.access import layout
from kernelgen.families.attention import NAME as ATTENTION
from kernelgen.families.attention_backward import NAME as ATTENTION_BACKWARD
from kernelgen.families.attention_backward.lowering import searched
from kernelgen.families.convolution import schedules as convolution_schedules
from kernelgen.families.convolution.lowering import ConvolutionBody
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.family import LIBRARY, Family
from kernelgen.families.kernel import Body, body_of, make_body
from kernelgen.families.keys import key_tensor, rows_and_bytes
from kernelgen.families.lowering import lower_values
from kernelgen.families.matmul import NAME as MATMUL
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.schedules import stays
from kernelgen.families.rolling import chains
from kernelgen.families.rounding import clamped_first, clamps
from kernelgen.families.stages import Stage, in_memory_order, last_first, stages, without_ones
from kernelgen.families.values import Unlowerable, Use, axes_of, expressions
from kernelgen.frontend.attention import is_attention
from kernelgen.frontend.graph import CALL, SCANS, SELECTIONS, Graph
from kernelgen.frontend.indices import Expr, leaves
from kernelgen.frontend.joined import or_in_order
from kernelgen.frontend.products import with_products
from kernelgen.frontend.searches import is_search
from kernelgen.plan import (
    Alternative,
    Chip,
    ChoicesPlan,
    KernelPlan,
    LoweredPlan,
    OnePlan,
    Parameter,
    Plan,
    Product,
    Schedule,
    ScheduleSet,
    StepsPlan,
    TableRow,
    WrittenPlan,
    at,
    table_row,
)
from kernelgen.schedule import problem
from kernelgen.schedule.problem import NamedSize, Problem
from kernelgen.spec import model
from kernelgen.spec.choices import Choice
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import ELLIPSIS, Case, OperatorSpec, TensorSpec
from kernelgen.tile.in_place import may_overwrite

_GENERAL: dict[str, Family] = {name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in model.FAMILIES}
FAMILIES = {**_GENERAL, **npu.FAMILIES}

RETARGET: dict[str, Callable[[KernelPlan, Chip], KernelPlan]] = {"npu": npu.retarget}
"""How a plan is made anew for a chip, by the family of chips."""

_TWO_KERNELS = "every row leaves a number, and a second kernel reduces these in an order that never changes"
_TORCHS_ORDER = "where the schedule table names torch's call, torch decides how products are summed"
_TAKEN = frozenset(
    [
        *("M", "N", "n_elements", "num_parts", "num_tiles", "tiles", "num_sms", "num_waiting"),
        *("kernel", "options", "grid", "check_inputs", "pick_schedule", "SCHEDULES", "reference"),
    ]
)
"""What a wrapper calls its own variables, unless an input or output is called so: values in between are not."""
_FUNCTIONS = (
    *("cdiv", "check_inputs", "fit_descriptors", "has_copy_engine", "next_power_of_2", "npu_of", "num_cores"),
    *("num_programs", "num_sms", "num_waiting", "pick_schedule", "precision"),
)
"""What a generated file calls its own functions."""
_RESERVED = frozenset([*_FUNCTIONS, "SCHEDULES", "reference"])
"""What a wrapper or a baseline finds in its file, which an input of that name would hide."""


def lower(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...] = ()) -> OnePlan:
    """The plan of a graph with its first schedules. Raises UnsupportedError where there is none."""
    plan = or_in_order(lambda one: _chosen(spec, one, notes), graph)
    if spec.precision and not _multiplies(plan):
        message = "precision says how kernels multiply float32 matrices, and here none does, or torch multiplies them"
        raise SpecError([Mistake(spec.path, spec.precision_place.line, spec.precision_place.column, message)])
    return plan


def joined(spec: OperatorSpec, plans: Sequence[tuple[Choice, OnePlan]]) -> ChoicesPlan:
    """The plan of an operator from those of the operators that its options make of it."""
    timed = [i for i, (way, _) in enumerate(plans) if any(way.serves(case) for case in spec.performance)]
    number = timed[0] if timed else 0
    first = plans[number][1].main
    wanted = (first.family, family_of(first).variants(body_of(first)))
    alternatives = []
    for choice, plan in plans:
        is_tuned = wanted == (plan.family, family_of(plan).variants(body_of(plan.main)))
        alternatives.append(Alternative(choice, plan.with_table(first.table) if is_tuned else plan, is_tuned))
    notes = dict.fromkeys(note for _, plan in plans for note in plan.notes)
    return ChoicesPlan(spec, tuple(alternatives), number, tuple(notes))


def _multiplies(plan: LoweredPlan) -> bool:
    """Whether all products of a plan are those of matrices, in kernels, and some may be of float32."""
    kernels = [k for k in plan.kernels if FAMILIES[k.family].products(k.spec, body_of(k))]
    own = all(k.family == MATMUL for k in kernels) and not any("matmul" in c.function for c in plan.calls)
    kinds = {kind for p in products(plan) for kind in dict(plan.spec.dtypes).get(p.dtype, (p.dtype,))}
    return own and "float32" in kinds


def _chosen(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    """The plan of a graph with its first schedules: one kernel where a family takes it, several where families take its
    parts. Torch's attention is written out where one kernel then computes it, with the searches that bound its keys,
    and stays a call otherwise. Raises UnsupportedError where none do."""
    graph = without_ones(graph)
    tried = [searched(graph), with_products(graph, attention=False)]
    wanted = sum(node.op == CALL and is_attention(node) for node in graph.nodes)
    wanted = wanted or any(is_search(graph, node) for node in graph.nodes)
    for products in tried if wanted else tried[1:]:
        if products != graph:
            try:
                plan = _lowered(spec, products, notes)
            except UnsupportedError:  # the products stay calls of torch's
                continue
            if (
                products is not tried[0]
                or sum(k.family in (ATTENTION, ATTENTION_BACKWARD) for k in plan.kernels) >= wanted
            ):
                return plan
    return _lowered(spec, graph, notes)


def _lowered(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    refused: UnsupportedError | None = None
    forms = (graph,) if calls.has_calls(graph) else tuple(_forms(graph))
    for materialize in (False, True):
        for form in forms:
            try:
                return _in_kernels(spec, form, notes, materialize)
            except UnsupportedError as error:
                refused = refused or error
    assert refused is not None
    raise refused


def _in_kernels(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...], materialize: bool) -> OnePlan:
    """The plan of a graph by one kernel where that is tried and a family takes it, else by several."""
    if not materialize and not calls.has_calls(graph):
        try:
            return _one_kernel(spec, graph, notes)
        except UnsupportedError:
            pass
    return _in_steps(spec, graph, notes, materialize)


def _forms(graph: Graph) -> Iterator[Graph]:
    """A graph, and what it may be lowered as where that is refused: products of sizes in the order of memory, and
    reductions over several dimensions one after the other."""
    yield graph
    ordered = in_memory_order(graph)
    if ordered != graph:
        yield ordered
    rows = last_first(ordered)
    if rows != ordered:
        yield rows


def _one_kernel(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...] = ()) -> KernelPlan:
    """The plan of a graph that one family takes."""
    name = _family(spec, graph)
    family = FAMILIES[name]
    check_names(spec)
    try:
        parts = stages(spec, family.prepared(graph))
        bodies = [family.body(spec, graph)] if family.body else [_body(part) for part in parts]
    except Unlowerable as error:
        line = graph.statements[error.statement].line if error.statement is not None else 1
        place = spec.reference_place
        mistake = Mistake(spec.path, place.line + line - 1, place.column, f"unsupported: {error}")
        raise UnsupportedError([mistake]) from None
    of_library = (_TORCHS_ORDER,) if LIBRARY in family.variants(bodies[0]) else ()
    notes = (*notes, *family.notes(spec, bodies[0]), *of_library, *_notes(spec, bodies[0]))
    plan = KernelPlan(spec, name, bodies[0], (), notes, filled=graph.filled)
    for part, body in zip(parts[1:], bodies[1:], strict=True):
        then = KernelPlan(part.spec, reduction.NAME, replace(body, of_rows=True), (TableRow((), reduction.OF_ROWS),))
        plan = replace(plan, then=then, notes=(*plan.notes, _TWO_KERNELS))
    shapes = [(rows(plan, case), columns(plan, case)) for case in spec.performance]
    table = family.of_reads(bodies[0], family.first_table(bodies[0], shapes), _last_sizes(spec))
    kinds = {kind for t in spec.outputs for kind in dict(spec.dtypes).get(t.dtype, (t.dtype,))}
    if "float32" in kinds:
        table = family.of_float32(bodies[0], table)
    return plan.with_table(_overwriting(plan, _reached(plan, table)))


def _overwriting(plan: KernelPlan, table: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
    """The rows whose kernels write into inputs themselves, where one of them serves all sizes and what others would
    have copied is as large as anything."""
    cases = plan.spec.performance or plan.spec.accuracy

    def size(tensor: TensorSpec) -> int:
        return sum(prod(case.shape(tensor.shape)) for case in cases)

    largest = max(map(size, (*plan.spec.inputs, *plan.spec.outputs)))
    wanted = [o for o in plan.spec.outputs if o.into is not None and size(o) == largest]

    def fits(row: TableRow) -> bool:
        steps = family_of(plan).kernels(plan.spec, body_of(plan), row.schedule, plan.spec.name)
        return all(may_overwrite(steps, o.name, str(o.into)) for o in wanted)

    kept = tuple(row for row in table if fits(row)) if wanted else table
    return kept if any(not row.upto for row in kept) else table


def _last_sizes(spec: OperatorSpec) -> dict[str, frozenset[int]]:
    """How long the last dimension of every input is where it is timed."""
    named = {t.name: t.shape[-1] for t in spec.inputs if t.shape and t.shape[-1] != ELLIPSIS}
    sizes = {name: {case.size(size) for case in spec.performance} for name, size in named.items()}
    return {name: frozenset(n for n in found if isinstance(n, int)) for name, found in sizes.items()}


def _in_steps(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...], materialize: bool) -> StepsPlan:
    """The plan of a graph in which operations stay calls of torch's, or that takes several kernels; each group of nodes
    is a plan of its own. `materialize` as in `partition.groups`."""
    check_names(spec)
    steps = calls.steps(spec, graph, _one_kernel, _TAKEN, materialize=materialize)
    tuned = calls.main_group(spec, steps)
    main = steps[tuned]
    assert isinstance(main, KernelPlan)
    if spec.type not in (None, main.family):
        where = "around its calls of torch's" if calls.has_calls(graph) else "where it moves the most bytes"
        message = f"type says {spec.type}, but {where} the reference is {main.family}"
        raise SpecError([Mistake(spec.path, spec.type_place.line, spec.type_place.column, message)])
    found = dict.fromkeys(note for step in steps if isinstance(step, KernelPlan) for note in step.notes)
    return StepsPlan(spec, steps, tuned, (*notes, *found), graph.filled)


def check_names(spec: OperatorSpec) -> None:
    """Raise SpecError where the operator or a tensor has a name that generated code needs itself."""
    if spec.name in _FUNCTIONS:
        place, message = spec.reference_place, f"the generated code needs the name {spec.name} itself; choose another"
        raise SpecError([Mistake(spec.path, place.line, place.column, message)])
    for tensor in (*spec.inputs, *spec.outputs):
        if tensor.name in _RESERVED:
            place = tensor.place
            message = f"the generated code needs the name {tensor.name} itself; choose another"
            raise SpecError([Mistake(spec.path, place.line, place.column, message)])


def _reached(plan: KernelPlan, table: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
    """The rows of a table that some case may reach: a limit that no case exceeds is none, and what follows a row that
    serves all sizes serves none."""
    most = {size.name: largest for size in named_sizes(plan) if (largest := _largest(plan.spec, size)) is not None}
    found: list[TableRow] = []
    for row in table if body_of(plan).layout.rows else map(_of_one_row, table):
        upto = {name: limit for name, limit in row.upto if name not in most or limit < most[name]}
        if not any(problem.is_within(upto, dict(before.upto)) for before in found):
            found.append(table_row(row.schedule, **upto))
    return tuple(found)


def _of_one_row(row: TableRow) -> TableRow:
    """What a row of a table says of a single row of elements, whose bytes are those of the tensor."""
    limits = [limit for name, limit in row.upto if name in (problem.ROW_BYTES, problem.TENSOR_BYTES)]
    return table_row(row.schedule, **({problem.ROW_BYTES: min(limits)} if limits else {}))


def _largest(spec: OperatorSpec, size: NamedSize) -> int | None:
    """The most that a named size comes to; None where a spec leaves that open."""
    numbers = [factor for factor in size.factors if isinstance(factor, int)]
    if len(numbers) < len(size.factors) or not numbers:
        return None
    dtypes = dict(spec.dtypes)
    if isinstance(size.itemsize, int):
        return prod(numbers) * size.itemsize
    return prod(numbers) * max(ITEMSIZE[d] for d in dtypes.get(size.itemsize, (size.itemsize,)))


def _body(part: Stage) -> Body:
    lowered = clamps(clamped_first(lower_values(part.spec, part.graph)))
    found = layout(part.spec, lowered)
    for tensor in part.spec.inputs:
        # merged dimensions of what lies otherwise are a copy, in which the strides of the input mean nothing
        views = {a.view for a in found.accesses if a.tensor == tensor.name and a.strides}
        if len(views) > 1 and tensor.name not in facts_of(part.spec).contiguous:
            raise Unlowerable(f"{tensor.name} is read with dimensions merged and moved at once")
    return make_body(part.spec, lowered, part.graph.statements, found)


def _family(spec: OperatorSpec, graph: Graph) -> str:
    """The family that a spec states, or the first that takes the graph."""
    taking = [name for name, family in _GENERAL.items() if family.takes(graph)]
    if not taking:
        place = spec.reference_place
        message = "unsupported: several products of matrices in one kernel"
        raise UnsupportedError([Mistake(spec.path, place.line, place.column, message)])
    if spec.type in taking:
        return spec.type
    if spec.type is not None:
        place, found = spec.type_place, " or ".join(taking)
        message = f"type says {spec.type}, but the reference is {found}"
        raise SpecError([Mistake(spec.path, place.line, place.column, message)])
    return taking[0]


def _notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    notes = []
    if body.exact or all(v.op in ("load", *SELECTIONS) for v in body.lowered.values):
        notes.append("moves elements without arithmetic: results are bit-identical")
    else:
        notes.append(
            "arithmetic in float32, rounded once where a result is stored or the reference casts; "
            "eager rounds every operation"
        )
    if body.lowered.has_reciprocals:
        notes.append("a row is multiplied by the reciprocal of what divides it: at most one more rounding an element")
    scans = {v.op for v in body.lowered.values} & set(SCANS)
    if scans - {"cummax", "cummin"}:
        notes.append(
            "parts of a row are scanned on their own and joined, which rounds otherwise than element by element"
        )
    if body.layout.columns is None and not facts_of(spec).contiguous >= {t.name for t in spec.inputs}:
        notes.append("an input that is not contiguous is copied first")
    elif any(a.view for a in body.layout.accesses):
        notes.append("an input whose dimensions cannot be merged without a copy is copied first (torch's reshape)")
    return tuple(notes)


def family_of(plan: LoweredPlan) -> Family:
    """The family of the kernel that is tuned."""
    return FAMILIES[plan.family]


def products(plan: LoweredPlan) -> tuple[Product, ...]:
    """The sums of products that the kernels of a plan compute."""
    return tuple(p for kernel in plan.kernels for p in FAMILIES[kernel.family].products(kernel.spec, body_of(kernel)))


def variants(plan: LoweredPlan, cases: Sequence[Case]) -> tuple[Schedule, ...]:
    """The schedules to set out from that can serve all the cases, fitted to their shortest rows and to the most."""
    shortest = min((columns(plan, case) for case in cases), default=1)
    most = max((rows(plan, case) for case in cases), default=1)
    found = dict.fromkeys(family_of(plan).starts(body_of(plan), most, shortest, plan.chip))
    return tuple(s for s in found if all(legal(plan, s, c) is None for c in cases)) or tuple(found)[-1:]


def sets(plan: Plan) -> Mapping[str, ScheduleSet]:
    """The schedules that a plan's family names together; a kernel that no family wrote has none."""
    return {} if isinstance(plan, WrittenPlan) else family_of(plan).sets(body_of(plan))


def space(plan: LoweredPlan, row: int, cases: Sequence[Case]) -> tuple[Parameter, ...]:
    """The parameters of one row's schedule, each with the choices that are legal for all the cases."""
    schedule = plan.table[row].schedule
    return tuple(
        p for p in family_of(plan).of(schedule.variant).space if p.name not in _USEFUL or _USEFUL[p.name](body_of(plan))
    )


def _has_columns(body: Body) -> bool:
    return "column" in {body.names.levels[a.load] for a in body.layout.accesses}


def _walks(body: Body) -> bool:
    """Whether a walk down rows keeps something from one to the next, or reads what neighbours read."""
    return _has_columns(body) or planes.is_window(body) or bool(chains(body))


def _reads_full(body: Body) -> bool:
    return ("full" if body.layout.rows else "column") in {body.names.levels[a.load] for a in body.layout.accesses}


def _divides_columns(body: Body) -> bool:
    """Whether a tile of a product may have fewer columns than there are."""
    return not (isinstance(body, ProductBody) and reduces(body))


def _may_stay(body: Body) -> bool:
    return not isinstance(body, ProductBody) or stays(body)


def _has_depth(body: Body) -> bool:
    return isinstance(body, ConvolutionBody) and body.rank == 3


def _has_planes(body: Body) -> bool:
    return isinstance(body, ConvolutionBody) and body.rank > 1


def _may_call_channels_last(body: Body) -> bool:
    """Of one dimension of space alone there is no memory format with channels last; and where torch's call is all there
    is, it would leave a result of that format."""
    return isinstance(body, ConvolutionBody) and convolution_schedules.may_turn(body)


_USEFUL: dict[str, Callable[[Body], bool]] = {
    "BLOCK_N": _divides_columns,
    "persistent": _may_stay,
    "BLOCK_D": _has_depth,
    "BLOCK_H": _has_planes,
    "channels_last": _may_call_channels_last,
    "late_loads": _has_columns,
    "ROW_TILES": _walks,
    "lines": lambda body: bool(chains(body)),
    "LINES_AHEAD": lambda body: plane_schedules.is_small(body) and bool(chains(body)),
    "unroll": lambda body: plane_schedules.is_small(body) and _walks(body),
    "lane_columns": lanes.applies,
    "loads": _reads_full,
}
"""Parameters that change something for some bodies alone, and for which."""


def unknown(schedule: Schedule, among: Iterable[Family] = FAMILIES.values()) -> str | None:
    """Why none of the families makes such a schedule, for whatever operator; None where one does."""
    return declared.unknown(schedule, among)


def legal(plan: LoweredPlan, schedule: Schedule, case: Case) -> str | None:
    """Why a schedule cannot serve a case; None if it can."""
    return legality(plan, (case,))(schedule)


def legality(plan: LoweredPlan, cases: Sequence[Case]) -> Callable[[Schedule], str | None]:
    """Why a schedule cannot serve all of some cases; None if it can. For many schedules: what it depends on of the
    cases is found once."""
    if isinstance(plan, ChoicesPlan):
        each = [legality(one.plan.main, cases) for one in plan.alternatives if one.is_tuned]
        return lambda schedule: next(filter(None, (refused(schedule) for refused in each)), None)
    family, body, chip = family_of(plan), body_of(plan), plan.chip
    rows_of = sorted({(columns(plan, case), itemsize(plan, case)) for case in cases}, reverse=True)

    def refusal(schedule: Schedule) -> str | None:
        for width, size in rows_of:
            reason = family.legal(schedule, width, size) or lanes.refusal(body, schedule)
            room = family.fits(body, chip, schedule, width) if chip else family.holds(body, schedule, size)
            if reason := reason or room:
                return reason
        return None

    return refusal


def has_room(plan: LoweredPlan, case: Case) -> bool:
    """Whether a program of a GPU has room for the line of the table that serves a case."""
    plan = at(plan, case)
    schedule = plan.table[row_of(plan, case)].schedule
    return plan.chip is not None or family_of(plan).holds(body_of(plan), schedule, itemsize(plan, case)) is None


def retarget(plan: LoweredPlan, chip: Chip) -> KernelPlan:
    """The plan for a chip that has variants and schedules of its own."""
    place = plan.spec.reference_place
    if plan.calls:
        functions = ", ".join(dict.fromkeys(c.function for c in plan.calls))
        message = f"unsupported on this chip: calls of torch's beside kernels ({functions})"
        raise UnsupportedError([Mistake(plan.spec.path, place.line, place.column, message)])
    if isinstance(plan, ChoicesPlan):
        message = "unsupported on this chip: options and optional inputs, which choose between kernels"
        raise UnsupportedError([Mistake(plan.spec.path, place.line, place.column, message)])
    if isinstance(plan, StepsPlan):
        message = f"unsupported on this chip: an operator of {len(plan.kernels)} kernels, each with a launch of its own"
        raise UnsupportedError([Mistake(plan.spec.path, place.line, place.column, message)])
    return RETARGET[chip.family](plan, chip)


def itemsize(plan: LoweredPlan, case: Case) -> int:
    """Bytes an element of the tensor whose rows the schedule table counts."""
    keyed = key_tensor(plan.main.spec, body_of(plan).lowered)
    return family_of(plan).key_itemsize or ITEMSIZE[case.dtype(keyed.dtype)]


def elements(body: Body, case: Case, axes: Iterable[int]) -> int:
    """How many elements some axes of the iteration space have."""
    total = 1
    for axis in axes:
        atom = body.lowered.space.axes[axis]
        size = case.size(ELLIPSIS) if atom == ELLIPSIS else case.size(atom)
        total *= prod(size) if isinstance(size, tuple) else size
    return total


def columns(plan: LoweredPlan, case: Case) -> int:
    """The length of a row; of the whole tensor where it is one run of elements."""
    body = body_of(plan)
    return elements(body, case, sorted(body.columns()))


def rows(plan: LoweredPlan, case: Case) -> int:
    """The number of rows; 1 where the tensor is one run of elements."""
    body = body_of(plan)
    return elements(body, case, sorted(set(range(len(body.lowered.space.axes))) - body.columns()))


def named_sizes(plan: LoweredPlan) -> tuple[NamedSize, ...]:
    """What the schedule table of a plan may be keyed by, the usual key first."""
    family, spec, body = family_of(plan), plan.main.spec, body_of(plan)
    if family.sizes:
        return family.sizes(spec, body)
    return rows_and_bytes(spec, body, family.key_itemsize, family.widened(spec, body))


def problem_of(plan: LoweredPlan, case: Case) -> Problem:
    """The named sizes of a case."""
    return Problem(tuple((size.name, size.of(case, ITEMSIZE.__getitem__)) for size in named_sizes(plan)))


def row_of(plan: LoweredPlan, case: Case) -> int:
    """The row of the table that serves a case."""
    return problem.row_of(plan.table, problem_of(plan, case))


def stored_dtype(plan: LoweredPlan) -> str:
    """The float dtype, or its variable, of what lies in memory around a plan's products, be they calls of torch's or
    kernels: the least precise."""
    kinds = dict(plan.spec.dtypes)
    made = {t.name for t in plan.spec.outputs}
    read = {o.tensor for call in plan.calls for o in call.operands}
    found = [call.result.dtype for call in plan.calls]
    for kernel in plan.kernels:
        multiplies = bool(FAMILIES[kernel.family].products(kernel.spec, body_of(kernel)))
        rounds = {t for t in kernel.spec.outputs if multiplies and t.name not in made and t.dtype != "float32"}
        found += [t.dtype for t in kernel.spec.outputs if t in read or t in rounds]
    return _narrowest([d for d in found if all("float" in kind for kind in kinds.get(d, (d,)))], kinds)


def multiplied_dtype(plan: LoweredPlan) -> str:
    """The dtype, or its variable, in which the kernels of a plan multiply in sums of products; "" without any."""
    return _narrowest([p.kept or p.dtype for p in products(plan)], dict(plan.spec.dtypes))


def _narrowest(dtypes: list[str], kinds: Mapping[str, tuple[str, ...]]) -> str:
    return min(dtypes, key=lambda d: min(ITEMSIZE[kind] for kind in kinds.get(d, (d,))), default="")


def uniform_outputs(plan: LoweredPlan) -> frozenset[str]:
    """The outputs of which all elements are the same number, whatever the inputs: one is computed and shown
    everywhere."""
    if isinstance(plan, ChoicesPlan):
        return frozenset.intersection(*(uniform_outputs(one.plan) for one in plan.alternatives))
    if isinstance(plan, StepsPlan) or plan.then is not None:
        return frozenset()
    lowered = body_of(plan).lowered
    values, outputs = lowered.values, lowered.outputs
    return frozenset(o.name for o in outputs if any(map(axes_of, o.index)) and not values[o.value].axes)


def kept_inputs(plan: LoweredPlan) -> dict[str, str]:
    """The inputs of which only elements that change are written, and none read, as `torch.where(mask, new, old)` into
    `old` says; each with the output that it becomes."""
    found: dict[str, str] = {}
    for kernel in plan.kernels:
        lowered = body_of(kernel).lowered
        for stored in lowered.outputs:
            value = lowered.values[stored.value]
            into = next((o.into for o in kernel.spec.outputs if o.name == stored.name), None)
            old = value.args[2] if value.op == "where" and into is not None else None
            reads = [i for i, v in enumerate(lowered.values) if v.op == "load" and v.tensor == into]
            is_own = isinstance(old, Use) and reads == [old.value] and lowered.values[old.value].index == stored.index
            if into and is_own:
                found[into] = stored.name
    return found


def independent_dims(plan: LoweredPlan) -> dict[str, int | None]:
    """For every tensor the dimension along which results are independent of one another; None: needed whole.

    That dimension is the outermost of the outputs: a judge may check the operator slice by slice along it.
    """
    if isinstance(plan, ChoicesPlan):
        each = [independent_dims(one.plan) for one in plan.alternatives]
        names = dict.fromkeys(name for known in each for name in known)
        said = {name: {known[name] for known in each if name in known} for name in names}
        return {name: next(iter(dims)) if len(dims) == 1 else None for name, dims in said.items()}
    body = body_of(plan)
    found: dict[str, int | None] = {}
    split = body.lowered.space.outer > 0
    first = body.lowered.space.axes[0] if split else None
    counted = [e for v in body.lowered.values for e in expressions(v)]
    counted += [e for o in body.lowered.outputs for e in o.index if isinstance(e, Expr)]
    mixed = any(0 in axes_of(e) or any(first in leaf.size for leaf in leaves(e)) for e in counted)
    # groups in one tensor, the channels of all groups in another: a slice of one is no slice of the other
    indices = [v.index for v in body.lowered.values if v.op == "load"] + [o.index for o in body.lowered.outputs]
    mixed |= len({axes_of(dim) for index in indices for dim in index if 0 in axes_of(dim)}) > 1
    if mixed or isinstance(plan, StepsPlan) or plan.then is not None:
        return dict.fromkeys([t.name for t in (*plan.spec.inputs, *plan.spec.outputs)])
    for tensor in plan.spec.inputs:
        loads = [v for v in body.lowered.values if v.op == "load" and v.tensor == tensor.name]
        places = {d for v in loads for d, dim in enumerate(v.index) if 0 in axes_of(dim)}
        if not loads and tensor.shape and tensor.shape[0] == first:
            places = {0}
        found[tensor.name] = min(places) if split and len(places) == 1 else None
        if len(places) > 1 or any(sum(0 in axes_of(dim) for dim in v.index) > 1 for v in loads):
            return dict.fromkeys([t.name for t in (*plan.spec.inputs, *plan.spec.outputs)])
    for stored in body.lowered.outputs:
        places = {d for d, dim in enumerate(stored.index) if 0 in axes_of(dim)}
        found[stored.name] = min(places) if split and places else None
    return found

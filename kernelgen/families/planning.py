"""The plan of a graph: one kernel where a family takes it, several kernels and torch's calls where none does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod

from kernelgen.errors import Mistake, PrecisionError, SpecError, UnsupportedError
from kernelgen.families import calls, partition, reduction
from kernelgen.families.access import layout, viewed_differently
from kernelgen.families.attention import NAME as ATTENTION
from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.writer import LONGEST_SPLIT, longest_head
from kernelgen.families.attention_backward import NAME as ATTENTION_BACKWARD
from kernelgen.families.attention_backward.lowering import searched
from kernelgen.families.costs import cost, large
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.family import LIBRARY
from kernelgen.families.kernel import Body, body_of, make_body
from kernelgen.families.lowering import lower_values
from kernelgen.families.matmul import NAME as MATMUL
from kernelgen.families.registry import FAMILIES, GENERAL, columns, family_of, named_sizes, products, rows
from kernelgen.families.rounding import clamped_first, clamps
from kernelgen.families.sliced import with_parts_of_weights
from kernelgen.families.space import exact_sizes
from kernelgen.families.stages import Stage, in_memory_order, last_first, stages, without_ones, without_unread
from kernelgen.families.values import Unlowerable
from kernelgen.frontend.attention import is_attention
from kernelgen.frontend.graph import CALL, SCANS, SELECTIONS, Graph
from kernelgen.frontend.joined import as_one, or_in_order
from kernelgen.frontend.products import with_products
from kernelgen.frontend.searches import is_search
from kernelgen.frontend.short import MOST_READ, is_all_written, without_short_reductions
from kernelgen.plan import (
    Alternative,
    ChoicesPlan,
    KernelPlan,
    LoweredPlan,
    OnePlan,
    StepsPlan,
    TableRow,
    table_row,
)
from kernelgen.schedule import problem
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.choices import Choice
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import OperatorSpec, TensorSpec
from kernelgen.tile.in_place import may_overwrite

_TWO_KERNELS = "each row yields one number; a second kernel reduces these in a fixed order"
_TORCHS_ORDER = "where the schedule table selects torch's call, torch decides the order of the sums"
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
    *("attention_precision", "convolution_precision"),
)
"""What a generated file calls its own functions."""
_PRECISE = frozenset([ATTENTION, ATTENTION_BACKWARD, MATMUL])
"""The families that multiply float32 as a spec says."""
_RESERVED = frozenset([*_FUNCTIONS, "SCHEDULES", "reference"])
"""What a wrapper or a baseline finds in its file, which an input of that name would hide."""


def lower(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...] = ()) -> OnePlan:
    """The plan of a graph with its first schedules. Raises UnsupportedError where there is none."""
    plan = or_in_order(lambda one: _chosen(spec, one, notes), graph)
    if spec.precision and not _multiplies(plan):
        message = "precision says how kernels multiply float32 matrices, and here none does, or torch multiplies them"
        raise PrecisionError([Mistake(spec.path, spec.precision_place.line, spec.precision_place.column, message)])
    if spec.precision and (head := _beyond(spec, plan)):
        message = (
            f"precision: {spec.precision} multiplies heads of up to {LONGEST_SPLIT} elements, and heads of {head} are "
            "timed (without it torch's attention is called; ieee keeps all bits, slowly)"
        )
        raise PrecisionError([Mistake(spec.path, spec.precision_place.line, spec.precision_place.column, message)])
    return plan


def _beyond(spec: OperatorSpec, plan: LoweredPlan) -> int:
    """The elements of heads of attention that are timed in float32 and too long for what a spec asks of products; 0
    where none are: without matrix units heads of 1024 took 90 times as long as torch's call (H200)."""
    bodies = [body_of(k) for k in plan.kernels if k.family == ATTENTION and spec.precision != "ieee"]
    longest = [longest_head(spec, body) for body in bodies if isinstance(body, AttentionBody)]
    return max((n for n in longest if n > LONGEST_SPLIT), default=0)


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
    """Whether all products of a plan are multiplied as the spec says, in kernels, and some may be of float32."""
    kernels = [k for k in plan.kernels if FAMILIES[k.family].products(k.spec, body_of(k))]
    own = all(k.family in _PRECISE for k in kernels)
    own = own and not any("matmul" in c.function or "attention" in c.function for c in plan.calls)
    kinds = {kind for p in products(plan) for kind in dict(plan.spec.dtypes).get(p.dtype, (p.dtype,))}
    return own and "float32" in kinds


def _chosen(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    """The plan of a graph with its first schedules: one kernel where a family takes it, several where families take its
    parts; with products of parts of weights where these are fewer, and with short reductions written out where kernels
    then are, or where nothing else is reduced. Raises UnsupportedError where no family does."""
    graph = without_ones(without_unread(graph))
    written = without_short_reductions(graph)
    wider = written if written.kind == "map" else without_short_reductions(graph, last=True)
    if all_written := is_all_written(graph, wider):
        written = wider
    if written is graph:
        return _of_weights(spec, graph, notes)
    refused: UnsupportedError | None = None
    try:
        plan = _of_weights(spec, graph, notes)
        if len(plan.kernels) == 1 and not (all_written and plan.kernels[0].family == reduction.NAME):
            return plan
    except UnsupportedError as error:
        plan, refused = None, error
    with suppress(SpecError):
        other = _of_weights(spec, written, notes)
        if plan is None:
            return other
        fewer, reads = len(plan.kernels) - len(other.kernels), len(body_of(other).layout.accesses)
        if (fewer >= 0 and reads <= MOST_READ) if all_written else fewer > 0:
            return other
    if plan is None:
        assert refused is not None
        raise refused
    return plan


def _of_weights(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    """The same of a graph as it is."""
    parts = with_parts_of_weights(spec, graph)
    if parts is not graph:
        try:
            plan = _lowered(spec, with_products(parts, attention=False), notes)
        except UnsupportedError:  # the product is of all of its weight
            return _of_whole_products(spec, graph, notes)
        whole = plan if len(plan.kernels) == 1 else _of_whole_products(spec, graph, notes)
        return plan if len(plan.kernels) < len(whole.kernels) else whole
    return _of_whole_products(spec, graph, notes)


def _of_whole_products(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    """The plan of a graph whose products are of all of their weights. Torch's attention is written out where one kernel
    then computes it, with the searches that bound its keys, and stays a call otherwise. Raises UnsupportedError where
    there is none."""
    tried = [searched(graph), with_products(graph, attention=False)]
    wanted = sum(node.op == CALL and is_attention(node) for node in graph.nodes)
    wanted = wanted or any(is_search(graph, node) for node in graph.nodes)
    for form in tried if wanted else tried[1:]:
        if form != graph:
            try:
                plan = _lowered(spec, form, notes)
            except UnsupportedError:  # the products stay calls of torch's
                continue
            if form is not tried[0] or sum(k.family in (ATTENTION, ATTENTION_BACKWARD) for k in plan.kernels) >= wanted:
                return plan
    return _lowered(spec, graph, notes)


def _lowered(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...]) -> OnePlan:
    """The plan of a graph by one kernel where a family takes a form of it, else by several: of the first form that
    families take the parts of, or of one that costs less, where values of that are written only to be read."""
    forms: tuple[Graph, ...] = (graph,)
    if not calls.has_calls(graph):
        forms = tuple(_forms(graph))
        for form in forms:
            with suppress(UnsupportedError):
                return _one_kernel(spec, form, notes)
    cases = spec.performance or (large(spec),)
    found: StepsPlan | None = None
    refused: list[UnsupportedError] = []
    for form in forms:
        limit = sum(cost(kernel, cases) for kernel in found.kernels) if found else sys.maxsize
        costs: partition.Costs = {}
        for materialize in (False,) if found else (False, True):
            try:
                plan = _in_steps(spec, form, notes, limit, costs, materialize=materialize)
            except UnsupportedError as error:
                refused.append(error)
                continue
            if not materialize:
                return plan
            found = plan
    if found is None:
        raise refused[0]
    return found


def _forms(graph: Graph) -> Iterator[Graph]:
    """A graph, and what it may be lowered as where that is refused: products of sizes in the order of memory, or as one
    size, and reductions over several dimensions one after the other."""
    yield graph
    ordered = in_memory_order(graph)
    if ordered != graph:
        yield ordered
    rows = last_first(ordered)
    if rows != ordered:
        yield rows
    one = as_one(graph)
    if one is not graph:
        yield one


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
    plan = KernelPlan(spec, name, bodies[0], (), notes, filled=graph.filled, rounded=exact_sizes(graph))
    for part, body in zip(parts[1:], bodies[1:], strict=True):
        then = KernelPlan(part.spec, reduction.NAME, replace(body, of_rows=True), (TableRow((), reduction.OF_ROWS),))
        plan = replace(plan, then=then, notes=(*plan.notes, _TWO_KERNELS))
    shapes = [(rows(plan, case), columns(plan, case)) for case in spec.performance]
    table = family.of_spec(plan, family.first_table(bodies[0], shapes))
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


def _in_steps(
    spec: OperatorSpec,
    graph: Graph,
    notes: tuple[str, ...],
    limit: int,
    costs: partition.Costs,
    *,
    materialize: bool,
) -> StepsPlan:
    """The plan of a graph in which operations stay calls of torch's, or that takes several kernels; each group of nodes
    is a plan of its own. `limit`, `costs` and `materialize` as in `partition.groups`."""
    check_names(spec)
    steps = calls.steps(spec, graph, _one_kernel, _TAKEN, limit, materialize=materialize, costs=costs)
    tuned = calls.main_group(spec, steps)
    main = steps[tuned]
    assert isinstance(main, KernelPlan)
    if spec.type not in (None, main.family):
        where = "around its calls of torch's" if calls.has_calls(graph) else "where it moves the most bytes"
        message = f"type says {spec.type}, but {where} the reference is {main.family}"
        raise SpecError([Mistake(spec.path, spec.type_place.line, spec.type_place.column, message)])
    found = dict.fromkeys(note for step in steps if isinstance(step, KernelPlan) for note in step.notes)
    return StepsPlan(spec, steps, tuned, (*notes, *found), graph.filled, exact_sizes(graph))


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
    return problem.served(
        table_row(row.schedule, **{name: limit for name, limit in row.upto if name not in most or limit < most[name]})
        for row in (table if body_of(plan).layout.rows else map(_of_one_row, table))
    )


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
    for name in viewed_differently(part.spec, found.accesses):
        raise Unlowerable(f"{name} is read with dimensions both merged and permuted")
    return make_body(part.spec, lowered, part.graph.statements, found)


def _family(spec: OperatorSpec, graph: Graph) -> str:
    """The family that a spec states, or the first that takes the graph."""
    taking = [name for name, family in GENERAL.items() if family.takes(graph)]
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
        notes.append("a row is multiplied by the reciprocal of its divisor: at most one more rounding per element")
    scans = {v.op for v in body.lowered.values} & set(SCANS)
    if scans - {"cummax", "cummin"}:
        notes.append(
            "parts of a row are scanned separately and combined, so rounding differs from an element-by-element scan"
        )
    if body.layout.columns is None and not facts_of(spec).contiguous >= {t.name for t in spec.inputs}:
        notes.append("an input that is not contiguous is copied first")
    elif any(a.view for a in body.layout.accesses):
        notes.append("an input whose dimensions cannot be merged without a copy is copied first (torch's reshape)")
    return tuple(notes)

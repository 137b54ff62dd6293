"""The families, and what the rest of kernelgen asks of a plan: its schedule space, what is legal, its sizes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families import family as declared
from kernelgen.families import lanes, npu, plane_schedules, planes
from kernelgen.families.convolution import schedules as convolution_schedules
from kernelgen.families.convolution.lowering import ConvolutionBody
from kernelgen.families.dtypes import ELEMENT, ITEMSIZE
from kernelgen.families.family import Family, Refusal
from kernelgen.families.kernel import Body, body_of, elements
from kernelgen.families.keys import key_tensor, rows_and_bytes
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.schedules import stays
from kernelgen.families.sliding_window import chains
from kernelgen.families.values import Use, axes_of, expressions
from kernelgen.frontend.indices import Expr, leaves
from kernelgen.plan import (
    Chip,
    ChoicesPlan,
    KernelPlan,
    LoweredPlan,
    Parameter,
    Plan,
    Product,
    Schedule,
    ScheduleSet,
    StepsPlan,
    WrittenPlan,
    at,
)
from kernelgen.schedule import problem
from kernelgen.schedule.problem import NamedSize, Problem
from kernelgen.spec import model
from kernelgen.spec.model import Case, Size

GENERAL: dict[str, Family] = {name: importlib.import_module(f"{__package__}.{name}").FAMILY for name in model.FAMILIES}
FAMILIES = {**GENERAL, **npu.FAMILIES}

RETARGET: dict[str, Callable[[KernelPlan, Chip], KernelPlan]] = {"npu": npu.retarget}
"""How a plan is made anew for a chip, by the family of chips."""


def family_of(plan: LoweredPlan) -> Family:
    """The family of the kernel that is tuned."""
    return FAMILIES[plan.family]


def products(plan: LoweredPlan) -> tuple[Product, ...]:
    """The sums of products that the kernels of a plan compute."""
    return tuple(p for kernel in plan.kernels for p in FAMILIES[kernel.family].products(kernel.spec, body_of(kernel)))


def limits(plan: LoweredPlan) -> tuple[tuple[Size, int], ...]:
    """Sizes that a spec leaves open of which the kernels of a plan take no more than so many."""
    shapes = (t.shape for t in (*plan.spec.inputs, *plan.spec.outputs))
    named = {entry for shape in shapes for entry in shape if isinstance(entry, str)}
    found = (kernel for kernel in plan.kernels if kernel.family in FAMILIES)
    said = dict.fromkeys(limit for kernel in found for limit in family_of(kernel).limits(kernel.spec, body_of(kernel)))
    return tuple(limit for limit in said if limit[0] in named)


FEWER = 3
"""Steps that a schedule is made smaller by until it is legal."""


def variants(plan: LoweredPlan, cases: Sequence[Case]) -> tuple[Schedule, ...]:
    """The schedules to set out from that can serve all the cases, fitted to their shortest rows and to the most. Of a
    variant of which none can, the nearest smaller one that can."""
    shortest = min((columns(plan, case) for case in cases), default=1)
    most = max((rows(plan, case) for case in cases), default=1)
    found = tuple(dict.fromkeys(family_of(plan).starts(body_of(plan), most, shortest, plan.chip)))
    refusal = legality(plan, cases)
    served = {s.variant for s in found if refusal(s) is None}
    fitted = (s if s.variant in served else _smaller(plan, s, refusal) for s in found)
    return tuple(dict.fromkeys(s for s in fitted if s and refusal(s) is None)) or found[-1:]


def _smaller(plan: LoweredPlan, schedule: Schedule, refusal: Refusal) -> Schedule | None:
    """The schedule with the fewest values one step smaller that is legal; None where there is none within FEWER."""
    sizes = {
        p.name: [c for c in p.choices if isinstance(c, int)]
        for p in family_of(plan).of(schedule.variant).space
        if p.strategy in ("block_size", "warp_stage") and p.name != "num_warps"
    }
    tried = [schedule]
    for _ in range(FEWER):
        steps = (
            one.replace(**{name: max(lower)})
            for one in tried
            for name, choices in sizes.items()
            if (lower := [c for c in choices if c < one.int(name)])
        )
        tried = list(dict.fromkeys(steps))
        if (legal := next((one for one in tried if refusal(one) is None), None)) is not None:
            return legal
    return None


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
    """Of one dimension of space alone there is no memory format with channels last."""
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
    rooms = {size: family.room(body, size) for _, size in rows_of}
    precise = [family.precise(plan.spec, body, case) for case in cases]

    def refusal(schedule: Schedule) -> str | None:
        for width, size in rows_of:
            reason = family.legal(schedule, width, size) or lanes.refusal(body, schedule)
            room = family.fits(body, chip, schedule, width) if chip else rooms[size](schedule)
            if reason := reason or room:
                return reason
        return next(filter(None, (refused(schedule) for refused in precise)), None)

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
    """The dtype, or its variable, in which the kernels of a plan multiply in sums of products, or to which a reference
    rounds what they multiply in a wider one; "" without any."""
    found = [p.kept or p.dtype for p in products(plan)]
    rounded = [dtype for kernel in plan.kernels for dtype in _rounded_factors(kernel)] if found else []
    return _narrowest([*found, *rounded], dict(plan.spec.dtypes))


def _rounded_factors(kernel: KernelPlan) -> Iterator[str]:
    """The dtypes, or their variables, of what is rounded before a sum of products reads it."""
    values = body_of(kernel).lowered.values
    dtypes = {t.name: t.dtype for t in (*kernel.spec.inputs, *kernel.spec.outputs)}
    waiting, seen = [i for i, value in enumerate(values) if value.op == "dot"], set[int]()
    while waiting:
        for arg in values[waiting.pop()].args:
            if isinstance(arg, Use) and arg.value not in seen and values[arg.value].op != "dot":
                seen.add(arg.value)
                waiting.append(arg.value)
    for i in sorted(seen):
        if values[i].op == "round":
            said = str(values[i].attr)
            yield dtypes.get(said.removesuffix(ELEMENT), said)


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

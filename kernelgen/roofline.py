"""An operator on a device before there is a kernel: what each case must move and compute, what bounds it, and which
kernels it would become."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen import families
from kernelgen.analysis import Work, floor_seconds, step_works, work
from kernelgen.devices.facts import DeviceFacts
from kernelgen.families.kernel import body_of
from kernelgen.frontend.graph import DOT, REDUCTIONS, SCANS, SCATTERS, SELECTIONS
from kernelgen.plan import KernelPlan, Plan, Schedule, TorchCall, WrittenPlan, at
from kernelgen.spec.model import Case

MEMORY, MATRIX, LANES, LAUNCH = "memory bandwidth", "matrix units", "arithmetic", "launch overhead"


@dataclass(frozen=True)
class Bound:
    """One case: the least that any kernel must do, and how long the device needs for that."""

    case: str
    bytes_read: int
    bytes_written: int
    flops: int
    intensity: float
    """Operations a byte."""
    ridge: float
    """Operations a byte from which the device computes longer than it moves."""
    bottleneck: str
    memory_us: float
    arithmetic_us: float
    calls_us: float
    """Of operations that stay calls of torch's, which run one after the other."""
    roofline_us: float
    """The least time physics allows, at the vendor's peaks; without the launch."""
    schedule: str
    """What the kernel that is tuned would begin with."""
    at_most: bool = False
    """Whether masks leave out more than is counted, as lengths do: the figures are then the most there may be."""


@dataclass(frozen=True)
class Stage:
    """A kernel, or a call of torch's."""

    computes: str
    how: str
    why: str
    bytes_share: float
    """Of the bytes of all, in the first case."""
    flops_share: float


@dataclass(frozen=True)
class Analysis:
    """What `kernelgen analyze` says."""

    operator: str
    summary: str
    device: str
    bounds: tuple[Bound, ...]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]


def analyse(plan: Plan, cases: tuple[Case, ...], facts: DeviceFacts) -> Analysis:
    """The analysis of some cases of an operator; nothing is measured or run."""
    bounds = tuple(_bound(plan, case, work(plan, case), facts) for case in cases)
    return Analysis(plan.spec.name, plan.spec.summary, facts.name, bounds, _stages(plan, cases[0]), plan.notes)


def _bound(plan: Plan, case: Case, one: Work, facts: DeviceFacts) -> Bound:
    moved = (one.bytes_read + one.bytes_written) / facts.dram_bytes_per_s
    computed = one.arithmetic_seconds(facts)
    called = sum(call.seconds(facts) for call in one.calls)
    floor = floor_seconds(one, facts)
    on_matrix = one.matrix_seconds(facts) >= one.lane_seconds(facts)
    peak = facts.product_flops(one.products[0].dtype) if one.products and on_matrix else facts.fp32_flops
    bottleneck = MEMORY if moved >= computed else MATRIX if on_matrix else LANES
    if called > max(moved, computed):
        bottleneck = "calls of torch's"
    if floor < facts.launch_latency_s:
        bottleneck = LAUNCH
    used = None if isinstance(plan, WrittenPlan) else at(plan, case)
    served = used.table[families.row_of(used, case)].schedule if used else None
    return Bound(
        case.label, one.bytes_read, one.bytes_written, one.all_flops, one.intensity, peak / facts.dram_bytes_per_s,
        bottleneck, moved * 1e6, computed * 1e6, called * 1e6, floor * 1e6, str(served or ""), one.at_most,
    )  # fmt: skip


def _stages(plan: Plan, case: Case) -> tuple[Stage, ...]:
    """The kernels and calls in their order."""
    if isinstance(plan, WrittenPlan):
        named = ", ".join(t.name for t in plan.spec.outputs)
        return (Stage(named, "a kernel that a language model writes", "the spec says family: custom", 1.0, 1.0),)
    plan = at(plan, case)
    if isinstance(plan, KernelPlan):
        return (_kernel(plan, plan.table[families.row_of(plan, case)].schedule, 1.0, 1.0),)
    shares = step_works(plan, case)
    totals = [max(sum(share[i] for share in shares), 1) for i in (0, 1)]
    found = []
    for step, share in zip(plan.working, shares, strict=True):
        of_bytes, of_flops = (share[i] / totals[i] for i in (0, 1))
        if isinstance(step, TorchCall):
            why = f"no family takes {step.function}"
            found.append(Stage(step.result.name, f"torch's {step.function}", why, of_bytes, of_flops))
        else:
            found.append(_kernel(step, step.table[families.row_of(step, case)].schedule, of_bytes, of_flops))
    return tuple(found)


def _kernel(plan: KernelPlan, schedule: Schedule, of_bytes: float, of_flops: float) -> Stage:
    family = families.family_of(plan)
    named = ", ".join(t.name for t in plan.spec.outputs)
    how = f"a kernel, {plan.family}, variant {schedule.variant}"
    why = f"{_because(plan)}; {family.of(schedule.variant).meaning}"
    if plan.then is not None:
        why += "; a second kernel reduces what the rows leave"
    return Stage(named, how, why, of_bytes, of_flops)


def _because(plan: KernelPlan) -> str:
    """What of the reference made it a kernel of its family."""
    kinds = {"a product of matrices": (DOT,), "a scatter": SCATTERS, "a selection": SELECTIONS, "a scan": SCANS}
    made = dict.fromkeys(value.op for value in body_of(plan).lowered.values)
    for what, ops in {**kinds, "a reduction": REDUCTIONS}.items():
        if found := [op for op in made if op in ops]:
            return f"the reference has {what} ({', '.join(found)})"
    return "every element is computed by itself"

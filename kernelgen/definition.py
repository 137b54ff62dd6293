"""What `definition.md` says: the operator's definition, its analysis, and how the plan carries it out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kernelgen import families
from kernelgen.analysis import Work, floor_seconds, looked_up, step_works, work
from kernelgen.devices.facts import Peaks, by_arch, npu_by_name
from kernelgen.families.access import Access
from kernelgen.families.kernel import Body, body_of, has_products
from kernelgen.families.naming import COLUMN, FULL, ROW
from kernelgen.frontend.graph import REDUCTIONS, SCANS
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.plan import ChoicesPlan, KernelPlan, LoweredPlan, Plan, StepsPlan, TorchCall, WrittenPlan
from kernelgen.spec.choices import deciding
from kernelgen.spec.model import CUSTOM, OPTION, SCALAR, Case, OperatorSpec, TensorSpec

REFERENCE_ARCH = "sm_90"
"""The device whose peaks the roofline is drawn for; the text names it."""

MEANINGS = {
    "grid_config": "how rows and columns map to programs; which variant of the family runs for which rows",
    "block_size": "how many elements a program handles at once",
    "warp_stage": "warps per program, and pipeline stages of loops",
    "memory_access": "cache hints for data that is read or written once",
    "data_reuse": "what a program keeps in registers or caches between tiles or passes",
    "tune": "every variant with every value of its schedule is searched",
    "llm": "a language model may write the kernel, which is checked and judged like any other",
    "dynamic_shape": "one schedule per class of sizes, where a single one would be slower",
}


def step_notes(plan: Plan) -> tuple[str, ...]:
    """What a reviewer should know of an operator of several kernels, and of operations that stay calls of torch's."""
    if isinstance(plan, ChoicesPlan):
        return _choice_notes(plan)
    if not isinstance(plan, StepsPlan):
        return ()
    cases = [step_works(plan, case) for case in plan.spec.performance or plan.spec.accuracy]
    between = dict.fromkeys(t.name for k in plan.kernels for t in k.spec.inputs if t.name not in _given(plan.spec))
    several = f"split into {len(plan.kernels)} kernels"
    if between:
        several += f"; {', '.join(between)} {'go' if len(between) > 1 else 'goes'} through global memory"
    lines = [
        f"{step.result.name} stays {step.function}, which no family takes: "
        f"{_share(cases, i, 0)} of the bytes, {_share(cases, i, 1)} of the operations"
        for i, step in enumerate(plan.working)
        if isinstance(step, TorchCall)
    ]
    made = ", ".join(t.name for t in plan.main.spec.outputs)
    tuned = f"the kernel that computes {made} moves the most bytes and is the one that is tuned; all run in sequence"
    if not plan.calls:
        return (several, tuned) if len(plan.kernels) > 1 else ()
    return (*lines, tuned if len(plan.kernels) > 1 else "the kernel alone is tuned")


def _choice_notes(plan: ChoicesPlan) -> tuple[str, ...]:
    """What decides which kernels run, and which of them use the tuned schedules."""
    fork = plan.spec.fork
    names = [t.name for t in deciding(plan.spec)] + ([f"`{fork.text}`"] if fork else [])
    if not names:
        return ()
    chosen = f"which code runs depends on {' and '.join(names)}"
    apart = " and ".join(one.choice.spec.name for one in plan.alternatives if not one.is_tuned)
    if not apart:
        return (f"{chosen}; every way of calling uses the tuned schedules",)
    return (f"{chosen}; {apart} keeps its first schedules, which are not tuned",)


def _given(spec: OperatorSpec) -> set[str]:
    return {t.name for t in (*spec.inputs, *spec.outputs)}


def _share(cases: list[list[tuple[int, int]]], step: int, what: int) -> str:
    """What a step has of the bytes or the operations, over all cases: `75 %`, `71 to 80 %`."""
    if not cases:
        return "an unknown share"
    found = [round(100 * works[step][what] / max(sum(w[what] for w in works), 1)) for works in cases]
    return f"{min(found)} %" if min(found) == max(found) else f"{min(found)} to {max(found)} %"


def _steps(plan: StepsPlan) -> list[dict[str, str]]:
    """The kernels and calls of a plan in their order, with what each has of the whole."""
    cases = [step_works(plan, case) for case in plan.spec.performance or plan.spec.accuracy]
    found = []
    for i, step in enumerate(plan.working):
        if isinstance(step, TorchCall):
            name, how = step.result.name, f"torch's `{step.function}`"
        else:
            name, how = ", ".join(t.name for t in step.spec.outputs), f"a kernel, {step.family}"
        found.append({"name": name, "how": how, "bytes": _share(cases, i, 0), "flops": _share(cases, i, 1)})
    return found


def definition_context(plan: Plan) -> dict[str, Any]:
    """Everything the template prints, in plain strings and rows."""
    facts: Peaks | None = npu_by_name(plan.chip.name) if plan.chip else by_arch(REFERENCE_ARCH)
    assert facts is not None
    cases = plan.spec.performance
    works = [(case, work(plan, case)) for case in cases]
    return {
        "spec": plan.spec,
        "family": plan.family,
        "inputs": [_tensor(plan, t) for t in plan.spec.inputs],
        "outputs": [_tensor(plan, t) for t in plan.spec.outputs],
        **(_written_by_a_model(plan) if isinstance(plan, WrittenPlan) else _lowered(plan)),
        "facts": facts,
        "products": _products(works),
        "at_most": any(w.at_most for _, w in works),
        "looked_up": [f"`{name}`" for name in looked_up(plan)],
        "peaks": "estimates" if plan.chip else "its data sheet",
        "ridge": facts.fp32_flops / facts.dram_bytes_per_s,
        "cases": [_case(plan, case, w, facts) for case, w in works],
        **_at_a_glance(plan, [w for _, w in works], facts),
        "bound": _bound(works, facts) if not plan.calls else _bound_of_calls(works, facts),
        "strategies": [(name, MEANINGS[name]) for name in plan.spec.optimization_strategies],
        "notes": (*step_notes(plan), *plan.notes),
        "steps": _steps(plan) if isinstance(plan, StepsPlan) else [],
        "calls": bool(plan.calls),
        "target": plan.spec.target,
    }


def _at_a_glance(plan: Plan, works: list[Work], facts: Peaks) -> dict[str, str]:
    """What a reader asks first, over all cases."""
    bounds = [floor_seconds(w, facts) * 1e6 for w in works]
    touched = [w.bytes_read + w.bytes_written for w in works]
    moved = [(w.bytes_read + w.bytes_written) / facts.dram_bytes_per_s for w in works]
    computes = sum(w.arithmetic_seconds(facts) > seconds for w, seconds in zip(works, moved, strict=True))
    limit = "arithmetic" if works and computes == len(works) else "memory bandwidth"
    if 0 < computes < len(works):
        limit += f", arithmetic in {computes} of {len(works)} cases"
    return {
        "roofline": f"{_span([f'{bound:.1f}' for bound in bounds])} µs on {facts.name}",
        "bottleneck": f"{limit}; {_span([f'{w.intensity:.2f}' for w in works])} FLOP/byte",
        "kernels": _kernels(plan),
        "space": _space(plan) + (f": {_span([_bytes(count) for count in touched])} read and written" if works else ""),
    }


def _span(texts: list[str]) -> str:
    """Figures over the cases, as they are shown: the least and the greatest."""
    if not texts:
        return ""
    ordered = sorted(texts, key=_size)
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _size(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}.get(unit, 1.0)


def _kernels(plan: Plan) -> str:
    """How many kernels, of which families, and what stays torch's."""
    if isinstance(plan, ChoicesPlan):
        found = dict.fromkeys(kernel.family for kernel in plan.kernels)
        return f"{', '.join(found)}, in {len(plan.alternatives)} ways of calling"
    if not isinstance(plan, StepsPlan):
        return f"1, {plan.family}"
    families_of = Counter(kernel.family for kernel in plan.kernels)
    shown = ", ".join(f"{count} {name}" if count > 1 else name for name, count in families_of.items())
    calls = ", ".join(f"`{call.result.name}` stays {call.function}" for call in plan.calls if not call.is_view)
    return f"{len(plan.kernels)}: {shown}" + (f"; {calls}" if calls else "")


def _space(plan: Plan) -> str:
    """The memory of inputs and outputs; kernels need none beside them but what lies between several."""
    if isinstance(plan, WrittenPlan):
        return "inputs and outputs"
    if body_of(plan).layout.extents:
        return "O(M × K + K × N + M × N)"
    return "O(M × N)" if body_of(plan).layout.columns else "O(n)"


def _lowered(plan: LoweredPlan) -> dict[str, Any]:
    """What is known of a reference that a family took."""
    counts = sum((Counter(dict(_operations(body_of(kernel)))) for kernel in plan.kernels), Counter[str]())
    variants = dict(line for kernel in plan.kernels for line in _variants(kernel))
    return {
        "time": _complexity(plan) + (" in the kernel that is tuned" if isinstance(plan, StepsPlan) else ""),
        "operations": sorted(counts.items()),
        "flow": _flow(plan),
        "variants": list(variants.items()),
    }


def _written_by_a_model(plan: WrittenPlan) -> dict[str, Any]:
    """What is known where no family took the reference: its interface, and the bytes it must move."""
    inputs = ", ".join(f"`{t.name}`" for t in plan.spec.inputs if t.role != "like")
    outputs = ", ".join(f"`{t.name}`" for t in plan.spec.outputs)
    return {
        "time": "not derived: no family has lowered the reference",
        "operations": None,
        "flow": [f"{inputs}: read at least once", f"{outputs}: written at least once"],
        "variants": [(CUSTOM, "written by a language model; the head of the kernel's file describes it")],
    }


def _tensor(plan: Plan, tensor: TensorSpec) -> dict[str, str]:
    kinds = dict(plan.spec.dtypes).get(tensor.dtype, (tensor.dtype,))
    if tensor.role in (SCALAR, OPTION):
        values = " or ".join(map(repr, tensor.values)) or f"any {tensor.kind}"
        reads = f"{values}; default {tensor.default!r}"
        return {"name": tensor.name, "shape": "", "dtypes": tensor.kind, "reads": reads}
    reads = "shape, dtype and device only" if tensor.role == "like" else "elements"
    return {
        "name": tensor.name,
        "shape": f"[{', '.join(map(str, tensor.shape))}]",
        "dtypes": ", ".join(kinds),
        "reads": f"{reads}, optional" if tensor.optional else reads,
    }


def _complexity(plan: LoweredPlan) -> str:
    if body_of(plan).layout.extents:
        return "O(M × N × K) for a product of M × K by K × N"
    return "O(M × N) for M rows of N elements" if body_of(plan).layout.columns else "O(n) for n elements"


def _operations(body: Body) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for value in body.lowered.values:
        if OPERATIONS[value.op].flops:
            counts[value.op] = counts.get(value.op, 0) + 1
    return sorted(counts.items())


def _case(plan: Plan, case: Case, w: Work, facts: Peaks) -> dict[str, str]:
    return {
        "label": case.label,
        "read": _bytes(w.bytes_read),
        "written": _bytes(w.bytes_written),
        "flops": f"{w.all_flops:.3g}",
        "intensity": f"{w.intensity:.2f}",
        "floor": f"{floor_seconds(w, facts) * 1e6:.1f}",
    }


def _products(works: list[tuple[Case, Work]]) -> list[str]:
    """The dtypes in which the kernels multiply matrices."""
    return list(dict.fromkeys(p.dtype for _, w in works for p in w.products))


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _bound(works: list[tuple[Case, Work]], facts: Peaks) -> str:
    compute = [
        c.label
        for c, w in works
        if w.arithmetic_seconds(facts) > (w.bytes_read + w.bytes_written) / facts.dram_bytes_per_s
    ]
    if not compute:
        return "Every case lies left of the ridge: the operator is bound by memory bandwidth."
    if len(compute) == len(works):
        return "Every case lies right of the ridge: the operator is bound by arithmetic."
    return f"Bound by arithmetic: {', '.join(compute)}. The other cases are bound by memory bandwidth."


def _bound_of_calls(works: list[tuple[Case, Work]], facts: Peaks) -> str:
    shares = [round(100 * sum(c.seconds(facts) for c in w.calls) / floor_seconds(w, facts)) for _, w in works]
    if not shares:
        return ""
    shown = f"{min(shares)} %" if min(shares) == max(shares) else f"{min(shares)} to {max(shares)} %"
    return f"Torch's calls take {shown} of the lower bound, the kernels the rest."


def _flow(plan: LoweredPlan) -> list[str]:
    """The data flow, a line an input, then the reductions and the outputs."""
    if isinstance(plan, StepsPlan):
        parts = [[_reads(s)] if isinstance(s, TorchCall) else _flow(s) for s in plan.steps]
        return [line for part in parts for line in part]
    if isinstance(plan, ChoicesPlan):
        return list(dict.fromkeys(line for one in plan.alternatives for line in _flow(one.plan)))
    body = body_of(plan)
    names = {
        FULL: "once per element",
        ROW: "once per row",
        COLUMN: "once per column, and again in every program",
        "scalar": "once per program",
    }
    reads: Counter[tuple[str, str]] = Counter()
    for access in body.layout.accesses:
        level = FULL if body.layout.columns is None else body.names.levels[access.load]
        often = _of_tiles(body, access) if body.layout.extents else names[level]
        reads[access.tensor, often] += 1
    lines = [f"`{name}`{f' ×{n}' if n > 1 else ''} is read {often}" for (name, often), n in reads.items()]
    for tensor in plan.spec.inputs:
        if tensor.name not in {a.tensor for a in body.layout.accesses}:
            lines.append(f"`{tensor.name}` is not read")
    reductions = [body.names.of[i] for i, v in enumerate(body.lowered.values) if v.op in REDUCTIONS]
    if reductions:
        lines.append(f"each row is reduced to {', '.join(f'`{r}`' for r in reductions)} in float32")
    scans = [body.names.of[i] for i, v in enumerate(body.lowered.values) if v.op in SCANS]
    if scans:
        exponents = ", float products with separate exponents" if has_products(body) else ""
        arithmetic = f"sums and products in float32 or int64{exponents}"
        lines.append(f"{', '.join(f'`{s}`' for s in scans)} run along each row, {arithmetic}")
    stored = Counter(o.name for o in body.lowered.outputs)
    lines += [f"`{name}` is written once{f', in {n} parts' if n > 1 else ''}" for name, n in stored.items()]
    return lines


def _of_tiles(body: Body, access: Access) -> str:
    """How often a tensor is read by the kernel of a product."""
    indices = {index for index, _ in access.terms}
    along = {e.name for e in body.layout.extents for run in e.runs if run.index in indices}
    if "k" in along:
        return "once per tile of columns" if "m" in along else "once per tile of rows"
    return "once per element of the result" if {"m", "n"} <= along else "once per tile of the result"


def _reads(call: TorchCall) -> str:
    read = ", ".join(f"`{o.tensor.name}`" for o in call.operands)
    how = "a view of the same memory" if call.is_view else f"`{call.function}` in torch"
    return f"{read} to `{call.result.name}`: {how}"


def _variants(plan: KernelPlan) -> list[tuple[str, str]]:
    family = families.family_of(plan)
    return [(v, family.of(v).meaning) for v in family.variants(body_of(plan))]

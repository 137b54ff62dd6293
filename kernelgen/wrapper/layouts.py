"""How the outputs of a wrapper lie in memory, for the operator of torch that is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernelgen.families import family_of
from kernelgen.families.kernel import body_of
from kernelgen.plan import ChoicesPlan, KernelPlan, OnePlan, Plan, StepsPlan, TorchCall, WrittenPlan
from kernelgen.spec.constraints import facts_of
from kernelgen.wrapper.calls import is_dense

CONTIGUOUS = "torch.contiguous_format"
_OF = re.compile(r"memory_format_of\((\w+)\)")
_CONVOLVES = re.compile(r"torch\.(nn\.functional\.)?conv(_transpose)?[23]d\(")


@dataclass(frozen=True)
class Layout:
    """How an output lies."""

    memory_format: str = CONTIGUOUS
    """An expression of the inputs' names; `memory_format_of` is a helper of the template of wrappers."""
    certain: bool = True
    """False: a call of torch's makes it, which may lay it out in another way."""

    def given(self, name: str) -> str:
        """A tensor of that name as it lies: copied where it lies in another way."""
        if self.certain:
            return name
        return f"{name}.contiguous({'' if self.memory_format == CONTIGUOUS else f'memory_format={self.memory_format}'})"


def layouts(plan: Plan) -> dict[str, Layout]:
    """By the names of the outputs. Of a kernel that no family wrote nothing is known."""
    if isinstance(plan, WrittenPlan):
        return {output.name: Layout(certain=False) for output in plan.spec.outputs}
    if isinstance(plan, ChoicesPlan):
        ways = [layouts(one.plan) for one in plan.alternatives]
        return {o.name: _common([way[o.name] for way in ways if o.name in way]) for o in plan.spec.outputs}
    known = _known(plan)
    return {output.name: known.get(output.name, Layout()) for output in plan.spec.outputs}


def following(later: Mapping[str, Layout], before: Mapping[str, Layout]) -> dict[str, Layout]:
    """The outputs of a wrapper that reads the outputs of others, as the inputs of those say it."""
    return {name: _resolved(layout, before) for name, layout in later.items()}


def _known(plan: OnePlan) -> dict[str, Layout]:
    if isinstance(plan, KernelPlan):
        body = body_of(plan)
        family, free = family_of(plan), {o.name for o in plan.spec.outputs} - facts_of(plan.spec).contiguous
        return {
            o.name: Layout(
                family.memory_format(plan.spec, body, o.name) or CONTIGUOUS,
                certain=o.name not in free or not family.as_torch_lays(body),
            )
            for o in plan.spec.outputs
        }
    found: dict[str, Layout] = {}
    for step in plan.steps:
        if isinstance(step, KernelPlan):
            found |= following(_known(step), found)
        else:
            found[step.result.name] = _resolved(_of_call(plan, step), found)
    return found


def _of_call(plan: StepsPlan, call: TorchCall) -> Layout:
    """Torch lays out a convolution as its input lies, or its weight."""
    read = {t.name for group in plan.kernels for t in group.spec.inputs if t.role != "like"}
    if is_dense(call) or call.contiguous or call.result.name in read:
        return Layout()
    first = call.operands[0]
    if _CONVOLVES.match(call.text) and not first.views:
        return Layout(f"memory_format_of({first.tensor.name})", certain=False)
    return Layout(certain=False)


def _resolved(layout: Layout, before: Mapping[str, Layout]) -> Layout:
    """Without the names of what other steps make."""
    of = _OF.fullmatch(layout.memory_format)
    if of is None or of[1] not in before:
        return layout
    earlier = before[of[1]]
    return Layout(earlier.memory_format, layout.certain and earlier.certain)


def _common(ways: list[Layout]) -> Layout:
    if len({way.memory_format for way in ways}) == 1:
        return Layout(ways[0].memory_format, all(way.certain for way in ways))
    return Layout(certain=False)

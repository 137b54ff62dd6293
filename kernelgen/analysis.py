"""What an operator must do at the least: bytes moved and operations done for one case, and the floor they set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from kernelgen.devices.facts import Peaks
from kernelgen.families import elements
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body
from kernelgen.families.values import Use
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Plan
from kernelgen.spec.model import CUSTOM, Case

FREE = ("load", "const", "round", "convert")
"""Operations that are not arithmetic."""


@dataclass(frozen=True)
class Work:
    """The least a kernel must do for one case, whatever its schedule."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / max(self.bytes_read + self.bytes_written, 1)


def work(plan: Plan, case: Case) -> Work:
    """Every input element that is read counted once, every output element once; one flop an elementary operation.

    An exponential counts as one operation like an addition: the floor is then a lower bound. Of a reference that no
    family has lowered the operations are not known, and the bytes alone set the floor.
    """
    if plan.family == CUSTOM:
        read, operations = {t.name for t in plan.spec.inputs if t.role != "like"}, 0
    else:
        read = {v.tensor for v in plan.body.lowered.values if v.op == "load"}
        operations = flops(plan.body, case)
    tensors = [t for t in plan.spec.inputs if t.name in read]
    return Work(
        sum(prod(case.shape(t.shape)) * ITEMSIZE[case.dtype(t.dtype)] for t in tensors),
        sum(prod(case.shape(t.shape)) * ITEMSIZE[case.dtype(t.dtype)] for t in plan.spec.outputs),
        operations,
    )


def flops(body: Body, case: Case) -> int:
    """Operations of the reference for one case: a map operation once an element of its result, a reduction once an
    element of its operand."""
    total = 0
    for value in body.lowered.values:
        if value.op in FREE:
            continue
        axes: Iterable[int] = value.axes
        if value.op in REDUCTIONS and isinstance(value.args[0], Use):
            axes = body.lowered.values[value.args[0].value].axes
        total += elements(body, case, axes)
    return total


def floor_seconds(work: Work, facts: Peaks) -> float:
    """The least time physics allows: every byte moved once at the vendor's bandwidth, every operation at its peak."""
    return max((work.bytes_read + work.bytes_written) / facts.dram_bytes_per_s, work.flops / facts.fp32_flops)

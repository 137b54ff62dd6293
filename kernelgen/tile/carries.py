"""What a walk carries from one block to the next, and how a block is added to it."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.tile import ir

LOG2_E = 1.4426950408889634
LEAST = -(2.0**127) * (2 - 2.0**-23)
"""The least finite float32. The running maximum begins there and not at minus infinity, so that nothing is ever minus
infinity less itself."""


@dataclass(frozen=True)
class OnlineSoftmax:
    """The maximum of a row so far, and the sum of the exponentials of its elements less that.

    Both are in powers of two, which the hardware has: elements are multiplied by `factor`, which holds log2(e). Where
    the maximum grows, what has been summed before is multiplied by `correction`.
    """

    row_max: ir.Name
    row_sum: ir.Name
    new_max: str = "new_max"
    correction: str = "correction"

    def begin(self, total: ir.Expr | None = None) -> tuple[ir.Let, ...]:
        """`total`: what the sum begins with, if not with 0."""
        shape = self.row_max.shape
        begun = ir.Zeros(shape) if total is None else ir.Full(total, "float32", shape)
        return ir.Let((self.row_max.text,), ir.Full(ir.Number(LEAST), "float32", shape)), ir.Let(
            (self.row_sum.text,), begun
        )

    def step(
        self, elements: ir.Expr, axis: ir.Axis, factor: ir.Expr, exponentials: ir.Name
    ) -> tuple[tuple[ir.Let, ...], ir.Name]:
        """The statements that add a block of elements, whose exponentials they assign; and what corrects what was
        summed before. The maximum is of the elements as they are, for the factor is positive."""
        rows = self.row_max.shape
        scaled = ir.Apply("mul", (elements, factor), elements.shape)
        greatest = ir.Apply("mul", (ir.Reduce("max", elements, axis, keeps_nan=False), factor), rows)
        new_max, correction = ir.Name(self.new_max, rows), ir.Name(self.correction, rows)
        powers = ir.Apply("exp2", (ir.Apply("sub", (scaled, new_max), elements.shape),), elements.shape)
        fading = ir.Apply("exp2", (ir.Apply("sub", (self.row_max, new_max), rows),), rows)
        kept = ir.Apply("mul", (self.row_sum, correction), rows)
        return (
            ir.Let((new_max.text,), ir.Apply("fmax", (self.row_max, greatest), rows)),
            ir.Let((exponentials.text,), powers),
            ir.Let((correction.text,), fading),
            ir.Let((self.row_sum.text,), ir.Apply("add", (kept, ir.Reduce("sum", exponentials, axis)), rows)),
        ), correction

    def end(self) -> ir.Let:
        """The statement that ends a block."""
        return ir.Let((self.row_max.text,), ir.Name(self.new_max, self.row_max.shape))

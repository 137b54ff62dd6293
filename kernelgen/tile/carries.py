"""What a walk over rows carries from block to block, and how a block is added to it: each kind once.

A `Carry` of reductions is what stands before the walk, what a block adds, and what follows from it after the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelgen.families.moments import Moments
from kernelgen.families.online import Online
from kernelgen.families.padding import neutral
from kernelgen.frontend.graph import ARG_REDUCTIONS
from kernelgen.tile import ir
from kernelgen.tile.nest import Nest

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

    def join(self, part: OnlineSoftmax) -> tuple[tuple[ir.Let, ...], ir.Name, ir.Name]:
        """The statements that add what another walk came to, and what corrects what was summed before and in that."""
        rows = self.row_max.shape
        new_max, correction, share = (ir.Name(name, rows) for name in (self.new_max, self.correction, "share"))
        fading, taken = (
            ir.Apply("exp2", (ir.Apply("sub", (one, new_max), rows),), rows) for one in (self.row_max, part.row_max)
        )
        kept, added = (
            ir.Apply("mul", (total, by), rows) for total, by in ((self.row_sum, correction), (part.row_sum, share))
        )
        return (
            (
                ir.Let((new_max.text,), ir.Apply("fmax", (self.row_max, part.row_max), rows)),
                ir.Let((correction.text,), fading),
                ir.Let((share.text,), taken),
                ir.Let((self.row_sum.text,), ir.Apply("add", (kept, added), rows)),
            ),
            correction,
            share,
        )

    def end(self) -> ir.Let:
        """The statement that ends a block."""
        return ir.Let((self.row_max.text,), ir.Name(self.new_max, self.row_max.shape))


_JOINS = {"max": ("maximum", "fmax", "int_maximum"), "min": ("minimum", "fmin", "int_minimum")}
"""The operation of two elements that an extreme repeats: of floats that keeps NaN, or not, and of integers."""


@dataclass(frozen=True)
class Carry:
    before: tuple[ir.Stmt, ...] = ()
    inside: tuple[ir.Stmt, ...] = ()
    after: tuple[ir.Stmt, ...] = ()


def together(carries: Iterable[Carry]) -> Carry:
    found = tuple(carries)
    return Carry(
        tuple(s for c in found for s in c.before), tuple(s for c in found for s in c.inside),
        tuple(s for c in found for s in c.after),
    )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """A reduction's operand, and what the reduction leaves of it."""

    shape: ir.Shape
    axis: ir.Axis

    @property
    def row(self) -> ir.Shape:
        return tuple(axis for axis in self.shape if axis != self.axis)

    def number(self, name: str) -> ir.Name:
        """Of every row."""
        return ir.Name(name, self.row)

    def element(self, name: str) -> ir.Name:
        return ir.Name(name, self.shape)

    def reduced(self, op: str, arg: ir.Expr) -> ir.Reduce:
        return ir.Reduce(op, arg, self.axis, keeps_nan=False)

    def of(self, op: str, *args: ir.Expr) -> ir.Apply:
        """An operation of elements, or of numbers of the rows."""
        whole = any(self.axis in arg.shape for arg in args)
        return ir.Apply(op, args, self.shape if whole else self.row)


def rows_of(nest: Nest, i: int) -> Rows:
    """Where reduction `i` runs. What varies along the columns alone has one result for all rows."""
    return Rows(nest.shape(nest.builder.source(i)), nest.tile.columns)


def started(nest: Nest, i: int) -> tuple[ir.Stmt, ...]:
    """The accumulators of a reduction, one for every lane of a block, with what does not change it."""
    rows, value, name = rows_of(nest, i), nest.body.lowered.values[i], nest.body.names.of[i]
    kind = nest.body.lowered.values[nest.builder.source(i)].dtype
    whole = ir.Full(ir.Number(neutral(nest.body.lowered, i)), kind, rows.shape)
    found = ir.Let((f"{name}_acc",), whole)
    return (found, ir.Let((f"{name}_at",), ir.Zeros(rows.shape, "int32"))) if value.op in ARG_REDUCTIONS else (found,)


def taken_up(nest: Nest, i: int, block: ir.Expr) -> tuple[ir.Stmt, ...]:
    """How the accumulators of a reduction take up another block."""
    rows, value, name = rows_of(nest, i), nest.body.lowered.values[i], nest.body.names.of[i]
    acc = rows.element(f"{name}_acc")
    if value.op in ("sum", "prod"):
        return (ir.Update(acc.text, "add" if value.op == "sum" else "mul", block),)
    if value.op in ARG_REDUCTIONS:
        return _located(nest, i, block)
    keeps, plain, whole = _JOINS[value.op]
    op = whole if value.dtype != "float" else plain if i in nest.builder.drops_nan else keeps
    return (ir.Let((acc.text,), rows.of(op, acc, block)),)


def _located(nest: Nest, i: int, block: ir.Expr) -> tuple[ir.Stmt, ...]:
    """The extreme of every lane so far and where it stands: the first of equals, because columns ascend."""
    rows, name, op = rows_of(nest, i), nest.body.names.of[i], nest.body.lowered.values[i].op
    found: list[ir.Stmt] = []
    if not isinstance(block, ir.Name):
        found.append(ir.Let((f"{name}_block",), block))
        block = rows.element(f"{name}_block")
    acc, at, moves = (rows.element(f"{name}_{what}") for what in ("acc", "at", "moves"))
    numbers = ir.Name(rows.axis.index, (rows.axis,))
    better: ir.Expr = rows.of("gt" if op == "argmax" else "lt", block, acc)
    if nest.body.lowered.values[nest.builder.source(i)].dtype == "float":
        better = ir.Call("is_above" if op == "argmax" else "is_below", (block, acc), rows.shape)
    return (
        *found,
        ir.Let((moves.text,), better),
        ir.Let((acc.text,), rows.of("where", moves, block, acc)),
        ir.Let((at.text,), rows.of("where", moves, numbers, at)),
    )


def finished(nest: Nest, i: int) -> ir.Let:
    """A reduction from its accumulators."""
    rows, name = rows_of(nest, i), nest.body.names.of[i]
    numbers = rows.element(f"{name}_at") if nest.body.lowered.values[i].op in ARG_REDUCTIONS else None
    return ir.Let((name,), nest.builder.reduced(i, rows.element(f"{name}_acc"), numbers))


def accumulated(nest: Nest, i: int) -> Carry:
    """A sum, a product or an extreme, lane by lane."""
    return Carry(started(nest, i), taken_up(nest, i, nest.builder.operand(i)), (finished(nest, i),))


def online_softmax(nest: Nest, pair: Online) -> Carry:
    """The running maximum and the running sum of exponentials, rescaled when the maximum grows."""
    rows, names = rows_of(nest, pair.maximum), nest.body.names.of
    top, total = rows.number(names[pair.maximum]), rows.number(names[pair.total])
    least: ir.Expr = ir.Number(LEAST)
    least = ir.Full(least, "float32", rows.row) if rows.row else least
    source = nest.builder.operand(pair.maximum, neutral_alone=True)  # exp makes 0 of -inf alone
    new_max, block_sum = rows.number("new_max"), rows.number("block_sum")
    greatest = rows.of("fmax", top, rows.reduced("max", source))
    if pair.finite:  # with infinities made zero the sum may be infinite, but it must not be inf - inf
        greatest = rows.of("fmin", greatest, ir.Number(-LEAST))
    exponentials = rows.of("exp", rows.of("sub", source, new_max))
    rescaled = rows.of("mul", total, rows.of("exp", rows.of("sub", top, new_max)))
    return Carry(
        (
            ir.Let((top.text,), least, "from the least finite float32 on: a row may begin with -inf"),
            ir.Let((total.text,), zero(rows)),
        ),
        (
            ir.Let((new_max.text,), greatest),
            ir.Let((block_sum.text,), rows.reduced("sum", exponentials)),
            ir.Let((total.text,), rows.of("add", rescaled, block_sum)),
            ir.Let((top.text,), new_max),
        ),
    )


def zero(rows: Rows) -> ir.Expr:
    """A number of every row that begins at zero."""
    return ir.Zeros(rows.row) if rows.row else ir.Number(0.0)


def welford(nest: Nest, moments: Moments, begins: ir.Expr | None = None) -> Carry:
    """The running mean and sum of squared deviations, joined with those of a block. `begins`: where the program's part
    of the row begins, if not at its beginning."""
    rows, names = rows_of(nest, moments.total), nest.body.names.of
    mean, squares = rows.number(names[moments.mean]), rows.number(names[moments.squares])
    source, plain = nest.builder.operand(moments.total), nest.builder.value(moments.source, nest.tile.shape)
    if not isinstance(plain, ir.Name):
        plain = source
    start = ir.Name("start")
    walked: ir.Expr = start if begins is None else ir.Name("walked")
    counted = () if begins is None else (ir.Let(("walked",), ir.Apply("sub", (start, begins), ())),)
    count = ir.Name("block_count")
    block_mean, block_squares, shift, share = map(
        rows.number, ("block_mean", "block_squares", "block_shift", "block_share")
    )
    centered, inside = rows.element("block_centered"), nest.mask(rows.shape)
    assert inside is not None
    left = ir.Apply("sub", (ir.Name("N"), start), ())
    again = rows.of("mul", rows.of("mul", rows.of("mul", shift, shift), walked), share)
    return Carry(
        (ir.Let((mean.text,), zero(rows)), ir.Let((squares.text,), zero(rows))),
        (
            *counted,
            ir.Let((count.text,), ir.Apply("int_minimum", (ir.Name(rows.axis.block), left), ())),
            ir.Let((block_mean.text,), rows.of("div", rows.reduced("sum", source), count)),
            ir.Let((centered.text,), rows.of("where", inside, rows.of("sub", plain, block_mean), ir.Number(0.0))),
            ir.Let((block_squares.text,), rows.reduced("sum", rows.of("mul", centered, centered))),
            ir.Let((shift.text,), rows.of("sub", block_mean, mean)),
            ir.Let((share.text,), rows.of("div", count, ir.Apply("add", (walked, count), ()))),
            ir.Update(mean.text, "add", rows.of("mul", shift, share)),
            ir.Update(squares.text, "add", rows.of("add", block_squares, again)),
        ),
    )

"""What a walk over rows carries from block to block, and how a block is added to it: each kind once.

A `Carry` of reductions is what stands before the walk, what a block adds, and what follows from it after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

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

    Where the maximum grows, what has been summed before is multiplied by `correction`. With a factor, which holds
    log2(e), exponentials are powers of two, which the hardware has. An element less the maximum comes first: of their
    multiples, of which the hardware rounds one alone, the largest would not be 1, and beyond 2**31 infinite.
    """

    row_max: ir.Name
    row_sum: ir.Name
    new_max: str = "new_max"
    correction: str = "correction"
    is_finite: bool = False
    """Whether infinite maxima count as zero, as in logsumexp."""

    def begin(self, total: ir.Expr | None = None, comment: str = "") -> tuple[ir.Let, ...]:
        """`total`: what the sum begins with, if not with 0."""
        shape = self.row_max.shape
        least = ir.Full(ir.Number(LEAST), "float32", shape) if shape else ir.Number(LEAST)
        begun = zero(shape) if total is None else ir.Full(total, "float32", shape)
        return ir.Let((self.row_max.text,), least, comment), ir.Let((self.row_sum.text,), begun)

    def step(
        self, elements: ir.Expr, axis: ir.Axis, factor: ir.Expr | None, exponentials: ir.Name | None
    ) -> tuple[tuple[ir.Let, ...], ir.Name]:
        """The statements that add a block of elements; and what corrects what was summed before. The maximum is of the
        elements as they are, for the factor is positive. `exponentials`: what is assigned these, where they and the
        correction are needed again."""
        rows = self.row_max.shape
        greatest: ir.Expr = ir.Reduce("max", elements, axis, keeps_nan=False)
        new_max, correction = ir.Name(self.new_max, rows), ir.Name(self.correction, rows)

        def power(x: ir.Expr, shape: ir.Shape) -> ir.Expr:
            less = ir.Apply("sub", (x, new_max), shape)
            return (
                ir.Apply("exp", (less,), shape)
                if factor is None
                else ir.Apply("exp2_flushed", (ir.Apply("mul", (less, factor), shape),), shape)
            )

        powers, fading = power(elements, elements.shape), power(self.row_max, rows)
        found = [ir.Let((new_max.text,), self.capped(ir.Apply("fmax", (self.row_max, greatest), rows)))]
        added: ir.Expr = ir.Name("block_sum", rows)
        if exponentials is None:
            found.append(ir.Let(("block_sum",), ir.Reduce("sum", powers, axis)))
        else:
            found += [ir.Let((exponentials.text,), powers), ir.Let((correction.text,), fading)]
            fading, added = correction, ir.Reduce("sum", exponentials, axis)
        kept = ir.Apply("mul", (self.row_sum, fading), rows)
        return (*found, ir.Let((self.row_sum.text,), ir.Apply("add", (kept, added), rows))), correction

    def whole(self, elements: ir.Expr, axis: ir.Axis, exponentials: ir.Name | None) -> tuple[ir.Let, ...]:
        """The statements that have both of one block alone, which may be minus infinity throughout."""
        rows = self.row_max.shape
        greatest = ir.Apply("fmax", (ir.Reduce("max", elements, axis, keeps_nan=False), ir.Number(LEAST)), rows)
        top = ir.Let((self.row_max.text,), self.capped(greatest), "a part may consist of -inf only")
        powers = ir.Apply("exp", (ir.Apply("sub", (elements, self.row_max), elements.shape),), elements.shape)
        named = () if exponentials is None else (ir.Let((exponentials.text,), powers),)
        return top, *named, ir.Let((self.row_sum.text,), ir.Reduce("sum", exponentials or powers, axis))

    def capped(self, greatest: ir.Apply) -> ir.Apply:
        """With infinities made zero the sum may be infinite, but it must not be inf - inf."""
        return ir.Apply("fmin", (greatest, ir.Number(-LEAST)), greatest.shape) if self.is_finite else greatest

    def of_parts(
        self, maxima: ir.Expr, sums: ir.Expr, axis: ir.Axis, shares: ir.Name | None = None
    ) -> tuple[ir.Let, ...]:
        """The statements that join what several walks came to, which lies along an axis. `shares`: what is assigned by
        how much each of them counts, where that is needed again; maxima are exponents of two then."""
        less = ir.Apply("sub", (maxima, self.row_max), maxima.shape)
        powers = ir.Apply("exp" if shares is None else "exp2_flushed", (less,), maxima.shape)
        named = () if shares is None else (ir.Let((shares.text,), powers),)
        joined = ir.Reduce("sum", ir.Apply("mul", (sums, shares or powers), maxima.shape), axis)
        return (
            ir.Let((self.row_max.text,), ir.Reduce("max", maxima, axis, keeps_nan=False)),
            *named,
            ir.Let((self.row_sum.text,), joined),
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
    softmax, source = softmax_of(nest, pair), softmax_source(nest, pair)
    said = "starts at the lowest finite float32: a row may begin with -inf"
    step, _ = softmax.step(source, nest.tile.columns, None, None)
    return Carry(softmax.begin(comment=said), (*step, softmax.end()))


def softmax_of(nest: Nest, pair: Online, ending: str = "") -> OnlineSoftmax:
    """What a row, or with an `ending` a part of it, is reduced to."""
    rows, names = rows_of(nest, pair.maximum), nest.body.names.of
    top, total = (rows.number(f"{names[i]}{ending}") for i in (pair.maximum, pair.total))
    return OnlineSoftmax(top, total, is_finite=pair.finite)


def softmax_source(nest: Nest, pair: Online) -> ir.Expr:
    """What both are of: exp makes 0 of -inf alone."""
    return nest.builder.operand(pair.maximum, neutral_alone=True)


def zero(rows: ir.Shape) -> ir.Expr:
    """A number of every row that begins at zero."""
    return ir.Zeros(rows) if rows else ir.Number(0.0)


@dataclass(frozen=True)
class Welford:
    """The mean of a row, and the sum of the squares of what its elements differ from that."""

    rows: Rows
    mean: ir.Name
    squares: ir.Name

    def block(
        self, nest: Nest, moments: Moments, start: ir.Expr, names: tuple[str, str, str, str]
    ) -> tuple[tuple[ir.Let, ...], tuple[ir.Name, ...]]:
        """The statements that have both of the block from `start` on; and the block's count, mean and squares.
        `names`: of these, and of what the elements differ from the mean."""
        rows = self.rows
        count, mean, squares = ir.Name(names[0]), rows.number(names[1]), rows.number(names[2])
        centered, inside = rows.element(names[3]), nest.mask(rows.shape)
        source, plain = nest.builder.operand(moments.total), nest.builder.value(moments.source, nest.tile.shape)
        if not isinstance(plain, ir.Name):
            plain = source
        assert inside is not None
        left = ir.Apply("sub", (ir.Name("N"), start), ())
        return (
            ir.Let((count.text,), ir.Apply("int_minimum", (ir.Name(rows.axis.block), left), ())),
            ir.Let((mean.text,), rows.of("div", rows.reduced("sum", source), count)),
            ir.Let((centered.text,), rows.of("where", inside, rows.of("sub", plain, mean), ir.Number(0.0))),
            ir.Let((squares.text,), rows.reduced("sum", rows.of("mul", centered, centered))),
        ), (count, mean, squares)

    def of_parts(self, means: ir.Name, squares: ir.Expr, part: ir.Expr) -> tuple[ir.Let, ...]:
        """The statements that join what several walks of `part` elements each came to, the last perhaps of fewer."""
        axis = self.rows.axis
        counts, shifts = ir.Name("part_counts", (axis,)), self.rows.element(f"{self.mean.text}_shifts")
        shifted = self.rows.element(f"{self.squares.text}_shifts")
        before = ir.Apply("mul", (ir.Range(axis, ir.Number(0)), part), (axis,))
        left = ir.Apply("int_maximum", (ir.Apply("sub", (ir.Name("N"), before), (axis,)), ir.Number(0)), (axis,))
        weighted = self.rows.reduced("sum", self.rows.of("mul", means, counts))
        again = self.rows.of("mul", self.rows.of("mul", counts, shifts), shifts)
        return (
            ir.Let((counts.text,), ir.Apply("int_minimum", (left, part), (axis,))),
            ir.Let((self.mean.text,), self.rows.of("div", weighted, ir.Name("N"))),
            ir.Let((shifts.text,), self.rows.of("sub", means, self.mean)),
            ir.Let((shifted.text,), again),
            ir.Let((self.squares.text,), self.rows.reduced("sum", self.rows.of("add", squares, shifted))),
        )


def welford_of(nest: Nest, moments: Moments, ending: str = "") -> Welford:
    """What a row, or with an `ending` a part of it, is reduced to."""
    rows, names = rows_of(nest, moments.total), nest.body.names.of
    return Welford(rows, *(rows.number(f"{names[i]}{ending}") for i in (moments.mean, moments.squares)))


def welford(nest: Nest, moments: Moments, begins: ir.Expr | None = None) -> Carry:
    """The running mean and sum of squared deviations, joined with those of a block. `begins`: where the program's part
    of the row begins, if not at its beginning."""
    carry, start = welford_of(nest, moments), ir.Name("start")
    rows, mean, squares = carry.rows, carry.mean, carry.squares
    walked: ir.Expr = start if begins is None else ir.Name("walked")
    counted = () if begins is None else (ir.Let(("walked",), ir.Apply("sub", (start, begins), ())),)
    of_block = ("block_count", "block_mean", "block_squares", "block_centered")
    block, (count, block_mean, block_squares) = carry.block(nest, moments, start, of_block)
    shift, share = map(rows.number, ("block_shift", "block_share"))
    again = rows.of("mul", rows.of("mul", rows.of("mul", shift, shift), walked), share)
    moved: ir.Stmt = ir.Update(mean.text, "add", rows.of("mul", shift, share))
    if moments.is_left:  # infinity less infinity is no number
        rest = rows.of("sub", ir.Number(1.0), share)
        both = rows.of("mul", mean, rest), rows.of("mul", block_mean, share)
        moved = ir.Let((mean.text,), rows.of("add", *both))
    return Carry(
        (ir.Let((mean.text,), zero(rows.row)), ir.Let((squares.text,), zero(rows.row))),
        (
            *counted,
            *block,
            ir.Let((shift.text,), rows.of("sub", block_mean, mean)),
            ir.Let((share.text,), rows.of("div", count, ir.Apply("add", (walked, count), ()))),
            moved,
            ir.Update(squares.text, "add", rows.of("add", block_squares, again)),
        ),
    )


PARTS = ir.Axis("parts", "parts", "is_part", "SPLITS", "num_parts")
"""The programs that share a row."""


def joined(
    nest: Nest,
    i: int,
    pairs: Sequence[Online],
    moments: Sequence[Moments],
    parts: ir.Expr,
    read: Callable[[str], ir.Expr],
) -> tuple[ir.Let, ...]:
    """Reduction `i` from what the programs that share a row came to, and those that are carried along with it, which
    are known then. `read`: what they left under a name; `parts`: how many elements each had."""
    builder, names = nest.builder, nest.body.names.of

    def held(name: str) -> tuple[tuple[ir.Let, ...], ir.Name]:
        """What is needed more than once under a name."""
        found, named = read(name), ir.Name(f"{name}_parts", read(name).shape)
        return (() if found == named else (ir.Let((named.text,), found),)), named

    pair = next((p for p in pairs if i in (p.total, p.maximum)), None)
    if pair is not None:
        softmax = softmax_of(nest, pair)
        loaded, maxima = held(softmax.row_max.text)
        builder.known |= {pair.maximum: softmax.row_max, pair.total: softmax.row_sum}
        return *loaded, *softmax.of_parts(maxima, read(softmax.row_sum.text), PARTS)
    both = next((m for m in moments if i in (m.total, m.squares)), None)
    if both is not None:
        carry = welford_of(nest, both)
        loaded, means = held(carry.mean.text)
        carry = replace(carry, rows=Rows(means.shape, PARTS))
        builder.known |= {both.mean: carry.mean, both.squares: carry.squares}
        count, *rest = carry.of_parts(means, read(carry.squares.text), parts)
        return count, *loaded, *rest
    inner, numbers = read(names[i]), None
    if nest.body.lowered.values[i].op in ARG_REDUCTIONS:
        inner, numbers = read(f"{names[i]}_extreme"), inner
    builder.known[i] = rows_of(nest, i).number(names[i])
    return (ir.Let((names[i],), builder.reduced(i, inner, numbers, along=PARTS)),)

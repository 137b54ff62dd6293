"""What scans carry from block to block of a row that is walked, and how a block goes on from it: each kind once.

A sum of floats is carried with what rounding took from it, so that its error does not grow with the number of blocks. A
product of floats is carried as it is, with the most that elements up to it multiply to; rows where that is too much are
walked again, with a mantissa and an exponent: a part of the product may pass what a float32 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kernelgen.families.kernel import Body
from kernelgen.families.padding import identity
from kernelgen.families.values import REVERSE, Value, is_scaled, scan_join
from kernelgen.frontend.graph import SCANS
from kernelgen.tile import ir
from kernelgen.tile.nest import Nest

IS_LAST = "is_last"
"""The kernel variable that says which element of a block a scan reaches last."""
LARGEST_GROWTH = 2.0**16
"""Plain products will do where no elements in a row multiply to more. A part of them is less than that; one too small
for a float32 loses 2**-150 at most, which what is before it and what comes after it make 2**-118 at most: only a
product below 2**-94 can have lost bits."""
_REDUCED = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "logcumsumexp": "log_add_exp"}
"""What the elements of a scan come to."""
_NARROW = ("int8", "uint8", "int16")
"""Integers that are summed as int32."""


def scans_of(body: Body) -> list[int]:
    return [i for i, v in enumerate(body.lowered.values) if v.op in SCANS]


@dataclass(frozen=True)
class Running:
    """What one scan came to at the end of the block before: all there is of a maximum, or of what is counted."""

    nest: Nest
    scan: int
    carry: ir.Name
    """[rows] of a tile, or the number of a row."""

    @property
    def value(self) -> Value:
        return self.nest.body.lowered.values[self.scan]

    @property
    def name(self) -> str:
        return self.nest.body.names.of[self.scan]

    @property
    def made(self) -> ir.Name:
        """What the scan comes to at every element of a block."""
        return ir.Name(self.name, self.nest.shape(self.scan))

    def said(self, where: str = "at the end of the block before") -> tuple[str, ...]:
        """What the carried names mean."""
        return (f"{self.carry.text}: {self.name} {where}",)

    def begin(self) -> tuple[ir.Let, ...]:
        """What does not change the first block."""
        return (self._begun(self.carry, identity(self.value.op, self.value.dtype), self.value.dtype),)

    def go_on(self, scan: ir.Scan) -> tuple[ir.Let, ...]:
        """The scan of a block behind what came before it."""
        join = scan_join(self.value.op, self.value.dtype)
        return (ir.Let((self.name,), ir.Apply(join, (self.carry, scan), scan.shape)),)

    def end(self) -> tuple[ir.Stmt, ...]:
        """From a block to what the next one begins with."""
        return (ir.Let((self.carry.text,), self._last(self.made)),)

    def reduced(self, elements: ir.Expr, axis: ir.Axis) -> ir.Expr:
        """What elements come to: of a block, or of the parts of a row."""
        op, dtype = _REDUCED[self.value.op], self.value.dtype
        found = ir.Reduce(op, elements, axis, keeps_nan=dtype == "float")
        return ir.Cast(found, dtype, is_tensor=True) if dtype in _NARROW else found

    def accumulate(self, elements: ir.Expr, axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        """The share of elements in what is carried."""
        join, block = scan_join(self.value.op, self.value.dtype), self.reduced(elements, axis)
        if join in ("add", "mul"):
            return (ir.Update(self.carry.text, join, block),)
        return (ir.Let((self.carry.text,), ir.Apply(join, (self.carry, block), self.carry.shape)),)

    def left(self) -> tuple[tuple[str, ir.Expr], ...]:
        """What a program leaves of its part, and what the memory of each is called."""
        return ((f"{self.name}_parts", self.carry),)

    def joined(self, read: Callable[[str, float | int], ir.Expr], axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        """What is carried at the beginning of a part, from what those before it left. `read`: that of a name, with what
        stands for parts that are not before it."""
        before = read(f"{self.name}_parts", identity(self.value.op, self.value.dtype))
        return (ir.Let((self.carry.text,), self.reduced(before, axis)),)

    def _begun(self, name: ir.Name, number: float | int, dtype: str) -> ir.Let:
        """Integers must begin in the dtype that the walk carries."""
        start: ir.Expr = ir.Number(number)
        if name.shape:
            kind = "float32" if dtype == "float" else dtype
            start = ir.Full(start, kind, name.shape) if number else ir.Zeros(name.shape, kind)
        elif dtype != "float":
            start = ir.Cast(start, dtype)
        return ir.Let((name.text,), start)

    def _last(self, elements: ir.Name, zero: float | int | None = None) -> ir.Expr:
        """The last element of a block."""
        columns, dtype = self.nest.tile.columns, self.value.dtype
        is_last = ir.Name(IS_LAST, (columns,))
        if zero is None and is_scaled(self.value.op, dtype):  # a zero keeps its sign where a product goes on from it
            return ir.Call("last_of", (elements, is_last), self.carry.shape)
        if zero is None:
            zero = 0.0 if dtype == "float" else 0
        found = ir.Reduce("sum", ir.Apply("where", (is_last, elements, ir.Number(zero)), elements.shape), columns)
        return ir.Cast(found, dtype, is_tensor=True) if dtype in _NARROW else found


@dataclass(frozen=True)
class Compensated(Running):
    """A sum of floats, and what rounding took from it."""

    lost: ir.Name
    block: str
    """The name of a block's own sums."""

    def said(self, where: str = "at the end of the block before") -> tuple[str, ...]:
        return (*super().said(where), f"{self.lost.text}: rounding error of {self.carry.text}")

    def begin(self) -> tuple[ir.Let, ...]:
        return (*super().begin(), self._begun(self.lost, 0.0, "float"))

    def go_on(self, scan: ir.Scan) -> tuple[ir.Let, ...]:
        own = ir.Name(self.block, scan.shape)
        later = ir.Apply("add", (self.lost, own), scan.shape)
        return ir.Let((own.text,), scan), ir.Let((self.name,), ir.Apply("add", (self.carry, later), scan.shape))

    def end(self) -> tuple[ir.Stmt, ...]:
        end = ir.Name(f"{self.name}_end", self.carry.shape)
        return ir.Let((end.text,), self._last(replace(self.made, text=self.block))), self.take_up(end)

    def accumulate(self, elements: ir.Expr, axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        end = ir.Name(f"{self.name}_end", self.carry.shape)
        return ir.Let((end.text,), self.reduced(elements, axis)), self.take_up(end)

    def left(self) -> tuple[tuple[str, ir.Expr], ...]:
        return ((f"{self.name}_parts", ir.Apply("add", (self.carry, self.lost), self.carry.shape)),)

    def joined(self, read: Callable[[str, float | int], ir.Expr], axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        return *super().joined(read, axis), self._begun(self.lost, 0.0, "float")

    def take_up(self, end: ir.Expr) -> ir.Let:
        """What is carried, with what a block came to."""
        own = ir.Apply("add", (self.lost, end), self.carry.shape)
        return ir.Let((self.carry.text, self.lost.text), ir.Call("two_sum", (self.carry, own), self.carry.shape))


@dataclass(frozen=True)
class Scaled(Running):
    """A product of floats as a mantissa, which `carry` is, and an exponent."""

    exponent: ir.Name
    block: str
    """The name of a block's own mantissas."""
    exponents: str
    """And of their exponents."""

    def said(self, where: str = "at the end of the block before") -> tuple[str, ...]:
        return (f"{self.carry.text} * 2**{self.exponent.text}: {self.name} {where}",)

    def begin(self) -> tuple[ir.Let, ...]:
        return (*super().begin(), self._begun(self.exponent, 0, "int64"))

    def go_on(self, scan: ir.Scan) -> tuple[ir.Let, ...]:
        own = tuple(ir.Name(name, scan.shape) for name in (self.block, self.exponents))
        whole = ir.Call("products_after", (self.carry, self.exponent, *own), scan.shape)
        return ir.Let((self.block, self.exponents), replace(scan, in_pairs=True)), ir.Let((self.name,), whole)

    def end(self) -> tuple[ir.Stmt, ...]:
        end, exponent = (ir.Name(f"{self.name}_{what}", self.carry.shape) for what in ("end", "end_exponent"))
        return (
            ir.Let((end.text,), self._last(replace(self.made, text=self.block))),
            ir.Let((exponent.text,), self._last(replace(self.made, text=self.exponents), 0)),
            self.take_up(end, exponent),
        )

    def accumulate(self, elements: ir.Expr, axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        end, exponent = (ir.Name(f"{self.name}_{what}", self.carry.shape) for what in ("end", "end_exponent"))
        direction = (ir.Name(self.value.attr),) if self.value.attr else ()
        pairs = ir.Call("frexp", (elements,), elements.shape)
        product = ir.Call("product", (pairs, *direction), self.carry.shape)
        return ir.Let((end.text, exponent.text), product), self.take_up(end, exponent)

    def left(self) -> tuple[tuple[str, ir.Expr], ...]:
        return *super().left(), (f"{self.name}_exponent_parts", self.exponent)

    def joined(self, read: Callable[[str, float | int], ir.Expr], axis: ir.Axis) -> tuple[ir.Stmt, ...]:
        totals = tuple(ir.Name(f"{self.name}_{what}", (axis,)) for what in ("totals", "total_exponents"))
        product = ir.Call("product", (ir.Tuple(totals),), self.carry.shape)
        return (
            ir.Let((totals[0].text,), read(f"{self.name}_parts", identity(self.value.op, self.value.dtype))),
            ir.Let((totals[1].text,), read(f"{self.name}_exponent_parts", 0)),
            ir.Let((self.carry.text, self.exponent.text), product),
        )

    def take_up(self, end: ir.Expr, exponent: ir.Expr) -> ir.Let:
        """What is carried, with what a block came to."""
        both = (self.carry, self.exponent)
        return ir.Let(
            tuple(name.text for name in both), ir.Call("multiply_scaled", (*both, end, exponent), self.carry.shape)
        )


@dataclass(frozen=True)
class Growing(Running):
    """A plain product of floats, with what tells whether it will do."""

    growth: ir.Name
    """The most that elements up to the end of the block before multiply to, wherever they begin."""
    parts: str
    """The name of the same up to each element of a block."""
    most: ir.Name
    """The same anywhere in the row so far."""

    def said(self, where: str = "at the end of the block before") -> tuple[str, ...]:
        return (
            f"{self.carry.text}: {self.name} {where}, a plain product",
            f"{self.growth.text}: the largest product of consecutive elements that end there",
            f"{self.most.text}: the largest product of any consecutive elements",
        )

    def begin(self) -> tuple[ir.Let, ...]:
        return tuple(self._begun(name, 1.0, "float") for name in (self.carry, self.growth, self.most))

    def go_on(self, scan: ir.Scan) -> tuple[ir.Let, ...]:
        return (ir.Let((self.name, self.parts), replace(scan, after=(self.carry, self.growth))),)

    def end(self) -> tuple[ir.Stmt, ...]:
        parts = replace(self.made, text=self.parts)
        of_block = ir.Reduce("max", parts, self.nest.tile.columns, keeps_nan=False)
        return (
            ir.Let((self.most.text,), ir.Apply("fmax", (self.most, of_block), self.most.shape)),
            ir.Let((self.carry.text,), self._last(self.made)),
            ir.Let((self.growth.text,), self._last(parts, 0.0)),
        )

    def outgrown(self) -> ir.Expr:
        """Whether plain products will not do."""
        return ir.Apply("gt", (self.most, ir.Number(LARGEST_GROWTH)), self.most.shape)


def carried(nest: Nest, scans: Iterable[int], what: str = "carry") -> tuple[Running, ...]:
    """What scans carry, under names that no value has."""
    return tuple(_carried(nest, i, what, _namer(nest.body, i)) for i in scans)


def _carried(nest: Nest, i: int, what: str, beside: Callable[[str], str]) -> Running:
    value = nest.body.lowered.values[i]
    rows = nest.shape(i)[:-1]
    carry = ir.Name(beside(what), rows)
    if value.op == "cumsum" and value.dtype == "float":
        return Compensated(nest, i, carry, ir.Name(beside("lost"), rows), beside("block"))
    if is_scaled(value.op, value.dtype):
        exponent = ir.Name(beside(f"{what}_exponent"), rows)
        return Scaled(nest, i, carry, exponent, beside("block"), beside("exponents"))
    return Running(nest, i, carry)


def growing(kept: Sequence[Running]) -> tuple[Growing, ...]:
    """What plain products carry instead of mantissas and exponents."""
    return tuple(_growing(c, _namer(c.nest.body, c.scan)) for c in kept if isinstance(c, Scaled))


def _growing(c: Scaled, beside: Callable[[str], str]) -> Growing:
    growth, most = (ir.Name(beside(what), c.carry.shape) for what in ("growth", "most"))
    return Growing(c.nest, c.scan, c.carry, growth, beside("parts"), most)


def _namer(body: Body, i: int) -> Callable[[str], str]:
    """What names things beside a scan, as no value is called."""
    taken = set(body.names.of.values())

    def beside(what: str) -> str:
        name = f"{body.names.of[i]}_{what}"
        while name in taken:
            name += "_"
        return name

    return beside


def behind(nest: Nest, kept: Sequence[Running]) -> None:
    """Let a nest's scans go on from what came before their block."""
    by_scan = {c.scan: c for c in kept}
    nest.builder.more = frozenset(scans_of(nest.body))  # which the next block begins with

    def assigned(i: int) -> tuple[ir.Let, ...] | None:
        if i not in by_scan:
            return None
        first, *rest = by_scan[i].go_on(nest.builder.scan(i))
        return replace(first, comment=nest.builder.said(i)), *rest

    nest.builder.together = assigned


def last_element(nest: Nest) -> ir.Let:
    """Which element of a block a scan reaches last."""
    columns, block = nest.tile.columns, ir.Name(nest.tile.columns.block)
    backwards = is_backwards(nest.body)
    end: ir.Expr = ir.Number(0)
    if nest.builder.is_turned or not backwards:
        end = ir.Apply("sub", (block, ir.Number(8 if nest.builder.is_turned else 1)), ())
    return ir.Let((IS_LAST,), ir.Apply("eq", (ir.Range(columns, ir.Number(0)), end), (columns,)))


def is_backwards(body: Body) -> bool:
    return body.lowered.values[scans_of(body)[0]].attr == REVERSE

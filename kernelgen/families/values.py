"""The values of a kernel over one iteration space: what lowering makes and everything after it reads.

An axis is one size of the iteration space; an index gives for every dimension of a tensor the axes that it runs
over, none for a dimension that is broadcast, or the expression that says where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelgen.frontend.graph import Atom, Dim
from kernelgen.frontend.indices import Condition, Expr, Indexing, leaves
from kernelgen.frontend.operations import OPERATIONS

Entry = tuple[int, ...] | Expr
Index = tuple[Entry, ...]
"""For every dimension, outermost first, the numbers of the axes that it runs over, or an expression of axes of the
space and values of the kernel."""


REVERSE = "reverse=True"
"""The attribute of a scan that runs from the end of a row to its beginning."""


class Unlowerable(Exception):
    """A graph outside what the families express; `statement` indexes Graph.statements."""

    def __init__(self, message: str, statement: int | None = None) -> None:
        super().__init__(message)
        self.statement = statement


class NotWhole(Unlowerable):
    """A reshape that takes axes apart, or joins parts of them: what it reads is no run of whole axes."""


@dataclass(frozen=True)
class Use:
    """A use of another value."""

    value: int


@dataclass(frozen=True)
class Length:
    """A size used as a number."""

    dim: Dim
    times: int = 1
    """How many times it is meant, as a float: several parts of a row are as long as the row."""


Operand = Use | Length | float | int | bool


@dataclass(frozen=True)
class Value:
    """One value: a `load`, a `const`, an `iota`, a `place`, a map operation, a reduction, a scan, `round` or `convert`.

    The operands of a load are the values that its index mentions."""

    op: str
    args: tuple[Operand, ...]
    dtype: str
    axes: frozenset[int]
    """The axes that it varies along."""
    name: str | None = None
    statement: int | None = None
    tensor: str | None = None
    """The input that a load reads, or that is searched."""
    index: Index = ()
    """Where a load reads it; the axes that an iota numbers; of a place, the one expression that it counts."""
    conditions: tuple[Condition, ...] = ()
    """Where a load reads at all."""
    fill: float | int | bool | None = None
    """What a load gives elsewhere; None: nobody looks at it there."""
    attr: str | None = None
    """What a round rounds to: a dtype, or the element type of the pointer that carries a dtype variable. Of a scan from
    the end: REVERSE. Of a search: what counts, `le` or `lt`."""


@dataclass(frozen=True)
class Stored:
    """An output: which value, over which axes in the order of its dimensions."""

    name: str
    value: int
    dtype: str
    index: Index


@dataclass(frozen=True)
class Space:
    """The iteration space: outer axes, one program or tile of programs each, and inner axes that rows run over."""

    axes: tuple[Atom, ...]
    outer: int
    """How many of the axes, from the first, are outer. A pointwise operator has no inner axes."""

    order: tuple[int, ...] = ()
    """The axes in the order of the dimensions that they come from, where other dimensions than the last are reduced."""

    def natural(self) -> tuple[int, ...]:
        """The axes in the order in which a tensor that runs over all of them has its dimensions."""
        return self.order or tuple(range(len(self.axes)))

    def ends_kept(self) -> bool:
        """Whether the last dimension is kept and others are reduced, so that neighbours in memory are rows."""
        return self.natural()[-1:] != self.inner_axes()[-1:] and bool(self.inner_axes())

    def inner_axes(self) -> tuple[int, ...]:
        return tuple(range(self.outer, len(self.axes)))


@dataclass(frozen=True)
class Lowered:
    """A graph as values in evaluation order."""

    space: Space
    values: tuple[Value, ...]
    outputs: tuple[Stored, ...]
    whole: Lowered | None = None
    """Of parts whose elements are not neighbours in the outputs, the same over the whole outputs."""
    has_reciprocals: bool = False
    """Whether what the reference divides by a row's number is multiplied by the reciprocal of it."""


def axes_of(entry: Entry) -> tuple[int, ...]:
    """The axes that an entry of an index mentions."""
    if isinstance(entry, tuple):
        return entry
    return tuple(dict.fromkeys(leaf.number for leaf in leaves(entry) if leaf.op == "axis"))


def axes_read(read: Indexing, values: Sequence[Value], operands: Sequence[int]) -> frozenset[int]:
    """The axes along which a read moves: those that its places and conditions mention, and those of its operands."""
    sides = [side for c in read.conditions for side in (c.left, c.right)]
    mentioned = frozenset(a for expr in (*read.places, *sides) for a in axes_of(expr))
    return mentioned.union(*(values[i].axes for i in operands))


def values_in(entries: Iterable[Entry]) -> tuple[int, ...]:
    """The values of the kernel that entries mention."""
    found = (leaf.number for e in entries if isinstance(e, Expr) for leaf in leaves(e) if leaf.op == "value")
    return tuple(dict.fromkeys(found))


def axes_along(entries: Iterable[Entry], values: Sequence[Value]) -> frozenset[int]:
    """The axes along which entries move, be it by the values that they mention."""
    found = tuple(entries)
    return frozenset(a for e in found for a in axes_of(e)).union(*(values[v].axes for v in values_in(found)))


def moves_with(condition: Condition, index: Index, values: Sequence[Value]) -> bool:
    """Whether a condition may decide if an index lies in its tensor: not where it moves along other axes alone, so that
    the same element is meant wherever it holds."""
    moving = axes_along((condition.left, condition.right), values)
    return not moving or bool(moving & axes_along(index, values))


def constant_of(values: Sequence[Value], operand: Operand) -> float | int | None:
    """The number that an operand is, if it is one."""
    if isinstance(operand, Use):
        value = values[operand.value]
        return constant_of(values, value.args[0]) if value.op == "const" else None
    return None if isinstance(operand, Length) else operand


def expressions(value: Value) -> tuple[Expr, ...]:
    """The expressions by which a value is read or counted, those of its conditions included."""
    sides = tuple(side for c in value.conditions for side in (c.left, c.right))
    return (*(e for e in value.index if isinstance(e, Expr)), *sides)


def only_moves(lowered: Lowered) -> bool:
    """Whether elements are chosen by places and integers alone: no float is computed with or compared."""
    compared = [a.value for v in lowered.values if v.dtype != "float" for a in v.args if isinstance(a, Use)]
    return not any(lowered.values[i].dtype == "float" for i in compared) and all(
        _is_moved(lowered, Use(o.value)) for o in lowered.outputs
    )


def _is_moved(lowered: Lowered, arg: Operand) -> bool:
    if not isinstance(arg, Use):
        return True
    value = lowered.values[arg.value]
    return value.op in ("load", "const") or (value.op == "where" and all(_is_moved(lowered, a) for a in value.args[1:]))


def is_scaled(op: str, dtype: str) -> bool:
    """Whether a scan is one of pairs, a mantissa and an exponent, because its parts may pass what a float32 holds."""
    return op == "cumprod" and dtype == "float"


def scan_join(op: str, dtype: str) -> str:
    """The operation that a scan repeats."""
    join = OPERATIONS[op].repeats
    return join if dtype == "float" else OPERATIONS[join].of_integers or join

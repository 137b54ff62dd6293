"""The values of a kernel over one iteration space: what lowering makes and everything after it reads.

An axis is one size of the iteration space; an index gives for every dimension of a tensor the axes that it runs
over, none for a dimension that is broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.frontend.graph import Atom, Dim

Index = tuple[tuple[int, ...], ...]
"""For every dimension, outermost first, the numbers of the axes that it runs over."""


REVERSE = "reverse=True"
"""The attribute of a scan that runs from the end of a row to its beginning."""


class Unlowerable(Exception):
    """A graph outside what the families express; `statement` indexes Graph.statements."""

    def __init__(self, message: str, statement: int | None = None) -> None:
        super().__init__(message)
        self.statement = statement


@dataclass(frozen=True)
class Use:
    """A use of another value."""

    value: int


@dataclass(frozen=True)
class Length:
    """A size used as a number."""

    dim: Dim


Operand = Use | Length | float | int | bool


@dataclass(frozen=True)
class Value:
    """One value: a `load`, a `const`, an `iota`, a map operation, a reduction, a scan, `round` or `convert`."""

    op: str
    args: tuple[Operand, ...]
    dtype: str
    axes: frozenset[int]
    """The axes that it varies along."""
    name: str | None = None
    statement: int | None = None
    tensor: str | None = None
    """The input that a load reads."""
    index: Index = ()
    """Where a load reads it; the axes that an iota numbers."""
    attr: str | None = None
    """What a round rounds to: a dtype, or the element type of the pointer that carries a dtype variable. Of a scan from
    the end: REVERSE."""


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

    def inner_axes(self) -> tuple[int, ...]:
        return tuple(range(self.outer, len(self.axes)))


@dataclass(frozen=True)
class Lowered:
    """A graph as values in evaluation order."""

    space: Space
    values: tuple[Value, ...]
    outputs: tuple[Stored, ...]

"""Dimensions by their names, which do not change with the number of dimensions that "..." stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelgen.frontend.graph import Atom, Dim
    from kernelgen.frontend.indices import Expr, Indexing


@dataclass(frozen=True)
class Names:
    """What nodes of one trace say of dimensions, comparable with what those of another say."""

    elastic: frozenset[Atom]
    """The sizes that "..." stands for in this trace."""
    rest: bool
    """Whether they are mentioned, all of them as one; else they are left out, as for a trace that has none."""

    def atoms(self, dim: Dim) -> Dim:
        """A size with all of the sizes that "..." stands for as one; as it is where it has only some of them."""
        own = [atom for atom in dim if atom in self.elastic]
        if not own or set(own) != self.elastic:
            return dim
        kept = tuple(atom for atom in dim if atom not in self.elastic)
        return (*kept, *["..."] * (len(own) // len(self.elastic))) if self.rest else kept

    def dims(self, shape: tuple[Dim, ...], attrs: Sequence[int | str]) -> tuple[object, ...]:
        """The attributes of a node, of which those below zero are dimensions of a shape."""
        chosen = {int(a) % len(shape) for a in attrs if isinstance(a, int) and a < 0}
        others = tuple(a for a in attrs if not isinstance(a, int) or a >= 0)
        pure = {d for d in range(len(shape)) if self._is_elastic(shape[d])}
        if chosen & pure and not pure <= chosen:
            return tuple(attrs)
        several = {d for d in chosen - pure if shape[d]}  # one element is its own sum
        named = sorted(repr(self._name(shape, d)) for d in several)
        return (*named, *(["..."] if chosen & pure and self.rest else []), *others)

    def indexing(self, indexing: Indexing, operand: tuple[Dim, ...], result: tuple[Dim, ...]) -> tuple[object, ...]:
        """How a node reads its operand, but for dimensions of "..." or of one element that it reads as they are."""
        places = [
            self._expression(place, result)
            for place, dim in zip(indexing.places, operand, strict=False)
            if not ((not dim or self._is_elastic(dim)) and place.op == "axis" and result[place.number] == dim)
        ]
        conditions = [
            (self._expression(c.left, result), c.op, self._expression(c.right, result)) for c in indexing.conditions
        ]
        return *places, *conditions, indexing.fill

    def _expression(self, e: Expr, result: tuple[Dim, ...]) -> object:
        if e.op == "axis":
            return self._name(result, e.number % len(result))
        return e.op, e.number, self.atoms(e.size), *(self._expression(arg, result) for arg in e.args)

    def _name(self, shape: tuple[Dim, ...], d: int) -> tuple[object, int]:
        """The size of a dimension, and how many before it have the same."""
        atoms = [sorted(map(str, self.atoms(dim))) for dim in shape]
        return tuple(atoms[d]), atoms[:d].count(atoms[d])

    def _is_elastic(self, dim: Dim) -> bool:
        return bool(dim) and set(dim) <= self.elastic

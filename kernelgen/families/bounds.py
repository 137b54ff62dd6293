"""Where a walk begins and ends under a mask, in terms of where a tile begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.families.masks import Affine, Term
from kernelgen.tile import ir
from kernelgen.tile.places import whole


def scalar(op: str, *args: ir.Expr) -> ir.Expr:
    return ir.Apply(op, args, ())


def plus(base: ir.Expr, number: int, shape: ir.Shape = ()) -> ir.Expr:
    if not number:
        return base
    return whole("add" if number > 0 else "sub", base, ir.Number(abs(number)), shape)


@dataclass(frozen=True)
class Bounds:
    """Of a tile that begins at `first` and has `block` elements; a walk ends at `end` whatever a mask says."""

    term: Callable[[Term], ir.Expr]
    """What writes a term, without its sign."""
    first: ir.Name
    block: ir.Name
    end: ir.Name
    rows: ir.Name | None = None
    """The numbers of the tile's rows, of which each may have a limit of its own."""
    exist: ir.Name | None = None
    """Which of the rows exist; None: all."""

    def limit(self, limit: Affine, *, last: bool) -> ir.Expr:
        """Where the keys of the first or the last of a tile end or begin. Of rows with limits of their own these are
        the least and the greatest."""
        if any(t.of_row for t in limit.terms):
            return self._of_rows(limit, last=last)
        number, parts = limit.number, list[tuple[int, ir.Expr]]()
        if limit.m:
            later = last is (limit.m > 0)
            parts.append((limit.m, self.first))
            if later:
                parts.append((limit.m, self.block))
                number -= limit.m
        parts += [(t.sign, self.term(t)) for t in limit.terms]
        return _sum(parts, number, ())

    def _of_rows(self, limit: Affine, *, last: bool) -> ir.Expr:
        assert self.rows is not None
        parts: list[tuple[int, ir.Expr]] = [(limit.m, self.rows)] if limit.m else []
        each = _sum([*parts, *((t.sign, self.term(t)) for t in limit.terms)], limit.number, self.rows.shape)
        if self.exist is not None:
            each = ir.Apply("where", (self.exist, each, ir.Number(0) if last else self.end), self.rows.shape)
        return ir.Reduce("max" if last else "min", each, self.rows.shape[0], keeps_nan=False)

    def least(self, limits: list[ir.Expr]) -> ir.Expr:
        found: ir.Expr = self.end
        for limit in limits:
            found = scalar("whole_min", limit, found)
        return found

    def greatest(self, limits: list[ir.Expr]) -> ir.Expr:
        found: ir.Expr = ir.Number(0)
        for limit in limits:
            found = scalar("whole_max", limit, found)
        return found


def _sum(parts: list[tuple[int, ir.Expr]], number: int, shape: ir.Shape) -> ir.Expr:
    """Terms with their signs, and a number."""
    found: ir.Expr | None = None
    for sign, part in sorted(parts, key=lambda part: part[0] < 0):
        if found is None:
            found = part if sign > 0 else whole("sub", ir.Number(number), part, shape)
            number = number if sign > 0 else 0
        else:
            found = whole("add" if sign > 0 else "sub", found, part, shape)
    return ir.Number(number) if found is None else plus(found, number, shape)

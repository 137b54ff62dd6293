"""Where a walk begins and ends under a mask, in terms of where a tile begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.families.masks import Affine, Term
from kernelgen.tile import ir


def scalar(op: str, *args: ir.Expr) -> ir.Expr:
    return ir.Apply(op, args, ())


def plus(base: ir.Expr, number: int) -> ir.Expr:
    if not number:
        return base
    return scalar("add" if number > 0 else "sub", base, ir.Number(abs(number)))


@dataclass(frozen=True)
class Bounds:
    """Of a tile that begins at `first` and has `block` elements; a walk ends at `end` whatever a mask says."""

    term: Callable[[Term], ir.Expr]
    """What writes a term, without its sign."""
    first: ir.Name
    block: ir.Name
    end: ir.Name

    def limit(self, limit: Affine, *, last: bool) -> ir.Expr:
        """Where the keys of the first or the last of a tile end or begin."""
        number, parts = limit.number, list[tuple[int, ir.Expr]]()
        if limit.m:
            later = last is (limit.m > 0)
            parts.append((limit.m, self.first))
            if later:
                parts.append((limit.m, self.block))
                number -= limit.m
        parts += [(t.sign, self.term(t)) for t in limit.terms]
        parts.sort(key=lambda part: part[0] < 0)
        found: ir.Expr | None = None
        for sign, part in parts:
            if found is None:
                found = part if sign > 0 else scalar("sub", ir.Number(number), part)
                number = number if sign > 0 else 0
            else:
                found = scalar("add" if sign > 0 else "sub", found, part)
        return ir.Number(number) if found is None else plus(found, number)

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

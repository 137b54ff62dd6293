"""What masks leave out of a product: sums that end at a triangle's edge, and tiles of the result that nobody keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelgen.families.masks import Condition, Mask, mask_of, seeing, seen, total
from kernelgen.families.values import Lowered, Use, constant_of
from kernelgen.frontend.graph import Dim


@dataclass(frozen=True)
class Triangles:
    """The masks of a product's factors and of its result."""

    rows: Mask | None = None
    """Which summands a row has, where the first factor is zero elsewhere."""
    columns: Mask | None = None
    """Which summands a column has, where the second factor is zero elsewhere."""
    result: Mask | None = None
    """Which columns of a row are kept of the result; None too where sums are bounded by rows and columns both."""
    chosen: tuple[tuple[int, int], ...] = ()
    """Every masked factor before it is rounded, and what it is where its mask holds."""

    @property
    def factors(self) -> tuple[Mask, ...]:
        return tuple(mask for mask in (self.rows, self.columns) if mask)

    @property
    def is_longer_later(self) -> bool:
        """Whether later rows have longer sums."""
        return self.rows is not None and any(limit.m > 0 for limit in self.rows.upper()) and not self.rows.lower()

    def left(self, rows: int, columns: int, summed: int, size: Callable[[Dim], int]) -> int:
        """How many products are left of so many sums. `size`: what a size is."""
        of_rows, of_columns, of_result = (
            mask.lines(size) if mask else () for mask in (self.rows, self.columns, self.result)
        )
        if self.columns is None:
            kept = (*of_rows, *of_result)
            return total(
                lambda row: seen(of_rows, row, summed) * seen(of_result, row, columns), rows, kept, (0, summed, columns)
            )
        kept, levels = (*of_rows, *of_columns), (0, rows, columns, rows - 1, columns - 1)
        return total(
            lambda k: seeing(of_rows, k, rows) * seeing(of_columns, k, columns), summed, kept, levels, across=True
        )

    def hides_more(self, size: Callable[[Dim], int]) -> bool:
        """Whether something else than rows and sizes moves what masks leave out."""
        return any(mask.hides_more(size) for mask in (self.rows, self.columns, self.result) if mask)


def triangles(lowered: Lowered, dots: tuple[int, ...], axes: Mapping[str, tuple[int, ...]]) -> Triangles | None:
    """The masks of a single product; `axes`: of its rows, columns and sums. None where no mask bounds anything."""
    if len(dots) != 1 or not axes["m"]:
        return None
    values = lowered.values
    chosen: dict[int, int] = {}
    masks: list[Mask | None] = []
    for factor, side in zip(values[dots[0]].args[:2], "mn", strict=True):
        assert isinstance(factor, Use)
        value = values[factor.value]
        source = value.args[0] if value.op == "round" else factor
        assert isinstance(source, Use)
        conditions, inner = _masked(lowered, source.value)
        mask = mask_of(values, conditions, lowered.space, axes[side], axes["k"])
        is_bounded = bool(mask.bounds) and not _moves(mask)
        masks.append(mask if is_bounded else None)
        if is_bounded and not mask.opaque:
            chosen[source.value] = inner
    result = None if all(masks) else _kept(lowered, dots[0], axes)
    rows, columns = masks
    found = Triangles(rows, columns, result, tuple(chosen.items()))
    return found if found.factors or result else None


def _moves(mask: Mask) -> bool:
    """Whether bounds have values of the kernel in them."""
    return any(isinstance(term.of, int) for bound in mask.bounds for term in bound.limit.terms)


def _masked(lowered: Lowered, i: int) -> tuple[tuple[Condition, ...], int]:
    """The conditions without which a value is zero, and what it is where they hold."""
    conditions: list[Condition] = []
    while (found := _choice(lowered, i)) is not None:
        condition, i = found
        conditions.append(condition)
    return tuple(conditions), i


def _choice(lowered: Lowered, i: int) -> tuple[Condition, int] | None:
    value = lowered.values[i]
    if value.op != "where" or not isinstance(value.args[0], Use):
        return None
    first, second = value.args[1:]
    for holds, one, other in ((True, first, second), (False, second, first)):
        if isinstance(one, Use) and constant_of(lowered.values, other) == 0:
            return Condition(value.args[0].value, holds, value.statement), one.value
    return None


def _kept(lowered: Lowered, dot: int, axes: Mapping[str, tuple[int, ...]]) -> Mask | None:
    """The columns of a row outside of which nothing is computed from a product."""
    values, stored = lowered.values, {o.value for o in lowered.outputs}
    at = dot
    while at not in stored:
        users = [i for i, v in enumerate(values) if Use(at) in v.args]
        if len(users) != 1:
            return None
        value = values[users[0]]
        if value.op == "where" and value.args.count(Use(at)) == 1 and value.args[0] != Use(at):
            test = value.args[0]
            assert isinstance(test, Use)
            condition = Condition(test.value, value.args[1] == Use(at), value.statement)
            mask = mask_of(values, (condition,), lowered.space, axes["m"], axes["n"])
            return mask if mask.bounds and not _moves(mask) else None
        at = users[0]
    return None

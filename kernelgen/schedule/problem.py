"""The problem of a call: its named sizes, which are the key of a schedule table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from kernelgen.plan import TableRow
from kernelgen.spec.model import ELLIPSIS, Case, Size

ROWS, ROW_BYTES, TENSOR_BYTES = "rows", "row_bytes", "tensor_bytes"
"""Of rows and columns: how many rows there are, the bytes of one, and of all; `row_bytes` of the whole tensor, where it
is one run of elements."""


@dataclass(frozen=True)
class NamedSize:
    """A size that schedules of a family may depend on."""

    name: str
    """What tables and logs call it: `row_bytes`, `rows`, `M`."""
    factors: tuple[Size, ...]
    """The sizes of the spec that it is the product of."""
    expression: str
    """The wrapper's expression, of its own variables and tensors."""
    meaning: str
    """What a limit counts, such as `bytes of a row`."""
    call: str
    """Which calls a limit serves, with `{}` for the size: `a row of {} bytes`."""
    itemsize: int | str = 1
    """What the product is multiplied by: a number, or the dtype (its variable) whose bytes an element has."""

    def of(self, case: Case, bytes_of: Callable[[str], int]) -> int:
        """The size in one case. `bytes_of`: of an element of a dtype."""
        each = self.itemsize if isinstance(self.itemsize, int) else bytes_of(case.dtype(self.itemsize))
        sizes = [case.size(ELLIPSIS) if factor == ELLIPSIS else case.size(factor) for factor in self.factors]
        return each * prod(prod(size) if isinstance(size, tuple) else size for size in sizes)


@dataclass(frozen=True)
class Problem:
    """The named sizes of one call, in the order in which its family declares them."""

    sizes: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.sizes)

    def fits(self, row: TableRow) -> bool:
        """Whether a row of a table serves it: no size is beyond a limit."""
        sizes = dict(self.sizes)
        return all(sizes[name] <= limit for name, limit in row.upto)


def row_of(table: Iterable[TableRow], problem: Problem) -> int:
    """The row of a table that serves a problem: the first that fits."""
    return next(i for i, row in enumerate(table) if problem.fits(row))


def mistake(table: tuple[TableRow, ...]) -> str | None:
    """Why rows cannot be a table: each must serve what none before it does, and the last whatever is left."""
    if not table or table[-1].upto:
        return "the last row must serve all sizes"
    for index, row in enumerate(table):
        if any(is_within(dict(row.upto), dict(before.upto)) for before in table[:index]):
            return f"row {index} serves nothing that a row before it does not"
    return None


def served(table: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """The rows that serve something that none before them does."""
    found: list[TableRow] = []
    for row in table:
        if not any(is_within(dict(row.upto), dict(before.upto)) for before in found):
            found.append(row)
    return tuple(found)


def is_within(inner: Mapping[str, int], outer: Mapping[str, int]) -> bool:
    """Whether all that the first limits serve is served by the second."""
    return all(name in inner and inner[name] <= limit for name, limit in outer.items())


def limits_text(row: TableRow) -> str:
    """What a row serves at most, for people: `64 rows and 4 KiB`; empty where it has no limit."""
    return " and ".join(_limit_text(name, limit) for name, limit in row.upto)


def _limit_text(name: str, limit: int) -> str:
    if name == ROW_BYTES:
        return bytes_text(limit)
    if name == TENSOR_BYTES:
        return f"{bytes_text(limit)} in all"
    return f"{limit} {name}" if name.islower() else f"{name} {limit}"


def bytes_text(count: int) -> str:
    """A number of bytes for people: `2 MiB`, `768 B`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"

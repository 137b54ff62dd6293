"""A space that is enumerated: axes with their values, and every legal point as the places of its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

Value = int | float | str | bool
ABSENT = "-"
"""Stands for the value of an axis that a variant does not have."""
OTHER, HAS_NONE = 0.5, 0.25
"""How far apart are two values of an axis without an order, and a value from none."""


@dataclass(frozen=True)
class Axis:
    """One coordinate of a space: its values in ascending order where they have one."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Points:
    """All legal points of a space. `codes[i, j]`: the place of point i's value among those of axis j."""

    axes: tuple[Axis, ...]
    codes: Places

    @staticmethod
    def of_rows(names: Sequence[str], rows: Sequence[Sequence[Value]]) -> Points:
        """The space of all rows, each a value for every name; the values of an axis are sorted where they can be."""
        axes = tuple(Axis(name, _ordered([row[j] for row in rows])) for j, name in enumerate(names))
        places = [{value: at for at, value in enumerate(axis.values)} for axis in axes]
        codes = [[place[value] for place, value in zip(places, row, strict=True)] for row in rows]
        return Points(axes, np.array(codes, dtype=np.int64).reshape(len(rows), len(names)))

    def __len__(self) -> int:
        return len(self.codes)

    def scaled(self) -> Floats:
        """Every axis between 0 and 1, its values equally far apart."""
        longest = np.array([max(len(axis.values) - 1, 1) for axis in self.axes])
        return np.asarray(self.codes / longest)

    def neighbours(self, point: int) -> Places:
        """The points that differ from one in a single axis."""
        return np.flatnonzero((self.codes != self.codes[point]).sum(axis=1) == 1)


def most_like(points: Points, wanted: Mapping[str, Value], within: float) -> int | None:
    """The point most like a configuration that may not be among them: powers of two apart on axes of numbers, OTHER
    on any other axis, HAS_NONE where one of the two has no such axis. None: all are more than `within` away."""
    if not len(points):
        return None
    apart = np.zeros(len(points))
    for j, axis in enumerate(points.axes):
        each = np.array([_apart(value, wanted.get(axis.name, ABSENT)) for value in axis.values])
        apart += each[points.codes[:, j]]
    found = int(apart.argmin())
    return found if apart[found] <= within else None


def _apart(a: Value, b: Value) -> float:
    if str(a) == str(b):
        return 0.0
    if ABSENT in (a, b):
        return HAS_NONE
    numbers = [number for value in (a, b) if (number := _number(value)) is not None]
    return abs(math.log2(numbers[0] / numbers[1])) if len(numbers) == 2 else OTHER


def _number(value: Value) -> float | None:
    """A number above 0, also where a file has it as text."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except ValueError:
        return None
    return number if number > 0 else None


def _ordered(values: Sequence[Value]) -> tuple[Value, ...]:
    """Distinct values: numbers ascending, and anything else by its text after them."""
    return tuple(sorted(set(values), key=lambda v: (isinstance(v, str), v if not isinstance(v, str) else 0, str(v))))

"""A space that is enumerated: axes with their values, and every legal point as the places of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

Value = int | float | str | bool


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


def _ordered(values: Sequence[Value]) -> tuple[Value, ...]:
    """Distinct values: numbers ascending, and anything else by its text after them."""
    return tuple(sorted(set(values), key=lambda v: (isinstance(v, str), v if not isinstance(v, str) else 0, str(v))))

"""Which candidate serves which sizes: the shortest table that is nearly the fastest on every measured shape."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

WITHIN = 0.02
"""What a table may lose on a shape against the fastest candidate there."""
STATES, BRANCHES = 48, 12
"""Beginnings of tables that are kept side by side, and next lines that are tried for each."""
BOXES = 30_000
"""Most combinations of all limits that are looked at; of more, those that hold two shapes."""

C = TypeVar("C", bound=Hashable)
Sizes = Mapping[str, int]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shape(Generic[C]):
    """One problem by its named sizes, and the time of every candidate that works there, in any unit."""

    sizes: Sizes
    times: Mapping[C, float]


@dataclass(frozen=True)
class Line(Generic[C]):
    """A candidate for problems up to these sizes that no line before serves; no limit: any."""

    upto: tuple[tuple[str, int], ...]
    candidate: C

    def serves(self, sizes: Sizes) -> bool:
        return all(sizes[name] <= limit for name, limit in self.upto)


def serving(table: Sequence[Line[C]], sizes: Sizes) -> C:
    """Who serves a problem: measured or not, the first line that it fits."""
    return next(line.candidate for line in table if line.serves(sizes))


def loss(table: Sequence[Line[C]], shape: Shape[C]) -> float:
    """How much slower a shape is than with its own best candidate; infinite: with one that does not work there."""
    return shape.times.get(serving(table, shape.sizes), math.inf) / min(shape.times.values()) - 1


def tables(shapes: Sequence[Shape[C]], within: float = WITHIN) -> list[tuple[Line[C], ...]]:
    """Tables of the fewest lines found that lose at most `within` on every shape, the one that loses least first.

    Limits lie between the sizes that were measured, so that a new shape takes the line of its neighbours. Shapes of the
    same sizes cannot be told apart: where they want different candidates, the one that costs the worst of them least is
    taken. Empty where some shape has no candidate, or no line of any kind serves it.
    """
    merged = _merged(shapes, within)
    if not merged or not all(shape.times for shape, _ in merged):
        return []
    names = tuple(merged[0][0].sizes)
    candidates = list(dict.fromkeys(c for shape, _ in merged for c in shape.times))
    good = np.array([[c in right for _, right in merged] for c in candidates])
    most = [
        row
        for row in np.unique(good, axis=0)
        if not any((row < other).any() and (row <= other).all() for other in good)
    ]
    limits, boxes = _boxes([shape.sizes for shape, _ in merged], names)
    count = len(merged)
    states: dict[bytes, tuple[tuple[tuple[int, Bits], ...], Bits]] = {b"": ((), np.ones(count, dtype=np.bool_))}
    for _ in range(count):
        following: dict[bytes, tuple[tuple[tuple[int, Bits], ...], Bits]] = {}
        for lines, left in states.values():
            for box in _best_boxes(boxes, np.array(most), left):
                rest = left & ~boxes[box]
                following.setdefault(rest.tobytes(), ((*lines, (box, left & boxes[box])), rest))
        states = dict(sorted(following.items(), key=lambda item: int(item[1][1].sum()))[:STATES])
        whole = [lines for lines, left in following.values() if not left.any()]
        if whole:
            made = [_table(lines, limits, merged, candidates, good) for lines in whole]
            return sorted(made, key=lambda table: sum(loss(table, shape) for shape, _ in merged))
        if not states:
            return []
    return []


def boundary(below: int, above: int) -> int:
    """Where to cut between two sizes: their geometric mean, or the power of two nearest to it if it lies between."""
    middle = math.isqrt(below * above)
    power = 1 << round(math.log2(middle)) if middle else 0
    return power if below <= power < above else max(below, middle)


def _merged(shapes: Sequence[Shape[C]], within: float) -> list[tuple[Shape[C], frozenset[C]]]:
    """Every set of sizes once, with how much slower than the best each candidate is there, and those near enough."""
    groups: dict[tuple[tuple[str, int], ...], list[Shape[C]]] = {}
    for shape in shapes:
        groups.setdefault(tuple(shape.sizes.items()), []).append(shape)
    merged = []
    for sizes, group in groups.items():
        common = set.intersection(*(set(shape.times) for shape in group))
        slower = {
            c: max(one.times[c] / min(one.times.values()) for one in group) for c in group[0].times if c in common
        }
        enough = max(1 + within, min(slower.values(), default=1.0))
        merged.append((Shape(dict(sizes), slower), frozenset(c for c, ratio in slower.items() if ratio <= enough)))
    return merged


def _boxes(sizes: Sequence[Sizes], names: Sequence[str]) -> tuple[list[dict[str, int]], Bits]:
    """Sets of limits that tell the shapes apart, and which shapes each serves."""
    known = [sorted({one[name] for one in sizes}) for name in names]
    ends = [{size: boundary(size, above) for size, above in pairwise(s)} for s in known]
    fits = [
        {size: np.array([one[name] <= size for one in sizes]) for size in s}
        for name, s in zip(names, known, strict=True)
    ]
    found: dict[bytes, tuple[dict[str, int], Bits]] = {}
    for corner in _corners(sizes, names, known):
        limits = {n: ends[i][size] for i, (n, size) in enumerate(zip(names, corner, strict=True)) if size in ends[i]}
        served = np.logical_and.reduce([fit[size] for fit, size in zip(fits, corner, strict=True)])
        before = found.get(served.tobytes())
        if before is None or len(limits) < len(before[0]):
            found[served.tobytes()] = limits, served
    return [limits for limits, _ in found.values()], np.array([served for _, served in found.values()])


def _corners(sizes: Sequence[Sizes], names: Sequence[str], known: Sequence[Sequence[int]]) -> Iterable[tuple[int, ...]]:
    """The largest sizes of boxes; the largest of all is no limit."""
    if math.prod(map(len, known)) <= BOXES:
        return product(*known)
    pairs = (tuple(max(a[name], b[name]) for name in names) for a, b in combinations_with_replacement(sizes, 2))
    open_ = [
        tuple(k[-1] if free else 0 for free, k in zip(mask, known, strict=True))
        for mask in product((0, 1), repeat=len(names))
    ]
    return dict.fromkeys(tuple(map(max, pair, one)) for pair in pairs for one in open_)


def _best_boxes(boxes: Bits, good: Bits, left: Bits) -> list[int]:
    """Boxes in which one candidate is right for every shape that is left, those that serve most first."""
    wrong = (~good & left).astype(np.float32)
    feasible = (boxes.astype(np.float32) @ wrong.T == 0).any(axis=1)
    served = np.where(feasible, boxes @ left.astype(np.int64), 0)
    order = np.argsort(-served, kind="stable")[:BRANCHES]
    return [int(box) for box in order if served[box]]


def _table(
    lines: Sequence[tuple[int, Bits]],
    limits: Sequence[dict[str, int]],
    merged: Sequence[tuple[Shape[C], frozenset[C]]],
    candidates: Sequence[C],
    good: Bits,
) -> tuple[Line[C], ...]:
    """Each line with the candidate that loses least on the shapes it serves; the last line has no limit."""
    found = []
    for number, (box, served) in enumerate(lines):
        inside = [shape for (shape, _), is_in in zip(merged, served, strict=True) if is_in]
        right = [c for c, ok in zip(candidates, good, strict=True) if ok[served].all()]
        best = min(right, key=lambda c: sum(math.log(shape.times[c]) for shape in inside))
        upto = {} if number == len(lines) - 1 else limits[box]
        found.append(Line(tuple(sorted(upto.items())), best))
    return tuple(found)

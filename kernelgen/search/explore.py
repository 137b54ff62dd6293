"""Which points of a space to measure next: given ones first, then what two models of the times expect to gain most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from kernelgen.search.points import Floats, Places, Points
from kernelgen.search.smooth import Smooth
from kernelgen.search.trees import grow

START, WARM = 12, 6
"""Points before the models are asked; where some of them are known to be fast elsewhere. Replayed on
docs/benchmarks/spaces, a search with memory took 0.66 of a cold one's evaluations with WARM, 0.88 with START."""
BATCH = 4
"""Points that one fit of the models chooses: with more, each is chosen knowing less (replayed: 6 was worse)."""
POOL = 2500
"""Points of which the models are asked, beside the neighbours of the fastest: drawn anew every time."""
INCUMBENTS = 3
"""The fastest points whose neighbours are polished."""
SMOOTH, TREES, BOTH = 0, 1, 2
SLOTS = (("near", BOTH), ("near", TREES), ("gain", SMOOTH), ("gain", BOTH))
"""What chooses the points of a batch: the neighbour of the fastest that a model takes for the fastest, or the point of
all where it expects to gain most. Two models, because neither is good on all spaces: trees see axes that act by
thresholds or together, the smooth one needs a third of the points where there are none of these. BOTH is their mean,
less certain where they disagree.
"""
LATE = 100
"""Points after which most of a batch are neighbours:"""
LATE_SLOTS = (("near", TREES), ("near", SMOOTH), ("near", TREES), ("gain", TREES))


class Explorer:
    """Asks for points and is told their times. The same seed and times give the same questions."""

    def __init__(self, points: Points, seed: int, first: Sequence[int] = (), least: int = START) -> None:
        """`first`: what is asked for first, and drawn points after them up to `least`."""
        self.points = points
        self._rng = np.random.default_rng(seed)
        self._features = points.codes.astype(np.float64)
        self._scaled = points.scaled()
        self._free = np.ones(len(points), dtype=bool)
        """Points that were not asked for yet."""
        drawn = self._rng.permutation(len(points))[: least + len(first)]
        self._first = list(dict.fromkeys([*first, *(int(i) for i in drawn)]))[: max(least, len(first))]
        self._told: dict[int, float | None] = {}
        self._smooth = Smooth(len(points.axes))

    @property
    def told(self) -> dict[int, float | None]:
        """The time of every point so far, in order; None: it does not work."""
        return dict(self._told)

    def ranked(self) -> list[int]:
        """The points that work, the fastest first."""
        works = [(time, point) for point, time in self._told.items() if time is not None]
        return [point for _, point in sorted(works)]

    def tell(self, point: int, time: float | None) -> None:
        """What a point takes, in any unit above 0; None: it does not work."""
        self._free[point] = False
        self._told[point] = time

    def ask(self, count: int = BATCH) -> list[int]:
        """The next points, at most so many; none: all were asked for."""
        chosen = [point for point in self._first if self._free[point]][:count]
        if not chosen:
            chosen = self._model(count) if self.ranked() else self._drawn(count)
        self._free[chosen] = False
        return chosen

    def _drawn(self, count: int) -> list[int]:
        free = np.flatnonzero(self._free)
        return [int(i) for i in self._rng.choice(free, min(count, len(free)), replace=False)]

    def _model(self, count: int) -> list[int]:
        """What the models choose, slot after slot."""
        near = [self.points.neighbours(i) for i in self.ranked()[:INCUMBENTS]]
        near = [found[self._free[found]] for found in near]
        pool = np.union1d(self._drawn(POOL), np.concatenate(near)).astype(np.int64)
        if not pool.size:
            return []
        means, gains = self._expected(pool)
        chosen: list[int] = []
        slots = SLOTS if len(self._told) < LATE else LATE_SLOTS
        for kind, model in islice(cycle(slots), min(count, len(pool))):
            open_ = np.isin(pool, chosen, invert=True)
            beside = next((b for b in (np.isin(pool, n) & open_ for n in near) if b.any()), None)
            if kind == "near" and beside is not None:
                at = np.where(beside, means[model], np.inf).argmin()
            else:
                at = np.where(open_, gains[model], -np.inf).argmax()
            chosen.append(int(pool[at]))
        return chosen

    def _expected(self, pool: Places) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
        """The logarithm of the time of every point, and the gain that is expected of it, by each model and by both."""
        seen = np.array(list(self._told))
        logs = self._logs()
        best = float(logs.min())
        smooth = self._smooth.fit(self._scaled[seen], logs).predict(self._scaled[pool])
        trees = grow(self._features[seen], logs, self._rng).predict(self._features[pool])
        apart = (smooth[0] - trees[0]) / 2
        both = (smooth[0] + trees[0]) / 2, np.sqrt((smooth[1] ** 2 + trees[1] ** 2) / 2 + apart**2)
        tie = 1e-12 * self._rng.random(len(pool))
        models: tuple[tuple[Floats, Floats], ...] = (smooth, trees, both)
        return tuple(mean for mean, _ in models), tuple(_gain(*model, best) + tie for model in models)

    def _logs(self) -> Floats:
        """What does not work is taken for as slow as the slowest that does."""
        worst = max(time for time in self._told.values() if time is not None)
        return np.asarray(np.log([worst if time is None else time for time in self._told.values()]))


def _gain(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The expected improvement on the best so far; the normal distribution function by a logistic one (within 0.01)."""
    deviation = np.maximum(deviation, 1e-9)
    z = np.clip((best - mean) / deviation, -40, 40)
    below = 1 / (1 + np.exp(-1.702 * z))
    return np.asarray((best - mean) * below + deviation * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))

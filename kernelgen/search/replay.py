"""How good the search is, on recorded spaces: the same search from many seeds, without a device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from kernelgen.search import racing
from kernelgen.search.explore import Explorer
from kernelgen.search.recorded import Recorded

CLOSE, NEAR = 0.02, 0.05
FEW = 100
"""Evaluations after which a search is judged, and again at this share of the space:"""
SHARE = 0.05


@dataclass(frozen=True)
class Figures:
    """What became of one space, over all seeds."""

    space: str
    configurations: int
    runs: int
    to_near: int | None
    """Median evaluations to within 5 % of the best; None: beyond what was tried."""
    to_close: int | None
    """The same to within 2 %."""
    close_at_few: float
    """The share of runs within 2 % after 100 evaluations."""
    close_at_share: float
    """The same after 5 % of the configurations."""
    regret: float
    """Mean loss of what a run of 100 evaluations would choose that sees single repetitions, over the best that it
    measured."""
    repetitions: float
    """Single repetitions that this took, over those of as many full measurements."""


def limit(recorded: Recorded) -> int:
    """Evaluations that a run is allowed."""
    return min(max(FEW, int(SHARE * len(recorded.points))), len(recorded.points))


def hits(recorded: Recorded, seed: int) -> tuple[int | None, int | None]:
    """After how many evaluations a run is within 5 % and within 2 % of the best; None: not within the limit."""
    explorer, near = Explorer(recorded.points, seed), None
    count = 0
    while count < limit(recorded):
        for point in explorer.ask():
            count += 1
            explorer.tell(point, recorded.time(point))
            if near is None and recorded.times[point] <= (1 + NEAR) * recorded.best:
                near = count
            if recorded.times[point] <= (1 + CLOSE) * recorded.best:
                return near, count
    return near, None


def noisy(recorded: Recorded, seed: int) -> tuple[float, float]:
    """A run of 100 evaluations that sees single repetitions: the regret of its choice, and its share of repetitions."""
    explorer, rng, taken = Explorer(recorded.points, seed), np.random.default_rng(seed), 0

    def sample(point: int, count: int) -> list[float]:
        return [float(t) for t in rng.choice(recorded.repetitions[point], count)]

    best: float | None = None
    while len(explorer.told) < min(FEW, len(recorded.points)):
        for point in explorer.ask():
            if recorded.time(point) is None:
                explorer.tell(point, None)
                continue
            time, count = racing.race(sample, point, best)
            taken += count
            best = time if best is None else min(best, time)
            explorer.tell(point, time)
    ranked = explorer.ranked()
    winner, count = racing.final(sample, ranked)
    full = sum(len(recorded.repetitions[point]) for point in ranked)
    fastest = min(recorded.times[point] for point in ranked)
    return recorded.times[winner] / fastest - 1, (taken + count) / full


def figures(recorded: Recorded, seeds: int, pool: ProcessPoolExecutor | None = None) -> Figures:
    """The search on one space, from so many seeds."""
    spread = map if pool is None else pool.map
    found = list(spread(partial(hits, recorded), range(seeds)))
    chosen = list(spread(partial(noisy, recorded), range(seeds)))
    share = SHARE * len(recorded.points)
    close = [close for _, close in found]
    return Figures(
        space=recorded.name,
        configurations=len(recorded.points),
        runs=seeds,
        to_near=_median([near for near, _ in found]),
        to_close=_median(close),
        close_at_few=_mean([c is not None and c <= FEW for c in close]),
        close_at_share=_mean([c is not None and c <= share for c in close]),
        regret=_mean([regret for regret, _ in chosen]),
        repetitions=_mean([count for _, count in chosen]),
    )


def replay(spaces: Sequence[Recorded], seeds: int, jobs: int) -> Iterator[Figures]:
    """Space after space, runs side by side in so many processes."""
    if jobs == 1:
        yield from (figures(one, seeds) for one in spaces)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        for one in spaces:
            yield figures(one, seeds, pool)


def overall(found: Sequence[Figures]) -> tuple[float, float]:
    """The shares of runs within 2 %, after 5 % of the configurations and after 100 evaluations: the mean of spaces."""
    return _mean([f.close_at_share for f in found]), _mean([f.close_at_few for f in found])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _median(counts: Sequence[int | None]) -> int | None:
    """The middle one, where what was not reached is beyond all others."""
    return sorted(counts, key=lambda c: (c is None, c or 0))[(len(counts) - 1) // 2]

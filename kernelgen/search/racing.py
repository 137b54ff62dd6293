"""Racing: noisy times of several points, measured as often as telling them apart needs and no more."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

Sample = Callable[[int, int], Sequence[float]]
"""So many single times of a point."""

STAGES = ((1, 1.5), (3, 1.1), (8, 1.0))
"""Repetitions in all, and how many times slower than the best so far a point may be to go on to the next stage."""
FINALISTS = 5
ROUNDS = 25
"""Of a final: every finalist once a round, so that a clock that drifts is the same for all."""


def race(sample: Sample, point: int, best: float | None) -> tuple[float, int]:
    """The median time of a point, and how often it was measured; `best`: the least median so far."""
    times: list[float] = []
    for repetitions, within in STAGES:
        times += sample(point, repetitions - len(times))
        if best is not None and statistics.median(times) > within * best:
            break
    return statistics.median(times), len(times)


def final(sample: Sample, ranked: Sequence[int], incumbent: int | None = None) -> tuple[int, int]:
    """The fastest of the first few of a ranking, in interleaved rounds, and how many times were taken. One that gains
    less than 1 % does not replace the incumbent."""
    finalists = list(dict.fromkeys([*ranked[:FINALISTS], *([] if incumbent is None else [incumbent])]))
    if len(finalists) == 1:
        return finalists[0], 0
    rounds = [[sample(point, 1)[0] for point in finalists] for _ in range(ROUNDS)]
    # ratios within a round, because what slows a whole round down says nothing of its members
    middle = [statistics.median(row[i] / row[0] for row in rounds) for i in range(len(finalists))]
    best = min(range(len(finalists)), key=middle.__getitem__)
    if incumbent is not None and middle[best] > 0.99 * middle[finalists.index(incumbent)]:
        best = finalists.index(incumbent)
    return finalists[best], ROUNDS * len(finalists)

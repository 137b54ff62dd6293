"""Paired, swapped, blocked timing: how much faster is b than a, with a confidence interval.

The arithmetic is here; clocks, launches and buffers are behind `Stage` (the real one is in cuda.py), so that the
statistics can be tested on a machine without a GPU.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from . import device as devices
from . import stats
from .model import Comparison, Function

BLOCKS, PAIRS, MAX_DOUBLINGS = 10, 15, 2
HALF_WIDTH = 0.005
"""Blocks are added until the interval's half width is below this, relative to the speedup."""
TIME_CAP_S = 20.0
CLOCK_US = 0.5
"""What a pair of CUDA events resolves (CUDA Runtime API, cudaEventElapsedTime)."""

MakeInputs = Callable[[], Sequence[torch.Tensor]]
"""Makes a fresh, independent set of a function's arguments."""
Sample = tuple[float, float]


class Stage(Protocol):
    """Buffers, launches and clock of one comparison of several functions."""

    launches: int
    """Launches in one sample."""
    swapped_sets: bool
    """False: both buffer sets are the same one, because two do not fit."""
    graphed: bool
    """Samples are replays of CUDA graphs."""
    sample_us: float
    """About how long a sample of the fastest function takes."""

    def open_block(self, rng: random.Random) -> tuple[Any, Any]:
        """Two freshly allocated buffer sets at places that differ from block to block."""

    def launcher(self, which: int, buffers: Any) -> Any:
        """Function number `which` bound to a buffer set and warmed up, ready for `time_runs`."""

    def time_runs(self, launchers: Sequence[Any], order: Sequence[int]) -> list[float]:
        """The device time of one launch, in µs, of each launcher in `order`, with the cache flushed before each."""

    def close_block(self) -> bool:
        """Free the block's buffers; False: the device had lowered its clocks, the block is not to be used."""

    def call_us(self) -> tuple[float | None, ...]:
        """Per function, wall time of a call in a back-to-back loop."""


LONG_US = 400.0
"""Samples longer than this are fewer in proportion: they scatter less, and memory that large takes long to fill."""
LEAST_PAIRS = 5


def compare(
    a: Function,
    b: Function,
    make_inputs: MakeInputs,
    *,
    blocks: int = BLOCKS,
    pairs: int = PAIRS,
    time_cap_s: float = TIME_CAP_S,
    half_width: float = HALF_WIDTH,
    sets: int = 2,
    seed: int | None = None,
    stage: Stage | None = None,
) -> Comparison:
    """Time a and b against each other; the speedup is a's time over b's. Needs a GPU unless a stage is given. `sets`:
    of buffers, 2 that are swapped or 1 that both share."""
    begin = time.perf_counter()
    if stage is None:
        stage = devices.stage((a, b), make_inputs, sets)
    rng = random.Random(seed)
    pairs = max(min(pairs, LEAST_PAIRS), min(pairs, int(pairs * LONG_US / max(stage.sample_us, 1.0))))
    started = time.perf_counter()  # what the stage compiled before does not count against the cap
    values: list[float] = []
    samples: list[tuple[Sample, ...]] = []
    thrown_away, goal = 0, blocks
    while len(values) < goal:
        block = one_block(stage, pairs, rng)
        if not stage.close_block() and thrown_away < blocks:
            thrown_away += 1
            continue
        samples += block
        values.append(block_value(block))
        if len(values) >= 3 and time.perf_counter() - started > time_cap_s:
            break
        # looking at the width only at 1, 2 and 4 times `blocks` keeps the interval honest: a stop as soon as it
        # happens to be narrow would cover the truth less often than it says
        wide = len(values) == goal and over_blocks(values, stage).half_width > half_width
        if wide and goal < blocks << MAX_DOUBLINGS:
            goal *= 2
    return _comparison(stage, values, samples, thrown_away, begin)


def one_block(stage: Stage, pairs: int, rng: random.Random) -> list[tuple[Sample, ...]]:
    """Fresh buffers; interleaved pairs with a on the first set and b on the second; the same with the sets swapped."""
    first, second = stage.open_block(rng)
    arrangements = []
    made_first = rng.randrange(2)
    for sets in ((first, second), (second, first)):
        # outputs and graphs have places too: whichever side is made first now is made last with the sets swapped
        made = {which: stage.launcher(which, sets[which]) for which in (made_first, 1 - made_first)}
        made_first = 1 - made_first
        order = [i for flip in _coin_tosses(pairs, rng) for i in ((0, 1), (1, 0))[flip]]
        times = stage.time_runs((made[0], made[1]), order)
        arrangements.append(tuple(_paired(order, times)))
        made.clear()
    return arrangements


def _coin_tosses(count: int, rng: random.Random) -> list[int]:
    """As many zeros as ones (to within one), in random order."""
    tosses = [i % 2 for i in range(count)]
    rng.shuffle(tosses)
    return tosses


def _paired(order: Sequence[int], times: Sequence[float]) -> list[Sample]:
    """Samples as (a, b), whichever of the two ran first."""
    runs = list(zip(order, times, strict=True))
    return [(x[1], y[1]) if x[0] == 0 else (y[1], x[1]) for x, y in zip(runs[::2], runs[1::2], strict=True)]


def block_value(arrangements: Sequence[Sequence[Sample]]) -> float:
    """Mean over the two arrangements of the median log ratio: what a buffer's place costs cancels."""
    return statistics.fmean(statistics.median(math.log(a / b) for a, b in pairs) for pairs in arrangements)


def over_blocks(values: Sequence[float], stage: Stage) -> stats.Estimate:
    """The estimate from block values, with what the clock does not resolve.

    A reading is off by a uniform error of variance tick**2 / 12. A block is the mean of two medians of ratios of two
    readings each, so its own variance of that kind is tick**2 / 12 too, relative to the length of a sample.
    """
    plain = stats.over_blocks(values)
    unresolved = CLOCK_US / max(stage.sample_us, CLOCK_US) / math.sqrt(12 * len(values))
    return replace(plain, std_error=math.hypot(plain.std_error, unresolved))


def _comparison(
    stage: Stage, values: list[float], samples: list[tuple[Sample, ...]], thrown_away: int, begin: float
) -> Comparison:
    estimate = over_blocks(values, stage)
    low, high = estimate.interval
    a_call, b_call = stage.call_us()
    flat = [sample for arrangement in samples for sample in arrangement]
    return Comparison(
        speedup=estimate.ratio,
        low=low,
        high=high,
        verdict=stats.verdict(low, high),
        a_us=statistics.median(a for a, _ in flat),
        b_us=statistics.median(b for _, b in flat),
        blocks=len(values),
        std_error=estimate.std_error,
        launches=stage.launches,
        swapped_sets=stage.swapped_sets,
        graphed=stage.graphed,
        a_call_us=a_call,
        b_call_us=b_call,
        throttled=thrown_away,
        samples=tuple(samples),
        seconds=time.perf_counter() - begin,
    )


def estimate_of(comparison: Comparison) -> stats.Estimate:
    """The comparison as an estimate that geometric means are made of."""
    return stats.Estimate(math.log(comparison.speedup), comparison.std_error, comparison.blocks - 1)


@dataclass(frozen=True)
class Quick:
    """One function's result of a race."""

    median_us: float
    samples: tuple[float, ...]


def quick(
    functions: Sequence[Function],
    make_inputs: MakeInputs,
    *,
    repetitions: int = 7,
    heats: Sequence[tuple[int, float]] = (),
    seed: int | None = None,
    stage: Stage | None = None,
) -> tuple[Quick, ...]:
    """Race several functions on shared inputs: interleaved samples in random order, no interval.

    Good enough to drop losers of a search; a winner is measured again with `compare`. `heats` stop it early: after so
    many repetitions it ends where the last function takes more than so many times what the first one takes.
    """
    if stage is None:
        stage = devices.stage(functions, make_inputs, sets=1)
    rng = random.Random(seed)
    buffers, _ = stage.open_block(rng)
    launchers = [stage.launcher(i, buffers) for i in range(len(functions))]
    by_function: list[list[float]] = [[] for _ in functions]
    for count, within in (*heats, (repetitions, math.inf)):
        more = count - len(by_function[0])
        order = [i for _ in range(more) for i in rng.sample(range(len(functions)), len(functions))]
        for which, microseconds in zip(order, stage.time_runs(launchers, order), strict=True):
            by_function[which].append(microseconds)
        if statistics.median(by_function[-1]) > within * statistics.median(by_function[0]):
            break
    del launchers
    stage.close_block()
    return tuple(Quick(statistics.median(times), tuple(times)) for times in by_function)


def call_times(
    functions: Sequence[Function], arguments: Sequence[torch.Tensor], synchronize: Callable[[], Any]
) -> tuple[float, ...]:
    """Wall time of a call of each, in µs: the median of interleaved loops of calls, each loop about 5 ms long."""

    def loop_s(function: Function, count: int) -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            function(*arguments)
        synchronize()
        return (time.perf_counter() - begin) / count

    loops: list[list[float]] = [[] for _ in functions]
    counts = [max(2, min(200, math.ceil(5e-3 / max(loop_s(f, 3), 1e-7)))) for f in functions]
    for _ in range(5):
        for times, function, count in zip(loops, functions, counts, strict=True):
            times.append(loop_s(function, count) * 1e6)
    return tuple(statistics.median(times) for times in loops)

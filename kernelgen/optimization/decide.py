"""Whether a change is kept: arithmetic on timings and their intervals, nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kernelgen.devices import Peaks
from kernelgen.diagnose import Seen, bandwidth_utilisation, geomean
from kernelgen.outcomes import CaseTiming, Interval
from kernelgen.spec.model import Target

MARGIN = 0.01
"""A case is called faster or slower only beyond this; a prediction must promise more than this to be followed."""

NOTHING_LEFT = f"no untried candidate is predicted to gain more than {100 * MARGIN:.0f} %"

IMPOSSIBLE = 0.5
"""No time below this share of the floor is believed. The floor counts every byte at the memory's peak; writes that stay
in the L2 may beat it a little, never by half."""


@dataclass(frozen=True)
class Decision:
    """Keep or revert, and why."""

    keep: bool
    overall: Interval | None
    """Of the geometric mean over the cases of current over new; None where there is no timing."""
    why: str


@dataclass(frozen=True)
class Judged:
    """One of the spec's targets against a kernel's figures."""

    target: str
    """In words, with the figure where there is one: `bandwidth: 85 % of peak, target >= 60 %`."""
    state: Literal["reached", "missed", "unknown"]
    """unknown: what it asks for was not timed or not read here, so nothing can be said."""


def overall(timings: tuple[CaseTiming, ...]) -> Interval | None:
    """The geometric mean of the speedups with its 95 % interval; predictions have an interval of no width.

    The cases' errors are independent, so on the logarithmic scale their half-widths add up as squares.
    """
    if not timings:
        return None
    estimate = geomean([t.speedup for t in timings])
    below = above = 0.0
    for t in timings:
        interval = t.interval or Interval(t.speedup, t.speedup, t.speedup)
        below += math.log(t.speedup / interval.low) ** 2 if interval.low > 0 else math.inf
        above += math.log(interval.high / t.speedup) ** 2
    count = len(timings)
    return Interval(
        estimate, estimate * math.exp(-math.sqrt(below) / count), estimate * math.exp(math.sqrt(above) / count)
    )


def verdict(timing: CaseTiming) -> str:
    """faster, slower or undecided; a prediction is called by its value alone."""
    low = timing.interval.low if timing.interval else timing.speedup
    high = timing.interval.high if timing.interval else timing.speedup
    if low > 1 + MARGIN:
        return "faster"
    return "slower" if high < 1 - MARGIN else "undecided"


def decide(timings: tuple[CaseTiming, ...]) -> Decision:
    """Keep only what is faster beyond doubt in the mean, and slower nowhere."""
    mean = overall(timings)
    if mean is None:
        return Decision(False, None, "there is no timing of it against the current kernel")
    for t in timings:
        if t.source == "measured" and t.floor_us and t.time_us < IMPOSSIBLE * t.floor_us:
            why = f"{t.case}: {t.time_us:.2f} µs is impossible: its bytes and operations need {t.floor_us:.2f} µs"
            return Decision(False, mean, why)
    slower = [t.case for t in timings if verdict(t) == "slower"]
    if slower:
        return Decision(False, mean, f"slower for {', '.join(slower)}")
    if any(t.source == "predicted" for t in timings):
        if mean.estimate <= 1 + MARGIN:
            why = f"best {gain(mean.estimate)} (predicted), below the {100 * MARGIN:.0f} % threshold"
            return Decision(False, mean, why)
        return Decision(True, mean, f"{gain(mean.estimate)} (predicted)")
    if mean.low <= 1:
        return Decision(False, mean, f"best {mean}: the 95 % interval reaches down to {mean.low:.3f}x")
    return Decision(True, mean, f"{mean} over the previous kernel")


def gain(ratio: float) -> str:
    """A ratio as a change in per cent, such as `+3.1 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


def percent(share: float) -> str:
    """A share from 0 to 1 in per cent, such as `87 %`."""
    return f"{100 * share:.0f} %"


def targets(
    target: Target, eager: tuple[CaseTiming, ...], seen: tuple[Seen, ...], device: Peaks, l2_read: bool = True
) -> tuple[Judged, ...]:
    """Every target that is asked for here; a speedup is reached by its interval's lower bound.

    `l2_read` is whether the L2's counter can be read here as far as is known: where not, its target is not asked for.
    """
    speedup = overall(eager)
    least = f"target >= {target.speedup:.2f}x"
    if speedup is None:
        judged = [Judged(f"speedup over eager: not measured, {least}", "unknown")]
    else:
        judged = [_judged(f"speedup over eager: {show(speedup)}, {least}", speedup.low >= target.speedup)]
    if target.bandwidth is not None:
        least = f"target >= {percent(target.bandwidth)}"
        if seen:
            share = geomean([bandwidth_utilisation(s.timing, s.work, device) for s in seen])
            judged.append(_judged(f"bandwidth: {percent(share)} of peak, {least}", share >= target.bandwidth))
        else:
            judged.append(Judged(f"bandwidth: the kernel was not timed, {least}", "unknown"))
    hits = [s.counters.l2_hit for s in seen if s.counters and s.counters.l2_hit is not None]
    if target.l2_hit is not None:
        least = f"target >= {percent(target.l2_hit)}"
        if hits:
            judged.append(_judged(f"L2 hit rate: {percent(min(hits))}, {least}", min(hits) >= target.l2_hit))
        elif l2_read:
            judged.append(Judged(f"L2 hit rate: no counters of this kernel, {least}", "unknown"))
    return tuple(judged)


def all_reached(judged: tuple[Judged, ...]) -> bool:
    """Whether every target is known to be reached."""
    return bool(judged) and all(one.state == "reached" for one in judged)


def _judged(words: str, reached: bool) -> Judged:
    return Judged(words, "reached" if reached else "missed")


def show(interval: Interval | None) -> str:
    """An interval for people; one of no width is a prediction and shows only its estimate."""
    if interval is None:
        return "unknown"
    return f"{interval.estimate:.3f}x" if interval.low == interval.high else str(interval)

"""The judge judged: the same function timed against itself, to see how often the interval covers 1.00."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import device as devices
from .model import Comparison
from .performance import NO_GPU
from .report import to_json

DURATIONS = (2.0, 20.0, 200.0)
RUNS = 100

MakeComparison = Callable[[float], Comparison]
"""One A/A comparison of something that takes about so many µs."""


@dataclass(frozen=True)
class SelfTest:
    """A/A comparisons at one duration."""

    wanted_us: float
    actual_us: float
    runs: int
    covered: int
    """Runs whose 95 % interval contained 1.00."""
    called: int
    """Runs with a verdict other than undecided: false alarms."""
    median_width: float
    """Of the intervals, relative."""
    seconds: float


def self_test(
    microseconds: Sequence[float] = DURATIONS,
    runs: int = RUNS,
    *,
    comparison: MakeComparison | None = None,
    say: Callable[[str], None] = print,
) -> tuple[SelfTest, ...]:
    """Time a copy against itself `runs` times at each duration; prints a line for each. Needs a GPU."""
    compare_once = comparison or _copy_against_itself
    results = []
    for wanted in microseconds:
        found = [compare_once(wanted) for _ in range(runs)]
        result = SelfTest(
            wanted_us=wanted,
            actual_us=statistics.median(c.b_us for c in found),
            runs=runs,
            covered=sum(c.low <= 1 <= c.high for c in found),
            called=sum(c.verdict != "undecided" for c in found),
            median_width=statistics.median(c.high - c.low for c in found),
            seconds=sum(c.seconds for c in found),
        )
        say(
            f"A/A at {result.actual_us:.1f} µs: the 95 % interval covered 1.00 in {result.covered} of {runs} runs, "
            f"median width {result.median_width:.2%}, {result.called} called faster or slower, {result.seconds:.0f} s"
        )
        results.append(result)
    return tuple(results)


def _copy_against_itself(wanted_us: float) -> Comparison:
    import torch

    from .cuda import bandwidths
    from .timing import compare

    # a launch itself takes about 1.5 µs of device time; short copies reach about 0.6 of the rate of long ones
    size = max(1, int(0.6 * (wanted_us - 1.5) * 1e-6 * bandwidths()[0] / 2) // 4)
    return compare(torch.clone, torch.clone, lambda: (torch.rand(size, device="cuda"),))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of the self-test: 0 when done, 3 without a GPU."""
    parser = argparse.ArgumentParser(prog="self-test", description="A/A comparisons: does the interval cover 1.00?")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--microseconds", type=float, nargs="+", default=list(DURATIONS))
    options = parser.parse_args(argv)
    stream: Any = sys.stderr if options.json else sys.stdout
    if devices.find() != "cuda":
        print(NO_GPU, file=stream)
        return 3
    print(f"Self-test of the judge's clock on {devices.describe()}", file=stream)
    results = self_test(options.microseconds, options.runs, say=lambda line: print(line, file=stream, flush=True))
    if options.json:
        print(json.dumps({"device": devices.describe(), "results": to_json(results)}))
    return 0

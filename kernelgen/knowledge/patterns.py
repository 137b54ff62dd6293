"""What rows say together: which strategies won how much against which bottleneck, and which problems are near."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelgen.knowledge.rows import Row, sizes_of

OTHER_DTYPE, OTHER_DEVICE, OTHER_OPERATOR = 2.0, 3.0, 1.0
"""How far problems are apart that differ so; sizes that differ by a factor of two are 1 apart."""


@dataclass(frozen=True)
class Pattern:
    """A strategy against a bottleneck, over all rounds of all runs that tried it."""

    bottleneck: str
    strategy: str
    rounds: int
    kept: int
    tried: int
    """Configurations."""
    gain: float | None
    """Median over the rounds that were kept of the geometric mean over the cases; None where none was."""
    low: float | None
    high: float | None
    """Between which the middle half of them lies."""
    failed: tuple[tuple[str, int], ...]
    """What became of configurations that failed, the most frequent first."""


@dataclass(frozen=True)
class Near:
    """A problem that was measured, and the fastest configuration there."""

    distance: float
    row: Row
    tried: int


def patterns(rows: Iterable[Row]) -> list[Pattern]:
    """By bottleneck and strategy, the most rounds first. Rows without a bottleneck are of rounds that never ended."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.bottleneck:
            groups.setdefault((row.bottleneck, row.strategy), []).append(row)
    found = [_pattern(*key, group) for key, group in groups.items()]
    return sorted(found, key=lambda p: (-p.rounds, p.bottleneck, p.strategy))


def _pattern(bottleneck: str, strategy: str, rows: Sequence[Row]) -> Pattern:
    rounds = {(row.run, row.round) for row in rows}
    last: dict[tuple[str, int, str], Row] = {}
    for row in rows:  # a finalist's second look replaces its first
        if row.kept and row.speedup:
            last[row.run, row.round, row.case] = row
    by_round: dict[tuple[str, int], list[float]] = {}
    for (run, number, _), row in last.items():
        assert row.speedup
        by_round.setdefault((run, number), []).append(math.log(row.speedup))
    gains = sorted(math.exp(statistics.fmean(logs)) for logs in by_round.values())
    quarter = statistics.quantiles(gains, n=4, method="inclusive") if len(gains) > 1 else gains * 3
    failed = Counter(row.status for row in rows if row.time_us is None)
    return Pattern(
        bottleneck,
        strategy,
        rounds=len(rounds),
        kept=len(gains),
        tried=len({(row.run, row.source) for row in rows}),
        gain=statistics.median(gains) if gains else None,
        low=quarter[0] if gains else None,
        high=quarter[-1] if gains else None,
        failed=tuple(failed.most_common()),
    )


def nearest(rows: Iterable[Row], family: str, operator: str, case: str, dtype: str, device: str) -> list[Near]:
    """The problems of the same family that were measured, the nearest first."""
    problems: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.family == family:
            problems.setdefault((row.operator, row.case, row.device), []).append(row)
    found = []
    for (its_operator, its_case, its_device), group in problems.items():
        timed = [row for row in group if row.time_us is not None]
        if not timed:
            continue
        distance = _apart(sizes_of(case), sizes_of(its_case))
        distance += OTHER_DTYPE * (group[0].dtype != dtype) + OTHER_DEVICE * (its_device != device)
        distance += OTHER_OPERATOR * (its_operator != operator)
        found.append(Near(distance, min(timed, key=lambda row: row.time_us or math.inf), len(group)))
    return sorted(found, key=lambda near: near.distance)


def _apart(a: Sequence[int], b: Sequence[int]) -> float:
    """Powers of two between two lists of sizes, the last ones against one another first."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    missing = abs(len(a) - len(b))
    return math.fsum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs) + missing

"""What rows say together: which strategies won how much against which bottleneck, and which problems are near."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kernelgen.knowledge.rows import Row, named_sizes, sizes_of

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
    """A problem that was measured."""

    distance: float
    fastest: tuple[Row, ...]
    """Its configurations, each once, the fastest first."""
    tried: int

    @property
    def row(self) -> Row:
        return self.fastest[0]


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
    gains = sorted(math.exp(gain) for gain in round_gains([row for row in rows if row.kept and row.speedup]))
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


@dataclass(frozen=True)
class Learnt:
    """What rounds of a strategy against a bottleneck came to, those that were not kept as no gain."""

    rounds: int
    gain: float
    """The geometric mean over all of them."""
    prior_rounds: float
    """How many rounds what was expected beforehand counts as."""
    words: str


def learnt(rows: Iterable[Row]) -> dict[tuple[str, str], Learnt]:
    """By bottleneck and strategy. How much one's own rounds count against the prior follows from all pairs together
    (empirical Bayes): much, where pairs differ more from one another than rounds of one pair do."""
    told, logs = {}, {}
    for one in patterns(rows := list(rows)):
        key = one.bottleneck, one.strategy
        told[key] = one
        logs[key] = round_gains([row for row in rows if (row.bottleneck, row.strategy) == key])
    strength = _prior_rounds(list(logs.values()))
    return {
        key: Learnt(len(own), math.exp(statistics.fmean(own)), strength, sentence(told[key]))
        for key, own in logs.items()
    }


def round_gains(rows: Sequence[Row]) -> list[float]:
    """The logarithm of every round's gain; 0 where nothing was kept."""
    kept: dict[tuple[str, int], dict[str, float]] = {(row.run, row.round): {} for row in rows}
    for row in rows:  # a finalist's second look replaces its first
        if row.kept and row.speedup:
            kept[row.run, row.round][row.case] = math.log(row.speedup)
    return [statistics.fmean(own.values()) if own else 0.0 for own in kept.values()]


def _prior_rounds(groups: Sequence[Sequence[float]]) -> float:
    """The variance within pairs over that between them; PRIOR where there is too little to tell."""
    several = [own for own in groups if len(own) > 1]
    if len(several) < ENOUGH:
        return PRIOR
    within = statistics.fmean([statistics.variance(own) for own in several])
    means = [statistics.fmean(own) for own in several]
    between = statistics.variance(means) - statistics.fmean([within / len(own) for own in several])
    return min(max(within / between, 1.0), MOST_PRIOR) if between > 0 else MOST_PRIOR


PRIOR, MOST_PRIOR, ENOUGH = 4.0, 20.0, 3


def sentence(pattern: Pattern) -> str:
    """A pattern for a person, with its counts."""
    failed = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in pattern.failed)
    return (
        f"{pattern.strategy} against {pattern.bottleneck}: {pattern.rounds} round{'s' * (pattern.rounds != 1)}, "
        f"{pattern.kept} kept"
        + (f", median {_percent(pattern.gain)}" if pattern.gain else "")
        + (f" ({_percent(pattern.low)} to {_percent(pattern.high)})" if pattern.low and pattern.high else "")
        + f"; {pattern.tried} configurations" + (f", {failed}" if failed else "")
    )  # fmt: skip


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


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
        distance = min(_apart(sizes_of(case), sizes_of(its_case)), _apart_by_name(case, its_case))
        distance += OTHER_DTYPE * (group[0].dtype != dtype) + OTHER_DEVICE * (its_device != device)
        distance += OTHER_OPERATOR * (its_operator != operator)
        ranked = sorted(timed, key=lambda row: row.time_us or math.inf)
        each = {(row.variant, row.schedule): row for row in reversed(ranked)}
        found.append(Near(distance, tuple(sorted(each.values(), key=ranked.index)), len(group)))
    return sorted(found, key=lambda near: near.distance)


def _apart(a: Sequence[int], b: Sequence[int]) -> float:
    """Powers of two between two lists of sizes, the last ones against one another first; one that is missing is 1."""
    pairs = zip_longest(reversed(a), reversed(b), fillvalue=1)
    return math.fsum(_powers(x, y) for x, y in pairs)


NOT_SHARED = 0.5
"""Of a size that one of two problems has, beside how far it is from the nearest size of the other."""


def _apart_by_name(a: str, b: str) -> float:
    """The same between sizes of one name; one that the other has not is often another name of one that it has: `L=4096`
    keys of `S=4096` queries."""
    first, second = named_sizes(a), named_sizes(b)
    shared = first.keys() & second.keys()
    total = math.fsum(_powers(first[name], second[name]) for name in shared)
    for own, other in ((first, second), (second, first)):
        for name in own.keys() - shared:
            total += NOT_SHARED + min(
                (_powers(own[name], size) for size in other.values()), default=_powers(own[name], 1)
            )
    return total


def _powers(x: int, y: int) -> float:
    return abs(math.log2(max(x, 1) / max(y, 1)))

"""How reports are printed and written as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import stats
from .model import Case, CaseReport, Comparison, PerformanceReport, Trial
from .timing import estimate_of


def to_json(value: Any) -> Any:
    """Plain JSON data of a report; NaN and infinities as strings, since JSON has none."""
    if isinstance(value, Case):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def accuracy_line(report: CaseReport, width: int) -> str:
    """One line a case: a tick, its label, the errors; or a cross and the reason."""
    label = report.case.label.ljust(width)
    if report.left_out:
        return f"- {label}  left out: {report.left_out}"
    sizes = f"  (run as {report.run_as})" if report.run_as else ""
    if not report.passed:
        return f"✗ {label}  {report.message}{sizes}"
    if report.message:
        return f"✓ {label}  {report.message}{sizes}"
    return f"✓ {label}  {errors(report)}{sizes}"


def accuracy_details(report: CaseReport) -> list[str]:
    """For --verbose: every trial with its seed, errors and worst element."""
    lines = []
    for trial in report.trials:
        line = f"    {trial.distribution:<10}  seed {trial.seed}"
        line += f"  {errors(trial)}"
        if trial.worst is not None:
            w = trial.worst
            line += (
                f"  worst {w.output}{list(w.index)}: expected {w.expected:.9g}, got {w.got:.9g}, eager {w.eager:.9g}"
            )
        if not trial.poison_reached:
            line += "  (the poison did not reach the output)"
        lines.append(line)
    if report.trials:
        lines.append(f"    repeat with --seed {report.seed}   {report.seconds:.2f} s")
    return lines


def performance_lines(report: PerformanceReport, width: int) -> list[str]:
    """The kernel's line and one line an opponent."""
    label = report.case.label.ljust(width)
    if report.message:
        return [f"✗ {label}  {report.message}"]
    if report.left_out or report.kernel_us is None or report.floor_us is None:
        return [f"- {label}  left out: {report.left_out}"]
    call = next((c.b_call_us for c in report.comparisons.values()), None)
    share = f"{report.floor_us / report.kernel_us:4.0%} of the floor ({microseconds(report.floor_us).strip()})"
    lines = [f"  {label}  kernel        {microseconds(report.kernel_us)}  {share}{_call(call)}"]
    for name, c in report.comparisons.items():
        speedup = f"{interval(c.speedup, c.low, c.high)}  {c.verdict}"
        lines.append(f"  {'':{width}}  {name:<12}  {microseconds(c.a_us)}  {speedup}{_call(c.a_call_us)}")
    return [*lines, *(f"  {'':{width}}  note: {note}" for note in report.notes)]


def performance_details(report: PerformanceReport) -> list[str]:
    """For --verbose: how each comparison was made."""
    return [
        f"    {name}: {c.blocks} blocks, {sum(map(len, c.samples))} pairs, {c.launches} launches a sample, "
        f"{'two swapped buffer sets' if c.swapped_sets else 'one buffer set'}, {c.seconds:.1f} s"
        for name, c in report.comparisons.items()
    ]


def means(reports: Sequence[PerformanceReport]) -> dict[str, stats.Estimate]:
    """The geometric mean of the speedups, by opponent."""
    by_name: dict[str, list[Comparison]] = {}
    for report in reports:
        for name, comparison in report.comparisons.items():
            by_name.setdefault(name, []).append(comparison)
    return {name: stats.geometric_mean([estimate_of(c) for c in found]) for name, found in by_name.items()}


def mean_line(name: str, mean: stats.Estimate, count: int) -> str:
    low, high = mean.interval
    verdict = stats.verdict(low, high)
    cases = "1 case" if count == 1 else f"{count} cases"
    return f"Geometric mean of the speedup over {name}: {interval(mean.ratio, low, high)} ({cases}) {verdict}"


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f}x [{low:.3f}, {high:.3f}]"


def microseconds(value: float) -> str:
    """A time with four digits, in µs or ms, of one width."""
    if value >= 10_000:
        return f"{value / 1e3:8.2f} ms"
    return f"{value:8.{max(0, 3 - len(str(int(value))) + 1)}f} µs"


def errors(found: CaseReport | Trial) -> str:
    """The largest error, how near any comes to the bound of its element, and PyTorch's own."""
    share = ""
    if found.max_error and math.isfinite(found.bound_share):
        digits = 0 if found.bound_share >= 0.1 else 1
        tenth = 10**digits
        share = f", at most {math.ceil(100 * found.bound_share * tenth) / tenth:.{digits}f} % of its bound"
    return f"max error {error(found.max_error)}{share} (eager {error(found.eager_error)})"


def error(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"


def _call(value: float | None) -> str:
    return "" if value is None else f"  call {microseconds(value).strip()}"

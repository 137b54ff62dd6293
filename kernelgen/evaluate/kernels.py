"""What each kernel of a call did, by NVIDIA's profiler or worked out: rows of one table."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kernelgen.analysis import Work
from kernelgen.devices import DeviceFacts
from kernelgen.evaluate.candidate import Candidate
from kernelgen.outcomes import StaticFacts
from kernelgen.spec.model import Case

NCU, DERIVED, PREDICTED, SUM = "ncu", "derived", "predicted", "sum"
Launches = list[tuple[str, dict[str, float]]]
"""Kernels in the order of their launches, each with ncu's metrics by name."""


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a call of one configuration; None: not known."""

    case: str
    configuration: str
    kernel: str
    source: str
    """`ncu`; `derived`: the judge's time, the bytes and the binary; `predicted`: the same with a time that nothing
    took; `sum`: of the rows of a call."""
    duration_us: float | None = None
    cycles: float | None = None
    registers: float | None = None
    occupancy: float | None = None
    """Achieved; derived: the limit that registers and shared memory set. Shares are 0 to 1."""
    dram: float | None = None
    l2: float | None = None
    l2_hit: float | None = None
    matrix: float | None = None
    bank_conflicts: float | None = None
    stalls: str = ""
    """What warps waited for most, in warps an instruction that was issued."""
    tflops: float | None = None
    """Of all operations of the call."""
    product_tflops: float | None = None
    """Of products of matrices alone: attention's TFLOP/s as papers give them."""


@dataclass(frozen=True)
class Call:
    """A call of one configuration on one case, whose kernels are asked for."""

    candidate: Candidate
    case: Case
    configuration: str
    """As people write it."""
    keep: Path | None = None
    """Where ncu's report of it goes."""


Told = tuple[list[KernelRow], str]
"""The rows of a call, and why not ncu counted them where it did not."""

TITLES = {
    "case": "case", "configuration": "configuration", "kernel": "kernel", "source": "from",
    "duration_us": "duration µs", "cycles": "cycles", "registers": "registers", "occupancy": "occupancy",
    "dram": "DRAM", "l2": "L2", "l2_hit": "L2 hit rate", "matrix": "matrix pipe", "bank_conflicts": "bank conflicts",
    "stalls": "warp stalls", "tflops": "TFLOP/s", "product_tflops": "TFLOP/s of products",
}  # fmt: skip
SHARES = ("occupancy", "dram", "l2", "l2_hit", "matrix")

METRICS: dict[str, tuple[str, float]] = {
    "duration_us": ("gpu__time_duration.sum", 1e-3),
    "cycles": ("sm__cycles_elapsed.max", 1),
    "registers": ("launch__registers_per_thread", 1),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", 0.01),
    "dram": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 0.01),
    "l2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 0.01),
    "l2_hit": ("lts__t_sector_hit_rate.pct", 0.01),
    "matrix": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 0.01),
    "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu.sum", 1),
}
"""Fields, each with ncu's name in its base unit and what that is multiplied by."""
STALLS = (
    "long_scoreboard", "short_scoreboard", "barrier", "math_pipe_throttle", "lg_throttle", "mio_throttle", "wait",
    "not_selected", "gmma",
)  # fmt: skip
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SHOWN_STALLS = 2
ONE_CALL = ("--clock-control", "none", "--profile-from-start", "off")
"""ncu watches what the program says is to be watched, at the clock that is."""


def command(program: str, kernels: Sequence[str], keep: Path | None) -> list[str]:
    """How ncu is called before the program that it watches."""
    metrics = [name for name, _ in METRICS.values()] + [STALL.format(reason) for reason in STALLS]
    names = "|".join(re.escape(name) for name in dict.fromkeys(kernels))
    return [
        program, "--csv", "--print-units", "base", "--metrics", ",".join(metrics), *ONE_CALL,
        "-k", f"regex:^({names})$",
        *(["--export", str(keep), "--force-overwrite"] if keep else []),
    ]  # fmt: skip


def imported(program: str, report: Path) -> list[str]:
    """How ncu prints a report that it kept as it prints what it does not keep."""
    return [program, "--import", str(report), "--csv", "--print-units", "base", "--page", "details"]


def of_calls(said: Launches, calls: Sequence[Sequence[str]]) -> list[Launches]:
    """The launches of each call, from the first on, as long as they are those that the call makes: names in order. A
    call that failed has none, nor has one after it."""
    found, start = [], 0
    for names in calls:
        own = said[start : start + len(names)]
        if [kernel for kernel, _ in own] != list(names):
            break
        found.append(own)
        start += len(names)
    return found


def parse(text: str) -> Launches:
    """ncu's CSV, a line a metric: the launches in their order, each kernel with its metrics by name."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for line in csv.DictReader(lines):
        kernel, metric, value = line.get("Kernel Name"), line.get("Metric Name"), line.get("Metric Value")
        if kernel and metric and value:
            _, values = found.setdefault(line.get("ID") or kernel, (kernel.partition("(")[0], {}))
            with contextlib.suppress(ValueError):  # what a device does not count is n/a
                values[metric] = float(value.replace(",", ""))
    return [one for one in found.values() if one[1]]


def of_ncu(case: str, configuration: str, launches: Launches, work: Work) -> list[KernelRow]:
    """A row a launch, and their sum where there are several."""
    rows = []
    for kernel, values in launches:
        known = {field: values[name] * scale for field, (name, scale) in METRICS.items() if name in values}
        waits = [(values[STALL.format(reason)], reason) for reason in STALLS if STALL.format(reason) in values]
        worst = sorted(waits, reverse=True)[:SHOWN_STALLS]
        stalls = ", ".join(f"{reason} {ratio:.1f}" for ratio, reason in worst if ratio > 0)
        rows.append(KernelRow(case, configuration, kernel, NCU, stalls=stalls, **known))
    return _rated(rows, work)


def derived(
    case: str,
    configuration: str,
    launches: Sequence[StaticFacts],
    time_us: float,
    work: Work,
    facts: DeviceFacts,
    source: str = DERIVED,
) -> list[KernelRow]:
    """The same columns as far as time, bytes and the compiled kernels say them; of several kernels only the whole
    call's time is known. `source`: DERIVED where the time was measured, else PREDICTED."""
    alone = len(launches) == 1
    moved = (work.bytes_read + work.bytes_written) / (time_us * 1e-6 * facts.dram_bytes_per_s)
    rows = [
        KernelRow(
            case, configuration, one.kernel, source, duration_us=time_us if alone else None, registers=one.registers,
            occupancy=one.occupancy, dram=moved if alone else None,
        )
        for one in launches
    ]  # fmt: skip
    if alone:
        return _rated(rows, work)
    whole = KernelRow(case, configuration, f"{len(rows)} kernels", f"{SUM}, {source}", duration_us=time_us, dram=moved)
    return [*rows, _rate(whole, work)]


def _rated(rows: list[KernelRow], work: Work) -> list[KernelRow]:
    """Operations are known of a whole call: of its only kernel, or of the sum of several."""
    if len(rows) == 1:
        return [_rate(rows[0], work)]
    if not rows:
        return []
    durations = [row.duration_us for row in rows]
    whole = KernelRow(
        rows[0].case, rows[0].configuration, f"{len(rows)} kernels", SUM,
        duration_us=sum(d for d in durations if d is not None) if None not in durations else None,
        cycles=sum(row.cycles or 0 for row in rows) or None,
        bank_conflicts=sum(row.bank_conflicts or 0 for row in rows),
    )  # fmt: skip
    return [*rows, _rate(whole, work)]


def _rate(row: KernelRow, work: Work) -> KernelRow:
    if not row.duration_us:
        return row
    products = sum(product.flops for product in work.products)
    per_us = 1e-6 / row.duration_us
    return KernelRow(
        **{**asdict(row), "tflops": work.all_flops * per_us, "product_tflops": products * per_us if products else None}
    )


def shown(row: KernelRow) -> tuple[str, ...]:
    """A row's cells for a person."""
    return tuple(_cell(name, value) for name, value in asdict(row).items())


def _cell(name: str, value: object) -> str:
    if not isinstance(value, float | int):
        return str(value or "")
    if name in SHARES:
        return f"{value:.0%}"
    return f"{value:.0f}" if name in ("cycles", "registers", "bank_conflicts") else f"{value:.4g}"


def written(rows: Sequence[KernelRow]) -> list[list[object]]:
    """The lines of a CSV file: field names, then the plain numbers."""
    return [[f.name for f in fields(KernelRow)], *(list(asdict(row).values()) for row in rows)]

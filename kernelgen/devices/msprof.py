"""What Ascend's profilers write: torch-npu's kernel_details.csv, msprof's op_summary and op files.

torch-npu's op_statistic.csv is not read: it has the means of what kernel_details.csv has run by run.

Times are microseconds in every file, ratios 0 to 1, bandwidths GB/s. The traps: a comma at the end of every line, `NA`
and `N/A`, tabs around start times, columns that were renamed, and files that hold more kernels than the one meant.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME_LENGTH = 49
"""The compiler keeps so many characters of a kernel's name, the last ones."""

UNITS = {
    "cube": ("aic_mac_ratio", "aic_cube_ratio"),
    "vector": ("aiv_vec_ratio",),
    "scalar": ("aiv_scalar_ratio", "aic_scalar_ratio"),
    "mte1": ("aic_mte1_ratio",),
    "mte2": ("aiv_mte2_ratio", "aic_mte2_ratio"),
    "mte3": ("aiv_mte3_ratio",),
}
"""The share of its time that each unit is busy, and the columns that say so. mte2 loads, mte3 stores."""
PARTS = {
    "aic_mac_ratio": ("aic_mac_fp16_ratio", "aic_mac_int8_ratio"),
    "aiv_vec_ratio": ("aiv_vec_fp32_ratio", "aiv_vec_fp16_ratio", "aiv_vec_int32_ratio", "aiv_vec_misc_ratio"),
}
"""Columns that a file with the shares of kinds of arithmetic has instead. A unit does little of two kinds at a time."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class KernelProfile:
    """One run of one kernel."""

    name: str
    core: str
    """AI_VECTOR_CORE, AI_CORE, MIX_AIC, HCCL …; "mix" and the like in msprof's op files."""
    duration_us: float
    block_dim: int
    """Programs that ran side by side; 0 where the file does not say."""
    busy: tuple[tuple[str, float], ...] = ()
    """The share of the time that each unit of UNITS worked, of those that the file knows."""
    read_gb_s: float | None = None
    """From main memory, all cores together."""
    write_gb_s: float | None = None

    def limit(self) -> str | None:
        """The unit that worked longest; None where the file does not say."""
        return max(self.busy, key=lambda unit: unit[1])[0] if self.busy else None


def kernels(text: str) -> tuple[KernelProfile, ...]:
    """The runs in kernel_details.csv or op_summary_*.csv, in the order of the file, those without a duration left out.

    Raises ValueError where the text is neither.
    """
    found = []
    for row in _rows(text, "Duration(us)", "Task Duration(us)"):
        duration = _number(row, "Duration(us)", "Task Duration(us)")
        name = row.get("Name") or row.get("Op Name") or ""
        if duration is not None and name:
            core = row.get("Accelerator Core") or row.get("Task Type") or ""
            found.append(KernelProfile(name, core, duration, _whole(row, "Block Dim", "Block Num"), _busy([row])))
    return tuple(found)


def op_files(folder: Path) -> KernelProfile:
    """The kernel that `msprof op` profiled into an OPPROF folder at or below `folder`: OpBasicInfo.csv, and what lies
    beside it. Of several runs the last is meant; their files have a time in their names.

    Ratios are means over the cores, each weighted by its time; bandwidths are sums. Raises ValueError where
    OpBasicInfo.csv is missing or empty.
    """
    found = sorted(folder.rglob("OpBasicInfo*.csv"))
    basics = _rows(_text(found[-1]), "Task Duration(us)") if found else []
    duration = _number(basics[0], "Task Duration(us)") if basics else None
    if duration is None:
        raise ValueError(f"{folder}: no OpBasicInfo.csv with a task duration")
    pipes = _beside(found[-1], "PipeUtilization")
    memory = _beside(found[-1], "Memory")
    return KernelProfile(
        basics[0].get("Op Name", ""), basics[0].get("Op Type", ""), duration,
        _whole(basics[0], "Block Dim", "Block Num"), _busy(pipes), _bandwidth(memory, "read"),
        _bandwidth(memory, "write"),
    )  # fmt: skip


def of_kernel(profiles: Sequence[KernelProfile], name: str) -> tuple[KernelProfile, ...]:
    """The runs of one kernel: a file holds every kernel that ran, the library's own among them."""
    return tuple(p for p in profiles if p.name in (name, name[-NAME_LENGTH:]))


def median_us(profiles: Sequence[KernelProfile], names: Sequence[str]) -> float:
    """Time of one call that runs all the kernels named: the sum of their medians.

    Raises ValueError where one has not run.
    """
    total = 0.0
    for name in names:
        times = sorted(p.duration_us for p in of_kernel(profiles, name))
        if not times:
            raise ValueError(f"the profile has no run of {name}")
        middle = len(times) // 2
        total += times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    return total


def _beside(basics: Path, kind: str) -> list[dict[str, str]]:
    """The rows of the file of another kind that was written with OpBasicInfo.csv; none where there is no such file."""
    path = basics.with_name(basics.name.replace("OpBasicInfo", kind))
    return _rows(_text(path), "block_id") if path.is_file() else []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


def _rows(text: str, *columns: str) -> list[dict[str, str]]:
    """The rows by column, blanks taken off both; raises ValueError where none of `columns` is there."""
    reader = csv.reader(io.StringIO(text))
    header = [cell.strip() for cell in next(reader, [])]
    if not set(columns) & set(header):
        raise ValueError(f"no column {' or '.join(columns)}: not the file that was expected")
    return [{h: c.strip() for h, c in zip(header, cells, strict=False) if h} for cells in reader if any(cells)]


def _number(row: Row, *names: str) -> float | None:
    """The first of the columns that holds a number."""
    for name in names:
        try:
            return float(row.get(name, ""))
        except ValueError:  # absent, NA or N/A
            continue
    return None


def _whole(row: Row, *names: str) -> int:
    return int(_number(row, *names) or 0)


def _busy(rows: Sequence[Row]) -> tuple[tuple[str, float], ...]:
    """The mean over rows of every unit's share, weighted by the time of the core that the row is of."""
    found = []
    for unit, columns in UNITS.items():
        shares = [(_share(row, column), _core_time(row, column)) for row in rows for column in columns]
        known = [(share, weight) for share, weight in shares if share is not None and weight > 0]
        if known:
            found.append((unit, sum(s * w for s, w in known) / sum(w for _, w in known)))
    return tuple(found)


def _share(row: Row, column: str) -> float | None:
    known = [_number(row, part) for part in ((column,) if column in row else PARTS.get(column, ()))]
    numbers = [share for share in known if share is not None]
    return min(sum(numbers), 1.0) if numbers else None


def _core_time(row: Row, column: str) -> float:
    """The time of the core that a column speaks of: a vector kernel has rows of zeros for the cube core."""
    names = ("aiv_time(us)",) if column.startswith("aiv") else ("aic_time(us)", "aicore_time(us)")
    return _number(row, *names) or 0.0


def _bandwidth(rows: Sequence[Row], way: str) -> float | None:
    """Main memory traffic of all cores, each in the column of its kind."""
    found = [_number(row, f"{core}_main_mem_{way}_bw(GB/s)") for row in rows for core in ("aic", "aiv")]
    known = [value for value in found if value is not None]
    return sum(known) if known else None

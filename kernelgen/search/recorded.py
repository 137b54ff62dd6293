"""A recorded space: every configuration with its time, from a CSV file that may be packed."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

from kernelgen.errors import UsageError
from kernelgen.search.points import Points, Value

TIME, COMPILE, REPETITIONS = "time_ms", "compile_s", "reps_ms"


@dataclass(frozen=True)
class Recorded:
    """A space that was measured exhaustively."""

    name: str
    points: Points
    times: tuple[float, ...]
    """Milliseconds; infinity: the configuration does not work."""
    repetitions: tuple[tuple[float, ...], ...]
    """The single ones of each configuration; its time alone where they were not recorded."""

    @property
    def best(self) -> float:
        return min(self.times)

    def time(self, point: int) -> float | None:
        """What a search is told."""
        return self.times[point] if math.isfinite(self.times[point]) else None


def read(path: Path) -> Recorded:
    """Columns: the axes, `time_ms`, and `compile_s` and `reps_ms` where recorded. Raises UsageError with the line."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8-sig")
    except OSError as error:  # what is packed badly is one as well
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError):
        raise UsageError(f"{path}: cannot be read: neither a CSV file nor a gzip file") from None
    lines = csv.reader(io.StringIO(text))
    head = next(lines, [])
    names = [name for name in head if name not in (TIME, COMPILE, REPETITIONS)]
    if TIME not in head:
        raise UsageError(f"{path}:1: has no column {TIME}; there are {', '.join(head) or 'none'}")
    if not names or len(set(head)) < len(head):
        raise UsageError(f"{path}:1: has {'a column twice' if names else 'no axis besides the times'}")
    rows, times, repetitions = [], [], []
    for line in lines:
        if len(line) != len(head):
            raise UsageError(f"{path}:{lines.line_num}: has {len(line)} columns, not {len(head)}")
        cells = dict(zip(head, line, strict=True))
        time = _number(path, lines.line_num, TIME, cells[TIME])
        single = cells.get(REPETITIONS, "").split()
        rows.append([_value(cells[name]) for name in names])
        times.append(time)
        repetitions.append(tuple(_number(path, lines.line_num, REPETITIONS, one) for one in single) or (time,))
    if not any(math.isfinite(time) for time in times):
        raise UsageError(f"{path}: no configuration has a time")
    if len({tuple(row) for row in rows}) < len(rows):
        raise UsageError(f"{path}: has a configuration twice")
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Recorded(name, Points.of_rows(names, rows), tuple(times), tuple(repetitions))


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise UsageError(f"{path}:{line}: {column} is {text!r}, not a time")
    return number


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

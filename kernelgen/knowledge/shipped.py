"""What is known to everybody: the rows that kernelgen ships, one file a device, and what they are made from."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelgen import journal
from kernelgen.errors import UsageError
from kernelgen.knowledge.rows import DTYPE, Row, of_records, of_run
from kernelgen.outcomes import Status
from kernelgen.plan import Scalar

FOLDER = Path(__file__).parent
ENDING = ".jsonl.gz"


def rows(device: str | None = None) -> list[Row]:
    """The shipped rows, of all devices or one."""
    found = (row for path in sorted(FOLDER.glob(f"*{ENDING}")) for row in of_file(path))
    return [row for row in found if device in (None, row.device)]


def of_path(path: Path) -> Iterator[Row]:
    """The rows of an exported file, of a file of measured first schedules (`docs/benchmarks/small.json`), of a packed
    journal, or of all journals below a folder. Raises UsageError with the line of what is none of these."""
    if path.is_dir():
        for run in sorted(path.rglob(journal.FILE)):
            yield from of_run(run.parent)
        for one in sorted(path.rglob(f"*{ENDING}")):
            yield from of_file(one)
    elif path.suffix == ".json":
        yield from _of_benchmarks(path)
    else:
        yield from of_file(path)


def of_file(path: Path) -> Iterator[Row]:
    """Rows as JSON lines, or those of a journal; packed or not. Raises UsageError with the line."""
    text = _text(path)
    if journal.is_kind(text.partition("\n")[0].encode(), "run"):
        yield from of_records(path.name.removesuffix(journal.PACKED), journal.parse(path, text.encode()))
        return
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            data = json.loads(line)
            row = Row.from_json(data) if isinstance(data, dict) else None
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not a row of measurements: {error}; nothing was imported") from None
        if row is None:
            raise UsageError(f"{path}:{number}: not a row of measurements; nothing was imported")
        yield row


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError):
        raise UsageError(
            f"{path}: cannot be read: neither JSON lines nor a compressed file; nothing was imported"
        ) from None


def packed(found: Iterable[Row]) -> bytes:
    """Rows as packed JSON lines, each once: the same bytes for the same rows."""
    rows_by_key = {(row.run, row.seq, row.case): row for row in found}
    lines = "".join(json.dumps(row.to_json(), sort_keys=True) + "\n" for _, row in sorted(rows_by_key.items()))
    return gzip.compress(lines.encode(), mtime=0)


def keep(run: Path, folder: Path) -> Path | None:
    """Keep a run's journal, packed, in a folder of its operator in `folder`; None: it measured nothing. Raises
    UsageError where it cannot be written."""
    records = journal.read(run)
    if next(of_records(run.name, records), None) is None:
        return None
    path = folder / run.parent.name / f"{run.name}{journal.PACKED}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(journal.packed(run))
        new.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def file_of(device: str) -> Path:
    """Where the rows of a device are shipped."""
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}{ENDING}"


def _of_benchmarks(path: Path) -> Iterator[Row]:
    """First schedules with their times. Spec, source, version, round and strategy are not in such a file: they stay
    empty."""
    try:
        data = json.loads(_text(path))
        made = {name: str(data[name]) for name in ("device", "torch", "triton", "date")}
        listed = [one for one in data["rows"] if one.get("schedules")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(f"{path}: has no rows with schedules; nothing was imported") from None
    if not listed:
        raise UsageError(f"{path}: its rows have no schedules; nothing was imported")
    seq = 0
    for one in listed:
        times: dict[str, float] = {}
        for name, schedule in one["schedules"].items():
            if name in one["us"]:
                times.setdefault(schedule, one["us"][name])
        for schedule, time_us in times.items():
            seq += 1
            yield _of_benchmark(path.name, seq, one, schedule, time_us, made)


def _of_benchmark(
    name: str, seq: int, one: Mapping[str, Any], schedule: str, time_us: float, made: Mapping[str, str]
) -> Row:
    variant, *values = schedule.split(" ")
    pairs = (value.partition("=") for value in values)
    return Row(
        run=f"{name} {made['date']}", seq=seq, round=0, operator=one["operator"], family=one["family"], spec="",
        source="", variant=variant, schedule=json.dumps({n: _value(text) for n, _, text in pairs}, sort_keys=True),
        case=one["case"], dtype=" ".join(dict.fromkeys(DTYPE.findall(one["case"]))), device=made["device"],
        torch=made["torch"], triton=made["triton"], version="", time_us=time_us, speedup=None, low=None, high=None,
        status=str(Status.OK), bottleneck="", strategy="", kept=False,
    )  # fmt: skip


def _value(text: str) -> Scalar:
    """A schedule's value from how it is printed."""
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.lstrip("-").isdigit() else text

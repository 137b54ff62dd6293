"""The append-only record of a run: one checksummed JSON line a step, and every candidate's source by its hash.

A step is recorded once its line is on the disk. A line that power loss or a kill cut short was never
acknowledged to anybody, so opening the journal drops it; a bad line anywhere else is damage and is reported.
Figures that are not finite are written as Python's json does (NaN, Infinity).
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelgen.errors import KernelgenError, UsageError
from kernelgen.files import read_text, sync, write_atomic

FILE = "journal.jsonl"
PACKED = ".jsonl.gz"
"""The ending of a packed journal, after the name of its run."""
LOOKS = 5


class JournalError(KernelgenError):
    """A journal whose middle was damaged; nothing built on it could be believed."""


class LockedError(UsageError):
    """Another process is optimising the same operator."""


@dataclass(frozen=True)
class Record:
    """One step of a run."""

    seq: int
    kind: str
    time: str
    """UTC, ISO 8601."""
    data: dict[str, Any]

    def line(self) -> bytes:
        """The record as it stands in the file, its checksum over the canonical JSON of the rest."""
        fields = {"seq": self.seq, "kind": self.kind, "time": self.time, "data": self.data}
        return (_canonical({**fields, "crc": zlib.crc32(_canonical(fields).encode())}) + "\n").encode()


class Journal:
    """The journal of one run folder. Built by `Journal.open`."""

    def __init__(self, folder: Path, handle: int, records: list[Record]) -> None:
        self.folder = folder
        self._handle = handle
        self._records = records

    @classmethod
    def open(cls, folder: Path) -> Journal:
        """Open for appending, after dropping a torn last line; raises JournalError for damage before it."""
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"{folder}: cannot write here: {error.strerror}") from None
        try:
            content = _content(path)
            records, good = _parse(path, content)
            if good < len(content):
                os.ftruncate(handle, good)
                os.fsync(handle)
            sync(folder)
        except BaseException:
            os.close(handle)
            raise
        return cls(folder, handle, records)

    def append(self, kind: str, data: dict[str, Any]) -> Record:
        """Record one step; when this returns the step is on the disk. `data` must be plain JSON data."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        # What a resumed run would read is what this run works with: tuples are lists from here on.
        record = Record(len(self._records) + 1, kind, now, json.loads(_canonical(data)))
        self._write(record.line(), [record])
        return record

    def extend(self, start: int, lines: bytes) -> tuple[Record, ...]:
        """Append whole lines that another machine recorded, which begin at byte `start` of its journal.

        Raises JournalError where they do not continue this journal: nothing is then written, so that no step is
        recorded twice and none is left out.
        """
        records: list[Record] = []
        for line in lines.splitlines(keepends=True):
            record = _record(line, len(self._records) + len(records) + 1)
            if record is None:
                raise JournalError(f"{self.folder / FILE}: lines that came for it do not continue it")
            records.append(record)
        if start != os.fstat(self._handle).st_size:
            raise JournalError(f"{self.folder / FILE}: lines that came for it begin elsewhere than it ends")
        self._write(lines, records)
        return tuple(records)

    def _write(self, lines: bytes, records: list[Record]) -> None:
        size, known = os.fstat(self._handle).st_size, len(self._records)
        try:
            if os.write(self._handle, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
            self._records += records
        except BaseException as error:
            # Ctrl-C may come at any point: the file must not have what this process does not know of.
            if len(self._records) == known:
                os.ftruncate(self._handle, size)
            if isinstance(error, OSError):
                raise UsageError(f"{self.folder / FILE}: cannot write: {error.strerror}") from None
            raise

    def records(self, *kinds: str) -> tuple[Record, ...]:
        """Every record, or those of some kinds, in order."""
        return tuple(r for r in self._records if not kinds or r.kind in kinds)

    def store(self, source: str) -> str:
        """Keep a candidate's source; returns its hash."""
        name = source_hash(source)
        path = self.candidates / f"{name}.py"
        if read_text(path) != source:
            write_atomic(path, source)
        return name

    def source(self, name: str) -> str:
        """The source stored under a hash; raises JournalError where it is missing or no longer what it was."""
        return source(self.folder, name)

    @property
    def candidates(self) -> Path:
        """The folder of the candidates' sources."""
        return self.folder / "candidates"

    def close(self) -> None:
        os.close(self._handle)


def read(folder: Path) -> tuple[Record, ...]:
    """The records of a run without opening it for writing; a torn last line is left out."""
    path = folder / FILE
    return parse(path, _content(path))


def packed(folder: Path) -> bytes:
    """A run's journal, packed: the same bytes for the same records."""
    return gzip.compress(whole_lines(folder), mtime=0)


def read_packed(path: Path) -> tuple[Record, ...]:
    """The records of a packed journal; raises JournalError where it is none."""
    try:
        return parse(path, gzip.decompress(_content(path)))
    except (OSError, EOFError, zlib.error):
        raise JournalError(f"{path}: cannot be read: no packed journal") from None


def parse(path: Path, content: bytes) -> tuple[Record, ...]:
    """The records in the unpacked content of a journal's file, which errors name; a torn last line is left out."""
    return tuple(_parse(path, content)[0])


def source(folder: Path, name: str) -> str:
    """The source that a run stored under a hash; raises JournalError where it is missing or no longer what it was."""
    path = folder / "candidates" / f"{name}.py"
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if source_hash(text) != name:
        raise JournalError(f"{path}: was changed after it was stored")
    return text


def is_kind(line: bytes, kind: str) -> bool:
    """Whether a line of a journal is a record of a kind."""
    try:
        return bool(json.loads(line)["kind"] == kind)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def whole_lines(folder: Path) -> bytes:
    """The lines of a run's journal as they are in the file; a torn last line is left out."""
    content = _content(folder / FILE)
    return content[: _parse(folder / FILE, content)[1]]


def runs(folder: Path) -> tuple[Path, ...]:
    """The run folders of an operator, oldest first."""
    return tuple(sorted(path.parent for path in folder.glob(f"*/{FILE}")))


def unfinished(folder: Path, key: str) -> Path | None:
    """The newest run of an operator with this resume key that has no `finished` record."""
    for run in reversed(runs(folder)):
        if _key(run / FILE) == key:
            return None if any(r.kind == "finished" for r in read(run)) else run
    return None


def run_name(key: str) -> str:
    """A new run's folder name: when it began, and a short hash that keeps two of one second apart."""
    now = datetime.now(UTC)
    digest = source_hash(f"{key} {now.isoformat()} {os.getpid()}")
    return f"{now:%Y%m%d-%H%M%S}-{digest[:6]}"


def resume_key(**parts: Any) -> str:
    """A hash of all that must be the same for a run to go on where another stopped."""
    return source_hash(_canonical(parts))


def source_hash(text: str) -> str:
    """The first 16 hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an operator's lock; raises LockedError naming the process that has it. A dead process holds nothing."""
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write here: {error.strerror}") from None
    try:
        try:
            _lock(handle)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise LockedError(f"{folder.name} is being optimised by another process (pid {holder})") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Raises BlockingIOError where another process has the lock for longer than `is_locked` takes to look."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Whether a process optimises the operator now."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(path: Path, content: bytes) -> tuple[list[Record], int]:
    """The records, and the length of the part of the file that holds them."""
    records: list[Record] = []
    good = 0
    lines = io.BytesIO(content).readlines()
    for number, line in enumerate(lines, start=1):
        record = _record(line, number)
        if record is None:
            if number < len(lines):
                raise _damaged(path, number)
            break
        records.append(record)
        good += len(line)
    return records, good


def _damaged(path: Path, line: int) -> JournalError:
    return JournalError(f"{path}:{line}: damaged record; move the run's folder away to start a new run")


def _record(line: bytes, seq: int) -> Record | None:
    """The record of a line; None where it is not whole."""
    try:
        data = json.loads(line.decode())
        record = Record(data["seq"], data["kind"], data["time"], data["data"])
        whole = record.seq == seq and isinstance(record.data, dict) and record.line() == line
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if whole else None


def _key(path: Path) -> str | None:
    """The resume key in a journal's first record, which opens every run."""
    try:
        with path.open("rb") as file:
            first, more = _record(file.readline(), 1), file.read(1)
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
    if first is None and more:  # whose run it is cannot be said, so none may be begun in its place
        raise _damaged(path, 1)
    return first.data.get("key") if first and first.kind == "run" else None

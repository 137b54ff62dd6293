"""A job's files: gathered for its worker, looked at there while they change, and written on the collecting machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from kernelgen.errors import UsageError
from kernelgen.files import write_all
from kernelgen.fleet.model import Job, Shipment, Tree
from kernelgen.journal import FILE, Journal, JournalError, Record, is_kind, locked, read, whole_lines

UNSENT = ("lock", "__pycache__")
"""Names that say nothing on another machine, beside those that begin with a dot."""


class ShipmentError(Exception):
    """A worker sent what its job may not write, or what does not continue what is here."""


def gather(job: Job, base: Path) -> tuple[tuple[str, bytes], ...]:
    """The files that a job's worker needs, as they are now, by their path there: those below `base`, or else here."""
    found: dict[str, bytes] = {}
    for tree in job.inputs:
        here = base / tree.here if (base / tree.here).exists() else tree.here
        if here.is_file():
            found[tree.there] = _bytes(here)
        for path in _below(here):
            if path.parent.name != "candidates" or _goes_on(path.parent.parent):
                found[f"{tree.there}/{path.relative_to(here).as_posix()}"] = _bytes(path)
    return tuple(found.items())


def _bytes(path: Path) -> bytes:
    if path.name == FILE:
        return whole_lines(path.parent)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder that are sent."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and not any(part in UNSENT or part.startswith(".") for part in inside):
            yield path


def _goes_on(run: Path) -> bool:
    """Whether a run may be gone on with, for which its candidates are needed; other folders have what they have."""
    return not (run / FILE).is_file() or not any(record.kind == "finished" for record in read(run))


class Watched:
    """A worker's side: what has changed below its folder since the last look."""

    def __init__(self, root: Path, outputs: Sequence[Tree], inputs: Sequence[tuple[str, bytes]]) -> None:
        self._root, self._outputs = root, tuple(outputs)
        self._sent = dict(inputs)
        self._sizes = {path: len(content) for path, content in inputs if PurePosixPath(path).name == FILE}
        self._looked: dict[str, tuple[int, int]] = {}

    def changes(self, ended: bool = False) -> Shipment | None:
        """What is new; None where nothing is.

        Kernels are read before the journals that tell of them, and candidates after these: what is sent together is
        never a kernel of which no record speaks. That a run is finished is sent when its command has `ended`, with
        all that it wrote: an operator whose worker dies before that is gone on with, and not begun anew.
        """
        paths = [path for out in self._outputs for path in self._files(out)]
        journals = [path for path in paths if path.name == FILE]
        kernels = self._whole(path for path in paths if path.name != FILE and path.parent.name != "candidates")
        lines = [line for path in journals for line in self._lines(path, ended)]
        candidates = self._whole(path for journal in journals for path in _below(journal.parent / "candidates"))
        if not (kernels or lines or candidates):
            return None
        return Shipment((*candidates, *kernels), tuple(lines))

    def has_round(self) -> bool:
        """Whether a round was finished that has not been sent."""
        journals = (path for out in self._outputs for path in self._files(out) if path.name == FILE)
        return any(is_kind(line, "round") for path in journals for line in self._new(path))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _files(self, out: Tree) -> Iterator[Path]:
        folder = self._root / out.there
        return (path for path in _below(folder) if path != folder / out.without)

    def _whole(self, paths: Iterable[Path]) -> list[tuple[str, bytes]]:
        found = []
        for path in paths:
            name = self._name(path)
            try:
                stat = path.stat()
                if self._looked.get(name) == (stat.st_mtime_ns, stat.st_size):
                    continue
                content = path.read_bytes()
            except FileNotFoundError:  # replaced this moment
                continue
            self._looked[name] = (stat.st_mtime_ns, stat.st_size)
            if self._sent.get(name) != content:
                self._sent[name] = content
                found.append((name, content))
        return found

    def _lines(self, path: Path, ended: bool) -> list[tuple[str, int, bytes]]:
        name = self._name(path)
        start = self._sizes.get(name, 0)
        whole = b"".join(line for line in self._new(path) if ended or not is_kind(line, "finished"))
        self._sizes[name] = start + len(whole)
        return [(name, start, whole)] if whole else []

    def _new(self, path: Path) -> list[bytes]:
        """The whole lines of a journal that have not been sent."""
        with path.open("rb") as file:
            file.seek(self._sizes.get(self._name(path), 0))
            return [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]


def unpack(root: Path, files: Sequence[tuple[str, bytes]]) -> None:
    """Lay a job's files out below a worker's folder."""
    for name, content in files:
        path = root / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ShipmentError(f"{name!r} is no file of a job's folder")
    return path


class Collector:
    """The collecting machine's side of one running job: holds the operator's lock, and its journals open."""

    def __init__(self, job: Job, base: Path) -> None:
        """What the job writes comes to lie below `base`."""
        self._job, self._base = job, base
        self._held = ExitStack()
        self._journals: dict[Path, Journal] = {}
        if job.logs is not None:
            self._held.enter_context(locked(base / job.logs))

    def write(self, shipment: Shipment) -> tuple[Record, ...]:
        """Write what came, and return the records that are new: candidates first, then journals, then kernels.

        Raises ShipmentError for what is not this job's or does not continue what is here, and UsageError where this
        machine cannot write.
        """
        files = [(self._place(name), content.decode("utf-8", "surrogateescape")) for name, content in shipment.files]
        lines = [(self._place(name), start, content) for name, start, content in shipment.lines]
        candidates = [(path, text) for path, text in files if path.parent.name == "candidates"]
        write_all(candidates)
        records = tuple(record for one in lines for record in self._append(*one))
        write_all([one for one in files if one not in candidates])
        return records

    @property
    def runs(self) -> tuple[Path, ...]:
        """The folders of the runs that were written to."""
        return tuple(path.parent for path in self._journals)

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()
        self._held.close()

    def _append(self, path: Path, start: int, lines: bytes) -> tuple[Record, ...]:
        journal = self._journals.get(path)
        if journal is None:
            journal = self._journals[path] = Journal.open(path.parent)
        try:
            return journal.extend(start, lines)
        except JournalError as error:
            raise ShipmentError(str(error)) from None

    def _place(self, name: str) -> Path:
        """Where a file of the worker's belongs here; nowhere but below what the job may write."""
        path = _inside(name)
        for tree in self._job.outputs:
            if path.is_relative_to(tree.there):
                return self._base / tree.here / path.relative_to(tree.there)
        raise ShipmentError(f"{name} is not this job's to write")

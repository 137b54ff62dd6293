"""`optimization_log.md`: a head that is remade after each round, and below it a section a round, never rewritten.

The file is replaced whole (a temporary file, renamed), so no reader and no kill ever meets half a section. What stands
between an operator's head markers is ours; everything else, a reader's notes too, stays byte for byte.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from kernelgen.errors import UsageError
from kernelgen.files import write_atomic
from kernelgen.language import Language, translate

FILE = "optimization_log.md"
SECTION, HEAD = "optimization_log.md.jinja", "optimization_head.md.jinja"

FORM = 2
"""Of the entries in a journal: a run that was begun in another form is not gone on with."""


class CaseRow(TypedDict):
    """One case before and after; every figure as it is shown."""

    case: str
    before: str
    after: str
    ratio: str
    verdict: str


class TriedRow(TypedDict):
    """One candidate of the search."""

    what: str
    expected: str
    outcome: str


class RoundRow(TypedDict):
    """A round's line in the head."""

    strategy: str
    change: str
    previous: str
    """The speedup over the kernel before it."""
    result: str
    """kept, no change, or what became of the start."""


class Standing(TypedDict):
    """The kernel that is current after a round."""

    version: str
    speedup: str
    """Over eager and torch.compile, with intervals."""
    roofline: str
    """Its share of the roofline over the cases; empty where none is known."""
    targets: list[tuple[str, str]]
    """Each in words, and reached, missed or unknown."""
    schedules: dict[str, dict[str, Any]]
    """What serves each case, by its label: a schedule as JSON."""


class Entry(TypedDict):
    """One section, as plain data: it is part of the journal's `round` record, so the section can be written again."""

    operator: str
    run: str
    section: str
    """The round's number; `end` for the closing lines of a run."""
    title: str
    source: str
    """measured or predicted: what every figure here is."""
    headline: str
    row: RoundRow | None
    standing: Standing | None
    points: list[tuple[str, str]]
    """What is said in a line each: problem, idea, expected, change, result."""
    profile: list[tuple[str, str, str]]
    """Name, value and where it is from; empty where it is what an earlier round shows."""
    diff: str
    cases: list[CaseRow]
    columns: tuple[str, str, str]
    """What before, after and ratio are called above the cases."""
    tried: list[TriedRow]
    tried_title: str
    failed: list[str]
    next: list[str]
    made: str
    """Hashes, seconds, cost; of the start also the machine."""


def update(
    path: Path, head: Mapping[str, Any] | None, entries: Sequence[Mapping[str, Any]], language: Language = "en"
) -> int:
    """Add the sections that are not there yet and put the head in its place; returns how many sections were added."""
    with _locked(path.parent):
        before = _present(path)
        missing = [entry for entry in entries if marker(entry["run"], entry["section"]) not in before]
        text = before
        for entry in missing:
            joint = "" if text.endswith("\n\n") or not text else "\n" if text.endswith("\n") else "\n\n"
            text += f"{joint}{translate(section_text(entry), language)}\n{marker(entry['run'], entry['section'])}"
        if head is not None:
            text = _with_head(text, head["operator"], translate(head_text(head), language))
        if text != before:
            write_atomic(path, text)
        return len(missing)


def marker(run: str, section: str) -> str:
    """The line that ends a whole section."""
    return f"<!-- round {run}/{section} -->\n"


def head_markers(operator: str) -> tuple[str, str]:
    """The lines around an operator's head."""
    return f"<!-- head {operator}: remade after each round -->\n", f"<!-- end of head {operator} -->\n"


def section_text(entry: Mapping[str, Any]) -> str:
    """The section without its marker."""
    return _render(SECTION, entry)


def head_text(head: Mapping[str, Any]) -> str:
    """The head with its markers."""
    first, last = head_markers(head["operator"])
    return f"{first}{_render(HEAD, head)}\n{last}"


def cell(text: str) -> str:
    """Text that cannot break out of a table's cell."""
    return " ".join(text.replace("|", "\\|").split())


def _render(template: str, values: Mapping[str, Any]) -> str:
    from kernelgen.render import environment

    return environment().get_template(template).render(**values).rstrip("\n") + "\n"


def _with_head(text: str, operator: str, head: str) -> str:
    """The log with this head in place of the operator's old one, or above everything where it has none."""
    first, last = head_markers(operator)
    begin = text.find(first)
    end = text.find(last, begin)
    if begin < 0 or end < 0:
        return f"{head}\n{text}" if text else head
    return text[:begin] + head + text[end + len(last) :]


def _present(path: Path) -> str:
    """The log so far, every byte of it: line ends and what is no UTF-8 are somebody else's."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Operators may share a folder, and so a log: one writer at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write here: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

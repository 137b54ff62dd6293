"""`optimization_log.md`: what each round did, for a reviewer. Appended to, never rewritten.

Every section is written with one write and one fsync and ends in a marker, so a section that a kill or a power
loss cut short is recognised by its missing marker, said to be cut, and written again in full.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from kernelgen.errors import UsageError

FILE = "optimization_log.md"
TEMPLATE = "optimization_log.md.jinja"

MARKER = re.compile(r"^<!-- round \S+/\S+ -->\n", re.MULTILINE)
HEADING = re.compile(r"^## \S+ · ", re.MULTILINE)


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
    summary: list[tuple[str, str]]
    bottleneck: str
    evidence: list[tuple[str, str, str]]
    """Name, value and where it is from."""
    modification: list[tuple[str, str]]
    diff: str
    tried: list[TriedRow]
    cases: list[CaseRow]
    columns: tuple[str, str, str]
    """What before, after and ratio are called above the cases."""
    result: list[tuple[str, str]]
    worked: list[str]
    failed: list[str]
    next: list[str]
    provenance: list[tuple[str, str]]
    """What made the figures and what they cost: shown below the summary, in its table."""


def append(path: Path, entry: Mapping[str, Any]) -> bool:
    """Add a section unless it is there already; returns whether it was added."""
    mark = marker(entry["run"], entry["section"])
    section = f"{section_text(entry)}\n{mark}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise UsageError(f"{path}: cannot write here: {error.strerror}") from None
    try:
        # Operators may share a folder, and so a log.
        fcntl.flock(handle, fcntl.LOCK_EX)
        text = path.read_text(encoding="utf-8", errors="replace")
        if mark in text:
            return False
        data = (_joint(text) + section).encode()
        if os.write(handle, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror}") from None
    finally:
        os.close(handle)
    return True


def marker(run: str, section: str) -> str:
    """The line that ends a whole section."""
    return f"<!-- round {run}/{section} -->\n"


def section_text(entry: Mapping[str, Any]) -> str:
    """The section without its marker."""
    from kernelgen.render import environment

    return environment().get_template(TEMPLATE).render(**entry).rstrip("\n") + "\n"


def cell(text: str) -> str:
    """Text that cannot break out of a table's cell."""
    return " ".join(text.replace("|", "\\|").split())


def _joint(text: str) -> str:
    """What goes between the log so far and the next section: a title, a blank line, or the repair of a cut."""
    if not text:
        return "# Optimization log\n\nAppended by `kernelgen optimize`, one section a round.\n\n"
    ends = [match.end() for match in MARKER.finditer(text)]
    tail = text[ends[-1] if ends else 0 :]
    last = tail.rpartition("\n")[2]
    # A whole section has its marker; what a reader wrote below one has no heading of ours.
    if not HEADING.search(tail) and not last.startswith("#"):
        return "\n\n" if last else "\n"
    closing = "\n" if not tail.endswith("\n") else ""
    if tail.rfind("<!--") > tail.rfind("-->"):
        closing += "-->\n"
    if len(re.findall(r"^```", tail, re.MULTILINE)) % 2:
        closing += "```\n"
    return f"{closing}\n**The section above was cut off while it was written; it follows in full.**\n\n"

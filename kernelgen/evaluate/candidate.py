"""A candidate: one rendered kernel file, and where its text is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelgen.files import write_atomic
from kernelgen.plan import Schedule
from kernelgen.spec.model import Case


@dataclass(frozen=True)
class Candidate:
    """One version of a quartet's kernel."""

    source: str
    """The whole text of its `_triton.py`."""
    source_hash: str
    row: int
    """The row of the plan's table whose schedule was changed."""
    schedule: Schedule
    cases: tuple[Case, ...]
    """The cases it is meant to change."""
    what: str
    """What was changed, for the log."""


def source_hash(source: str) -> str:
    """SHA-256 of a candidate's text, first 16 hex digits: its name in the store and the journal."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def keep(candidate: Candidate, stores: Sequence[Path]) -> Path:
    """The candidate's file in the first of some folders; each has it then."""
    paths = [store / f"{candidate.source_hash}.py" for store in stores]
    for path in paths:
        if not path.exists():
            write_atomic(path, candidate.source)
    return paths[0]

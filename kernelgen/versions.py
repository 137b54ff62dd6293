"""The versions of an operator's kernel that its journals have: `v2.1` is what the second run had kept first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen import journal
from kernelgen.errors import UsageError
from kernelgen.plan import TableRow


@dataclass(frozen=True)
class Version:
    """One kernel that was current after a round."""

    name: str
    run: Path
    """The folder of its run."""
    hash: str
    table: tuple[TableRow, ...]
    spec: str
    """SHA-256 of the spec that it was made from."""
    headline: str
    """Speedup and share of roofline, as the log had them."""
    time: str
    """When its round ended: UTC, ISO 8601."""

    def text(self) -> str:
        """Its `_triton.py`. Raises JournalError where that is no longer what it was."""
        return journal.source(self.run, self.hash)


def versions(logs: Path) -> tuple[Version, ...]:
    """Every version that the runs in an operator's folder of logs have, the oldest first."""
    found = []
    for run in journal.runs(logs):
        records = journal.read(run)
        begun = next((r.data for r in records if r.kind == "run"), None)
        kept = [r for r in records if r.kind == "round" and r.data["kept"]]
        for number, record in enumerate(kept if begun else ()):
            assert begun is not None
            table = tuple(TableRow.from_json(row) for row in record.data["current"])
            name = f"v{begun['ordinal']}.{number}"
            found.append(
                Version(name, run, record.data["hash"], table, begun["spec"], _headline(record.data), record.time)
            )
    return tuple(found)


def version(operator: str, name: str, logs: Path) -> Version:
    """One version by its name, such as `v1.2`. Raises UsageError with what there is."""
    known = versions(logs)
    for one in known:
        if one.name == name:
            return one
    if not known:
        raise UsageError(f"{operator} has no versions yet; `kernelgen optimize {operator}` creates one")
    raise UsageError(f"{operator} has no version {name}; there is {', '.join(one.name for one in known)}")


def _headline(data: dict[str, Any]) -> str:
    """What the log's head said; empty for one of the old form."""
    standing = data["entry"].get("standing")
    return "; ".join(filter(None, (standing["speedup"], standing["roofline"]))) if standing else ""

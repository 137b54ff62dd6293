"""The store: one table of rows in a sqlite file. Whatever is wrong with it is one line, and no run needs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from kernelgen.errors import UsageError
from kernelgen.knowledge.rows import Row

SCHEMA = 1
"""The newest form of the table that this code knows; `user_version` of the file has the form that it is in."""
_TYPES = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "bool": "INTEGER NOT NULL", "float | None": "REAL"}
_COLUMNS = tuple(field.name for field in fields(Row))
_MAKE = (
    "CREATE TABLE IF NOT EXISTS measurement ("
    + ", ".join(f'"{field.name}" {_TYPES[str(field.type)]}' for field in fields(Row))
    + ', PRIMARY KEY (run, seq, "case")) WITHOUT ROWID'
)
WAIT_S = 10.0
"""Another process that writes is waited for so long."""


class Store:
    """Rows by run, record and case. Every method opens the file anew; a store that is not there is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, rows: Iterable[Row]) -> int:
        """How many were new."""
        with self._open(write=True) as opened:
            before = opened.total_changes
            marks = ", ".join("?" * len(_COLUMNS))
            opened.executemany(f"INSERT OR IGNORE INTO measurement VALUES ({marks})", map(astuple, rows))
            return opened.total_changes - before

    def rows(self, operator: str | None = None, device: str | None = None) -> list[Row]:
        """All, or those of an operator or a device, in the order of runs."""
        if not self.path.is_file():
            return []
        names = ", ".join(f'"{name}"' for name in _COLUMNS)
        query = f"SELECT {names} FROM measurement WHERE operator = coalesce(?, operator)"
        with self._open(write=False) as opened:
            found = opened.execute(
                f'{query} AND device = coalesce(?, device) ORDER BY run, seq, "case"', (operator, device)
            )
            return [Row(**{**dict(zip(_COLUMNS, line, strict=True)), "kept": bool(line[-1])}) for line in found]

    def forget(self, operator: str | None = None, device: str | None = None) -> int:
        """How many rows were taken out."""
        if not self.path.is_file():
            return 0
        query = "DELETE FROM measurement WHERE operator = coalesce(?, operator) AND device = coalesce(?, device)"
        with self._open(write=True) as opened:
            return opened.execute(query, (operator, device)).rowcount

    @contextmanager
    def _open(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept if nothing is raised. Raises UsageError for a file that is no store, of a
        newer form, or that may not be written."""
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            mode = "rwc" if write else "ro"
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", WAIT_S, uri=True)) as opened:
                form = opened.execute("PRAGMA user_version").fetchone()[0]
                if form > SCHEMA:
                    newer = f"written by a newer kernelgen (format {form}; this version reads {SCHEMA})"
                    raise UsageError(f"{self.path}: {newer}; nothing was changed")
                with opened:
                    if write and form < SCHEMA:
                        opened.execute(_MAKE)
                        opened.execute(f"PRAGMA user_version = {SCHEMA}")
                    if form or write:
                        yield opened
                    else:
                        raise UsageError(f"{self.path}: is not a store of measurements; nothing was changed")
        except sqlite3.Error as error:
            raise UsageError(f"{self.path}: {_why(error)}; nothing was changed") from None
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}") from None


def _why(error: sqlite3.Error) -> str:
    text = str(error)
    if "readonly" in text:
        return "may not be written"
    if "not a database" in text or "malformed" in text:
        return f"is damaged or not a store of measurements ({text}): move it away to start a new one"
    return f"cannot be used: {text}"

"""From other people's Python to a spec. The file is run in a process of its own, with a time limit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelgen.errors import KernelgenError, Mistake, SpecError, UsageError
from kernelgen.importer.isolated import run_isolated
from kernelgen.importer.source import read
from kernelgen.importer.write import Imported

LIMIT_S = 60.0

__all__ = ["LIMIT_S", "Imported", "import_file"]


def import_file(path: Path, name: str | None = None, function: str | None = None, limit_s: float = LIMIT_S) -> Imported:
    """The spec of a Python file. Raises SpecError or UsageError, one line, where there is none.

    Runs the file: its module or function and its example inputs are made, and the reference is held against it.
    """
    read(path)  # what no process is needed for
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"path": str(path), "name": name, "function": function}), "utf-8")
        command = [sys.executable, "-m", "kernelgen.importer.process", str(request), str(answer)]
        try:
            code = run_isolated(command, limit_s, sys.stderr.fileno())
        except subprocess.TimeoutExpired:
            raise SpecError([Mistake(str(path), 1, 1, f"the file was still running after {limit_s:g} s")]) from None
        if code != 0 or not answer.is_file():
            how = f"died: {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise SpecError([Mistake(str(path), 1, 1, f"the process that ran the file {how}")])
        said = _answered(answer, path)
    if "error" in said:
        raise _raised(said)
    return Imported(said["name"], said["text"], tuple(said["notes"]))


def _answered(answer: Path, path: Path) -> dict[str, Any]:
    """What the other process said. The user's file runs there, and may have written over it: SpecError then."""
    forms: tuple[dict[str, type], ...] = ({"name": str, "text": str, "notes": list}, {"error": str, "placed": bool})
    try:
        said = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or {key: type(value) for key, value in said.items()} not in forms:
        raise SpecError([Mistake(str(path), 1, 1, "the process that ran the file gave no answer")])
    return said


def _raised(said: dict[str, Any]) -> KernelgenError:
    """The error of the other process."""
    if not said["placed"]:
        return UsageError(said["error"])
    path, line, column, message = said["error"].split("\n")[0].split(":", 3)
    return SpecError([Mistake(path, int(line), int(column), message.strip())])

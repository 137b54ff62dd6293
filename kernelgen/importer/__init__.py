"""From other people's Python to a spec. The file is run in a process of its own, with a time limit."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelgen.errors import KernelgenError, Mistake, SpecError, UsageError
from kernelgen.importer.imported import Imported
from kernelgen.importer.isolated import run_forked, run_isolated
from kernelgen.importer.source import read

LIMIT_S = 60.0

_BOTH = ("torch.export", "torch._dynamo")
"""What takes the seconds: the trace of the file needs it, and that of the spec afterwards."""

__all__ = ["LIMIT_S", "Imported", "import_blocks", "import_file"]


def import_file(
    path: Path, name: str | None = None, function: str | None = None, limit_s: float = LIMIT_S, *, forks: bool = False
) -> Imported:
    """The spec of a Python file. Raises SpecError or UsageError, one line, where there is none.

    Runs the file: its module or function and its example inputs are made, and the reference is held against it.
    `forks`: in a fork of this process, see `run_forked`, which spares it 4 s of imports.
    """
    asked = {"path": str(path), "name": name, "function": function, "blocks": False}
    [made] = _asked(asked, path, limit_s, forks=forks)
    return made


def import_blocks(path: Path, limit_s: float = LIMIT_S) -> list[Imported]:
    """A spec for every kind of block that the file's module is made of; runs the file and raises as `import_file`."""
    return _asked({"path": str(path), "name": None, "function": None, "blocks": True}, path, limit_s)


def _asked(request_of: dict[str, Any], path: Path, limit_s: float, *, forks: bool = False) -> list[Imported]:
    """What the process that runs the file answers."""
    read(path)  # what no process is needed for
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps(request_of), "utf-8")
        command = [sys.executable, "-m", "kernelgen.importer.process", str(request), str(answer)]
        try:
            code = _forked(request, answer, limit_s) if forks else run_isolated(command, limit_s, sys.stderr.fileno())
        except subprocess.TimeoutExpired:
            raise SpecError([Mistake(str(path), 1, 1, f"the file was still running after {limit_s:g} s")]) from None
        if code != 0 or not answer.is_file():
            how = f"died: {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise SpecError([Mistake(str(path), 1, 1, f"the process that ran the file {how}")])
        said = _answered(answer, path)
    if "error" in said:
        raise _raised(said)
    return [Imported(spec["name"], spec["text"], tuple(spec["notes"])) for spec in said["specs"]]


def _forked(request: Path, answer: Path, limit_s: float) -> int:
    from kernelgen.importer import process

    for name in _BOTH:
        importlib.import_module(name)
    return run_forked(lambda: process.main(request, answer), limit_s)


def _answered(answer: Path, path: Path) -> dict[str, Any]:
    """What the other process said. The user's file runs there, and may have written over it: SpecError then."""
    form = {"name": str, "text": str, "notes": list}
    try:
        said = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        said = None
    known = isinstance(said, dict) and (
        _types(said) == {"error": str, "placed": bool}
        or (_types(said) == {"specs": list} and all(isinstance(s, dict) and _types(s) == form for s in said["specs"]))
    )
    if not isinstance(said, dict) or not known:
        raise SpecError([Mistake(str(path), 1, 1, "the process that ran the file gave no answer")])
    return said


def _types(said: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in said.items()}


def _raised(said: dict[str, Any]) -> KernelgenError:
    """The error of the other process."""
    if not said["placed"]:
        return UsageError(said["error"])
    path, line, column, message = said["error"].split("\n")[0].split(":", 3)
    return SpecError([Mistake(path, int(line), int(column), message.strip())])

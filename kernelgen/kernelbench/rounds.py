"""Rounds of optimisation of a problem's kernel: `kernelgen optimize` in a process of its own, as a person runs it,
which gets ready while other things are at work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Rounds = subprocess.Popen[str]


def begun(out: Path, operator: str, rounds: int, dtype: str) -> Rounds:
    """Rounds that wait: imported, traced, with processes that have made their contexts on the GPU.

    `out`: the folder that has the spec and, in `operators/`, the quartet.
    """
    wanted = ["optimize", f"{operator}.yaml", "--rounds", str(rounds), "--dtype", dtype, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "kernelgen.cli.held", *wanted],
        cwd=out, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def played(begun: Rounds) -> dict[str, Any]:
    """How many rounds were played and kept, what was said of each, and why there were no more."""
    said_of_rounds, errors = begun.communicate("\n")
    sys.stderr.write(errors)
    try:
        document = json.loads(said_of_rounds)
        made = document["rounds"][1:]  # the first is what was there before
    except (ValueError, KeyError):
        said = errors.strip().splitlines()
        return {"rounds": 0, "kept": 0, "reason": said[-1] if said else f"ended with exit code {begun.returncode}"}
    return {
        "rounds": len(made), "kept": sum(bool(one["kept"]) for one in made),
        "headlines": [str(one["headline"]) for one in made], "reason": str(document["reason"]),
    }  # fmt: skip


def left(begun: Rounds) -> None:
    """End rounds that nobody will play, and what they started."""
    begun.kill()
    begun.communicate()

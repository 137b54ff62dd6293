"""Rounds of optimisation of a problem's kernel: `kernelgen optimize` in a process of its own, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_COMMAND = "from kernelgen.cli import main; main()"


def played(out: Path, operator: str, rounds: int, dtype: str) -> dict[str, Any]:
    """How many rounds were played and kept, what was said of each, and why there were no more.

    `out`: the folder that has the spec and, in `operators/`, the quartet.
    """
    wanted = ["optimize", f"{operator}.yaml", "--rounds", str(rounds), "--dtype", dtype, "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", _COMMAND, *wanted],
        cwd=out, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    sys.stderr.write(ended.stderr)
    try:
        document = json.loads(ended.stdout)
        made = document["rounds"][1:]  # the first is what was there before
    except (ValueError, KeyError):
        said = ended.stderr.strip().splitlines()
        return {"rounds": 0, "kept": 0, "reason": said[-1] if said else f"ended with exit code {ended.returncode}"}
    return {
        "rounds": len(made), "kept": sum(bool(one["kept"]) for one in made),
        "headlines": [str(one["headline"]) for one in made], "reason": str(document["reason"]),
    }  # fmt: skip

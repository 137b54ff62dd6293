"""Running a module of kernelgen in a process of its own that cannot outlive its time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def run_isolated(
    command: Sequence[str], limit_s: float, output: int | IO[str], extra: Mapping[str, str] | None = None
) -> int:
    """The exit code of a process with `extra` variables, its output in `output`; negative where a signal ended it.

    Raises TimeoutExpired at the limit. Then, and where this process is interrupted, it is killed with all that it
    started.
    """
    process = start_isolated(command, output, extra, subprocess.DEVNULL)
    try:
        return process.wait(limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_isolated(
    command: Sequence[str],
    output: int | IO[str],
    extra: Mapping[str, str] | None = None,
    stdin: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which finds this package wherever it is run."""
    package = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{known}" if known else package, **(extra or {})}
    return subprocess.Popen(command, env=environment, stdin=stdin, stdout=output, stderr=output, start_new_session=True)

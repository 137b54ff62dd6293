"""Running a module of kernelgen in a process of its own that cannot outlive its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from kernelgen.lifeline import die_with_parent

_POLL_S = 0.01


def run_isolated(command: Sequence[str], limit_s: float, output: int | IO[str]) -> int:
    """The exit code of a process, its output in `output`; negative where a signal ended it.

    Raises TimeoutExpired at the limit. Then, and where this process is interrupted, it is killed with all that it
    started.
    """
    environment = with_this_package(os.environ)
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_forked(work: Callable[[], None], limit_s: float) -> int:
    """As `run_isolated`, of a function in a fork of this process, which has no other threads and has asked no GPU.

    What this process has imported is not imported again.
    """
    end, child = time.monotonic() + limit_s, start_forked(work)
    ended, status = 0, 0
    try:
        while not ended:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork", limit_s)
            time.sleep(0 if ended else _POLL_S)
    finally:
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def start_forked(work: Callable[[], None]) -> int:
    """The number of a fork of this process that does some work, and ends when this process does."""
    parent, child = os.getpid(), os.fork()
    if child == 0:
        end_with(work, parent)
    return child


def end_with(work: Callable[[], None], parent: int) -> NoReturn:
    """Do some work in a session of its own, and nothing of what the parent would do afterwards."""
    code = 1
    try:
        os.setsid()
        die_with_parent(parent)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process that finds this package wherever it is run."""
    package, known = str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{package}{os.pathsep}{known}" if known else package}

"""One job on its worker: its files laid out in a folder of its own, its command run there, what changes sent back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kernelgen.errors import NoDeviceError
from kernelgen.fleet.files import Watched, unpack
from kernelgen.fleet.model import Ended, Job, Shipment, Shipped

LOOK_S = 0.2
"""Between two looks at a command: whether it has ended, or finished a round, which is sent at once."""
SEND_S = 5.0
"""Between two shipments of anything else: the collecting machine writes each of them to its disk
(docs/scaling.md says how many it can take)."""
KEPT = 4000
"""Bytes of the end of stderr that are kept."""
CRASHED = 70
"""The exit code of a command that ended by a fault of its own (EX_SOFTWARE of sysexits.h)."""
GO_ON, STOP, KILL = 0, 1, 2
"""What a command is to do: go on, end as after Ctrl-C, or end at once."""
COMMAND = ("-m", "kernelgen.cli.job")
"""Runs one command of kernelgen and dies with its parent, whose process id comes first."""

# Linux kills a process with PDEATHSIG when the *thread* that started it ends, so one thread that lives as long as this
# process starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernelgen-job")


def perform(
    attempt: int,
    job: Job,
    inputs: Sequence[tuple[str, bytes]],
    variables: Mapping[str, str],
    wanted: Callable[[], int],
    command: Sequence[str] = COMMAND,
) -> Generator[Shipped | Ended]:
    """Run a job's command with `variables`; yields what it changes, as it does, and then how it ended.

    `wanted` is asked all the time: GO_ON, STOP or KILL. Whoever leaves the iteration kills it with all that it started.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernelgen-job-") as name:
        root, streams = Path(name) / "work", (Path(name) / "stdout", Path(name) / "stderr")
        root.mkdir()
        unpack(root, inputs)
        watched = Watched(root, job.outputs, inputs)
        process = _started(
            [*command, str(os.getpid()), *job.arguments], root, {**dict(job.settings), **variables}, streams
        )
        told, sent = False, began
        try:
            while process.poll() is None:
                if wanted() == KILL:
                    return
                if not told and wanted() == STOP:
                    told = True
                    process.send_signal(signal.SIGINT)
                if time.monotonic() - sent >= SEND_S or watched.has_round():
                    sent = time.monotonic()
                    changed = watched.changes()
                    if changed is not None:
                        yield Shipped(attempt, changed)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        finally:
            _end(process)
        stdout, stderr = (path.read_bytes() for path in streams)
        ended = Ended(
            attempt, process.returncode, stdout.decode("utf-8", "replace"), stderr[-KEPT:].decode("utf-8", "replace"),
            time.monotonic() - began,
        )  # fmt: skip
        yield replace(ended, last=watched.changes(ended=not failure(ended)) or Shipment())


def failure(ended: Ended) -> str:
    """Why a command came to no end of its own; "" where it did, whatever its exit code says of the operator."""
    last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
    if ended.code == -signal.SIGKILL:
        return "killed (SIGKILL: by hand, or for want of memory)"
    if ended.code < 0:
        return f"died of {signal.Signals(-ended.code).name}: {last}"
    return last if ended.code == CRASHED else ""


def doubtful(ended: Ended) -> bool:
    """Whether a worker's device may be gone: the command failed, or found none."""
    return bool(failure(ended)) or ended.code == NoDeviceError.exit_code


def _started(
    arguments: Sequence[str], root: Path, variables: Mapping[str, str], streams: Sequence[Path]
) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    with streams[0].open("wb") as stdout, streams[1].open("wb") as stderr:
        return _starter.submit(
            subprocess.Popen, [sys.executable, *arguments], cwd=root, stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=stderr, env={**own, "PYTHONPATH": path, **variables}, start_new_session=True,
        ).result()  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs, with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

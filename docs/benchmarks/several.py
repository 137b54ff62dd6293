"""Run measurements side by side on the GPUs of one machine, each with a GPU and a share of the cores of its own.

    python docs/benchmarks/several.py JOBS --into OUT --minutes 18   # one job a GPU at a time, in order

A line of JOBS is a name, the seconds that the job may take, and a shell command, which finds its seconds as LEFT and
its GPU as CUDA_VISIBLE_DEVICES. What it prints is OUT/NAME.log; OUT/jobs.log says when each began and how it ended. A
job that is at work when its seconds or the minutes are over is interrupted, and killed if it does not end.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LEAST_S, ENDING_S = 40.0, 30.0
"""A job that has less is not begun; what an interrupted one has to leave what it knows."""


@dataclass(frozen=True)
class Job:
    name: str
    seconds: float
    command: str


def jobs_of(text: str) -> list[Job]:
    """The lines that are neither empty nor comments."""
    lines = [line.split(None, 2) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Job(name, float(seconds), command) for name, seconds, command in lines]


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """So many equal parts of the cores; where there are too few, each part is all of them."""
    each = len(cores) // count
    return [list(cores[i * each : (i + 1) * each]) if each else list(cores) for i in range(count)]


def run(jobs: Sequence[Job], gpus: Sequence[str], into: Path, until: float) -> None:
    """All jobs until so many seconds of time.monotonic(), the first that waits on the first GPU that is free."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    into.mkdir(parents=True, exist_ok=True)
    own = shares(sorted(os.sched_getaffinity(0)), len(gpus))
    with (into / "jobs.log").open("a", buffering=1) as log:
        lanes = [
            threading.Thread(target=_serve, args=(waiting, gpu, cores, into, until, log.write))
            for gpu, cores in zip(gpus, own, strict=True)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        log.write("all done\n")


def _serve(
    waiting: queue.SimpleQueue[Job], gpu: str, cores: list[int], into: Path, until: float, say: Callable[[str], object]
) -> None:
    while True:
        try:
            job = waiting.get_nowait()
        except queue.Empty:
            return
        left = min(job.seconds, until - time.monotonic())
        if left < LEAST_S:
            say(f"{job.name}: left out, no time is left\n")
            continue
        say(f"{job.name}: begins on GPU {gpu} at {time.strftime('%T')}\n")
        began = time.monotonic()
        code = _ended(job, {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "LEFT": f"{left:.0f}"}, cores, into, left)
        say(f"{job.name}: exit {code}, {time.monotonic() - began:.0f} s\n")


def _ended(job: Job, environment: dict[str, str], cores: list[int], into: Path, left: float) -> int:
    """The exit code of a job; it has a session of its own, in which an interruption is heard, and of which nothing is
    left when it has ended: the next job has the GPU to itself."""

    def alone() -> None:
        os.setsid()
        os.sched_setaffinity(0, cores)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background would not hear it

    interrupted = False
    with (into / f"{job.name}.log").open("w") as out:
        running = subprocess.Popen(
            ["bash", "-c", job.command], env=environment, stdout=out, stderr=subprocess.STDOUT, preexec_fn=alone
        )
    try:
        for limit, then in ((left, signal.SIGINT), (ENDING_S, signal.SIGKILL)):
            try:
                return running.wait(limit)
            except subprocess.TimeoutExpired:
                interrupted = True
                os.killpg(running.pid, then)
                for leader in _of_session(running.pid):  # `timeout` has a group of its own, which hears it by itself
                    with suppress(ProcessLookupError):
                        if leader != running.pid and os.getpgid(leader) == leader:
                            os.kill(leader, then)
        return running.wait()
    finally:
        end = time.monotonic() + ENDING_S
        while interrupted and _of_session(running.pid) and time.monotonic() < end:
            time.sleep(0.1)  # what was interrupted saves what it knows
        while rest := _of_session(running.pid):  # one may start another meanwhile
            for process in rest:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)


def _of_session(session: int) -> list[int]:
    """The processes of a session that have not ended: some, as what `timeout` runs, are in groups of their own."""
    found = []
    for path in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        with suppress(OSError):
            state = path.joinpath("stat").read_text().rpartition(")")[2].split()[0]
            if os.getsid(int(path.name)) == session and state != "Z":
                found.append(int(path.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all")
    given = parser.parse_args()
    numbers = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else subprocess.check_output(numbers, text=True).split()
    run(jobs_of(given.jobs.read_text("utf-8")), gpus, given.into, time.monotonic() + 60 * given.minutes)


if __name__ == "__main__":
    main()

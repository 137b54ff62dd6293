"""Two Ray nodes on one host: workers killed at random moments, and a node that joins in the middle."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fleet_play import COMMAND, Seen, faults, jobs

from kernelgen.errors import UsageError
from kernelgen.fleet import on_ray, schedule
from kernelgen.fleet.drive import drive
from kernelgen.fleet.model import Assignment
from kernelgen.fleet.on_ray import Asked, RayExecutor
from kernelgen.fleet.schedule import Schedule
from kernelgen.journal import Record

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelgen[ray]'")

NAMES = tuple(f"op{n}" for n in range(12))
KILLS, ROUNDS = 20, 6


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with a worker each, which find what this process finds."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    ray.init(address=found.address, log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()
    found.shutdown()


def actors() -> list[int]:
    """The processes of actors on this host."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cmdline").read_bytes().startswith(b"ray::RayWorker"):
                found.append(int(path.name))
    return found


class Killer(threading.Thread):
    """Kills actors, and a node's worth of their commands with them, at random moments."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self._dice, self.left, self.over = random.Random(seed), KILLS, threading.Event()

    def run(self) -> None:
        while self.left and not self.over.wait(self._dice.uniform(0.2, 1.8)):
            for pid in self._dice.sample(found := actors(), min(1, len(found))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.left -= 1


class Growing(Seen):
    """Has a node join when a quarter of the operators are finished."""

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        self.cluster, self.most, self.on = cluster, 0, dict[str, str]()

    def begun(self, assignment: Assignment) -> None:
        super().begun(assignment)
        self.on[assignment.worker.name] = assignment.job.operator
        self.most = max(self.most, len(set(self.on.values())))

    def lost(self, worker: str, why: str) -> None:
        super().lost(worker, why)
        self.on.pop(worker, None)

    def finished(self, assignment: Assignment, *rest: Any) -> None:
        super().finished(assignment, *rest)
        self.on.pop(assignment.worker.name)
        if sum(kind == "finished" for kind, _, _ in self.lines) == len(NAMES) // 4:
            self.cluster.add_node(num_cpus=1)


def test_killed_actors_lose_and_double_no_round_and_a_node_that_joins_is_used(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    # nothing is set aside and no place is given up: it is the kills that are at fault
    monkeypatch.setattr(schedule, "FAILURES", 1000)
    monkeypatch.setattr(on_ray, "STARTS", 1000)
    executor = RayExecutor(ray, Asked("cpu", None, 1, False, COMMAND), None)
    killer, seen = Killer(seed=3), Growing(cluster)
    run = Schedule(jobs(tmp_path, NAMES, "pause=0.3", f"rounds={ROUNDS}"))
    try:
        assert len(executor.first()) == 2
        killer.start()
        drive(run, executor, seen)
    finally:
        killer.over.set()
        executor.close()
    assert len(run.done) == len(NAMES)
    assert faults(tmp_path, NAMES, ROUNDS) == []
    assert killer.left == 0, "the operators were done before all kills"
    assert seen.most > 2, "the node that joined was given nothing"
    print(f"{KILLS - killer.left} kills, {sum(seen.begun_on.values())} attempts at {len(NAMES)} operators")


def test_an_address_without_ray_is_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own code writes to stderr, beneath Python."""
    import ray

    def tried(**how: Any) -> None:
        os.write(2, b"[gcs_client.cc] failed\n")
        raise ConnectionError("nobody is there")

    monkeypatch.setattr(ray, "init", tried)
    with pytest.raises(UsageError, match=r"^--ray 10\.0\.0\.1:1: Ray does not connect: nobody is there$"):
        on_ray.start("10.0.0.1:1", None, None, None, None, False, False)
    os.write(2, b"heard again\n")
    assert capfd.readouterr().err == "heard again\n"


class Stopping(Seen):
    """Sends this process Ctrl-C when a round is on the disk."""

    def recorded(self, assignment: Assignment, record: Record) -> None:
        if record.kind == "round" and not self.lines:
            self.lines.append(("sent", "", ""))
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_what_runs_on_ray(tmp_path: Path, cluster: Any) -> None:
    import ray

    executor, run = (
        RayExecutor(ray, Asked("cpu", None, 1, False, COMMAND), 1),
        Schedule(jobs(tmp_path, ["add"], "rounds=99", "pause=0.5")),
    )
    try:
        executor.first()
        drive(run, executor, Stopping())
    finally:
        executor.close()
    assert run.interrupted
    assert not run.running
    assert run.waiting == 1

"""Jobs in processes of this machine: killed, interrupted, gone on with; and what is written where."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_play import COMMAND, KIND, ROUNDS, Seen, faults, jobs

from kernelgen.fleet.drive import drive
from kernelgen.fleet.files import Collector, ShipmentError, gather
from kernelgen.fleet.local import LocalExecutor, Place
from kernelgen.fleet.model import (
    Assignment,
    Executor,
    Job,
    Joined,
    Kind,
    Lost,
    Message,
    Outcome,
    Shipment,
    Shipped,
    Worker,
)
from kernelgen.fleet.record import FleetRecord, ended
from kernelgen.fleet.schedule import Schedule
from kernelgen.journal import Journal, read, runs


def local(workers: int = 2) -> LocalExecutor:
    return LocalExecutor([Place(Worker(f"cpu {n}", KIND), {}) for n in range(workers)], COMMAND)


def played(given: tuple[Job, ...], executor: Executor, schedule: Schedule | None = None) -> tuple[Schedule, Seen]:
    schedule, seen = schedule or Schedule(given), Seen()
    try:
        drive(schedule, executor, seen)
    finally:
        executor.close()
    return schedule, seen


def players(parent: int | None = None) -> list[int]:
    """The processes that play for this one, or for another."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mine = f"PPid:\t{parent or os.getpid()}\n" in (path / "status").read_text()
            if mine and b"fleet_play.py" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


class Killer(threading.Thread):
    """Kills one of the playing processes so many times, at random moments."""

    def __init__(self, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._dice, self.left = random.Random(seed), kills
        self.over = threading.Event()

    def run(self) -> None:
        while self.left and not self.over.wait(self._dice.uniform(0.05, 0.4)):
            for pid in self._dice.sample(found := players(), min(1, len(found))):
                os.kill(pid, signal.SIGKILL)
                self.left -= 1


NAMES = ("add", "mul", "neg", "softmax")


def test_killed_workers_lose_and_double_no_round(tmp_path: Path) -> None:
    killer = Killer(3, seed=5)
    killer.start()
    schedule, seen = played(jobs(tmp_path, NAMES, "pause=0.05"), local())
    killer.over.set()
    assert killer.left < 3
    assert {name for name, _ in schedule.done} == set(NAMES), seen.lines
    assert faults(tmp_path, NAMES) == []
    assert [why for kind, _, why in seen.lines if kind == "failed"] == [
        "killed (SIGKILL: by hand, or for want of memory)"
    ] * (3 - killer.left)


def test_a_kernel_that_no_shipment_could_lose_is_missed(tmp_path: Path) -> None:
    """The comparison above fails where a round is missing, or was played twice."""
    played(jobs(tmp_path, NAMES[:1], "pause=0"), local(1))
    (run,) = runs(tmp_path / "logs" / "add")
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:-2]))
    assert len(faults(tmp_path, NAMES[:1])) == 3
    assert faults(tmp_path, NAMES[:1], rounds=ROUNDS + 1)


def test_what_always_fails_is_set_aside_and_the_others_are_played(tmp_path: Path) -> None:
    given = (*jobs(tmp_path, ["bad"], "crashes"), *jobs(tmp_path, ["add"]), *jobs(tmp_path, ["wrong"], "fails"))
    schedule, _ = played(given, local())
    assert schedule.aside[("bad", KIND)][-1].endswith(": a fault of ours")
    assert len(schedule.aside[("bad", KIND)]) == 3
    assert {name: one.code for (name, _), one in schedule.done.items()} == {"add": 0, "wrong": 2}
    assert faults(tmp_path, ["add", "wrong"]) == []


class Interrupting(Seen):
    """Sends this process Ctrl-C when the first round is on the disk."""

    def recorded(self, assignment: Assignment, record: object) -> None:
        if not self.lines:
            self.lines.append(("sent", "", ""))
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_cleanly_and_the_same_jobs_go_on(tmp_path: Path) -> None:
    given = jobs(tmp_path, NAMES, "pause=0.15")
    schedule, executor = Schedule(given), local()
    try:
        drive(schedule, executor, Interrupting())
    finally:
        executor.close()
    assert schedule.interrupted
    assert not schedule.running
    assert players() == []
    assert len(schedule.done) < len(NAMES)
    before = {run: read(run) for name in NAMES for run in runs(tmp_path / "logs" / name)}
    assert before
    played(given, local(), Schedule(given, finished=list(schedule.done.values())))
    assert faults(tmp_path, NAMES) == []
    assert all(read(run)[: len(records)] == records for run, records in before.items())


def test_a_worker_may_write_to_its_own_operator_alone(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, ["add"])
    collector = Collector(job, Path())
    for name in ("operators/mul/mul_triton.py", "../outside.py", "/etc/passwd", "logs/add/../mul/x"):
        with pytest.raises(ShipmentError):
            collector.write(Shipment(files=((name, b"text"),)))
    collector.write(Shipment(files=(("operators/add/add_triton.py", b"text"),)))
    assert [path.name for path in tmp_path.rglob("*.py")] == ["add_triton.py"]
    collector.close()


def test_lines_that_do_not_continue_a_journal_are_refused(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, ["add"])
    other = Journal.open(tmp_path / "other")
    for number in range(3):
        other.append("round", {"round": number})
    lines = (tmp_path / "other" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    name = "logs/add/run/journal.jsonl"
    collector = Collector(job, Path())
    assert len(collector.write(Shipment(lines=((name, 0, lines[0] + lines[1]),)))) == 2
    size = len(lines[0] + lines[1])
    for start, line in ((0, lines[0]), (size, lines[1]), (size + 1, lines[2]), (size, lines[2][:-5]), (size, b"x\n")):
        with pytest.raises(ShipmentError, match=r"journal\.jsonl: lines that came for it"):
            collector.write(Shipment(lines=((name, start, line),)))
    collector.write(Shipment(lines=((name, size, lines[2]),)))
    collector.close()
    assert read(tmp_path / "logs" / "add" / "run") == other.records()


def test_a_worker_that_meddles_is_used_no_longer(tmp_path: Path) -> None:
    given = (*jobs(tmp_path, ["evil"], "meddles"), *jobs(tmp_path, ["add"]))
    schedule, seen = played(given, local(4))
    assert {name for name, _ in schedule.done} == {"add"}
    assert {name for name, _ in schedule.aside} == {"evil"}
    assert sum(kind == "lost" for kind, _, _ in seen.lines) == 3
    assert faults(tmp_path, ["add"]) == []


def test_a_run_is_sent_with_its_candidates_as_long_as_it_may_be_gone_on_with(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, ["add"])
    run = Journal.open(tmp_path / "logs" / "add" / "run")
    stored = f"logs/add/run/candidates/{run.store('text')}.py"
    run.append("run", {})
    with (tmp_path / "logs" / "add" / "run" / "journal.jsonl").open("ab") as file:
        file.write(b'{"torn')
    sent = dict(gather(job, Path()))
    assert sent[stored] == b"text"
    assert sent["logs/add/run/journal.jsonl"].endswith(b"}\n"), "a torn tail is nobody's record"
    run.close()
    again = Journal.open(tmp_path / "logs" / "add" / "run")
    again.append("finished", {})
    assert stored not in dict(gather(job, Path()))


def test_an_operator_that_somebody_else_optimises_is_left_to_them(tmp_path: Path) -> None:
    (mine, theirs) = jobs(tmp_path, ["add", "mul"])
    held = Collector(theirs, Path())
    schedule, _ = played((mine, theirs), local())
    held.close()
    assert schedule.done[("add", KIND)].code == 0
    assert schedule.done[("mul", KIND)].code == 2
    assert "mul is being optimised by another process" in schedule.done[("mul", KIND)].stderr


def test_what_a_run_over_operators_came_to_outlives_its_driver(tmp_path: Path) -> None:
    given = jobs(tmp_path, NAMES)
    one = Outcome("add", "cpu 0", Kind("a", (("b", "c"),)), 0, "out", "", 1.5)
    first = FleetRecord.open(tmp_path / "logs", given, fresh=False)
    assert not first.resumed
    first.outcome(one)
    first.joined(Worker("cpu 0", KIND, {"sm_mhz": 1980}))
    second = FleetRecord.open(tmp_path / "logs", given, fresh=False)
    assert second.resumed
    assert second.outcomes == (one,)
    assert not FleetRecord.open(tmp_path / "logs", given[1:], fresh=False).resumed, "of other operators"
    assert not FleetRecord.open(tmp_path / "logs", given, fresh=True).resumed
    second.close(finished=True)


def test_an_outcome_whose_run_is_not_at_its_end_on_the_disk_does_not_hold(tmp_path: Path) -> None:
    done, wrong = (Outcome("add", "cpu 0", KIND, code, "", "", 1.5) for code in (0, 1))
    logs = tmp_path / "logs" / "add"
    assert not ended(done, logs)
    assert ended(wrong, logs)
    assert ended(done, None)
    run = Journal.open(logs / "run")
    run.append("round", {})
    assert not ended(done, logs)
    run.append("finished", {})
    assert ended(done, logs)


class Late:
    """An executor whose first worker is lost, and still speaks."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages, self.refused = messages, list[str]()

    def message(self, timeout_s: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def begin(self, assignment: Assignment, inputs: object) -> None: ...

    def stop(self, attempt: int) -> None: ...

    def refuse(self, worker: str) -> None:
        self.refused.append(worker)

    def waits(self) -> bool:
        return False

    def close(self) -> None: ...


def test_what_a_lost_worker_still_says_is_not_written(tmp_path: Path) -> None:
    given = jobs(tmp_path, ["add"])
    ship = Shipment(files=(("operators/add/add_triton.py", b"late"),))
    executor = Late([Joined(Worker("a", KIND)), Lost("a", "its node left"), Shipped(1, ship)])
    schedule, _ = played(given, executor)
    assert schedule.stuck
    assert not (tmp_path / "operators").exists()


DRIVER = """
import sys
from pathlib import Path
from fleet_play import jobs
from test_fleet import local, played
played(jobs(Path(sys.argv[1]), ["add"], "pause=20"), local(1))
"""


def test_no_process_outlives_its_driver(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=Path(__file__).parent)
    until = time.monotonic() + 30
    while not (found := players(driver.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert found
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


def test_a_workers_command_runs_for_its_parent_alone() -> None:
    def code(parent: int) -> int:
        command = [sys.executable, "-m", "kernelgen.cli.job", str(parent), "--version"]
        return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode

    assert code(os.getpid()) == 0
    assert code(1) == 1, "its parent has ended before it could ask to end with it"


def test_each_kind_of_device_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = (KIND, Kind("another toy", KIND.versions))
    executor = LocalExecutor([Place(Worker(kind.device, kind), {}) for kind in kinds], COMMAND)
    given = Schedule(jobs(Path(), ["add"], "pause=0"), each=True)
    try:
        drive(given, executor, Seen(), lambda kind: Path(kind.device))
    finally:
        executor.close()
    assert set(given.done) == {("add", kind) for kind in kinds}
    assert [faults(tmp_path / kind.device, ["add"]) for kind in kinds] == [[], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kind.device for kind in kinds)


class Killing(Seen):
    """Kills the playing process when its first round is on the disk."""

    def recorded(self, assignment: Assignment, record: object) -> None:
        if not self.lines:
            self.lines.append(("killed", "", ""))
            for pid in players():
                os.kill(pid, signal.SIGKILL)


def test_a_fresh_run_that_is_killed_goes_on_with_itself(tmp_path: Path) -> None:
    old = Journal.open(tmp_path / "logs" / "add" / "20200101-000000-abcdef")
    old.append("run", {"key": "add"})
    given, seen, executor = (
        [replace(job, fresh=True) for job in jobs(tmp_path, ["add"], "pause=0.2")],
        Killing(),
        local(1),
    )
    try:
        drive(Schedule(given), executor, seen)
    finally:
        executor.close()
    assert [kind for kind, *_ in seen.lines] == ["killed", "failed", "finished"]
    first, second = runs(tmp_path / "logs" / "add")
    assert read(first) == old.records(), "the run from before was gone on with"
    assert [record.kind for record in read(second)] == ["run", *["round"] * ROUNDS, "finished"]

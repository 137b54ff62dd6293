"""A command for workers that plays rounds into a journal and computes nothing: `fleet_play.py PARENT NAME [WORD…]`.

Words: rounds=N, pause=S between two things that are made durable, dies, crashes, fails, meddles, --fresh. Other tests take
`jobs` and `Seen` from here.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelgen.files import write_atomic
from kernelgen.fleet.model import Assignment, Job, Kind, Outcome, Tree, Worker
from kernelgen.journal import Journal, Record, locked, read, run_name, runs, unfinished
from kernelgen.lifeline import die_with_parent, heed_interrupts

COMMAND = (str(Path(__file__).resolve()),)
ROUNDS = 3
KIND = Kind("a toy", (("python", "3"),))


def play(name: str, rounds: int, pause_s: float, fresh: bool = False) -> None:
    folder, kernel = Path("logs") / name, Path("operators") / name / f"{name}_triton.py"
    with locked(folder):
        journal = Journal.open((not fresh and unfinished(folder, name)) or folder / run_name(name))
        if not journal.records("run"):
            journal.append("run", {"key": name})
        played = journal.records("round")
        if played:  # what follows from the last record, where a kill came between
            write_atomic(kernel, journal.source(played[-1].data["hash"]))
        for number in range(len(played), rounds):
            time.sleep(pause_s)
            source = f"# {name}, round {number}\n"
            stored = journal.store(source)
            time.sleep(pause_s)
            entry = {"standing": {"speedup": f"{number}.0x", "roofline": ""}}
            journal.append("round", {"round": number, "hash": stored, "entry": entry, "by": os.getpid()})
            time.sleep(pause_s)
            write_atomic(kernel, source)
        journal.append("finished", {"reason": "played"})
        journal.close()


def main(name: str, words: Sequence[str]) -> int:
    given = dict(word.partition("=")[::2] for word in words)
    if "meddles" in given:
        write_atomic(Path("logs") / name / "run" / "journal.jsonl", "not a record\n")
    if "dies" in given:
        os.kill(os.getpid(), signal.SIGKILL)
    if "crashes" in given:
        raise RuntimeError("a fault of ours")
    try:
        play(name, int(given.get("rounds", ROUNDS)), float(given.get("pause", 0.02)), "--fresh" in given)
    except KeyboardInterrupt:
        return 130
    print(f"{name} played")
    return 2 if "fails" in given else 0


def jobs(root: Path, names: Sequence[str], *words: str) -> tuple[Job, ...]:
    """Jobs that play, with their files below `root`."""
    return tuple(
        Job(
            name, (name, *words), f"operators/{name}", (), trees := (
                Tree(f"operators/{name}", root / "operators" / name), Tree(f"logs/{name}", root / "logs" / name),
            ), trees, root / "logs" / name,
        )
        for name in names
    )  # fmt: skip


@dataclass
class Seen:
    """A watcher that remembers what it was told."""

    workers: list[Worker] = field(default_factory=list)
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    begun_on: Counter[str] = field(default_factory=Counter)

    def joined(self, worker: Worker) -> None:
        self.workers.append(worker)

    def lost(self, worker: str, why: str) -> None:
        self.lines.append(("lost", worker, why))

    def begun(self, assignment: Assignment) -> None:
        self.begun_on[assignment.worker.name] += 1

    def recorded(self, assignment: Assignment, record: Record) -> None: ...

    def ending(self, assignment: Assignment, outcome: Outcome) -> None: ...

    def finished(self, assignment: Assignment, outcome: Outcome, runs: Sequence[Path]) -> None:
        self.lines.append(("finished", assignment.job.operator, str(outcome.code)))

    def failed(self, assignment: Assignment, why: str) -> None:
        self.lines.append(("failed", assignment.job.operator, why))

    def aside(self, operator: str, why: Sequence[str]) -> None:
        self.lines.append(("aside", operator, why[-1]))

    def looked(self) -> None: ...


def faults(root: Path, names: Sequence[str], rounds: int = ROUNDS) -> list[str]:
    """What is not as if every operator had been played by itself: rounds lost or doubled, other files."""
    found = []
    for name in names:
        all_runs = runs(root / "logs" / name)
        if len(all_runs) != 1:
            found.append(f"{name}: {len(all_runs)} runs")
            continue
        records = read(all_runs[0])
        kinds = [record.kind for record in records]
        if kinds != ["run", *["round"] * rounds, "finished"]:
            found.append(f"{name}: {kinds}")
        played = [r for r in records if r.kind == "round"]
        if [r.data["round"] for r in played] != list(range(rounds)):
            found.append(f"{name}: rounds {[r.data['round'] for r in played]}")
        stored = {path.stem for path in (all_runs[0] / "candidates").glob("*.py")}
        if stored != {r.data["hash"] for r in played}:
            found.append(f"{name}: candidates {sorted(stored)}")
        if (root / "operators" / name / f"{name}_triton.py").read_text() != f"# {name}, round {rounds - 1}\n":
            found.append(f"{name}: not the last round's kernel")
    return found


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    heed_interrupts()
    try:
        code = main(sys.argv[2], sys.argv[3:])
    except RuntimeError as error:
        print(error, file=sys.stderr)
        code = 70
    sys.exit(code)

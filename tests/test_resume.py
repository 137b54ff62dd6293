"""A run killed at any point goes on: no finished round is lost, none is run twice, the log is whole.

The child is a fork of this process that kills itself with SIGKILL just before or just after it makes something
durable for the n-th time: every record, candidate, kernel and section of the log passes through `os.fsync`.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rounds_fakes import FakeEvaluator, make_plan, run, write_kernel

from kernelgen import journal
from kernelgen.journal import FILE, Journal, Record
from kernelgen.optimization import RunResult

ROUNDS = 3


def killed_at(root: Path, count: int, after: bool, evaluator: FakeEvaluator | None = None) -> bool:
    """Run `optimize` in a child that dies at its `count`-th fsync; False where it ended before."""
    child = os.fork()
    if child == 0:
        real, left = os.fsync, count

        def dying(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            real(handle)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = dying
        try:
            run(root, evaluator, rounds=ROUNDS)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def start(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    write_kernel(root, make_plan())
    return root


def only_run(root: Path) -> Path:
    (folder,) = journal.runs(root / "logs" / "toy")
    return folder


def comparable(result: RunResult) -> list[tuple[int, str, bool, str]]:
    return [(r.number, r.strategy, r.kept, r.headline) for r in result.rounds]


def check(root: Path, result: RunResult, records_before: tuple[Record, ...]) -> None:
    """What must hold after a run that was killed went on to its end."""
    records = journal.read(result.folder)
    assert records[: len(records_before)] == records_before, "nothing recorded was lost"
    numbers = [r.data["round"] for r in records if r.kind == "round"]
    assert numbers == list(range(len(numbers))), "each round once and in order"
    tried = [(r.data["round"], r.data["hash"]) for r in records if r.kind == "candidate"]
    assert len(set(tried)) == len(tried), "no candidate of a round was evaluated twice"
    text = (root / "operators" / "toy" / "optimization_log.md").read_text()
    run_name = result.folder.name
    assert re.findall(rf"^<!-- round {run_name}/(\w+) -->$", text, re.MULTILINE) == [*map(str, numbers), "end"]
    kernel = (root / "operators" / "toy" / "toy_triton.py").read_text()
    assert journal.source_hash(kernel) == [r for r in records if r.kind == "round" and r.data["kept"]][-1].data["hash"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(start(tmp_path_factory.mktemp("undisturbed")), rounds=ROUNDS)


def durable_steps(root: Path) -> int:
    """How many fsyncs a whole run makes."""
    count, real = 0, os.fsync

    def counting(handle: int) -> None:
        nonlocal count
        count += 1
        real(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        run(start(root), rounds=ROUNDS)
    return count


@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_it_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: RunResult, after: bool
) -> None:
    steps = durable_steps(tmp_path / "count")
    for at in range(1 + after, steps, 17):
        root = start(tmp_path / str(at))
        assert killed_at(root, at, after)
        begun = journal.runs(root / "logs" / "toy")
        before = journal.read(begun[0]) if begun else ()
        result = run(root, rounds=ROUNDS)
        assert result.resumed is bool(before)
        assert comparable(result) == comparable(undisturbed), f"killed at durable step {at} of {steps}"
        check(root, result, before)


def test_killed_around_every_commit(tmp_path: Path, undisturbed: RunResult) -> None:
    """The steps around a `round` record are those where a round could be lost, doubled or half published."""
    marks: list[int] = []
    count, real, append = 0, os.fsync, Journal.append

    def counting(handle: int) -> None:
        nonlocal count
        count += 1
        real(handle)

    def noting(self: Journal, kind: str, data: dict[str, Any]) -> Record:
        if kind in ("round", "finished"):
            marks.append(count)
        return append(self, kind, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        patch.setattr(Journal, "append", noting)
        run(start(tmp_path / "count"), rounds=ROUNDS)
    for at in sorted({at for mark in marks for at in range(mark + 1, mark + 6)}):
        root = start(tmp_path / str(at))
        if not killed_at(root, at, after=False):
            continue
        before = journal.read(only_run(root))
        if before[-1].kind != "finished":
            result = run(root, rounds=ROUNDS)
            assert comparable(result) == comparable(undisturbed)
            check(root, result, before)


def test_killed_again_and_again(tmp_path: Path, undisturbed: RunResult) -> None:
    root = start(tmp_path / "often")
    deaths = 0
    while killed_at(root, 17, after=deaths % 2 == 0):
        deaths += 1
        path = only_run(root) / FILE
        if journal.read(path.parent)[-1].kind == "finished":
            break  # killed after its last record: another call would begin another run
        if deaths % 3 == 0:  # the machine lost its power too
            with path.open("ab") as file:
                file.write(b'{"crc":1,"data":{"round":')
    assert deaths > 5
    records = journal.read(only_run(root))
    assert records[-1].kind == "finished"
    assert [r.data["strategy"] for r in records if r.kind == "round"] == [r.strategy for r in undisturbed.rounds]


def test_a_journal_torn_at_every_byte_of_its_last_record_goes_on(tmp_path: Path) -> None:
    root = start(tmp_path / "torn")
    assert killed_at(root, 40, after=True)
    path = only_run(root) / FILE
    content = path.read_bytes()
    whole = journal.read(only_run(root))
    last = content.rindex(b"\n", 0, len(content) - 1) + 1
    for cut in range(last, len(content)):
        path.write_bytes(content[:cut])
        opened = Journal.open(only_run(root))
        assert opened.records() == whole[:-1]
        opened.close()
    result = run(root, rounds=ROUNDS)
    assert result.resumed
    check(root, result, whole[:-1])


def test_a_lost_kernel_and_a_lost_section_are_made_again(tmp_path: Path) -> None:
    root = start(tmp_path / "lost")
    at = next(n for n in range(40, 400) if killed_at(start(root), n, after=True) and _rounds(root) >= 2)
    assert at
    log = root / "operators" / "toy" / "optimization_log.md"
    kernel = root / "operators" / "toy" / "toy_triton.py"
    before = journal.read(only_run(root))
    log.write_text(log.read_text()[:-120])
    write_kernel(root, make_plan())
    result = run(root, rounds=ROUNDS)
    check(root, result, before)
    assert kernel.is_file()


def _rounds(root: Path) -> int:
    return sum(r.kind == "round" for r in journal.read(only_run(root)))


def test_another_question_is_another_run(tmp_path: Path) -> None:
    root = start(tmp_path / "other")
    assert killed_at(root, 60, after=True)
    first = only_run(root)
    assert not run(root, rounds=1, fresh=True).resumed
    assert journal.read(first)[-1].kind != "finished"
    assert not run(root, rounds=1, candidates=4).resumed
    assert not run(root, FakeEvaluator(measures=False), rounds=1).resumed

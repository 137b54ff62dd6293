"""`kernelgen kernelbench`: every problem of a folder, in processes of their own, resumed from a journal."""

from __future__ import annotations

import glob
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_process import kernelgen, refused

from kernelgen import devices, judge, kernelbench
from kernelgen.cli.kernelbench import _why
from kernelgen.cli.kernelbench import kernelbench as command
from kernelgen.devices import facts
from kernelgen.devices.device import Card, Device
from kernelgen.importer import naming
from kernelgen.journal import FILE
from kernelgen.judge.inputs import DISTRIBUTIONS
from kernelgen.kernelbench import rounds, shared
from kernelgen.kernelbench.problem import name_of
from kernelgen.kernelbench.shared import Verdict
from kernelgen.kernelbench.tolerance import compare
from kernelgen.kernelbench.turns import Turns

PROBLEM = """\
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return {result}

def get_inputs():
    return [torch.rand(3, 5)]

def get_init_inputs():
    return []
"""

DOUBLE = """\
name: double
inputs: [{name: x, shape: [N], dtype: T}]
outputs: [{name: out, shape: [N], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def double(x):
      return x * 2
"""

HANGS = "while True:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    level = tmp_path / "bench" / "level1"
    level.mkdir(parents=True)
    # a reduction is a function of Triton's own, which must be interpreted as the kernel is
    (level / "10_Shares.py").write_text(PROBLEM.format(result="x / x.sum(-1, keepdim=True)"))
    (level / "9_Inverse.py").write_text(PROBLEM.format(result="torch.linalg.pinv(x)"))
    return tmp_path


def test_problems_of_one_name_are_operators_of_their_own(tmp_path: Path) -> None:
    """Two of KernelBench's level 2 are called Gemm_Scale_BatchNorm: at the same time they wrote the same files."""
    names = ("33_Gemm_Scale.py", "39_Gemm_Scale.py", "39_gemm_scale.py", "4_Gemm.py", "5_Gemm_Scale_39.py")
    names += ("same-one.py", "same_one.py", "same_one_in.py")
    for name in names:
        (tmp_path / name).touch()
    found = {name: name_of(tmp_path / name) or naming.operator_name(Path(name)) for name in names}
    assert len(set(found.values())) == len(names), found
    assert found["4_Gemm.py"] == "gemm"
    assert found["33_Gemm_Scale.py"] == "gemm_scale_33"


def test_problems_are_imported_judged_recorded_and_not_run_again(folder: Path) -> None:
    done = kernelgen("kernelbench", "bench", "--device", "cpu", "--limit-s", "200", "--jobs", "2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    refused_one, right = document["problems"]
    assert (refused_one["problem"], refused_one["state"]) == ("9_Inverse", "refused")
    assert refused_one["imported"]
    assert "inverse.yaml:" in refused_one["reason"]
    assert "nothing left for a kernel: all of it is torch.linalg.pinv" in refused_one["reason"]
    assert (right["problem"], right["state"], right["operator"]) == ("10_Shares", "right", "shares")
    assert right["accuracy"]["passed"] == right["accuracy"]["cases"] > 0
    assert set(right["stage_s"]) == {"import", "new", "accuracy"}
    assert 0 < sum(right["stage_s"].values()) <= right["seconds"]
    assert document["summary"]["right"] == document["summary"]["generated"] == document["summary"]["refused"] == 1
    out = folder / "kernelbench"
    assert (out / "shares.yaml").is_file()
    assert (out / "kernelbench" / "shares.py").is_file()
    assert len((out / FILE).read_text().splitlines()) == 2
    (folder / "bench" / "level1" / "9_Inverse.py").write_text("not a Python file")  # another text is another problem
    again = kernelgen("kernelbench", "bench", "--device", "cpu", "--limit-s", "200", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert len((out / FILE).read_text().splitlines()) == 3
    assert "9_Inverse  refused  -      -        9_Inverse.py:1:7: not Python: invalid syntax" in again.stdout
    assert "\nfaster than compile  0\n" in again.stdout


def test_a_problem_that_hangs_costs_its_time_and_no_other(folder: Path) -> None:
    (folder / "bench" / "level1" / "9_Inverse.py").write_text(HANGS + PROBLEM.format(result="x"))
    files = kernelbench.problems(folder / "bench", 1, ["Inverse"])
    said: list[Any] = []
    [outcome] = kernelbench.run(files, folder / "out", 8.0, "cpu", said.append, kernelbench.Asked())
    assert said == [outcome]
    assert outcome["state"] == "timed out"
    assert outcome["reason"] in ("still at 'import' after 8 s", "still at 'start' after 8 s")
    assert 8 <= outcome["seconds"] < 30
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _bytes(p)]
    assert left == []


@pytest.mark.parametrize(("devices", "allowed"), [(1, 4), (2, 2)])
def test_those_that_share_a_device_may_take_longer(tmp_path: Path, devices: int, allowed: int) -> None:
    for name in ("1_One", "2_Other"):
        (tmp_path / f"{name}.py").write_text(HANGS + PROBLEM.format(result="x"))
    files = kernelbench.problems(tmp_path, 1, [])
    asked, each = kernelbench.Asked(), [{"PLACE": str(n)} for n in range(devices)]
    found = kernelbench.run(files, tmp_path / "out", 2.0, "cpu", lambda one: None, asked, jobs=2, each=each)
    assert [one["state"] for one in found] == ["timed out", "timed out"]
    assert all(one["reason"].endswith(f" after {allowed} s") and one["seconds"] >= allowed for one in found)


def ready(answer: Path, turn: Connection) -> None:
    (new := answer.with_suffix(".new")).write_text(json.dumps({"stage": "ready"}))
    new.replace(answer)  # a reader finds it whole
    turn.recv()


def takes_its_turn(answer: Path, said: Path, turn: Connection) -> None:
    ready(answer, turn)
    began = time.monotonic()
    time.sleep(0.2)
    said.write_text(json.dumps([os.environ["PLACE"], began, time.monotonic()]))


def test_a_number_is_that_problem_alone(tmp_path: Path) -> None:
    for name in ("2_Conv2d", "12_Conv2d", "3_Pool"):
        (tmp_path / f"{name}.py").write_text(PROBLEM, encoding="utf-8")
    assert [f.stem for f in kernelbench.problems(tmp_path, 2, ["2"])] == ["2_Conv2d"]


def test_every_device_has_one_process_at_a_time(tmp_path: Path) -> None:
    turns = Turns([{"PLACE": "0"}, {"PLACE": "1"}])
    paths = [(tmp_path / f"answer{n}", tmp_path / f"said{n}") for n in range(5)]
    with ThreadPoolExecutor(5) as pool:
        ran = [pool.submit(turns.run, takes_its_turn, pair, pair[0], 60.0, tmp_path / "log") for pair in paths]
        try:
            for one in as_completed(ran):
                one.result()
        finally:
            turns.end()
    assert [one.result()[0] for one in ran] == [0] * 5
    said = [json.loads(path.read_text()) for _, path in paths]
    assert sorted(place for place, _, _ in said) == ["0", "0", "0", "1", "1"]
    for place in "01":
        turns_of = sorted((began, ended) for p, began, ended in said if p == place)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(turns_of))


def ends_at_once(turn: Connection) -> None:
    pass


def test_an_exit_code_is_read_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process asks how all others ended: who reads second finds nothing, which counts as 255."""
    read = forkserver.read_signed

    def slowly(fd: int) -> int:
        time.sleep(0.002)
        return read(fd)

    monkeypatch.setattr(forkserver, "read_signed", slowly)
    turns, nothing = Turns(), tmp_path / "nothing"
    with ThreadPoolExecutor(8) as pool:
        ran = [pool.submit(turns.run, ends_at_once, (), nothing, 60.0, tmp_path / "log") for _ in range(60)]
        codes = {one.result()[0] for one in ran}
    assert codes == {0}


def hangs(turn: Connection) -> None:
    time.sleep(600)


def test_what_starts_while_all_are_ended_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, starting, may_go = Turns(), threading.Event(), threading.Event()
    start = ForkServerProcess.start

    def slowly(process: ForkServerProcess) -> None:
        start(process)
        starting.set()
        may_go.wait(60)

    monkeypatch.setattr(ForkServerProcess, "start", slowly)
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(turns.run, hangs, (), tmp_path / "nothing", 500.0, tmp_path / "log")
        assert starting.wait(60)
        turns.end()
        may_go.set()
        assert ran.result(60) == (None, 0.0)


def prepares_until(answer: Path, before: Path | None, said: Path, turn: Connection) -> None:
    while before is not None and not before.exists():
        time.sleep(0.01)
    ready(answer, turn)
    said.touch()


def test_one_has_its_turn_while_another_prepares(tmp_path: Path) -> None:
    turns = Turns()
    said = [tmp_path / f"said{n}" for n in range(2)]
    answers = [tmp_path / f"answer{n}" for n in range(2)]
    given = [(answers[0], said[1], said[0]), (answers[1], None, said[1])]
    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(turns.run, prepares_until, one, one[0], 60.0, tmp_path / "log") for one in given]
        codes = [one.result()[0] for one in ran]
        turns.end()
    assert turns.run(prepares_until, given[1], answers[1], 60.0, tmp_path / "log") == (None, 0.0), "nothing begins then"
    assert codes == [0, 0], (tmp_path / "log").read_text()


def meets_the_other(answer: Path, pipe: Path, turn: Connection) -> None:
    ready(answer, turn)
    pipe.open("rb" if os.environ["PLACE"] == "0" else "wb").close()  # opened at one end only once it is at the other


def test_turns_on_two_devices_overlap(tmp_path: Path) -> None:
    """Neither turn ends before the other has begun: with one lock for both devices the first would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    turns = Turns([{"PLACE": "0"}, {"PLACE": "1"}])
    answers = [tmp_path / f"answer{n}" for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(turns.run, meets_the_other, (a, pipe), a, 60.0, tmp_path / "log") for a in answers]
        try:
            codes = [one.result()[0] for one in as_completed(ran)]
        finally:
            turns.end()
    assert codes == [0, 0], (tmp_path / "log").read_text()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


@pytest.mark.parametrize(("given", "jobs"), [(None, 3), ("1", 1), ("7", 7)])
def test_every_device_has_a_job_unless_another_number_is_said(
    given: str | None, jobs: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = tuple(Card("a GPU", (("PLACE", str(n)),)) for n in range(3))
    known = facts.by_arch("sm_90")
    assert known is not None
    here = Device("cuda", measures=True, facts=known, cards=cards)
    seen: list[Any] = []

    def run(*arguments: Any) -> list[Any]:
        seen.extend(arguments[7:9])
        return []

    monkeypatch.setattr(devices, "find", lambda *_: here)
    monkeypatch.setattr(kernelbench, "run", run)
    assert command(folder / "bench", jobs=given) == 0
    assert seen == [jobs, [{"PLACE": "0"}, {"PLACE": "1"}, {"PLACE": "2"}]]


def test_without_a_gpu_there_is_one_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(kernelbench, "run", lambda *arguments: seen.extend(arguments[7:9]) or [])
    assert command(folder / "bench", device="cpu") == 0
    assert seen == [1, [{"CUDA_VISIBLE_DEVICES": ""}]]


def test_workers_leave_what_one_process_leaves(folder: Path) -> None:
    found = {}
    for out, more in (("alone", ["--jobs", "2"]), ("workers", ["--workers", "2"])):
        given = ("--device", "cpu", "--limit-s", "200", "--json", "--out", out, *more)
        done = kernelgen("kernelbench", "bench", *given, cwd=folder)
        assert done.returncode == 0, done.stderr
        found[out] = json.loads(done.stdout)
    assert found["alone"]["summary"] == found["workers"]["summary"]
    states = [[(p["problem"], p["state"], p["sha256"]) for p in one["problems"]] for one in found.values()]
    assert states[0] == states[1]
    files = [{str(p.relative_to(folder / out)) for p in (folder / out).rglob("*.py")} for out in found]
    assert files[0] == files[1]
    assert [len((folder / out / FILE).read_text().splitlines()) for out in found] == [2, 2]
    again = kernelgen("kernelbench", "bench", "--workers", "1", "--device", "cpu", "--out", "workers", cwd=folder)
    assert "the journal has all of them" in again.stderr


@pytest.mark.parametrize("other", [{"precision": "tf32x3"}, {"dtypes": ()}, {"rounds": 2}], ids=str)
def test_a_problem_is_run_again_where_something_else_is_asked(folder: Path, other: dict[str, Any]) -> None:
    [file] = kernelbench.problems(folder / "bench", 1, ["9"])
    for asked in (kernelbench.Asked(), kernelbench.Asked(**other)):
        ledger = kernelbench.Ledger([file], folder / "out", "cpu", False, asked)
        assert ledger.todo == [file]
        assert ledger.add(file, {"seconds": 1.0}).items() >= asked.entry().items()
    assert kernelbench.Ledger([file], folder / "out", "cpu", False, kernelbench.Asked(**other)).todo == []


def test_small_shapes_are_judged_in_the_dtypes_that_are_asked_for(folder: Path) -> None:
    given = ("kernelbench", "bench", "--device", "cpu", "--only", "Shares", "--limit-s", "200", "--json")
    cases = {}
    for dtypes in (["float32"], ["float32", "float16"], ["all"]):
        more = [f"--dtype={name}" for name in dtypes]
        done = kernelgen(*given, *([] if dtypes == ["float32"] else more), cwd=folder)
        [found] = json.loads(done.stdout)["problems"]
        assert (found["state"], found["dtypes"]) == ("right", [] if dtypes == ["all"] else dtypes)
        cases[len(dtypes) if dtypes != ["all"] else 3] = found["accuracy"]["cases"]
    assert cases[1] < cases[2] < cases[3]
    line = refused("kernelbench", "bench", "--dtype", "fp32", cwd=folder)
    assert line == "error: --dtype: must be float32, float16, bfloat16 or all, not 'fp32'"


def test_what_multiplies_is_judged_in_the_precision_that_is_asked_for(folder: Path) -> None:
    (folder / "bench" / "level1" / "9_Inverse.py").write_text(PROBLEM.format(result="x @ x.T"))
    given = ("--device", "cpu", "--limit-s", "200", "--jobs", "2", "--precision", "tf32x3", "--json")
    done = kernelgen("kernelbench", "bench", *given, cwd=folder)
    product, shares = json.loads(done.stdout)["problems"]
    assert (product["state"], shares["state"]) == ("right", "right")
    assert "precision: tf32x3\n" in (folder / "kernelbench" / "inverse.yaml").read_text()
    assert (
        "left out: precision says how kernels multiply float32 matrices, and here none does, or torch multiplies them"
        in shares["notes"]
    )
    assert "precision" not in (folder / "kernelbench" / "shares.yaml").read_text()
    line = refused("kernelbench", "bench", "--precision", "tf64", cwd=folder)
    assert line == "error: --precision: must be ieee, tf32x3 or tf32, not 'tf64'"


def test_a_folder_without_problems_is_a_mistake(tmp_path: Path) -> None:
    assert refused("kernelbench", ".", cwd=tmp_path).startswith("error: .: no problem files here, in level1/ or in Ker")
    assert refused("kernelbench", ".", "--level", "9", cwd=tmp_path).startswith(
        "error: --level: must be a whole number"
    )


def timed(low: float, **more: Any) -> dict[str, Any]:
    row = {"against": {"eager": {"low": low}, "compile": {"low": 0.9}}}
    return {"imported": True, "generated": True, "accuracy": {"passed": 1}, "performance": [row], **more}


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"imported": True, "generated": False, "reason": "unsupported"}, "refused"),
        (timed(1.1, accuracy={"failed": 0}, kernelbench={"float32": {"right": True}}), "right"),
        (timed(1.1, accuracy={"failed": 1}), "wrong"),
        (timed(1.1, accuracy_at_its_shapes={"failed": 2}), "wrong"),
        (timed(1.1, kernelbench={"float32": {"right": True}, "float16": {"right": False}}), "wrong"),
        (timed(1.1, kernelbench={"float32": {"right": False, "as_precise": False}}), "wrong"),
        (timed(1.1, kernelbench={"float32": {"right": False, "as_precise": True}}), "right"),
        (timed(1.1, kernelbench={"float16": {"right": None}}), "right"),
        (timed(1.1, timed_out=True), "timed out"),
        (timed(1.1, timed_out=True, accuracy={"failed": 1}), "wrong"),
        (timed(1.1, fault=True), "fault"),
        ({"generated": True, "accuracy": {"cases": 4, "passed": 0, "failed": 0, "left_out": 4}}, "untested"),
        ({"generated": True, "kernelbench": {"float32": {"right": None}}}, "untested"),
    ],
)
def test_the_state_of_a_problem(outcome: dict[str, Any], state: str) -> None:
    assert kernelbench.state(outcome) == state


def test_the_summary_counts_what_is_faster_for_certain() -> None:
    outcomes = [timed(1.01), timed(1.0), {"imported": True}]
    outcomes = [o | {"state": kernelbench.state(o)} for o in outcomes]
    counts = kernelbench.summary(outcomes)
    assert (counts["timed"], counts["faster than eager"], counts["faster than compile"]) == (2, 1, 0)
    assert (counts["imported"], counts["generated"], counts["right"], counts["refused"]) == (3, 2, 2, 1)


def of_speed(eager: float, state: str = "right", **more: Any) -> dict[str, Any]:
    row = {"against": {"eager": {"low": eager, "speedup": eager}}}
    return {"state": state, "performance": [row], **more}


def test_fast_p_counts_all_problems_and_those_that_are_right_alone() -> None:
    outcomes = [of_speed(4.0), of_speed(1.0), of_speed(9.0, "wrong"), {"state": "refused"}]
    shares = [kernelbench.fast(outcomes, "eager", p) for p in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert shares == [0.5, 0.5, 0.25, 0.25, 0.0]
    assert kernelbench.mean_speedup(outcomes, "eager") == pytest.approx(2.0)
    assert kernelbench.mean_speedup(outcomes, "compile") is None


def test_figures_after_rounds_are_of_what_was_kept_and_found_right() -> None:
    better = {"kept": 2, **of_speed(4.0), "kernelbench": {"float32": {"right": True}}}
    del better["state"]
    broken = better | {"kernelbench": {"float32": {"right": False}}}
    outcomes = [of_speed(1.0, optimized=better), of_speed(1.0, optimized=broken), of_speed(1.0, optimized={"kept": 0})]
    figures = kernelbench.figures(outcomes)
    assert figures["fast_2 over eager"] == 0.0
    assert figures["fast_2 over eager after rounds"] == pytest.approx(1 / 3)
    assert figures["geometric mean over eager after rounds"] == pytest.approx(4 ** (1 / 3))


def test_refusals_are_counted_by_reason() -> None:
    reasons = ["a.py:3:9: unsupported: a size of 12", "b.py:7:1: unsupported: a size of 64", "no input"]
    refused = [{"state": "refused", "reason": reason} for reason in reasons]
    assert kernelbench.refusals([*refused, of_speed(1.0)]) == {"unsupported: a size of N": 2, "no input": 1}


def test_rounds_that_cannot_be_played_say_why(tmp_path: Path) -> None:
    found = rounds.played(rounds.begun(tmp_path, "missing", 1, "float32"))
    assert (found["rounds"], found["kept"]) == (0, 0)
    assert "missing.yaml" in found["reason"]


def test_rounds_get_ready_and_begin_when_they_are_to(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(DOUBLE)
    assert subprocess.run(
        [sys.executable, "-m", "kernelgen", "new", "double.yaml", "--no-verify"], cwd=tmp_path, check=False
    ).returncode == 0  # fmt: skip
    ready = rounds.begun(tmp_path, "double", 1, "float32")
    journal = f"{tmp_path}/logs/double/*/journal.jsonl"
    while not glob.glob(journal) and ready.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    assert [json.loads(line)["kind"] for line in Path(*glob.glob(journal)).read_text().splitlines()] == ["run"]
    found = rounds.played(ready)
    assert found["reason"], found
    assert len(Path(*glob.glob(journal)).read_text().splitlines()) > 2
    rounds.left(waits := rounds.begun(tmp_path, "double", 1, "float32"))
    assert waits.returncode < 0


@pytest.mark.parametrize(
    ("result", "dtype", "right"),
    [("x * 2", "float32", True), ("x * 2.001", "float32", False), ("x * 2.001", "float16", True), ("x[0]", "float32", False)],
)  # fmt: skip
def test_the_tolerance_is_kernelbenchs(result: str, dtype: str, right: bool, tmp_path: Path) -> None:
    original, exported = tmp_path / "original.py", tmp_path / "exported.py"
    original.write_text(PROBLEM.format(result="x * 2"))
    exported.write_text(PROBLEM.format(result=result).replace("Model(", "ModelNew("))
    found = compare(original, exported, dtype, "cpu")
    assert found["right"] is right
    assert right or found["message"].startswith(("differs by ", "shape "))


@pytest.mark.parametrize(
    ("theirs", "ours", "as_precise"),
    [
        ("(x + 1000) - 1000", "x", True),  # half an element of x is lost in float16
        ("(x + 1000) - 1000", "(x + 1000) - 1000 + 0.1", True),
        ("(x + 1000) - 1000", "x + 1", False),
        ("x * 2 - (x.dtype == torch.float16) * 0.007", "x * 2 + 0.007", True),  # both are within the tolerance
        ("x * 2 - (x.dtype == torch.float16) * 0.007", "x * 2 + 0.3", False),
        ("x * 2", "x * 2 + 0.3", False),
    ],
)
def test_where_the_two_differ_both_are_measured_against_float64(
    theirs: str, ours: str, as_precise: bool, tmp_path: Path
) -> None:
    original, exported = tmp_path / "original.py", tmp_path / "exported.py"
    original.write_text(PROBLEM.format(result=theirs))
    exported.write_text(PROBLEM.format(result=ours).replace("Model(", "ModelNew("))
    found = compare(original, exported, "float16", "cpu")
    assert found["right"] is False  # as KernelBench says
    assert found["as_precise"] is as_precise, found["message"]
    entry = timed(1.1, kernelbench={"float16": found})
    assert kernelbench.state(entry) == ("right" if as_precise else "wrong")
    assert kernelbench.fast([entry | {"state": kernelbench.state(entry)}], "eager", 0.0) == 0.0
    assert kernelbench.summary([entry | {"state": "right"}])["differ by KernelBench's tolerance"] == 1


def test_a_reason_loses_the_folder_of_its_file_and_nothing_else() -> None:
    said = "op.yaml:23:3: unsupported: adaptive_avg_pool3d.default (supported: `kernelgen docs spec` lists all 264)"
    assert _why({"reason": f"/some/folder/{said}"}) == said
    assert _why({"reason": "took 3 s in /some/folder"}) == "took 3 s in /some/folder"


def test_forks_share_the_cases(tmp_path: Path) -> None:
    def part(*labels: str) -> Callable[[], Iterator[Verdict]]:
        return lambda: (Verdict(label, label != "b", "", f"{os.getpid()}", False) for label in labels)

    begun = shared.begin([part("a", "b"), part(), part("c")], tmp_path)
    found = {v.label: v for v in shared.ended(begun)}
    assert {label: v.passed for label, v in found.items()} == {"a": True, "b": False, "c": True}
    assert len({os.getpid(), int(found["a"].message), int(found["c"].message)}) == 3
    assert found["a"].message == found["b"].message


def test_a_fork_that_only_helps_is_ended_however_it_fared(tmp_path: Path) -> None:
    def hangs() -> Iterator[Verdict]:
        time.sleep(600)
        yield from ()

    def dies() -> Iterator[Verdict]:
        os._exit(3)

    begun = shared.begin([hangs, dies], tmp_path / "helpers")
    shared.end(begun)
    for process in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_what_a_fork_found_is_known_before_it_ends(tmp_path: Path) -> None:
    """A case that hangs, or ends the process, hides nothing of those before it."""

    def hangs() -> Iterator[Verdict]:
        yield Verdict("wrong", False, "", "", False)
        while not (tmp_path / "known").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), 9)

    verdicts = shared.ended(shared.begin([hangs], tmp_path))
    assert next(verdicts).label == "wrong"
    (tmp_path / "known").touch()
    with pytest.raises(RuntimeError, match="ended with -9"):
        next(verdicts)


def test_hidden_cases_share_the_kinds_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed case meets all of them, a hidden one a few, and all hidden ones together all."""
    asked: list[tuple[str, ...]] = []

    def noted(operator: Any, case: judge.Case, *, distributions: Sequence[str], **others: Any) -> judge.CaseReport:
        asked.append(tuple(distributions))
        assert others["seeds"] <= len(distributions)
        return judge.CaseReport(case, passed=True)

    monkeypatch.setattr(judge, "accuracy_case", noted)
    x = judge.Tensor("x", ("N",), "float32")
    operator = judge.Operator("op", torch.neg, torch.neg, torch.neg, (x,), (x,))
    cases = [judge.Case({"N": 3}, {}), *(judge.Case({"N": n}, {}, hidden=True) for n in range(30))]
    assert all(v.passed for v in shared.judged(operator, cases, "cpu", 3))
    assert asked[0] == DISTRIBUTIONS
    assert {len(kinds) for kinds in asked[1:]} == {shared.HIDDEN_TRIALS}
    assert {kind for kinds in asked[1:] for kind in kinds} == set(DISTRIBUTIONS)


COMPILES = """\
import sys
from types import SimpleNamespace
sys.path.insert(0, {folder!r})
from kernelgen import devices, judge
judge.prepare = lambda: None
devices.find = lambda name: SimpleNamespace(facts=devices.facts.by_name("NVIDIA H200"))
from kernelgen.kernelbench import rounds, shared
from kernelgen.kernelbench.problem import name_of
import broadcast_accuracy as quartet
case = next(c for c in quartet.CASES if "float32" in c.dtypes.values())
assert not list(shared.compiled(quartet.OPERATOR, [case]))
"""


def test_what_cases_launch_is_compiled_for_a_gpu_that_nothing_is_asked_of(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "operators" / "broadcast"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", COMPILES.format(folder=str(folder))], check=True, env=environment)
    assert list(tmp_path.rglob("broadcast*.cubin"))


def test_a_problem_never_outlives_the_command(tmp_path: Path) -> None:
    """It is in a session of its own, which the killing of the command's would miss."""
    said = tmp_path / "hanging"
    started = f"import os\nopen({str(said)!r}, 'w').write(f'{{os.getpid()}} {{os.getppid()}} ')\n"
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "1_Hangs.py").write_text(started + HANGS + PROBLEM.format(result="x"))
    command = [sys.executable, "-m", "kernelgen", "kernelbench", "bench", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as parent:
        until = time.monotonic() + 120
        while not (said.exists() and said.read_text().endswith(" ")) and time.monotonic() < until:
            time.sleep(0.05)
        left = [int(pid) for pid in said.read_text().split()]
        parent.kill()  # alone: what it started would get no signal of its group's
    until = time.monotonic() + 20
    while any(_state_of(pid) != "Z" for pid in left) and time.monotonic() < until:
        time.sleep(0.05)
    assert [_state_of(pid) for pid in left] == ["Z", "Z"]


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"

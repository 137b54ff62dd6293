"""The evaluators: real workers on a small hand-written quartet; the GPU's own part is marked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from kernelgen import devices
from kernelgen.analysis import Work
from kernelgen.cli.names import Quartet
from kernelgen.cli.optimize import begun as early
from kernelgen.errors import NoDeviceError
from kernelgen.evaluate import (
    Candidate,
    Evaluator,
    Limits,
    begins_early,
    begun,
    cuda,
    evaluator,
    profile,
    remembered,
    source_hash,
)
from kernelgen.evaluate.base import SAME_CODE
from kernelgen.evaluate.cpu import CpuEvaluator
from kernelgen.evaluate.cuda import CudaEvaluator, heats
from kernelgen.evaluate.factory import EVALUATORS
from kernelgen.evaluate.kernels import Call
from kernelgen.optimization import Options
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json, to_json
from kernelgen.plan import KernelPlan, Schedule, TableRow
from kernelgen.spec.model import Case, OperatorSpec, Place, TensorSpec
from kernelgen.worker import private
from kernelgen.worker.client import Failed, Worker

QUARTET = Path(__file__).parent / "quartets" / "scale"
SOURCE = (QUARTET / "scale_triton.py").read_text()
BIG = Case((("...", (4096,)), ("D", 4096)), (("T", "float32"),), "[4096] D=4096 float32")
SMALL = Case((("...", (256,)), ("D", 1024)), (("T", "float16"),), "[256] D=1024 float16")
SCHEDULE = Schedule.make("flat", BLOCK_SIZE=1024, num_warps=4)


def spec() -> OperatorSpec:
    tensor = TensorSpec("x", ("...", "D"), "T")
    return OperatorSpec(
        name="scale",
        summary="Twice the input.",
        inputs=(tensor,),
        outputs=(TensorSpec("out", ("...", "D"), "T"),),
        dtypes=(("T", ("float16", "float32")),),
        constraints=(),
        reference="def scale(x):\n    return x * 2\n",
        reference_place=Place(1, 1),
        accuracy=(),
        performance=(BIG, SMALL),
    )


def work(case: Case) -> Work:
    elements = 1
    for n in case.shape(("...", "D")):
        elements *= n
    size = elements * {"float16": 2, "float32": 4}[case.dtype("T")]
    return Work(size, size, elements)


def candidate(*cases: Case, what: str = "as it is", **changes: str) -> Candidate:
    source = SOURCE
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    return Candidate(source, source_hash(source), 0, SCHEDULE, cases or (BIG, SMALL), what)


CURRENT = candidate()


def make(device: str, store: Path, arch: str | None = None, limits: Limits | None = None) -> Evaluator:
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    return evaluator(devices.find(device, arch), plan, QUARTET, store, work, jobs=2, limits=limits)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with make("cpu", folder / "candidates") as found:
            yield found


def test_accuracy_cases_are_compiled_before_the_device_is_asked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For hidden sizes and other alignments too, by a real compile worker, each kernel once; the process with the
    device is played. What does not compile is left to the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    judged = {"passed": True, "message": "", "left_out": "", "peak_bytes": None}
    errors = dict.fromkeys(("max_error", "eager_error", "relative_error", "l2_error", "bound_share"), 0.0)
    cases = [
        {"sizes": {"...": [rows], "D": 48}, "dtypes": {"T": "float32"}, "label": f"[{rows}] {layout}", "layout": layout}
        for rows, layout in ((3, "contiguous"), (5, "contiguous"), (7, "offset"), (9, "offset"), (9, "sliced"))
    ]
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, Limits(), "run") as found:
        store = Path(private.variables(found._private)["TRITON_CACHE_DIR"])
        case, compiled = cases[0], []

        def played(op: str, args: dict[str, object], limit_s: float) -> dict[str, object]:
            if op == "accuracy_cases":
                return {"cases": [case]}
            before = sorted(store.rglob("*.cubin"))
            found._compile_judged({**args, "path": str(args["path"])}, case)
            assert sorted(store.rglob("*.cubin")) == before  # nothing was left to compile
            compiled.append(len(before))
            return {"label": case["label"], **judged, **errors}

        monkeypatch.setattr(found.runner, "call", played)
        for one in cases:
            case = one
            assert found.verify(CURRENT).status is Status.OK
        broken = candidate(**{"tl.load": "tl.loaded"})
        assert found.verify(broken).status is Status.OK  # the run would say that it does not compile
    assert compiled == [1, 1, 2, 2, 2, 2]


def rows_of(numbers: Iterable[int]) -> list[dict[str, object]]:
    """Cases of so many rows, as a worker lists them."""
    return [
        {"sizes": {"...": [rows], "D": 2}, "dtypes": {"T": "float32"}, "label": f"[{rows}]", "layout": "sliced"}
        for rows in numbers
    ]


class Played:
    """A process that verifies; `cannot`: it does not start, `fails` and `leaves_out`: which case."""

    def __init__(
        self, name: str, asked: list[tuple[str, str]], cannot: bool = False, fails: str = "", leaves_out: str = ""
    ) -> None:
        self._name, self._asked, self._cannot, self._fails, self._leaves_out = name, asked, cannot, fails, leaves_out

    def start(self) -> None:
        if self._cannot:
            raise NoDeviceError("the device is another process's")

    def close(self) -> None:
        """Nothing runs."""

    def call(self, op: str, args: dict[str, object], limit_s: float) -> dict[str, object]:
        if op == "release":
            return {}
        label = str(cast(dict[str, object], args["case"])["label"])
        self._asked.append((self._name, label))
        time.sleep(0.02)
        if label == self._fails:
            raise Failed(Status.TIMEOUT, "not finished")
        return {"label": label, "left_out": "no memory" if label == self._leaves_out else ""}


@pytest.mark.parametrize("cannot", [False, True])
def test_several_processes_verify_and_the_one_that_times_takes_what_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cannot: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = [3, 2**26, *range(5, 25)]
    cases = rows_of(sizes)
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    asked: list[tuple[str, str]] = []
    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, Limits(), "run") as found:
        found.runner = cast(Worker, Played("runner", asked))
        found._crew.checkers = tuple(cast(Worker, Played(f"checker {n}", asked, cannot)) for n in range(2))
        reports = list(found._accuracy(CURRENT, cases))
        assert [report["label"] for report in reports] == [case["label"] for case in cases]
        assert asked[-1] == ("runner", f"[{2**26}]")
        assert sorted(label for _, label in asked) == sorted(case["label"] for case in cases)
        assert len({name for name, _ in asked}) == (1 if cannot else 3)
        for wrong in ({"fails": "[7]"}, {"leaves_out": "[7]"}):  # the runner's word counts
            asked.clear()
            found._crew.checkers = tuple(cast(Worker, Played(f"checker {n}", asked, **wrong)) for n in range(8))
            reports = list(found._accuracy(CURRENT, [*cases[2:], *cases[2:]]))
            assert [report["left_out"] for report in reports] == [""] * len(reports)
        asked.clear()
        found._crew.checkers = (cast(Worker, Played("checker", asked)),)
        found.runner = cast(Worker, Played("runner", asked, fails="[5]"))
        with pytest.raises(Failed, match=r"\[5\]: not finished"):
            list(found._accuracy(CURRENT, [case for case in cases if case["label"] == "[5]"]))


def test_a_case_that_fails_ends_a_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for what is still being compiled, and nothing else is begun."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cases = rows_of(range(1, 500))
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    asked: list[tuple[str, str]] = []
    compiled: list[str] = []
    raised = threading.Event()

    def compile_judged(args: dict[str, object], case: dict[str, object]) -> None:
        compiled.append(str(case["label"]))
        if len(compiled) > 5:
            assert raised.wait(60)

    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, Limits(), "run") as found:
        found.runner = cast(Worker, Played("runner", asked, fails="[3]"))
        monkeypatch.setattr(found, "_compile_judged", compile_judged)
        with pytest.raises(Failed, match=r"\[3\]: not finished"):
            list(found._accuracy(CURRENT, cases))
        raised.set()
    assert asked[-1] == ("runner", "[3]")
    assert len(compiled) <= 7


def test_an_interruption_of_a_verification_does_not_wait_for_all_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cases = rows_of(range(1, 500))
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    asked: list[tuple[str, str]] = []

    def interrupted(*_: object) -> None:
        while len(asked) < 3:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, Limits(), "run") as found:
        found.runner = cast(Worker, Played("runner", asked))
        assert list(found._accuracy(CURRENT, [])) == []
        monkeypatch.setattr(cuda, "wait", lambda futures: interrupted() if futures else None)
        with pytest.raises(KeyboardInterrupt):
            list(found._accuracy(CURRENT, cases))
    time.sleep(0.2)
    assert 3 <= len(asked) < 20


def test_a_kernel_that_passed_is_not_verified_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its text, its test, kernelgen or the machine is another, a case was left out, or what is kept of it cannot
    be read; and only where that will do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quartet = tmp_path / "quartet"
    shutil.copytree(QUARTET, quartet)
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    runs: list[str] = []
    report = {"label": "[3]", "passed": True, "message": "", "left_out": "", "peak_bytes": None}
    report |= dict.fromkeys(("max_error", "eager_error", "relative_error", "l2_error", "bound_share"), 0.0)

    def verified(one: Candidate, passes: bool = True, recall: bool = True, left_out: str = "") -> bool:
        """Whether its accuracy test was run."""
        with evaluator(devices.find("cpu"), plan, quartet, tmp_path / "c", work) as found:
            monkeypatch.setattr(found.runner, "call", lambda op, args, limit_s: {"cases": [{"label": "[3]"}]})
            judged = [{**report, "passed": passes, "message": "" if passes else "wrong"}]
            judged += [{**report, "left_out": left_out}] if left_out else []
            monkeypatch.setattr(found, "_accuracy", lambda one, cases: runs.append(one.source_hash) or iter(judged))
            runs.clear()
            said = found.verify(one, recall=recall)
            assert said.status is (Status.OK if passes else Status.INCORRECT)
            assert bool(said.message) is (not runs or not passes)  # when it was, or what is wrong
            return bool(runs)

    other = candidate(**{"tl.load": "tl.load "})
    assert verified(other, passes=False)
    assert verified(other, left_out="needs 9 GiB, 1 GiB free on cuda")
    assert verified(other)  # neither a failure nor a test without a case is kept
    assert verified(CURRENT, recall=False)
    assert not verified(CURRENT)
    assert not verified(other)
    assert verified(CURRENT, recall=False)
    test = quartet / f"{spec().name}_accuracy.py"
    test.write_text(test.read_text() + "# another case\n")
    assert verified(CURRENT)
    assert not verified(CURRENT)
    monkeypatch.setattr(remembered, "_kernelgen", lambda: b"another")
    assert verified(CURRENT)
    monkeypatch.setenv(remembered.PTXAS, "/another/ptxas")
    assert verified(CURRENT)
    for text in ("{", "[" * 200_000, "{}", '"verified"'):
        for kept in (tmp_path / "cache" / "kernelgen" / "verified").iterdir():
            kept.write_text(text)
        assert verified(CURRENT)


def test_a_quartet_without_a_test_is_said_to_have_none(cpu: Evaluator, tmp_path: Path) -> None:
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    with evaluator(devices.find("cpu"), plan, tmp_path, tmp_path / "c", work) as found:
        said = found.verify(CURRENT, recall=True)
    assert said.status is not Status.OK
    assert f"{spec().name}_accuracy" in said.message


def test_nothing_is_kept_of_what_an_ascend_compiler_made() -> None:
    """A verdict depends on its version too, which is not known."""
    assert [kind.remembers for kind, _ in EVALUATORS.values()] == [True, True, False, False, False]


def test_processes_that_begin_early_are_the_evaluators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not begins_early(devices.find("cpu"))
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    crew = begun(devices.find("cpu"), QUARTET)
    crew.settle()
    before = crew.compiling.pid
    assert before
    with evaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, jobs=2, crew=crew) as found:
        assert found.facts(CURRENT, CURRENT.cases[:1])
        assert crew.compiling.pid == before
        kept = f"{CURRENT.source_hash}.py"
        assert (crew.store / kept).read_text() == (tmp_path / "c" / kept).read_text() == CURRENT.source
    assert not crew.folder.exists()
    assert not crew.store.exists()
    assert crew.compiling.pid is None


@pytest.mark.parametrize("together", [False, True])
def test_the_process_that_times_takes_the_device_before_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Where it is one process's alone, that has to be the runner; else none waits for another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    began: list[str] = []

    class Alone:
        def __init__(self, name: str) -> None:
            self._name = name

        def start(self) -> None:
            time.sleep(0.05 if self._name == "runner" else 0.0)
            began.append(self._name)
            if not together and began[0] != self._name:
                raise NoDeviceError("the device is another process's")

        def call(self, op: str, args: dict[str, object], limit_s: float) -> dict[str, object]:
            assert op == "warm_up"
            assert together or self._name == "runner"
            return {}

        def close(self) -> None:
            """Nothing runs."""

    for _ in range(5):
        began.clear()
        with CpuEvaluator.crew(devices.find("cpu"), (QUARTET,), "verify") as crew:
            crew.runner, crew.second = cast(Worker, Alone("runner")), cast(Worker, Alone("second"))
            crew.checkers = tuple(cast(Worker, Alone(f"checker {n}")) for n in range(3))
            crew.begin(together=together)
            crew.settle()
        assert (began[0] == "runner") is not together
        assert len(began) == (5 if together else 1 + 4 + 1)


def test_a_folder_that_is_made_for_the_processes_stays_if_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an operator that has no kernel yet they are to read what is about to be generated."""
    seen: list[bool] = []

    class Idle:
        def close(self) -> None:
            """Nothing runs."""

    def begins(device: devices.Device, folder: Path) -> Idle:
        seen.append(folder.is_dir())
        return Idle()

    monkeypatch.setattr("kernelgen.evaluate.begins_early", lambda device: True)
    monkeypatch.setattr("kernelgen.evaluate.begun", begins)
    quartet, options = Quartet("op", tmp_path / "operators" / "op"), Options(tmp_path / "operators")
    here = devices.find("cpu")
    with pytest.raises(ValueError, match="not generated"), early(here, quartet, options, spec()):
        raise ValueError("not generated")
    assert not list(tmp_path.iterdir())
    with early(here, quartet, options, replace(spec(), family="custom")) as crew:
        assert crew is None, "two would want the device while a language model writes the kernel"
    with early(here, quartet, options, spec()):
        quartet.file("triton").touch()
    assert quartet.file("triton").is_file()
    assert seen == [True, True]
    monkeypatch.setattr("kernelgen.evaluate.begun", lambda device, folder: Path("/proc/none/x").mkdir())
    other = Quartet("other", tmp_path / "operators" / "other")
    with pytest.raises(OSError, match="No such file"), early(here, other, options, spec()):
        raise AssertionError
    assert not other.folder.exists()


def test_a_search_yields_every_candidate_with_its_outcome(cpu: Evaluator) -> None:
    """Good and bad candidates together; predictions are labelled and never have an interval."""
    wide = candidate(what="wider", **{"1024": "2048"})
    twin = candidate(what="wider, other text", **{"1024": "2048", "written by hand": "typed by hand"})
    same = candidate(what="other text", **{"written by hand": "typed by hand"})
    broken = candidate(what="broken", **{"x * 2": "x * nothing"})
    dies = candidate(what="dies", **{"    size = x.numel()": "    import os; os._exit(1)"})
    found = {c.what: e for c, e in cpu.search([wide, twin, same, broken, dies], CURRENT)}
    assert found["broken"].status == Status.COMPILE_ERROR
    assert "nothing" in found["broken"].message
    assert found["dies"].status == Status.CRASHED
    assert found["other text"].message == SAME_CODE + CURRENT.source_hash
    assert found["other text"].timings == ()
    first, second = sorted([found["wider"], found["wider, other text"]], key=lambda e: len(e.message))
    assert second.message == SAME_CODE + first.source_hash
    assert second.timings == first.timings
    for timing in first.timings:
        assert timing.source == "predicted"
        assert timing.interval is None
        assert timing.against == "current"
        assert timing.floor_us is not None
        assert timing.floor_us < timing.time_us
        assert timing.speedup == pytest.approx(timing.against_us / timing.time_us)
    assert {label for label, _ in first.facts} == {BIG.label, SMALL.label}
    assert all(e.seconds > 0 for e in found.values())
    assert all(evaluation_from_json(to_json(e)) == e for e in found.values())


def test_final_baselines_and_profile_say_what_they_are(cpu: Evaluator) -> None:
    final = cpu.final(candidate(**{"1024": "2048"}), CURRENT, (BIG,))
    assert [(t.case, t.source, t.interval) for t in final.timings] == [(BIG.label, "predicted", None)]
    baselines = cpu.baselines(CURRENT, (BIG,))
    assert baselines.timings == ()
    assert "no GPU" in baselines.left_out[0][1]
    counters = cpu.profile(CURRENT, BIG)
    assert counters.source == "predicted"
    assert counters.dram_utilisation is not None
    assert 0.3 < counters.dram_utilisation < 1
    assert not cpu.measures


def test_facts_follow_the_architecture(cpu: Evaluator, tmp_path: Path) -> None:
    with make("cpu", tmp_path, "sm_100") as other:
        (label, facts), *_ = other.facts(CURRENT, (BIG,))
    assert (label, facts.arch) == (BIG.label, "sm_100")
    (_, here), *_ = cpu.facts(CURRENT, (BIG,))
    assert here.arch == "sm_90"
    assert here.waves > facts.waves


def test_verification_runs_the_quartets_own_cases(cpu: Evaluator) -> None:
    right = cpu.verify(CURRENT)
    assert right.status == Status.OK
    labels = {a.case for a in right.accuracy}
    assert {"[4] D=128 float32", "[3, 5] D=129 float16"} <= labels
    assert any(label.startswith("hidden") for label in labels)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"x * 2,": "x * 3,"}, Status.INCORRECT, "D=1"),
        ({"mask = offsets < size": "mask = offsets < size - 1"}, Status.INCORRECT, "D=1"),
        ({"    size = x.numel()": "    import os; os._exit(1)"}, Status.CRASHED, "exit status 1"),
        ({"def scale(x):": "def scale(x):\n    while True: pass"}, Status.TIMEOUT, "not finished"),
    ],
    ids=["wrong", "tail", "crash", "hang"],
)
def test_a_wrong_candidate_is_found_out_and_the_next_is_right(
    cpu: Evaluator, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], status: Status, words: str
) -> None:
    if status == Status.TIMEOUT:
        monkeypatch.setattr(cpu, "limits", Limits(accuracy_s=3))
    wrong = cpu.verify(candidate(**changes))
    assert wrong.status == status
    assert words in wrong.message
    monkeypatch.undo()
    assert cpu.verify(CURRENT).status == Status.OK


def test_the_parent_stays_small() -> None:
    """The room that the loop imports brings in neither torch nor triton."""
    code = "import sys, kernelgen.evaluate; sys.exit(bool({'torch', 'triton', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_is_left_running(tmp_path: Path) -> None:
    before = set(children())
    with make("cpu", tmp_path) as cpu:
        list(cpu.search([candidate(**{"1024": "512"})], CURRENT))
        assert set(children()) - before
    assert not set(children()) - before


NCU = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","scale_kernel","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","91.5"
"0","1","scale_kernel","lts__t_sector_hit_rate.pct","%","50.01"
"0","1","scale_kernel","sm__warps_active.avg.pct_of_peak_sustained_active","%","1,00.0"
"""


def test_reading_ncu() -> None:
    counters = profile.parse(NCU, "scale_kernel")
    assert counters is not None
    assert counters.source == "ncu"
    assert counters.dram_utilisation == pytest.approx(0.915)
    assert counters.l2_hit == pytest.approx(0.5001)
    assert counters.achieved_occupancy == pytest.approx(1.0)
    assert counters.l1_hit is None
    assert profile.parse("==ERROR== ERR_NVGPUCTRPERM", "scale_kernel") is None
    assert "ERR_NVGPUCTRPERM" in profile.reason("==ERROR== ERR_NVGPUCTRPERM")
    assert profile.reason(None) == "ncu took too long"


COUNTS = """#!{python}
import json, pathlib, sys, time
told = json.loads(sys.argv[-1])
print({head!r})
with open({asked!r}, "a") as file:
    print(len(told), file=file)
for number, request in enumerate(told):
    if "HANGS" in pathlib.Path(request["path"]).read_text():
        time.sleep(60)
    if "CRASHES" in pathlib.Path(request["path"]).read_text():
        sys.exit("CUDA error: an illegal memory access was encountered")
    print(f'"{{number}}","1","scale_kernel","gpu__time_duration.sum","ns","{{len(request["case"]["label"])}}000"')
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """How many calls each start of a profiler was asked for, which counts what does not crash and ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ncu, asked = tmp_path / "ncu", tmp_path / "asked"
    ncu.write_text(COUNTS.format(python=sys.executable, head=NCU.splitlines()[1], asked=str(asked)))
    ncu.chmod(0o755)
    monkeypatch.setattr(profile, "ncu", lambda: str(ncu))
    monkeypatch.setattr(profile, "_refusals", [])
    return asked


def test_a_call_that_fails_under_ncu_takes_no_other_with_it(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call crashes, one does not compile: calls before and after them are counted, in few starts of ncu."""
    crashes = candidate(**{"import triton\n": "import triton  # CRASHES\n"})
    broken = candidate(**{"tl.load": "tl.loaded"})
    calls = [
        Call(one, case, what)
        for one, case, what in (
            (CURRENT, BIG, "a"), (CURRENT, SMALL, "b"), (crashes, BIG, "c"), (CURRENT, BIG, "d"), (broken, BIG, "e"),
            (CURRENT, SMALL, "f"),
        )
    ]  # fmt: skip
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, Limits(), "run") as found:
        monkeypatch.setattr(found.runner, "call", lambda op, args, limit_s: {"left_out": "", "time_us": 7.0})
        told = list(found.kernels(calls))
    failed = told.pop(4)
    assert isinstance(failed, Failed)
    assert "loaded" in failed.message
    rows = [
        (row.configuration, row.source, row.duration_us)
        for rows, _ in told
        if not isinstance(rows, str)
        for row in rows
    ]
    big, small = float(len(BIG.label)), float(len(SMALL.label))
    assert rows == [
        ("a", "ncu", big), ("b", "ncu", small), ("c", "derived", 7.0), ("d", "ncu", big), ("f", "ncu", small),
    ]  # fmt: skip
    assert asked.read_text().split() == ["4", "2", "1", "1", "1"]
    assert profile._refusals == []


def test_a_call_that_does_not_end_under_ncu_is_asked_for_twice_and_torchs_own_not_at_all(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = candidate(**{"import triton\n": "import triton  # HANGS\n"})
    torchs = candidate(**{"if size:": "if not size:"})
    calls = [
        Call(one, BIG, what)
        for one, what in ((CURRENT, "a"), (CURRENT, "b"), (hangs, "c"), (CURRENT, "d"), (torchs, "e"), (CURRENT, "f"))
    ]
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    limits = Limits(profile_s=2.0, profiled_call_s=0.1)
    with CudaEvaluator(devices.find("cpu"), plan, QUARTET, tmp_path / "c", work, 2, limits, "run") as found:
        monkeypatch.setattr(found.runner, "call", lambda op, args, limit_s: {"left_out": "", "time_us": 7.0})
        told = [one for one in found.kernels(calls) if not isinstance(one, Failed)]
    rows = [(row.configuration, row.source) for rows, _ in told for row in rows]
    assert rows == [
        ("a", "ncu"), ("b", "ncu"), ("c", "derived"), ("d", "ncu"), ("e", "sum, derived"), ("f", "ncu"),
    ]  # fmt: skip
    assert [why for _, why in told] == ["", "", profile.TOO_LONG, "", profile.NO_KERNEL, ""]
    assert asked.read_text().split() == ["4", "1", "1", "1", "1", "1"]


def children() -> list[str]:
    """Live processes started by this one, on any of its threads."""
    tasks = Path("/proc/self/task")
    pids = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with make("cuda", tmp_path_factory.mktemp("candidates"), limits=Limits(accuracy_s=60, race_s=20)) as found:
        yield found


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_timed_beside_what_torch_compiles_ahead(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    device = devices.Device("cuda", True, devices.find("cpu", "sm_90").facts)
    plan = KernelPlan(spec(), "pointwise", None, (TableRow((), SCHEDULE),))
    asked: list[tuple[str, object]] = []

    def second(op: str, args: dict[str, object], limit_s: float) -> dict[str, object]:
        time.sleep(0.3)
        asked.append((op, len(cast(list[object], args["cases"]))))
        if fails:
            raise Failed(Status.CRASHED, "gone")
        return {}

    def runner(op: str, args: dict[str, object], limit_s: float) -> dict[str, object]:
        asked.append((str(args["against"]), args["check"]))
        return {"left_out": "", "time_us": 1.0, "against_us": 2.0}

    with evaluator(device, plan, QUARTET, tmp_path / "candidates", work, jobs=2) as found:
        monkeypatch.setattr(found.second, "call", second)
        monkeypatch.setattr(found.runner, "call", runner)
        found.expect((BIG, SMALL), counters=False)
        assert found.baselines(CURRENT, (BIG,)).status == Status.OK
    assert asked == [*[("compile_opponents", 1)] * 2, ("eager", True), ("compile", False)]


FAULTY = {
    "wrong": ({"x * 2,": "x * 3,"}, Status.INCORRECT),
    "illegal": ({"x_ptr + offsets, mask": "x_ptr + offsets.to(tl.int64) * 1099511627776, mask"}, Status.CRASHED),
    "hang": (
        {"    x = tl.load": "    while tl.load(x_ptr, volatile=True) != 1e30:\n        size += 0\n    x = tl.load"},
        Status.TIMEOUT,
    ),
    "exit": (
        {
            "    size = x.numel()": "    import os\n    if x.is_cuda: os._exit(1)\n    size = x.numel()",
            "num_warps=4": "num_warps=2",  # other machine code: a twin of the current kernel would not be run
        },
        Status.CRASHED,
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAULTY)
def test_gpu_faults_are_typed_and_the_next_candidate_is_unaffected(gpu: Evaluator, name: str) -> None:
    changes, status = FAULTY[name]
    bad = candidate(what=name, **changes)
    good = candidate(what="good", **{"num_warps=4": "num_warps=8"})
    found: dict[str, Evaluation] = {c.what: e for c, e in gpu.search([bad], CURRENT)}
    assert found[name].status == status, found[name].message
    after = {c.what: e for c, e in gpu.search([good], CURRENT)}["good"]
    assert after.status == Status.OK, after.message
    assert [t.source for t in after.timings] == ["measured", "measured"]


@pytest.mark.gpu
def test_gpu_measures_with_an_interval(gpu: Evaluator) -> None:
    final = gpu.final(CURRENT, CURRENT, (BIG, SMALL))
    assert final.status == Status.OK, final.message
    for timing in final.timings:
        assert timing.source == "measured"
        assert timing.interval is not None
        assert 0.95 < timing.interval.low <= timing.speedup <= timing.interval.high < 1.05
        assert timing.call_us is not None
        assert timing.floor_us is not None
    baselines = gpu.baselines(CURRENT, (BIG,))
    assert {t.against for t in baselines.timings} == {"eager", "compile"}
    assert gpu.verify(CURRENT).status == Status.OK
    counters = gpu.profile(CURRENT, BIG)
    assert counters.dram_utilisation is not None
    assert 0.3 < counters.dram_utilisation < 1.1
    text = candidate(what="other text", **{"written by hand": "typed by hand"})
    assert counters.source != "ncu" or gpu.profile(text, BIG) is counters, "the same machine code is counted once"


@pytest.mark.gpu
def test_gpu_finds_the_cubin_that_the_compile_worker_made(gpu: Evaluator) -> None:
    """The ahead-of-time compile and the launch agree on Triton's cache key: no second cubin appears."""
    fresh = candidate(SMALL, what="fresh", **{"x * 2,": f"x * 2 + 0 * {os.getpid()},"})
    gpu.facts(fresh, (SMALL,))
    cache = gpu._private / "triton"
    before = len(list(cache.glob("*/scale_kernel.cubin")))
    assert before
    assert gpu.final(fresh, fresh, (SMALL,)).status == Status.OK
    assert len(list(cache.glob("*/scale_kernel.cubin"))) == before


def test_who_leads_makes_a_race_shorter_for_the_others() -> None:
    assert heats(1.0) == [(1, 1.5), (3, 1.1)]
    # 25 % faster than the current kernel was seen: what is 1.2 times that is as fast as the current one
    assert heats(1.25) == [(1, 1.2), (3, pytest.approx(0.88))]

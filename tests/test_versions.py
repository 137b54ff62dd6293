"""Hand edits: an edited kernel as a candidate, versions that come back, and two kernels side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rounds_fakes import COMPILER, START, FakeEvaluator, device, make_plan, options, run, source, write_kernel

from kernelgen import custom, generation
from kernelgen.cli import main
from kernelgen.errors import HandEditedError
from kernelgen.evaluate import Candidate
from kernelgen.journal import Journal, source_hash
from kernelgen.manifest import read_manifest
from kernelgen.optimization import RunResult, optimize
from kernelgen.outcomes import Evaluation, Status
from kernelgen.plan import Plan, Schedule
from kernelgen.spec import load_spec
from kernelgen.versions import version, versions

SPEC = """\
name: double
summary: Twice the input.
inputs:
  - {name: x, shape: [N], dtype: float32}
outputs:
  - {name: out, shape: [N], dtype: float32}
reference: |
  def double(x):
      return x * 2
accuracy: {shapes: [{N: 5}]}
performance: {shapes: [{N: 1024}]}
"""


def adopted_or_printed(plan: Plan) -> str:
    schedule = plan.table[0].schedule
    return custom.adopted_source(plan.spec, schedule) if schedule.variant == custom.ADOPTED else source(plan)


ADOPTING = replace(
    COMPILER,
    source=adopted_or_printed,
    space=lambda plan, row, cases: () if custom.is_foreign(plan.table) else COMPILER.space(plan, row, cases),
    legal=lambda plan, schedule, case: (
        None if schedule.variant in custom.FOREIGN else COMPILER.legal(plan, schedule, case)
    ),
)
"""The toy's compiler, which knows that no family wrote an adopted kernel."""


def adopt(root: Path, text: str, evaluator: FakeEvaluator | None = None) -> RunResult:
    evaluator = evaluator or FakeEvaluator()
    asked = options(root, rounds=1, adopted=text)
    return optimize(make_plan(), device(), lambda store: evaluator, asked, None, ADOPTING)  # type: ignore[arg-type,return-value]


def edited(schedule: Schedule) -> str:
    """A toy kernel as a person would leave it: not what any plan prints."""
    return source(make_plan().with_schedule(0, schedule)) + "# by hand\n"


def test_a_faster_edit_is_kept_as_it_is_and_the_rounds_go_on_from_it(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, make_plan())
    text = edited(START.replace(EVICT="evict_first", num_warps=8, num_stages=2, BLOCK_SIZE=1024))
    path.write_text(text)
    result = adopt(tmp_path, text)
    assert [(r.strategy, r.kept) for r in result.rounds] == [("start", True), ("adopt", True)]
    assert path.read_text() == text
    manifest = read_manifest(path.parent)
    assert manifest
    assert manifest.table == custom.adopted_table(make_plan().spec, text)
    log = (path.parent / "optimization_log.md").read_text()
    assert "+# by hand" in log
    assert "a kernel that a person edited" in log
    assert "not predicted" in log
    again = optimize(
        make_plan().with_table(manifest.table), device(), lambda store: FakeEvaluator(),  # type: ignore[arg-type,return-value]
        options(tmp_path, rounds=1), None, ADOPTING,
    )  # fmt: skip
    assert again.works


def test_a_slower_or_wrong_edit_is_left_where_it_is_and_said_to_be_so(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, make_plan())
    before = path.read_text()
    slow = edited(START.replace(num_warps=1))
    path.write_text(slow)
    result = adopt(tmp_path, slow)
    assert not result.rounds[1].kept
    assert path.read_text() == slow, "nobody's work is overwritten"
    assert not read_manifest(path.parent)

    def wrong(step: str, candidate: Candidate, found: Evaluation) -> Evaluation:
        bad = step == "verify" and "by hand" in candidate.source
        return replace(found, status=Status.INCORRECT, message="off by one") if bad else found

    path.write_text(slow + "# and wrong\n")
    result = adopt(tmp_path, slow + "# and wrong\n", FakeEvaluator(twist=wrong))
    assert "incorrect: off by one" in result.rounds[1].headline
    with pytest.raises(HandEditedError, match="--adopt"):
        run(tmp_path)
    path.write_text(before)
    assert adopt(tmp_path, slow, FakeEvaluator(twist=wrong)).rounds[1].kept is False, "of another file too"
    assert path.read_text() == before


def test_versions_are_what_the_rounds_kept(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, make_plan())
    result = run(tmp_path, rounds=3)
    known = versions(tmp_path / "logs" / "toy")
    assert [v.name for v in known] == [f"v1.{n}" for n in range(sum(r.kept for r in result.rounds))]
    assert known[0].text() == source(make_plan())
    assert known[-1].text() == path.read_text()
    assert "over eager" in known[-1].headline
    assert version("toy", "v1.1", tmp_path / "logs" / "toy") == known[1]


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A generated operator, and a journal with its kernel and another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "double.yaml").write_text(SPEC)
    assert main(["new", "double.yaml", "--no-verify"]) == 0
    spec = load_spec(Path("double.yaml"))
    plan = generation.plan_of(spec, Path("operators"))
    text = Path("operators/double/double_triton.py").read_text()
    journal = Journal.open(Path("logs/double/20260101-000000-abcdef"))
    journal.append("run", {"ordinal": 1, "spec": spec.sha256, "operator": "double"})
    standing = {"speedup": "2.000x over eager", "roofline": ""}
    for number, kernel in enumerate((text, text + "# of another generator\n")):
        table = [row.to_json() for row in plan.table]
        data = {"round": number, "kept": True, "hash": journal.store(kernel), "current": table}
        journal.append("round", data | {"entry": {"standing": standing}})
    journal.close()
    return Path("operators/double/double_triton.py")


def test_a_version_comes_back_byte_for_byte(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = double.read_text()
    assert main(["restore", "double"]) == 0
    assert "2.000x over eager" in capsys.readouterr().out
    assert main(["restore", "double", "v1.1"]) == 0
    assert "the generator writes another text now" in capsys.readouterr().out
    assert double.read_text() == text + "# of another generator\n"
    assert main(["new", "--check"]) == 0, "it is what its manifest says"
    assert main(["restore", "double", "1.0"]) == 0
    assert double.read_text() == text
    assert "adopted" not in double.with_name("generated.json").read_text()
    capsys.readouterr()
    assert main(["restore", "double", "v2.0"]) == 2
    assert "double has no version v2.0; there is v1.0, v1.1" in capsys.readouterr().err
    double.write_text(text + "# mine\n")
    assert main(["restore", "double", "v1.1"]) == 2
    assert "changed by hand" in capsys.readouterr().err
    assert main(["restore", "double", "v1.1", "--force"]) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def double(", "def triple("), "function name must stay as generated"),
        (("x: torch.Tensor)", "x)"), "types must stay as generated"),
        (("import triton\n", ""), "'triton' is"),
        (("def double(x", "def double(x:"), "not Python"),
        (("", ""), "nothing was edited"),
    ],
)
def test_what_cannot_take_the_kernels_place_is_refused_at_once(
    change: tuple[str, str], said: str, double: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(double.read_text().replace(*change))
    assert main(["optimize", "double", "--adopt", "mine.py", "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
    assert not any(Path("logs/double").glob("20261*"))


def test_two_kernels_are_set_against_each_other(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "double@v1.0", "double", "--device", "cpu"]) == 0
    assert "are identical" in capsys.readouterr().out
    Path("wrong.py").write_text(double.read_text().replace("x * 2", "x * 3"))
    assert double.read_text() != Path("wrong.py").read_text()
    assert main(["compare", "double", "wrong.py", "--device", "cpu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"]["double"]["status"] == "ok"
    assert found["accuracy"]["wrong.py"]["status"] == "incorrect"
    assert found["cases"] == [], "what is wrong is not timed"
    assert any(line.startswith("+") and "x * 3" in line for line in found["diff"])
    assert main(["compare", "double", "v1.1", "--device", "cpu"]) == 0
    assert "1.000x" in capsys.readouterr().out
    assert main(["compare", "double", "mine.py"]) == 2
    assert "mine.py: no such file" in capsys.readouterr().err
    assert main(["compare", "v1.0", "v1.1"]) == 2
    assert "no operator is named" in capsys.readouterr().err


def test_the_hash_of_a_version_is_checked(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = Path("logs/double/20260101-000000-abcdef/candidates") / f"{source_hash(double.read_text())}.py"
    stored.write_text("# spoilt\n")
    assert main(["restore", "double", "v1.0"]) == 2
    assert "was changed after it was stored" in capsys.readouterr().err

"""`new`, `list` and `optimize` from the outside: what they print, write and return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import contents, kernelgen

from kernelgen import generation
from kernelgen.cli import main
from kernelgen.spec import load_spec

SPEC = """\
name: double
summary: Twice the input.
inputs:
  - {name: x, shape: [N], dtype: T}
outputs:
  - {name: out, shape: [N], dtype: T}
dtypes: {T: [float16, float32]}
reference: |
  def double(x):
      return x * 2
accuracy: {shapes: [{N: 5}, {N: 1000}]}
performance: {shapes: [{N: 1024}, {N: 1000000}]}
"""

FILES = ("triton.py", "baseline.py", "accuracy.py", "performance.py")


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """A folder with a spec and what `new` made of it."""
    (tmp_path / "double.yaml").write_text(SPEC)
    done = kernelgen("new", "double.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_new_says_what_it_took_and_wrote_and_whether_the_files_agree(tmp_path: Path) -> None:
    done = kernelgen("new", "broadcast.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "spec: broadcast.yaml, shipped with kernelgen\n"
    assert [name for name in FILES if f"broadcast_{name}" not in done.stdout] == []
    for item in ("function name", "parameters", "types", "returns", "input checks"):
        assert f"✓ {item}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" s")


def test_a_spec_of_the_working_folder_wins_over_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "softmax.yaml").write_text(SPEC.replace("double", "softmax"))
    done = kernelgen("new", "softmax.yaml", "--json", cwd=tmp_path)
    assert done.stderr == "spec: softmax.yaml\n"
    document = json.loads(done.stdout)
    assert (document["operator"], document["change"], document["unchanged"]) == ("softmax", "new", [])
    assert "x * 2" in (tmp_path / "operators/softmax/softmax_baseline.py").read_text()


def test_generating_twice_changes_nothing(generated: Path) -> None:
    before = contents(generated)
    document = json.loads(kernelgen("new", "double.yaml", "--json", cwd=generated).stdout)
    assert (document["written"], document["change"]) == ([], "none")
    assert contents(generated) == before


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    done = kernelgen("new", "double.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "would be written" in done.stdout
    assert contents(tmp_path).keys() == {"double.yaml"}


def test_out_takes_the_place_of_operators(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    assert kernelgen("new", "double.yaml", "--out", "here", cwd=tmp_path).returncode == 0
    assert (tmp_path / "here/double/double_triton.py").is_file()
    assert not (tmp_path / "operators").exists()


def test_check_names_what_is_stale(generated: Path) -> None:
    done = kernelgen("new", "--check", cwd=generated)
    assert (done.returncode, done.stdout) == (0, "operators: every generated file matches its spec (1 operator)\n")
    (generated / "double.yaml").write_text(SPEC.replace("x * 2", "x * 3"))
    (generated / "operators/double/double_performance.py").unlink()
    before = contents(generated)
    done = kernelgen("new", "--check", "--json", cwd=generated)
    assert (done.returncode, contents(generated)) == (1, before)
    assert "error: operators/double/double_triton.py: no longer matches its spec" in done.stderr.splitlines()
    assert "error: operators/double/double_performance.py: missing" in done.stderr.splitlines()
    assert "operators/double/double_performance.py: missing" in json.loads(done.stdout)["stale"]


def test_check_looks_at_the_parts_of_a_backward_once_and_at_those_that_belong_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace("x * 2", "x * x").replace("dtypes:", "backward: true\ndtypes:")
    (tmp_path / "double.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    generation.new(load_spec(Path("double.yaml")), Path("operators"))
    part = Path("operators/double/backward/double_backward_triton.py")
    part.write_text(part.read_text() + "# more\n")
    looked_at: list[str] = []
    named = generation.looked_at
    monkeypatch.setattr(generation, "looked_at", lambda s, root: looked_at.append(s.name) or named(s, root))
    line = f"error: {part}: changed by hand\n"
    assert (main(["new", "--check"]), capsys.readouterr().err.count(line), looked_at) == (1, 1, ["double"])
    (tmp_path / "double.yaml").write_text(text.replace("backward: true\n", ""))
    assert (main(["new", "--check"]), capsys.readouterr().err.count(line)) == (1, 1)
    assert looked_at == ["double", "double", "double_backward"]


def test_where_nothing_was_generated_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = kernelgen("new", "--check", cwd=tmp_path)
    line = "error: there is no folder operators/ here, so there is nothing to check\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    done = kernelgen("list", cwd=tmp_path)
    line = "there is no folder operators/ here: `kernelgen new NAME` writes one from a spec of this list\n"
    assert (done.returncode, done.stderr) == (0, line)
    assert "none yet" in done.stdout
    (tmp_path / "operators").mkdir()
    done = kernelgen("new", "--check", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("there are no kernels in operators/ yet")) == (2, 1)
    assert "there are no kernels in operators/ yet" in kernelgen("list", cwd=tmp_path).stderr


def test_list_shows_the_state_of_every_spec(generated: Path) -> None:
    def state() -> str:
        rows = json.loads(kernelgen("list", "--json", cwd=generated).stdout)
        assert next(row for row in rows if row["name"] == "softmax")["state"] == "none yet"
        return str(next(row for row in rows if row["name"] == "double")["state"])

    assert state() == "current"
    (generated / "double.yaml").write_text(SPEC.replace("x * 2", "x * 3"))
    assert state() == "stale"
    (generated / "operators/double/double_triton.py").write_text("mine = 1\n")
    assert state() == "changed by hand"
    (generated / "double.yaml").write_text(SPEC.replace("name: double", "nam: double"))
    shown = kernelgen("list", cwd=generated).stdout
    assert "double.yaml:1:1: " in shown
    assert "shipped" in shown


def test_optimize_predicts_where_there_is_no_gpu_and_never_says_measured(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    done = kernelgen("optimize", "double.yaml", "--rounds", "1", "--candidates", "2", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "double had no kernel yet; generated in operators/double" in done.stderr
    assert "Baseline: " in done.stderr
    folder = tmp_path / "operators" / "double"
    log = (folder / "optimization_log.md").read_text()
    assert "predicted" in log
    assert "measured" not in log.replace("not measured", "")
    assert "measured" not in done.stdout.replace("not measured", "")
    assert str(folder.relative_to(tmp_path)) in done.stdout
    assert "  speedup over eager: not measured, target >= 1.00x\n" in done.stdout
    assert kernelgen("new", "--check", cwd=tmp_path).returncode == 0
    again = kernelgen("optimize", "double", "--rounds", "1", "--device", "cpu", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert (document["source"], document["works"], document["resumed"]) == ("predicted", True, False)
    assert [case["case"] for case in document["cases"]] == [t["case"] for t in document["cases"] if t["time_us"] > 0]
    assert {one["round"] for one in document["candidates"]} == {1}
    assert all(one["speedup"] or one["result"] for one in document["candidates"])


def test_a_dry_run_of_optimize_says_what_it_would_do(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    arguments = ("optimize", "double", "--dry-run", "--device", "cpu", "--dtype", "float16", "--skip", "1000000")
    document = json.loads(kernelgen(*arguments, "--json", cwd=tmp_path).stdout)
    assert document["cases"] == ["N=1024 float16"], document
    assert (document["figures"], document["generate"], document["rounds"]) == ("predicted", True, 5)
    assert "would generate it, then play up to 5 rounds" in kernelgen(*arguments, cwd=tmp_path).stdout
    assert contents(tmp_path).keys() == {"double.yaml"}

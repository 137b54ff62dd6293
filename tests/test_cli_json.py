"""With --json a command prints one document, whatever happens; and the specs and kernels that a name can mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelgen.cli import main

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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit code of a command and the one document on its stdout."""
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_mistakes_of_a_spec_are_one_document(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "double.yaml").write_text(
        SPEC.replace("summary:", "sumary:").replace("[N], dtype: float32}", "[N], dtype: floot32}")
    )
    code, found = document(capsys, "new", "double.yaml")
    assert (code, found["exit_code"]) == (2, 2)
    first = found["errors"][0]
    assert (first["kind"], first["file"], first["line"], first["column"]) == ("spec", "double.yaml", 2, 1)
    assert "did you mean" in first["hint"]
    assert len(found["errors"]) > 1


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("check", "softmx"), "usage", "there is no operator 'softmx'"),
        (("check",), "usage", "which operator?"),
        (("new", "--nothing"), "usage", "No such option: --nothing"),
        (("list", "--state", "old"), "usage", "--state old: there are current"),
        (("report", "--out", "/proc/x/y.html", "softmax"), "usage", "softmax has a spec but no kernel"),
    ],
)
def test_every_mistake_has_its_document(
    arguments: tuple[str, ...], kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = document(capsys, *arguments)
    assert code == found["exit_code"] == 2
    (one,) = found["errors"]
    assert (one["kind"], one["file"], one["line"]) == (kind, None, None)
    assert said in one["message"]


def test_specs_below_specs_are_found_by_their_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = here / "specs" / "mine"
    deep.mkdir(parents=True)
    (deep / "double.yaml").write_text(SPEC)
    assert main(["new", "double", "--no-verify"]) == 0
    assert main(["new", "--check"]) == 0
    capsys.readouterr()
    (row,) = document(capsys, "list", "doub*")[1]
    assert (row["name"], row["state"], row["spec"]) == ("double", "current", "specs/mine/double.yaml")
    assert document(capsys, "list", "double", "--state", "stale")[1] == []
    (deep / "double.yaml").write_text(SPEC.replace("* 2", "* 3"))
    assert document(capsys, "list", "double", "--state", "stale")[1][0]["name"] == "double"
    (here / "specs" / "double.yaml").write_text(SPEC)
    assert main(["new", "double"]) == 2
    assert "there are several: specs/double.yaml, specs/mine/double.yaml" in capsys.readouterr().err
    assert main(["new", "specs/mine/double.yaml", "--dry-run", "--no-verify"]) == 0, "a path says which"


def test_a_spec_elsewhere_is_found_again_by_its_path(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "double.yaml").write_text(SPEC)
    assert main(["new", "elsewhere/double.yaml", "--no-verify"]) == 0
    assert json.loads((here / "operators/double/generated.json").read_text())["spec"] == "elsewhere/double.yaml"
    assert main(["new", "--check"]) == 0
    assert main(["optimize", "double", "--dry-run", "--device", "cpu"]) == 0


def test_several_operators_by_name_glob_file_and_all(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kernelgen.cli.names import chosen_quartets

    for name in ("double", "doubled"):
        (here / f"{name}.yaml").write_text(SPEC.replace("double", name))
        assert main(["new", f"{name}.yaml", "--no-verify"]) == 0
    assert [q.name for q in chosen_quartets(["doub*", "double"], False)] == ["double", "doubled"]
    assert [q.name for q in chosen_quartets(["doubled.yaml"], False)] == ["doubled"]
    assert [q.name for q in chosen_quartets([], True)] == ["double", "doubled"]
    capsys.readouterr()
    assert len(document(capsys, "export", "double*")[1]) == 2
    assert main(["export", "--all", "--to", "one"]) == 2
    assert "--to names one place" in capsys.readouterr().err
    assert main(["bench", "x*"]) == 2
    assert "no operator in operators/ is called x*" in capsys.readouterr().err


def test_one_broken_spec_keeps_no_other_from_anything(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("double", "doubled"):
        (here / f"{name}.yaml").write_text(SPEC.replace("double", name))
        assert main(["new", f"{name}.yaml", "--no-verify"]) == 0
    (here / "double.yaml").write_text(SPEC.replace("summary", "sumary"))
    (here / "operators/doubled/doubled_baseline.py").write_text("")
    capsys.readouterr()
    assert main(["new", "--check"]) == 1
    said = capsys.readouterr().err
    assert "double.yaml:2:1: " in said
    assert "doubled_baseline.py: changed by hand" in said
    code, found = document(capsys, "export", "--all", "--format", "custom_op")
    assert code == 1
    assert "double.yaml:2:1: " in found[0]["error"]
    assert found[1]["folder"] == "exported/doubled_op"


def test_several_are_optimised_past_one_that_cannot_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("double", "doubled"):
        (here / f"{name}.yaml").write_text(SPEC.replace("double", name))
        assert main(["new", f"{name}.yaml", "--no-verify"]) == 0
    (here / "double.yaml").write_text(SPEC.replace("summary", "sumary"))
    capsys.readouterr()
    code, found = document(capsys, "optimize", "doub*", "--dry-run", "--device", "cpu")
    assert code == 1
    assert found["double"]["error"].startswith("double.yaml:2:1: ")
    assert found["doubled"]["cases"] == ["N=1024"]
    assert main(["optimize", "--all", "--dry-run", "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert "doubled in operators/doubled: would play" in said.out
    assert "double.yaml:2:1: " in said.err
    assert main(["optimize"]) == 2
    assert "which operator?" in capsys.readouterr().err


def test_a_target_takes_operators_whose_kernels_are_not_made_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelgen.cli import lowered

    seen: list[str] = []
    monkeypatch.setattr(lowered, "check_lowered", lambda names, *rest: seen.extend(names) or 0)
    assert main(["check", "softmax", "--target", "ascend910b3"]) == 0
    assert seen == ["softmax"]

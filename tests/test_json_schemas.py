"""What commands print with --json has the form that `kernelgen schema COMMAND` says, and docs/json.md names them all."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_process import REPO

from kernelgen.cli import main
from kernelgen.cli.documents import DOCUMENTS, document_schema
from kernelgen.gate import Finding
from kernelgen.outcomes import CaseTiming, Interval

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
    (tmp_path / "double.yaml").write_text(SPEC)
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The one document of a command."""
    capfd.readouterr()
    main([*arguments, "--json"])
    return json.loads(capfd.readouterr().out)


def check(name: str, document: Any) -> None:
    jsonschema.Draft202012Validator(document_schema(name)).validate(document)


def test_documents_that_take_no_kernel(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check("new", printed(capfd, "new", "double", "--no-verify"))
    check("list", printed(capfd, "list", "double"))
    check("watch", printed(capfd, "watch"))
    check("restore", printed(capfd, "restore", "double"))
    check("report", printed(capfd, "report", "double"))
    check("doctor", printed(capfd, "doctor"))
    check("errors", printed(capfd, "check", "doubel"))
    (here / "double.yaml").write_text(SPEC.replace("summary", "sumary"))
    check("errors", printed(capfd, "new", "double"))
    timing = CaseTiming("N=8", "measured", 1.0, "current", 2.0, 2.0, Interval(2.0, 1.9, 2.1))
    finding = asdict(Finding("double", "faster", "it is", (timing,)))
    check("gate", json.loads(json.dumps({"passed": True, "against": "main", "operators": [finding]})))


def test_documents_of_runs(capfd: pytest.CaptureFixture[str]) -> None:
    run = printed(capfd, "optimize", "double", "--device", "cpu", "--rounds", "1", "--candidates", "2")
    check("optimize", run)
    assert run["rounds"][0]["number"] == 0
    assert [one["case"] for one in run["cases"]] == ["N=1024"]
    assert len(run["candidates"]) <= 2
    found = printed(capfd, "check", "double", "--device", "cpu")
    check("check", found)
    assert all(case["l2_error"] == 0 == case["relative_error"] == case["bound_share"] for case in found["cases"])
    check("bench", printed(capfd, "bench", "double"))
    check("compare", printed(capfd, "compare", "double", "double@v1.0", "--device", "cpu"))
    check("watch", printed(capfd, "watch"))
    check("restore", printed(capfd, "restore", "double"))


def test_a_document_of_another_form_is_found_out() -> None:
    with pytest.raises(jsonschema.ValidationError):
        check("restore", [{"version": 1}])


def test_the_page_names_every_document_and_kind(capfd: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "json.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) | {"errors"} == set(DOCUMENTS)
    from kernelgen.cli.app import KINDS

    assert all(kind in " ".join(page.split()) for _, kind in KINDS)
    assert main(["schema", "optimise"]) == 2
    assert "did you mean 'optimize'?" in capfd.readouterr().err
    assert main(["schema", "optimize"]) == 0
    assert json.loads(capfd.readouterr().out)["title"] == "kernelgen optimize --json"

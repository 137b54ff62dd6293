"""The Python API as docs/api.md and its notebook have it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import REPO, environment

import kernelgen
from kernelgen.errors import SpecError, UsageError

DOCS = REPO / "docs"


def python(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=cwd,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_importing_it_is_cheap_and_everything_is_there(tmp_path: Path) -> None:
    heavy = "sorted({'torch', 'triton', 'pydantic', 'jinja2', 'typer', 'rich'} & set(sys.modules))"
    done = python(
        f"import sys, kernelgen; print({heavy}); print([kernelgen.{' and kernelgen.'.join(kernelgen.__all__)}])",
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "[]"


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = kernelgen.optimise  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="softmax has a spec but no kernel"):
        kernelgen.op("softmax")
    Path("bad.yaml").write_text("name: bad\n")
    with pytest.raises(SpecError) as error:
        kernelgen.load_spec("bad.yaml")
    assert len(error.value.mistakes) > 1


def test_a_spec_becomes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = kernelgen.generate("relu", operators=Path("mine"))
    assert written.change == "new"
    assert Path("mine/relu/relu_triton.py").is_file()
    assert kernelgen.generate(kernelgen.load_spec("relu"), operators=Path("mine")).change == "none"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    found = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text("utf-8"), re.DOTALL)
    done = python("\n".join(found), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted finished 1 round" in done.stdout
    assert "operators/relu new" in done.stdout


def test_the_notebook_runs_and_says_what_it_says(tmp_path: Path) -> None:
    cells = [c for c in json.loads((DOCS / "api.ipynb").read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    done = python("\n".join("".join(c["source"]) for c in cells), tmp_path)
    assert done.returncode == 0, done.stderr
    first = "".join(cells[0]["outputs"][0]["text"])
    assert done.stdout.startswith(first)
    assert "".join(cells[3]["outputs"][0]["text"]) in done.stdout


@pytest.mark.gpu
def test_the_memory_of_a_call_is_counted_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kernelgen.generate("relu")
    for case in kernelgen.check("relu", only=["[1025, 33] float32"]).cases:
        assert case.peak_bytes is not None
        assert 4 * 1025 * 33 <= case.peak_bytes < 10 * 4 * 1025 * 33

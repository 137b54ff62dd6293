"""`kernelgen export`: the folder it makes runs without kernelgen."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import contents, kernelgen, refused

from kernelgen.errors import UsageError
from kernelgen.export import export

SPEC = """\
name: double
inputs:
  - {name: x, shape: [N], dtype: T}
outputs:
  - {name: out, shape: [N], dtype: T}
dtypes: {T: [float32]}
reference: |
  def double(x):
      return x * 2
accuracy: {shapes: [{N: 5}]}
performance: {shapes: [{N: 1024}]}
"""


@pytest.fixture
def quartet(tmp_path: Path) -> Path:
    """Four files that import the judge in every way a file may."""
    folder = tmp_path / "operators" / "double"
    folder.mkdir(parents=True)
    for kind in ("triton", "baseline", "accuracy", "performance"):
        (folder / f"double_{kind}.py").write_text(
            "from kernelgen import judge\nimport kernelgen.judge.model\nfrom kernelgen.judge.model import Case\n"
        )
    return folder


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}


def test_nothing_imports_kernelgen_any_more(quartet: Path, tmp_path: Path) -> None:
    written = export("double", quartet, tmp_path / "to")
    names = {str(path.relative_to(tmp_path / "to")) for path in written}
    assert {"double_triton.py", "double_performance.py", "README.md", "judge/__init__.py", "judge/model.py"} <= names
    for path in written:
        if path.suffix == ".py":
            assert {name for name in imported(path.read_text()) if name.split(".")[0] == "kernelgen"} == set()
    assert imported((tmp_path / "to" / "double_accuracy.py").read_text()) == {"judge", "judge.model"}


def test_a_folder_with_something_in_it_is_left_alone(quartet: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (to / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="to is not empty: choose another folder with --to, or write over it with"):
        export("double", quartet, to)
    assert contents(to) == {"mine.txt": "mine"}
    export("double", quartet, to, force=True)
    assert (to / "mine.txt").read_text() == "mine"


def test_a_quartet_that_is_not_whole_is_one_clear_line(quartet: Path, tmp_path: Path) -> None:
    (quartet / "double_baseline.py").unlink()
    line = refused("export", "double", cwd=tmp_path)
    assert line == "error: operators/double/double_baseline.py: no such file; `kernelgen new` writes it"


def test_an_unwritable_folder_is_one_clear_line(quartet: Path, tmp_path: Path) -> None:
    line = refused("export", "double", "--to", "/proc/double", cwd=tmp_path)
    assert line.startswith("error: /proc/double: cannot write here: ")


def test_the_bundle_runs_without_kernelgen(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    assert kernelgen("new", "double.yaml", cwd=tmp_path).returncode == 0
    done = kernelgen("export", "double", "--to", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python bundle/double_accuracy.py" in done.stdout
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CUDA_VISIBLE_DEVICES": ""}
    for kind in ("accuracy", "performance"):
        command = [sys.executable, "-X", "importtime", f"double_{kind}.py"]
        ran = subprocess.run(command, cwd=tmp_path / "bundle", env=env, text=True, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr
        modules = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if "import time:" in line}
        assert "judge" in modules
        assert {name for name in modules if name.split(".")[0] == "kernelgen"} == set()

"""`kernelgen export`: the folder it makes runs without kernelgen."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import contents, kernelgen, refused

from kernelgen.cli import main
from kernelgen.errors import UsageError
from kernelgen.export import export, export_kernelbench
from kernelgen.export.custom_op import custom_op_files
from kernelgen.spec import parse_spec
from kernelgen.wrapper import Layout

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


MODULE = """\
module: |
  import torch
  import torch.nn as nn


  class Model(nn.Module):
      def __init__(self, size):
          super(Model, self).__init__()
          self.weight = nn.Parameter(torch.randn(size))

      def forward(self, x):
          return scale(x, self.weight)


  def get_inputs():
      return [torch.rand(3, 5)]


  def get_init_inputs():
      return [5]
"""

SCALE = SPEC.replace("double", "scale").replace("[N]", "[M, N]").replace("{N: 5}", "{M: 3, N: 5}").replace(
    "{N: 1024}", "{M: 4, N: 8}"
).replace("(x)", "(x, weight)").replace("x * 2", "x * weight").replace(
    "outputs:", "  - {name: weight, shape: [N], dtype: T, role: parameter}\noutputs:"
) + MODULE  # fmt: skip


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an operator that was imported from a module."""
    folder = tmp_path_factory.mktemp("scale")
    (folder / "scale.yaml").write_text(SCALE)
    done = kernelgen("new", "scale.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_kernelbench_file_is_the_module_with_the_kernel(scale: Path) -> None:
    done = kernelgen("export", "scale", "--format", "kernelbench", cwd=scale)
    assert done.stdout == "exported/scale.py: it needs torch and triton, not kernelgen\n", done.stderr
    text = (scale / "exported" / "scale.py").read_text()
    assert {n.split(".")[0] for n in imported(text)} == {"torch", "triton"}
    assert "class ModelNew(nn.Module):" in text
    assert "super(ModelNew, self).__init__()" in text
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import sys, torch, yaml\n"
        "sys.path.insert(0, 'exported'); import scale as new\n"
        "old = {'scale': lambda x, weight: x * weight}\n"
        "exec(yaml.safe_load(open('scale.yaml'))['module'], old)\n"
        "models = []\n"
        "for make in (old['Model'], new.ModelNew):\n"
        "    torch.manual_seed(7); models.append(make(*new.get_init_inputs()))\n"
        "assert list(models[0].state_dict()) == list(models[1].state_dict()) == ['weight']\n"
        "x = new.get_inputs()\n"
        "torch.testing.assert_close(models[1](*x), models[0](*x))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=scale, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    line = refused("export", "scale", "--format", "kernelbench", cwd=scale)
    assert line.startswith("error: exported/scale.py already exists: choose another with --to")


def test_a_spec_without_a_module_has_no_kernelbench_form(tmp_path: Path) -> None:
    spec = parse_spec(SCALE.replace(MODULE, ""), "scale.yaml")
    with pytest.raises(UsageError, match=r"scale\.yaml has no 'module:', the class that ModelNew would be made like"):
        export_kernelbench(spec, tmp_path, tmp_path / "new.py")


def test_one_name_for_two_things_is_refused(tmp_path: Path) -> None:
    spec = parse_spec(SCALE.replace("  def get_inputs", "  SCHEDULES = 1\n\n  def get_inputs"), "scale.yaml")
    (tmp_path / "scale_triton.py").write_text('"""scale"""\n\nSCHEDULES = ()\n')
    with pytest.raises(UsageError, match="scale: the kernel and the module both define SCHEDULES"):
        export_kernelbench(spec, tmp_path, tmp_path / "new.py")
    assert not (tmp_path / "new.py").exists()


def test_the_custom_op_passes_opcheck_and_compiles_whole(scale: Path) -> None:
    done = kernelgen("export", "scale", "--format", "custom_op", "--to", "package", cwd=scale)
    assert "  pip install package\n  python -m pytest package/tests\n" in done.stdout, done.stderr
    package = scale / "package"
    assert (
        "    return torch.empty_like(x, memory_format=torch.contiguous_format)\n"
        in contents(package)["scale_op/__init__.py"]
    )
    env = {**os.environ, "PYTHONPATH": str(package), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=package, env=env, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of an operator that writes into an input and has another result."""
    outputs = "  - {name: new, shape: [N], dtype: T, into: x}\n  - {name: out, shape: [N], dtype: T}"
    text = f"""\
name: step
inputs: [{{name: x, shape: [N], dtype: T}}, {{name: y, shape: [N], dtype: T}}]
outputs:
{outputs}
dtypes: {{T: [float32]}}
reference: |
  def step(x, y):
      return x + y, x * y
accuracy: {{shapes: [{{N: 33}}]}}
"""
    (tmp_path / "step.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "step.yaml", "--no-verify"]) == 0
    assert main(["export", "step", "--format", "custom_op", "--to", "package"]) == 0
    return tmp_path / "package"


def test_a_custom_op_that_writes_into_inputs_says_so_and_returns_the_rest(writing: Path) -> None:
    made = contents(writing)["step_op/__init__.py"]
    assert '@torch.library.custom_op("kernelgen::step", mutates_args=("x",))\ndef step(' in made
    assert "    _, out = kernel.step(x, y)\n    return out\n" in made


def test_a_custom_op_that_writes_into_inputs_passes_its_own_tests(writing: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(writing), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=writing, env=env, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


@pytest.mark.parametrize(
    ("inputs", "output", "made"),
    [
        ("[M, N]", "[N, M]", "x.new_empty((x.shape[1], x.shape[0]))"),
        ("[..., D]", "[...]", "x.new_empty((*x.shape[:-1],))"),
        ("[..., D]", "[D, 7]", "x.new_empty((x.shape[-1], 7))"),
        ("[M]", "[]", "x.new_empty(())"),
    ],
)
def test_a_fake_output_has_its_shape_from_the_inputs(inputs: str, output: str, made: str, tmp_path: Path) -> None:
    text = SPEC.replace("shape: [N]", f"shape: {inputs}", 1).replace("shape: [N]", f"shape: {output}", 1)
    spec = parse_spec(text.partition("accuracy:")[0])
    fake = custom_op_files("", spec, {"out": Layout()}, tmp_path, tmp_path)[tmp_path / "double_op" / "__init__.py"]
    assert f"    return {made}\n" in fake


def test_an_unknown_format_is_one_clear_line(quartet: Path, tmp_path: Path) -> None:
    line = refused("export", "double", "--format", "zip", cwd=tmp_path)
    assert line == "error: --format: must be one of folder, kernelbench, custom_op, not 'zip'"

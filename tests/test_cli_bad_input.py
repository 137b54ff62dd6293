"""Bad input, each with its one clear error and exit code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import REPO, contents, kernelgen, kernelgen_here, refused, refused_here

from kernelgen.cli import main

SPEC = """\
name: double
inputs:
  - {name: x, shape: [..., D], dtype: T}
outputs:
  - {name: out, shape: [..., D], dtype: T}
dtypes: {T: [float16, float32]}
constraints:
  - x.ndim >= 1
reference: |
  def double(x):
      return x * 2
accuracy: {shapes: [{...: [3], D: 5}]}
performance: {shapes: [{...: [64], D: 1024}]}
"""


def spec(folder: Path, old: str = "", new: str = "") -> str:
    """Write double.yaml with one change, and return its name."""
    assert old in SPEC
    (folder / "double.yaml").write_text(SPEC.replace(old, new, 1) if old else SPEC)
    return "double.yaml"


MISTAKES = {
    "unknown key": ("outputs:", "sumary: x\noutputs:", "4:1: unknown key 'sumary'; did you mean 'summary'?"),
    "duplicate key": ("dtypes:", "name: twice\ndtypes:", "6:1: duplicate key 'name'; first on line 1"),
    "unknown dtype": ("float16", "flot16", "6:14: unknown dtype 'flot16'; did you mean 'float16'?"),
    "constraint that names no input": ("x.ndim", "y.ndim", "8:5: 'y' is no input"),
    "constraint with a syntax error": ("x.ndim >= 1", "x.ndim >=", "8:"),
    "reference with a syntax error": ("return x * 2", "return x *", "11:"),
    "reference of another shape": ("x * 2", "x.sum(-1)", "5:5: outputs declares out as [..., D], but the reference "),
    "reference of another dtype": (
        "x * 2",
        "(x * 2).float()",
        "5:5: outputs declares out as T, but the reference returns float32",
    ),
    "reference that fails": ("x * 2", "torch.linalg.inv(x)", "11:3: the reference fails: "),
    "unsupported operation": ("x * 2", "torch.special.gammainc(x, x)", "11:3: unsupported: "),
    "YAML that is none": ("inputs:", "inputs: [", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["new", "optimize"])
def test_a_mistake_in_the_spec(command: str, mistake: str, tmp_path: Path) -> None:
    old, new, expected = MISTAKES[mistake]
    line = refused_here(command, spec(tmp_path, old, new), cwd=tmp_path)
    assert line.startswith(f"double.yaml:{expected}")


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC.replace("dtypes:", "sumary: x\ndtypes:").replace("x.ndim", "y.ndim"))
    done = kernelgen_here("new", "double.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert [line.split(":")[1] for line in done.stderr.splitlines() if line.startswith("double.yaml:")] == ["6", "9"]


@pytest.mark.parametrize("name", ["missing.yaml", "no/such/folder.yaml", "", "\udcff.yaml"])
def test_a_missing_file(name: str, tmp_path: Path) -> None:
    assert refused_here("new", name, cwd=tmp_path).startswith("error: ")


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").mkdir()
    assert refused_here("new", "double.yaml", cwd=tmp_path).startswith("error: double.yaml: ")


def test_a_spec_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_bytes(b"name: \xff")
    done = kernelgen_here("new", "double.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("double.yaml:1:7: ")


@pytest.mark.parametrize("out", ["file/operators", "/proc/operators"])
def test_an_unwritable_folder(out: str, tmp_path: Path) -> None:
    """Root may write anywhere, but not below a file; where nothing is there yet the folder around it is named."""
    (tmp_path / "file").write_text("")
    line = refused_here("new", spec(tmp_path), "--out", out, cwd=tmp_path)
    assert line.startswith(("error: file/operators", "error: /proc"))
    assert "cannot write here: " in line


def test_a_kernel_changed_by_hand(tmp_path: Path) -> None:
    name = spec(tmp_path)
    assert kernelgen("new", name, cwd=tmp_path).returncode == 0
    kernel = tmp_path / "operators" / "double" / "double_triton.py"
    generated = kernel.read_text()
    kernel.write_text(generated + "\nmine = 1\n")
    for command in (["new", name], ["optimize", "double", "--device", "cpu"]):
        line = refused(*command, cwd=tmp_path)
        assert line.startswith("error: operators/double/double_triton.py")
        assert "--force" in line
    assert kernelgen("new", name, "--force", cwd=tmp_path).returncode == 0
    assert kernel.read_text() == generated


def test_no_device(tmp_path: Path) -> None:
    name = spec(tmp_path)
    assert kernelgen("new", name, cwd=tmp_path).returncode == 0
    line = refused("optimize", "double", "--device", "cuda", cwd=tmp_path, code=3, CUDA_VISIBLE_DEVICES="")
    assert line.startswith("error: --device cuda: ")


def test_no_device_is_noticed_before_anything_is_generated(tmp_path: Path) -> None:
    line = refused("optimize", spec(tmp_path), "--device", "cuda", cwd=tmp_path, code=3, CUDA_VISIBLE_DEVICES="")
    assert line.startswith("error: --device cuda: ")
    assert contents(tmp_path).keys() == {"double.yaml"}


@pytest.mark.parametrize("rounds", ["0", "x", "-1", "21", ""])
def test_rounds(rounds: str, tmp_path: Path) -> None:
    line = refused_here("optimize", spec(tmp_path), "--rounds", rounds, cwd=tmp_path)
    assert line == f"error: --rounds: must be a whole number from 1 to 20, not {rounds!r}"


def test_an_unknown_device(tmp_path: Path) -> None:
    line = refused_here("optimize", spec(tmp_path), "--device", "cudda", cwd=tmp_path)
    assert line == "error: --device cudda: no such device; did you mean cuda?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "double.yml"), "double.yml: no such file; the name of a spec ends in .yaml"),
        (("new", "double.yaml", "--device", "gpu"), "--device gpu: no such device; did you mean"),
        (("check", "double"), "double_accuracy.py: no such file; `kernelgen new double.yaml` writes it"),
        (("compare", "double@v1", "double"), "double@v1: a version is written double@v1.2"),
        (("restore", "double", "v1.0"), "double has no versions yet; `kernelgen optimize double` creates one"),
        (("list", "zz*"), "no spec matches zz*"),
        (("schema", "chek"), "schema chek: no such command; did you mean 'check'?"),
    ],
)
def test_mistakes_of_newcomers(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    spec(tmp_path)
    folder = tmp_path / "operators" / "double"
    folder.mkdir(parents=True)
    (folder / "double_triton.py").write_text("# a kernel\n")
    before = contents(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_no_case_left(tmp_path: Path) -> None:
    line = refused("optimize", spec(tmp_path), "--only", "float64", cwd=tmp_path)
    assert line.startswith("error: ")
    assert "no performance case" in line


def test_no_torch(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    line = refused("new", spec(tmp_path), cwd=tmp_path, code=3, PYTHONPATH=f"{tmp_path / 'path'}:{REPO}")
    assert line == "error: torch is not installed: `kernelgen doctor` says how to get it"

"""Specs of products at the command line: mistakes with their one clear error and nothing written, and sums of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import contents, kernelgen, refused

from kernelgen import generation
from kernelgen.errors import SpecError
from kernelgen.spec import parse_spec

SPEC = """\
name: scores
inputs:
  - {name: a, shape: [M, K], dtype: T}
  - {name: b, shape: [K, N], dtype: T}
outputs:
  - {name: out, shape: [M, N], dtype: T}
dtypes: {T: [float16, float32]}
reference: |
  def scores(a, b):
      c = a * 2
      return c @ b
accuracy: {shapes: [{M: 3, K: 5, N: 7}]}
performance: {shapes: [{M: 64, K: 1024, N: 32}]}
"""
SECOND = "b, shape: [K, N], dtype: T"
DIFFERENT = "11:3: unsupported: torch.matmul of operands of different dtypes (cast them to one)"
MISTAKES = {
    "shapes that do not agree": (SECOND, "b, shape: [N, K], dtype: T", "11:3: the reference fails: a and b must have same"),
    "a vector that is too long": (SECOND, "b, shape: [N], dtype: T", "11:3: the reference fails: size mismatch"),
    "a dtype and a variable": (SECOND, "b, shape: [K, N], dtype: float32", DIFFERENT),
    "a dtype that one of a variable's is": (SECOND, "b, shape: [K, N], dtype: float16", f"11:3: with T=bfloat16: {DIFFERENT[6:]}"),
    "integers and floats": (SECOND, "b, shape: [K, N], dtype: int8", DIFFERENT),
    "integers": ("c @ b", "(c.int() @ b.int()).to(a.dtype)", "11:3: unsupported: torch.matmul of integers"),
    "float8": ("[float16, float32]", "[float8_e4m3fn]", "11:3: unsupported: torch.matmul of float8_e4m3fn (cast "),
    "an output of another order": (
        "out, shape: [M, N]", "out, shape: [N, M]", "6:5: outputs declares out as [N, M], but the reference returns [M, N]",
    ),
    "an output of another rank": (
        "out, shape: [M, N]", "out, shape: [M, N, 1]",
        "6:5: outputs declares out as [M, N, 1], but the reference returns [M, N]",
    ),
    "an output of another dtype": (
        "out, shape: [M, N], dtype: T", "out, shape: [M, N], dtype: float32", "6:5: outputs declares out as float32, ",
    ),
    "another family": ("inputs:", "type: reduction\ninputs:", "2:1: type says reduction, but the reference is matmul"),
}  # fmt: skip


def changed(old: str, new: str) -> str:
    assert old in SPEC
    return SPEC.replace(old, new, 1)


def spec(folder: Path, old: str = "", new: str = "") -> str:
    """Write scores.yaml with one change, and return its name."""
    (folder / "scores.yaml").write_text(changed(old, new))
    return "scores.yaml"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_place_and_nothing_is_written(mistake: str, tmp_path: Path) -> None:
    old, new, expected = MISTAKES[mistake]
    with pytest.raises(SpecError) as error:
        generation.new(parse_spec(changed(old, new), "scores.yaml"), tmp_path)
    assert str(error.value).startswith(f"scores.yaml:{expected}")
    assert "\n" not in str(error.value)
    assert not contents(tmp_path)


@pytest.mark.parametrize(
    "mistake", ["shapes that do not agree", "a dtype and a variable", "an output of another order"]
)
def test_a_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    old, new, expected = MISTAKES[mistake]
    assert refused("new", spec(tmp_path, old, new), cwd=tmp_path).startswith(f"scores.yaml:{expected}")


@pytest.mark.parametrize("cases", ["{M: 3, K: 0, N: 7}", "{M: 0, K: 5, N: 7}, {M: 3, K: 5, N: 0}"])
def test_sums_of_nothing_are_right(cases: str, tmp_path: Path) -> None:
    name = spec(tmp_path, "{M: 3, K: 5, N: 7}", cases)
    done = kernelgen("new", name, cwd=tmp_path, KERNELGEN_VERIFY="")
    assert (done.returncode, done.stderr) == (0, "spec: scores.yaml\n"), done
    assert "ran in Triton's interpreter, correct" in done.stdout
    assert "operators/scores/scores_triton.py" in contents(tmp_path)

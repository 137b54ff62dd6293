"""Mistakes in specs of packed weights, scales and groups, and in what their kernels are called with: one clear error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from kernelgen import frontend, generation, render
from kernelgen.errors import SpecError
from kernelgen.families import lower
from kernelgen.spec import load_spec, parse_spec

UNPACKED = """\
      q = p[:, :, None] >> torch.arange(0, 8, 4, device=p.device) & 15
      return F.linear(x, q.reshape(p.shape[0], -1).to(x.dtype))
"""
GROUPED = "      return F.grouped_mm(x, w, offs=e)\n"
SCALED = "      return (F.linear(x, w.to(x.dtype)).float() * s).to(x.dtype)\n"
MISTAKES = {
    "int4 of an odd number of columns": (
        ("x, shape: [M, 33], dtype: float16", "p, shape: [N, 16], dtype: uint8"), "[M, N], dtype: float16", UNPACKED,
        "10:3: the reference fails: a and b must have same reduction dim, but got [M, 33] X [32, N].",
    ),
    "int4 of half a size": (
        ("x, shape: [M, K], dtype: float16", "p, shape: [N, K//2], dtype: uint8"), "[M, N], dtype: float16", UNPACKED,
        "10:3: the reference fails: a and b must have same reduction dim, but got [M, K] X [2*((K//2)), N].",
    ),
    "scales of the wrong side": (
        ("x, shape: [M, K], dtype: float16", "w, shape: [N, K], dtype: int8", "s, shape: [K], dtype: float32"),
        "[M, N], dtype: float16", SCALED, "10:3: the reference fails: The size of tensor a (N) must match the size of",
    ),
    "integers, which no family multiplies": (
        ("x, shape: [M, K], dtype: int8", "w, shape: [N, K], dtype: int8"), "[M, N], dtype: int32",
        "      return x.int() @ w.int().t()\n", "9:3: unsupported: torch.matmul of integers",
    ),
    "groups of a dtype that torch does not take": (
        ("x, shape: [M, K*8], dtype: float16", "w, shape: [E, K*8, N*8], dtype: float16", "e, shape: [E], dtype: int32, ends: M"),
        "[M, N*8], dtype: float16", GROUPED, "10:3: the reference fails: Expected inputs of BF16 type",
    ),
    "more ends than groups": (
        ("x, shape: [M, K*8], dtype: bfloat16", "w, shape: [E, K*8, N*8], dtype: bfloat16", "e, shape: [P], dtype: int32, ends: M"),
        "[M, N*8], dtype: bfloat16", GROUPED, "10:3: the reference fails: matrix batch sizes have to match",
    ),
    "groups that end where no size says": (
        ("x, shape: [M, K*8], dtype: bfloat16", "w, shape: [E, K*8, N*8], dtype: bfloat16", "e, shape: [E], dtype: int32, ends: Q"),
        "[M, N*8], dtype: bfloat16", GROUPED, "5:47: size 'Q' is bound by no input",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_place_and_nothing_is_written(mistake: str, tmp_path: Path) -> None:
    inputs, out, lines, expected = MISTAKES[mistake]
    names = ", ".join(i.partition(",")[0] for i in inputs)
    sizes = {n: 2 for n in "MKNEP" if any(n in i.partition("[")[2].partition("]")[0] for i in inputs)}
    text = "name: op\ninputs:\n" + "".join(f"  - {{name: {i}}}\n" for i in inputs)
    text += f"outputs:\n  - {{name: out, shape: {out}}}\nreference: |\n  def op({names}):\n{lines}"
    text += f"accuracy: {{shapes: [{{{', '.join(f'{n}: {v}' for n, v in sizes.items())}}}]}}\n"
    with pytest.raises(SpecError) as error:
        generation.new(parse_spec(text, "op.yaml"), tmp_path)
    assert str(error.value).startswith(f"op.yaml:{expected}")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_kernel_of_int4_says_what_is_wrong_with_what_it_is_given(tmp_path: Path) -> None:
    spec = load_spec(Path(__file__).parents[1] / "specs" / "linear_int4_groups.yaml")
    path = tmp_path / "made.py"
    path.write_text(render.triton_source(lower(spec, *frontend.trace(spec))))
    found = importlib.util.spec_from_file_location("made", path)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)

    def called(columns: int, *scale: int) -> None:
        half = torch.float16
        x, packed = torch.zeros(3, columns, dtype=half), torch.zeros(32, 5, dtype=torch.int32)
        made.linear_int4_groups(x, packed, torch.zeros(scale, dtype=half), torch.zeros(scale, dtype=half))

    with pytest.raises(ValueError, match=r"x.shape\[-1\] must equal 128 \* scale.shape\[0\], got shape \(3, 255\)"):
        called(255, 2, 5)
    with pytest.raises(ValueError, match=r"scale.shape\[1\] must equal packed.shape\[1\], got shapes \(2, 6\)"):
        called(256, 2, 6)


ATTENTION = """\
name: long_heads
inputs:
  - {name: q, shape: [B, H, S, D], dtype: T}
  - {name: k, shape: [B, H, S, D], dtype: T}
  - {name: v, shape: [B, H, S, D], dtype: T}
outputs:
  - {name: out, shape: [B, H, S, D], dtype: T}
dtypes: {T: [float32, float16]}
precision: tf32x3
reference: |
  def long_heads(q, k, v):
      return F.scaled_dot_product_attention(q, k, v)
performance:
  shapes: [{B: 1, H: 2, S: 64, D: 1024}]
"""


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (("", ""), True), (("D: 1024", "D: 256"), False), (("tf32x3", "ieee"), False),
        (("  shapes:", "  dtypes: {T: [float16]}\n  shapes:"), False),
    ],
)  # fmt: skip
def test_heads_too_long_for_matrix_units_are_no_products_of_tf32(change: tuple[str, str], refused: bool) -> None:
    spec = parse_spec(ATTENTION.replace(*change) if change[0] else ATTENTION, "long_heads.yaml")
    if not refused:
        assert generation.lowered(spec)
        return
    with pytest.raises(
        SpecError, match="multiplies heads of up to 256 elements, and heads of 1024 are timed"
    ) as caught:
        generation.lowered(spec)
    assert caught.value.mistakes[0].line == 9
    text = ATTENTION.replace("precision: tf32x3\n", "")
    assert generation.with_precision(text, "long_heads.yaml", "tf32x3") == (
        text,
        "left out: precision: tf32x3 multiplies heads of up to 256 elements, and heads of 1024 are timed "
        "(without it torch's attention is called; ieee keeps all bits, slowly)",
    )

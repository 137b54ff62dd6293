"""Everything that writes, adds or keeps the greatest where integers say, along every dimension, and twice the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import DEVICE, load

from kernelgen import families, frontend, render
from kernelgen.families.kernel import body_of
from kernelgen.plan import TableRow
from kernelgen.spec import parse_spec

SPEC = """\
name: op
inputs:
{inputs}
outputs:
  - {{name: out, shape: [{out}], dtype: T}}
dtypes: {{T: [float32]}}
reference: |
  def write(y, k, s):
      y[k] = s
      return y

  def op({names}):
      {text}
"""
X, ALONG = "x: A, B, C", "i: A, K, C; s: A, K, C"
CASES = {
    "x.scatter(1, i, s)": (X, ALONG),
    "x.scatter(0, j, 0.5)": (X, "j: 3, B, C"),
    "x.scatter_reduce(1, i, s, 'amax')": (X, ALONG),
    "x.scatter_reduce(1, i, s, 'amin', include_self=False)": (X, ALONG),
    "x.scatter_reduce(1, i, s, 'mean')": (X, ALONG),
    "x.scatter_reduce(1, i, s, 'mean', include_self=False)": (X, ALONG),
    "x.scatter_reduce(1, i, s, 'sum', include_self=False)": (X, ALONG),
    "x.scatter_add(1, i, s * 2)": (X, ALONG),
    "x.scatter_add(1, n, s)": (X, "n: A, 4, C; s: A, 6, C"),
    "x.index_copy(1, k, s)": (X, "k: K; s: A, K, C"),
    "x.index_fill(2, k, 0.5) + x": ("x: A, C, B", "k: K"),
    "x.index_add(1, k, s, alpha=2)": (X, "k: K; s: A, K, C"),
    "x.index_reduce(1, k, s, 'amax', include_self=False)": (X, "k: K; s: A, K, C"),
    "x.masked_scatter(m, s)": (X, "m: A, B, C; s: A, B, C"),
    "x.index_put((k, l), s)": ("x: B, B, C", "k: K; l: K; s: K, C"),
    "x.index_put((k, l), s, accumulate=True)": ("x: B, B, C", "k: K; l: K; s: K, C"),
    "write(x.clone(), k, s)": ("x: B, A, C", "k: K; s: K, A, C"),
}
SIZES = {"A": 3, "B": 5, "C": 17, "K": 9}


def tensors(x: str, others: str, seed: int) -> dict[str, torch.Tensor]:
    """Inputs. Of what is written to one place torch's loops on a CPU keep the last, as the kernels do."""
    torch.manual_seed(seed)
    made = {}
    for entry in f"{x}; {others}".split("; "):
        name, shape = entry.split(": ")
        sizes = [SIZES[size] if size in SIZES else int(size) for size in shape.split(", ")]
        if name in "ijkln":
            made[name] = torch.randint(0, {"j": 3}.get(name, 5), sizes).to(DEVICE)
        else:
            made[name] = (torch.rand(sizes) > 0.5 if name == "m" else torch.randn(sizes)).to(DEVICE)
    return made


@pytest.mark.parametrize("text", CASES)
def test_it_is_as_torch_has_it(text: str) -> None:
    x, others = CASES[text]
    declared = [entry.split(": ") for entry in f"{x}; {others}".split("; ")]
    kinds = {**dict.fromkeys("ijkln", "int64"), "m": "bool"}
    inputs = "\n".join(f"  - {{name: {n}, shape: [{s}], dtype: {kinds.get(n, 'T')}}}" for n, s in declared)
    names = ", ".join(name for name, _ in declared)
    spec = parse_spec(SPEC.format(inputs=inputs, out=declared[0][1], names=names, text=f"return {text}"), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    module = load(render.triton_source(plan))
    for seed in range(2):
        given = tensors(x, others, seed)
        scope: dict[str, Any] = {"torch": torch}
        exec(spec.reference, scope)
        wanted = scope["op"](*(value.clone() for value in given.values()))
        made = [module.op(*given.values()) for _ in range(2)]
        torch.testing.assert_close(made[0], wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(made[0], made[1])


ROWS = """\
name: op
inputs:
  - {{name: x, shape: [..., V], dtype: T}}
  - {{name: index, shape: [..., L], dtype: int64, below: V}}
  - {{name: source, shape: [..., L], dtype: T}}
outputs:
  - {{name: out, shape: [..., V], dtype: T}}
dtypes: {{T: [float32, float16]}}
deterministic: {fixed}
reference: |
  def op(x, index, source):
      return x.scatter_add(-1, {own}, source)
performance:
  shapes: [{{...: [64], V: 256, L: 256}}]
"""
FROM_END = "torch.where(index < 0, index + x.shape[-1], index)"


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("own", ["index", FROM_END])
def test_every_way_to_add_within_rows_is_right(fixed: bool, own: str) -> None:
    """What is out of range adds nothing, in rows of any length, of floats that are not finite too."""
    spec = parse_spec(ROWS.format(fixed=str(fixed).lower(), own=own), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    family, found = families.family_of(plan), body_of(plan)
    assert "places" in family.variants(found)
    ways = [family.default(variant) for variant in family.variants(found)]
    ways.append(family.default("places").replace(BLOCK_SIZE_N=64, BLOCK_SIZE_V=4, num_warps=1))
    for at, schedule in enumerate(ways):
        op = load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op
        for rows, places, elements in ((2, 5, 9), (3, 33, 200), (1, 1, 70), (2, 70, 1)):
            torch.manual_seed(at)
            dtype = (torch.float32, torch.float16)[at % 2]
            x, source = torch.randn(rows, places).to(dtype), torch.randn(rows, elements).to(dtype)
            source[0, 0] = float("inf")
            index = torch.randint(-places - 2, places + 3, (rows, elements))
            moved = torch.where(index < 0, index + places, index) if own == FROM_END else index
            is_place = (moved >= 0) & (moved < places)
            wanted = x.double().scatter_add(
                -1, torch.where(is_place, moved, 0), source.double().masked_fill(~is_place, 0)
            )
            made = op(x.to(DEVICE), index.to(DEVICE), source.to(DEVICE))
            off = 2e-3 if at % 2 else 1e-5
            torch.testing.assert_close(made.double().cpu(), wanted, rtol=off, atol=off)


@pytest.mark.parametrize("size", ["row", "parts", "total", "cols", "mask", "places"])
def test_sizes_may_be_called_as_values_of_the_kernels_are(size: str) -> None:
    text = ROWS.format(fixed="true", own="index").replace("V]", f"{size}]").replace("below: V", f"below: {size}")
    spec = parse_spec(text.replace("V: 256", f"{size}: 256"), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    family = families.family_of(plan)
    for variant in family.variants(body_of(plan)):
        op = load(render.triton_source(plan.with_table((TableRow((), family.default(variant)),)))).op
        x, index, source = torch.randn(3, 7), torch.randint(0, 7, (3, 9)), torch.randn(3, 9)
        made = op(x.to(DEVICE), index.to(DEVICE), source.to(DEVICE))
        torch.testing.assert_close(made.cpu(), x.scatter_add(-1, index, source))


@pytest.mark.parametrize("name", ["mask", "total", "places"])
def test_tensors_may_be_called_as_values_of_the_kernels_are(name: str) -> None:
    text = ROWS.format(fixed="true", own="index").replace("source", name)
    spec = parse_spec(text, "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    family = families.family_of(plan)
    for variant in family.variants(body_of(plan)):
        op = load(render.triton_source(plan.with_table((TableRow((), family.default(variant)),)))).op
        x, index, source = torch.randn(3, 7), torch.randint(0, 7, (3, 9)), torch.randn(3, 9)
        made = op(x.to(DEVICE), index.to(DEVICE), source.to(DEVICE))
        torch.testing.assert_close(made.cpu(), x.scatter_add(-1, index, source))

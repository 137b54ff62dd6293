"""Everything that writes, adds or keeps the greatest where integers say, along every dimension, and twice the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import DEVICE, load

from kernelgen import families, frontend, render
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

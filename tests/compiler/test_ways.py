"""Every way of calling an operator with options and optional inputs gives what its reference does, in every variant."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from references import DEVICE, load, schedules

from kernelgen import generation, render
from kernelgen.plan import TableRow
from kernelgen.spec import parse_spec
from kernelgen.spec.choices import combinations

SPEC = """\
name: op
inputs:
  - {{name: x, shape: [M, N], dtype: float32}}
{inputs}
outputs:
  - {{name: out, shape: [M, N], dtype: float32}}
reference: |
  def op(x, {head}):
{body}
performance: {{shapes: [{{M: 3, N: 70}}]}}
"""
WEIGHT = "  - {name: weight, shape: [N], dtype: float32, optional: true}"
BIAS = "  - {name: bias, shape: [N], dtype: float32, optional: true}"
UPPER = "  - {name: upper, scalar: bool, default: false}"
MODE = "  - {name: mode, scalar: str, values: [sum, tanh], default: sum}"
OPERATORS = {
    "norm": ([WEIGHT, BIAS], "weight=None, bias=None", "return F.layer_norm(x, x.shape[-1:], weight, bias)"),
    "softmax": (
        ["  - {name: scale, scalar: float, default: 2.0}", UPPER], "scale=2.0, upper=False",
        "x = x * scale\nx = x.masked_fill(torch.ones_like(x).tril() == 0, -1e9) if upper else x\nreturn x.softmax(-1)",
    ),
    "pointwise": ([WEIGHT, UPPER], "weight=None, upper=False",
                  "x = x if weight is None else x * weight\nreturn x.triu() if upper else x + 1"),
    "words": ([BIAS, MODE], "bias=None, mode='sum'",
              "y = x - x.mean(-1, keepdim=True) if mode == 'sum' else x.tanh() - x.amax(-1, keepdim=True)\n"
              "return y if bias is None else y + bias"),
    "scan": (["  - {name: keep, scalar: bool, default: true}"], "keep=True", "return (x if keep else x * 2).cumsum(-1)"),
    "apart": ([UPPER], "upper=False", "return x.cumsum(-1) if upper else x - x.mean(-1, keepdim=True)"),
}  # fmt: skip
# the wrapper has variables of these names
OPERATORS |= {
    f"called {name}": (
        [f"  - {{name: {name}, scalar: bool, default: true}}"],
        f"{name}=True",
        f"return x * 2 if {name} else x",
    )
    for name in ("kernel", "n_elements")
}
ONE_FILE = {"norm", "softmax", "words", "scan"}


def text_of(name: str) -> str:
    inputs, head, body = OPERATORS[name]
    return SPEC.format(
        inputs="\n".join(inputs), head=head, body="\n".join(f"      {line}" for line in body.split("\n"))
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_every_way_is_right_in_every_variant(name: str) -> None:
    plan = generation.lowered(parse_spec(text_of(name)))
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(plan.spec.reference, scope)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 70, device=DEVICE), torch.randn(70, device=DEVICE), torch.randn(70, device=DEVICE)
    tensors = {"x": x, "weight": weight, "bias": bias}
    for schedule in dict.fromkeys(schedules(plan)):
        text = render.triton_source(plan.with_table((TableRow((), schedule),)))
        functions = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
        assert ("op_plain" not in functions) == (name in ONE_FILE), functions
        module = load(text)
        for given in combinations(plan.spec):
            made = {t.name: tensors[t.name] for t in plan.spec.tensors} | dict(given)
            torch.testing.assert_close(module.op(**made), scope["op"](**made), msg=f"{schedule}: {given}")

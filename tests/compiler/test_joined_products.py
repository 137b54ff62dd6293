"""Products less the greatest of their row, where the compiler joins a product with the subtraction that reads it, as it
does on a GPU: fma(x, y, -row_max), of which only the whole is rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import load, plan_of, sample

from kernelgen import render
from kernelgen.judge.interpreter import as_on_a_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOUND = {
    "a softmax": sample(
        "return torch.softmax(x * t, dim=-1)", {"x": "M N", "t": "M 1"}, {"out": "M N"}, {"M": 3, "N": 200}
    ),
    "attention": sample(
        "return torch.softmax(q @ k.mT * t, dim=-1).to(q.dtype) @ v",
        {"q": "B S D", "k": "B L D", "v": "B L D", "t": "B 1 1"}, {"out": "B S D"}, {"B": 2, "S": 20, "L": 80, "D": 16},
    ),
}  # fmt: skip


@pytest.fixture
def _joined(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu()
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    np, plain = interpreter.np, interpreter.InterpreterBuilder.binary_op

    def joined(builder: Any, a: Any, b: Any, op: Any) -> Any:
        result = plain(builder, a, b, op)
        if result.data.dtype != np.float32:
            return result
        if op is np.multiply:
            result.exactly = a.data.astype("float64") * b.data.astype("float64")
        elif op is np.subtract and hasattr(a, "exactly"):
            result = interpreter.TensorHandle((a.exactly - b.data).astype("float32"), result.dtype)
        return result

    monkeypatch.setattr(interpreter.InterpreterBuilder, "binary_op", joined)


@pytest.mark.usefixtures("_joined")
@pytest.mark.parametrize("name", FOUND)
def test_the_greatest_product_less_itself_is_zero(name: str) -> None:
    """Of logits of 1e12 a rounding is thousands, of which exponentials would be infinite, or zero throughout."""
    found = FOUND[name]
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn([found.sizes[0].get(str(s), 1) for s in t.shape], generator=generator) for t in found.inputs]
    inputs = [x * 2**18 if t.name != "v" else x for x, t in zip(inputs, found.inputs, strict=True)]
    got = load(render.triton_source(plan_of(found.spec()))).op(*(x.to(DEVICE) for x in inputs))
    assert bool(got.isfinite().all())
    if name == "a softmax":
        torch.testing.assert_close(got.sum(-1), torch.ones_like(got.sum(-1)))

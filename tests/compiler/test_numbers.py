"""Inputs that are numbers of Python's: arguments of the function and of its kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen import render
from kernelgen.errors import SpecError
from kernelgen.spec.model import TensorSpec

SIZES = ({"N": 3, "D": 21}, {"N": 1, "D": 1})


def with_numbers(lines: str, *, constraints: tuple[str, ...] = (), **defaults: float) -> Sample:
    found = sample(lines, {"x": "N D"}, {"out": "N D"}, *SIZES, constraints=constraints)
    numbers = tuple(TensorSpec(name, (), "float32", "scalar", default=value) for name, value in defaults.items())
    return replace(found, inputs=(*found.inputs, *numbers))


NUMBERS = {
    "added": with_numbers("return (x.float() * 2 + eps).to(x.dtype)", eps=1e-3),
    "of rows": with_numbers("w = x.float()\nreturn (w * torch.rsqrt(w.square().mean(-1, keepdim=True) + eps)).to(x.dtype)", eps=1e-6),
    "computed with": with_numbers("return x * (1 - lr * decay) - lr / 2", lr=0.1, decay=0.01),
    "bounds": with_numbers("return x.clamp(-limit, limit) * slope", limit=0.5, slope=0.2),
    "steps": with_numbers("return torch.add(x, x.abs(), alpha=step)", step=-0.5),
    "several kernels": with_numbers("return x / (x.float().sum(0) + eps).to(x.dtype) * x.amax(1, keepdim=True)", eps=1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_what_the_reference_computes_with(name: str) -> None:
    assert failures(NUMBERS[name], thorough=False) == []


def test_they_are_arguments_of_the_function_and_of_the_kernel() -> None:
    text = render.triton_source(plan_of(NUMBERS["computed with"].spec()))
    assert "def op(x: torch.Tensor, lr: float = 0.1, decay: float = 0.01) -> torch.Tensor:" in text
    assert "    lr,\n    decay,\n" in text
    assert "lr_ptr" not in text
    assert "1.0 - lr * decay" in text
    assert "check_inputs(x, lr, decay)" in text


@pytest.mark.parametrize(
    "lines",
    [
        "return x * 2 if eps > 0 else x",
        "return F.batch_norm(x, None, None, training=True, eps=eps)",
        "return F.leaky_relu(x, eps)",
    ],
)
def test_what_wants_a_plain_number_is_refused_by_its_line(lines: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan_of(with_numbers(lines, eps=1e-3).spec())
    assert "unsupported" in str(caught.value)

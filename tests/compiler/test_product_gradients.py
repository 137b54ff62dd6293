"""Gradients of products: products of the family's own, and what they are products of is computed once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from references import plan_of
from test_backward import check, derived, files_of, of, references

from kernelgen import render
from kernelgen.spec.model import Case, SizeValue

TWO = {"a": "... D", "b": "D D"}
LAYER = {"x": "... D", "w": "7 D", "c": "7"}
GATED = {"x": "... D", "g": "7 D", "u": "7 D", "w": "5 7"}
FORMS = {
    "a @ b": of("return a @ b", TWO, {"out": "... D"}),
    "linear": of("return F.linear(x, w, c)", LAYER, {"out": "... 7"}),
    "linear and an activation": of("return F.silu(F.linear(x, w) + c)", LAYER, {"out": "... 7"}),
    "scaled before and after": of("return (x * c @ w.t()) * 0.5", {"x": "... D", "c": "D", "w": "7 D"}, {"out": "... 7"}),
    "a residual": of("return r + F.linear(x, w)", {"x": "... D", "w": "7 D", "r": "... 7"}, {"out": "... 7"}),
    "gated": of("return F.silu(F.linear(x, g)) * F.linear(x, u)", {"x": "... D", "g": "7 D", "u": "7 D"}, {"out": "... 7"}),
    "a chain": of("return F.linear(F.gelu(F.linear(x, w, c)), w.t())", LAYER, {"out": "... D"}),
    "a gated chain": of("return F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), w)", GATED, {"out": "... 5"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    check(FORMS[name])


def test_a_linear_layer_has_two_products_and_a_sum_over_rows() -> None:
    assert references(FORMS["linear"].spec()) == [
        ["    dtype = w.dtype", "    grad_x = grad_out @ w", "    return grad_x.to(dtype)"],
        [
            "    dtype = x.dtype",
            "    grad_w = grad_out.reshape(-1, 7).mT @ x.reshape(-1, x.shape[-1])",
            "    return grad_w.to(dtype)",
        ],
        [
            "    dtype = grad_out.dtype",
            "    grad_c = grad_out.reshape(-1, 7).sum(dim=0)",
            "    return grad_c.to(dtype)",
        ],
    ]


def test_what_a_product_gets_is_computed_once() -> None:
    first, *rest = derived(FORMS["linear and an activation"].spec()).parts
    (saved,) = first.spec.outputs
    assert (first.gradients, saved.dtype) == ((), "float32")
    assert all(saved.name in {t.name for t in part.spec.inputs} for part in rest)
    assert [part.gradients for part in rest] == [("x",), ("w",), ("c",)]


def test_a_chain_hands_on_what_each_of_its_products_gets_and_multiplies_in_the_dtype_of_torch() -> None:
    halves = replace(FORMS["a gated chain"], dtypes=(("T", ("float16", "float32")),))
    first, *rest = derived(halves.spec()).parts
    assert (first.gradients, len(first.spec.outputs)) == ((), 2)
    assert [part.gradients for part in rest] == [("x",), ("g",), ("u",), ("w",)]
    assert not any("@ w" in part.spec.reference for part in rest)
    assert all(".to(dtype)" in part.spec.reference.rpartition("\n    return")[0] for part in rest)


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
@pytest.mark.parametrize("name", ["linear and an activation", "attention"])
def test_a_spec_says_how_gradients_are_multiplied(name: str, precision: str) -> None:
    """In the forward that saves what they need too; what multiplies nothing has no such key, which would be refused."""
    attention = of(
        "return F.scaled_dot_product_attention(q, k, v)", dict.fromkeys("qkv", "B H S 16"), {"out": "B H S 16"}
    )
    found = replace(attention if name == "attention" else FORMS[name], precision=precision)
    sizes: dict[str, SizeValue] = {"B": 1, "H": 1, "S": 5} if name == "attention" else {"...": (3,), "D": 9}
    spec = replace(found.spec(), accuracy=(Case(tuple(sizes.items()), (("T", "float32"),)),))
    made = derived(spec)
    multiplying = [part.spec for part in made.parts if " @ " in part.spec.reference]
    assert multiplying
    for part in made.parts:
        assert part.spec.precision == (precision if part.spec in multiplying else None), part.spec.name
        text = render.triton_source(plan_of(part.spec))
        assert (f'PRECISION="{precision}"' in text) == (part.spec in multiplying)
    (judged,) = (text for file, text in files_of(made).items() if file.endswith("_gradients_accuracy.py"))
    assert ("as_tf32=True" in judged) == (precision == "tf32")

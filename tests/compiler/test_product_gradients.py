"""Gradients of products: products of the family's own, and what they are products of is computed once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_backward import check, derived, of, references

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

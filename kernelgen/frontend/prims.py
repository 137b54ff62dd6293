"""The primitives that torch's decompositions end in, where they are not called like an operation of ATen."""

from __future__ import annotations

from collections.abc import Mapping

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.reductions import dims_of, finish, moments
from kernelgen.frontend.rule import Call, Rule


def _broadcast(b: Builder, c: Call) -> Ref:
    """`broadcast_in_dim(x, shape, dims)`: dimension i of x is dims[i] of the result."""
    x, dims = c.args[0], list(c.args[2])
    own = b.node(x).shape
    placed = tuple(own[dims.index(d)] if d in dims else () for d in range(len(c.shape)))
    return b.view("expand", b.view("reshape", x, placed), c.shape)


def _variance(b: Builder, c: Call) -> Ref:
    x, correction = c.args[0], c.get(2, "correction", 1.0)
    return finish(b, c, moments(b, x, dims_of(b, x, c.args[1]), correction)[2])


OWN: dict[str, Rule] = {
    "prims.broadcast_in_dim.default": _broadcast,
    "prims.var.default": _variance,
}
_CALLED = {
    "convert_element_type": "to.dtype", "erf_inv": "erfinv.default", "bessel_j0": "special_bessel_j0.default",
    "bessel_j1": "special_bessel_j1.default", "bessel_i0": "i0.default", "bessel_i0e": "special_i0e.default",
    "bessel_i1": "special_i1.default", "bessel_i1e": "special_i1e.default", "erfcx": "special_erfcx.default",
    "ndtri": "special_ndtri.default", "transpose": "permute.default", "rint": "round.default",
}  # fmt: skip
"""Primitives that ATen calls otherwise."""
_SAME = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp"),
    *("exp2", "expm1", "floor", "lgamma", "log", "log1p", "log2", "log10", "neg", "reciprocal", "rsqrt", "sign", "sin"),
    *("signbit", "sinh", "sqrt", "tan", "tanh", "trunc", "round", "isfinite", "frac", "bitwise_not"),
    *("atan2", "copysign", "fmax", "fmin", "fmod", "hypot", "maximum", "minimum", "nextafter", "remainder"),
)
_OF_TENSORS = (
    *(
        "add",
        "sub",
        "mul",
        "div",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "pow",
    ),
    "where",
)


def rules(aten: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules of primitives. `aten`: those of ATen's operations."""
    same = {name: f"{name}.default" for name in _SAME}
    same |= {name: f"{name}.{'self' if name == 'where' else 'Tensor'}" for name in _OF_TENSORS}
    same["pow"] = "pow.Tensor_Tensor"
    found = {
        f"prims.{prim}.default": aten[f"aten.{to}"] for prim, to in (same | _CALLED).items() if f"aten.{to}" in aten
    }
    return {**found, **OWN}

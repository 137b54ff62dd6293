"""Norms over rows and channels, written out with the names a reader expects."""

from __future__ import annotations

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.reductions import as_float, mean_of, moments
from kernelgen.frontend.rule import Call, Refused, Rule


def _affine(b: Builder, value: Ref, weight: Ref | None, bias: Ref | None) -> Ref:
    if weight is not None:
        value = b.map("mul", value, weight)
    return value if bias is None else b.map("add", value, bias)


def layer_norm(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    normalized = _normalized(b, x, tuple(range(-len(c.args[1]), 0)), c.get(4, "eps", 1e-5))
    return _affine(b, normalized, c.get(2, "weight"), c.get(3, "bias"))


def _normalized(b: Builder, x: Ref, dims: tuple[int, ...], eps: float) -> Ref:
    _, centered, variance = moments(b, x, dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, float(eps)), name="rstd")
    return b.map("mul", centered, rstd)


def rms_norm(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims = tuple(range(-len(c.args[1]), 0))
    eps = c.get(3, "eps")
    if eps is None:
        raise Refused("rms_norm without eps, which then depends on the dtype (pass eps=)")
    mean_square = mean_of(b, b.map("mul", x, x), dims, "mean_square", "square_sum")
    rstd = b.map("rsqrt", b.map("add", mean_square, float(eps)), name="rstd")
    return _affine(b, b.map("mul", x, rstd), c.get(2, "weight"), None)


TABLE: dict[str, Rule] = {
    "aten.layer_norm.default": layer_norm,
    "aten.rms_norm.default": rms_norm,
}
"""The rules of the norms, by overload."""

"""Composites written out with the names a reader expects: activations, reductions, norms."""

from __future__ import annotations

import math
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Ref
from kernelgen.frontend.rule import Call, Refused, Rule


def relu(b: Builder, c: Call) -> Ref:
    return b.map("maximum", c.args[0], 0.0 if c.dtype == "float" else 0)


def silu(b: Builder, c: Call) -> Ref:
    return b.map("mul", c.args[0], b.map("sigmoid", c.args[0]))


def gelu(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    if c.get(1, "approximate", "none") == "none":
        return b.map("mul", b.map("mul", 0.5, x), b.map("add", 1.0, b.map("erf", b.map("mul", x, math.sqrt(0.5)))))
    b.note(
        "gelu: 0.5 * (1 + tanh(u)) is computed as sigmoid(2 * u), the same function with one exponential less to round"
    )
    cubic = b.map("mul", b.map("mul", b.map("mul", 0.044715, x), x), x)
    inner = b.map("mul", 2 * math.sqrt(2 / math.pi), b.map("add", x, cubic), name="two_u")
    return b.map("mul", x, b.map("sigmoid", inner))


def softplus(b: Builder, c: Call) -> Ref:
    x, beta, threshold = c.args[0], c.get(1, "beta", 1), c.get(2, "threshold", 20)
    scaled = x if beta == 1 else b.map("mul", x, float(beta))
    soft = b.map("log1p", b.map("exp", scaled))
    soft = soft if beta == 1 else b.map("div", soft, float(beta))
    return b.map("where", b.map("gt", scaled, float(threshold)), x, soft)


def leaky_relu(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    return b.map("where", b.map("gt", x, 0.0), x, b.map("mul", x, float(c.get(1, "negative_slope", 0.01))))


def elu(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    alpha, scale, input_scale = (float(c.get(i, n, 1)) for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    inner = x if input_scale == 1 else b.map("mul", x, input_scale)
    negative, positive = b.map("expm1", inner), x
    if alpha * scale != 1:
        negative = b.map("mul", negative, alpha * scale)
    if scale != 1:
        positive = b.map("mul", x, scale)
    return b.map("where", b.map("gt", x, 0.0), positive, negative)


def hardtanh(b: Builder, c: Call) -> Ref:
    low, high = float(c.get(1, "min_val", -1)), float(c.get(2, "max_val", 1))
    return b.map("minimum", b.map("maximum", c.args[0], low), high)


def hardsigmoid(b: Builder, c: Call) -> Ref:
    clipped = b.map("minimum", b.map("maximum", b.map("add", c.args[0], 3.0), 0.0), 6.0)
    return b.map("div", clipped, 6.0)


def hardswish(b: Builder, c: Call) -> Ref:
    return b.map("mul", c.args[0], hardsigmoid(b, c))


def mish(b: Builder, c: Call) -> Ref:
    return b.map("mul", c.args[0], b.map("tanh", softplus(b, c)))


def log_sigmoid(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    return b.map("sub", b.map("minimum", x, 0.0), b.map("log1p", b.map("exp", b.map("neg", b.map("abs", x)))))


def _dims(b: Builder, x: Ref, dim: Any) -> tuple[int, ...]:
    """Dimensions counted from the end; none named means all."""
    rank = b.rank(x)
    named = list(range(rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted((d % rank) - rank for d in named))


def _finish(b: Builder, c: Call, value: Ref) -> Ref:
    """Drop the reduced dimensions unless the call kept them."""
    return b.view("reshape", value, c.shape)


def _float(b: Builder, x: Ref) -> Ref:
    return b.convert(x, "float")


def reduction(op: str) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x = b.convert(c.args[0], c.dtype)  # a sum of integers is int64
        if c.dtype == "bool":
            raise Refused(f"the {op} of booleans")
        return _finish(b, c, b.reduce(op, x, _dims(b, x, c.get(1, "dim"))))

    return rule


def _mean_of(b: Builder, x: Ref, dims: tuple[int, ...], name: str | None = None, total: str | None = None) -> Ref:
    return b.map("div", b.reduce("sum", x, dims, total), b.size(x, dims), name=name)


def mean(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    return _finish(b, c, _mean_of(b, x, _dims(b, x, c.get(1, "dim"))))


def _moments(b: Builder, x: Ref, dims: tuple[int, ...], correction: int) -> tuple[Ref, Ref, Ref]:
    """Mean, deviation from it, and variance. Two passes in registers: E[x²] - E[x]² would cancel."""
    mean = _mean_of(b, x, dims, "mean")
    centered = b.map("sub", x, mean, name="centered")
    count: Arg = b.size(x, dims)
    if correction:
        # a row shorter than the correction divides by zero, as in torch
        count = b.map("maximum", b.map("sub", count, correction, dtype="int64"), 0, dtype="int64")
    total = b.reduce("sum", b.map("mul", centered, centered), dims, "square_sum")
    return mean, centered, b.map("div", total, count, name="variance")


def variance(root: bool) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x = _float(b, c.args[0])
        dim = c.get(1, "dim")
        correction = c.kwargs.get("correction")
        if isinstance(dim, bool):  # x.var(False): all dimensions
            dim, correction = None, dim
        elif len(c.args) > 2 or "unbiased" in c.kwargs:
            correction = c.get(2, "unbiased")
        correction = 1.0 if correction is None else float(correction)
        if not correction.is_integer():
            raise Refused(f"a variance with correction={correction}")
        variance = _moments(b, x, _dims(b, x, dim), int(correction))[2]
        return _finish(b, c, b.map("sqrt", variance) if root else variance)

    return rule


def vector_norm(b: Builder, c: Call) -> Ref:
    x, order = _float(b, c.args[0]), c.get(1, "ord", 2)
    order = 2 if order is None else order
    dims = _dims(b, x, c.get(2, "dim"))
    if order == 2:
        return _finish(b, c, b.map("sqrt", b.reduce("sum", b.map("mul", x, x), dims)))
    if order in (1, math.inf, -math.inf):
        op = {1: "sum", math.inf: "max", -math.inf: "min"}[order]
        return _finish(b, c, b.reduce(op, b.map("abs", x), dims))
    raise Refused(f"the norm of order {order} (supported: 1, 2, inf, -inf)")


def logsumexp(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    dims = _dims(b, x, c.get(1, "dim"))
    row_max = b.reduce("max", x, dims, "row_max")
    # as torch does, so that a row with an infinity has the limit and not NaN
    shift = b.map("where", b.map("isinf", row_max), 0.0, row_max, name="shift")
    numerator = b.map("exp", b.map("sub", x, shift), name="numerator")
    return _finish(b, c, b.map("add", shift, b.map("log", b.reduce("sum", numerator, dims, "denominator"))))


def _shifted_exp(b: Builder, x: Ref, dims: tuple[int, ...]) -> tuple[Ref, Ref]:
    row_max = b.reduce("max", x, dims, "row_max")
    return row_max, b.map("exp", b.map("sub", x, row_max), name="numerator")


def softmax(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    dims = _dims(b, x, c.args[1])
    _, numerator = _shifted_exp(b, x, dims)
    return b.map("div", numerator, b.reduce("sum", numerator, dims, "denominator"))


def log_softmax(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    dims = _dims(b, x, c.args[1])
    row_max, numerator = _shifted_exp(b, x, dims)
    log_sum = b.map("log", b.reduce("sum", numerator, dims, "denominator"), name="log_denominator")
    return b.map("sub", b.map("sub", x, row_max), log_sum)


def _affine(b: Builder, value: Ref, weight: Ref | None, bias: Ref | None) -> Ref:
    if weight is not None:
        value = b.map("mul", value, weight)
    return value if bias is None else b.map("add", value, bias)


def layer_norm(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    dims = tuple(range(-len(c.args[1]), 0))
    _, centered, variance = _moments(b, x, dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, float(c.get(4, "eps", 1e-5))), name="rstd")
    return _affine(b, b.map("mul", centered, rstd), c.get(2, "weight"), c.get(3, "bias"))


def rms_norm(b: Builder, c: Call) -> Ref:
    x = _float(b, c.args[0])
    dims = tuple(range(-len(c.args[1]), 0))
    eps = c.get(3, "eps")
    if eps is None:
        raise Refused("rms_norm without eps, which then depends on the dtype (pass eps=)")
    mean_square = _mean_of(b, b.map("mul", x, x), dims, "mean_square", "square_sum")
    rstd = b.map("rsqrt", b.map("add", mean_square, float(eps)), name="rstd")
    return _affine(b, b.map("mul", x, rstd), c.get(2, "weight"), None)

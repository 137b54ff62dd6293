"""Activations, written out with the names a reader expects."""

from __future__ import annotations

import math
from dataclasses import replace

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Call, Refused

LINEAR_FROM = 17
"""From here on log(1 + exp(x)) is x in float32."""


def relu(b: Builder, c: Call) -> Ref:
    return b.map("maximum", c.args[0], 0.0 if c.dtype == "float" else 0, attrs=("open",))


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
    return b.shortcut(b.map("mul", x, b.map("sigmoid", inner)), "gelu_tanh", x)


def softplus(b: Builder, c: Call) -> Ref:
    x, beta, threshold = c.args[0], c.get(1, "beta", 1), c.get(2, "threshold", 20)
    scaled = x if beta == 1 else b.map("mul", x, float(beta))
    soft = b.map("softplus", scaled)
    soft = soft if beta == 1 else b.map("div", soft, float(beta))
    if threshold >= LINEAR_FROM:
        return soft
    return b.map("where", b.map("gt", scaled, float(threshold)), x, soft, attrs=("piecewise",))


def leaky_relu(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    return b.map(
        "where", b.map("gt", x, 0.0), x, b.map("mul", x, float(c.get(1, "negative_slope", 0.01))), attrs=("piecewise",)
    )


def elu(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    alpha, scale, input_scale = (float(c.get(i, n, 1)) for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    inner = x if input_scale == 1 else b.map("mul", x, input_scale)
    negative, positive = b.map("expm1", inner), x
    if alpha * scale != 1:
        negative = b.map("mul", negative, alpha * scale)
    if scale != 1:
        positive = b.map("mul", x, scale)
    return b.map("where", b.map("gt", x, 0.0), positive, negative, attrs=("piecewise", "otherwise"))


def selu(b: Builder, c: Call) -> Ref:
    """elu with the constants of Klambauer et al., Self-Normalizing Neural Networks, arXiv:1706.02515."""
    return elu(b, replace(c, args=(c.args[0], 1.6732632423543772, 1.0507009873554805)))


def between(b: Builder, x: Ref, low: float, high: float) -> Ref:
    """The nearest number of an interval; at its ends torch lets no gradient through."""
    return b.map("minimum", b.map("maximum", x, low, attrs=("open",)), high, attrs=("open",))


def hardtanh(b: Builder, c: Call) -> Ref:
    low, high = float(c.get(1, "min_val", -1)), float(c.get(2, "max_val", 1))
    return between(b, c.args[0], low, high)


def hardsigmoid(b: Builder, c: Call) -> Ref:
    return b.map("div", between(b, b.map("add", c.args[0], 3.0), 0.0, 6.0), 6.0)


def hardswish(b: Builder, c: Call) -> Ref:
    return b.shortcut(b.map("mul", c.args[0], hardsigmoid(b, c)), "hardswish", c.args[0])


def mish(b: Builder, c: Call) -> Ref:
    return b.map("mish", c.args[0])


def log_sigmoid(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    return b.shortcut(b.map("neg", b.map("softplus", b.map("neg", x))), "log_sigmoid", x)


def celu(b: Builder, c: Call) -> Ref:
    alpha = float(c.get(1, "alpha", 1))
    return elu(b, replace(c, args=(c.args[0], alpha, 1.0, 1 / alpha), kwargs={}))


def prelu(b: Builder, c: Call) -> Ref:
    """With a slope for every channel, which are the second dimension, or one for all."""
    x, weight = c.args[:2]
    size, rank = b.node(weight).shape, b.rank(x)
    if rank > 1 and size not in ((), ((),)):
        weight = b.view("reshape", weight, (size[0], *((),) * (rank - 2)))
    elif size:
        weight = b.view("reshape", weight, ())
    return b.map("where", b.map("gt", x, 0.0), x, b.map("mul", x, weight), attrs=("piecewise",))


def softshrink(b: Builder, c: Call) -> Ref:
    x, size = c.args[0], float(c.get(1, "lambd", 0.5))
    nearer = b.map("where", b.map("gt", x, 0.0), b.map("sub", x, size), b.map("add", x, size), attrs=("piecewise",))
    return b.map("where", b.map("le", b.map("abs", x), size), 0.0, nearer, attrs=("piecewise",))


def hardshrink(b: Builder, c: Call) -> Ref:
    x, size = c.args[0], float(c.get(1, "lambd", 0.5))
    return b.map("where", b.map("le", b.map("abs", x), size), 0.0, x, attrs=("piecewise",))


def threshold(b: Builder, c: Call) -> Ref:
    x, bound, value = c.args[:3]
    return b.map("where", b.map("le", x, bound), value, x, dtype=c.dtype, attrs=("piecewise",))


def rrelu(b: Builder, c: Call) -> Ref:
    """Outside of training, with the middle of the range of slopes."""
    if c.get(3, "training", False):
        raise Refused(
            "rrelu.default in training, which draws from torch's generator (supported: random_mask with a seed)"
        )
    slope = (float(c.get(1, "lower", 1 / 8)) + float(c.get(2, "upper", 1 / 3))) / 2
    return leaky_relu(b, replace(c, args=(c.args[0], slope), kwargs={}))

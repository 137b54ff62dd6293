"""Norms over rows and channels, written out with the names a reader expects."""

from __future__ import annotations

import math

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Dim, Ref
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


def _normalized(b: Builder, x: Ref, dims: tuple[int, ...], eps: Arg) -> Ref:
    _, centered, variance = moments(b, x, dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, _number(eps)), name="rstd")
    return b.map("mul", centered, rstd)


def _number(eps: Arg) -> Arg:
    """A number as a float, or an input that is one."""
    return float(eps) if isinstance(eps, int | float) else eps


DEFAULT_EPS = 2.0**-23
"""What stands for an eps that is left out: float32's, in which torch computes (pytorch/pytorch pull request 142848)."""


def rms_norm(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims = tuple(range(-len(c.args[1]), 0))
    eps = c.get(3, "eps")
    if eps is None:
        eps = DEFAULT_EPS
    mean_square = mean_of(b, b.map("mul", x, x), dims, "mean_square", "square_sum")
    rstd = b.map("rsqrt", b.map("add", mean_square, _number(eps)), name="rstd")
    return _affine(b, b.map("mul", x, rstd), c.get(2, "weight"), None)


def _by_channel(b: Builder, x: Ref, value: Ref) -> Ref:
    """A number for every channel, which are x's second dimension, so that it broadcasts over x."""
    channels = b.node(value).shape[0]
    return b.view("reshape", value, (channels, *((),) * (b.rank(x) - 2)))


def _channel_affine(b: Builder, value: Ref, weight: Ref | None, bias: Ref | None) -> Ref:
    weight, bias = (v if v is None else _by_channel(b, value, v) for v in (weight, bias))
    return _affine(b, value, weight, bias)


def batch_norm(b: Builder, c: Call) -> Ref:
    """With the statistics of the batch, or with given ones."""
    x = as_float(b, c.args[0])
    weight, bias, mean, variance, training = c.args[1:6]
    eps = float(c.args[7])
    if training or mean is None or variance is None:
        _refuse_running(mean, variance)
        dims = tuple(d for d in range(-b.rank(x), 0) if d != 1 - b.rank(x))
        return _channel_affine(b, _normalized(b, x, dims, eps), weight, bias)
    centered = b.map("sub", x, _by_channel(b, x, mean), name="centered")
    rstd = b.map("rsqrt", b.map("add", _by_channel(b, x, variance), eps), name="rstd")
    return _channel_affine(b, b.map("mul", centered, rstd), weight, bias)


def instance_norm(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    weight, bias, mean, variance, own = c.args[1:6]
    if not own:
        raise Refused("instance_norm with running statistics")
    _refuse_running(mean, variance)
    return _channel_affine(b, _normalized(b, x, tuple(range(2 - b.rank(x), 0)), float(c.args[7])), weight, bias)


def _refuse_running(mean: Ref | None, variance: Ref | None) -> None:
    if mean is not None or variance is not None:
        raise Refused("running statistics, which torch updates in place (pass None)")


def group_norm(b: Builder, c: Call) -> Ref:
    x, groups = as_float(b, c.args[0]), c.args[1]
    batch, channels, *image = b.node(x).shape
    count = math.prod(a for a in channels if isinstance(a, int))
    if count % groups:
        wanted = " * ".join(str(a) for a in (groups, *(a for a in channels if isinstance(a, str))))
        raise Refused(
            f"{groups} groups, but the spec does not declare the channels as a multiple of that, such as {wanted}"
        )
    each: Dim = (*([count // groups] if count > groups else []), *(a for a in channels if isinstance(a, str)))
    grouped = b.view("reshape", x, (batch, (groups,) if groups > 1 else (), each, *image))
    normalized = _normalized(b, grouped, tuple(range(2 - b.rank(grouped), 0)), c.get(4, "eps", 1e-5))
    return _channel_affine(b, b.view("reshape", normalized, b.node(x).shape), c.get(2, "weight"), c.get(3, "bias"))


TABLE: dict[str, Rule] = {
    "aten.batch_norm.default": batch_norm,
    "aten.group_norm.default": group_norm,
    "kernelgen_reference.layer_norm.default": layer_norm,
    "kernelgen_reference.rms_norm.default": rms_norm,
    "kernelgen_reference.group_norm.default": group_norm,
    "aten.instance_norm.default": instance_norm,
    "aten.layer_norm.default": layer_norm,
    "aten.rms_norm.default": rms_norm,
}
"""The rules of the norms, by overload."""

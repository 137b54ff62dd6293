"""Elementary functions of one and two operands, written out in the graph's few operations.

What torch gives for NaN, infinities, zeros and integers is as in ATen's BinaryOps.h, UnaryOpsKernel.cpp and zmath.h.
"""

from __future__ import annotations

import math

from kernelgen.frontend.arithmetic import overloads
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Ref
from kernelgen.frontend.rule import Call, Refused, Rule

# signs and kinds of numbers


def sign(b: Builder, c: Call) -> Ref:
    """0 at NaN."""
    x: Ref = c.args[0]
    if c.dtype == "bool":
        return x
    above, below = b.map("gt", x, 0), b.map("lt", x, 0)
    if c.dtype != "float":
        return b.map("sub", b.convert(above, c.dtype), b.convert(below, c.dtype))
    return b.map("where", above, 1.0, b.map("where", below, -1.0, 0.0))


def isfinite(b: Builder, c: Call) -> Ref:
    return finite(b, c.args[0])


def finite(b: Builder, x: Ref) -> Ref:
    return b.map("lt", b.map("abs", x), math.inf) if b.node(x).dtype == "float" else b.map("eq", x, x)


def _equals(number: float) -> Rule:
    """isposinf and isneginf."""
    return lambda b, c: b.map("eq", b.convert(c.args[0], "float"), number)


def signbit(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    if b.node(x).dtype == "float":
        return b.map("signbit", x)
    return b.map("lt", b.convert(x, "int32") if b.node(x).dtype == "bool" else x, 0)


def copysign(b: Builder, c: Call) -> Ref:
    x, other = b.convert(c.args[0], "float"), c.args[1]
    if isinstance(other, int | float):
        size = b.map("abs", x)
        # a minus is 0.0 - size, which is no negative zero
        result = b.map("mul", size, -1.0) if math.copysign(1.0, other) < 0 else size
    else:
        result = b.map("copysign", x, other)
    return b.shortcut(result, "copysign", x)


def heaviside(b: Builder, c: Call) -> Ref:
    x, at_zero = c.args[:2]
    return b.map("where", b.map("eq", x, 0), b.hold(at_zero), b.convert(b.map("gt", x, 0), c.dtype), dtype=c.dtype)


def nan_to_num(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    if c.dtype != "float":
        return x
    import torch

    nan, high, low = (c.get(i, name) for i, name in ((1, "nan"), (2, "posinf"), (3, "neginf")))
    result: Ref = b.map("where", b.map("isnan", x), float(nan or 0.0), x)
    info = torch.finfo(getattr(torch, c.torch_dtype))
    if high is None:  # what is infinite in the dtype, although it may be a number of float32 here
        result = b.map("minimum", result, info.max, attrs=("closed",))
    else:
        result = b.map("where", b.map("eq", x, math.inf), float(high), result)
    if low is None:
        return b.map("maximum", result, info.min, attrs=("closed",))
    return b.map("where", b.map("eq", x, -math.inf), float(low), result)


def isclose(b: Builder, c: Call) -> Ref:
    x, other = c.args[:2]
    rtol, atol, equal_nan = (
        c.get(i, n, d) for i, n, d in ((2, "rtol", 1e-5), (3, "atol", 1e-8), (4, "equal_nan", False))
    )
    equal = b.map("eq", x, other)
    x, other = b.convert(x, "float"), b.convert(other, "float")
    if equal_nan:
        equal = b.map("or", equal, b.map("and", b.map("isnan", x), b.map("isnan", other)))
    if not rtol and not atol:
        return equal
    allowed = b.map("add", float(atol), b.map("abs", b.map("mul", float(rtol), other)), name="allowed")
    apart = b.map("abs", b.map("sub", x, other), name="apart")
    near = b.map("and", finite(b, apart), b.map("le", apart, allowed))
    return b.map("or", equal, near)


def _either(op: str) -> Rule:
    """fmax and fmin, which take a number before NaN."""
    return lambda b, c: b.map(op if c.dtype == "float" else op.replace("f", "") + "imum", *c.args[:2])


# logarithms and trigonometric functions


def logaddexp2(b: Builder, c: Call) -> Ref:
    one, other = c.args[:2]
    apart = b.map("abs", b.map("sub", one, other))
    more = b.map("div", b.map("log1p", b.map("exp2", b.map("neg", apart))), math.log(2))
    total = b.map("add", b.map("maximum", one, other), more)
    # of equal infinities the difference would be NaN
    result = b.map("where", b.map("eq", one, other), b.map("add", one, 1.0), total)
    return b.shortcut(result, "logaddexp2", one, other)


def hypot(b: Builder, c: Call) -> Ref:
    """By the ratio of the two, so that no square overflows; infinite beside a NaN too, as in C."""
    one, other = (b.map("abs", x) for x in c.args[:2])
    larger, smaller = b.map("maximum", one, other), b.map("minimum", one, other)
    ratio = b.map("where", b.map("eq", larger, 0.0), 0.0, b.map("div", smaller, larger))
    length = b.map("mul", larger, b.map("sqrt", b.map("add", 1.0, b.map("mul", ratio, ratio))))
    infinite = b.map("or", b.map("isinf", c.args[0]), b.map("isinf", c.args[1]))
    return b.shortcut(b.map("where", infinite, math.inf, length), "hypot", *c.args[:2])


def xlogy(b: Builder, c: Call) -> Ref:
    x, y = (b.convert(a, "float") if isinstance(a, Ref) else float(a) for a in c.args[:2])
    if not isinstance(y, Ref):
        # the logarithm of a number is one, NaN and infinities included
        log = math.log(y) if y > 0 else -math.inf if y == 0 else math.nan
        if not math.isfinite(log):
            raise Refused(f"xlogy with the number {y}")
        return b.map("mul", x, log)
    if not isinstance(x, Ref):
        zero = b.map("where", b.map("isnan", y), y, 0.0)
        return b.map("mul", x, b.map("log", y)) if x else zero
    vanishes = b.map("and", b.map("eq", x, 0.0), b.map("eq", y, y))
    result = b.map("where", vanishes, 0.0, b.map("mul", x, b.map("log", y)))
    return b.shortcut(result, "xlogy", x, y)


def sinc(b: Builder, c: Call) -> Ref:
    x = b.convert(c.args[0], "float")
    angle = b.map("mul", math.pi, x)
    # the sine of what is below 2**-126 is zero on a GPU; that of 1e-20 is the angle itself
    result = b.map("where", b.map("lt", b.map("abs", angle), 1e-20), 1.0, b.map("div", b.map("sin", angle), angle))
    return b.shortcut(result, "sinc", x)


def logit(b: Builder, c: Call) -> Ref:
    x, eps = b.convert(c.args[0], "float"), c.get(1, "eps")
    if eps is not None:
        x = b.map("maximum", x, float(eps), attrs=("closed",))
        x = b.map("minimum", x, 1 - float(eps), attrs=("closed",))
    return b.shortcut(b.map("log", b.map("div", x, b.map("sub", 1.0, x))), "logit", x)


def tan(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    return b.shortcut(b.map("div", b.map("sin", x), b.map("cos", x)), "tan", b.convert(x, "float"))


def frac(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    return b.shortcut(b.map("sub", x, b.map("trunc", x)), "frac", x)


_EXPONENT_ALONE = 60.0
"""From here on the asymptotic series below are right to 1e-8, and far below where I0 overflows."""


def _scaled_bessel(op: str, odd: bool, terms: tuple[float, ...]) -> Rule:
    """i0e and i1e: I(x) * exp(-|x|), for large x by the asymptotic series (Abramowitz and Stegun, 9.7.1)."""

    def rule(b: Builder, c: Call) -> Ref:
        x = b.convert(c.args[0], "float")
        size = b.map("abs", x)
        near = b.map("minimum", size, _EXPONENT_ALONE)
        small = b.map("mul", b.map(op, near), b.map("exp", b.map("neg", near)))
        inverse = b.map("div", 1.0, size)
        series: Arg = terms[-1]
        for term in reversed(terms[:-1]):
            series = b.map("add", b.map("mul", series, inverse), term)
        large = b.map("mul", series, b.map("rsqrt", b.map("mul", size, 2 * math.pi)))
        value = b.map("where", b.map("gt", size, _EXPONENT_ALONE), large, small)
        return b.map("copysign", value, x) if odd else value

    return rule


def round_to(b: Builder, c: Call) -> Ref:
    """To so many decimals, negative ones counting before the point."""
    x, decimals = c.args[0], c.kwargs.get("decimals", 0)
    if c.dtype != "float":
        if decimals:
            raise Refused("round of integers with decimals")
        return x  # type: ignore[no-any-return]
    if not decimals:
        return b.map("rint", x)
    ten = 10.0 ** abs(decimals)
    up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
    return b.map(down, b.map("rint", b.map(up, x, ten)), ten)


def _scaled(factor: float) -> Rule:
    return lambda b, c: b.map("mul", b.convert(c.args[0], "float"), factor)


def dropout(name: str) -> Rule:
    """Nothing is dropped outside of training, or with a probability of zero."""

    def rule(b: Builder, c: Call) -> Ref:
        if c.get(2, "train", True) and c.args[1] != 0:
            raise Refused(f"{name}.default, which draws from torch's generator (supported: random_mask with a seed)")
        return c.args[0]  # type: ignore[no-any-return]

    return rule


def _of_float(op: str) -> Rule:
    return lambda b, c: b.map(op, *(a if isinstance(a, Ref) else float(a) for a in c.args))


_SPECIAL = ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")
_FLOATS = ("erfc", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
TABLE: dict[str, Rule] = {
    **{f"aten.{op}.default": _of_float(op) for op in (*_FLOATS, "atan2")},
    **{f"aten.{op}.default": sign for op in ("sign", "sgn")},
    "aten.isfinite.default": isfinite,
    "aten.isposinf.default": _equals(math.inf),
    "aten.isneginf.default": _equals(-math.inf),
    "aten.signbit.default": signbit,
    **overloads("copysign", copysign, "Tensor", "Scalar"),
    "aten.heaviside.default": heaviside,
    "aten.nan_to_num.default": nan_to_num,
    "aten.isclose.default": isclose,
    "aten.fmax.default": _either("fmax"),
    "aten.fmin.default": _either("fmin"),
    "aten.logaddexp.default": _of_float("log_add_exp"),
    "aten.logaddexp2.default": logaddexp2,
    "aten.hypot.default": hypot,
    **overloads("xlogy", xlogy, "Tensor", "Scalar_Self", "Scalar_Other"),
    **overloads("special_xlogy", xlogy, "default", "self_scalar", "other_scalar"),
    "aten.sinc.default": sinc,
    "aten.logit.default": logit,
    "aten.tan.default": tan,
    **{f"aten.{op}.default": _of_float(op) for op in ("lgamma", "digamma", "erfinv", "nextafter")},
    **{f"aten.special_{op}.default": _of_float(op) for op in (*_SPECIAL, "erfcx", "ndtri")},
    "aten.i0.default": _of_float("bessel_i0"),
    "aten.special_i1.default": _of_float("bessel_i1"),
    **{f"aten.special_modified_bessel_{op}.default": _of_float(f"bessel_{op}") for op in ("i0", "i1")},
    "aten.special_i0e.default": _scaled_bessel("bessel_i0", False, (1.0, 1 / 8, 9 / 128, 225 / 3072)),
    "aten.special_i1e.default": _scaled_bessel("bessel_i1", True, (1.0, -3 / 8, -15 / 128, -315 / 3072)),
    "aten.frac.default": frac,
    "aten.log10.default": lambda b, c: b.map("mul", b.map("log2", c.args[0]), math.log10(2)),
    "aten.round.decimals": round_to,
    "aten.deg2rad.default": _scaled(math.pi / 180),
    "aten.rad2deg.default": _scaled(180 / math.pi),
    **{f"aten.{op}.default": dropout(op) for op in ("dropout", "feature_dropout", "alpha_dropout")},
    "aten.feature_alpha_dropout.default": dropout("feature_alpha_dropout"),
}
"""The rules of elementary functions, by overload."""

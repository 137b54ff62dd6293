"""What every supported ATen operation means, in the graph's few operations.

One entry of TABLE an overload. A rule gets the builder and a Call, and returns the value. Composites (softmax,
layer_norm, gelu) are written out here with the names a reader expects, instead of through core ATen, which
would give ten anonymous operations for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelgen.frontend import (
    arithmetic,
    bags,
    composites,
    constructors,
    einsum,
    elementary,
    gathers,
    losses,
    masks,
    moves,
    norms,
    prims,
    reductions,
    resampling,
    scans,
    scatters,
    sorts,
    windows,
    writes,
)
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import VIEWS, Arg, Ref
from kernelgen.frontend.rule import Call, Refused, Rule


def _unary(op: str) -> Rule:
    return lambda b, c: b.map(op, c.args[0])


def _binary(op: str) -> Rule:
    return lambda b, c: b.map(op, c.args[0], c.args[1])


def _whole(op: str) -> Rule:
    """floor, ceil and trunc, which leave integers as they are."""
    return lambda b, c: b.map(op, c.args[0]) if c.dtype == "float" else c.args[0]


def _logical(op: str) -> Rule:
    return lambda b, c: b.map(op, *(b.convert(a, "bool") for a in c.args[:2]))


def _scaled(op: str) -> Rule:
    """add and sub: the second operand times alpha."""

    def rule(b: Builder, c: Call) -> Ref:
        other, alpha = c.args[1], c.kwargs.get("alpha", 1)
        return b.map(op, c.args[0], other if alpha == 1 else _times(b, other, alpha))

    return rule


def _times(b: Builder, value: Arg, factor: float) -> Arg:
    if isinstance(value, Ref):
        return b.map("mul", value, factor)
    assert isinstance(value, int | float)
    return value * factor


def _rsub(b: Builder, c: Call) -> Ref:
    return b.map("sub", c.args[1], _times(b, c.args[0], c.kwargs.get("alpha", 1)) if "alpha" in c.kwargs else c.args[0])


def _clamp(b: Builder, c: Call) -> Ref:
    value: Ref = c.args[0]
    low, high = c.get(1, "min"), c.get(2, "max")
    if low is not None:
        value = b.map("maximum", value, low, dtype=c.dtype, attrs=("closed",))
    if high is not None:
        value = b.map("minimum", value, high, dtype=c.dtype, attrs=("closed",))
    if isinstance(low, Ref) and isinstance(high, Ref):
        return b.shortcut(value, "clamp", c.args[0], low, high)
    return value


def _clamp_max(b: Builder, c: Call) -> Ref:
    return b.map("minimum", c.args[0], c.args[1], dtype=c.dtype, attrs=("closed",))


def _where(b: Builder, c: Call) -> Ref:
    return b.map("where", *c.args[:3], dtype=c.dtype)


def _masked_fill(b: Builder, c: Call) -> Ref:
    return b.map("where", c.args[1], c.args[2], c.args[0], dtype=c.dtype)


def _addc(op: str) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        term = b.map(op, c.args[1], c.args[2])
        value = c.kwargs.get("value", 1)
        return b.map("add", c.args[0], term if value == 1 else b.map("mul", term, value))

    return rule


# dtypes


_FLOATS = ("float16", "bfloat16", "float32", "float64")
_FP8 = "float8_e4m3fn"
_FP8_MAX = 448.0


def _cast(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    if c.torch_dtype == "float64":
        raise Refused("float64 (arithmetic is done in float32)")
    if c.torch_dtype == _FP8:
        wide = b.convert(x, "float")
        return b.round(wide if _within_fp8(b, x) else b.map("float8_range", wide), c.torch_dtype)
    if c.torch_dtype in _FLOATS:
        return b.round(b.convert(x, "float"), c.torch_dtype)
    if c.dtype == "float":
        raise Refused(f"a cast to {c.torch_dtype} (supported: float16, bfloat16, float32 and {_FP8})")
    return b.convert(x, c.torch_dtype)


def _within_fp8(b: Builder, x: Ref) -> bool:
    """Whether a value is clamped to what float8_e4m3fn can hold, or was of that dtype before."""
    node, low, high = b.node(x), -math.inf, math.inf
    while node.op in ("minimum", "maximum", *VIEWS, "round") and isinstance(node.args[0], Ref):
        bound = node.args[1] if node.op in ("minimum", "maximum") else None
        if node.op == "minimum" and isinstance(bound, int | float):
            high = min(high, float(bound))
        if node.op == "maximum" and isinstance(bound, int | float):
            low = max(low, float(bound))
        node = b.node(node.args[0])
    return low >= -_FP8_MAX and high <= _FP8_MAX


def _same(b: Builder, c: Call) -> Ref:
    return c.args[0]  # type: ignore[no-any-return]


def _detach(b: Builder, c: Call) -> Ref:
    """The value itself, through which no gradient flows."""
    x: Ref = c.args[0]
    return b.hold(b.round(x, "float32")) if c.dtype == "float" else x


# views


def _expand(b: Builder, c: Call) -> Ref:
    return b.view("expand", c.args[0], c.shape)


def _reshape(b: Builder, c: Call) -> Ref:
    return b.view("reshape", c.args[0], c.shape)


def _permute(order: Callable[[Call, int], tuple[int, ...]]) -> Rule:
    return lambda b, c: b.view("permute", c.args[0], c.shape, order(c, b.rank(c.args[0])))


def _swap(c: Call, rank: int) -> tuple[int, ...]:
    order = list(range(rank))
    if rank < 2:
        return tuple(order)
    i, j = (c.args[1] % rank, c.args[2] % rank) if len(c.args) > 1 else (rank - 2, rank - 1)
    order[i], order[j] = order[j], order[i]
    return tuple(order)


_UNARY = (
    *("neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "tanh", "erf"),
    *("expm1", "log1p", "isnan", "isinf"),
)
_BINARY = {
    "mul": "mul", "maximum": "maximum", "minimum": "minimum", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}  # fmt: skip

_CASTS = ("to.dtype", "to.dtype_layout", "_to_copy.default", "type_as.default", "to.other")
_RESHAPES = (
    *("view.default", "reshape.default", "_unsafe_view.default", "view_as.default", "reshape_as.default"),
    *("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int"),
    "ravel.default",
)

TABLE: dict[str, Rule] = {
    **arithmetic.TABLE,
    **elementary.TABLE,
    **{f"aten.{op}.default": _unary(op) for op in _UNARY},
    **{f"aten.{op}.{kind}": _binary(to) for op, to in _BINARY.items() for kind in ("Tensor", "Scalar", "default")},
    **{f"aten.{op}.default": _whole(op) for op in ("floor", "ceil", "trunc")},
    **{f"aten.logical_{op}.default": _logical(op) for op in ("and", "or", "xor")},
    **{f"aten.{op}.{kind}": _scaled(op) for op in ("add", "sub") for kind in ("Tensor", "Scalar")},
    "aten.round.default": lambda b, c: b.map("rint", c.args[0]) if c.dtype == "float" else c.args[0],
    "aten.logical_not.default": _unary("logical_not"),
    "aten.bitwise_not.default": _unary("invert"),
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    "aten.reciprocal.default": lambda b, c: b.map("div", 1.0, c.args[0]),
    "aten.square.default": lambda b, c: b.map("mul", c.args[0], c.args[0]),
    **{f"aten.clamp.{kind}": _clamp for kind in ("default", "Tensor")},
    **{f"aten.clamp_min.{kind}": _clamp for kind in ("default", "Tensor")},
    **{f"aten.clamp_max.{kind}": _clamp_max for kind in ("default", "Tensor")},
    **{f"aten.where.{kind}": _where for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"aten.masked_fill.{kind}": _masked_fill for kind in ("Scalar", "Tensor")},
    "aten.addcmul.default": _addc("mul"),
    "aten.addcdiv.default": _addc("div"),
    "aten.relu.default": composites.relu,
    "aten.relu6.default": lambda b, c: composites.between(b, c.args[0], 0.0, 6.0),
    "aten.silu.default": composites.silu,
    "aten.gelu.default": composites.gelu,
    "aten.softplus.default": composites.softplus,
    "aten.leaky_relu.default": composites.leaky_relu,
    "aten.elu.default": composites.elu,
    "aten.selu.default": composites.selu,
    "aten.hardtanh.default": composites.hardtanh,
    "aten.hardsigmoid.default": composites.hardsigmoid,
    "aten.hardswish.default": composites.hardswish,
    "aten.mish.default": composites.mish,
    "aten.celu.default": composites.celu,
    "aten.prelu.default": composites.prelu,
    "aten.softshrink.default": composites.softshrink,
    "aten.hardshrink.default": composites.hardshrink,
    "aten.threshold.default": composites.threshold,
    "aten.rrelu.default": composites.rrelu,
    "aten.log_sigmoid.default": composites.log_sigmoid,
    **{f"aten.{op}": _cast for op in _CASTS},
    **{f"aten.{op}": _same for op in ("contiguous.default", "clone.default", "alias.default", "positive.default")},
    "aten.detach.default": _detach,
    **{f"aten.{op}": _expand for op in ("expand.default", "expand_as.default", "broadcast_to.default")},
    **{f"aten.{op}": _reshape for op in _RESHAPES},
    "aten.permute.default": _permute(lambda c, rank: tuple(d % rank for d in c.args[1])),
    "aten.transpose.int": _permute(_swap),
    "aten.t.default": _permute(_swap),
    **{f"aten.{op}.default": _permute(_swap) for op in ("mT", "mH", "adjoint", "matrix_H", "swapaxes", "swapdims")},
    "aten.numpy_T.default": _permute(lambda c, rank: tuple(reversed(range(rank)))),
    **einsum.RULES,
    **moves.RULES,
    **gathers.RULES,
    **windows.RULES,
    **resampling.RULES,
    **masks.RULES,
    **scatters.RULES,
    **sorts.RULES,
    **bags.RULES,
    **constructors.RULES,
    **writes.RULES,
    "aten.max.other": _binary("maximum"),
    "aten.min.other": _binary("minimum"),
    **reductions.TABLE,
    **scans.TABLE,
    **norms.TABLE,
    **losses.TABLE,
}


_ALIASES = {
    "clip": "clamp", "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg",
    "absolute": "abs", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "special_expit": "sigmoid",
    "special_expm1": "expm1", "special_log1p": "log1p", "special_erf": "erf", "special_exp2": "exp2",
    "special_erfc": "erfc", "special_gammaln": "lgamma", "special_digamma": "digamma", "special_psi": "digamma",
    "special_erfinv": "erfinv", "special_i0": "i0",
    "special_logit": "logit", "special_sinc": "sinc", "special_round": "round",
    "fix": "trunc", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2", "sgn": "sign",
    "moveaxis": "movedim", "row_stack": "vstack", "concatenate": "concat", "ger": "outer",
    "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift",
}  # fmt: skip
"""torch's second names."""
_COPIED = (
    *("alias", "diagonal", "expand", "narrow", "permute", "split", "split_with_sizes", "squeeze", "t", "transpose"),
    *("unbind", "unfold", "unsqueeze", "view", "slice", "select"),
)
"""Views that torch also makes as copies."""
for _alias, _name in [*_ALIASES.items(), *((f"{name}_copy", name) for name in _COPIED)]:
    for _key in [k for k in TABLE if k.startswith(f"aten.{_name}.")]:
        TABLE[_key.replace(_name, _alias, 1)] = TABLE[_key]
TABLE.update(prims.rules(TABLE))


REWRITTEN = ("take_along_dim",)
"""What `frontend/rewrites.py` writes in terms of operations that are in the table."""


def supported() -> list[str]:
    """The names of the operations that can be lowered, without their overloads, for a message to the user."""
    names = {name.split(".")[1] for name in TABLE if not name.startswith(("aten._", "prims."))} | set(REWRITTEN)
    return sorted(names - _ALIASES.keys() - {f"{name}_copy" for name in _COPIED})


__all__ = ["TABLE", "supported"]

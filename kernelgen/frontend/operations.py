"""The operations of a graph, one record each: what every room knows of one follows from it.

An operation that a reference may use is a record here, a rule in `frontend/` that makes its node, a rule in `backward/`
where it has a derivative, and a device function in `templates/helpers.py.jinja` where the language of kernels lacks it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "source", "map", "cast", "read", "view", "move", "call", "product", "pool", "search",
    "reduction", "arg_reduction", "selection", "scan", "scatter",
]  # fmt: skip
"""source: made of nothing; map: element by element; cast: the same number in another dtype; read: where expressions
say; view: looks at memory otherwise; move: an index that has a name, in gradients; call: stays a call of torch's;
product: of two factors, summed over what the result lacks; pool: what windows of values leave; search: how many of a
rising tensor's elements are less, or no more;
arg_reduction: to the place of an extreme; selection: several of every row."""

LIMITS = {"lowest": "min", "highest": "max", "epsilon": "eps", "smallest_normal": "tiny"}
"""The operations that are a number which `torch.finfo` says of a dtype, with its name there."""


@dataclass(frozen=True)
class Operation:
    """What is known of an operation, whatever it is applied to."""

    name: str
    kind: Kind
    noun: str = ""
    """What a value of it is called that nobody has named."""
    dtype: str = ""
    """Of its result, whatever the operands; empty: what torch promotes these to."""
    sign: str = ""
    """The operator that Python and torch have for it."""
    torch: str | None = ""
    """The function of torch's, where it has another name; None: there is none."""
    whole: str = ""
    """The same of a reduction where there are no rows."""
    of_bools: str = ""
    """What it is among booleans, if something else."""
    of_integers: str = ""
    """What it is among integers, which have no NaN that it would have to keep."""
    python: Callable[..., float] | None = None
    """What it gives for plain numbers, if that is worth knowing."""
    of_whole: bool = False
    """Whether `python` is for integers and truth values alone."""
    identity: float | None = None
    """What does not change a reduction or a scan of floats; infinite: the least or greatest of any dtype."""
    repeats: str = ""
    """The operation of two elements that a reduction or a scan repeats."""
    flops: int = 1
    """Operations that it counts for an element."""
    is_comparison: bool = False
    is_long: bool = False
    """Whether it takes more than a few instructions."""
    is_chain: bool = False
    """Whether it takes a dozen instructions or more, one waiting for the other."""
    is_stepped: bool = False
    """Whether the last bit of an operand may change the result by a whole step."""
    never_negative: bool = False
    drops_nan: bool = False
    """Whether its result may be a number where an operand is NaN."""


def _compared(sign: str, name: str, noun: str, python: Callable[..., float], *, of_whole: bool) -> Operation:
    return Operation(
        name, "map", noun, "bool", sign, python=python, of_whole=of_whole, is_comparison=True, is_stepped=True
    )


def _function(name: str, noun: str = "", python: Callable[..., float] | None = None) -> Operation:
    """A function of floats."""
    return Operation(name, "map", noun, "float", python=python)


def _chain(name: str, noun: str = "", python: Callable[..., float] | None = None) -> Operation:
    """A function of floats that takes a dozen instructions or more."""
    return Operation(name, "map", noun, "float", python=python, is_chain=True)


def _special(name: str, torch: str = "") -> Operation:
    """One of torch.special."""
    return Operation(name, "map", "", "float", torch=f"special.{torch or name}", is_chain=True)


_ALL = (
    Operation("input", "source"),
    Operation("load", "source", flops=0),
    Operation("full", "source"),
    Operation("const", "source", flops=0),
    Operation("iota", "source", "columns"),
    Operation("place", "read", "position"),
    Operation("index", "read"),
    Operation("call", "call"),
    Operation("dot", "product", "product", "float", torch=None, flops=2),
    Operation("max_pool", "pool", "pooled", "float", torch=None, flops=1),
    Operation("sum_pool", "pool", "pooled", "float", torch=None, flops=1),
    Operation("search", "search", "part", "int64", torch=None),
    Operation("expand", "view", "expanded"),
    Operation("permute", "view", "permuted"),
    Operation("reshape", "view", "reshaped"),
    Operation("slice", "move", "piece"),
    Operation("select", "move", "piece"),
    Operation("pad", "move", "padded"),
    Operation("flip", "move", "flipped"),
    Operation("roll", "move", "rolled"),
    Operation("repeat", "move"),
    Operation("interleave", "move"),
    Operation("shuffle", "move"),
    Operation("unshuffle", "move"),
    Operation("cat", "move", "joined"),
    Operation("stack", "move", "stacked"),
    Operation("round", "cast", "rounded", python=lambda a: a, flops=0),
    Operation("convert", "cast", "converted", python=lambda a: a, flops=0, drops_nan=True),
    # arithmetic
    Operation("add", "map", "total", sign="+", of_bools="or", python=operator.add),
    Operation("sub", "map", "difference", sign="-", python=operator.sub),
    Operation("mul", "map", "product", sign="*", of_bools="and", python=operator.mul),
    Operation("div", "map", "ratio", "float", sign="/", python=operator.truediv),
    Operation("div_rn", "map", "ratio", torch=None),
    Operation("mul_rn", "map", torch=None),
    Operation("quotient", "map", "ratio", torch=None),
    Operation("lifted_quotient", "map", "ratio", torch=None),
    Operation("int_div", "map", torch=None),
    Operation("int_mod", "map", "rest", torch="fmod"),
    Operation("neg", "map", "negative", python=operator.neg),
    Operation("abs", "map", "magnitude", python=abs, never_negative=True),
    Operation("maximum", "map", "largest", of_bools="or", of_integers="int_maximum", python=max),
    Operation("minimum", "map", "smallest", of_bools="and", of_integers="int_minimum", python=min),
    Operation("int_maximum", "map", torch="maximum", python=max, of_whole=True),
    Operation("int_minimum", "map", torch="minimum", python=min, of_whole=True),
    Operation("fmax", "map"),
    Operation("fmin", "map"),
    Operation("clamp", "map", torch=None, python=lambda x, low, high: min(max(x, low), high)),
    Operation("where", "map", "chosen", python=lambda c, a, b: a if c else b, drops_nan=True),
    # truth and bits
    _compared("==", "eq", "is_equal", lambda a, b: float(a == b), of_whole=False),
    _compared("!=", "ne", "differs", lambda a, b: float(a != b), of_whole=False),
    _compared("<", "lt", "is_less", operator.lt, of_whole=True),
    _compared("<=", "le", "is_at_most", operator.le, of_whole=True),
    _compared(">", "gt", "is_greater", operator.gt, of_whole=True),
    _compared(">=", "ge", "is_at_least", operator.ge, of_whole=True),
    Operation("and", "map", "both", sign="&", python=operator.and_, of_whole=True),
    Operation("or", "map", "either", sign="|", python=operator.or_, of_whole=True),
    Operation("xor", "map", "differs", sign="^", python=operator.xor, of_whole=True),
    Operation("shl", "map", sign="<<"),
    Operation("shr", "map", sign=">>"),
    Operation("invert", "map", python=lambda a: not a if isinstance(a, bool) else ~a, of_whole=True),
    Operation("logical_not", "map", "is_not", "bool", python=lambda a: float(a == 0)),
    Operation("isnan", "map", "is_nan", "bool", python=lambda a: float(a != a)),
    Operation("isinf", "map", "is_infinite", "bool"),
    Operation("signbit", "map", "is_negative", "bool"),
    Operation("random_mask", "map", "", "bool", torch=None),
    Operation("ordered", "map", "rank", "int32", torch=None),
    Operation("from_ordered", "map", "value", "float", torch=None),
    # functions
    Operation("exp", "map", "exponential", "float", python=math.exp, is_long=True, never_negative=True),
    Operation("exp2", "map", "", "float", python=math.exp2, is_long=True, never_negative=True),
    Operation("exp2_flushed", "map", "", "float", torch=None, python=math.exp2, is_long=True, never_negative=True),
    Operation("log", "map", "", "float", python=math.log, is_long=True),
    Operation("sqrt", "map", "root", "float", python=math.sqrt, never_negative=True),
    Operation("sigmoid", "map", "gate", "float", python=lambda a: 1 / (1 + math.exp(-a)), never_negative=True),
    _function("log2", python=math.log2),
    _function("cos", python=math.cos),
    _function("sin", python=math.sin),
    _function("rsqrt", "inverse_root"),
    _function("copysign", "signed"),
    _chain("log1p", python=math.log1p),
    *map(_chain, ("erfc", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh")),
    *map(_chain, ("lgamma", "digamma", "erfinv", "nextafter")),
    *map(_special, ("erfcx", "ndtri", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")),
    _special("bessel_i0", "i0"),
    _special("bessel_i1", "i1"),
    _chain("expm1", "grown", math.expm1),
    _chain("tanh", python=math.tanh),
    _chain("erf", python=math.erf),
    _chain("pow", "power"),
    _chain("fmod", "rest"),
    Operation("log_add_exp", "map", "", "float", torch="logaddexp", is_chain=True),
    Operation("softplus", "map", torch="F.softplus", is_chain=True),
    Operation("mish", "map", torch="F.mish"),
    Operation("floor", "map", python=lambda a: float(math.floor(a)), is_stepped=True),
    Operation("ceil", "map", is_stepped=True),
    Operation("trunc", "map", is_stepped=True),
    Operation("rint", "map", torch="round", is_stepped=True),
    Operation("rint_between", "map", "rounded", torch=None),
    Operation("float8_range", "map", torch=None),
    # of the dtype that a node's attribute names
    Operation("lowest", "source", "lowest", "float", torch=None, flops=0),
    Operation("highest", "source", "highest", "float", torch=None, flops=0),
    Operation("epsilon", "source", "eps", "float", torch=None, flops=0),
    Operation("smallest_normal", "source", "tiny", "float", torch=None, flops=0),
    # several elements
    Operation("sum", "reduction", "row_sum", whole="total", identity=0.0, repeats="add"),
    Operation(
        "max",
        "reduction",
        "row_max",
        torch="amax",
        whole="greatest",
        identity=-math.inf,
        repeats="maximum",
        drops_nan=True,
    ),
    Operation(
        "min", "reduction", "row_min", torch="amin", whole="least", identity=math.inf, repeats="minimum", drops_nan=True
    ),
    Operation("prod", "reduction", "row_product", whole="product", identity=1.0, repeats="mul"),
    Operation("argmax", "arg_reduction", "index_of_max", "int64", identity=-math.inf),
    Operation("argmin", "arg_reduction", "index_of_min", "int64", identity=math.inf),
    Operation("topk", "selection", "top_values", identity=-math.inf),
    Operation("argtopk", "selection", "top_indices", "int64", identity=-math.inf),
    Operation("topk_least", "selection", "least_values", identity=math.nan),
    Operation("argtopk_least", "selection", "least_indices", "int64", identity=math.nan),
    *(
        Operation(f"{arg}sort_{way}", "selection", noun, "int64" if arg else "", identity=-math.inf)
        for way in ("rising", "falling")
        for arg, noun in (("", "sorted_values"), ("arg", "sorted_indices"))
    ),
    Operation("cumsum", "scan", "running_sum", identity=0.0, repeats="add"),
    Operation("cumprod", "scan", "running_product", identity=1.0, repeats="mul"),
    Operation("cummax", "scan", "running_max", identity=-math.inf, repeats="maximum"),
    Operation("cummin", "scan", "running_min", identity=math.inf, repeats="minimum"),
    Operation("logcumsumexp", "scan", "running_logsumexp", identity=-math.inf, repeats="log_add_exp"),
    Operation("bincount", "scatter"),
    Operation("index_add", "scatter"),
    Operation("scatter_add", "scatter"),
    Operation("scatter_max", "scatter", "greatest"),
    Operation("last_place", "scatter", "last_place", "int64"),
    Operation("times_named", "scatter", "times_named", "int64"),
)

OPERATIONS = {operation.name: operation for operation in _ALL}
"""By name."""

NOUNS = {operation.name: operation.noun for operation in _ALL if operation.noun}

KIND_NOUNS: dict[Kind, str] = {
    "selection": "selected", "reduction": "reduced", "arg_reduction": "reduced", "scan": "scanned",
    "scatter": "scattered", "product": "product",
}  # fmt: skip
"""What a value without a name is called in memory between two kernels; of any other kind it is intermediate."""


def of_kind(*kinds: Kind) -> tuple[str, ...]:
    """The names of the operations of some kinds."""
    return tuple(operation.name for operation in _ALL if operation.kind in kinds)


def evaluate(op: str, args: tuple[float, ...]) -> float | None:
    """What an operation gives for plain floats; None where it is not worth knowing."""
    known = OPERATIONS[op]
    return None if known.of_whole else _value(known, args)


def evaluate_whole(op: str, args: tuple[float, ...]) -> float | None:
    """What an operation gives for whole numbers and truth values; None where it is not worth knowing."""
    return _value(OPERATIONS[op], args)


def _value(operation: Operation, args: tuple[float, ...]) -> float | None:
    try:
        return operation.python(*args) if operation.python else None
    except (ValueError, OverflowError, ZeroDivisionError):
        return None


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Recurrent layers that stay calls, by the names of torch's functions."""

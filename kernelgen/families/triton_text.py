"""Operations as Triton expressions, with no more parentheses than Python needs.

Elementary functions that `triton.language` lacks, or that would lose NaN or precision, are small jit helpers
which the generated file defines; HELPERS names them (their text is in templates/helpers.py.jinja).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.frontend.masks import OPERATION, threshold

ATOM, UNARY, PRODUCT, SUM, SHIFT, BITAND, BITXOR, BITOR, COMPARE = 100, 90, 80, 70, 60, 55, 54, 53, 40


@dataclass(frozen=True)
class Text:
    """An expression and how tightly its outermost operator binds."""

    text: str
    binding: int = ATOM

    def within(self, binding: int) -> str:
        """The expression as an operand of an operator that binds this tightly."""
        return self.text if self.binding >= binding else f"({self.text})"


_INFIX = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT),
    "int_div": ("//", PRODUCT), "int_mod": ("%", PRODUCT), "shl": ("<<", SHIFT), "shr": (">>", SHIFT),
    "and": ("&", BITAND), "xor": ("^", BITXOR), "or": ("|", BITOR),
    "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "lt": ("<", COMPARE), "le": ("<=", COMPARE),
    "gt": (">", COMPARE), "ge": (">=", COMPARE),
}  # fmt: skip

_CALLS = {
    "exp2": "tl.exp2", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
    "sin": "tl.sin", "cos": "tl.cos", "floor": "tl.floor", "ceil": "tl.ceil",
    "abs": "tl.abs", "where": "tl.where",
    "div_rn": "tl.div_rn", "int_maximum": "tl.maximum", "int_minimum": "tl.minimum",
    "fmax": "tl.maximum", "fmin": "tl.minimum",
}  # fmt: skip

_OWN = {
    "exp": ("exp",), "sigmoid": ("exp", "sigmoid"), "erf": ("erf",),
    "tanh": ("tanh",), "expm1": ("expm1",), "log1p": ("log1p",), "trunc": ("trunc",),
    "softplus": ("precise_exp", "softplus"), "mish": ("precise_exp", "mish"),
    "erfc": ("precise_exp", "erf", "erfc"), "pow": ("copysign", "pow"), "fmod": ("trunc", "fmod"),
    "signbit": ("signbit",), "copysign": ("copysign",),
    "atan": ("copysign", "atan"), "atan2": ("signbit", "copysign", "atan", "atan2"),
    "asin": ("copysign", "asin"), "acos": ("copysign", "asin", "acos"),
    "sinh": ("precise_exp", "expm1", "copysign", "sinh"), "cosh": ("precise_exp", "cosh"),
    "asinh": ("log1p", "copysign", "asinh"), "acosh": ("log1p", "acosh"),
    "atanh": ("log1p", "copysign", "atanh"),
    "isinf": ("isinf",), "rint": ("rint",), "rint_between": ("rint_between",),
    "clamp": ("clamp",), "quotient": ("quotient",), "lifted_quotient": ("lifted_quotient",),
    "random_mask": ("random_mask",),
    "maximum": ("nan_maximum",), "minimum": ("nan_minimum",), "log_add_exp": ("precise_exp", "softplus", "log_add_exp"),
}  # fmt: skip
"""The helpers that stand for an operation; it calls the last of them."""

HELPERS = (
    "exp", "sigmoid", "erf", "precise_exp", "expm1", "log1p", "tanh", "softplus", "mish", "quotient",
    "lifted_quotient", "trunc", "rint", "rint_between", "isinf", "signbit", "copysign",
    "erfc", "pow", "fmod", "atan", "atan2", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh",
    "nan_maximum", "nan_minimum", "clamp", "size_max", "nan_max", "nan_min", "argmax", "argmin", "above", "below",
    "multiply", "int_maximum", "int_minimum", "log_add_exp", "from_end", "turned",
    "frexp", "ldexp", "multiply_scaled", "running_products", "multiply_growing", "cumprod",
    "growing_products", "last_of", "product", "products_after",
    "two_sum", "add_rows", "add_whole_rows", "random_mask", "ordered", "from_ordered",
    "split_4", "split_8", "join_4", "join_8", "leave", "await", "is_missing", "poll", "unpack",
)  # fmt: skip
"""In the order in which the generated file defines them, each with an underscore before its name: an operator may
be called tanh itself."""

_OF_HELPERS = {
    "above": ("is_above",), "below": ("is_below",), "ldexp": ("power_of_two", "ldexp"),
    "random_mask": ("multiply_high", "random_mask"),
}  # fmt: skip
"""What helpers define that is not called after them; on some devices alone, as the halves of a random mask are."""
DEVICE_FUNCTIONS = frozenset(f"_{name}" for helper in HELPERS for name in _OF_HELPERS.get(helper, (helper,)))
"""The names of all functions that kernels of a generated file may call, which nothing else in a kernel may have."""


def number(value: float | int | bool) -> Text:
    """A Python number as it stands in a kernel, where Triton takes one that is no normal float32 for a float64."""
    if isinstance(value, float) and 0 < abs(value) < 2.0**-126:
        return Text(f"tl.full([], {value!r}, tl.float32)")
    if isinstance(value, float) and 2.0**128 <= abs(value) < math.inf:
        value = math.copysign(math.inf, value)
    if isinstance(value, float) and not math.isfinite(value):
        return Text(f'float("{value}")')
    return Text(repr(value).replace("e-0", "e-"), ATOM if not isinstance(value, int | float) or value >= 0 else UNARY)


def operation(op: str, args: tuple[Text, ...]) -> tuple[Text, tuple[str, ...]]:
    """An operation as an expression, and the helpers that it calls."""
    if op in _INFIX:
        sign, binding = _INFIX[op]
        # + and * associate as written; the right operand of - and / must bind tighter, comparisons do not chain.
        right = binding + (1 if op in ("sub", "div", "int_div", "int_mod", "shl", "shr") or binding == COMPARE else 0)
        if op in ("add", "mul"):
            right = binding + 1  # floating-point sums are kept in the reference's order
        return Text(f"{args[0].within(binding + (binding == COMPARE))} {sign} {args[1].within(right)}", binding), ()
    if op == "neg":
        return Text(f"-{args[0].within(UNARY)}", UNARY), ()
    if op == "invert":
        return Text(f"~{args[0].within(UNARY)}", UNARY), ()
    if op == "logical_not":
        return Text(f"{args[0].within(COMPARE + 1)} == 0", COMPARE), ()
    if op == "isnan":
        return Text(f"{args[0].within(COMPARE + 1)} != {args[0].within(COMPARE + 1)}", COMPARE), ()
    if op == OPERATION:
        args = (*args[:2], number(threshold(float(args[2].text))))
    helpers = _OWN.get(op, ())
    name = f"_{helpers[-1]}" if helpers else _CALLS[op]
    return Text(f"{name}({', '.join(a.text for a in args)})"), helpers


_JOINS = {
    "cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum", "logcumsumexp": "log_add_exp",
}  # fmt: skip


_PRODUCTS = ("frexp", "multiply_scaled", "running_products")
"""What makes products of floats, as mantissas and exponents."""
LARGEST_GROWTH = 2.0**16
"""Plain products will do where no elements in a row multiply to more. A part of them is less than that; one too small
for a float32 loses 2**-150 at most, which what is before it and what comes after it make 2**-118 at most: only a
product below 2**-94 can have lost bits."""


def growing_call(args: tuple[str, ...], direction: str | None) -> tuple[Text, tuple[str, ...]]:
    """Running products after what is carried, with what tells whether these will do, and the helpers that it calls."""
    return _directed("_growing_products", args, direction), ("multiply_growing", "growing_products")


def _directed(function: str, args: tuple[str, ...], direction: str | None) -> Text:
    """A call that says which way it goes where that is not from the beginning."""
    return Text(f"{function}({', '.join((*args, *([direction] if direction else [])))})")


def is_scaled(op: str, dtype: str) -> bool:
    """Whether a scan is one of pairs, a mantissa and an exponent, because its parts may pass what a float32 holds."""
    return op == "cumprod" and dtype == "float"


def scan_join(op: str, dtype: str) -> str:
    """The operation that a scan repeats."""
    join = _JOINS[op]
    return f"int_{join}" if dtype != "float" and join in ("maximum", "minimum") else join


def scan_call(
    op: str, dtype: str, args: tuple[str, ...], direction: str | None, *, pairs: bool = False
) -> tuple[Text, tuple[str, ...]]:
    """A scan of what is in registers, and the helpers that it calls; `pairs`: left as mantissas and exponents."""
    if is_scaled(op, dtype):
        found = _PRODUCTS if pairs else (*_PRODUCTS, "ldexp", "multiply_growing", "cumprod")
        return _directed(f"_{found[-1]}", args, direction), found
    if op in ("cumsum", "cumprod"):
        return _directed(f"tl.{op}", args, direction), ()
    join = scan_join(op, dtype)
    helpers = _OWN.get(join, (join,))
    return _directed("tl.associative_scan", (*args, f"combine_fn=_{helpers[-1]}"), direction), helpers


def triton_dtype(name: str) -> str:
    return {"float": "tl.float32", "bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv"}.get(name, f"tl.{name}")


def evaluate(op: str, args: tuple[float, ...]) -> float | None:
    """What an operation gives for plain numbers; None where it is not worth knowing."""
    try:
        return _PYTHON[op](*args) if op in _PYTHON else None
    except (ValueError, OverflowError, ZeroDivisionError):
        return None


_PYTHON: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "exp": math.exp, "abs": abs, "sqrt": math.sqrt, "neg": lambda a: -a, "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "erf": math.erf, "maximum": max, "minimum": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda c, a, b: a if c else b, "isnan": lambda a: float(a != a),
    "eq": lambda a, b: float(a == b), "ne": lambda a, b: float(a != b), "logical_not": lambda a: float(a == 0),
    "convert": lambda a: a, "round": lambda a: a, "sin": math.sin, "floor": lambda a: float(math.floor(a)),
}  # fmt: skip

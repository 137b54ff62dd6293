"""Operations as Triton expressions, with no more parentheses than Python needs.

Elementary functions that `triton.language` lacks, or that would lose NaN or precision, are device functions of
`families/helpers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelgen.families.values import is_scaled, scan_join
from kernelgen.frontend.masks import OPERATION, threshold
from kernelgen.frontend.operations import OPERATIONS

ATOM, UNARY, PRODUCT, SUM, SHIFT, BITAND, BITXOR, BITOR, COMPARE = 100, 90, 80, 70, 60, 55, 54, 53, 40


@dataclass(frozen=True)
class Text:
    """An expression and how tightly its outermost operator binds."""

    text: str
    binding: int = ATOM

    def within(self, binding: int) -> str:
        """The expression as an operand of an operator that binds this tightly."""
        return self.text if self.binding >= binding else f"({self.text})"


_BINDING = {
    "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT, "+": SUM, "-": SUM, "<<": SHIFT, ">>": SHIFT, "&": BITAND,
    "^": BITXOR, "|": BITOR,
}  # fmt: skip
"""How tightly Python's operators bind; a comparison as COMPARE."""

_TRUNCATED = {"int_div": "//", "int_mod": "%"}
"""Triton's operators of integers, which round towards zero, as Python's do not."""

_CALLS = {
    "exp2_flushed": "tl.exp2", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
    "sin": "tl.sin", "cos": "tl.cos", "floor": "tl.floor", "ceil": "tl.ceil",
    "abs": "tl.abs", "where": "tl.where",
    "div_rn": "tl.div_rn", "int_maximum": "tl.maximum", "int_minimum": "tl.minimum",
    "fmax": "tl.maximum", "fmin": "tl.minimum",
}  # fmt: skip
"""The functions of Triton's own; any other is a device function."""

_HELPER = {"maximum": "nan_maximum", "minimum": "nan_minimum"}
"""The device function of an operation, where it has another name."""


def number(value: float | int | bool) -> Text:
    """A Python number as it stands in a kernel, where Triton takes one that is no normal float32 for a float64."""
    if isinstance(value, float) and 0 < abs(value) < 2.0**-126:
        return Text(f"tl.full([], {value!r}, tl.float32)")
    if isinstance(value, float) and 2.0**128 <= abs(value) < math.inf:
        value = math.copysign(math.inf, value)
    if isinstance(value, float) and not math.isfinite(value):
        return Text(f'float("{value}")')
    shown = repr(value).replace("e-0", "e-").replace("e+", "e")
    return Text(shown, ATOM if not isinstance(value, int | float) or value >= 0 else UNARY)


def operation(op: str, args: tuple[Text, ...]) -> tuple[Text, tuple[str, ...]]:
    """An operation as an expression, and the device function that it calls, if it does."""
    sign = OPERATIONS[op].sign or _TRUNCATED.get(op)
    if sign:
        binding = _BINDING.get(sign, COMPARE)
        # comparisons do not chain, and floating-point sums are kept in the reference's order
        associates = sign in ("&", "^", "|")
        left, right = binding + (binding == COMPARE), binding + (not associates)
        return Text(f"{args[0].within(left)} {sign} {args[1].within(right)}", binding), ()
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
    shown = ", ".join(a.text for a in args)
    if op in _CALLS:
        return Text(f"{_CALLS[op]}({shown})"), ()
    helper = _HELPER.get(op, op)
    return Text(f"_{helper}({shown})"), (helper,)


def growing_call(args: tuple[str, ...], direction: str | None) -> tuple[Text, tuple[str, ...]]:
    """Running products after what is carried, with what tells whether these will do, and the helpers that it calls."""
    return _directed("_growing_products", args, direction), ("growing_products",)


def _directed(function: str, args: tuple[str, ...], direction: str | None) -> Text:
    """A call that says which way it goes where that is not from the beginning."""
    return Text(f"{function}({', '.join((*args, *([direction] if direction else [])))})")


def scan_call(
    op: str, dtype: str, args: tuple[str, ...], direction: str | None, *, pairs: bool = False
) -> tuple[Text, tuple[str, ...]]:
    """A scan of what is in registers, and the helpers that it calls; `pairs`: left as mantissas and exponents."""
    if is_scaled(op, dtype):
        helper = "running_products" if pairs else "cumprod"
        return _directed(f"_{helper}", args, direction), (helper,)
    if op in ("cumsum", "cumprod"):
        return _directed(f"tl.{op}", args, direction), ()
    join = scan_join(op, dtype)
    helper = _HELPER.get(join, join)
    return _directed("tl.associative_scan", (*args, f"combine_fn=_{helper}"), direction), (helper,)


def triton_dtype(name: str) -> str:
    return {"float": "tl.float32", "bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv"}.get(name, f"tl.{name}")

"""Quotients, remainders, shifts and powers, written out in the graph's few operations.

What torch gives for NaN, infinities, zeros and integers is as in ATen's BinaryOps.h and BinaryOpsKernel.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import EXACT, Arg, Ref
from kernelgen.frontend.intervals import interval
from kernelgen.frontend.rule import Call, Refused, Rule

_MOST_MULTIPLIED = 32
"""Whole exponents up to here are products; beyond, a power costs less."""


def _operands(c: Call) -> tuple[Arg, Arg]:
    """Both operands, of floats with their numbers as floats."""
    one, other = (float(a) if c.dtype == "float" and isinstance(a, int) else a for a in c.args[:2])
    return one, other


def _integers(c: Call, name: str) -> bool:
    """Whether a call is one of integers, and not of floats."""
    if c.dtype == "bool":
        raise Refused(f"{name} of booleans")
    return c.dtype != "float"


# quotients and remainders


def _beyond(b: Builder, rest: Ref, divisor: Arg) -> Ref:
    """Whether what is left of a division has the other sign than the divisor: the whole number below is one less."""
    if isinstance(divisor, int | float):
        return b.map("gt" if divisor < 0 else "lt", rest, 0)
    differs = b.map("xor", b.map("lt", rest, 0), b.map("lt", divisor, 0))
    return b.map("and", b.map("ne", rest, 0), differs)


def _power_of_two(divisor: Arg) -> int | None:
    """The exponent of a whole number that is a power of two."""
    if not isinstance(divisor, int) or divisor <= 0 or divisor & (divisor - 1):
        return None
    return divisor.bit_length() - 1


def fmod(b: Builder, c: Call) -> Ref:
    x, divisor = _operands(c)
    return b.map("int_mod" if _integers(c, "fmod") else "fmod", x, divisor)


def remainder(b: Builder, c: Call) -> Ref:
    """As Python's: of the divisor's sign."""
    x, divisor = _operands(c)
    if _integers(c, "remainder"):
        shift = _power_of_two(divisor)
        if shift is not None:
            return b.map("and", x, (1 << shift) - 1)
        rest = b.map("int_mod", x, divisor)
    else:
        rest = b.map("fmod", x, divisor)
    return b.map("where", _beyond(b, rest, divisor), b.map("add", rest, divisor), rest)


def floor_divide(b: Builder, c: Call) -> Ref:
    x, divisor = _operands(c)
    if _integers(c, "floor_divide"):
        shift = _power_of_two(divisor)
        if shift is not None:
            return b.map("shr", x, shift)
        quotient = b.map("int_div", x, divisor)
        below = _beyond(b, b.map("int_mod", x, divisor), divisor)
        return b.map("where", below, b.map("sub", quotient, 1), quotient)
    # what is left over is taken away before: the quotient is whole but for its own rounding
    rest = b.map("fmod", x, divisor)
    quotient = b.map("div", b.map("sub", x, rest), divisor, attrs=(EXACT,))
    quotient = b.map("where", _beyond(b, rest, divisor), b.map("sub", quotient, 1.0), quotient)
    below = b.map("floor", quotient)
    is_above = b.map("gt", b.map("sub", quotient, below), 0.5)
    whole = b.map("where", is_above, b.map("add", below, 1.0), below)
    ratio = b.map("div", x, divisor)
    whole = b.map("where", b.map("eq", whole, 0.0), b.map("mul", ratio, 0.0), whole)  # a zero has the ratio's sign
    if isinstance(divisor, int | float):
        return whole if divisor else ratio
    return b.map("where", b.map("eq", divisor, 0.0), ratio, whole)


def divide(b: Builder, c: Call) -> Ref:
    mode = c.kwargs.get("rounding_mode")
    if mode is None:
        return b.map("div", c.args[0], c.args[1])
    if mode == "floor":
        return floor_divide(b, c)
    if _integers(c, "div"):
        return b.map("int_div", c.args[0], c.args[1])
    return b.map("trunc", b.map("div", c.args[0], c.args[1]))


def shift(op: str) -> Rule:
    return lambda b, c: _shifted(b, c, op)


def _shifted(b: Builder, c: Call, op: str) -> Ref:
    """Of integers; a shift by more places than the dtype has leaves nothing but the sign."""
    x, places = c.args[:2]
    if c.dtype in ("float", "bool"):
        raise Refused(f"a shift of {c.dtype}s")
    bits = int(c.dtype.strip("uint"))
    last = bits - 1 if op == "shr" and c.dtype[0] == "i" else None
    if isinstance(places, int):
        if 0 <= places < bits:
            return b.map(op, x, places, dtype=c.dtype)
        return b.map("sub", x, x) if last is None else b.map(op, x, last)
    known = interval(b.nodes, places)
    if known is not None and known[0] >= 0 and known[1] < bits:
        return b.map(op, x, places, dtype=c.dtype)
    inside = b.map("and", b.map("ge", places, 0), b.map("lt", places, bits))
    moved = b.map(op, x, b.map("where", inside, places, last or 0, dtype=c.dtype), dtype=c.dtype)
    return moved if last is not None else b.map("where", inside, moved, 0, dtype=c.dtype)


# powers


def power(b: Builder, c: Call) -> Ref:
    x, exponent = c.args[:2]
    if not isinstance(exponent, int | float):
        return _power_of_tensors(b, c, x, exponent)
    if exponent == 0:
        return b.full(1.0 if c.dtype == "float" else 1, c.shape, c.dtype)
    x = b.convert(x, "float") if c.dtype == "float" else x
    if exponent in (0.5, -0.5):
        return b.map("sqrt" if exponent > 0 else "rsqrt", x)
    if exponent != int(exponent) or abs(exponent) > _MOST_MULTIPLIED:
        if c.dtype != "float":
            raise Refused(f"the power {exponent} of integers (supported: up to {_MOST_MULTIPLIED})")
        return b.map("pow", x, float(exponent))
    result = x
    for bit in bin(abs(int(exponent)))[3:]:  # binary powers: x**8 is three multiplications
        result = b.map("mul", result, result)
        if bit == "1":
            result = b.map("mul", result, x)
    return b.map("div", 1.0, result) if exponent < 0 else result


def _power_of_tensors(b: Builder, c: Call, x: Arg, exponent: Arg) -> Ref:
    if isinstance(x, Ref):
        if c.dtype != "float":
            raise Refused("a power of integers whose exponent is a tensor")
        return b.map("pow", x, exponent)
    assert isinstance(x, int | float)
    if c.dtype != "float":
        if x != 2:
            raise Refused(f"{x} to the power of integers (supported: 2)")
        return _shifted(b, replace(c, args=(1, exponent)), "shl")
    return b.map("exp2", exponent) if x == 2 else b.map("pow", float(x), exponent)


def lerp(b: Builder, c: Call) -> Ref:
    """From the nearer end, as torch does."""
    start, end, weight = c.args[:3]
    step = b.map("sub", end, start)
    if isinstance(weight, int | float):
        if abs(weight) < 0.5:
            return b.map("add", start, b.map("mul", step, weight))
        return b.map("sub", end, b.map("mul", step, 1 - weight))
    from_start = b.map("add", start, b.map("mul", step, weight))
    from_end = b.map("sub", end, b.map("mul", step, b.map("sub", 1.0, weight)))
    near = b.map("lt", b.map("abs", weight), 0.5)
    return b.shortcut(b.map("where", near, from_start, from_end), "lerp", start, end, weight)


def overloads(name: str, rule: Rule, *kinds: str) -> dict[str, Rule]:
    return {f"aten.{name}.{kind}": rule for kind in kinds}


_BOTH = ("Tensor", "Scalar", "Scalar_Tensor", "default")
TABLE: dict[str, Rule] = {
    **overloads("fmod", fmod, "Tensor", "Scalar"),
    **overloads("remainder", remainder, *_BOTH),
    **overloads("floor_divide", floor_divide, *_BOTH),
    **overloads("div", divide, "Tensor", "Scalar", "Tensor_mode", "Scalar_mode"),
    **{
        f"aten.{name}.{kind}": shift(op)
        for op, names in (("shl", ("bitwise_left_shift", "__lshift__")), ("shr", ("bitwise_right_shift", "__rshift__")))
        for name in names
        for kind in (*_BOTH, "Tensor_Scalar")
    },
    **overloads("pow", power, "Tensor_Scalar", "Tensor_Tensor", "Scalar"),
    **overloads("lerp", lerp, "Scalar", "Tensor"),
}
"""The rules of arithmetic beyond sums and products, by overload."""

"""Two bounds of one value as one operation.

What is rounded, clamped and becomes an integer is clamped first, so that rounding takes two instructions, not six:
between whole numbers both orders give the same integers, NaN stays NaN, and only the sign of a zero is lost, which an
integer has not. Any other clamp is one call, which is one instruction on NVIDIA where the bounds are opposite numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TypeGuard

from kernelgen.families.values import Lowered, Use, Value

BETWEEN = "rint_between"
"""Rounding to even of what is clamped to two bounds."""
CLAMP = "clamp"
"""A clamp between two constants, which keeps NaN."""
_SMALL = 2**21
"""Up to here 1.5 * 2**23 may be added and taken away again: the last bit of the sum stands for one."""


def clamped_first(lowered: Lowered) -> Lowered:
    """The values with every such rounding and its clamp made one operation, whose bounds are constants."""
    values, uses = list(lowered.values), _uses(lowered)
    for i, outer in enumerate(lowered.values):
        middle = _alone(uses, outer)
        inner = lowered.values[middle] if middle is not None else None
        rounded = _alone(uses, inner) if inner is not None else None
        if middle is None or inner is None or rounded is None or lowered.values[rounded].op != "rint":
            continue
        bounds = {value.op: value.args[1] for value in (outer, inner)}
        low, high = bounds.get("maximum"), bounds.get("minimum")
        if not _is_small(low) or not _is_small(high) or low > high or not _becomes_integer(lowered, i):
            continue
        source = lowered.values[rounded].args[0]
        for place, bound in ((rounded, low), (middle, high)):
            values[place] = Value("const", (float(bound),), "float", frozenset(), None, outer.statement)
        values[i] = replace(outer, op=BETWEEN, args=(source, Use(rounded), Use(middle)))
    return replace(lowered, values=tuple(values))


def clamps(lowered: Lowered) -> Lowered:
    """The values with every pair of bounds made one operation, where the first of them has no name of its own."""
    values, uses = list(lowered.values), _uses(lowered)
    for i, outer in enumerate(lowered.values):
        middle = _alone(uses, outer)
        inner = values[middle] if middle is not None else None
        # of three bounds in a row the first two may be one operation by now
        if inner is None or inner.name or outer.dtype != "float":
            continue
        bounds = {value.op: value.args[1] for value in (outer, inner) if len(value.args) == 2}
        low, high = bounds.get("maximum"), bounds.get("minimum")
        if isinstance(low, int | float) and isinstance(high, int | float) and low <= high and middle is not None:
            values[middle] = Value("const", (0.0,), "float", frozenset(), None, inner.statement)
            values[i] = replace(outer, op=CLAMP, args=(inner.args[0], low, high))
    return replace(lowered, values=tuple(values))


def _uses(lowered: Lowered) -> Counter[int]:
    """How often each value is read or stored."""
    read = Counter(a.value for v in lowered.values for a in v.args if isinstance(a, Use))
    return read + Counter(o.value for o in lowered.outputs)


def _alone(uses: Counter[int], value: Value) -> int | None:
    """The value that a bound is put to, where nothing else uses it."""
    first = value.args[0] if value.op in ("minimum", "maximum") else None
    return first.value if isinstance(first, Use) and uses[first.value] == 1 else None


def _becomes_integer(lowered: Lowered, i: int) -> bool:
    users = [v for v in lowered.values if Use(i) in v.args]
    stored = any(o.value == i for o in lowered.outputs)
    return not stored and all(v.op == "convert" and v.dtype not in ("float", "bool") for v in users)


def _is_small(bound: object) -> TypeGuard[int | float]:
    """Whether a bound is a whole number that rounding leaves alone."""
    return isinstance(bound, int | float) and abs(bound) <= _SMALL and float(bound).is_integer()

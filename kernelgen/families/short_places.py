"""Places that int32 holds wherever the axes they are counted from are counted in it, as the rows and columns of a plane
are. Torch counts them in int64, in which a kernel takes twice as many instructions to mirror or clamp them (H200,
images reflected at their borders: 17 instead of 24 instructions an element).
"""

from __future__ import annotations

from kernelgen.families.ranges import polynomial
from kernelgen.families.values import Lowered, Operand, Use, Value, constant_of, expressions
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Expr, leaves

_LARGEST = 2**30
"""Of the numbers that a reference writes itself."""


def short_places(lowered: Lowered) -> frozenset[int]:
    """The int64 values that only say where something is read, and between -2**31 and 2**31 whatever the sizes are."""
    signs: list[bool | None] = []
    for value in lowered.values:
        signs.append(_never_negative(lowered, value, signs))
    found = {i for i, sign in enumerate(signs) if sign is not None and lowered.values[i].op != "const"}
    found -= {stored.value for stored in lowered.outputs}
    while wide := {i for i in found if not _only_reads(lowered, i, found)}:
        found -= wide
    return frozenset(found)


def _never_negative(lowered: Lowered, value: Value, signs: list[bool | None]) -> bool | None:
    """Whether a value is never below zero; None where int32 may not hold it."""
    if value.dtype != "int64":
        return None
    if value.op == "place":
        return _of_place(value.index[0])
    sides = [_of_operand(lowered, arg, signs) for arg in value.args]
    if None in sides:
        return None
    match value.op:
        case "abs":
            return True
        case "sub":  # of two that are not negative; else the difference may pass 2**31
            return False if all(sides) else None
        case "minimum":
            return all(sides)
        case "maximum":
            return any(sides)
    return None


def _of_operand(lowered: Lowered, arg: Operand, signs: list[bool | None]) -> bool | None:
    number = constant_of(lowered.values, arg)
    if number is not None:
        return number >= 0 if number == int(number) and abs(number) <= _LARGEST else None
    return signs[arg.value] if isinstance(arg, Use) else None


def _of_place(counted: object) -> bool | None:
    """A place along an axis, or a size; a number may be taken from either."""
    found = polynomial(counted) if isinstance(counted, Expr) else None
    if found is None:
        return None
    number, rest = found.get((), 0), {term: times for term, times in found.items() if term}
    if len(rest) != 1 or len(next(iter(rest))) != 1 or set(rest.values()) != {1} or not -_LARGEST <= number <= 0:
        return None
    # a size is one at least, an axis begins at zero
    return number >= -isinstance(next(iter(rest))[0], str)


def _only_reads(lowered: Lowered, i: int, found: set[int]) -> bool:
    """Whether all that uses a value is one of `found`, or reads something just there."""
    users = [n for n, value in enumerate(lowered.values) if Use(i) in value.args]
    return all(n in found or _reads_at(lowered.values[n], i) for n in users)


def _reads_at(value: Value, i: int) -> bool:
    """Whether a value is a load that computes nothing with the place where it reads."""
    computed = [e for e in expressions(value) if e.args and any(leaf == ix.value(i) for leaf in leaves(e))]
    return value.op == "load" and not computed

"""What the lanes beyond the end of a row hold, and which reductions and scans they would disturb."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.values import REVERSE, Lowered, Operand, Use
from kernelgen.frontend.graph import REDUCTIONS, SCANS
from kernelgen.frontend.operations import OPERATIONS, evaluate


def identity(op: str, dtype: str) -> float | int:
    """What does not change a reduction or a scan over values of a dtype."""
    of_floats = OPERATIONS[op].identity
    assert of_floats is not None
    if dtype == "float" or math.isfinite(of_floats):
        return of_floats if dtype == "float" else int(of_floats)
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if of_floats < 0 else high


def neutral(lowered: Lowered, i: int) -> float | int:
    """What does not change the reduction that is value `i`."""
    source = lowered.values[i].args[0]
    assert isinstance(source, Use)
    return identity(lowered.values[i].op, lowered.values[source.value].dtype)


def harmless(
    lowered: Lowered, levels: tuple[str, ...], i: int, others: dict[int, float], *, neutral_alone: bool = False
) -> bool:
    """Whether the lanes beyond the row leave a reduction, or a scan from the end, as it is. `neutral_alone`: because
    they hold what is neutral, and not because no element is less than what they hold."""
    value = lowered.values[i]
    source = value.args[0]
    assert isinstance(source, Use)
    found = pad(lowered, levels, source.value, others)
    if found == neutral(lowered, i):
        return True
    return not neutral_alone and value.op == "max" and found == 0.0 and _no_less_than_zero(lowered, source.value)


def _no_less_than_zero(lowered: Lowered, i: int) -> bool:
    value = lowered.values[i]
    return OPERATIONS[value.op].never_negative or (value.op == "mul" and value.args[0] == value.args[1])


def pad(lowered: Lowered, levels: tuple[str, ...], i: int, others: dict[int, float]) -> float | None:
    """What a value holds in the lanes beyond the row; None where that is not known."""
    value = lowered.values[i]
    if value.op == "load":
        return others.get(i, 0.0) if levels[i] in (FULL, COLUMN) else None
    if value.op == "const":
        constant = value.args[0]
        return float(constant) if isinstance(constant, int | float) else None
    if levels[i] in (ROW, SCALAR):
        return None
    if value.op == "eq" and isinstance(value.args[0], Use) and lowered.values[value.args[0].value].op == "iota":
        # the number of a lane beyond the row is that of no element
        other = value.args[1]
        return 0.0 if isinstance(other, Use) and levels[other.value] in (ROW, SCALAR) else None
    known: list[float | None] = []
    for arg in value.args:
        if isinstance(arg, Use):
            known.append(pad(lowered, levels, arg.value, others))
        else:
            known.append(float(arg) if isinstance(arg, int | float) else None)
    infinite = bool(known) and known[0] is not None and math.isinf(known[0])
    if infinite and value.op == "sub" and _is_own_extreme(lowered, value.args[0], value.args[1]):
        return known[0]  # a row's own extreme moves an infinity only where the row holds one itself
    if None in known:
        return None
    return evaluate(value.op, tuple(k for k in known if k is not None))


def _is_own_extreme(lowered: Lowered, source: Operand, other: Operand) -> bool:
    """Whether `other` is the maximum or minimum of `source`, or that with its infinities made zero."""
    return isinstance(other, Use) and any(
        v.op in ("max", "min") and v.args == (source,) and other.value in (i, finite(lowered, i))
        for i, v in enumerate(lowered.values)
    )


def finite(lowered: Lowered, i: int) -> int | None:
    """The value that is `i` with its infinities made zero, if there is one."""
    for j, value in enumerate(lowered.values):
        if value.op == "where" and value.args[1:] == (0.0, Use(i)) and isinstance(value.args[0], Use):
            test = lowered.values[value.args[0].value]
            if test.op == "isinf" and test.args == (Use(i),):
                return j
    return None


def choose_others(lowered: Lowered, levels: tuple[str, ...]) -> dict[int, float]:
    """What masked lanes load, so that as few reductions and scans as possible need a choice."""
    loads = [
        i for i, v in enumerate(lowered.values) if v.op == "load" and v.dtype == "float" and levels[i] in (FULL, COLUMN)
    ][:4]
    # lanes beyond the end do not reach a scan from the beginning
    reductions = [
        i for i, v in enumerate(lowered.values) if v.op in REDUCTIONS or (v.op in SCANS and v.attr == REVERSE)
    ]
    neutrals = (
        0.0,
        -math.inf,
        math.inf,
        *([1.0] if any(OPERATIONS[v.op].identity == 1.0 for v in lowered.values) else []),
    )

    def guards(others: dict[int, float]) -> int:
        return sum(not harmless(lowered, levels, i, others) for i in reductions)

    options = [dict(zip(loads, choice, strict=True)) for choice in itertools.product(neutrals, repeat=len(loads))]
    return min(options, key=guards)


def nan_safe(lowered: Lowered) -> frozenset[int]:
    """Maxima whose NaN need not be kept: every output that depends on one is NaN wherever a sum over exp(x - max) is,
    and that sum is NaN wherever an element of the row is."""
    safe = set()
    for i, value in enumerate(lowered.values):
        if value.op != "max":
            continue
        shifts = [Use(j) for j in (i, finite(lowered, i)) if j is not None]
        shifted = _users(lowered, "sub", [(value.args[0], shift) for shift in shifts])
        sums = _users(lowered, "sum", [(Use(e),) for e in _users(lowered, "exp", [(Use(s),) for s in shifted])])
        dependent = [o.value for o in lowered.outputs if i in ancestors(lowered, o.value)]
        if sums and all(set(sums) & ancestors(lowered, o, nan=True) for o in dependent):
            safe.add(i)
    return frozenset(safe)


def _users(lowered: Lowered, op: str, args: list[tuple[Operand, ...]]) -> list[int]:
    return [j for j, v in enumerate(lowered.values) if v.op == op and v.args in args]


def ancestors(lowered: Lowered, i: int, *, nan: bool = False, short_of: Collection[int] = ()) -> set[int]:
    """A value and everything it depends on; `nan`: short of what need not be NaN where its operands are; `short_of`:
    values that are left out with what they alone depend on."""
    found: set[int] = set()
    todo = [i]
    while todo:
        j = todo.pop()
        value = lowered.values[j]
        if j not in found and j not in short_of:
            found.add(j)
            if not nan or (value.dtype == "float" and not OPERATIONS[value.op].drops_nan):
                todo += [a.value for a in value.args if isinstance(a, Use)]
    return found

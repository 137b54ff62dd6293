"""What the lanes beyond the end of a row hold, and which reductions they would disturb."""

from __future__ import annotations

import itertools
import math

from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.triton_text import evaluate
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.graph import REDUCTIONS

IDENTITY = {"sum": 0.0, "max": -math.inf, "min": math.inf}


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
    known: list[float | None] = []
    for arg in value.args:
        if isinstance(arg, Use):
            known.append(pad(lowered, levels, arg.value, others))
        else:
            known.append(float(arg) if isinstance(arg, int | float) else None)
    if value.op in ("sub", "add") and known[0] is not None and math.isinf(known[0]):
        other = value.args[1]
        if isinstance(other, Use) and levels[other.value] == ROW:
            return known[0]  # a row's own finite number does not move an infinity
    if None in known:
        return None
    return evaluate(value.op, tuple(k for k in known if k is not None))


def choose_others(lowered: Lowered, levels: tuple[str, ...]) -> dict[int, float]:
    """What masked lanes load, so that as few reductions as possible need a tl.where."""
    loads = [
        i for i, v in enumerate(lowered.values) if v.op == "load" and v.dtype == "float" and levels[i] in (FULL, COLUMN)
    ][:4]
    reductions = [v for v in lowered.values if v.op in REDUCTIONS]

    def guards(others: dict[int, float]) -> int:
        pads = (pad(lowered, levels, v.args[0].value, others) for v in reductions if isinstance(v.args[0], Use))
        return sum(p != IDENTITY[v.op] for p, v in zip(pads, reductions, strict=True))

    options = [
        dict(zip(loads, choice, strict=True))
        for choice in itertools.product((0.0, -math.inf, math.inf), repeat=len(loads))
    ]
    return min(options, key=guards)


def nan_safe(lowered: Lowered) -> frozenset[int]:
    """Maxima whose NaN need not be kept: every output that depends on one also depends on a sum over exp(x - max),
    which is NaN wherever an element of the row is."""
    safe = set()
    for i, value in enumerate(lowered.values):
        if value.op == "max":
            source = value.args[0]
            shifted = [j for j, v in enumerate(lowered.values) if v.op == "sub" and v.args == (source, Use(i))]
            exps = [j for j, v in enumerate(lowered.values) if v.op == "exp" and v.args[0] in [Use(s) for s in shifted]]
            sums = {j for j, v in enumerate(lowered.values) if v.op == "sum" and v.args[0] in [Use(e) for e in exps]}
            outputs = [ancestors(lowered, o.value) for o in lowered.outputs]
            if sums and all(sums & reach for reach in outputs if i in reach):
                safe.add(i)
    return frozenset(safe)


def ancestors(lowered: Lowered, i: int) -> set[int]:
    """A value and everything it depends on."""
    found: set[int] = set()
    todo = [i]
    while todo:
        j = todo.pop()
        if j not in found:
            found.add(j)
            todo += [a.value for a in lowered.values[j].args if isinstance(a, Use)]
    return found

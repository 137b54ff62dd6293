"""Hidden cases: shapes, layouts and sizes that no spec lists, derived from the names of an operator's sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import device as devices
from . import memory
from .model import ELLIPSIS, Case, Layout, Operator

EDGES = (0, 1, 31, 33, 127, 128, 129, 255, 257, 1023, 1025, 4099)
"""Nothing, one, both sides of every usual block size, and a prime beyond them."""
LAYOUTS: tuple[Layout, ...] = ("transposed", "sliced", "offset", "expanded")
_MANY_ROWS = 70_001
"""More rows than a grid's second and third dimension can have programs."""
_OVER = 2**31
"""Elements beyond which 32-bit offsets overflow."""


def hidden_cases(operator: Operator, cases: Sequence[Case], device: str, *, large: bool | None = None) -> list[Case]:
    """Cases derived for `operator`; dtypes take turns over those of the listed cases.

    Under the interpreter few and tiny ones. `large`: one case with a tensor of more than 2**31 elements; None: where
    it fits in a quarter of the device's free memory.
    """
    if not cases:
        return []
    bindings = list({tuple(c.dtypes.items()): c.dtypes for c in cases}.values())
    names = _names(operator)
    derived = list(_tiny(names) if device == "cpu" else _all(names))
    result = [
        Case(sizes, bindings[i % len(bindings)], layout=layout, hidden=True)
        for i, (sizes, layout) in enumerate(derived)
    ]
    result = [case for case in result if _has_indices(operator, case)]
    if device == "cuda":
        result = [case for case in result if _has_rows(operator, case)]
    if device == "cuda" and large is not False:
        result += _large(operator, cases, forced=bool(large))
    listed = {str(c.sizes) + str(c.dtypes) for c in cases}
    fresh = {c.label: c for c in result if c.layout != "contiguous" or str(c.sizes) + str(c.dtypes) not in listed}
    return [replace(c, label=f"hidden {c.label}") for c in fresh.values()]


def _has_indices(operator: Operator, case: Case) -> bool:
    """Whether every index can be below its bound: none can where nothing is to be indexed, and a GPU would stop."""
    bounded = [t for t in operator.inputs if t.below is not None]
    return all(math.prod(case.dims(t.below)) > 0 or math.prod(case.shape(t)) == 0 for t in bounded if t.below)


def _has_rows(operator: Operator, case: Case) -> bool:
    """Whether what is indexed has elements: torch's own gradient of an embedding of no columns reads beyond it on a
    GPU (2.11), which ends the process. The interpreter's cases have such rows."""
    bounded = [t for t in operator.inputs if t.below is not None]
    given = any(math.prod(case.shape(t)) for t in bounded)
    return not given or all(math.prod(case.shape(t)) for t in operator.inputs if t not in bounded)


def _names(operator: Operator) -> list[str]:
    """The names of sizes in the order in which the inputs mention them."""
    entries = [entry for t in (*operator.inputs, *operator.outputs) for entry in t.shape]
    found = [re.findall(r"\.\.\.|[A-Za-z]\w*", entry) for entry in entries if isinstance(entry, str)]
    return list(dict.fromkeys(name for names in found for name in names))


Sizes = dict[str, int | tuple[int, ...]]


def _all(names: Sequence[str]) -> Iterator[tuple[Sizes, Layout]]:
    plain = [n for n in names if n != ELLIPSIS]
    for name in plain:
        for edge in EDGES:
            yield _sizes(names, 3, (3,), {name: edge}), "contiguous"
    if ELLIPSIS in names:
        for leading in ((), (0,), (1,), (2, 3, 5), (129,), (1, 1, 1025)):
            yield _sizes(names, 127, leading), "contiguous"
        yield _sizes(names, 3, (_MANY_ROWS,)), "contiguous"
    elif plain:
        yield _sizes(names, 3, (), {plain[0]: _MANY_ROWS}), "contiguous"
    yield {n: (7, 3) if n == ELLIPSIS else 11 + 2 * (i % 2) for i, n in enumerate(names)}, "contiguous"
    for layout in LAYOUTS:
        yield _sizes(names, 33, (5,)), layout
        yield _sizes(names, 257, (2, 17)), layout


def _tiny(names: Sequence[str]) -> Iterator[tuple[Sizes, Layout]]:
    """For the interpreter: at most eight, one for each kind of mistake."""
    plain = [n for n in names if n != ELLIPSIS]
    if plain:
        yield _sizes(names, 0, (2,)), "contiguous"
    yield _sizes(names, 1, (2,)), "contiguous"
    if ELLIPSIS in names:
        yield _sizes(names, 129, ()), "contiguous"
        yield _sizes(names, 31, (2, 1, 3)), "contiguous"
    else:
        yield _sizes(names, 31, ()), "contiguous"
        yield _sizes(names, 3, (), dict.fromkeys(plain[:1], 1)), "contiguous"
    for layout in LAYOUTS:
        yield _sizes(names, 33, (3,)), layout


def _sizes(names: Sequence[str], last: int, leading: tuple[int, ...], changed: Sizes | None = None) -> Sizes:
    """`leading` for "...", `last` for the last name, 2 or 3 for the others: their product stays small."""
    plain = [n for n in names if n != ELLIPSIS]
    others: Sizes = {n: 2 + i % 2 for i, n in enumerate(plain[:-1])}
    ends: Sizes = dict.fromkeys(plain[-1:], last)
    return {n: leading if n == ELLIPSIS else (others | ends)[n] for n in names} | (changed or {})


def _large(operator: Operator, cases: Sequence[Case], *, forced: bool) -> list[Case]:
    """The largest listed case of the narrowest dtype, grown along its rows until a tensor has over 2**31 elements."""
    tensors = (*operator.inputs, *operator.outputs)
    names = _names(operator)
    elements = [sum(math.prod(c.shape(t)) for t in tensors) for c in cases]
    widths = [sum(c.dtype(t).itemsize for t in tensors) for c in cases]
    base = cases[min(range(len(cases)), key=lambda i: (widths[i], -elements[i]))]
    rows = next((t.shape[t.rows] for t in tensors if t.rows is not None), None)
    grown = ELLIPSIS if ELLIPSIS in names else rows if isinstance(rows, str) else next(iter(names), None)
    if grown is None:
        return []
    one = replace(base, sizes={**base.sizes, grown: (1,) if grown == ELLIPSIS else 1}, label="one row")
    per_row = max((math.prod(one.shape(t)) for t in tensors if grown in t.shape), default=0)
    if not per_row:
        return []
    count = _OVER // per_row + 1
    case = Case({**base.sizes, grown: (count,) if grown == ELLIPSIS else count}, base.dtypes, hidden=True)
    fits = memory.accuracy_bytes(operator, case) <= devices.free_bytes("cuda") // 4
    return [case] if forced or fits else []

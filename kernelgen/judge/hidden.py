"""Hidden cases: shapes, layouts and sizes that no spec lists, derived from the names of an operator's sizes."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from . import device as devices
from . import memory
from .model import ELLIPSIS, Case, Layout, Operator, Tensor

EDGES = (0, 1, 31, 33, 127, 128, 129, 255, 257, 1023, 1025, 4099)
"""Nothing, one, both sides of every usual block size, and a prime beyond them."""
TILES = (1, 16, 63, 65, 127, 128, 129, 257)
"""Both sides of the sizes of a product's tiles, and one row, column or term."""
LAYOUTS: tuple[Layout, ...] = ("transposed", "sliced", "offset", "expanded")
_MANY_ROWS = 70_001
"""More rows than a grid's second and third dimension can have programs."""
_NAME = re.compile(r"\.\.\.|[A-Za-z]\w*")
_OVER = 2**31
"""Elements beyond which 32-bit offsets overflow."""
_MANY = 2**22
"""Elements beyond which a case of a product takes seconds of a GPU: four sizes of 257 are 4.4 billion."""


def hidden_cases(operator: Operator, cases: Sequence[Case], device: str, *, large: bool | None = None) -> list[Case]:
    """Cases derived for `operator`; dtypes take turns over those of the listed cases.

    Under the interpreter few and tiny ones. `large`: each size in turn so large that a tensor has more than 2**31
    elements; None: where that fits in a quarter of the device's free memory.
    """
    if not cases:
        return []
    bindings = list({str((c.dtypes, c.given)): (c.dtypes, c.given) for c in cases}.values())
    names = _names(operator)
    derived = list(_tiny(names) if device == "cpu" else _all(names))
    if operator.multiplied:
        derived += _products(operator, names, few=device == "cpu")
    result = [
        Case(sizes, dtypes, layout=layout, hidden=True, given=given)
        for (sizes, layout), (dtypes, given) in zip(derived, itertools.cycle(bindings), strict=False)
    ]
    result = [_served(operator, case) for case in result]
    result = [case for case in result if memory.has_shapes(operator, case) and _has_indices(operator, case)]
    if operator.multiplied:
        result = [_bounded(operator, case) for case in result]
    if device == "cuda":
        result = [case for case in result if _has_rows(operator, case)]
    if device == "cuda" and large is not False:
        room = devices.free_bytes("cuda") // 4
        result += [c for c in _large(operator, cases) if large or memory.accuracy_bytes(operator, c) <= room]
    listed = {str((c.sizes, c.dtypes, c.given)) for c in cases}
    fresh = {c.label: c for c in result if c.layout != "contiguous" or str((c.sizes, c.dtypes, c.given)) not in listed}
    return [replace(c, label=f"hidden {c.label}") for c in fresh.values()]


def _has_indices(operator: Operator, case: Case) -> bool:
    """Whether every index can be below its bound: none can where nothing is to be indexed, and a GPU would stop. Where
    parts begin and end is said by two numbers or more."""
    bounded = [t for t in operator.inputs if t.below is not None]
    if any(t.offsets is not None and math.prod(case.shape(t)) + t.is_ends < 2 for t in operator.inputs):
        return False
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
    return list(dict.fromkeys(name for entry in entries if isinstance(entry, str) for name in _NAME.findall(entry)))


def _names_in(tensor: Tensor) -> set[str]:
    return {name for entry in tensor.shape if isinstance(entry, str) for name in _NAME.findall(entry)}


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


def _products(operator: Operator, names: Sequence[str], *, few: bool) -> Iterator[tuple[Sizes, Layout]]:
    """Sizes of which several are large at once: tiles that are partly empty in each direction, sums of nothing, of one
    term and of many. `few`: for the interpreter."""
    written = {name for t in operator.outputs for name in _names_in(t)}
    summed = [n for n in names if n not in written]
    operands = [t for t in operator.inputs if _names_in(t).intersection(summed)]
    counted = Counter(name for t in operands for name in _names_in(t))
    plain = [n for n in names if n != ELLIPSIS and (n in summed or counted[n] < 2)]

    def of(size: int, changed: Sizes | None = None) -> Sizes:
        small: Sizes = {n: (2,) if n == ELLIPSIS else 2 for n in names}
        return small | dict.fromkeys(plain, size) | (changed or {})

    for size in (33,) if few else TILES:
        yield of(size), "contiguous"
    for name in plain:
        for size in (65,) if few else (1, 63, 1025):
            yield of(9 if few else 130, {name: size}), "contiguous"
    yield of(5, dict.fromkeys(summed, 0)), "contiguous"
    yield of(5, dict.fromkeys(summed, 257 if few else 4099)), "contiguous"
    for layout in LAYOUTS[:1] if few else LAYOUTS:
        yield of(17 if few else 129), layout


def _served(operator: Operator, case: Case) -> Case:
    """The case, or where windows and groups need more than the two or three that most of its sizes are, with these
    made as large as helps."""
    if 0 in case.sizes.values() or not _is_refused(operator, case):
        return case
    for wide in (4, 8, 16):
        sizes = {n: wide if size in (2, 3) else size for n, size in case.sizes.items()}
        if not _is_refused(operator, wider := replace(case, sizes=sizes, label="")):
            return wider
    return case


def _bounded(operator: Operator, case: Case) -> Case:
    """The case with sizes made smaller until no step has more than `_MANY` elements: first those that one input alone
    has, as pixels and rows do. The largest size stays, which is what the case is about, where another is smaller."""
    counted = Counter(name for t in operator.inputs for name in _names_in(t))
    names = [n for n in _names(operator) if n != ELLIPSIS]
    most = max((_product(case.sizes[n]) for n in names), default=0)
    kept = [n for n in names if case.sizes[n] == most]
    for _, small, name in sorted(((counted[n] > 1, -s, n) for n in names for s in (17, 5)), key=lambda x: x[:2]):
        if memory.largest_step(operator, case) <= _MANY:
            break
        if name not in kept[:1] if len(kept) < len(names) else _product(case.sizes[name]) > -small:
            smaller = replace(case, sizes={**case.sizes, name: min(-small, _product(case.sizes[name]))}, label="")
            case = smaller if memory.has_shapes(operator, smaller) else case
    return case


def _sizes(names: Sequence[str], last: int, leading: tuple[int, ...], changed: Sizes | None = None) -> Sizes:
    """`leading` for "...", `last` for the last name, 2 or 3 for the others: their product stays small."""
    plain = [n for n in names if n != ELLIPSIS]
    others: Sizes = {n: 2 + i % 2 for i, n in enumerate(plain[:-1])}
    ends: Sizes = dict.fromkeys(plain[-1:], last)
    return {n: leading if n == ELLIPSIS else (others | ends)[n] for n in names} | (changed or {})


def not_tried(operator: Operator, cases: Sequence[Case], device: str) -> list[str]:
    """A line for each large case that takes too much of the free memory."""
    if device != "cuda" or not cases:
        return []
    room = devices.free_bytes("cuda") // 4
    lines = []
    for case in _large(operator, cases):
        if (needed := memory.accuracy_bytes(operator, case)) > room:
            of = f"a quarter of the free memory is {memory.gib(room)}"
            lines.append(f"not tried: hidden {case.label} needs {memory.gib(needed)}, {of}; --large tries it")
    return lines


def _large(operator: Operator, cases: Sequence[Case]) -> list[Case]:
    """Each size grown in turn, the others small, in the narrowest dtype: until a tensor has more than 2**31 elements,
    and half as many.

    Which offset overflows depends on which size is large: the columns of two long rows times the number of a split are
    beyond 2**31 with a fraction of these elements. Kernels that keep offsets in 32 bits refuse the first of the two
    cases, and of those whose grid counts columns in its second dimension some refuse both.
    """
    tensors = (*operator.inputs, *operator.outputs)
    base = min(cases, key=lambda c: sum(c.dtype(t).itemsize for t in tensors))
    names = _names(operator)
    few = _sizes(names, 3, ())
    least = {name: min((c.sizes[name] for c in cases), key=_product) for name in names}
    found = []
    for name in names:
        for over in (True, False):
            tried = [_grown(operator, Case(sizes, base.dtypes, given=base.given), name, over) for sizes in (few, least)]
            grown = [case for case in tried if case is not None]
            found += [next((case for case in grown if not _is_refused(operator, case)), grown[0])] if grown else []
    found = [case for case in found if memory.has_shapes(operator, case)]
    return list({case.label: replace(case, hidden=True) for case in found}.values())


def _grown(operator: Operator, case: Case, name: str, over: bool) -> Case | None:
    """The case with one size just so large that a tensor has more than 2**31 elements, or at most half as many."""
    tensors = [t for t in (*operator.inputs, *operator.outputs) if name in _names_in(t)]

    def with_size(size: int) -> Case:
        sizes = {**case.sizes, name: (size,) if name == ELLIPSIS else size}
        return Case(sizes, case.dtypes, given=case.given)

    def elements(size: int) -> int:
        return max(math.prod(with_size(size).shape(t)) for t in tensors)

    most = _OVER if over else _OVER // 2
    fits = bisect.bisect_right(range(1, most + 1), most, key=elements)  # the largest size of at most so many
    return with_size(fits + over) if fits and elements(most + 1) > most else None


def _product(size: int | tuple[int, ...]) -> int:
    return math.prod(size) if isinstance(size, tuple) else size


def _is_refused(operator: Operator, case: Case) -> bool:
    """Whether the baseline's checks, which look at shapes alone, refuse the case."""
    operator = operator.at(case)
    if not memory.has_shapes(operator, case):
        return True
    given = [torch.empty(case.shape(t), dtype=case.dtype(t), device="meta") for t in operator.inputs]
    try:
        operator.baseline(*given)
    except ValueError:
        return True
    except Exception:  # whatever else the reference does not do without memory says nothing
        return False
    return False

"""The longest row that the buffer holds whole: what of it lives at once, value by value.

A held row is worth more than second buffers, which the compiler gives up where there is no room for them: every value
counts once, as float32, from where it is made to its last use, and what an operation needs beside it while it runs.

The figures are bishengir-compile's own (ascendnpu-ir 1.2.0): kernels of one operation and a sum over the row, and the
shipped operators, were planned in float16 and float32 for ever longer rows; the buffer divided by the longest that fits
is what an element takes. They are rounded up. `docs/ascend_rows.py` compares what follows from them with the compiler.
"""

from __future__ import annotations

from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body
from kernelgen.families.naming import COLUMN, FULL
from kernelgen.families.npu.budget import HELPER_BYTES, PLACES_BYTES
from kernelgen.families.npu.lines import floor_power
from kernelgen.families.padding import harmless
from kernelgen.families.values import REVERSE, Use, Value, expressions
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS, SCANS
from kernelgen.plan import Chip

MARGIN = 0.9
"""The share of the buffer that a row is planned for; numbers of rows, masks and rounding to 32 bytes take the rest."""
VECTOR_BYTES = 4
NARROW_BYTES = 2
"""Of each element of a load in float16 or bfloat16 until it is float32."""
WHILE_BYTES = {
    **HELPER_BYTES, "sum": 2, "prod": 2, "max": 2, "min": 2, "argmax": 6, "argmin": 6, "cumsum": 0, "cumprod": 0,
    "cummax": 0, "cummin": 0, "where": 4, "div": 0, "convert": 4, "maximum": 4, "minimum": 4, "sigmoid": 4, "erf": 28,
    "tanh": 30, "expm1": 24, "log1p": 40, "log": 10, "rint": 28, "trunc": 20, "softplus": 24, "mish": 20, "sin": 20,
    "cos": 20,
}  # fmt: skip
"""What an operation needs beside its operands and its result while it runs: half a row to add up the halves of one."""
INT8_BYTES = 8
"""Of each element that becomes an int8: the hardware goes there by float16, in several steps."""
GUARDED_BYTES = 2
"""More, where it chooses first what lies within the row: what it then adds up is a row of its own."""
INTEGER_BYTES = 8
"""More, where integers are added up."""
NAN_BYTES = 4
"""More, where a maximum keeps a NaN: whether each element is one."""


def bytes_held(body: Body) -> int:
    """The most bytes an element of a row that live at once, with one buffer each."""
    values, levels = body.lowered.values, body.names.levels
    wide = [level in (FULL, COLUMN) for level in levels]
    last = {i: i for i in range(len(values))}
    for i, value in enumerate(values):
        last |= {arg.value: i for arg in value.args if isinstance(arg, Use)}
    last |= {stored.value: len(values) for stored in body.lowered.outputs}
    # loads stand before all arithmetic
    live = peak = _throughout(body) + sum(_size(v) for i, v in enumerate(values) if wide[i] and v.op == "load")
    peak += NARROW_BYTES
    for i, value in enumerate(values):
        dying = {a.value for a in value.args if isinstance(a, Use) and wide[a.value] and last[a.value] == i}
        freed = sum(_size(values[j]) for j in dying)
        extra = _while(body, i) if wide[i] or value.op in (*REDUCTIONS, *SCANS) else 0
        made = _size(value) if wide[i] and value.op != "load" else 0
        # what dies makes room for the result of an operation that goes element by element
        in_place = bool(dying) and value.op not in SCANS
        peak = max(peak, live + extra + (max(made - freed, 0) if in_place else made))
        live += made - freed
    return peak


def _throughout(body: Body) -> int:
    """What lives beside every row: the numbers of its elements, where they are computed with, and the mask that a
    reduction is guarded with. That has a bit an element, and the place of the numbers it was made of."""
    guarded = any(_is_guarded(body, i) for i in range(len(body.lowered.values)))
    numbered = any(v.op in ("iota", "place", *ARG_REDUCTIONS) for v in body.lowered.values)
    parts = len(body.layout.parts)
    return VECTOR_BYTES * (guarded + max(numbered, parts))


def _is_guarded(body: Body, i: int) -> bool:
    """Whether a reduction chooses between the lanes within the row and those beyond it."""
    value = body.lowered.values[i]
    crosses = value.op in REDUCTIONS or (value.op in SCANS and value.attr == REVERSE)
    return crosses and not harmless(body.lowered, body.names.levels, i, dict(body.others))


def _size(value: Value) -> int:
    """Bytes an element: nothing narrower than float32 is computed with."""
    if value.op in ("const", "iota"):
        return 0
    return 4 if value.dtype in ("float", "bool") else max(ITEMSIZE.get(value.dtype, 4), 4)


def _while(body: Body, i: int) -> int:
    value = body.lowered.values[i]
    extra = WHILE_BYTES.get(value.op, 0)
    extra += GUARDED_BYTES if _is_guarded(body, i) else 0
    counts = value.op in REDUCTIONS and value.op not in ARG_REDUCTIONS and value.dtype != "float"
    extra += INTEGER_BYTES if counts else 0
    extra += VECTOR_BYTES if value.op == "where" and not isinstance(value.args[1], Use) else 0
    extra += NAN_BYTES if value.op in ("max", "min") and i not in body.keeps_nan else 0
    extra += INT8_BYTES if value.op == "convert" and ITEMSIZE.get(value.dtype) == 1 else 0
    return extra + (PLACES_BYTES if expressions(value) and value.op == "load" else 0)


def row_elements(body: Body, chip: Chip) -> int:
    """The elements of the longest row, a power of two, that is planned to be held whole."""
    return floor_power(MARGIN * chip.buffer_bytes / max(bytes_held(body), 1))

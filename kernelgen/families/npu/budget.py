"""How much of the buffer a tile takes: what lives at once, in bytes an element, before the compiler says it exactly."""

from __future__ import annotations

from kernelgen.families.access import output_groups
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body
from kernelgen.families.naming import COLUMN, FULL
from kernelgen.families.npu.lines import floor_power
from kernelgen.families.pointwise import is_turned
from kernelgen.families.values import Use, expressions
from kernelgen.frontend.graph import REDUCTIONS, SCANS
from kernelgen.frontend.masks import OPERATION
from kernelgen.plan import Chip

MARGIN = 0.8
"""The share of the buffer that a tile is planned for; the compiler's own temporaries take the rest."""
PLACES_BYTES = 32
"""Of each element of a load that is made element by element: where it is read, and what that is computed from."""
NARROWING_BYTES = 100
"""Of each element that becomes an int8: the hardware goes there by float16, in several steps."""
TURNED_BYTES = 200
"""Of each element of a tile whose rows lie across what is contiguous in memory: it is turned in the buffer."""
DRAWN_BYTES = 300
"""More, of each element of such a tile that a random number is drawn for: all that follows from its place is turned."""
HELPER_BYTES = {
    "erf": 40, "tanh": 40, "expm1": 32, "log1p": 24, "sigmoid": 12, "rint": 24, "trunc": 16, "log_add_exp": 40,
    "softplus": 32, "mish": 32, "quotient": 24, "rint_between": 8, "clamp": 8,
    "isinf": 8, "maximum": 8, "minimum": 8, "where": 12, "div": 4, "max": 12, "min": 12, "argmax": 24, "argmin": 24,
    "sum": 4, "prod": 8, "cumsum": 12, "cumprod": 12, "cummax": 16, "cummin": 16, "logcumsumexp": 40, "sin": 40,
    "cos": 40, "convert": 16, "random_mask": 52, "pow": 64, "fmod": 40,
    "erfc": 64, "atan": 40, "atan2": 56, "asin": 40, "acos": 48, "sinh": 56, "cosh": 40, "asinh": 40, "acosh": 40,
    "atanh": 40, "copysign": 12, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4,
}  # fmt: skip
"""What an operation needs beside its operands and its result while it runs."""


def bytes_an_element(body: Body, *, whole_rows: bool) -> int:
    """The most bytes an element of a tile that live at once, everything loaded or stored held twice.

    `whole_rows`: what varies along the columns alone takes as much as a row does, as a tile is one row.
    """
    values, levels = body.lowered.values, body.names.levels
    large = {FULL, COLUMN} if whole_rows or body.layout.columns is None else {FULL}
    last = {i: i for i in range(len(values))}
    for i, value in enumerate(values):
        for arg in value.args:
            if isinstance(arg, Use):
                last[arg.value] = i
    for stored in body.lowered.outputs:
        last[stored.value] = len(values)
    peak = live = 0
    for i, value in enumerate(values):
        reduces = value.op in REDUCTIONS or value.op in SCANS
        extra = HELPER_BYTES.get(value.op, 0) if levels[i] in large or reduces else 0
        extra += NARROWING_BYTES if value.op == "convert" and ITEMSIZE.get(value.dtype) == 1 else 0
        live += _own(body, i) if levels[i] in large else 0
        peak = max(peak, live + extra)
        live -= sum(_own(body, j) for j in range(i + 1) if last[j] == i and levels[j] in large)
    stores = sum(2 * ITEMSIZE.get(o.dtype, 4) for o in body.lowered.outputs if output_groups(o, body.layout.columns))
    if body.lowered.space.order or is_turned(body):
        peak += TURNED_BYTES + (DRAWN_BYTES if any(v.op == OPERATION for v in values) else 0)
    return peak + stores


def _own(body: Body, i: int) -> int:
    """Bytes an element of one value, of which nothing narrower than float32 is computed with. A load is held twice;
    one without an interval has its places, in int64, beside it."""
    value = body.lowered.values[i]
    if value.op in ("const", "iota"):
        return 0
    size = 4 if value.dtype in ("float", "bool") else max(ITEMSIZE.get(value.dtype, 4), 4)
    if value.op != "load":
        return size
    return 2 * size + (PLACES_BYTES if expressions(value) else 0)


def tile_elements(body: Body, chip: Chip, *, whole_rows: bool) -> int:
    """The elements of the largest tile, a power of two, that is planned to fit the buffer."""
    each = max(bytes_an_element(body, whole_rows=whole_rows), 1)
    return floor_power(MARGIN * chip.buffer_bytes / each)

"""Whole rows in order: the variant of a selection that takes all of a row's elements.

A program sorts rows in registers, each element as one integer of 64 bits: its order above, its place below. So equal
elements stay in the order in which they stand, and the places need no sorting of their own.
"""

from __future__ import annotations

from kernelgen.families.family import Variant
from kernelgen.families.forms import ROWS
from kernelgen.families.kernel import Body, at_levels
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.frontend.graph import SORTED
from kernelgen.frontend.sorts import LONGEST
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import M, N, Nest

NAME = "sorted"
_BEHIND = ir.Size("0x7FFFFFFFFFFFFFFF")
"""What stands behind all elements of a row."""


def is_sorted(body: Body) -> bool:
    """Whether whole rows are wanted in order."""
    return any(value.op in SORTED for value in body.lowered.values)


def _legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    block = (1 << max(columns - 1, 0).bit_length()) * schedule.int("BLOCK_SIZE_M")
    each = block / (32 * schedule.int("num_warps"))
    if block > LONGEST:
        return f"{block} elements are too many to sort in registers (at most {LONGEST})"
    return f"{each:g} elements per thread (at most 32 are allowed)" if each > 32 else None


def _kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    nest = Nest(spec, body, ROWS, schedule)
    tile, keys, mask = nest.tile.shape, ir.Name("keys", nest.tile.shape), ir.Name(N.mask, (N,))
    early = nest.lets(at_levels(body, (FULL, ROW, SCALAR, COLUMN)))
    chosen = body.lowered.outputs[0].value
    falls = body.lowered.values[chosen].op.endswith("falling")
    made = nest.lets([nest.builder.source(chosen)])
    cols, key = ir.Name("cols", (N,)), "falling_keys" if falls else "rising_keys"
    spread = ir.Apply("add", (ir.Apply("mul", (ir.Name("rows", (M,)), ir.Name("N")), (M,)), cols), tile)
    exist = ir.Name("mask", tile)
    of_key, stores = "value_of_falling_key" if falls else "value_of_key", []
    for stored in body.lowered.outputs:
        located = body.lowered.values[stored.value].op.startswith("arg")
        value = ir.Call("place_of_key" if located else of_key, (keys,), tile)
        stores.append(ir.Store(ir.Pointer(stored.name, ((ir.Name("offsets", tile), None),), tile), value, exist))
    text = (
        *grid.rows(M, N), *nest.row_indices(), *nest.column_indices(), *early, *made,
        ir.Let((keys.text,), ir.Call(key, (nest.builder.operand(chosen), cols), tile), nest.builder.said(chosen)),
        ir.Let((keys.text,), ir.Call("sort_rows", (ir.Apply("where", (mask, keys, _BEHIND), tile),), tile)),
        ir.Let(("offsets",), spread), *stores,
    )  # fmt: skip
    return (nest.kernel(name, text, ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N")),)


VARIANT = Variant(
    ROWS, "BLOCK_SIZE_M rows per program, sorted in registers as integer keys of value and column",
    Schedule.make(NAME, BLOCK_SIZE_M=1, num_warps=4),
    (
        Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows per program"),
        Parameter("num_warps", (1, 2, 4, 8, 16), "warp_stage", "launch", "warps per program"),
    ),
    _legal, _kernels,
)  # fmt: skip

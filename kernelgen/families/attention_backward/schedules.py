"""Schedules of attention's gradients: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16, heads of 128 and of 64: 64 queries by 64
keys, 4 warps and 2 stages. Where a program has a tile of keys, TMA took 0.77 to 0.93 of the time of pointers; where it
has a tile of queries, 0.96 to 1.10. Both together have 0.78 to 0.82 of cuDNN's speed (docs/benchmarks/gradients.md).
"""

from __future__ import annotations

from kernelgen.families.attention.writer import power
from kernelgen.families.attention_backward.lowering import GradientBody
from kernelgen.families.family import Kernels, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.plan import Parameter, Schedule, table_row

WALK, BOXES = "walk", "boxes"
MEANINGS = {
    WALK: "one tile of queries, or of keys, per program, which loops over blocks of the other ones and recomputes the "
    "weights from the logsumexp of every row",
    BOXES: "as `walk`, with tiles copied by TMA (sm_90 and newer)",
}
_WALK = Schedule.make(WALK, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)
_BOXES = Schedule.make(BOXES, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)
_DEFAULTS = {WALK: _WALK, BOXES: _BOXES}
_SINGLE = _WALK.replace(BLOCK_M=32, BLOCK_N=16, num_warps=8)
_LONG_HALF = _WALK.replace(BLOCK_M=32, BLOCK_N=32, num_warps=8, num_stages=1)
_LONG_SINGLE = _WALK.replace(BLOCK_M=16, BLOCK_N=16, num_warps=8)
"""Float32, which is multiplied without matrix units, and heads beyond 128 take smaller tiles, for the registers there
are: compiled for sm_90, 32 by 32 of float32 and 64 by 64 of float16 in heads of 129 had 1.1 and 3.5 KB a thread of
local memory. None of the three was measured."""


def variants(body: GradientBody) -> tuple[str, ...]:
    return (BOXES, WALK) if body.boxed else (WALK,)


def space() -> tuple[Parameter, ...]:
    return (
        Parameter("BLOCK_M", (16, 32, 64, 128), "block_size", "constexpr", "queries of a tile or block"),
        Parameter("BLOCK_N", (16, 32, 64, 128), "block_size", "constexpr", "keys of a tile or block"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
        Parameter("num_stages", (1, 2, 3, 4), "warp_stage", "launch", "blocks in flight"),
    )


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.int("BLOCK_M") * schedule.int("BLOCK_N") > 128 * 32 * schedule.int("num_warps"):
        return "more than 128 scores a thread"
    return None


def first_table(body: GradientBody) -> Table:
    """Of heads whose size is no number, rows of up to 128 elements come first; what holds all others follows."""
    known = [power(body, name) for name in "de"]
    if max(size or 0 for size in known) > 128:
        return _rows(_LONG_HALF, _LONG_SINGLE)
    sizes = {body.extent(name).size: 128 for name, size in zip("de", known, strict=True) if size is None}
    half = _BOXES if body.boxed and body.kept == "n" else _WALK
    return (*_rows(half, _SINGLE, **sizes), *(_rows(_LONG_HALF, _LONG_SINGLE) if sizes else ()))


def _rows(half: Schedule, single: Schedule, **upto: int) -> Table:
    return table_row(half, itemsize=2, **upto), table_row(single, **upto)


def starts(body: GradientBody) -> tuple[Schedule, ...]:
    larger = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8}
    return tuple(s for name in variants(body) for s in (_DEFAULTS[name], _DEFAULTS[name].replace(**larger)))


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(), legal, kernels) for name, default in _DEFAULTS.items()
    )

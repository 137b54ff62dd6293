"""Schedules of attention's gradients: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16, heads of 128 and of 64: 64 queries by 64
keys, 4 warps and 2 stages. Where a program has a tile of keys, TMA took 0.77 to 0.93 of the time of pointers; where it
has a tile of queries, 0.96 to 1.10. Both together have 0.78 to 0.82 of cuDNN's speed (docs/benchmarks/gradients.md).
"""

from __future__ import annotations

from collections.abc import Sequence

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
_EXACT = _WALK.replace(BLOCK_M=32, BLOCK_N=16, num_warps=8)
_LONG_HALF = _WALK.replace(BLOCK_M=32, BLOCK_N=32, num_warps=8, num_stages=1)
_LONG_EXACT = _WALK.replace(BLOCK_M=16, BLOCK_N=16, num_warps=8)
"""Float32 without matrix units, and heads beyond 128, take smaller tiles, for the registers there are: compiled for
sm_90, 32 by 32 of float32 and 64 by 64 of float16 in heads of 129 had 1.1 and 3.5 KB a thread of local memory."""
_SINGLE = {
    64: {"m": _WALK.replace(num_stages=1), "n": _WALK.replace(BLOCK_N=32, num_stages=1)},
    128: {"m": _WALK.replace(BLOCK_M=32, BLOCK_N=32), "n": _WALK.replace(BLOCK_M=32, BLOCK_N=32, num_stages=1)},
    256: {
        "m": _WALK.replace(BLOCK_M=16, BLOCK_N=32, num_stages=1),
        "n": _WALK.replace(BLOCK_M=16, BLOCK_N=16, num_stages=1),
    },
}
"""Tiles of float32 as three products of TF32, by the elements of a head and what a program has a tile of. 64 heads of
64 and 1024 keys take 477 and 814 us, torch's gradients 1276, the kernels without matrix units 5143 and 5722; 32 heads
of 128 take 707 and 969, torch's 1249, without matrix units 5126 and 5480 (H200). Larger tiles of these, 659 and 896 us,
have up to 2 KB a thread of local memory, compiled for sm_90. Heads of 256 were not timed."""


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
    head = max(size or 0 for size in known)
    sizes = [body.extent(name).size for name, size in zip("de", known, strict=True) if size is None]
    half = _BOXES if body.boxed and body.kept == "n" else _WALK
    halves = ((128, half), (None, _LONG_HALF))
    if body.precision == "ieee":
        singles: tuple[tuple[int | None, Schedule], ...] = ((128, _EXACT), (None, _LONG_EXACT))
    else:
        singles = (*((most, tiles[body.kept]) for most, tiles in _SINGLE.items()), (None, _LONG_EXACT))
    return (*_rows(halves, head, sizes, itemsize=2), *_rows(singles, head, sizes))


def _rows(by_head: Sequence[tuple[int | None, Schedule]], head: int, sizes: Sequence[str], **upto: int) -> Table:
    """The lines that a head of `head` elements or more may reach, each with the most elements that it serves; `sizes`:
    what these are called where the spec gives no number, without which the first serves all."""
    rows = [(most, schedule) for most, schedule in by_head if most is None or most >= head]
    if not sizes:
        return (table_row(rows[0][1], **upto),)
    limits = (dict.fromkeys(sizes, most) if most is not None else {} for most, _ in rows)
    return tuple(table_row(schedule, **limit, **upto) for limit, (_, schedule) in zip(limits, rows, strict=True))


def starts(body: GradientBody) -> tuple[Schedule, ...]:
    larger = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8}
    return tuple(s for name in variants(body) for s in (_DEFAULTS[name], _DEFAULTS[name].replace(**larger)))


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(), legal, kernels) for name, default in _DEFAULTS.items()
    )

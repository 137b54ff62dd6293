"""Schedules of attention: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16; other devices begin there too.
"""

from __future__ import annotations

from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.writer import power
from kernelgen.families.family import Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.plan import Parameter, Schedule, table_row

TILES = "tiles"
MEANINGS = {
    TILES: "a program has a tile of queries and walks over the keys that these see in blocks, loaded by pointers",
}
_TILES = Schedule.make(TILES, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)
_DEFAULTS = {TILES: _TILES}


def variants(body: AttentionBody) -> tuple[str, ...]:
    return (TILES,)


def space(variant: str) -> tuple[Parameter, ...]:
    return (
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "block_size", "constexpr", "queries of a tile"),
        Parameter("BLOCK_N", (16, 32, 64, 128), "block_size", "constexpr", "keys of a block"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program"),
        Parameter("num_stages", (1, 2, 3, 4), "warp_stage", "launch", "blocks of keys and values in flight"),
    )


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.int("BLOCK_M") * schedule.int("BLOCK_N") > 256 * 32 * schedule.int("num_warps"):
        return "more than 256 scores a thread"
    return None


def first_table(body: AttentionBody) -> Table:
    """Float32 takes half of the block, for its elements are twice as large."""
    head = max(power(body, "d") or 128, power(body, "e") or 128)
    best = _TILES if head <= 128 else _TILES.replace(BLOCK_N=32, num_stages=2)
    wide = _TILES.replace(BLOCK_N=32 if head <= 128 else 16, num_stages=2)
    small = best.replace(BLOCK_M=16)
    return (table_row(small, M=16, itemsize=2), table_row(best, itemsize=2), table_row(wide))


def starts(body: AttentionBody) -> tuple[Schedule, ...]:
    return (_TILES, _TILES.replace(BLOCK_M=128, BLOCK_N=128, num_warps=8, num_stages=2))


EVERY = tuple(Variant(PRINTED, MEANINGS[name], schedule, space(name), legal) for name, schedule in _DEFAULTS.items())

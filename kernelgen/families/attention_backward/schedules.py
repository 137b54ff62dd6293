"""Schedules of attention's gradients: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16, causal, heads of 128: 64 queries by 64
keys, 4 warps and 2 stages in both kernels, 0.83 of the speed of cuDNN's.
"""

from __future__ import annotations

from kernelgen.families.attention.writer import power
from kernelgen.families.attention_backward.lowering import GradientBody
from kernelgen.families.family import Kernels, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.plan import Parameter, Schedule, table_row

WALK = "walk"
MEANING = (
    "a program has a tile of queries, or of keys, and walks over blocks of the other ones, whose weights it computes "
    "again from the logsumexp of every row"
)
_WALK = Schedule.make(WALK, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)


def space() -> tuple[Parameter, ...]:
    return (
        Parameter("BLOCK_M", (16, 32, 64, 128), "block_size", "constexpr", "queries of a tile or block"),
        Parameter("BLOCK_N", (16, 32, 64, 128), "block_size", "constexpr", "keys of a tile or block"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program"),
        Parameter("num_stages", (1, 2, 3, 4), "warp_stage", "launch", "blocks in flight"),
    )


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.int("BLOCK_M") * schedule.int("BLOCK_N") > 128 * 32 * schedule.int("num_warps"):
        return "more than 128 scores a thread"
    return None


def first_table(body: GradientBody) -> Table:
    """Float32 takes half of the block, for its elements are twice as large, and so do heads beyond 128."""
    head = max(power(body, "d") or 128, power(body, "e") or 128)
    block = {"m": "BLOCK_N", "n": "BLOCK_M"}[body.kept]
    best = _WALK if head <= 128 else _WALK.replace(**{block: 32, "num_stages": 1})
    wide = _WALK.replace(BLOCK_M=32, BLOCK_N=32) if head <= 128 else _WALK.replace(BLOCK_M=16, BLOCK_N=16, num_stages=1)
    return table_row(best, itemsize=2), table_row(wide)


def starts(body: GradientBody) -> tuple[Schedule, ...]:
    return _WALK, _WALK.replace(BLOCK_M=128, BLOCK_N=128, num_warps=8)


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """The variant, by what makes its kernels."""
    return (Variant(PRINTED, MEANING, _WALK, space(), legal, kernels),)

"""Sets of schedules by name: a grid to choose from, and ladders that show what each way to bring keys and values gains.

They have the sizes of a well-known tuner of hand-written attention on sm_80, whose words docs/tuning.md explains: heads
of 128 in half precision, 64 or 128 queries by 32 or 64 keys. What its kernels decide by hand and Triton decides for us
(swizzles, fragments in registers, when a load is issued) is here who brings blocks, and how many are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.schedules import BOXES, TILES, variants
from kernelgen.plan import Schedule, ScheduleSet

HEAD = 128
ROWS, KEYS, WARPS, STAGES = (64, 128), (32, 64), (4, 8), (1, 2, 3, 4)
BLOCKS = tuple(product(ROWS, KEYS))
HALF = ("float16", "bfloat16")
LADDER = ((TILES, 1), (TILES, 2), (TILES, 3), (TILES, 4), (BOXES, 2), (BOXES, 3), (BOXES, 4))
"""From blocks that are loaded where they are multiplied, over more and more in flight, to those that the copy engine
brings."""


def sets(body: AttentionBody) -> Mapping[str, ScheduleSet]:
    """By name; none where tiles cannot be brought in both ways, or heads are others."""
    head = body.extent("d").size
    if not {TILES, BOXES} <= set(variants(body)) or (head.isdigit() and int(head) != HEAD):
        return {}
    sizes = () if head.isdigit() else ((head, HEAD),)
    ladder = [_schedule(variant, 64, 64, 4, stages) for variant, stages in LADDER]
    ladders = [_schedule(v, m, n, w, s) for (m, n), w in product(BLOCKS, WARPS) for v, s in LADDER]
    of_blocks = {f"{m},{n}": ScheduleSet(_of_blocks(m, n), HALF, sizes) for m, n in BLOCKS}
    return {
        "tune": ScheduleSet(tuple(s for one in of_blocks.values() for s in one.schedules), HALF, sizes),
        "prog": ScheduleSet(tuple(ladder), HALF[:1], sizes),
        "progall": ScheduleSet(tuple(ladders), HALF[:1], sizes),
        **of_blocks,
    }


def _of_blocks(rows: int, keys: int) -> tuple[Schedule, ...]:
    """Both ways and every number of blocks in flight. Of 64 by 64 also with eight warps, for which the smaller ones
    have too few scores, and the larger ones are in the ladders."""
    warps = WARPS if (rows, keys) == (64, 64) else WARPS[:1]
    return tuple(_schedule(v, rows, keys, w, s) for v, w, s in product((TILES, BOXES), warps, STAGES))


def _schedule(variant: str, rows: int, keys: int, warps: int, stages: int) -> Schedule:
    return Schedule.make(variant, BLOCK_M=rows, BLOCK_N=keys, num_warps=warps, num_stages=stages)

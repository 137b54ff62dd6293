"""How rows are divided among programs: the schedules of the variants `split` and `split_columns`."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families.family import Kernels, Variant
from kernelgen.families.forms import Form
from kernelgen.families.kernel import LOADS, STORES, Body
from kernelgen.families.naming import FULL
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.families.values import Use
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Parameter, Scalar, Schedule

PROGRAMS = 512
"""Programs that a search sets out with: about four for each SM of an H200."""
SHARED_PROGRAMS = 1024
"""The same for several rows, with smaller blocks (H200, batch_norm of 64 channels in float32: 3126 us, half as many
programs and blocks of twice the size or more 3177 to 3456 us; in half precision no difference)."""
MOST_PROGRAMS = 4096
"""As many, where each of them still has BLOCKS_EACH (H200, the reduction of the same in 1024 programs 1050 us, in 4096
960 us)."""
BLOCKS_EACH = 4
LANE_PROGRAMS = 4096
"""The same where lanes lie along the rows, where a program has a few lines of memory at a time: best of what was tried
with the sum over the first dimension on an H200."""
MOST_PARTS = 256
"""The most parts of a row that one program joins where lanes lie along the rows."""
NARROW = 64
"""Rows of which a quarter is enough for the lanes of a program (H200, 4096 by 64 summed over the first dimension:
4.5 us, with 64 lanes 6.2)."""
FEWEST = 8
"""Rows of which half share a program (H200, 131072 by 8 summed over the first dimension: 4.6 us by 4 lanes, 5.5 by 8,
8.7 by 16)."""
LEAST_OF_LANES = 32
"""Elements of a row that a part has at least (H200, 4096 by 64 summed so: 3.9 us in 128 parts, 4.5 in 256; 512 by 1024
4.5 in 16, 5.2 in 32)."""
LONG_ROW = 16384
"""Rows from so many elements on are worth dividing where there are few of them."""
_LANES = 64
"""Rows of one program where lanes lie along them: 128 bytes of the narrowest floats, a whole cache line."""


_SPLITS = tuple(1 << n for n in range(1, 12))


def can_split(body: Body, form: Form) -> bool:
    """Whether there is something to divide; lanes along the rows need a result of every reduction for every row."""
    values, levels = body.lowered.values, body.names.levels
    sources = [a.value for v in values if v.op in REDUCTIONS for a in v.args if isinstance(a, Use)]
    return bool(sources) and (not form.several or all(levels[s] == FULL for s in sources))


def default(form: Form) -> Schedule:
    common: dict[str, Scalar] = {"SPLITS": 32, "specialize": False, "loads": "default", "stores": "default"}
    if form.several:
        return Schedule.make(form.name, BLOCK_SIZE_M=_LANES, BLOCK_SIZE_N=32, num_warps=4, NUM_STAGES=1, **common)
    # blocks loaded ahead, 48 KiB of float16 a program, reach the DRAM's rate with few programs
    return Schedule.make(form.name, BLOCK_SIZE_N=8192, num_warps=4, NUM_STAGES=3, **common)


def fitted(form: Form, rows: int, columns: int, reads: int = 1) -> Schedule:
    """The schedule that gives about PROGRAMS programs, each with at least one whole block; `reads`: tensors walked."""
    schedule = default(form)
    lanes = (_LANES if rows > NARROW else _LANES // 4 if rows > FEWEST else _LANES // 16) if form.several else 1
    programs = LANE_PROGRAMS if lanes > 1 else PROGRAMS if rows == 1 else SHARED_PROGRAMS
    splits = power_below(programs // max(1, -(-rows // lanes)))
    if lanes > 1:  # the next kernel joins the parts of a row in one program
        schedule = schedule.replace(BLOCK_SIZE_M=lanes)
        splits = min(splits, MOST_PARTS, power_below(columns // LEAST_OF_LANES))
    least = 16 if lanes > 1 else 1024
    if lanes > 1:
        schedule = schedule.replace(BLOCK_SIZE_N=min(128, schedule.int("BLOCK_SIZE_N") * _LANES // lanes))
    elif rows > 1:
        schedule = schedule.replace(BLOCK_SIZE_N=schedule.int("BLOCK_SIZE_N") // 2)
    if lanes == 1:
        schedule = schedule.replace(BLOCK_SIZE_N=max(least, schedule.int("BLOCK_SIZE_N") // power_below(2 * reads - 1)))
    if lanes == 1 and rows > 1:
        more = min(MOST_PROGRAMS // rows, columns // (BLOCKS_EACH * schedule.int("BLOCK_SIZE_N")))
        splits = max(splits, power_below(more))
    block = max(least, min(schedule.int("BLOCK_SIZE_N"), power_below(columns // splits)))
    splits = max(2, min(splits, power_below(columns // block)))
    warps = min(schedule.int("num_warps"), max(1, block * lanes // (64 if 1 < lanes < _LANES else 256)))
    return schedule.replace(BLOCK_SIZE_N=block, SPLITS=splits, num_warps=warps)


def few_long_rows(shapes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The most rows and the shortest of the shapes whose rows are long, if they leave most of a device idle."""
    long = [(rows, columns) for rows, columns in shapes if columns >= LONG_ROW]
    most = max((rows for rows, _ in long), default=PROGRAMS)
    return (most, min(columns for _, columns in long)) if most <= PROGRAMS // 4 else None


def few_lanes(shapes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The same where lanes lie along the rows."""
    most = max((rows for rows, _ in shapes), default=PROGRAMS * _LANES)
    shortest = min((columns for _, columns in shapes), default=1)
    long = shortest >= (256 if most <= 16 * _LANES else 512)
    return (most, shortest) if most <= PROGRAMS // 4 * _LANES and long else None


def variant(form: Form, meaning: str, kernels: Kernels) -> Variant:
    """A row divided among programs, by a family's kernels."""
    across = form.two_d
    blocks = (8, 16, 32, 64, 128, 256) if across else (1024, 2048, 4096, 8192, 16384)
    lanes = Parameter("BLOCK_SIZE_M", (4, 8, 16, 32, 64, 128, 256), "block_size", "constexpr", "rows per program")
    space = (
        *((lanes,) if across else ()),
        Parameter("BLOCK_SIZE_N", blocks, "block_size", "constexpr", "elements of a block of the row"),
        Parameter("SPLITS", _SPLITS, "grid_config", "constexpr", "programs that share a row"),
        Parameter("num_warps", (1, 2, 4, 8, 16), "warp_stage", "launch", "warps per program"),
        Parameter("NUM_STAGES", (1, 2, 3), "warp_stage", "structure", "blocks loaded ahead"),
        LOADS, STORES, SPECIALIZE,
    )  # fmt: skip
    return Variant(form, meaning, default(form), space, legal, kernels)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule cannot serve rows of `columns` elements; None if it can."""
    block, splits = schedule.int("BLOCK_SIZE_N"), schedule.int("SPLITS")
    if splits > 2 and (splits - 1) * block >= 2 * max(columns, 2048):
        return f"{splits} parts of at least {block} for rows of {columns}"
    each = block * int(schedule.get("BLOCK_SIZE_M", 1) or 1) / (32 * schedule.int("num_warps"))
    return f"{each:g} elements per thread (1 to 128 are allowed)" if not 1 <= each <= 128 else None


def power_below(number: int) -> int:
    """The greatest power of two that is not above a number, at least 1."""
    return 1 << (max(number, 1).bit_length() - 1)

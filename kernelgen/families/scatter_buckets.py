"""index_add in three kernels: the first puts every place into a bucket of the row that it names, the second adds up a
row by its bucket, in the order of the index, the third those rows that are named more often than a bucket holds.

A bucket is filled by integer atomics, in whatever order these come, and put in order by the kernel that adds: the sums
are the same at every call. It holds twice what a row is named on average and eight more, so that none is too small
where rows are named evenly: at least 32 bytes of memory for every row of the result, and four for its count.
A row that is named more often than that looks for its places in the index itself, all of which it reads; in a kernel of
its own, because the registers that this needs would be taken from all rows. Where a few rows are named most of the
time, these alone do. Where rows are named more than 128 times on average, most do: M integers a row from the cache,
beside the M x N elements that are added in all. For thousands of such rows `lists` reads less.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.scatter_facts import arguments, at_most, kernel, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "buckets"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_K=4, BLOCK_SIZE_L=1024, BLOCK_SIZE_M=128, BLOCK_SIZE_N=1024, num_warps=4)
"""H200, 16384 rows of 1024 in float16 added to 4096, in us: 27 where each is named as often, 269 where every tenth is
added to one row, 700 where three of ten are; in one kernel for all rows, which held 149 registers instead of 56, 40,
406 and 1069. Where one of a hundred is: 81, which was 62."""
ROWS_LOOKED_AT = 32
"""By each program of the third kernel: their counts are read together, and most have no more to do."""
MOST = 128
"""The most places of a bucket: what puts them in order compares each with each."""
_SLOTS = "SLOTS", "slots"


def fitted(columns: int) -> Schedule:
    """For rows of so many columns: eight a thread."""
    block = min(max(1 << (columns - 1).bit_length(), 64), 1024)
    return DEFAULT.replace(BLOCK_SIZE_N=block, num_warps=max(block // 256, 1))


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel that fills the buckets, the kernel that adds, and that for the rows that no bucket holds."""
    return tuple(make(spec, body, schedule, name) for make in (_buckets, _sums, _rest))


def _buckets(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    scatter = told(spec, body, "buckets")
    size = scatter.size
    tensors = arguments(scatter, scatter.index, "counts", "buckets", counted=("M",))
    made = kernel(
        body, name, schedule, tensors, (_SLOTS, "BLOCK_SIZE_M"), scatter, ('cdiv(M, options["BLOCK_SIZE_M"])',)
    )  # fmt: skip
    slots = f"min(next_power_of_2(2 * (M // {size}) + 8), {MOST})"
    return replace(
        made, options=(("num_warps", "4"),), counts=(("slots", slots),),
        scratch=(ir.Scratch("counts", size, "int32", zeros=True), ir.Scratch("buckets", f"({size}, slots)", "int32")),
    )  # fmt: skip


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    scatter = told(spec, body, "bucket_sums")
    pointers = [f"{t}_ptr" for t in (scatter.base, scatter.source, "counts", "buckets", scatter.out) if t]
    grid = (f'{scatter.size} * cdiv(N, options["BLOCK_SIZE_N"])',)
    constexprs = _SLOTS, "BLOCK_SIZE_K", "BLOCK_SIZE_N"
    base = name.removesuffix("_kernel")
    made = kernel(body, f"{base}_sums_kernel", schedule, (*pointers, "M", "N"), constexprs, scatter, grid)
    return replace(made, options=(("num_warps", None),))


def _rest(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    scatter = told(spec, body, "bucket_rest")
    tensors = arguments(scatter, scatter.base, scatter.index, scatter.source, "counts", scatter.out)
    looked = ("BLOCK_SIZE_V", f"{ROWS_LOOKED_AT}"), ("BLOCK_SIZE_K", "8")
    constexprs = _SLOTS, *looked, "BLOCK_SIZE_L", "BLOCK_SIZE_N"
    grid = (f'cdiv({scatter.size}, {ROWS_LOOKED_AT}) * cdiv(N, options["BLOCK_SIZE_N"])',)
    made = kernel(body, f"{name.removesuffix('_kernel')}_rest_kernel", schedule, tensors, constexprs, scatter, grid)
    return replace(made, options=(("num_warps", "4"),))


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why sums, and what rounding took from them, are too many for a thread; None if they are not."""
    return at_most((2 + schedule.int("BLOCK_SIZE_K")) * schedule.int("BLOCK_SIZE_N"), schedule)


SPACE = (
    block("BLOCK_SIZE_K", (1, 2, 4, 8, 16), "places of a row that are added at once"),
    block("BLOCK_SIZE_L", (64, 128, 256, 512, 1024, 2048), "indices that a row with too many places looks at together"),
    block("BLOCK_SIZE_M", (64, 128, 256, 512, 1024), "places that a program puts into buckets"),
    block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048), "columns per program"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program that adds"),
)
VARIANT = Variant(
    PRINTED,
    "one kernel puts places, BLOCK_SIZE_M per program, into the buckets of their rows; a second adds, BLOCK_SIZE_N "
    "columns of a row per program, BLOCK_SIZE_K places at a time in the order of the index; a third adds rows whose "
    "bucket overflowed",
    DEFAULT, SPACE, legal, kernels,
)  # fmt: skip

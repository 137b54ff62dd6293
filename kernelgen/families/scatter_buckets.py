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

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import WARPS, Body, KernelText, Passed, Scratch
from kernelgen.families.scatter_facts import arguments, at_most, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NAME = "buckets"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_K=4, BLOCK_SIZE_L=1024, BLOCK_SIZE_M=128, BLOCK_SIZE_N=1024, num_warps=4)
"""H200, 16384 rows of 1024 in float16 added to 4096, in us: 27 where each is named as often, 269 where every tenth is
added to one row, 700 where three of ten are; in one kernel for all rows, which held 149 registers instead of 56, 40,
406 and 1069. Where one of a hundred is: 81, which was 62."""
ROWS_LOOKED_AT = 32
"""By each program of the third kernel: their counts are read together, and most have no more to do."""
MOST = 128
"""The most places of a bucket: what puts them in order compares each with each."""
_SLOTS = Passed("SLOTS", "slots")


def fitted(columns: int) -> Schedule:
    """For rows of so many columns: eight a thread."""
    block = min(max(1 << (columns - 1).bit_length(), 64), 1024)
    return DEFAULT.replace(BLOCK_SIZE_N=block, num_warps=max(block // 256, 1))


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel that fills the buckets, the kernel that adds, and that for the rows that no bucket holds."""
    return tuple(make(spec, body, schedule, name) for make in (_buckets, _sums, _rest))


def _buckets(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    scatter = told(spec, body, "buckets")
    size = scatter.size
    return KernelText(
        name, PRINTED, schedule, arguments(scatter, scatter.index, "counts", "buckets", counted=("M",)),
        ("SLOTS", "BLOCK_SIZE_M"), body=(scatter,), grid='(cdiv(M, options["BLOCK_SIZE_M"]),)',
        passed=(Passed("num_warps", "4"), _SLOTS),
        sizes=(("slots", f"min(next_power_of_2(2 * (M // {size}) + 8), {MOST})"),),
        scratch=(Scratch("counts", "int32", size, zeros=True), Scratch("buckets", "int32", f"({size}, slots)")),
    )  # fmt: skip


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    scatter = told(spec, body, "bucket_sums")
    pointers = [f"{t}_ptr" for t in (scatter.base, scatter.source, "counts", "buckets", scatter.out) if t]
    return KernelText(
        f"{name.removesuffix('_kernel')}_sums_kernel", PRINTED, schedule, (*pointers, "M", "N"),
        ("SLOTS", "BLOCK_SIZE_K", "BLOCK_SIZE_N"), body=(scatter,),
        grid=f'({scatter.size} * cdiv(N, options["BLOCK_SIZE_N"]),)', passed=(WARPS, _SLOTS),
    )  # fmt: skip


def _rest(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    scatter = told(spec, body, "bucket_rest")
    return KernelText(
        f"{name.removesuffix('_kernel')}_rest_kernel", PRINTED, schedule,
        arguments(scatter, scatter.base, scatter.index, scatter.source, "counts", scatter.out),
        ("SLOTS", "BLOCK_SIZE_V", "BLOCK_SIZE_K", "BLOCK_SIZE_L", "BLOCK_SIZE_N"), body=(scatter,),
        grid=f'(cdiv({scatter.size}, {ROWS_LOOKED_AT}) * cdiv(N, options["BLOCK_SIZE_N"]),)',
        passed=(
            Passed("num_warps", "4"), _SLOTS, Passed("BLOCK_SIZE_V", f"{ROWS_LOOKED_AT}"), Passed("BLOCK_SIZE_K", "8"),
        ),
    )  # fmt: skip


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why sums, and what rounding took from them, are too many for a thread; None if they are not."""
    return at_most((2 + schedule.int("BLOCK_SIZE_K")) * schedule.int("BLOCK_SIZE_N"), schedule)


SPACE = (
    block("BLOCK_SIZE_K", (1, 2, 4, 8, 16), "places of a row that are added at once"),
    block("BLOCK_SIZE_L", (64, 128, 256, 512, 1024, 2048), "indices that a row with too many places looks at together"),
    block("BLOCK_SIZE_M", (64, 128, 256, 512, 1024), "places that a program puts into buckets"),
    block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048), "columns a program"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program that adds"),
)
VARIANT = Variant(
    PRINTED,
    "a kernel puts places, BLOCK_SIZE_M a program, into the buckets of their rows; a second adds, BLOCK_SIZE_N columns "
    "of a row a program, BLOCK_SIZE_K places at a time in the order of the index; a third, rows that no bucket holds",
    DEFAULT, SPACE, legal, kernels,
)  # fmt: skip

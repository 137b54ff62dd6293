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
from kernelgen.families.scatter_text import accumulated, at_most, limit, quoted, tensors, widened
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
    """The kernel that fills the buckets and the kernel that adds."""
    is_float = accumulated(body) == "float32"
    helpers["add_rows" if is_float else "add_whole_rows"] = None
    return tuple(make(spec, body, schedule, name) for make in (_buckets, _sums, _rest))


def _buckets(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    index = tensors(body)[-2]
    size = limit(body, spec.outputs[0].shape, 0)
    lines = [
        "# a program puts places into the buckets of their rows, in whatever order atomics come",
        "places = tl.program_id(0) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)",
        f"{index} = tl.load({index}_ptr + places, mask=places < M, other=-1){_wide(spec, index)}",
        f"is_row = {index} >= 0",
        f"is_row &= {index} < {size}",
        f'slot = tl.atomic_add(counts_ptr + {index}, 1, mask=is_row, sem="relaxed")',
        "# what a bucket does not hold is counted only",
        f"tl.store(buckets_ptr + {index} * SLOTS + slot, places, mask=is_row & (slot < SLOTS))",
    ]
    sizes = ["M", *([size] if not size.isdigit() else [])]
    return KernelText(
        name, PRINTED, schedule, (f"{index}_ptr", "counts_ptr", "buckets_ptr", *sizes), ("SLOTS", "BLOCK_SIZE_M"), (),
        tuple(lines), grid='(cdiv(M, options["BLOCK_SIZE_M"]),)', passed=(Passed("num_warps", "4"), _SLOTS),
        sizes=(("slots", f"min(next_power_of_2(2 * (M // {size}) + 8), {MOST})"),),
        scratch=(Scratch("counts", "int32", size, zeros=True), Scratch("buckets", "int32", f"({size}, slots)")),
    )  # fmt: skip


def _wide(spec: OperatorSpec, index: str) -> str:
    """What makes an int64 of an index: times the places of a bucket it may pass 2**31."""
    return "" if next(t.dtype for t in spec.inputs if t.name == index) == "int64" else ".to(tl.int64)"


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    *base, _, source = tensors(body)
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, 0)
    lines = [
        "# a program adds up columns of a row, in the order of the index",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "row = (tl.program_id(0) // num_tiles_n).to(tl.int64)",
        *_columns(),
        *_begin(spec, body),
        "count = tl.load(counts_ptr + row)",
        *quoted(body),
        "if count <= SLOTS:",
        "    slots = tl.arange(0, SLOTS)",
        "    places = tl.load(buckets_ptr + row * SLOTS + slots, mask=slots < count, other=M)",
        "    # the bucket was filled in whatever order: a place's rank is how many are before it",
        "    rank = tl.sum((places[None, :] < places[:, None]).to(tl.int32), axis=1)",
        f"    {_added(body, out, source, 'count')}",
        f"    {_stored(body, out)}",
    ]
    pointers = [f"{t}_ptr" for t in (*base, source, "counts", "buckets", out)]
    return KernelText(
        f"{name.removesuffix('_kernel')}_sums_kernel", PRINTED, schedule, (*pointers, "M", "N"),
        ("SLOTS", "BLOCK_SIZE_K", "BLOCK_SIZE_N"), (), tuple(lines),
        grid=f'({size} * cdiv(N, options["BLOCK_SIZE_N"]),)',
        passed=(WARPS, _SLOTS),
    )  # fmt: skip


def _rest(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    *base, index, source = tensors(body)
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, 0)
    lines = [
        "# rows with more places than a bucket holds, which are few, look for these in the index itself",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        f"num_parts = tl.cdiv({size}, BLOCK_SIZE_V)",
        "part = tl.program_id(0) // num_tiles_n",
        *_columns(),
        "# neighbours, which are often named alike, are left to other programs",
        "rows = part + tl.arange(0, BLOCK_SIZE_V) * num_parts",
        f"counts = tl.load(counts_ptr + rows, mask=rows < {size}, other=0)",
        "if tl.max(counts) > SLOTS:",
        "    for number in range(BLOCK_SIZE_V):",
        "        row = tl.cast(part + number * num_parts, tl.int64)",
        f"        if tl.load(counts_ptr + row, mask=row < {size}, other=0) > SLOTS:",
        *(f"            {line}" for line in _begin(spec, body)),
        *(f"            {line}" for line in quoted(body)),
        "            for start in range(0, M, BLOCK_SIZE_L):",
        "                places = start + tl.arange(0, BLOCK_SIZE_L)",
        f"                {index} = tl.load({index}_ptr + places, mask=places < M, other=-1)",
        f"                is_own = ({index} == row).to(tl.int32)",
        "                rank = tl.where(is_own > 0, tl.cumsum(is_own, axis=0) - 1, -1)",
        "                found = tl.sum(is_own, axis=0)",
        f"                {_added(body, out, source, 'found')}",
        f"            {_stored(body, out)}",
    ]
    pointers = [f"{t}_ptr" for t in (*base, index, source, "counts", out)]
    sizes = ["M", "N", *([size] if not size.isdigit() else [])]
    return KernelText(
        f"{name.removesuffix('_kernel')}_rest_kernel", PRINTED, schedule, (*pointers, *sizes),
        ("SLOTS", "BLOCK_SIZE_V", "BLOCK_SIZE_K", "BLOCK_SIZE_L", "BLOCK_SIZE_N"), (), tuple(lines),
        grid=f'(cdiv({size}, {ROWS_LOOKED_AT}) * cdiv(N, options["BLOCK_SIZE_N"]),)',
        passed=(
            Passed("num_warps", "4"), _SLOTS, Passed("BLOCK_SIZE_V", f"{ROWS_LOOKED_AT}"), Passed("BLOCK_SIZE_K", "8"),
        ),
    )  # fmt: skip


def _columns() -> tuple[str, ...]:
    return (
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "mask = cols < N",
    )


def _begin(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    """What a row's sums are added to."""
    *base, _, _ = tensors(body)
    out = spec.outputs[0].name
    start = f"{out} = tl.zeros([BLOCK_SIZE_N], tl.{accumulated(body)})"
    if base:
        start = f"{out} = tl.load({base[0]}_ptr + row * N + cols, mask=mask){widened(spec, base[0])}"
    if accumulated(body) != "float32":
        return (start,)
    return (
        start,
        "# what rounding takes from the sums, which many additions would show",
        "lost = tl.zeros([BLOCK_SIZE_N], tl.float32)",
    )


def _added(body: Body, out: str, source: str, count: str) -> str:
    """The statement that adds the rows at the places that were found."""
    is_float = accumulated(body) == "float32"
    sums, helper = (f"{out}, lost", "_add_rows") if is_float else (out, "_add_whole_rows")
    return f"{sums} = {helper}({sums}, {source}_ptr, places, rank, {count}, cols, mask, N, BLOCK_SIZE_K)"


def _stored(body: Body, out: str) -> str:
    return f"tl.store({out}_ptr + row * N + cols, {out}{' + lost' * (accumulated(body) == 'float32')}, mask=mask)"


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

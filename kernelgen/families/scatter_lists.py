"""index_add in two kernels: the first lists the places that name every part of the result, the second adds up a row by
the list of its part, in the order of the index. The index is read twice for each part, and not again for every row and
tile of columns."""

from __future__ import annotations

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import WARPS, Body, KernelText, Passed, Scratch
from kernelgen.families.scatter_text import accumulated, at_most, limit, quoted, tensors, widened
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NAME = "lists"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_L=128, BLOCK_SIZE_M=4096, BLOCK_SIZE_N=1024, BLOCK_SIZE_V=32, num_warps=4)


def fitted(columns: int) -> Schedule:
    """For rows of so many columns: eight a thread."""
    block = min(max(1 << (columns - 1).bit_length(), 64), 1024)
    return DEFAULT.replace(BLOCK_SIZE_N=block, num_warps=max(block // 256, 1))


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel that lists and the kernel that adds."""
    if accumulated(body) == "float32":
        helpers["two_sum"] = None
    return _lists(spec, body, schedule, name), _sums(spec, body, schedule, name)


def _lists(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    index = tensors(body)[-2]
    size = limit(body, spec.outputs[0].shape, 0)
    read = f"tl.load({index}_ptr + places, mask=places < M, other=-1)"
    lines = [
        "# a program lists the places that name its part of the result, in the order of the index",
        "part = tl.program_id(0).to(tl.int64)",
        "first = part * BLOCK_SIZE_V",
        "lanes = tl.arange(0, BLOCK_SIZE_M)",
        "# the lists of the parts before it come first",
        "before = tl.zeros([BLOCK_SIZE_M], tl.int32)",
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + lanes",
        f"    {index} = {read}",
        f"    is_before = {index} >= 0",
        f"    is_before &= {index} < first",
        "    before += is_before.to(tl.int32)",
        "end = tl.sum(before, axis=0)",
        "bounds = bounds_ptr + 2 * part",
        "tl.store(bounds, end)",
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + lanes",
        f"    {index} = {read}",
        f"    is_own = {index} >= first",
        f"    is_own &= {index} < first + BLOCK_SIZE_V",
        "    rank = tl.cumsum(is_own.to(tl.int32), axis=0)",
        "    # a number for the place and the row within the part",
        f"    number = places.to(tl.int64) * BLOCK_SIZE_V + ({index} - first)",
        "    tl.store(listed_ptr + end + rank - 1, number, mask=is_own)",
        "    end += tl.sum(is_own.to(tl.int32), axis=0)",
        "tl.store(bounds + 1, end)",
    ]
    parts = f'cdiv({size}, options["BLOCK_SIZE_V"])'
    return KernelText(
        name, PRINTED, schedule, (f"{index}_ptr", "listed_ptr", "bounds_ptr", "M"),
        ("BLOCK_SIZE_M", "BLOCK_SIZE_V"), (), tuple(lines), grid=f"({parts},)", passed=(Passed("num_warps", "16"),),
        scratch=(Scratch("listed", "int64", "M"), Scratch("bounds", "int32", f"({parts}, 2)")),
    )  # fmt: skip


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    *base, _, source = tensors(body)
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, 0)
    start = f"{out} = tl.zeros([BLOCK_SIZE_N], tl.{accumulated(body)})"
    if base:
        start = f"{out} = tl.load({base[0]}_ptr + row * N + cols, mask=mask){widened(spec, base[0])}"
    is_float = accumulated(body) == "float32"
    lost = [
        "# what rounding takes from the sums, which many additions would show",
        "lost = tl.zeros([BLOCK_SIZE_N], tl.float32)",
    ]
    read = f"tl.load({source}_ptr + place.to(tl.int64) * N + cols, mask=mask)"
    exact = [f"        {out}, error = _two_sum({out}, {source})", "        lost += error"]
    lines = [
        "# a program adds up columns of a row, in the order of its part's list",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "row = (tl.program_id(0) // num_tiles_n).to(tl.int64)",
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "mask = cols < N",
        start,
        *lost * is_float,
        "bounds = bounds_ptr + row // BLOCK_SIZE_V * 2",
        "end = tl.load(bounds + 1)",
        *quoted(body),
        "for start in range(tl.load(bounds), end, BLOCK_SIZE_L):",
        "    slots = start + tl.arange(0, BLOCK_SIZE_L)",
        "    number = tl.load(listed_ptr + slots, mask=slots < end, other=-1)",
        "    is_own = number % BLOCK_SIZE_V == row % BLOCK_SIZE_V  # -1 is no row's",
        "    left = tl.where(is_own, (number // BLOCK_SIZE_V).to(tl.int32), M)",
        "    place = tl.min(left, axis=0)",
        "    while place < M:",
        f"        {source} = {read}{widened(spec, source)}",
        *(exact if is_float else [f"        {out} += {source}"]),
        "        left = tl.where(left == place, M, left)",
        "        place = tl.min(left, axis=0)",
        f"tl.store({out}_ptr + row * N + cols, {out}{' + lost' * is_float}, mask=mask)",
    ]
    pointers = [f"{t}_ptr" for t in (*base, source, "listed", "bounds", out)]
    return KernelText(
        f"{name.removesuffix('_kernel')}_sums_kernel", PRINTED, schedule, (*pointers, "M", "N"),
        ("BLOCK_SIZE_L", "BLOCK_SIZE_N", "BLOCK_SIZE_V"), (), tuple(lines),
        grid=f'({size} * cdiv(N, options["BLOCK_SIZE_N"]),)', passed=(WARPS,),
    )  # fmt: skip


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why sums, and what rounding took from them, are too many for a thread; None if they are not."""
    return at_most(2 * schedule.int("BLOCK_SIZE_N"), schedule)


SPACE = (
    block("BLOCK_SIZE_L", (32, 64, 128, 256, 512), "places of a list that are looked at together"),
    block("BLOCK_SIZE_M", (1024, 2048, 4096, 8192), "indices that are looked at together"),
    block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048), "columns a program"),
    block("BLOCK_SIZE_V", (8, 16, 32, 64, 128), "rows of the result that have a list"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program that adds"),
)
VARIANT = Variant(
    PRINTED,
    "a kernel lists the places that name BLOCK_SIZE_V rows; a second adds, BLOCK_SIZE_N columns of a row a program, in "
    "the order of their list",
    DEFAULT, SPACE, legal, kernels,
)  # fmt: skip

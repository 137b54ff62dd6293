"""index_add in two kernels: the first lists the places that name every part of the result, the second adds up a row by
the list of its part, in the order of the index. The index is read twice for each part, and not again for every row and
tile of columns."""

from __future__ import annotations

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import WARPS, Body, KernelText, Passed, Scratch
from kernelgen.families.scatter_facts import at_most, told
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
    return _lists(spec, body, schedule, name), _sums(spec, body, schedule, name)


def _lists(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    scatter = told(spec, body, "lists")
    parts = f'cdiv({scatter.size}, options["BLOCK_SIZE_V"])'
    return KernelText(
        name, PRINTED, schedule, (f"{scatter.index}_ptr", "listed_ptr", "bounds_ptr", "M"),
        ("BLOCK_SIZE_M", "BLOCK_SIZE_V"), body=(scatter,), grid=f"({parts},)", passed=(Passed("num_warps", "16"),),
        scratch=(Scratch("listed", "int64", "M"), Scratch("bounds", "int32", f"({parts}, 2)")),
    )  # fmt: skip


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> KernelText:
    scatter = told(spec, body, "list_sums")
    pointers = [f"{t}_ptr" for t in (scatter.base, scatter.source, "listed", "bounds", scatter.out) if t]
    return KernelText(
        f"{name.removesuffix('_kernel')}_sums_kernel", PRINTED, schedule, (*pointers, "M", "N"),
        ("BLOCK_SIZE_L", "BLOCK_SIZE_N", "BLOCK_SIZE_V"), body=(scatter,),
        grid=f'({scatter.size} * cdiv(N, options["BLOCK_SIZE_N"]),)', passed=(WARPS,),
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

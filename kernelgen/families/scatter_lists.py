"""index_add in two kernels: the first lists the places that name every part of the result, the second adds up a row by
the list of its part, in the order of the index. The index is read twice for each part, and not again for every row and
tile of columns."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.scatter_facts import at_most, kernel, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "lists"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_L=128, BLOCK_SIZE_M=4096, BLOCK_SIZE_N=1024, BLOCK_SIZE_V=32, num_warps=4)


def fitted(columns: int) -> Schedule:
    """For rows of so many columns: eight a thread."""
    block = min(max(1 << (columns - 1).bit_length(), 64), 1024)
    return DEFAULT.replace(BLOCK_SIZE_N=block, num_warps=max(block // 256, 1))


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel that lists and the kernel that adds."""
    return _lists(spec, body, schedule, name), _sums(spec, body, schedule, name)


def _lists(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    scatter = told(spec, body, "lists")
    parts = f'cdiv({scatter.size}, options["BLOCK_SIZE_V"])'
    tensors = f"{scatter.index}_ptr", "listed_ptr", "bounds_ptr", "M"
    made = kernel(body, name, schedule, tensors, ("BLOCK_SIZE_M", "BLOCK_SIZE_V"), scatter, (parts,))
    scratch = ir.Scratch("listed", "M", "int64"), ir.Scratch("bounds", f"({parts}, 2)", "int32")
    return replace(made, options=(("num_warps", "16"),), scratch=scratch)


def _sums(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    scatter = told(spec, body, "list_sums")
    pointers = [f"{t}_ptr" for t in (scatter.base, scatter.source, "listed", "bounds", scatter.out) if t]
    constexprs = "BLOCK_SIZE_L", "BLOCK_SIZE_N", "BLOCK_SIZE_V"
    grid = (f'{scatter.size} * cdiv(N, options["BLOCK_SIZE_N"])',)
    base = name.removesuffix("_kernel")
    made = kernel(body, f"{base}_sums_kernel", schedule, (*pointers, "M", "N"), constexprs, scatter, grid)
    return replace(made, options=(("num_warps", None),))


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why sums, and what rounding took from them, are too many for a thread; None if they are not."""
    return at_most(2 * schedule.int("BLOCK_SIZE_N"), schedule)


SPACE = (
    block("BLOCK_SIZE_L", (32, 64, 128, 256, 512), "places of a list that are looked at together"),
    block("BLOCK_SIZE_M", (1024, 2048, 4096, 8192), "indices that are looked at together"),
    block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048), "columns per program"),
    block("BLOCK_SIZE_V", (8, 16, 32, 64, 128), "rows of the result that have a list"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program that adds"),
)
VARIANT = Variant(
    PRINTED,
    "one kernel lists the places that name BLOCK_SIZE_V rows; a second adds, BLOCK_SIZE_N columns of a row per "
    "program, in the order of their list",
    DEFAULT, SPACE, legal, kernels,
)  # fmt: skip

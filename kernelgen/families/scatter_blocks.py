"""scatter_add by programs that own rows: what every element of a block adds is found by comparing it with all others.

All elements of a block that name one place come to the same sum, in the same order, and store the same number: one
barrier between what a block reads and what it stores, another before the next block reads, and no element has to be the
first. The block after it is on its way meanwhile. Indices are compared in 32 bits, once they are in range.
"""

from __future__ import annotations

from math import prod

from kernelgen.families.access import Layout
from kernelgen.families.family import Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.scatter_facts import arguments, at_most, kernel, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "blocks"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_M=1, BLOCK_SIZE_N=32, num_warps=1)
FEW, FEW_ROWS = 512, DEFAULT.replace(BLOCK_SIZE_N=64, num_warps=2)
"""So few rows leave most of a device idle: each takes a program of its own, and blocks as large as comparing them with
themselves allows (H200, 64 rows of 262,144 elements: 3.1 ms, eight rows a program by blocks of 32 22.2)."""
LONGER = 4
"""Up to so many elements of the result for each that is added, a program starts its rows itself. Rows that are longer
are copied faster by a kernel of their own, to which rows that are few make no difference."""

GRID = ('cdiv(M, options["BLOCK_SIZE_M"])',)
STARTED = "BLOCK_SIZE_V", '1024 * options["num_warps"] // options["BLOCK_SIZE_M"]'
"""What is passed to kernels that start their rows: 32 places a thread at a time."""


def starts_itself(spec: OperatorSpec, layout: Layout, source: str) -> bool:
    """Whether a program copies what its rows are added to, or zeros them, and the wrapper does not: by the cases that
    are timed. A single row would be copied by one program."""
    shape = next(t.shape for t in spec.inputs if t.name == source)
    sizes = [(prod(case.shape(spec.outputs[0].shape)), prod(case.shape(shape))) for case in spec.performance]
    return bool(layout.rows) and all(out <= LONGER * added for out, added in sizes)


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel, of which a program owns BLOCK_SIZE_M rows."""
    scatter, itself = told(spec, body, "blocks"), body.starts_itself
    tensors = arguments(scatter, scatter.base, scatter.index, scatter.source, scatter.out)
    constexprs: list[str | ir.Given] = ["BLOCK_SIZE_M", "BLOCK_SIZE_N", *([STARTED] if itself else [])]
    return (kernel(body, name, schedule, tensors, constexprs, scatter, GRID),)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    return at_most(schedule.int("BLOCK_SIZE_M") * schedule.int("BLOCK_SIZE_N") ** 2, schedule)


SPACE = (
    Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows per program"),
    Parameter("BLOCK_SIZE_N", (16, 32, 64, 128), "block_size", "constexpr", "elements of a block of the row"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
)
VARIANT = Variant(
    PRINTED,
    "BLOCK_SIZE_M rows per program, in a loop over blocks that first sums elements that name the same place",
    DEFAULT,
    SPACE,
    legal,
    kernels,
)

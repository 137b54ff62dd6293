"""scatter_add by programs that own places of a row: each looks at all elements of the row and adds what names them.

No program waits for another thread, and every processor has places to add to: for few places, of which every one is
compared with every element of its row. The sum of a place is a sum of as many as a block has elements, in a fixed
order, which are added up at the end.
"""

from __future__ import annotations

from math import prod

from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.scatter_facts import arguments, at_most, kernel, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "places"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_N=512, BLOCK_SIZE_V=16, num_warps=4)
FEW = 2**16
"""Places of the result, of all rows, that are compared with the elements of their rows faster than blocks of these are
added one after the other (H200, 8 rows of 1024 places and elements: 4.4 us, by blocks of 64 elements 10.8)."""
SIZE = "places"


def takes(body: Body) -> bool:
    """Whether elements are added along the last dimension of rows that their programs start themselves."""
    scatter = body.lowered.values[-1]
    return scatter.op == "scatter_add" and scatter.attr == "-1" and body.starts_itself and bool(body.layout.rows)


def size_of(spec: OperatorSpec, body: Body) -> NamedSize:
    """The places of all rows."""
    length, scatter = spec.outputs[0].shape[-1], told(spec, body, NAME)
    kept = tuple(size for a, size in enumerate(body.lowered.space.axes) if a not in body.columns())
    said = "places of the result", "{} places of the result"
    return NamedSize(SIZE, (*kept, length), f"M * {scatter.size}", *said)


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel, of which a program owns BLOCK_SIZE_V places of one row."""
    scatter = told(spec, body, NAME)
    tensors = arguments(scatter, scatter.base, scatter.index, scatter.source, scatter.out, counted=("N",))
    grid = (f'M * cdiv({scatter.size}, options["BLOCK_SIZE_V"])',)
    return (kernel(body, name, schedule, tensors, ("BLOCK_SIZE_N", "BLOCK_SIZE_V"), scatter, grid),)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    return at_most(prod(schedule.int(name) for name in ("BLOCK_SIZE_N", "BLOCK_SIZE_V")), schedule)


SPACE = (
    block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024), "elements that are looked at together"),
    block("BLOCK_SIZE_V", (4, 8, 16, 32, 64), "places per program"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
)
VARIANT = Variant(
    PRINTED,
    "BLOCK_SIZE_V places of one row per program, in a loop over all elements of the row",
    DEFAULT,
    SPACE,
    legal,
    kernels,
)

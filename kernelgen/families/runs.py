"""Runs of elements as they lie in the results, each with a row and a column of its own.

Every program writes one run of memory, whatever the length of a row: stores are as wide as they can be where rows are
short or of an odd length, and programs that run together write neighbouring memory. The price is a division for every
element, so the row length is compiled in where that may be: what is read with one access is divided once.
"""

from __future__ import annotations

from kernelgen.families.access import output_groups
from kernelgen.families.forms import ELEMENTS
from kernelgen.families.kernel import LOADS, STORES, Body, at_levels, output_values
from kernelgen.families.naming import COLUMN, ROW, SCALAR
from kernelgen.families.pairs import is_paired
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import RUN, Nest


def applies(body: Body) -> bool:
    """Whether results run over rows and columns, and no two elements of one are read or written together."""
    if not body.layout.rows or body.lowered.space.inner_axes() or is_paired(body):
        return False
    return all(output_groups(o, body.layout.columns) for o in body.lowered.outputs)


def default() -> Schedule:
    return Schedule.make(
        ELEMENTS.name, BLOCK_SIZE=1024, num_warps=4, specialize=True, loads="default", stores="default"
    )  # eight elements a thread: an access of 16 bytes in half precision, two in float32


def starts() -> tuple[Schedule, ...]:
    """Runs of 1024 and of 2048 elements."""
    return default(), default().replace(BLOCK_SIZE=2048)


SPACE = (
    Parameter(
        "specialize", (False, True), "grid_config", "structure",
        "a kernel compiled for every row length and every size that elements are divided by",
    ),
    Parameter("BLOCK_SIZE", (256, 512, 1024, 2048, 4096), "block_size", "constexpr", "elements per program"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
    LOADS, STORES,
)  # fmt: skip


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel for one schedule's structure."""
    nest = Nest(spec, body, ELEMENTS, schedule)
    text = nest.lets(at_levels(body, (COLUMN, SCALAR, ROW)))
    text = (*text, *nest.lets(output_values(body), late=False), *nest.stores())
    inside = (*grid.elements(RUN), *nest.row_indices(), *nest.places_in(text), *text)
    strides = {s for a in body.layout.all() for s, _ in a.strides}
    also = [a for a in nest.arguments("n_elements", "N") if a.isupper() and a not in strides]
    return (nest.kernel(name, inside, ("n_elements", "N"), ("BLOCK_SIZE",), also),)

"""Windows along one dimension, in lanes of several neighbouring columns: tiles of whole rows' columns.

The rows of such a window have no planes, and no row reads what another one does: what is shared lies within a row, and
a lane reads it in aligned blocks (module `lanes`). Programs that run together write neighbouring memory, however long
rows are: a row of an odd length begins at a place that no access is aligned to, and only its stores suffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelgen.families import planes
from kernelgen.families.access import output_groups
from kernelgen.families.family import Table
from kernelgen.families.forms import ELEMENTS, LANES
from kernelgen.families.kernel import LOADS, STORES, Body, at_levels, body_of, output_values
from kernelgen.families.lanes import LaneNest, Line, lines_of
from kernelgen.families.lanes import applies as shares
from kernelgen.families.naming import COLUMN, SCALAR
from kernelgen.families.ranges import known
from kernelgen.families.sliding_window import dim_of
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Condition
from kernelgen.plan import KernelPlan, Parameter, Schedule, table_row
from kernelgen.spec.model import ELLIPSIS, OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import M, N, Nest

TILE = 1024
"""Elements of a tile in four warps, eight a thread (average pools of 8 places in 8192 rows of 65536 columns, float32,
H200: in lanes of 4 columns 1029 us, one column a lane in runs of 2048 elements 2423)."""
WIDTHS = (128, 256, 512)
"""Columns of a tile; half precision rows of at most as many columns take the narrowest that holds them."""
LONGEST = 2**28
"""Columns of a row where neighbours read up to four elements apart, which are counted in int32."""


def applies(body: Body) -> bool:
    """Whether rows are taken whole and the columns of a lane share what they read."""
    layout = body.layout
    if layout.columns is None or len(layout.columns.axes) != 1 or len(layout.rows) != 1:
        return False
    if planes.applies(body) or body.lowered.space.inner_axes() or layout.stores:
        return False
    return all(output_groups(o, layout.columns) for o in body.lowered.outputs) and shares(body)


def default() -> Schedule:
    return Schedule.make(
        LANES.name, BLOCK_SIZE_M=1, BLOCK_SIZE_N=TILE, num_warps=4, lane_columns=4, specialize=True,
        loads="default", stores="default",
    )  # fmt: skip


def of_spec(plan: KernelPlan, table: Table) -> Table:
    """The first table, where lanes read less than the runs of elements that it has."""
    body = body_of(plan)
    if table[0].schedule.variant != ELEMENTS.name or not applies(body):
        return table
    lengths = _last_sizes(plan.spec)
    lane = next((lane for lane in (4, 2) if _is_aligned(body, lane, lengths)), 1)
    if lane == 1:
        return table
    wide = default().replace(lane_columns=lane)
    narrow = [
        table_row(wide.replace(BLOCK_SIZE_N=width, BLOCK_SIZE_M=TILE // width), row_bytes=2 * width) for width in WIDTHS
    ]
    return (*narrow, table_row(wide))


def _last_sizes(spec: OperatorSpec) -> dict[str, frozenset[int]]:
    """How long the last dimension of every input is where it is timed."""
    named = {t.name: t.shape[-1] for t in spec.inputs if t.shape and t.shape[-1] != ELLIPSIS}
    sizes = {name: {case.size(size) for case in spec.performance} for name, size in named.items()}
    return {name: frozenset(n for n in found if isinstance(n, int)) for name, found in sizes.items()}


def _is_aligned(body: Body, lane: int, lengths: Mapping[str, frozenset[int]]) -> bool:
    """Whether the blocks of all rows that are timed lie in one access each: an input's rows end with one."""
    values = body.lowered.values
    (axis,) = body.layout.columns.axes if body.layout.columns else (0,)
    found = lines_of(body, lane)
    for line in found:
        load = values[line.taps[0][1]]
        timed = lengths.get(load.tensor or "")
        if not timed or dim_of(load, axis) != len(load.index) - 1:
            return False
        if any(length % (line.step * lane) for length in timed):
            return False
    return bool(found)


def is_far(body: Body, schedule: Schedule) -> bool:
    """Whether the columns of a schedule's lanes are several elements apart in what they read."""
    return schedule.variant == LANES.name and any(line.step > 1 for lane in (2, 4) for line in lines_of(body, lane))


def starts(body: Body, columns: int) -> tuple[Schedule, ...]:
    """The first table's schedule for rows of that length, in lanes of four columns and of two."""
    width = next((w for w in WIDTHS if columns <= w), TILE)
    fitting = default().replace(BLOCK_SIZE_N=width, BLOCK_SIZE_M=TILE // width)
    return tuple(fitting.replace(lane_columns=lane) for lane in (4, 2) if lines_of(body, lane))


SPACE = (
    SPECIALIZE,
    Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows of a tile"),
    Parameter("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048, 4096), "block_size", "constexpr", "its columns"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
    Parameter(
        "lane_columns", (4, 2), "memory_access", "structure",
        "neighbouring columns of a lane, whose windows share what is read of a row",
    ),
    LOADS, STORES,
)  # fmt: skip


class RowNest(LaneNest):
    """Loads of rows that are counted in int64, and of columns that are not."""

    @property
    def rows(self) -> ir.Axis:
        return M

    def _reads_within_columns(self, line: Line) -> bool:
        """Never where rows may have more columns than are read: their end would cut a block that is read whole."""
        ends = [Condition(ix.axis(self.axis), op, right) for op, right in line.asked if op == "<"]
        axes = self.body.lowered.space.axes
        return super()._reads_within_columns(line) and all(known(end, axes) for end in ends)

    def wide_strides(self) -> tuple[ir.Stmt, ...]:
        return Nest.wide_strides(self)


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel for one schedule's structure."""
    nest = RowNest(spec, body, LANES, schedule)
    once = nest.lets(at_levels(body, (COLUMN, SCALAR)))
    text = (*nest.lets(output_values(body), late=False), *nest.stores())
    still = [let for let in nest.places.lets() if M not in let.value.shape]
    places = [let for let in nest.places.lets() if let not in still]
    inside = (
        *grid.programs(N, columns_fastest=True), *nest.column_numbers(), *still, *once, *nest.once(),
        grid.numbered(M, grid.block(ir.Name("pid_m"), M))[0], *nest.masks(), *nest.row_indices(), *places, *text,
    )  # fmt: skip
    strides = dict(e for a in body.layout.all() for e in a.strides)
    # a block of elements is one access where it is known that a row begins and ends with one
    also = {*(size for _, size in body.layout.sizes), *strides}
    made = nest.kernel(name, inside, ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N"), also, strides=strides)
    tiles = ('cdiv(M, options["BLOCK_SIZE_M"]) * cdiv(N, options["BLOCK_SIZE_N"])',)
    return (replace(made, grid=tiles, named_sizes=body.layout.sizes),)

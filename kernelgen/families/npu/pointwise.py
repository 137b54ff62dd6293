"""Pointwise on a vector processor: blocks of one run of elements, or tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families import pointwise
from kernelgen.families.family import Family, Table, Variant, always
from kernelgen.families.forms import FLAT, TILE
from kernelgen.families.kernel import Body, at_levels, output_values
from kernelgen.families.naming import COLUMN, SCALAR
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.lines import PackedNest, column_elements, every, walked
from kernelgen.families.npu.space import HELPERS, MULTIBUFFER
from kernelgen.families.npu.space import block as block_parameter
from kernelgen.plan import Chip, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import RUN, M, N

NAME = "pointwise"


def variants(body: Body) -> tuple[str, ...]:
    return (FLAT.name,) if body.layout.columns is None else (TILE.name,)


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """The largest blocks that fit: each is one copy in and one out. Short rows are taken several at a time."""
    assert chip is not None, "a family for a chip"
    elements = tile_elements(body, chip, whole_rows=False)
    if variants(body) == (FLAT.name,):
        return (table_row(default("flat").replace(BLOCK_SIZE=elements)),)
    if pointwise.is_turned(body):  # square: it is read along its rows and written along its columns
        side = 1 << (elements.bit_length() // 2)
        return (table_row(default("tile").replace(BLOCK_SIZE_M=max(1, elements // side), BLOCK_SIZE_N=side)),)
    # 256 columns fill the vector unit's widest access; what varies along the columns is read once for many rows
    short, long = min(256, elements), min(2048, elements)
    tile = default("tile")
    return (
        table_row(tile.replace(BLOCK_SIZE_N=short, BLOCK_SIZE_M=max(1, elements // short)), row_bytes=2 * short),
        table_row(tile.replace(BLOCK_SIZE_N=long, BLOCK_SIZE_M=max(1, elements // long))),
    )


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: the first table's schedules."""
    return tuple(row.schedule for row in first_table(body, (), chip))


def _legal_in_tiles(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.int("BLOCK_SIZE_N") > 2 * max(column_elements(columns), 256):
        return f"columns of a tile more than twice the {columns} of a row"
    return None


def fits(body: Body, chip: Chip, schedule: Schedule, columns: int) -> str | None:
    """Why the buffer cannot hold a tile; None if it is planned to."""
    is_run = _VARIANTS[schedule.variant].form.is_run
    size = schedule.int("BLOCK_SIZE") if is_run else schedule.int("BLOCK_SIZE_M") * schedule.int("BLOCK_SIZE_N")
    most = tile_elements(body, chip, whole_rows=False)
    return f"a tile of {size} elements, of which the buffer holds {most}" if size > most else None


def _flat(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    nest = PackedNest(spec, body, FLAT, pointwise.default(FLAT.name))
    once = nest.lets(at_levels(body, (SCALAR,)))
    block = (*grid.numbered(RUN, grid.block(ir.Name("block"), RUN)), *nest.lets(output_values(body), late=False))
    comment = "one program per core, which takes every num_programs-th block"
    walk = every(grid.tiles(RUN), "block", (*block, *nest.stores()), comment)
    text = nest.kernel(name, (*once, walk), ("n_elements",), ("BLOCK_SIZE",))
    return (walked(text, schedule, 'cdiv(n_elements, options["BLOCK_SIZE"])', sizes=("n_elements",)),)


def _tile(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    nest = PackedNest(spec, body, TILE, pointwise.default(TILE.name))
    once = nest.lets(at_levels(body, (COLUMN, SCALAR)))
    text = (*nest.lets(output_values(body), late=False), *nest.stores())
    count, across = ir.Name("num_tiles"), ir.Name("num_tiles_n")
    tiles = ir.Apply("mul", (grid.tiles(M), across), ())
    rows, columns = (ir.Apply(op, (ir.Name("tile"), across), ()) for op in ("int_div", "int_mod"))
    row, col = grid.numbered(M, grid.block(rows, M)), grid.numbered(N, grid.block(columns, N))
    places = nest.places_in((*once, *text))
    tile = (row[0], col[0], row[1], col[1], grid.inside(M, N), *once, *nest.row_indices(), *places, *text)
    comment = "one program per core, which takes every num_programs-th tile"
    inside = (ir.Let((across.text,), grid.tiles(N)), ir.Let((count.text,), tiles), every(count, "tile", tile, comment))
    kernel = nest.kernel(name, inside, ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
    return (walked(kernel, schedule, "", sizes=("M", "N")),)


_VARIANTS = {
    FLAT.name: Variant(
        FLAT, "one program per core, which takes every num_programs-th block of BLOCK_SIZE elements",
        Schedule.make("flat", BLOCK_SIZE=2048, multibuffer=True),
        (block_parameter("BLOCK_SIZE", 256, 65536, "elements of a block"), MULTIBUFFER), always, _flat,
    ),
    TILE.name: Variant(
        TILE,
        "one program per core, which takes every num_programs-th tile of BLOCK_SIZE_M rows by BLOCK_SIZE_N columns",
        Schedule.make("tile", BLOCK_SIZE_M=4, BLOCK_SIZE_N=512, multibuffer=True),
        (
            block_parameter("BLOCK_SIZE_M", 1, 256, "rows of a tile"),
            block_parameter("BLOCK_SIZE_N", 16, 32768, "its columns"),
            MULTIBUFFER,
        ),
        _legal_in_tiles, _tile,
    ),
}  # fmt: skip

FAMILY = Family(
    f"npu_{NAME}", pointwise.takes, tuple(_VARIANTS.values()), variants, first_table, starts,
    packed=True, own_helpers=HELPERS, fits=fits,
)  # fmt: skip

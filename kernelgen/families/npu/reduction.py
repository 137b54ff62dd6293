"""Row reductions on a vector processor: whole rows in the buffer, one or several, or rows walked in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families import forms, reduction
from kernelgen.families.family import Family, Kernels, Table, Variant
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.families.looped import walked_rows
from kernelgen.families.npu import held
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.held import row_elements
from kernelgen.families.npu.lines import PackedNest, column_elements, every, floor_power, walked
from kernelgen.families.npu.space import HELPERS, MULTIBUFFER, block
from kernelgen.plan import Chip, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import LONE_N, M, N, Nest

NAME = "reduction"
KEY_ITEMSIZE = held.VECTOR_BYTES
"""Rows are computed in float32, whatever they are in memory: how long one may be does not depend on its dtype."""
WHOLE = "next_power_of_2(max(N, 1))"
"""The lanes that hold a row, also one of no element."""


def variants(body: Body) -> tuple[str, ...]:
    """Those of a GPU, without the ones that divide a row among programs."""
    return tuple(v for v in reduction.variants(body) if v in _VARIANTS)


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """Several rows a tile, then one whole as long as the buffer holds it, then blocks of a row."""
    assert chip is not None, "a family for a chip"
    most = tile_elements(body, chip, whole_rows=True)
    if body.lowered.space.order:
        across = min(64, floor_power(most // 32))
        return (table_row(default("columns").replace(BLOCK_SIZE_M=across, BLOCK_SIZE_N=max(1, most // across))),)
    rows = []
    if body.layout.rows:
        for length in (64, 256, 1024):
            if length * 2 <= most:
                tile = default("rows").replace(BLOCK_SIZE_M=min(most // length, 64))
                rows.append(table_row(tile, row_bytes=KEY_ITEMSIZE * length))
    walk = default("looped").replace(BLOCK_SIZE_N=most)
    longest = KEY_ITEMSIZE * row_elements(body, chip)
    return (*rows, table_row(default("row"), row_bytes=longest), table_row(walk))


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: every variant at the largest tile that fits."""
    assert chip is not None, "a family for a chip"
    most = tile_elements(body, chip, whole_rows=True)
    if body.lowered.space.order:
        return tuple(row.schedule for row in first_table(body, (), chip))
    length = column_elements(columns)
    found = [default("looped").replace(BLOCK_SIZE_N=most)]
    if length <= row_elements(body, chip):
        found.append(default("row"))
    if body.layout.rows:
        found += [default("rows").replace(BLOCK_SIZE_M=max(2, most // length))] if 2 * length <= most else []
        found.append(default("looped_rows").replace(BLOCK_SIZE_M=4, BLOCK_SIZE_N=max(64, most // 4)))
    return tuple(found)


def _legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule cannot serve rows of `columns` elements; None if it can."""
    walks = FORMS[schedule.variant].walks
    if walks and schedule.int("BLOCK_SIZE_N") >= 2 * max(column_elements(columns), 1024):
        return f"a block of {schedule['BLOCK_SIZE_N']} for rows of {columns}"
    return None


def fits(body: Body, chip: Chip, schedule: Schedule, columns: int) -> str | None:
    """Why the buffer cannot hold a tile; None if it is planned to."""
    length = schedule.get("BLOCK_SIZE_N", column_elements(columns))
    assert isinstance(length, int)
    rows = schedule.get("BLOCK_SIZE_M", 1)
    assert isinstance(rows, int)
    most = (
        row_elements(body, chip) if schedule.variant == forms.ROW.name else tile_elements(body, chip, whole_rows=True)
    )
    return f"a tile of {rows * length} elements, of which the buffer holds {most}" if rows * length > most else None


def _kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel for one schedule's structure. Without rows there is one tile, and the one program that has it."""
    form = FORMS[schedule.variant]
    if form.walks:
        usual = reduction.default(schedule.variant)
        plain = usual.replace(NUM_STAGES=1, keep_row=False, backwards=False, specialize=False, stores="default")
        nest = PackedNest(spec, body, form, plain)
        text = in_blocks(nest, walked_rows(nest), name)
    else:
        text = in_registers(spec, body, schedule, name)
    made = one_program_a_core(text, schedule, body)
    if {o.name for o in body.lowered.outputs} - {t.name for t in spec.outputs}:
        # what the rows leave is reduced even where there are none, and no driver takes a launch of no program
        made = replace(made, grid=(f"max(min({_tiles(form)}, num_cores()), 1)",))
    return (made,)


def in_registers(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    """The kernel of a core that holds whole rows."""
    nest = PackedNest(spec, body, FORMS[schedule.variant], schedule)
    text = reduction.whole_rows(nest)
    said = "one program per core, which takes"
    if nest.form.two_d:
        tile = (*grid.numbered(M, grid.block(ir.Name("tile"), M)), grid.inside(M, N), *text)
        walk = every(grid.tiles(M), "tile", tile, f"{said} BLOCK_SIZE_M whole rows at a time")
        return nest.kernel(name, (*grid.numbered(N, ir.Number(0)), walk), ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
    if body.layout.rows:
        text = (every(ir.Name("M"), "row", text, f"{said} every num_programs-th row whole"),)
    return nest.kernel(name, (*grid.numbered(LONE_N, ir.Number(0)), *text), ("N",), ("BLOCK_SIZE_N",))


def in_blocks(nest: Nest, text: tuple[ir.Stmt, ...], name: str) -> ir.Kernel:
    """The kernel of a core that walks its rows, of which `text` does one, or a tile of them."""
    body = nest.body
    if nest.form.two_d:
        said = "one program per core, which loops over BLOCK_SIZE_M rows at a time in blocks"
        tile = (*grid.numbered(M, grid.block(ir.Name("tile"), M)), *text)
        walk = every(grid.tiles(M), "tile", tile, said)
        return nest.kernel(name, (walk,), ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
    if body.layout.rows:
        said = "one program per core; a row does not fit the core's buffer: loop over it in blocks"
        text = (every(ir.Name("M"), "row", text, said),)
    else:
        does = "reduces the per-row results of the previous kernel" if body.of_rows else "loops over all in blocks"
        text = (ir.Remark((f"one program {does}",), apart=False), *text)
    return nest.kernel(name, text, ("N",), ("BLOCK_SIZE_N",))


def one_program_a_core(text: ir.Kernel, schedule: Schedule, body: Body) -> ir.Kernel:
    """A kernel of rows as one program a core runs it."""
    form = FORMS[schedule.variant]
    if form.whole:
        given = tuple((name, WHOLE if name == "BLOCK_SIZE_N" else host) for name, host in text.constexprs)
        text = replace(text, constexprs=given)
    sizes, tiles = (("M", "N"), _tiles(form)) if body.layout.rows else (("N",), "1")
    return walked(text, schedule, tiles, sizes=sizes)


def _tiles(form: Form) -> str:
    return 'cdiv(M, options["BLOCK_SIZE_M"])' if form.two_d else "M"


FORMS = {**forms.WHOLE_ROWS, **forms.WALKED}
_DEFAULTS = {
    "row": {}, "rows": {"BLOCK_SIZE_M": 4}, "looped": {"BLOCK_SIZE_N": 4096},
    "looped_rows": {"BLOCK_SIZE_M": 4, "BLOCK_SIZE_N": 1024}, "columns": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32},
}  # fmt: skip
_MEANINGS = {
    "row": "one program per core, which takes every num_programs-th row whole",
    "rows": "one program per core, which takes BLOCK_SIZE_M whole rows at a time",
    "looped": "one program per core, which loops over every num_programs-th row in blocks of BLOCK_SIZE_N",
    "looped_rows": "one program per core, which loops over BLOCK_SIZE_M rows at a time in blocks of BLOCK_SIZE_N",
    "columns": "one program per core, which loops over BLOCK_SIZE_M kept elements at a time in blocks of BLOCK_SIZE_N",
}


def variant(form: Form, kernels: Kernels) -> Variant:
    """Rows in tiles that the buffer holds, by a family's kernels."""
    rows = (block("BLOCK_SIZE_M", 1, 256, "rows a tile"),) if form.two_d else ()
    blocks = (block("BLOCK_SIZE_N", 16, 32768, "elements of a block of the row"),) if form.walks else ()
    schedule = Schedule.make(form.name, multibuffer=True, **_DEFAULTS[form.name])
    return Variant(form, _MEANINGS[form.name], schedule, (*rows, *blocks, MULTIBUFFER), _legal, kernels)


_VARIANTS = {name: variant(form, _kernels) for name, form in FORMS.items()}

FAMILY = Family(
    f"npu_{NAME}", reduction.takes, tuple(_VARIANTS.values()), variants, first_table, starts,
    packed=True, key_itemsize=KEY_ITEMSIZE, own_helpers=HELPERS, fits=fits,
)  # fmt: skip

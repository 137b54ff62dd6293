"""Scans: running sums, products, maxima and the like along a dimension, with pointwise steps around them.

Six variants. `row`: one program holds one row in registers. `rows`: one program holds several short rows.
`looped`: a row of any length is walked in blocks, and what a scan has come to is carried from block to block; nothing
is read twice (but rows whose products outgrow float32), so it serves rows that would fit in registers as well.
`split`: few long rows are divided among programs. `cooperative`: long rows are, in one pass, in which a program waits
for what the parts before its own come to. `columns`: of rows that do not lie along memory, lanes take
neighbouring ones and walk them in blocks side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families import cooperative, forms, reduction, scan_look_back, split_schedules
from kernelgen.families.access import output_groups
from kernelgen.families.family import Family, Table, Variant
from kernelgen.families.forms import COLUMNS, COOPERATIVE, SPLIT, WALKED, Form
from kernelgen.families.kernel import LOADS, STORES, Body, body_of, has_products
from kernelgen.families.keys import FEW_ROWS
from kernelgen.families.naming import ROW, SCALAR
from kernelgen.families.scan_split import split_scans
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.families.split_schedules import PROGRAMS, few_long_rows, power_below
from kernelgen.frontend.graph import Graph
from kernelgen.plan import Chip, KernelPlan, Parameter, Scalar, Schedule, TableRow, table_row
from kernelgen.schedule.problem import ROW_BYTES
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import M, Nest
from kernelgen.tile.scans import (
    Running,
    Scaled,
    behind,
    carried,
    growing,
    is_backwards,
    last_element,
    scans_of,
)

NAME = "scan"
FEW_LANES = 8192
"""Rows that lanes lie along of which a program has few."""
MAX_ROW_BYTES = 32768
"""Where the first table switches to blocks: 8 warps hold a row of 16384 elements with 64 a thread. Both neighbours are
searched."""

SUMMED = 2048
"""Most elements of a block of float32 that are added up, in first tables: where rows have odd lengths a thread has
single elements, and the sums of every 32 are added one after the other. Of equal elements that costs up to 16 ulp, in
blocks of 4096 up to 31, and torch's own sum 2. Of half precision none of it shows."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one with scans, and with reductions perhaps."""
    return graph.kind == "scan"


def variants(body: Body) -> tuple[str, ...]:
    if _lies_across(body):
        return ("columns",)
    # what is scanned as a whole has no rows to take several of
    found = ("row", "rows", "looped", "split") if body.layout.rows else ("row", "looped", "split")
    return (*found, COOPERATIVE.name) if scan_look_back.applies(body) else found


def _lies_across(body: Body) -> bool:
    """Whether neighbours in memory are of different rows. Products as pairs are scanned a row a program."""
    return body.lowered.space.ends_kept() and bool(body.layout.rows) and not has_products(body)


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search over rows of `columns` elements sets out: 8, 16 or 32 elements a thread of rows in registers, and
    blocks of the row with the next one loaded ahead."""
    if _lies_across(body):
        one = default("columns").replace(BLOCK_SIZE_M=32, NUM_STAGES=1, num_warps=4)
        return default("columns"), one, one.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=16)
    block = max(1 << max(columns - 1, 0).bit_length(), 32)
    found: list[Schedule] = []
    if block <= reduction.MAX_ROW:
        spread = (min(32, max(1, block // (32 * each))) for each in (8, 16, 32))
        found += [default("row").replace(num_warps=warps) for warps in dict.fromkeys(spread)]
        found += [default("rows")] if body.layout.rows else []
    looped = default("looped").replace(BLOCK_SIZE_N=min(4096, max(block, 1024)))
    few = few_long_rows([(rows, columns)])
    divided = [_divided(body, *few)] if few else []
    divided += scan_look_back.starts(columns) if scan_look_back.applies(body) else ()
    return (*found, looped, looped.replace(NUM_STAGES=1), looped.replace(specialize=True), *divided)


def _divided(body: Body, rows: int, columns: int) -> Schedule:
    """The schedule that gives about PROGRAMS programs, each with at least one whole block."""
    schedule = default("split").replace(**({"BLOCK_SIZE_N": 2048, "num_warps": 4} if has_products(body) else {}))
    splits = min(power_below(PROGRAMS // rows), power_below(columns // schedule.int("BLOCK_SIZE_N")))
    return schedule.replace(SPLITS=max(2, splits))


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """Warps in proportion to the row, so that a thread has 8 to 32 elements, then blocks that are loaded ahead; rows so
    few that most of a device would idle are divided."""
    if _lies_across(body):
        # H200, a sequence of 512 by 2048: 11.7 us by 8 rows, 15.3 by 32
        few = default("columns").replace(BLOCK_SIZE_M=8, NUM_STAGES=1, num_warps=4)
        return (table_row(few, rows=FEW_LANES), table_row(default("columns")))
    row, looped = default("row"), default("looped")
    if has_products(body):  # two numbers an element: half as many elements a thread
        blocks = looped.replace(BLOCK_SIZE_N=1024, num_warps=2)
        return (
            table_row(row.replace(num_warps=2), row_bytes=2048),
            table_row(row.replace(num_warps=4), row_bytes=8192),
            table_row(row.replace(num_warps=8), rows=FEW_ROWS, row_bytes=MAX_ROW_BYTES),
            *_long_rows(body, shapes, 8192, blocks),
        )
    return (
        table_row(row.replace(num_warps=8), rows=FEW_ROWS, row_bytes=2048),
        table_row(row.replace(num_warps=1), row_bytes=2048),
        table_row(row, row_bytes=8192),
        table_row(row.replace(num_warps=8), row_bytes=MAX_ROW_BYTES),
        *_long_rows(body, shapes, MAX_ROW_BYTES, looped),
    )


def _long_rows(body: Body, shapes: Sequence[tuple[int, int]], shorter: int, blocks: Schedule) -> list[TableRow]:
    """Blocks of rows with more than `shorter` bytes, or rows divided among programs; both where the cases with few rows
    are the longer ones."""
    long = [shape for shape in shapes if few_long_rows([shape])]
    few = few_long_rows(long)
    # in bytes of the widest dtype, so that a row of float32 with no more elements is not divided either
    others = 4 * max((shape[1] for shape in shapes if shape not in long), default=0)
    if few is None or others >= 2 * few[1]:
        single = [table_row(_divided(body, 16, 2**17), rows=16)] if body.layout.rows else []
        return [*single, table_row(blocks)]
    walked = [table_row(blocks, row_bytes=others)] if others > shorter else []
    return [*walked, table_row(_divided(body, *few))]


def of_spec(plan: KernelPlan, table: Table) -> Table:
    """The first table; of what may be stored as float32 shorter rows and blocks where it is a sum."""
    body, dtypes = body_of(plan), dict(plan.spec.dtypes)
    stored = {dtype for output in plan.spec.outputs for dtype in dtypes.get(output.dtype, (output.dtype,))}
    sums = any(v.op == "cumsum" and v.dtype == "float" for v in body.lowered.values)
    if "float32" not in stored or _lies_across(body) or not sums:
        return table
    smaller = {"BLOCK_SIZE_N": SUMMED, "num_warps": 4}
    short = tuple(row for row in table if (row.limit(ROW_BYTES) or 5 * SUMMED) <= 4 * SUMMED)
    blocks = default("looped").replace(**smaller)
    if table[-1].schedule.variant != SPLIT.name:
        few = [row for row in table if row.schedule.variant == SPLIT.name]
        divided = [replace(row, schedule=row.schedule.replace(**smaller)) for row in few]
        return (*short, *(table_row(blocks, row_bytes=MAX_ROW_BYTES) for _ in few), *divided, table_row(blocks))
    between = () if table[-2] in short else (replace(table[-2], schedule=blocks),)
    return (*short, *between, table_row(table[-1].schedule.replace(**smaller)))


def _space_of_blocks(form: Form) -> tuple[Parameter, ...]:
    lengths = (8, 16, 32, 64, 128) if form.two_d else (1024, 2048, 4096, 8192, 16384)
    several = Parameter("BLOCK_SIZE_M", (8, 16, 32, 64, 128, 256), "block_size", "constexpr", "rows per program")
    return (
        *((several,) if form.two_d else ()),
        Parameter("BLOCK_SIZE_N", lengths, "block_size", "constexpr", "elements of a block of the row"),
        reduction.WARPS,
        Parameter("NUM_STAGES", (1, 2, 3), "warp_stage", "structure", "blocks loaded ahead"),
        SPECIALIZE,
        LOADS, STORES,
    )  # fmt: skip


def in_blocks(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of a program that walks rows in blocks."""
    nest = Nest(spec, body, WALKED[schedule.variant], schedule)
    text = walked_rows(nest)
    constexprs = ("BLOCK_SIZE_N", *(("NUM_STAGES",) if schedule.int("NUM_STAGES") > 1 else ()))
    if nest.form.two_d:
        said = "lanes run along the other dimensions; a program loops over the scanned one in blocks"
        frame = grid.several_rows(M, said, "int64: offsets may pass 2**31")
        return (nest.kernel(name, (*frame, *text), ("M", "N"), ("BLOCK_SIZE_M", *constexprs)),)
    what, it = ("the row does", "it") if body.layout.rows else ("the elements do", "them")
    said = f"{what} not fit in registers: loop over {it} in blocks"
    return (nest.kernel(name, (ir.Remark((said,), apart=False), *grid.lone_row(), *text), ("N",), constexprs),)


def walked_rows(nest: Nest) -> tuple[ir.Stmt, ...]:
    """What is done with rows that are walked in blocks."""
    body = nest.body
    kept = carried(nest, scans_of(body))
    plain = growing(kept)
    still = [i for i, level in enumerate(body.names.levels) if level in (ROW, SCALAR) and nest.builder.is_assigned(i)]
    once = (*nest.row_indices(), *nest.lets(still))
    known = dict(nest.builder.known)
    others = [c for c in kept if not (plain and isinstance(c, Scaled))]
    comment, walked = _walk(nest, [*plain, *others])
    first = (*once, ir.Remark(comment), last_element(nest), *walked)
    if not plain:
        return first
    nest.builder.known = known
    comment, walked = _walk(nest, kept)
    why = "some products may overflow float32: scan again as mantissas and exponents"
    again = (ir.Remark((why, *comment)), ir.Barrier("other threads' stores of the first scan come first"), *walked)
    outgrown = [c.outgrown() for c in plain]
    condition = outgrown[0]
    for other in outgrown[1:]:
        condition = ir.Apply("or", (condition, other), ())
    return (*first, ir.Remark(()), ir.If(condition, again))


def _walk(nest: Nest, kept: Sequence[Running]) -> tuple[tuple[str, ...], tuple[ir.Stmt, ...]]:
    """A walk over the row, and what is said above it."""
    body, backwards = nest.body, is_backwards(nest.body)
    behind(nest, kept)
    full = [o for o in body.lowered.outputs if output_groups(o, body.layout.columns)]
    rest = [o for o in body.lowered.outputs if o not in full]
    inside = (
        *nest.column_indices(), *nest.lets([*(o.value for o in full), *(c.scan for c in kept)], late=False),
        *nest.stores(full), *(statement for c in kept for statement in c.end()),
    )  # fmt: skip
    comment = ("from the end of the row to its beginning",) if backwards else ()
    loop = grid.walk(
        nest.tile.shape, inside, (ir.Number(0), ir.Name("N")), backwards=backwards, is_turned=nest.builder.is_turned,
        stages="NUM_STAGES" if nest.schedule.int("NUM_STAGES") > 1 else "",
    )  # fmt: skip
    begun = (let for c in kept for let in c.begin())
    return (*comment, *(line for c in kept for line in c.said())), (*begun, loop, *nest.stores(rest))


def _variants() -> tuple[Variant, ...]:
    usual = {"loads": "default", "stores": "default"}
    ahead: dict[str, Scalar] = {"NUM_STAGES": 3, "specialize": False, **usual}
    said = reduction.MEANINGS
    return (
        Variant(
            forms.ROW, said["row"], Schedule.make("row", num_warps=4, **usual), (reduction.WARPS, LOADS, STORES),
            reduction.legal_in_registers, reduction.in_registers,
        ),
        Variant(
            forms.ROWS, said["rows"], Schedule.make("rows", BLOCK_SIZE_M=4, num_warps=4, **usual),
            (reduction.SEVERAL, reduction.WARPS, LOADS, STORES), reduction.legal_in_registers, reduction.in_registers,
        ),
        Variant(
            forms.LOOPED, said["looped"], Schedule.make("looped", BLOCK_SIZE_N=4096, num_warps=8, **ahead),
            _space_of_blocks(forms.LOOPED), reduction.legal_in_blocks, in_blocks,
        ),
        Variant(
            COLUMNS, said["columns"],
            # H200, 2048 elements of 32,768 rows in float16: 86 us, in blocks of 32 without one ahead 178
            Schedule.make("columns", BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, num_warps=2, **(ahead | {"NUM_STAGES": 3})),
            _space_of_blocks(COLUMNS), reduction.legal_in_blocks, in_blocks,
        ),
        replace(
            split_schedules.variant(SPLIT, said["split"], split_scans),
            default=Schedule.make("split", BLOCK_SIZE_N=4096, SPLITS=32, num_warps=8, **ahead),
        ),
        Variant(
            COOPERATIVE, said["cooperative"], scan_look_back.default(), cooperative.SPACE, cooperative.legal,
            scan_look_back.kernel,
        ),
    )  # fmt: skip


_VARIANTS = {variant.name: variant for variant in _variants()}

FAMILY = Family(NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts, of_spec=of_spec)

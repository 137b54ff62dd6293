"""Row reductions: chains of reductions over the last dimensions and pointwise steps between them.

Nine variants. `row`: one program holds one row in registers. `rows`: one program holds several short rows.
`looped`: a row of any length is walked in blocks. `looped_rows`: several rows are, and are read again, not kept.
`columns`: the same where other dimensions than the last are reduced, or windows that lie side by side, so that the
lanes of a program lie along the rows.
`split`, `split_columns`: the same two ways with every row divided among programs, in a sequence of kernels.
`partials`: what has no rows is reduced a block a program, and what these leave by one more.
`cooperative`: the programs of a row wait for one another and keep its elements meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernelgen.families import cooperative, forms, partials, split_schedules
from kernelgen.families.family import Family, Table, Variant
from kernelgen.families.forms import (
    COLUMNS,
    COOPERATIVE,
    LOOPED,
    LOOPED_ROWS,
    PARTIALS,
    SPLIT,
    SPLIT_COLUMNS,
    WHOLE_ROWS,
    Form,
)
from kernelgen.families.kernel import LOADS, STORES, Body, at_levels, body_of, elements, output_values
from kernelgen.families.keys import FEW_ROWS
from kernelgen.families.looped import looped
from kernelgen.families.moments import carried_moments
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.padding import ancestors
from kernelgen.families.pairs import RowPairNest, paired_loads
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.families.split import rows_between, split_kernels
from kernelgen.families.split_schedules import can_split, few_lanes, few_long_rows, fitted
from kernelgen.families.values import axes_of
from kernelgen.frontend.graph import REDUCTIONS, Graph
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.plan import Chip, KernelPlan, Parameter, Scalar, Schedule, TableRow, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import LONE_N, M, N, Nest
from kernelgen.tile.walk import trimmed, used_names

NAME = "reduction"
MAX_ROW = 32768
"""Longest row held in registers: softmax of 32768 with 32 warps compiles for sm_90 without a spill, 65536 never."""
OF_ROWS = Schedule.make(
    "looped", BLOCK_SIZE_N=4096, num_warps=32, NUM_STAGES=1, backwards=False, keep_row=False, specialize=False,
    loads="default", stores="default",
)  # fmt: skip
"""One program that reduces what every row left: some thousand numbers, for which more programs would not pay. It is
as large as one may be (H200, cross entropy of 4096 rows: 81.7 us, with 8 warps 83.0)."""
SHORT_ROW_BYTES = 512
"""Where the first table switches from several rows a program to one: a block of 128 numbers is no program's work."""
FEW_SHORT_ROWS = 512
"""Of which 16 a program leave processors idle (H200: 448 rows of 128 in bfloat16 quantised to float8 with what comes
before 2.0 us by 4 rows, 2.8 by 16; from 1024 rows on 4 are slower)."""
TINY_ROWS, FEW_TINY_ROWS = 64, 8192
"""Rows of at most 32 elements in a program, and so many that leave processors idle if a program has them (H200: 3.7
million rows of 32 in bfloat16 by 64 88 us, by 16 153; half a million of 16, updated and summed, 46 and 56; but 28672
rows of 32 quantised by 32 4.2 us, by 64 4.7). Of so many rows of 128 elements, more warps share 16 of them: 4096 of
queries normed and turned 2.7 us by eight warps, 2.9 by four; 3584 quantised 2.7 and 3.2."""
MAX_ROW_BYTES = 32768
"""Where the first table switches to blocks; both neighbours are then searched."""
WIDEST_WINDOW = 32
"""Neighbouring elements of a window that fill no more than a line of memory."""
WINDOWS = Schedule.make(
    "columns", BLOCK_SIZE_M=128, BLOCK_SIZE_N=16, num_warps=4, NUM_STAGES=1, backwards=False, keep_row=True,
    specialize=True, loads="default", stores="default",
)  # fmt: skip
"""Windows side by side (H200, KernelBench's average of 11 by 11, a quarter of its planes: 1.02 ms, in tiles of 16
windows, each in registers, 1.46; eager 1.06)."""
FEW = (16, 2**16)
"""Rows and their elements that few long rows are divided for where none are timed: 64 programs each (H200, log-sum-exp
of 8 rows of 128256: 5.3 us, a program each 58)."""
FEW_LANES = Schedule.make(
    "columns", BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, num_warps=8, NUM_STAGES=1, backwards=False, keep_row=True,
    specialize=False, loads="default", stores="default",
)  # fmt: skip
"""Some thousand short rows that lanes lie along: twice the programs (H200, 128 by 8192 summed over the first dimension:
3.1 us, in tiles of 32 by 64 3.2; 64 by 4096 2.4, 2.5 and in tiles of 64 by 64 3.1)."""
SHORTEST = 32
SHORT_LANES = FEW_LANES.replace(BLOCK_SIZE_N=8, num_warps=1)
"""Rows of no more elements, which a tile of 64 columns would leave half empty (H200, embeddings of 32 tokens summed for
each of a million rows: 67 us, in tiles of 64 by 64 384, of 64 by 8 and one warp 70)."""
VAST_ROW_BYTES = 2**29
"""Where a divided row gets no more programs than run at once, or smaller blocks: such tensors are most likely float32
(H200, hinge loss of 4 GiB: 256 programs 1.02 ms, 512 1.24; kl_div, blocks of 2048 0.66 ms, of 4096 0.90)."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one with reductions, but neither scans nor what selects or scatters."""
    return graph.kind == "reduction"


def variants(body: Body) -> tuple[str, ...]:
    if body.lowered.space.ends_kept():
        return (COLUMNS.name, SPLIT_COLUMNS.name) if can_split(body, SPLIT_COLUMNS) else (COLUMNS.name,)
    if _are_windows(body):
        return ("columns", "row", "rows", "looped", "looped_rows")
    # what is reduced as a whole has no rows to take several of
    whole = ("row", "rows", "looped", "looped_rows") if body.layout.rows else ("row", "looped")
    whole = (*whole, PARTIALS.name) if partials.applies(body) else whole
    whole = (*whole, COOPERATIVE.name) if cooperative.applies(body) else whole
    return (*whole, SPLIT.name) if can_split(body, SPLIT) else whole


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search over `rows` rows of `columns` elements sets out: every variant at the footprints that won on an
    H200, and rows divided among programs where there are few.

    A thread works best with 8, 16 or 64 elements of a row that it reads again, the smaller ones where the row length
    is compiled in. Rows too long for that start from the default.
    """
    if body.lowered.space.ends_kept():
        few = few_lanes([(rows, columns)]) if SPLIT_COLUMNS.name in variants(body) else None
        return (_columns(body, columns), *([fitted(SPLIT_COLUMNS, *few)] if few else []))
    if _are_windows(body):
        return (WINDOWS, *_whole_rows(body, columns))
    few = few_long_rows([(rows, columns)]) if SPLIT.name in variants(body) else None
    several = [_whole(body)] if partials.applies(body) else []
    several += cooperative.starts(columns) if cooperative.applies(body) else ()
    return (*_whole_rows(body, columns), *several, *([_divided(body, few)] if few else []))


def _divided(body: Body, few: tuple[int, int]) -> Schedule:
    """Rows divided among programs. What holds several dimensions is taken apart by constants (H200, batch_norm of 64
    channels in float32: 3.25 ms, by sizes that are not compiled in 3.46)."""
    found = fitted(SPLIT, *few, reads=_reads(body)).replace(specialize=len(body.layout.parts) > 1)
    found = found.replace(NUM_STAGES=1) if _looks_up(body) else found
    return found.replace(loads="evict_first") if _walks_once(body) else found.replace(stores="streaming")


def _whole(body: Body) -> Schedule:
    """What is reduced as a whole, a block a program."""
    axes = len(body.lowered.space.axes)
    whole = sum(len(body.lowered.values[a.load].axes) == axes for a in body.layout.accesses)
    return partials.default(whole, _reads(body) - whole)


def _reads(body: Body) -> int:
    """How many tensors are walked."""
    return sum(_along_row(body, a.load) for a in body.layout.accesses)


def _looks_up(body: Body) -> bool:
    """Whether what is reduced takes values that planes of a row have in common, which every element looks up at a place
    of its own: loaded ahead they would pass through shared memory, each in a copy of 4 bytes (the mean of what a
    group_norm comes to, compiled for sm_90: 32 of 34 copies, for 8 elements a thread)."""
    values, parts = body.lowered.values, body.layout.parts
    walked = {j for i, v in enumerate(values) if v.op in REDUCTIONS for j in ancestors(body.lowered, i)}
    loads = (a.load for a in body.layout.accesses if a.load in walked and _along_row(body, a.load))
    return bool(parts) and any(values[load].axes.isdisjoint(parts[-1].axes) for load in loads)


def _along_row(body: Body, value: int) -> bool:
    return not body.lowered.values[value].axes.isdisjoint(body.lowered.space.inner_axes())


def _walks_once(body: Body) -> bool:
    """Whether no element of a row is needed again once all have been reduced."""
    return not any(_along_row(body, o.value) for o in body.lowered.outputs)


def _blocks(body: Body) -> Schedule:
    """The first schedule of a row in blocks. What is read once is best read in small ones, for as many lanes as the
    arithmetic leaves room for, and the first to leave the caches; what holds several dimensions, in large ones."""
    looped = default("looped")
    if _walks_once(body):
        # a mean and what elements differ from it are two reductions of each block, not one of all
        block = 8192 if carried_moments(body.lowered) else 2048
        return looped.replace(
            BLOCK_SIZE_N=block, num_warps=4 if _is_long(body) else 16, specialize=True, backwards=False, keep_row=False,
            loads="evict_first", stores="default",
        )  # fmt: skip
    if len(body.layout.parts) > 1:
        return looped.replace(num_warps=16, specialize=True, backwards=False, stores="default")
    return looped


def _is_long(body: Body) -> bool:
    """Whether an element takes more than a few instructions."""
    return any(OPERATIONS[v.op].is_long for v in body.lowered.values)


def _are_windows(body: Body) -> bool:
    """Whether rows are windows, a few elements wide, that lie side by side: lanes along the elements of one would read
    a few of every line each time, lanes along the windows read all of them."""
    values, space = body.lowered.values, body.lowered.space
    inner = set(space.inner_axes())
    last = [values[access.load].index[-1] for access in body.layout.accesses if values[access.load].index]
    mixed = [e for e in last if isinstance(e, Expr) and inner & set(axes_of(e)) and set(axes_of(e)) - inner]
    # what is loaded in pairs is read whole by lanes along the elements
    return any(_width(entry, body) <= WIDEST_WINDOW for entry in mixed) and not paired_loads(body)


def _width(entry: Expr, body: Body) -> int:
    """How many neighbouring places one row reads, at most."""
    space = body.lowered.space
    if entry.op == "axis":
        size = space.axes[entry.number]
        return 1 if entry.number < space.outer else size if isinstance(size, int) else MAX_ROW
    if entry.op == "%" and entry.args[1].op == "number":
        return min(_width(entry.args[0], body), entry.args[1].number)
    return max((_width(arg, body) for arg in entry.args), default=1)


def _columns(body: Body, columns: int) -> Schedule:
    """The first schedule of rows that lanes lie along, with 16 elements a thread: many lanes wait for memory at once
    (H200, 4096 elements summed for each of 524,160 rows: 2.01 ms, in tiles of 64 by 32 2.31), and a larger part of
    rows that are read again stays in the L1."""
    if columns <= SHORTEST:
        return SHORT_LANES
    if columns <= 64:  # 64 channels of 29 million pixels: 3.58 ms, with 16 warps 5.15
        return default("columns").replace(BLOCK_SIZE_N=64, num_warps=8)
    wide = default("columns").replace(BLOCK_SIZE_N=128, num_warps=16, specialize=True)
    if columns > 128:
        return wide
    # least of 128 channels of a million pixels: 134 us, in tiles of 64 by 128 with 16 warps 326; softmax of as many of
    # two million 773 and 1148
    if _walks_once(body):
        return wide.replace(BLOCK_SIZE_N=32, num_warps=4)
    return wide.replace(BLOCK_SIZE_M=32, num_warps=8)


def _whole_rows(body: Body, columns: int) -> tuple[Schedule, ...]:
    """Every variant in which one program has whole rows."""
    found = [default("row"), *([default("rows")] if body.layout.rows else [])]
    block = max(1 << max(columns - 1, 0).bit_length(), 1024)
    if block >= default("looped").int("BLOCK_SIZE_N"):
        shared = [default("looped_rows")] if LOOPED_ROWS.name in variants(body) else []
        return (*found, *dict.fromkeys([_blocks(body), default("looped"), *shared]))
    short = default("looped").replace(BLOCK_SIZE_N=block, backwards=False, stores="default")
    if not body.layout.rows:
        return (*found, _spread(short, 8), _spread(short, 64))
    half, several = max(block // 2, 1024), default("looped_rows").replace(BLOCK_SIZE_N=block)
    single = several.replace(BLOCK_SIZE_M=1)
    return (
        *found,
        _spread(single.replace(BLOCK_SIZE_N=half), 8),
        _spread(several, 64),
        _spread(single.replace(specialize=True), 16),
        _spread(several.replace(specialize=True), 16),
        _spread(single.replace(BLOCK_SIZE_N=half, specialize=True), 8),
        _spread(short, 64),
        _spread(short.replace(specialize=True), 8),
        _spread(short.replace(BLOCK_SIZE_N=half, specialize=True), 16),
    )


def _spread(schedule: Schedule, elements: int) -> Schedule:
    """The schedule with as many warps as leave so many elements to a thread."""
    block = schedule.int("BLOCK_SIZE_N") * int(schedule.get("BLOCK_SIZE_M", 1) or 1)
    return schedule.replace(num_warps=min(16, max(1, block // (32 * elements))))


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """Warps in proportion to the row, then blocks: what a kernel engineer would write before measuring.

    `shapes`: rows and columns of the cases that are timed. Rows so few that most of a device would idle are divided.
    """
    if body.lowered.space.ends_kept():
        few = few_lanes(shapes) if SPLIT_COLUMNS.name in variants(body) else None
        longest = max((columns for _, columns in shapes), default=2**10)
        many = fitted(SPLIT_COLUMNS, *few) if few else _columns(body, longest)
        limit = FEW_LANES.int("BLOCK_SIZE_M") * 256
        if longest <= SHORTEST:
            return (table_row(many.replace(num_warps=4), rows=limit), table_row(many))
        if many.variant == COLUMNS.name and 64 < longest <= 128:
            # at once (H200, 256 rows of 128, updated and summed: 3.0 us, in two blocks 3.9; 8192 only summed by four
            # warps 2.8 us, by eight 3.1)
            warps = 4 if _is_light(body) else 8
            at_once = FEW_LANES.replace(BLOCK_SIZE_N=128, specialize=True, num_warps=warps)
            return (*((table_row(at_once, rows=limit),) if at_once != many else ()), table_row(many))
        # twice the programs (H200, rows of 256 channels normed at 3136 places: 3.5 us, in tiles of 64 rows 4.4)
        wide = many.variant == COLUMNS.name and many.int("BLOCK_SIZE_M") * many.int("BLOCK_SIZE_N") > 4096
        fewer = (table_row(many.replace(BLOCK_SIZE_M=32, num_warps=8), rows=limit),) if wide else ()
        return (table_row(FEW_LANES, rows=limit, row_bytes=256), *fewer, table_row(many))
    if _are_windows(body):
        return (table_row(WINDOWS),)
    once = _walks_once(body)
    row = default("row").replace(loads="evict_first" if once else "default")
    more = 2 if _is_light(body) else 1
    # one row alone waits for its own program (H200, a loss of 4096 pairs: 3.7 us by 16 warps, 5.3 by 8)
    alone = 1 if body.layout.rows else 2
    short = _short_rows([(rows, columns * _times_read(body)) for rows, columns in shapes]) if body.layout.rows else ()
    wider = table_row(row.replace(num_warps=8), rows=FEW_ROWS, row_bytes=8192)
    return (
        *short,
        *((wider,) if body.layout.rows and not once else ()),
        table_row(row.replace(num_warps=2 * more), row_bytes=4096),
        table_row(row.replace(num_warps=4 * more), row_bytes=8192),
        table_row(row.replace(num_warps=8 * more * alone), row_bytes=16384),
        table_row(row.replace(num_warps=16 * alone), row_bytes=MAX_ROW_BYTES),
        *_long_rows(body, shapes),
    )


def _times_read(body: Body) -> int:
    """How many elements of a tensor a column is of: two where halves of rows are read together."""
    full = [a.tensor for a in body.layout.accesses if body.names.levels[a.load] == FULL]
    return max(Counter(full).values(), default=1)


def _short_rows(shapes: Sequence[tuple[int, int]]) -> Table:
    """Several rows a program: 16, of few fewer, of many that are shorter than a warp has lanes more."""
    several = default("rows").replace(BLOCK_SIZE_M=16)
    few = table_row(several.replace(BLOCK_SIZE_M=4), rows=FEW_SHORT_ROWS, row_bytes=SHORT_ROW_BYTES)
    usual = table_row(several, row_bytes=SHORT_ROW_BYTES)
    lengths = {columns for _, columns in shapes} or {1}
    if min(lengths) > 64 and max(lengths) <= 256:  # blocks and heads: eight elements a thread
        shared = several.replace(num_warps=8)
        return few, table_row(shared, rows=FEW_TINY_ROWS, row_bytes=SHORT_ROW_BYTES), usual
    if not shapes or max(lengths) > 32:
        return few, usual
    many = several.replace(BLOCK_SIZE_M=TINY_ROWS)
    return (
        few, table_row(several, rows=FEW_TINY_ROWS, row_bytes=SHORT_ROW_BYTES),
        table_row(several.replace(BLOCK_SIZE_M=TINY_ROWS // 2), rows=4 * FEW_TINY_ROWS, row_bytes=128),
        table_row(many, row_bytes=128), usual,
    )  # fmt: skip


def _long_rows(body: Body, shapes: Sequence[tuple[int, int]]) -> list[TableRow]:
    """Blocks of the row, or rows divided among programs; both where the cases with few rows are the longer ones."""
    if not body.layout.rows:  # what is reduced as a whole is one row, long or not
        shapes = [(1, max(columns, 1 << 20)) for _, columns in shapes] or [(1, 1 << 20)]
    longest = max((columns for _, columns in shapes), default=0)
    # the places of elements that lie apart in memory, as those of a channel in a batch do, cost more registers than
    # programs that wait may have (batch_norm of 126 by 126 in float32, compiled for sm_90: 1864 bytes of spills)
    if cooperative.applies(body) and not rows_between(body) and (held := cooperative.fitted(longest)):
        limit = cooperative.most_row_bytes(held, longest)
        return [table_row(held, row_bytes=limit), *_walked_rows(body, shapes, longest)]
    return _walked_rows(body, shapes, longest)


def _walked_rows(body: Body, shapes: Sequence[tuple[int, int]], longest: int) -> list[TableRow]:
    """The same, of rows that are read again for every walk."""
    long = [shape for shape in shapes if few_long_rows([shape])]
    few = few_long_rows(long) if SPLIT.name in variants(body) else None
    # in bytes of the widest dtype, so that a row of float32 with no more elements is not divided either
    others = 4 * max((shape[1] for shape in shapes if shape not in long), default=0)
    if few is None or others >= 2 * few[1] or _is_read_fast(body, few[0], longest):
        single = [table_row(_divided(body, FEW), rows=16 if _is_light(body) else 32)]
        return [*(single if SPLIT.name in variants(body) and body.layout.rows else []), table_row(_blocks(body))]
    walked = [table_row(_blocks(body), row_bytes=others)] if others > MAX_ROW_BYTES else []
    if partials.applies(body):
        divided = _whole(body)
        walked = [*walked, *partials.small(divided)]
    else:
        divided = _divided(body, few)
    if few[0] > 1 or not any(4 * columns > VAST_ROW_BYTES for _, columns in shapes):
        return [*walked, table_row(divided)]
    vast = _divided(body, few)
    if _is_long(body):
        vast = vast.replace(BLOCK_SIZE_N=2048, num_warps=8)
    else:  # at once, with blocks of float32 loaded ahead
        vast = vast.replace(SPLITS=split_schedules.PROGRAMS // 2)
    return [*walked, table_row(divided, row_bytes=VAST_ROW_BYTES), table_row(vast)]


def _is_read_fast(body: Body, rows: int, columns: int) -> bool:
    """Whether a program a row is done before two kernels have started (H200, 64 rows of 65536 elements summed: 4.7 us,
    divided among 16 programs each 5.9; argmax of 32 rows of 32768: 4.0 and 5.2)."""
    return rows >= 32 and columns <= 2**16 and _is_light(body)


def _is_light(body: Body) -> bool:
    """Whether elements are read once and cost little more than that."""
    return _walks_once(body) and not _is_long(body)


def _space_of_blocks(form: Form) -> tuple[Parameter, ...]:
    across = form is COLUMNS
    counts = (16, 32, 64, 128, 256) if across else (1, 2, 4, 8)
    lengths = (8, 16, 32, 64, 128, 256) if across else (1024, 2048, 4096, 8192, 16384, 32768)
    several = Parameter("BLOCK_SIZE_M", counts, "block_size", "constexpr", "rows per program")
    return (
        *((several,) if form.two_d else ()),
        Parameter("BLOCK_SIZE_N", lengths, "block_size", "constexpr", "elements of a block of the row"),
        WARPS,
        Parameter("NUM_STAGES", (1, 2, 3), "warp_stage", "structure", "blocks loaded ahead"),
        Parameter(
            "keep_row", (False, True), "memory_access", "structure", "ask the caches to hold the row between the walks"
        ),
        LOADS, STORES, SPECIALIZE,
        Parameter(
            "backwards", (False, True), "data_reuse", "structure",
            "walk back over the row, which starts with what was read last",
        ),
    )  # fmt: skip


WARPS = Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warp_stage", "launch", "warps per program")
SEVERAL = Parameter("BLOCK_SIZE_M", (2, 4, 8, 16, 32, 64, 128), "block_size", "constexpr", "rows per program")
_LATE = Parameter(
    "late_loads", (False, True), "data_reuse", "structure", "load weights after the reductions, which frees registers"
)


def legal_in_blocks(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why blocks of a row make no sense for rows of `columns` elements; None if they do."""
    block = schedule.int("BLOCK_SIZE_N")
    if block >= 2 * max(columns, 32 if schedule.variant == COLUMNS.name else 1024):
        return f"a block of {block} for rows of {columns}"
    return _spread_well(schedule, block)


def legal_in_registers(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a program cannot hold rows of `columns` elements; None if it can."""
    block = 1 << max(columns - 1, 0).bit_length()
    if block > MAX_ROW:
        return f"rows of {columns} do not fit in registers (at most {MAX_ROW})"
    return _spread_well(schedule, block)


def _spread_well(schedule: Schedule, block: int) -> str | None:
    each = block * int(schedule.get("BLOCK_SIZE_M", 1) or 1) / (32 * schedule.int("num_warps"))
    if each > 128 or (each < 1 and schedule.int("num_warps") > 1):
        return f"{each:g} elements per thread (1 to 128 are allowed)"
    return None


def in_blocks(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    return (looped(spec, body, schedule, name),)


def in_registers(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of a program that holds whole rows."""
    nest = RowPairNest(spec, body, WHOLE_ROWS[schedule.variant], schedule)
    text = whole_rows(nest, nest.pair_numbers())
    if nest.form.two_d:
        return (nest.kernel(name, (*grid.rows(M, N), *text), ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N")),)
    frame = grid.row(LONE_N, has_row="row" in used_names(trimmed(text)), is_turned=nest.builder.is_turned)
    return (nest.kernel(name, (*frame, *text), ("N",), ("BLOCK_SIZE_N",)),)


def whole_rows(nest: Nest, numbers: tuple[ir.Let, ...] = ()) -> tuple[ir.Stmt, ...]:
    """What is done with rows that are in registers. `numbers`: what else is counted before."""
    levels = (FULL, ROW, SCALAR) if nest.schedule.get("late_loads") else (FULL, ROW, SCALAR, COLUMN)
    text = (*nest.lets(at_levels(nest.body, levels)), *nest.lets(output_values(nest.body)), *nest.stores())
    return (*nest.row_indices(), *nest.column_indices(), *numbers, *text)


def _variants() -> tuple[Variant, ...]:
    usual = {"loads": "default", "stores": "default"}
    walked: dict[str, Scalar] = {"NUM_STAGES": 1, "keep_row": True, "specialize": False}
    return (
        Variant(
            forms.ROW, "one row per program, held in registers",
            Schedule.make("row", num_warps=4, late_loads=False, **usual),
            (WARPS, LOADS, STORES, _LATE), legal_in_registers, in_registers,
        ),
        Variant(
            forms.ROWS, "BLOCK_SIZE_M short rows per program, held in registers",
            Schedule.make("rows", BLOCK_SIZE_M=4, num_warps=4, late_loads=False, **usual),
            (SEVERAL, WARPS, LOADS, STORES, _LATE), legal_in_registers, in_registers,
        ),
        Variant(
            LOOPED, "one row per program, in a loop over blocks of BLOCK_SIZE_N",
            # 64 elements a thread keep enough bytes in flight with one or two programs an SM, whose rows L2 can hold
            Schedule.make(
                "looped", BLOCK_SIZE_N=16384, num_warps=8, backwards=True, loads="default", stores="streaming", **walked
            ),
            _space_of_blocks(LOOPED), legal_in_blocks, in_blocks,
        ),
        Variant(
            LOOPED_ROWS, "BLOCK_SIZE_M rows per program, in a loop over blocks of BLOCK_SIZE_N",
            Schedule.make(
                "looped_rows", BLOCK_SIZE_M=2, BLOCK_SIZE_N=4096, num_warps=8, backwards=False, **walked, **usual
            ),
            _space_of_blocks(LOOPED_ROWS), legal_in_blocks, in_blocks,
        ),
        Variant(
            COLUMNS, "BLOCK_SIZE_M kept elements per program, in a loop over blocks of BLOCK_SIZE_N reduced elements",
            Schedule.make(
                "columns", BLOCK_SIZE_M=64, BLOCK_SIZE_N=32, num_warps=4, backwards=False, **walked, **usual
            ),
            _space_of_blocks(COLUMNS), legal_in_blocks, in_blocks,
        ),
        split_schedules.variant(
            SPLIT, "a row divided among SPLITS programs, one kernel per pass; the next combines the partial results",
            split_kernels,
        ),
        Variant(
            COOPERATIVE,
            "BLOCK_SIZE_N elements of a row per program, held in registers; programs of a row wait for one another",
            cooperative.default(), cooperative.SPACE, cooperative.legal, cooperative.kernels,
        ),
        split_schedules.variant(
            SPLIT_COLUMNS, "the same with BLOCK_SIZE_M kept elements per program: SPLITS programs reduce a part each",
            split_kernels,
        ),
        partials.VARIANT,
    )  # fmt: skip


_VARIANTS = {variant.name: variant for variant in _variants()}
MEANINGS = {name: variant.meaning for name, variant in _VARIANTS.items()}


def _of_spec(plan: KernelPlan, table: Table) -> Table:
    """The first table, once it is known how long rows are at most where they are timed, and how long the innermost part
    of each: where some tensor does not hold columns together."""
    body, cases = body_of(plan), plan.spec.performance
    if not body.layout.parts or not cases:
        return table
    planes = [elements(body, case, body.layout.parts[-1].axes) for case in cases]
    longest = max(elements(body, case, body.columns()) for case in cases)
    return cooperative.of_planes(table, longest, planes)


FAMILY = Family(NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts, of_spec=_of_spec)

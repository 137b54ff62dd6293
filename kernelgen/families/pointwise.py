"""Pointwise: any expression over broadcasting inputs, element by element.

`flat` takes the elements as one run, where every input has the output's shape. `tile` takes them as rows and columns,
so that an input that varies along one of the two is read once a tile; `planes` does so where rows have to be taken
apart, with tiles that stay within a plane (module `planes`); `lanes` reads what the windows of neighbouring columns of
a row share once (module `row_lanes`); `elements` takes a run of the results, each with its row and column (module
`runs`). A tile that reads along one of the two and writes along the other is square: Triton turns it in shared memory,
so that both run over whole cache lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families import lanes, plane_schedules, planes, row_lanes, runs
from kernelgen.families.family import Family, Table, Variant
from kernelgen.families.forms import ELEMENTS, FLAT, LANES, PLANES, TILE
from kernelgen.families.kernel import LOADS, STORES, Body, at_levels, output_values
from kernelgen.families.keys import LEAST, SMALL, TINY
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.pairs import PairNest, is_paired
from kernelgen.families.sliding_window import chains
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.families.transposed import lies_along
from kernelgen.frontend.graph import Graph
from kernelgen.frontend.indices import Expr, leaves
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import RUN, M, N, Nest

NAME = "pointwise"
ELEMENTS_A_THREAD = (1, 128)
"""Fewer leave lanes idle; more than 128 spilled in every sample compiled for sm_90."""
MAX_GRID_Y = 65535
"""Programs along a grid's second axis (CUDA C++ Programming Guide, technical specifications per compute capability)."""
HEAD = 64
"""Columns of a row that half a tile of 128 columns would serve: half a head of attention, say."""
VERY_SHORT_ROW_BYTES = 256
"""Rows that a tile of 512 columns would leave mostly empty: the heads of attention, say."""
SHORT_COLUMNS = 128
"""A tile's columns where rows are that short."""
SHORT_ROW_BYTES = 1024
"""Where the first table switches to wider tiles; both lines are then searched."""
NARROW_ROW_BYTES = 8
"""Rows that leave all but a few columns of a tile that turns them empty."""
ONE_WAVE = 2**21
"""Bytes of half precision in one wave of programs of 512 elements on an H200."""
MANY_TENSORS = 5
"""Tensors that an element is read from and written to, of which a program of few elements moves enough (H200, a step of
Lion: 64 KiB each 1.85 us by 256 elements, 2.30 by 1024; 512 KiB 2.3 and 2.7)."""


STREAM_BYTES = 2**31
"""Tensors that are larger than this are most likely float32."""
_STREAM = Schedule.make("flat", BLOCK_SIZE=512, num_warps=4, loads="default", stores="default")
"""One access of 16 bytes a thread in float32 (H200, gelu of 6 GiB: 3.00 ms, 8 elements a thread 3.04, 16 3.06)."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one that does nothing else than map elements and move them."""
    return graph.kind == "map"


def variants(body: Body) -> tuple[str, ...]:
    if body.layout.columns is None:
        return (FLAT.name,)
    found = (PLANES.name, TILE.name) if planes.applies(body) else (TILE.name,)
    found = (*found, LANES.name) if row_lanes.applies(body) else found
    return (*found, ELEMENTS.name) if _takes_elements(body) else found


def _takes_elements(body: Body) -> bool:
    """A window's places are shared by the elements of a tile alone."""
    return runs.applies(body) and not (planes.applies(body) and planes.is_window(body))


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


_LONG_TILE = Schedule.make(
    "tile", BLOCK_SIZE_M=1, BLOCK_SIZE_N=2048, num_warps=4, ROW_TILES=1, grid="1d", specialize=False,
    loads="default", stores="default",
)  # fmt: skip
"""One stretch of one row a program, and neighbours run together (H200: copies of 8192 columns 131 us, 4 by 1024 in a
2-D grid 140)."""


def _of_long_rows(body: Body, tile: Schedule) -> tuple[Table, Table]:
    """The lines of long rows: those of small tensors, then all others."""
    if _looks_rows_up(body):  # several rows a program: their numbers are waited for together
        return (), (table_row(tile.replace(BLOCK_SIZE_N=1024)),)
    if body.exact:
        long: Table = (table_row(_moved()),)
    else:
        long = (
            table_row(_LONG_TILE.replace(BLOCK_SIZE_N=1024), row_bytes=2 * SHORT_ROW_BYTES), table_row(_LONG_TILE)
        )  # fmt: skip
    narrow = long[-1].schedule.replace(BLOCK_SIZE_N=1024)
    few = table_row(narrow, rows=2, tensor_bytes=SMALL), table_row(tile.replace(BLOCK_SIZE_M=2), tensor_bytes=2 * TINY)
    return (*few, table_row(tile, tensor_bytes=SMALL)), long


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """Tiles of at most a row's width where rows are short; what varies along the columns is then read least often."""
    if variants(body) == (FLAT.name,):
        return _runs_of_memory(body, shapes)
    tile = default("tile")
    if not body.layout.rows:  # columns alone, which need not be in memory side by side
        return (table_row(tile.replace(BLOCK_SIZE_M=1, BLOCK_SIZE_N=1024, num_warps=4, grid="1d")),)
    if _has_fixed_rows(body):
        blocks = tile.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_N=128, num_warps=4)
        return (table_row(blocks.replace(BLOCK_SIZE_M=8), tensor_bytes=SMALL), table_row(blocks))
    spread = ELEMENTS.name in variants(body)
    if is_turned(body):
        return _turned(spread)
    if planes.applies(body):
        return _of_planes(body, [columns for _, columns in shapes], spread)
    gathered = _gathered(body)
    alone = _elements(SMALL) if gathered and spread else ()
    if gathered == "rows":  # what programs that run together gather from lies in a strip that the cache holds
        return (*alone, table_row(tile.replace(BLOCK_SIZE_M=32, BLOCK_SIZE_N=64)))
    if not gathered and spread and planes.is_shifted(body):
        return (*_elements(TINY), table_row(runs.default().replace(BLOCK_SIZE=2048)))
    few, long = _of_long_rows(body, tile)
    tiles = (
        table_row(tile.replace(num_warps=2), row_bytes=SHORT_ROW_BYTES, tensor_bytes=SMALL),
        table_row(tile, row_bytes=SHORT_ROW_BYTES),
    )  # fmt: skip
    shortest = min((columns for _, columns in shapes), default=2 * HEAD + 1)
    if not body.exact and shortest > 2 * HEAD:
        return (*tiles, *few, *long)
    short = tile.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_N=128)
    # half a warp a row of 32 columns (H200, MXFP8's blocks of 32: 89 us, by 8 warps that share 32 rows 116)
    half = {"BLOCK_SIZE_M": 128, "num_warps": 2} if 2 * shortest <= HEAD else {"BLOCK_SIZE_M": 32}
    head = table_row(short.replace(BLOCK_SIZE_N=HEAD, **half), row_bytes=2 * HEAD)
    heads: Table = (head,) if shortest <= HEAD else ()
    if spread and 2 * shortest <= HEAD:
        # of 8 rows of 7168 that MXFP8's blocks make 2.0 us, in tiles 2.8; of what eight places make, 4096 rows of 4,
        # 2.7 us, 8.6 by four times as many elements
        several = len(at_levels(body, (FULL,))) > 2
        run = runs.default().replace(BLOCK_SIZE=256) if several else runs.default()
        heads = (table_row(run, row_bytes=2 * HEAD, tensor_bytes=SMALL), *heads)
    if gathered:  # a program has one row, which stays in its processor's own cache
        row = tile.replace(BLOCK_SIZE_M=1, BLOCK_SIZE_N=2048)
        return (
            table_row(tile, row_bytes=SHORT_ROW_BYTES),
            *alone,
            table_row(row, row_bytes=4096),
            table_row(row.replace(BLOCK_SIZE_N=4096)),
        )
    return (
        *heads,
        table_row(short, row_bytes=VERY_SHORT_ROW_BYTES),
        *tiles,
        *few,
        *long,
    )


def _turned(spread: bool) -> Table:
    """Tiles that are turned: of small tensors more of them (H200, 200 KiB made channels-last 2.2 us in tiles of 32 by
    32, 2.5 of 128 by 32), of the narrowest rows element by element."""
    narrow = (table_row(runs.default(), row_bytes=NARROW_ROW_BYTES),) if spread else ()
    small = _square().replace(BLOCK_SIZE_N=32)
    smallest = table_row(small.replace(BLOCK_SIZE_M=32), tensor_bytes=TINY // 2)
    return (*narrow, smallest, table_row(small, tensor_bytes=SMALL), table_row(_square()))


def _of_planes(body: Body, lengths: Sequence[int], spread: bool) -> Table:
    """Tiles of planes. Of small tensors a walk over rows leaves most processors idle, and what is read from places of
    its own is faster element by element, most of all what several places make (H200, bilinear, 2 MiB: 4.0 us, in
    tiles of planes 4.7)."""
    found = plane_schedules.first_table(body, lengths, _moved() if body.exact else _LONG_TILE)
    if planes.is_window(body) and not chains(body):
        found = (*found[:-1], table_row(default("tile"), tensor_bytes=SMALL), found[-1])
    if not spread or not planes.is_shifted(body) or is_paired(body):
        return found
    return (*_elements(SMALL if len(at_levels(body, (FULL,))) > 2 else TINY), *found)


def _elements(limit: int) -> Table:
    """The lines of tensors of at most so many bytes, element by element."""
    run = runs.default()
    return table_row(run.replace(BLOCK_SIZE=256), tensor_bytes=LEAST), table_row(run, tensor_bytes=limit)


def _runs_of_memory(body: Body, shapes: Sequence[tuple[int, int]]) -> Table:
    """One line; one for small tensors where programs would be few for having many elements, and one for tensors beyond
    2 GiB where such are timed."""
    run = _flat(body)
    short: Table = (table_row(run.replace(BLOCK_SIZE=512), row_bytes=ONE_WAVE),) if run.int("BLOCK_SIZE") > 1024 else ()
    if len(body.layout.accesses) + len(output_values(body)) >= MANY_TENSORS:
        short = (table_row(run.replace(BLOCK_SIZE=256), row_bytes=TINY), *short)
    vast = any(4 * rows * columns > STREAM_BYTES for rows, columns in shapes)
    if vast:
        return (*short, table_row(run, row_bytes=STREAM_BYTES), table_row(_STREAM))
    return (*short, table_row(run))


def is_turned(body: Body) -> bool:
    """Whether what is read along the rows and the columns lies in memory along the rows."""
    inner = {body.layout.rows[-1].axes[-1]} if body.layout.rows else set()
    full = [body.lowered.values[a.load] for a in body.layout.accesses if body.names.levels[a.load] == FULL]
    return any(lies_along(load) in inner for load in full)


def _square() -> Schedule:
    """128 by 128 elements: two cache lines each way of two bytes an element; neighbours run together along the rows
    that they write."""
    return default("tile").replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, grid="1d")


def _gathered(body: Body) -> str | None:
    """Along what the elements of a tile are gathered each from a place of its own: "columns" of one row, or "rows"."""
    values, levels = body.lowered.values, body.names.levels
    for access in body.layout.accesses:
        index = values[access.load].index
        for dim, entry in enumerate(index if levels[access.load] == FULL else ()):
            used = [e.number for e in leaves(entry) if e.op == "value"] if isinstance(entry, Expr) else []
            if any(levels[v] == FULL or (levels[v] == COLUMN and values[v].op == "load") for v in used):
                return "columns" if dim == len(index) - 1 else "rows"
    return None


def _moved() -> Schedule:
    """Where elements are only moved: what is read leaves the cache after what is written (H200: halves of 4096 columns
    side by side 128 us, by default 131)."""
    return _LONG_TILE.replace(BLOCK_SIZE_N=1024, loads="evict_last")


def _looks_rows_up(body: Body) -> bool:
    """Whether whole rows are read from places that are read themselves, as of an embedding."""
    places = [e for a in body.layout.accesses for e, _ in a.terms if isinstance(e, Expr)]
    return any(leaf.op == "value" and body.names.levels[leaf.number] == ROW for e in places for leaf in leaves(e))


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: the defaults, which suit rows of any length."""
    if is_turned(body):
        square = _square()
        small = square.replace(BLOCK_SIZE_M=64, BLOCK_SIZE_N=64)
        return (square, square.replace(BLOCK_SIZE_N=64), small, small.replace(num_warps=4))
    spread = runs.starts() if _takes_elements(body) else ()
    if planes.applies(body):
        return (*plane_schedules.starts(body, columns), default("tile"), *spread)
    if _has_fixed_rows(body):
        return tuple(row.schedule.replace(num_warps=warps) for row in first_table(body, ()) for warps in (4, 8))
    if variants(body) == (FLAT.name,):
        return tuple(dict.fromkeys((_flat(body), default("flat"))))
    shared = row_lanes.starts(body, columns) if row_lanes.applies(body) else ()
    return (*shared, default("tile"), *spread)


def _flat(body: Body) -> Schedule:
    """Sixteen elements a thread where one takes some dozen instructions: two chains of them hide each other's waits."""
    long = any(OPERATIONS[v.op].is_chain for v in body.lowered.values)
    return default("flat").replace(BLOCK_SIZE=2048) if long else default("flat")


def _has_fixed_rows(body: Body) -> bool:
    """Whether rows are blocks of 128 elements, as of what was quantised block by block, and are not turned."""
    columns = body.layout.columns.axes if body.layout.columns else ()
    return [body.lowered.space.axes[a] for a in columns] == [SHORT_COLUMNS] and not is_turned(body)


def _legal_in_runs(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a run of elements makes no sense; None if it does."""
    each = schedule.int("BLOCK_SIZE") / (32 * schedule.int("num_warps"))
    low, high = ELEMENTS_A_THREAD
    return None if low <= each <= high else f"{each:g} elements per thread ({low} to {high} are allowed)"


def _legal_in_rows(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a tile makes no sense for rows of `columns` elements, all tiles being counted along one axis of the grid."""
    each = schedule.int("BLOCK_SIZE_M") * schedule.int("BLOCK_SIZE_N") / (32 * schedule.int("num_warps"))
    low, high = ELEMENTS_A_THREAD
    if not low <= each <= high:
        return f"{each:g} elements per thread ({low} to {high} are allowed)"
    if schedule.int("BLOCK_SIZE_N") > 2 * max(columns, 64):
        return f"columns of a tile more than twice the {columns} of a row"
    return None


def _legal_in_tiles(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """The same where the columns' tiles may be counted along the grid's second axis."""
    if schedule.get("grid") != "1d" and columns > MAX_GRID_Y * schedule.int("BLOCK_SIZE_N"):
        return f"more than the {MAX_GRID_Y} programs that a grid's second axis may have, for {columns} columns"
    return _legal_in_rows(schedule, columns, itemsize)


def _legal_in_planes(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    return _legal_in_tiles(schedule, columns, itemsize) or plane_schedules.refusal(schedule)


def flat(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of one run of elements."""
    nest = Nest(spec, body, FLAT, schedule)
    once = nest.lets(at_levels(body, (SCALAR,)))
    inside = (*once, *grid.run(RUN), *nest.lets(output_values(body), late=False), *nest.stores())
    return (nest.kernel(name, inside, ("n_elements",), ("BLOCK_SIZE",)),)


def tile(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of tiles of rows and columns."""
    nest = PairNest(spec, body, TILE, schedule)
    once = nest.lets(at_levels(body, (COLUMN, SCALAR)))
    first = nest.places_in(once)
    text = (*nest.lets(output_values(body), late=False), *nest.stores())
    places = [let for let in nest.places_in(text) if let not in first]
    start: ir.Expr = ir.Name("pid_m")
    walked = schedule.int("ROW_TILES") > 1
    if walked:
        tiles = ir.Apply("mul", (start, ir.Name("ROW_TILES")), ())
        start = ir.Apply("add", (tiles, ir.Name("tile")), ())
    rows = (
        *grid.numbered(M, grid.block(start, M)), grid.inside(M, N), *nest.row_indices(), *nest.pair_numbers(),
        *places, *text,
    )  # fmt: skip
    loop = ir.For("tile", ir.Number(0), ir.Name("ROW_TILES"), ir.Number(1), rows)
    inside = (
        *grid.programs(N, columns_fastest=schedule["grid"] == "1d"),
        *grid.numbered(N, grid.block(ir.Name("pid_n"), N)), *first, *once, *((loop,) if walked else rows),
    )  # fmt: skip
    constexprs = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", *(("ROW_TILES",) if walked else ()))
    return (nest.kernel(name, inside, ("M", "N"), constexprs),)


def _in_planes(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    of_plane = lanes.LaneNest if schedule.get("lane_columns", 1) != 1 else planes.PlaneNest
    return (planes.kernel(spec, body, schedule, name, of_plane),)


_WARPS = Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program")
_FLAT = Variant(
    FLAT, "consecutive elements, BLOCK_SIZE per program",
    Schedule.make("flat", BLOCK_SIZE=1024, num_warps=4, loads="default", stores="default"),
    (
        Parameter("BLOCK_SIZE", (256, 512, 1024, 2048, 4096, 8192), "block_size", "constexpr", "elements per program"),
        _WARPS, LOADS, STORES,
    ),
    _legal_in_runs, flat,
)  # fmt: skip
_TILE = Variant(
    TILE, "one tile of BLOCK_SIZE_M rows by BLOCK_SIZE_N columns per program",
    # eight elements a thread: one access of 16 bytes in half precision, two in float32
    Schedule.make(
        "tile", BLOCK_SIZE_M=4, BLOCK_SIZE_N=512, num_warps=8, ROW_TILES=1, grid="2d", specialize=False,
        loads="default", stores="default",
    ),
    (
        Parameter(
            "grid", ("2d", "1d"), "grid_config", "structure", "tiles over a 2-D grid, or columns fastest in a 1-D one"
        ),
        SPECIALIZE,
        Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64, 128), "block_size", "constexpr", "rows of a tile"),
        Parameter("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048, 4096), "block_size", "constexpr", "its columns"),
        _WARPS, LOADS, STORES,
        Parameter(
            "ROW_TILES", (1, 2, 4, 8), "data_reuse", "structure",
            "row tiles per program, which keeps what varies along the columns",
        ),
    ),
    _legal_in_tiles, tile,
)  # fmt: skip
_ELEMENTS = Variant(
    ELEMENTS, "BLOCK_SIZE consecutive elements of the result per program", runs.default(), runs.SPACE, _legal_in_runs,
    runs.kernels,
)  # fmt: skip
_PLANES = Variant(
    PLANES, "one tile of BLOCK_SIZE_M rows by BLOCK_SIZE_N columns of one plane per program", plane_schedules.default(),
    plane_schedules.SPACE, _legal_in_planes, _in_planes,
)  # fmt: skip
_LANES = Variant(
    LANES, "one tile of BLOCK_SIZE_M rows by BLOCK_SIZE_N columns per program, several adjacent columns per lane",
    row_lanes.default(), row_lanes.SPACE, _legal_in_rows, row_lanes.kernels,
)  # fmt: skip
_VARIANTS = {variant.name: variant for variant in (_FLAT, _TILE, _ELEMENTS, _PLANES, _LANES)}

FAMILY = Family(NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts, of_spec=row_lanes.of_spec)

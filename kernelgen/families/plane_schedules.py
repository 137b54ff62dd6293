"""How planes are tiled: the first tables, where a search sets out and what it may change."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families.family import Table
from kernelgen.families.forms import PLANES
from kernelgen.families.kernel import LOADS, STORES, Body, at_levels
from kernelgen.families.keys import SMALL, TINY
from kernelgen.families.lanes import applies, lines_of
from kernelgen.families.naming import FULL
from kernelgen.families.pairs import is_paired, paired_loads, paired_stores
from kernelgen.families.planes import along_columns, is_shifted, is_window, keeps_lines
from kernelgen.families.sliding_window import chains, steps_of
from kernelgen.plan import Parameter, Schedule, TableRow, table_row
from kernelgen.schedule.problem import TENSOR_BYTES

WIDTHS = (64, 128, 256, 512)
"""Columns of a tile; half precision rows of at most as many columns take the narrowest that holds them."""
LONGEST = 1024
"""Columns of a tile of longer rows."""
TILE = 2048
"""Elements of a tile in four warps: two accesses of 16 bytes a thread."""
SHIFTED = 512
"""Elements of a tile in two warps where columns are read from places that no alignment helps; half as many in one warp,
twice the tiles, where rows are short (H200, images mirrored at their borders: of 112 columns 67.2 us, of 224 65.4, with
half as many 68.6 and 70.1; of 56 columns 74.9 us, with half as many 71.3)."""
SHARED_ROW = 512
"""Columns of a row that one warp of a small tensor would read by itself (H200, patches of an image of 1.5 MiB, 1024
columns: 3.6 us by four warps, 4.0 by two)."""
NARROW = 32
"""Columns of the narrowest planes, whose tiles are one warp's 8 rows (H200, windows of 2 by 2 that tanh precedes, to
planes of 17 by 17: 269 us, in tiles of 32 by 64 with four warps 754)."""
WINDOW_WIDTHS = (64, 128, 256, 512)
WINDOW_ROWS = {64: 8, 128: 2}
"""Rows of a tile of so many columns, else one. A line is read for every place of a window, each time for the whole
tile; of more rows the L1 has lost it by then (max_pool2d, 224 by 224, H200: 16 rows 1004 us, 8 rows 491, 4 rows 285).
"""
MOST_LOADS = 16
"""Elements of a window whose walk is written out. With 7 rows of 27 elements each, KernelBench's pools in three
dimensions were not judged within 60 s; in a loop they took 42 and 46."""
LONGEST_WRITTEN = 8
"""Rows of a walk that is written out. Every shape is compiled for itself (depthwise 3 by 3 for sm_90, on a CPU: 0.7 s
in a loop, 0.9 for 4 rows, 1.2 for 7)."""
LONGEST_UNROLLED = 128
"""Columns of the longest rows whose walk is written out at first, where it gains much (H200: depthwise 3 by 3, rows of
56, 68 us, in a loop 80; max_pool2d, rows of 112, 129 and 139). Rows of 510 gain 4 %, and to compile each shape takes
four times as long, 1.0 s."""
WALK = 14
"""Rows that a lane walks down where lines are kept: the images of networks often have a multiple of seven, and few of
so many are read twice."""
WALKED = 256
"""Elements of a tile in four warps that walks down: two a thread, whose lines 32 to 42 registers hold."""


def default() -> Schedule:
    return Schedule.make(
        PLANES.name, BLOCK_SIZE_M=8, BLOCK_SIZE_N=128, num_warps=4, ROW_TILES=1, specialize=False, accesses="wide",
        lines="read", unroll=False, LINES_AHEAD=1, lane_columns=1, loads="default", stores="default",
    )  # fmt: skip


def first_table(body: Body, lengths: Sequence[int], long: Schedule) -> Table:
    """Tiles as wide as a row, and rows of them until every thread has eight elements; `lengths`: of the rows that are
    timed; `long`: rows of which one alone fills a program, where columns are read as they are written."""
    lane = _lane(body, lengths)
    if lane > 1:
        written = max(lengths) <= LONGEST_UNROLLED
        shorter = [
            table_row(_of_lanes(body, lane, width, written), row_bytes=2 * width) for width in WINDOW_WIDTHS[:-1]
        ]
        return (*shorter, table_row(_of_lanes(body, lane, WINDOW_WIDTHS[-1], written)))
    widths = WINDOW_WIDTHS[:-1] if is_window(body) else WIDTHS
    computed = along_columns(body) or is_paired(body)
    last = _fitting(body, LONGEST) if computed else long
    if is_window(body):
        return (*(table_row(_fitting(body, width), row_bytes=2 * width) for width in widths), table_row(last))
    timed = {next((w for w in WIDTHS if columns <= w), LONGEST) for columns in lengths}
    found: list[TableRow] = []
    if lengths and max(lengths) <= NARROW:
        narrow = _fitting(body, WIDTHS[0]).replace(BLOCK_SIZE_N=NARROW, BLOCK_SIZE_M=8, num_warps=1)
        return (
            table_row(_small(body, WIDTHS[0]), row_bytes=4 * NARROW, tensor_bytes=TINY),
            table_row(narrow, row_bytes=4 * NARROW),
            *(table_row(_fitting(body, w), row_bytes=2 * w) for w in WIDTHS[1:]),
            table_row(last),
        )
    for width in (*WIDTHS, LONGEST):
        limits = {"row_bytes": 2 * width} if width < LONGEST else {}
        if width in timed:
            found.append(table_row(_small(body, width), **limits, tensor_bytes=SMALL))
        found.append(table_row(_fitting(body, width) if width < LONGEST else last, **limits))
    return tuple(row for row, usual in zip(found, [*found[1:], None], strict=True) if not _is_usual(row, usual))


def _is_usual(row: TableRow, usual: TableRow | None) -> bool:
    """Whether a line for small tensors says the same as that which follows it."""
    return row.limit(TENSOR_BYTES) is not None and usual is not None and row.schedule == usual.schedule


def _small(body: Body, width: int) -> Schedule:
    """The tile of small tensors: the divisions by the sizes of a plane come before the first load, so these are
    compiled in; where an element is made of several that are read, there are fewer elements a program."""
    fitting = _fitting(body, width)
    loads = sum(body.names.levels[a.load] == FULL for a in body.layout.accesses)
    if loads > 2:
        each = 1 << (loads - 1).bit_length()
        return fitting.replace(BLOCK_SIZE_M=max(1, fitting.int("BLOCK_SIZE_M") // each))
    if fitting.int("BLOCK_SIZE_N") >= SHARED_ROW * fitting.int("num_warps"):
        fitting = fitting.replace(num_warps=2 * fitting.int("num_warps"))
    return fitting.replace(specialize=True)


def is_small(body: Body) -> bool:
    """Whether a walk may be written out."""
    return len(at_levels(body, (FULL,))) <= MOST_LOADS


def _lane(body: Body, lengths: Sequence[int]) -> int:
    """Columns a lane: as many as divide every row that is timed, or its blocks would lie across two accesses (H200,
    windows of 4 by 4 in rows of 511 columns: 4 columns a lane 4.5 ms, one 2.3)."""
    if not lengths or not is_small(body) or not applies(body):
        return 1
    return next((n for n in (8, 4, 2) if lines_of(body, n) and all(length % n == 0 for length in lengths)), 1)


def _of_lanes(body: Body, lane: int, width: int, written: bool) -> Schedule:
    """One lane a thread; the more lines are kept, the longer a walk pays, and the earlier they may be asked for (H200:
    depthwise 3 by 3, walks of 7 rows whose lines are asked for one row early 65 us, 5 rows 57, of 4 rows 60; with 4
    columns a lane 67, with one 107; max_pool2d, walks of 4 rows 129, 7 rows 132, with one column a lane 194). Where no
    line is kept there is nothing to walk for (q and k rotated by halves, 1 x 16 x 1000 x 128: walks of 4 rows 7.5 us,
    of 2 6.5, none 6.0; 4 x 32 x 4096 x 128: 141, 133 and 131).
    `written`: the walk is written out, so that what is kept changes its name and not its register."""
    kept = steps_of(chains(body)) - 1
    early = (5 if kept > 1 else 2) if kept and written else 1
    return default().replace(
        BLOCK_SIZE_N=width, BLOCK_SIZE_M=max(1, 32 * max(lane, 4) // width), num_warps=max(1, width // 256),
        ROW_TILES=7 if kept > 1 else 4 if kept else 1, lines="ahead" if kept else "read", unroll=written,
        lane_columns=lane, LINES_AHEAD=early, specialize=True,
    )  # fmt: skip


def _fitting(body: Body, width: int) -> Schedule:
    """A tile as wide as rows are. Constants save most where the places that columns read are computed."""
    if is_window(body):
        width = min(width, WINDOW_WIDTHS[-1])
        if chains(body):
            return default().replace(
                BLOCK_SIZE_N=width, BLOCK_SIZE_M=max(1, WALKED // width), ROW_TILES=WALK, lines="kept",
                accesses="single", specialize=True,
            )  # fmt: skip
        return default().replace(
            BLOCK_SIZE_N=width, BLOCK_SIZE_M=WINDOW_ROWS.get(width, 1), ROW_TILES=8, num_warps=2,
            accesses="single", specialize=True,
        )  # fmt: skip
    if is_shifted(body) and not is_paired(body):
        # neighbours come from places of their own: a few elements a lane, and its next ones asked for meanwhile
        warps = 1 if width == WIDTHS[0] else 2
        return default().replace(
            BLOCK_SIZE_N=width, BLOCK_SIZE_M=max(1, SHIFTED * warps // 2 // width), ROW_TILES=4 // warps,
            num_warps=warps, specialize=True,
        )  # fmt: skip
    computed = bool(along_columns(body))
    # what is read once and written in pairs has twice as many elements as columns
    columns = TILE // 2 if paired_stores(body) and not paired_loads(body) else TILE
    return default().replace(BLOCK_SIZE_N=width, BLOCK_SIZE_M=columns // width, specialize=computed)


def starts(body: Body, columns: int) -> tuple[Schedule, ...]:
    """The first table's schedule for rows of that length, narrow and wide."""
    width = next((w for w in WIDTHS if columns <= w), LONGEST)
    fitting, lane = _fitting(body, width), _lane(body, [columns])
    written = columns <= LONGEST_UNROLLED
    shared = (_of_lanes(body, lane, min(width, WINDOW_WIDTHS[-1]), written),) if lane > 1 else ()
    return (*shared, fitting, fitting.replace(specialize=not fitting["specialize"]))


SPACE = (
    Parameter(
        "specialize", (False, True), "grid_config", "structure",
        "a kernel compiled for every size of a plane and its strides",
    ),
    Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64), "block_size", "constexpr", "rows of a tile"),
    Parameter("BLOCK_SIZE_N", (32, 64, 128, 256, 512, 1024, 2048, 4096), "block_size", "constexpr", "its columns"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
    Parameter(
        "accesses", ("wide", "single"), "memory_access", "structure",
        "as many columns an access as alignment allows, or one, so that loads of neighbours run over whole lines",
    ),
    LOADS, STORES,
    Parameter(
        "ROW_TILES", (1, 2, 4, 7, 8, 14, 28), "data_reuse", "structure",
        "row tiles per program, which keeps what varies along the columns",
    ),
    Parameter(
        "lines", ("read", "kept", "ahead"), "data_reuse", "structure",
        "the lines of a window read for every row, or kept from one row to the next, which follows it in the walk; "
        "ahead: and the new one asked for a row early",
    ),
    Parameter("unroll", (False, True), "data_reuse", "structure", "the loop unrolled row by row"),
    Parameter(
        "LINES_AHEAD", (1, 2, 3, 4, 5, 6), "data_reuse", "structure",
        "the rows by which a line is asked for ahead, where the walk is written out",
    ),
    Parameter(
        "lane_columns", (1, 2, 4, 8), "memory_access", "structure",
        "neighbouring columns of a lane, whose windows share what is read of a line",
    ),
)  # fmt: skip


def refusal(schedule: Schedule) -> str | None:
    """Why a schedule makes no sense; None if it does."""
    if schedule.get("lines", "read") != "read" and not keeps_lines(schedule):
        return "lines kept from one row to the next in a walk of one row (ROW_TILES=1)"
    if schedule.get("unroll") and not 1 < schedule.int("ROW_TILES") <= LONGEST_WRITTEN:
        return f"a walk of {schedule.int('ROW_TILES')} rows (ROW_TILES) written out"
    early = schedule.get("LINES_AHEAD", 1)
    if early != 1 and not (schedule["lines"] == "ahead" and schedule["unroll"]):
        return f"lines asked for {early} rows early (LINES_AHEAD) in no walk that is written out"
    if early != 1 and schedule.int("LINES_AHEAD") >= schedule.int("ROW_TILES"):  # with one less all are asked for, too
        return f"lines asked for {early} rows early (LINES_AHEAD) in a walk of {schedule['ROW_TILES']} (ROW_TILES)"
    if schedule.get("lane_columns", 1) != 1 and schedule["accesses"] == "single":
        return "several columns a lane (lane_columns) and one column an access"
    return None

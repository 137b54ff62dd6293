"""Which elements a program has: the statements that number them, and say which of them exist."""

from __future__ import annotations

from kernelgen.tile import ir
from kernelgen.tile.places import count, wide

WIDE = "int64: rows * N may pass 2**31"


def numbered(axis: ir.Axis, start: ir.Expr, comment: str = "") -> tuple[ir.Let, ...]:
    """The numbers of a tile's elements along an axis, and which of them exist."""
    exists = ir.Apply("lt", (ir.Name(axis.index, (axis,)), ir.Name(axis.size)), (axis,))
    return ir.Let((axis.index,), ir.Range(axis, start), comment), ir.Let((axis.mask,), exists)


def block(number: ir.Expr, axis: ir.Axis) -> ir.Expr:
    """Where the tile of a number begins."""
    return ir.Apply("mul", (number, ir.Name(axis.block)), ())


def tiles(axis: ir.Axis) -> ir.Expr:
    """How many tiles lie along an axis."""
    return ir.Apply("cdiv", (ir.Name(axis.size), ir.Name(axis.block)), ())


def run(axis: ir.Axis) -> tuple[ir.Let, ...]:
    """A run of elements a program."""
    why = "int64: near 2**31 elements the offsets of the last block overflow int32"
    start = ir.Let(("block_start",), block(wide(ir.Program(0)), axis), aside=why)
    return start, *numbered(axis, ir.Name("block_start"))


def programs(columns: ir.Axis, *, columns_fastest: bool) -> tuple[ir.Let, ...]:
    """The tile of a program, from a grid of two dimensions, or of one."""
    if not columns_fastest:
        return ir.Let(("pid_m",), wide(ir.Program(0)), aside=WIDE), ir.Let(("pid_n",), ir.Program(1))
    across, said = ir.Name("num_tiles_n"), "columns vary fastest: programs that run together write adjacent memory"
    return (
        ir.Let((across.text,), tiles(columns), said),
        ir.Let(("pid_m",), wide(ir.Apply("int_div", (ir.Program(0), across), ())), aside=WIDE),
        ir.Let(("pid_n",), ir.Apply("int_mod", (ir.Program(0), across), ())),
    )


def planes(rows: ir.Axis, *, walks: bool) -> tuple[ir.Let, ...]:
    """The plane of a program, and its tile within that. `walks`: whether it has several tiles of rows."""
    down, each = ir.Name("num_tiles_m"), ir.Name(rows.block)
    size: ir.Expr = ir.Apply("mul", (each, ir.Name("ROW_TILES")), ()) if walks else each
    said = f"{'several tiles' if walks else 'one tile'} of rows and columns of one plane per program"
    return (
        ir.Let((down.text,), ir.Apply("cdiv", (ir.Name(rows.size), size), ()), said),
        ir.Let(("plane",), ir.Apply("int_div", (ir.Program(0), down), ())),
        ir.Let(("pid_m",), ir.Apply("int_mod", (ir.Program(0), down), ())),
        ir.Let(("pid_n",), ir.Program(1)),
    )


def inside(rows: ir.Axis, columns: ir.Axis) -> ir.Let:
    """Which elements of a tile of rows and columns exist."""
    masks = ir.Name(rows.mask, (rows,)), ir.Name(columns.mask, (columns,))
    return ir.Let(("mask",), ir.Apply("and", masks, (rows, columns)))


def elements(axis: ir.Axis) -> tuple[ir.Let, ...]:
    """A run of elements as they lie in the results, each with its row and its column."""
    first, n, run = ir.Name("first"), ir.Name("N"), ir.Name("run", (axis,))
    said = "consecutive elements of the result, each with its row and its column"
    own = ir.Range(axis, ir.Cast(ir.Apply("int_mod", (first, n), ()), "int32", is_tensor=True))
    row = ir.Apply("int_div", (first, n), ()), ir.Apply("int_div", (run, n), (axis,))
    return (
        ir.Let(("first",), block(wide(ir.Program(0)), axis), said, aside=WIDE),
        *numbered(axis, first),
        ir.Let(("run",), own, "counted from the start of their first row"),
        ir.Let(("rows",), ir.Apply("add", row, (axis,))),
        ir.Let(("cols",), ir.Apply("int_mod", (run, n), (axis,))),
    )


def row(columns: ir.Axis, *, has_row: bool, is_turned: bool) -> tuple[ir.Let, ...]:
    """A whole row a program, or everything."""
    said = f"one program holds {'one row' if has_row else 'everything'} in registers"
    cols: ir.Expr = ir.Range(columns, ir.Number(0))
    if is_turned:
        cols = from_end(columns)
    number, exist = numbered(columns, ir.Number(0))
    number = ir.Let(number.names, cols, "" if has_row else said)
    return (*lone_row(said), number, exist) if has_row else (number, exist)


def from_end(columns: ir.Axis) -> ir.Call:
    """The numbers of a block's columns from its end."""
    return ir.Call("from_end", (ir.Name(columns.block),), (columns,))


def rows(row_axis: ir.Axis, columns: ir.Axis) -> tuple[ir.Let, ...]:
    """Several whole rows a program."""
    said = "one program holds BLOCK_SIZE_M short rows in registers"
    numbers, exist = numbered(row_axis, block(ir.Name("pid_m"), row_axis))
    cols, col_exist = numbered(columns, ir.Number(0))
    own = ir.Let(("pid_m",), wide(ir.Program(0)), said, aside=WIDE)
    return own, numbers, cols, exist, col_exist, inside(row_axis, columns)


def several_rows(row_axis: ir.Axis, said: str, why: str) -> tuple[ir.Let, ...]:
    """The rows of a program that walks them."""
    own = ir.Let(("pid_m",), wide(ir.Program(0)), said, aside=why)
    return own, *numbered(row_axis, block(ir.Name("pid_m"), row_axis))


def walk(
    tile: ir.Shape,
    body: tuple[ir.Stmt, ...],
    span: tuple[ir.Expr, ir.Expr],
    *,
    stages: str,
    backwards: bool = False,
    is_turned: bool = False,
) -> ir.For:
    """A walk along the columns in blocks. `is_turned`: whether these are numbered from their end."""
    columns, start = tile[-1], ir.Name("start")
    numbers: tuple[ir.Stmt, ...] = numbered(columns, start)
    if backwards:
        one = ir.Apply("sub", (tiles(columns), ir.Number(1)), ())
        last = ir.Apply("sub", (block(one, columns), start), ())
        own = from_end(columns) if is_turned else ir.Range(columns, ir.Number(0))
        numbers = (ir.Let((columns.index,), last), ir.Update(columns.index, "add", own), numbers[1])
    masks = (inside(*tile),) if len(tile) > 1 else ()
    return ir.For("start", *span, ir.Name(columns.block), (*numbers, *masks, *body), stages=stages)


def lone_row(said: str = "", of: ir.Expr | None = None) -> tuple[ir.Let, ...]:
    """The row of a program that has one: the program's number, or what follows from it."""
    return (ir.Let(("row",), wide(of or ir.Program(0)), said, aside="int64: row * N may pass 2**31"),)


def row_among(said: str, *, has_row: bool) -> tuple[ir.Stmt, ...]:
    """The row of a program that shares it, and the program's number among those that do."""
    row = lone_row() if has_row else ()
    return ir.Remark((said,), apart=False), *row, ir.Let(("split",), ir.Program(len(row)))


def part_size(columns: ir.Axis) -> ir.Expr:
    """The elements of a row that one of SPLITS programs has."""
    blocks = ir.Apply("mul", (ir.Name("SPLITS"), ir.Name(columns.block)), ())
    return block(ir.Apply("cdiv", (ir.Name(columns.size), blocks), ()), columns)


def part(columns: ir.Axis) -> tuple[ir.Let, ...]:
    """The part of a row that a program walks."""
    size, first = ir.Name("part"), ir.Name("first")
    end = ir.Apply("int_minimum", (ir.Apply("add", (first, size), ()), ir.Name(columns.size)), ())
    return (
        ir.Let(("part",), part_size(columns), aside="a multiple of the block"),
        ir.Let(("first",), ir.Apply("mul", (ir.Name("split"), size), ())),
        ir.Let(("end",), end),
    )


def tiles_of_row(columns: ir.Axis, *, has_row: bool, may_be_empty: bool) -> tuple[ir.Let, ...]:
    """The tile of a program, and the row that it is of. `may_be_empty`: rows of no element have a tile."""
    if not has_row:
        return (ir.Let(("tile",), ir.Program(0), "one tile of the elements per program"),)
    said = "one tile of a row per program"
    whole: ir.Expr = ir.Name(columns.size)
    whole = ir.Apply("int_maximum", (whole, ir.Number(1)), ()) if may_be_empty else whole
    across = ir.Name("num_tiles_n")
    return (
        ir.Let((across.text,), ir.Apply("cdiv", (whole, ir.Name(columns.block)), ()), said),
        *lone_row(of=ir.Apply("int_div", (ir.Program(0), across), ())),
        ir.Let(("tile",), ir.Apply("int_mod", (ir.Program(0), across), ())),
    )


def tiles_across() -> tuple[ir.Let, ...]:
    """The same, where the same tiles of all rows follow one another."""
    said = "one tile of a row per program; programs that read the same columns run together"
    row = lone_row(said, of=ir.Apply("int_mod", (ir.Program(0), ir.Name("M")), ()))
    return *row, ir.Let(("tile",), ir.Apply("int_div", (ir.Program(0), ir.Name("M")), ()))


def tiles_between(columns: ir.Axis, between: str) -> tuple[ir.Stmt, ...]:
    """The same, where the next row follows in memory behind `between` elements, and then the rest of the columns."""
    size, tiles, program = count(between), ir.Name("tiles"), ir.Program(0)
    fit = ir.Apply("int_maximum", (ir.Apply("int_div", (size, ir.Name(columns.block)), ()), ir.Number(1)), ())
    in_row = ir.Apply("int_mod", (ir.Apply("int_div", (program, tiles), ()), ir.Name("M")), ())
    before = ir.Apply("int_div", (program, ir.Apply("mul", (ir.Name("M"), tiles), ())), ())
    before = ir.Apply("mul", (before, tiles), ())
    return (
        ir.Remark(("one tile of a row per program",), apart=False),
        ir.Let((tiles.text,), fit, "in memory order: some tiles of a row, then as many of the next row"),
        *lone_row(of=in_row),
        ir.Let(("tile",), ir.Apply("add", (before, ir.Apply("int_mod", (program, tiles), ())), ())),
    )


def first_only(number: ir.Name, inside: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """What only the first of the programs that share a row does."""
    return (ir.Remark(()), ir.If(ir.Apply("eq", (number, ir.Number(0)), ()), inside)) if inside else ()

"""Selections: the few greatest elements of every row, in descending order, and where they stand, or all in order.

Three variants. `sorted` takes whole rows (`sorting.py`).
`rows`: one program holds several rows in registers and takes the greatest of what is left, as often as
elements are wanted. `looped`: one program walks a row of any length in blocks and keeps the greatest so far; a block is
looked at again only while it holds something greater than the least of these, so that a long row costs one maximum a
block and a few more in all (k * (1 + log(blocks)) for random rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernelgen.families import sorting
from kernelgen.families.family import Family, Table, Variant
from kernelgen.families.forms import LOOPED, ROWS
from kernelgen.families.kernel import Body, at_levels
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.sorting import is_sorted
from kernelgen.families.values import Unlowerable
from kernelgen.frontend.graph import REDUCTIONS, SELECTIONS, Graph, Node, Output, Ref
from kernelgen.frontend.sorts import LONGEST
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import M, N, Nest

NAME = "selection"
MAX_ROW = 32768
"""Longest row held in registers, where it has to be."""
FEW_TILES = 256
"""Tiles of short rows that leave an H200 idle with a warp each: four share the work."""
TAKEN = ir.Size("-(2**31)")
"""Below the order of every float: what is no longer there to be selected."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one that selects, whatever is computed before."""
    return graph.kind == "selection"


def variants(body: Body) -> tuple[str, ...]:
    if is_sorted(body):
        return (sorting.NAME,)
    if not body.layout.rows:
        return ("looped",)
    return ("rows",) if _reduces(body) else ("rows", "looped")


def _reduces(body: Body) -> bool:
    """Whether a row is reduced before elements are selected."""
    return any(v.op in REDUCTIONS and v.op not in SELECTIONS for v in body.lowered.values)


def longest_row(body: Body) -> int | None:
    """The longest row that some variant serves; None: no limit of its own."""
    if is_sorted(body):
        return LONGEST
    return MAX_ROW if _reduces(body) else None


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """One warp a program, so that nothing is exchanged between warps, while rows are short; several walk long ones."""
    if is_sorted(body):
        usual = default(sorting.NAME)
        small, large = usual.replace(BLOCK_SIZE_M=8), usual.replace(num_warps=8)
        return (table_row(small, row_bytes=256), table_row(usual, row_bytes=4096), table_row(large))
    if not body.layout.rows:
        return (table_row(default("looped")),)
    rows, looped = default("rows"), default("looped")
    wide = table_row(rows.replace(num_warps=4), rows=FEW_TILES * rows.int("BLOCK_SIZE_M"), row_bytes=1024)
    short = (wide, table_row(rows, row_bytes=1024), table_row(rows.replace(BLOCK_SIZE_M=2), row_bytes=2048))
    if _reduces(body):
        single = rows.replace(BLOCK_SIZE_M=1)
        return (
            *short,
            table_row(single.replace(num_warps=4), row_bytes=16384),
            table_row(single.replace(num_warps=16)),
        )
    walked = looped.replace(BLOCK_SIZE_N=1024, num_warps=1)
    return (*short, table_row(walked, row_bytes=16384), table_row(looped))


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search over rows of `columns` elements sets out: as many rows as give a warp one, and blocks."""
    if is_sorted(body):
        return (default(sorting.NAME),)
    found = [default("rows"), default("rows").replace(BLOCK_SIZE_M=1)] if ROWS.name in variants(body) else []
    return (*found, default("looped")) if LOOPED.name in variants(body) else tuple(found)


def _legal_in_blocks(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    block = schedule.int("BLOCK_SIZE_N")
    if block >= 2 * max(columns, 1024):
        return f"a block of {block} for rows of {columns}"
    return _spread_well(schedule, block)


def _legal_in_registers(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    block = (1 << max(columns - 1, 0).bit_length()) * schedule.int("BLOCK_SIZE_M")
    if block > MAX_ROW:
        return f"{block} elements do not fit in registers (at most {MAX_ROW})"
    return _spread_well(schedule, block)


def _spread_well(schedule: Schedule, block: int) -> str | None:
    each = block / (32 * schedule.int("num_warps"))
    if each > 128 or (each < 1 and schedule.int("num_warps") > 1):
        return f"{each:g} elements per thread (1 to 128 are allowed)"
    return None


def prepared(graph: Graph) -> Graph:
    """The graph with selections as reductions like any other, which leave one dimension of size one.

    Raises Unlowerable where something else than what is selected is returned, or is computed from it.
    """
    nodes = list(graph.nodes)
    chosen = [i for i, node in enumerate(nodes) if node.op in SELECTIONS]
    outputs = tuple(replace(o, node=_selection(graph, o)) for o in graph.outputs)
    used = {a.node for node in nodes for a in node.args if isinstance(a, Ref) and nodes[a.node].op not in SELECTIONS}
    for i in chosen:
        node, first = nodes[i], graph.nodes[chosen[0]]
        if i in used or node.args != first.args or node.shape != first.shape or _way(node) != _way(first):
            raise Unlowerable("two different selections in one operator", node.statement)
        nodes[i] = replace(node, shape=(*node.shape[:-1], ()))
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _way(node: Node) -> str:
    return node.op.removeprefix("arg")


def _selection(graph: Graph, output: Output) -> int:
    """The selection that an output is, up to its dtype."""
    i = output.node
    while graph.nodes[i].op not in SELECTIONS:
        node = graph.nodes[i]
        source = node.args[0] if node.args else None
        same = node.op == "round" and node.attrs[0] in ("float32", output.dtype)
        same |= node.op == "convert" and node.dtype.startswith("int") and node.dtype == output.dtype
        if not same or not isinstance(source, Ref):
            raise Unlowerable("what is computed from a topk, or returned beside it", node.statement)
        i = source.node
    return i


def _count(spec: OperatorSpec) -> int:
    """How many elements of a row are selected."""
    last = spec.outputs[0].shape[-1]
    assert isinstance(last, int)
    return last


def _slots(count: int) -> ir.Axis:
    """What holds the elements that are selected: a power of two of slots."""
    return ir.Axis("slots", "slots", "", str(1 << (count - 1).bit_length()), str(count))


def _filled(slots: ir.Axis) -> ir.Expr | None:
    """Which slots hold an element in the end; None: all do."""
    if slots.block == slots.size:
        return None
    return ir.Apply("lt", (ir.Name(slots.index, (slots,)), ir.Number(int(slots.size))), (slots,))


def _ordered(nest: Nest) -> tuple[ir.Stmt, ...]:
    """What is selected among, as integers in the same order, or in the reverse one where the least are selected; beyond
    the row it is what comes last, and stands behind it."""
    selection = nest.body.lowered.outputs[0].value
    made = nest.lets([nest.builder.source(selection)])
    rest: ir.Expr = ir.Call("ordered", (nest.builder.operand(selection),), nest.tile.shape)
    rest = _turned(nest, rest)
    return *made, ir.Let(("rest",), rest, nest.builder.said(selection))


def _turned(nest: Nest, rank: ir.Expr) -> ir.Expr:
    """An order, turned round where the least are selected."""
    least = nest.body.lowered.values[nest.body.lowered.outputs[0].value].op.endswith("least")
    return ir.Apply("invert", (rank,), rank.shape) if least else rank


def _stores(nest: Nest, kept: ir.Name, kept_at: ir.Name, place: ir.Expr, mask: ir.Expr | None) -> Iterator[ir.Store]:
    for stored in nest.body.lowered.outputs:
        located = nest.body.lowered.values[stored.value].op.startswith("arg")
        value = kept_at if located else ir.Call("from_ordered", (_turned(nest, kept),), kept.shape)
        yield ir.Store(ir.Pointer(stored.name, ((place, None),), kept.shape), value, mask)


def _first(elements: ir.Name, top: ir.Expr, columns: ir.Axis) -> ir.Reduce:
    """Where the first of those stands that are the greatest."""
    cols = ir.Name(columns.index, (columns,))
    among = ir.Apply("where", (_of("eq", elements, top), cols, ir.Name(columns.size)), elements.shape)
    return ir.Reduce("min", among, columns, keeps_nan=False)


def _of(op: str, *args: ir.Expr) -> ir.Apply:
    """An operation along the axes of the operand that has most."""
    return ir.Apply(op, args, max((arg.shape for arg in args), key=len))


def _in_registers(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """Several rows in registers."""
    nest, slots = Nest(spec, body, ROWS, schedule), _slots(_count(spec))
    tile, row, held = nest.tile.shape, (M,), (M, slots)
    early = nest.lets(at_levels(body, (FULL, ROW, SCALAR, COLUMN)))
    rest, cols, own, slot = ir.Name("rest", tile), ir.Name("cols", (N,)), ir.Name("slots", (slots,)), ir.Name("slot")
    top, top_at = ir.Name("top", row), ir.Name("top_at", row)
    kept, kept_at = ir.Name("kept", held), ir.Name("kept_at", held)
    here = ir.Apply("eq", (own, slot), held)
    said = "the greatest remaining element; of equal ones the first"
    turn = (
        ir.Let((top.text,), ir.Reduce("max", rest, N, keeps_nan=False), said),
        ir.Let((top_at.text,), _first(rest, top, N)),
        ir.Let((rest.text,), ir.Apply("where", (ir.Apply("eq", (cols, top_at), tile), TAKEN, rest), tile)),
        ir.Let((kept.text,), ir.Apply("where", (here, top, kept), held)),
        ir.Let((kept_at.text,), ir.Apply("where", (here, top_at, kept_at), held)),
    )
    count = ir.Number(int(slots.size))
    offsets = ir.Apply("add", (ir.Apply("mul", (ir.Name("rows", row), count), held), own), held)
    filled, exist = _filled(slots), ir.Name(M.mask, row)
    mask = ir.Apply("and", (exist, filled), held) if filled else exist
    text = (
        *grid.rows(M, N), *nest.row_indices(), *nest.column_indices(), *early, *_ordered(nest),
        ir.Let((own.text,), ir.Range(slots, ir.Number(0))),
        ir.Let((kept.text,), ir.Zeros(held, "int32")), ir.Let((kept_at.text,), ir.Zeros(held, "int32")),
        ir.For(slot.text, ir.Number(0), count, ir.Number(1), turn), ir.Let(("offsets",), offsets),
        *_stores(nest, kept, kept_at, ir.Name("offsets", held), mask),
    )  # fmt: skip
    return (nest.kernel(name, text, ("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N")),)


def _in_blocks(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """A row in blocks."""
    nest, slots = Nest(spec, body, LOOPED, schedule), _slots(_count(spec))
    (columns,) = nest.tile.shape
    once = (*nest.row_indices(), *nest.lets(at_levels(body, (ROW, SCALAR))))
    own, rest, cols = ir.Name("slots", (slots,)), ir.Name("rest", (columns,)), ir.Name("cols", (columns,))
    kept, kept_at = ir.Name("kept", (slots,)), ir.Name("kept_at", (slots,))
    least, top, top_at = ir.Name("least"), ir.Name("top"), ir.Name("top_at")
    filled = _filled(slots)
    empty: ir.Expr = ir.Full(TAKEN, "int32", (slots,))
    if filled:  # slots that are never the least
        empty = ir.Apply("where", (filled, TAKEN, ir.Size("0x7FFFFFFF")), (slots,))
    lowest = ir.Let((least.text,), ir.Reduce("min", kept, slots, keeps_nan=False))
    highest = ir.Let((top.text,), ir.Reduce("max", rest, columns, keeps_nan=False))
    least_at = _of("where", _of("eq", kept, least), kept_at, ir.Number(-1))
    leaves = ir.Apply("and", (_of("eq", kept, least), _of("eq", kept_at, ir.Name("last"))), (slots,))
    said = "the first of the greatest remaining elements replaces the last of the least kept"
    turn = (
        ir.Let((top_at.text,), _first(rest, top, columns), said),
        ir.Let(("last",), ir.Reduce("max", least_at, slots, keeps_nan=False)),
        ir.Let(("leaves",), leaves),
        ir.Let((kept.text,), _of("where", ir.Name("leaves", (slots,)), top, kept)),
        ir.Let((kept_at.text,), _of("where", ir.Name("leaves", (slots,)), top_at, kept_at)),
        lowest,
        ir.Let((rest.text,), _of("where", _of("eq", cols, top_at), TAKEN, rest)),
        highest,
    )
    walk = grid.walk(
        nest.tile.shape,
        (*nest.column_indices(), *_ordered(nest), highest, ir.While(_of("gt", top, least), turn)),
        (ir.Number(0), ir.Name("N")), stages="",
    )  # fmt: skip
    rank: ir.Expr = ir.Name("rank", (slots,))
    if body.layout.rows:
        rank = _of("add", ir.Apply("mul", (ir.Name("row"), ir.Number(int(slots.size))), ()), rank)
    frame = (*grid.lone_row(), *once) if body.layout.rows else once
    it = "the row does not fit in registers: loop over it" if body.layout.rows else "too many elements: loop over them"
    text = (
        ir.Remark((f"{it} in blocks",), apart=False), *frame,
        ir.Remark(("the greatest elements so far",)),
        ir.Let((own.text,), ir.Range(slots, ir.Number(0))), ir.Let((kept.text,), empty), ir.Let((kept_at.text,), own),
        lowest, walk, *_ranked(slots, kept, kept_at), ir.Let(("offsets",), rank),
        *_stores(nest, kept, kept_at, ir.Name("offsets", (slots,)), filled),
    )  # fmt: skip
    return (nest.kernel(name, text, ("N",), ("BLOCK_SIZE_N",)),)


def _ranked(slots: ir.Axis, kept: ir.Name, kept_at: ir.Name) -> tuple[ir.Stmt, ...]:
    """How many elements stand before each of those that are kept."""
    others = replace(slots, name="others")
    pairs = (slots, others)

    def compared(op: str, name: ir.Name) -> ir.Apply:
        return ir.Apply(op, (replace(name, shape=(others,)), name), pairs)

    tie, before = ir.Name("is_tie", pairs), ir.Name("is_before", pairs)
    filled = _filled(others)
    return (
        ir.Let((tie.text,), compared("eq", kept), "an element's position is the number of elements that precede it"),
        ir.Let((before.text,), ir.Apply("and", (tie, compared("lt", kept_at)), pairs)),
        ir.Update(before.text, "or", compared("gt", kept)),
        *((ir.Let((before.text,), ir.Apply("and", (before, filled), pairs)),) if filled else ()),
        ir.Let(("rank",), ir.Reduce("sum", ir.Cast(before, "int32", is_tensor=True), others)),
    )


_WARPS = Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warp_stage", "launch", "warps per program")
_BLOCKS = (512, 1024, 2048, 4096, 8192)
_ROWS = Variant(
    ROWS, "BLOCK_SIZE_M rows per program, held in registers; takes the greatest remaining element, k times",
    Schedule.make("rows", BLOCK_SIZE_M=4, num_warps=1),
    (Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows per program"), _WARPS),
    _legal_in_registers, _in_registers,
)  # fmt: skip
_LOOPED = Variant(
    LOOPED, "one row per program, in blocks of BLOCK_SIZE_N; keeps the greatest elements so far in registers",
    Schedule.make("looped", BLOCK_SIZE_N=4096, num_warps=4),
    (Parameter("BLOCK_SIZE_N", _BLOCKS, "block_size", "constexpr", "elements of a block of the row"), _WARPS),
    _legal_in_blocks, _in_blocks,
)  # fmt: skip
_VARIANTS = {variant.name: variant for variant in (_ROWS, _LOOPED, sorting.VARIANT)}

FAMILY = Family(
    NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts, prepared=prepared, longest_row=longest_row
)

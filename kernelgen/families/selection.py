"""Selections: the few greatest elements of every row, in descending order, and where they stand.

Two variants. `rows`: one program holds several rows in registers and takes the greatest of what is left, as often as
elements are wanted. `looped`: one program walks a row of any length in blocks and keeps the greatest so far; a block is
looked at again only while it holds something greater than the least of these, so that a long row costs one maximum a
block and a few more in all (k * (1 + log(blocks)) for random rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families.family import Family, Table, Variant
from kernelgen.families.forms import LOOPED, ROWS
from kernelgen.families.kernel import Body, KernelText, Lines, Loop, at_levels
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.values import Unlowerable
from kernelgen.frontend.graph import REDUCTIONS, SELECTIONS, Graph, Output, Ref
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec

NAME = "selection"
MAX_ROW = 32768
"""Longest row held in registers, where it has to be."""
FEW_TILES = 256
"""Tiles of short rows that leave an H200 idle with a warp each: four share the work."""
TAKEN = "-(2**31)"
"""Below the order of every float: what is no longer there to be selected."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one that selects, whatever is computed before."""
    return graph.kind == "selection"


def variants(body: Body) -> tuple[str, ...]:
    if not body.layout.rows:
        return ("looped",)
    return ("rows",) if _reduces(body) else ("rows", "looped")


def _reduces(body: Body) -> bool:
    """Whether a row is reduced before elements are selected."""
    return any(v.op in REDUCTIONS and v.op not in SELECTIONS for v in body.lowered.values)


def longest_row(body: Body) -> int | None:
    """The longest row that some variant serves; None: no limit of its own."""
    return MAX_ROW if _reduces(body) else None


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """One warp a program, so that nothing is exchanged between warps, while rows are short; several walk long ones."""
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
        return f"{each:g} elements a thread (from 1 to 128 make sense)"
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
        if i in used or node.args != first.args or node.shape != first.shape:
            raise Unlowerable("two different topk in one operator", node.statement)
        nodes[i] = replace(node, shape=(*node.shape[:-1], ()))
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


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


def _in_registers(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    helpers["ordered"] = None
    return (_rows(Lines(spec, body, ROWS, schedule, helpers), _count(spec), name),)


def _in_blocks(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    helpers["ordered"] = None
    return (_looped(Lines(spec, body, LOOPED, schedule, helpers), _count(spec), name),)


def _count(spec: OperatorSpec) -> int:
    """How many elements of a row are selected."""
    last = spec.outputs[0].shape[-1]
    assert isinstance(last, int)
    return last


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _source(lines: Lines, done: set[int]) -> tuple[list[str], str]:
    """The lines that compute what is selected among, and its name; beyond the row it is -inf, and stands behind it."""
    selection = lines.body.lowered.outputs[0].value
    source = lines.writer.source(selection)
    made = lines.writer.lines([source], done)
    statement = lines.body.lowered.values[selection].statement
    quoted = lines.writer.quoted
    text = lines.writer.guarded(selection)
    if statement is not None and statement not in quoted:
        made.append(f"# {lines.body.statements[statement].text}")
    return made, text


def _by_output(lines: Lines, kept: str, kept_at: str) -> list[tuple[str, str]]:
    """The name of every output and what it stores."""
    found = []
    for stored in lines.body.lowered.outputs:
        if lines.body.lowered.values[stored.value].op == "argtopk":
            found.append((stored.name, kept_at))
        else:
            lines.writer.helpers["from_ordered"] = None
            found.append((stored.name, f"_from_ordered({kept})"))
    return found


def _rows(lines: Lines, count: int, name: str) -> KernelText:
    """Several rows in registers."""
    slots, done = _power(count), set[int]()
    early = lines.writer.lines(at_levels(lines.body, (FULL, ROW, SCALAR, COLUMN)), done)
    made, source = _source(lines, done)
    stores = _by_output(lines, "kept", "kept_at")
    keeps = any(text != "kept_at" for _, text in stores)
    mask = "row_mask[:, None]" if slots == count else f"row_mask[:, None] & (slots < {count})"
    text = [
        *early,
        *made,
        f"rest = _ordered({source})",
        f"slots = tl.arange(0, {slots})[None, :]",
        *([f"kept = tl.zeros([BLOCK_SIZE_M, {slots}], tl.int32)"] if keeps else []),
        f"kept_at = tl.zeros([BLOCK_SIZE_M, {slots}], tl.int32)",
        f"for slot in range({count}):",
        "    # the greatest of what is left, and of equals the first",
        "    top = tl.max(rest, axis=1, keep_dims=True)",
        "    top_at = tl.where(rest == top, cols[None, :], N)",
        "    top_at = tl.min(top_at, axis=1, keep_dims=True)",
        f"    rest = tl.where(cols[None, :] == top_at, {TAKEN}, rest)",
        *(["    kept = tl.where(slots == slot, top, kept)"] if keeps else []),
        "    kept_at = tl.where(slots == slot, top_at, kept_at)",
        f"offsets = rows[:, None] * {count} + slots",
        *(f"tl.store({n}_ptr + offsets, {value}, mask={mask})" for n, value in stores),
    ]
    text = lines.row_indices() + lines.at_columns(text)
    return KernelText(
        name, ROWS, lines.schedule, lines.arguments("M", "N"), ("BLOCK_SIZE_M", "BLOCK_SIZE_N"), (), tuple(text),
        wide_strides=lines.wide_strides(),
    )  # fmt: skip


def _looped(lines: Lines, count: int, name: str) -> KernelText:
    """A row in blocks."""
    slots, done = _power(count), set[int]()
    once = lines.row_indices() + lines.writer.lines(at_levels(lines.body, (ROW, SCALAR)), done)
    inside, source = _source(lines, done)
    empty = f"tl.full([{slots}], {TAKEN}, tl.int32)"
    before = [f"slots = tl.arange(0, {slots})"]
    if slots > count:  # slots that are never the least
        empty = f"tl.where(slots < {count}, {TAKEN}, 0x7FFFFFFF)"
    before += [f"kept = {empty}", "kept_at = slots", "least = tl.min(kept, axis=0)"]
    inside += [
        f"rest = _ordered({source})",
        "top = tl.max(rest, axis=0)",
        "while top > least:",
        "    # the greatest of what is left, of equals the first, replaces the last of the least",
        "    top_at = tl.min(tl.where(rest == top, cols, N), axis=0)",
        "    last = tl.max(tl.where(kept == least, kept_at, -1), axis=0)",
        "    leaves = (kept == least) & (kept_at == last)",
        "    kept = tl.where(leaves, top, kept)",
        "    kept_at = tl.where(leaves, top_at, kept_at)",
        "    least = tl.min(kept, axis=0)",
        f"    rest = tl.where(cols == top_at, {TAKEN}, rest)",
        "    top = tl.max(rest, axis=0)",
    ]
    places = [f"offsets = row * {count} + rank"] if lines.body.layout.rows else []
    at = "offsets" if places else "rank"
    mask = "" if slots == count else f", mask=slots < {count}"
    after = [
        "# an element's place is the number of those before it",
        "is_tie = kept[None, :] == kept[:, None]",
        "is_before = is_tie & (kept_at[None, :] < kept_at[:, None])",
        "is_before |= kept[None, :] > kept[:, None]",
        *([] if slots == count else [f"is_before &= slots[None, :] < {count}"]),
        "rank = tl.sum(is_before.to(tl.int32), axis=1)",
        *places,
        *(f"tl.store({n}_ptr + {at}, {value}{mask})" for n, value in _by_output(lines, "kept", "kept_at")),
    ]
    loop = Loop(("the greatest so far",), tuple(before), tuple(lines.at_columns(inside)), tuple(after))
    return KernelText(
        name, LOOPED, lines.schedule, lines.arguments("N"), ("BLOCK_SIZE_N",), tuple(once), (), (loop,),
        wide_strides=lines.wide_strides(),
    )  # fmt: skip


_WARPS = Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warp_stage", "launch", "warps a program")
_BLOCKS = (512, 1024, 2048, 4096, 8192)
_ROWS = Variant(
    ROWS, "BLOCK_SIZE_M rows a program, held in registers; the greatest of what is left, again and again",
    Schedule.make("rows", BLOCK_SIZE_M=4, num_warps=1),
    (Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows a program"), _WARPS),
    _legal_in_registers, _in_registers,
)  # fmt: skip
_LOOPED = Variant(
    LOOPED, "one row a program, walked in blocks of BLOCK_SIZE_N; the greatest so far are kept in registers",
    Schedule.make("looped", BLOCK_SIZE_N=4096, num_warps=4),
    (Parameter("BLOCK_SIZE_N", _BLOCKS, "block_size", "constexpr", "elements of a block of the row"), _WARPS),
    _legal_in_blocks, _in_blocks,
)  # fmt: skip
_VARIANTS = {variant.name: variant for variant in (_ROWS, _LOOPED)}

FAMILY = Family(
    NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts, prepared=prepared, longest_row=longest_row
)

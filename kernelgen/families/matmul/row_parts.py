"""Rows of a product that no tile holds: every tile reduces its own columns, a second kernel joins what they came to.

What is left of a row are numbers: sums, extremes and their places, the sum of exponentials of a softmax. The product
itself is never in memory, unless torch multiplies: then the tiles are of what torch left.
"""

from __future__ import annotations

from kernelgen.families.bounds import scalar
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.writer import Writer, tiled_by_blocks
from kernelgen.families.online import Online, online_sums
from kernelgen.families.padding import ancestors, neutral
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.carries import LEAST, OnlineSoftmax
from kernelgen.tile.walk import trimmed

_JOINED = ("sum", "prod", "max", "min", *ARG_REDUCTIONS)
"""Reductions of parts of a row that reduce what these came to once more."""
_PARTS = ir.Axis("parts", "parts", "is_part", "NUM_PARTS", "num_parts")
"""The tiles of a row."""
_HELD = 8192
"""Numbers that a program of the second kernel joins at once: 64 for each of 128 threads."""


def may_be_parts(body: ProductBody) -> bool:
    """Whether all that is left of rows are reductions that tiles of columns can begin."""
    values, columns = body.lowered.values, set(body.extent("n").axes)
    pairs = online_sums(body.lowered)
    carried = {pair.total for pair in pairs}
    found = [i for i, v in enumerate(values) if v.op in REDUCTIONS]
    if (
        not found
        or body.ends is not None
        or not body.extent("m").runs
        or any(values[o.value].axes & columns for o in body.lowered.outputs)
    ):
        return False
    first = (i for i in found if i not in carried)
    alone = all(not any(values[j].op in REDUCTIONS for j in ancestors(body.lowered, i) - {i}) for i in first)
    return alone and all(values[i].op in _JOINED for i in found)


def _reductions(body: ProductBody) -> tuple[list[Online], list[int]]:
    """The softmaxes, and the reductions that are no part of one."""
    pairs = online_sums(body.lowered)
    carried = {i for pair in pairs for i in (pair.total, pair.maximum)}
    return pairs, [i for i, v in enumerate(body.lowered.values) if v.op in REDUCTIONS and i not in carried]


def _softmax(writer: Writer, pair: Online) -> OnlineSoftmax:
    rows, names = writer.tiled.result[:1], writer.body.names.of
    return OnlineSoftmax(ir.Name(names[pair.maximum], rows), ir.Name(names[pair.total], rows), is_finite=pair.finite)


def _memory(writer: Writer, i: int, what: str = "") -> str:
    """What the parts of a reduction are called in memory."""
    name = f"{writer.body.names.of[i]}{what}_parts"
    while name in {t.name for t in (*writer.spec.inputs, *writer.spec.outputs)}:
        name = f"launch_{name}"
    return name


def memory(writer: Writer) -> dict[str, str]:
    """What tiles leave, with the dtype of each."""
    pairs, alone = _reductions(writer.body)
    values = writer.body.lowered.values
    found = {_memory(writer, i): "float32" for pair in pairs for i in (pair.maximum, pair.total)}
    for i in alone:
        kind = values[writer.builder.source(i)].dtype
        kind = "float32" if kind == "float" else kind
        if values[i].op in ARG_REDUCTIONS:
            found[_memory(writer, i, "_extreme")] = kind
        found[_memory(writer, i)] = "int64" if values[i].op in ARG_REDUCTIONS else kind
    return found


def scratch(writer: Writer) -> tuple[ir.Scratch, ...]:
    batch = "BATCH, " if writer.body.extent("batch").runs else ""
    return tuple(ir.Scratch(name, f"(tiles_n, {batch}M)", dtype) for name, dtype in memory(writer).items())


def passed(writer: Writer) -> tuple[ir.Argument, ...]:
    return tuple(ir.Argument(f"{name}_ptr", "pointer", name) for name in memory(writer))


def _place(writer: Writer, tensor: str, part: ir.Expr, shape: ir.Shape) -> ir.Pointer:
    """Where the numbers of a tile, or of all tiles, lie."""
    (m, _), batched = writer.tiled.result, bool(writer.body.extent("batch").runs)
    if batched:
        inner = ir.Apply("mul", (part, ir.Name("BATCH")), part.shape)
        part = ir.Apply("add", (inner, ir.Name("batch")), part.shape)
    before = ir.Apply("mul", (part, ir.Name("M")), part.shape)
    return ir.Pointer(tensor, ((before, None), (ir.Name(m.index, (m,)), None)), shape)


def left(writer: Writer) -> tuple[ir.Stmt, ...]:
    """What a tile reduces its columns to, and how it leaves that."""
    builder, (m, n) = writer.builder, writer.tiled.result
    pairs, alone = _reductions(writer.body)
    values, names = writer.body.lowered.values, writer.body.names.of
    builder.tile = (m, n)
    found: list[ir.Stmt] = []
    kept: list[tuple[str, ir.Expr]] = []
    for number, pair in enumerate(pairs):
        softmax, inside = _softmax(writer, pair), ir.Name(f"elements_{number + 1}" if number else "elements", (m, n))
        found += builder.lets([pair.source], (m, n))
        found.append(ir.Let((inside.text,), builder.guarded(pair.maximum, builder.value(pair.source, (m, n)))))
        found += softmax.whole(inside, n, None)
        kept += [(_memory(writer, pair.maximum), softmax.row_max), (_memory(writer, pair.total), softmax.row_sum)]
    for i in alone:
        name = ir.Name(names[i], (m,))
        source = builder.source(i)
        found += builder.lets([source], (m, n))
        element = builder.guarded(i, builder.value(source, (m, n)))
        numbers: ir.Expr | None = None
        if values[i].op in ARG_REDUCTIONS:
            kind = values[source].dtype
            extreme = ir.Reduce(values[i].op.removeprefix("arg"), element, n, keeps_nan=kind == "float")
            kept.append((_memory(writer, i, "_extreme"), extreme))
            numbers = ir.Name(n.index, (n,))
        found.append(ir.Let((name.text,), builder.reduced(i, element, numbers), builder.said(i)))
        kept.append((_memory(writer, i), name))
    tile = ir.Let(("part",), ir.Cast(ir.Name("tile_n"), "int64"))
    stores = (
        ir.Store(_place(writer, tensor, ir.Name("part"), (m,)), value, writer.mask((m,))) for tensor, value in kept
    )
    said = ir.Remark(("partial results of the tile; a second kernel combines the tiles of a row",), apart=False)
    return (said, *found, tile, *stores)


def joined(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """The kernel that joins the tiles of a row, and computes what follows from rows."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    builder, (m, _) = writer.builder, writer.tiled.result
    pairs, alone = _reductions(body)
    values, names = body.lowered.values, body.names.of
    shape = (_PARTS, m)
    parts = ir.Name(_PARTS.index, (_PARTS,))
    exists = ir.Apply("and", (ir.Name(_PARTS.mask, (_PARTS,)), ir.Name(m.mask, (m,))), shape)

    found: list[ir.Stmt] = []

    def read(i: int, other: float, what: str = "") -> ir.Name:
        name = ir.Name(f"{names[i]}{what}_parts", shape)
        loaded = ir.Load(_place(writer, _memory(writer, i, what), parts, shape), exists, other)
        found.append(ir.Let((name.text,), loaded))
        return name

    for pair in pairs:
        softmax = _softmax(writer, pair)
        found += softmax.of_parts(read(pair.maximum, LEAST), read(pair.total, 0.0), _PARTS)
        builder.known |= {pair.maximum: softmax.row_max, pair.total: softmax.row_sum}
    for i in alone:
        is_arg = values[i].op in ARG_REDUCTIONS
        numbers = read(i, 0) if is_arg else None
        inner = read(i, neutral(body.lowered, i), "_extreme" if is_arg else "")
        builder.known[i] = ir.Name(names[i], (m,))
        found.append(ir.Let((names[i],), builder.reduced(i, inner, numbers, along=_PARTS)))
    blocks, batched = scalar("cdiv", ir.Name("M"), ir.Name("BLOCK_M")), bool(body.extent("batch").runs)
    program: ir.Expr = ir.Program(0)
    number = (ir.Let(("batch",), ir.Cast(scalar("int_div", program, blocks), "int64")),) if batched else ()
    inside = trimmed((
        *number, ir.Let(("tile_m",), scalar("int_mod", program, blocks) if batched else program),
        *writer.numbers(body.extent("m"), m, "tile_m"),
        ir.Let((_PARTS.index,), ir.Cast(ir.Range(_PARTS, ir.Number(0)), "int64")),
        ir.Let((_PARTS.mask,), ir.Apply("lt", (parts, ir.Name(_PARTS.size)), (_PARTS,))),
        *found, *writer.stores(),
    ))  # fmt: skip
    counts = (("joined_parts", "next_power_of_2(tiles_n)"), ("joined_rows", f"max({_HELD} // joined_parts, 1)"))
    arguments = (*passed(writer), *writer.arguments(inside), ir.Argument(_PARTS.size, "number", "tiles_n"))
    constexprs = (("BLOCK_M", "joined_rows"), (_PARTS.block, "joined_parts"))
    grid = "cdiv(M, joined_rows)" + (" * BATCH" if batched else "")
    return ir.Kernel(
        name, schedule, arguments, constexprs, inside, (grid,), counts=counts, options=(("num_warps", "4"),)
    )

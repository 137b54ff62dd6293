"""The kernel of a product that does without the matrix units, which few rows would leave idle."""

from __future__ import annotations

from kernelgen.families.matmul.kernels import cdiv, grid_of, own_tile
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.writer import Tiled, Writer, axis_of, extents_of
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed


def by_vectors(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """A program computes some columns of one row."""
    tiled = Tiled(None, axis_of(body.extent("n"), "BLOCK_N"), axis_of(body.extent("k"), "BLOCK_K"))
    writer = Writer(spec, body, tiled, blocks={"BLOCK_K": schedule["BLOCK_K"]})
    n, k = tiled.n, tiled.k
    along = next((a for a in body.layout.accesses if a.load == writer.factors()[1]), None)
    last = extents_of(body, along)[-1] if along else "k"
    shape = (n, k) if last == "k" else (k, n)
    known = dict(writer.builder.known)
    lets: list[ir.Let | ir.Update] = []
    factors: dict[int, ir.Expr] = {}
    for i in (*body.firsts, *body.seconds):
        if body.lowered.values[i].op == "load":
            lets += writer.builder.lets([i], shape)
            factors[i] = writer.builder.value(i, shape)
        else:
            own, factor = writer.factor(i, writer.builder.shape(i, shape))
            lets += own
            factors[i] = ir.Part(ir.Cast(factor, "float32"), "", "factor")
    writer.builder.known = known
    totals = {dot: ir.Name(writer.of_product(dot, "products"), shape) for dot in body.dots}
    added: list[ir.Let | ir.Update] = []
    for dot, total in totals.items():
        a, b = (factors[i] for i in body.factors_of(dot))
        own, product = writer.scaled(dot, ir.Apply("mul", (a, b), shape))
        added += [*own, ir.Let((total.text,), ir.Apply("add", (total, product), shape))]
    loop = ir.For(
        "start", ir.Number(0), ir.Name("K"), ir.Name("BLOCK_K"),
        (
            ir.Let((k.index,), ir.Cast(ir.Range(k, ir.Name("start")), "int64")),
            ir.Let((k.mask,), ir.Apply("lt", (ir.Name(k.index, (k,)), ir.Name("K")), (k,))),
            *lets, *added,
        ),
        comment=writer.said(),
    )  # fmt: skip
    writer.all_finished()
    tiles, rows = cdiv("N", "BLOCK_N"), bool(body.extent("m").runs)
    own_row, number = own_tile(body, ir.Apply("mul", (tiles, ir.Name("M")), ()) if rows else tiles, ir.Program(0))
    row = (ir.Let(("row",), ir.Cast(ir.Apply("int_div", (number, tiles), ()), "int64")),) if rows else ()
    tile = ir.Apply("int_mod", (number, tiles), ()) if rows else number
    inside = trimmed((
        *own_row, *row, ir.Let(("tile_n",), tile),
        *writer.numbers(body.extent("n"), n, "tile_n"),
        *(ir.Let((total.text,), ir.Zeros(shape)) for total in totals.values()), loop,
        *(ir.Let((writer.carry(dot).text,), ir.Reduce("sum", total, k)) for dot, total in totals.items()),
        *writer.stores(),
    ))  # fmt: skip
    grid = (grid_of(body, f'cdiv(N, options["BLOCK_N"]){" * M" if rows else ""}'),)
    constexprs: tuple[tuple[str, str | None], ...] = (("BLOCK_N", None), ("BLOCK_K", None))
    return ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, grid)

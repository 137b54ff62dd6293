"""How a kernel of a convolution ends: with its pixels, or with what the windows of a pool leave of them."""

from __future__ import annotations

from math import prod

from kernelgen.families.access import Group
from kernelgen.families.bounds import scalar
from kernelgen.families.convolution.writer import ConvolutionWriter, block_of, first_of, taken_apart
from kernelgen.families.values import Use
from kernelgen.tile import ir


def ending(writer: ConvolutionWriter) -> tuple[ir.Stmt, ...]:
    """What follows the sums of a tile, its stores included."""
    body, shape = writer.body, writer.tiled.result
    if body.pooled is None:
        return writer.stores()
    value = body.lowered.values[body.pooled]
    (source,) = (a.value for a in value.args if isinstance(a, Use))
    lets = writer.builder.lets([source], shape)
    after = _Pooled(writer)
    pooled = ir.Name(body.names.of[body.pooled], after.tiled.result)
    left = _left(writer, writer.builder.value(source, shape), f"{value.op.removesuffix('_pool')}_of_rows")
    after.finished(pooled, body.pooled)
    return *lets, ir.Let((pooled.text,), left), *after.window_numbers(), *after.stores()


def _left(writer: ConvolutionWriter, tile: ir.Expr, helper: str) -> ir.Expr:
    """What windows leave of a tile. Those of a box are taken side by side, below one another and behind."""
    body, shape = writer.body, tile.shape
    if not writer.boxes:
        return ir.Call(helper, (tile, ir.Number(prod(body.pool)), ir.Number(1)), shape)
    between: ir.Expr = ir.Number(1)
    for run in reversed(body.extent("m").runs):
        side = writer.side_of(run)
        if side > 1:
            tile = ir.Call(helper, (tile, ir.Number(side), between), shape)
        blocks = _blocks(writer, run)
        between = blocks if between == ir.Number(1) else scalar("mul", between, blocks)
    return tile


def _blocks(writer: ConvolutionWriter, run: Group) -> ir.Expr:
    """The windows of a box along a run of pixels."""
    block, side = ir.Name(block_of(run)), writer.side_of(run)
    return scalar("int_div", block, ir.Number(side)) if side > 1 else block


class _Pooled(ConvolutionWriter):
    """Writes what follows a pool, of tiles with an element for every window."""

    def __init__(self, before: ConvolutionWriter) -> None:
        body = before.body
        m = ir.Axis("m", "places", "place_mask", f"BLOCK_M // {prod(body.pool)}", "M")
        super().__init__(before.spec, body, folded=before.folded, boxes=before.boxes, turns=before.turns, m=m)

    def index(self, run: str) -> ir.Expr:
        if any(g.index == run for g in self.body.extent("m").runs):
            return ir.Name(f"pooled_{run.removeprefix('out_')}", (self.m,))
        return super().index(run)

    def window_numbers(self) -> tuple[ir.Let, ...]:
        """The numbers of a tile's windows."""
        m, runs = self.m, self.body.extent("m").runs
        places, whole = ir.Name(m.index, (m,)), self.windows_along(runs)
        first: ir.Expr = scalar("int_div", ir.Name("first_row"), ir.Number(prod(self.body.pool)))
        found = [ir.Let((m.index,), ir.Range(m, ir.Number(0) if self.boxes else first))]
        inside: ir.Expr | None = None
        for position, run in enumerate(runs):
            sizes = tuple(_blocks(self, r) for r in runs) if self.boxes else whole
            number = taken_apart(places, sizes, position)
            if self.boxes:
                begun: ir.Expr = ir.Name(first_of(run.index))
                side = self.side_of(run)
                begun = scalar("int_div", begun, ir.Number(side)) if side > 1 else begun
                number = ir.Apply("add", (begun, number), (m,))
            name = self.index(run.index)
            assert isinstance(name, ir.Name)
            found.append(ir.Let((name.text,), ir.Cast(number, "int64")))
            test = ir.Apply("lt", (name, whole[position]), (m,))
            inside = test if inside is None else ir.Apply("and", (inside, test), (m,))
        assert inside is not None
        return (*found, ir.Let((m.mask,), inside))

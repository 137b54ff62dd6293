"""Which elements a program has: the statements that number them, and say which of them exist."""

from __future__ import annotations

from kernelgen.tile import ir
from kernelgen.tile.places import wide

PID_M, PID_N = ir.Name("pid_m"), ir.Name("pid_n")
WIDE = "int64: rows * N may pass 2**31"


def numbered(axis: ir.Axis, start: ir.Expr, comment: str = "") -> tuple[ir.Let, ...]:
    """The numbers of a tile's elements along an axis, and which of them exist."""
    exists = ir.Apply("lt", (ir.Name(axis.index, (axis,)), ir.Name(axis.size)), (axis,))
    return ir.Let((axis.index,), ir.Range(axis, start), comment), ir.Let((axis.mask,), exists)


def block(number: ir.Expr, axis: ir.Axis) -> ir.Expr:
    """Where the tile of a number begins."""
    return ir.Apply("mul", (number, ir.Name(axis.block)), ())


def run(axis: ir.Axis) -> tuple[ir.Let, ...]:
    """A run of elements a program."""
    why = "int64: the offset of the last block passes 2**31 from that many elements on"
    start = ir.Let(("block_start",), block(wide(ir.Program(0)), axis), aside=why)
    return start, *numbered(axis, ir.Name("block_start"))

"""Values of a lowered graph as statements over the axes of a tile.

The same call computes what comes before a product, on tiles of its operands, and what comes after it, on tiles of its
result: a value is written where it is needed, along those of the tile's axes that it varies along. Names are the
reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from kernelgen.families.naming import Names
from kernelgen.families.padding import neutral
from kernelgen.families.values import Length, Lowered, Operand, Use, Value
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import REDUCTIONS, Statement
from kernelgen.tile import ir

_INTEGER = {"+": "add", "-": "sub", "*": "mul", "//": "int_div", "%": "int_mod"}


@dataclass
class Builder:
    """Writes the values of one kernel. What has a name is assigned once; the rest is written out where it is used."""

    lowered: Lowered
    names: Names
    statements: tuple[Statement, ...]
    axes: Mapping[int, ir.Axis]
    """The tile's axis of every axis of the space that a tile runs over; others are numbers of the program."""
    load: Callable[[int, ir.Shape], ir.Expr]
    """What reads a load, as the kernel computes with it."""
    sizes: Mapping[str, str]
    """The argument for every named size."""
    known: dict[int, ir.Expr] = field(default_factory=dict)
    """Values that have been computed otherwise, such as a product."""
    quoted: set[int] = field(default_factory=set)
    """The statements of the reference that stand as a comment already."""

    def shape(self, i: int, tile: ir.Shape) -> ir.Shape:
        """Along which axes of a tile a value varies."""
        own = {self.axes[a].name for a in self.lowered.values[i].axes if a in self.axes}
        return tuple(axis for axis in tile if axis.name in own)

    def lets(self, wanted: Iterable[int], tile: ir.Shape) -> tuple[ir.Let, ...]:
        """Assign every named value that some values need and that is not known; they are known then."""
        found = []
        for i in sorted(self._needed(wanted)):
            value = self.lowered.values[i]
            if i not in self.names.assigned or value.op == "const":
                continue
            name = ir.Name(self.names.of[i], self.shape(i, tile))
            found.append(ir.Let((name.text,), self._written(i, tile), self._quoted(value)))
            self.known[i] = name
        return tuple(found)

    def value(self, i: int, tile: ir.Shape) -> ir.Expr:
        """A value where it is used."""
        return self.known[i] if i in self.known else self._written(i, tile)

    def _quoted(self, value: Value) -> str:
        """The statement that a value begins."""
        if value.statement is None or value.op == "load" or value.statement in self.quoted:
            return ""
        self.quoted.add(value.statement)
        return self.statements[value.statement].text

    def _needed(self, wanted: Iterable[int]) -> set[int]:
        found: set[int] = set()
        todo = list(wanted)
        while todo:
            i = todo.pop()
            if i not in found and i not in self.known:
                found.add(i)
                todo += [a.value for a in self.lowered.values[i].args if isinstance(a, Use)]
        return found

    def _operand(self, arg: Operand, tile: ir.Shape) -> ir.Expr:
        if isinstance(arg, Use):
            return self.value(arg.value, tile)
        if isinstance(arg, Length):
            return ir.Number(prod(a for a in arg.dim if isinstance(a, int)))
        return ir.Number(arg)

    def _written(self, i: int, tile: ir.Shape) -> ir.Expr:
        value, shape = self.lowered.values[i], self.shape(i, tile)
        if value.op == "load":
            return self.load(i, shape)
        if value.op == "const":
            return self._operand(value.args[0], tile)
        if value.op == "place":
            (counted,) = value.index
            assert isinstance(counted, ix.Expr)
            return self.place(counted)
        args = tuple(self._operand(a, tile) for a in value.args)
        if value.op in REDUCTIONS:
            return self._reduction(i, args[0])
        if value.op == "round":
            return ir.Cast(ir.Cast(args[0], dtype_of(value)), "float32")
        if value.op == "convert":
            return (
                ir.Apply("ne", (args[0], ir.Number(0)), shape)
                if value.dtype == "bool"
                else ir.Cast(args[0], value.dtype)
            )
        if value.op == "where" and value.dtype != "float":  # of numbers alone, or of sizes, it is int32 otherwise
            return ir.Cast(ir.Apply("where", args, shape), value.dtype)
        if value.op == "div_rn":
            args = (args[0], args[1] if args[1].shape else ir.Cast(args[1], "float32"))
        return ir.Apply(value.op, args, shape)

    def _reduction(self, i: int, arg: ir.Expr) -> ir.Expr:
        """What lies beyond the axis is made neutral first."""
        value = self.lowered.values[i]
        (source,) = value.args
        assert isinstance(source, Use)
        reduced = {self.axes[a].name: self.axes[a] for a in self.lowered.values[source.value].axes - value.axes}
        (axis,) = reduced.values()
        inside = ir.Name(axis.mask, (axis,))
        masked = ir.Apply("where", (inside, arg, ir.Number(neutral(self.lowered, i))), arg.shape)
        return ir.Reduce(value.op, masked, axis)

    def place(self, expr: ix.Expr) -> ir.Expr:
        """A counted number that no axis of a tile is part of."""
        match expr.op:
            case "number":
                return ir.Number(expr.number)
            case "size":
                factors = [ir.Name(self.sizes[a]) if isinstance(a, str) else ir.Number(a) for a in expr.size]
                whole: ir.Expr = factors[0]
                for factor in factors[1:]:
                    whole = ir.Apply("mul", (whole, factor), ())
                return whole
        left, right = (self.place(arg) for arg in expr.args)
        return ir.Apply(_INTEGER[expr.op], (left, right), ())


def dtype_of(value: Value) -> ir.Dtype:
    """What a rounding rounds to."""
    assert value.attr is not None
    tensor, pointer, _ = value.attr.partition("_ptr.dtype")
    return ir.ElementOf(tensor) if pointer else value.attr

"""Values of a lowered graph as statements over the axes of a tile.

The same call computes what comes before a product, on tiles of its operands, and what comes after it, on tiles of its
result: a value is written where it is needed, along those of the tile's axes that it varies along. Names are the
reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from kernelgen.families.folding import is_counted, is_number, is_size
from kernelgen.families.naming import ROW, SCALAR, Names
from kernelgen.families.padding import harmless, neutral
from kernelgen.families.quotients import SMALL, at_least
from kernelgen.families.values import REVERSE, Length, Lowered, Operand, Use, Value, constant_of
from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import COMPARISONS
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS, SCANS, SEARCH, Statement
from kernelgen.frontend.masks import OPERATION
from kernelgen.frontend.operations import LIMITS, NOUNS
from kernelgen.tile import ir
from kernelgen.tile.places import INTEGER, Places, size_of
from kernelgen.tile.places import whole as combined
from kernelgen.tile.walk import without_parts

_NARROW = ("int8", "uint8", "int16")
"""Integers that are reduced as int32."""


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
    others: Mapping[int, float] | None = None
    """What masked lanes load; None: that is not known, and every reduction chooses what it takes."""
    drops_nan: frozenset[int] = frozenset()
    """Maxima and minima whose NaN reaches the outputs some other way."""
    places: Places | None = None
    """What writes places that move with the axes of a tile."""
    counted: Callable[[int, str], ir.Expr] = lambda axis, dtype: ir.Number(0)
    """Where nothing else writes places: the numbers along an axis of the space, in a dtype."""
    mask: Callable[[ir.Shape], ir.Expr | None] | None = None
    """Which elements of a tile exist; None: those that the mask of the reduced axis says."""
    tile: ir.Shape = ()
    """The axes of a tile that reductions run over."""
    more: frozenset[int] = frozenset()
    """Values that are assigned beside those that the names say."""
    is_turned: bool = False
    """Whether the axis that scans run along is numbered from its end."""
    by_rows: bool = False
    """Whether an exact quotient by a number of the row is made of one division a row."""
    together: Callable[[int], tuple[ir.Let, ...] | None] = lambda i: None
    """The statements that assign a value which is not assigned alone, such as a load that others are read with: they
    come where the first of those is needed."""
    narrow: frozenset[int] = frozenset()
    """The places that are counted in int32, whatever their dtype."""

    def shape(self, i: int, tile: ir.Shape) -> ir.Shape:
        """Along which axes of a tile a value varies."""
        own = {self.axes[a].name for a in self.lowered.values[i].axes if a in self.axes}
        return tuple(axis for axis in tile if axis.name in own)

    def lets(self, wanted: Iterable[int], tile: ir.Shape, *, late: bool = True) -> tuple[ir.Let | ir.Update, ...]:
        """Assign every named value that some values need and that is not known; they are known then. `late`: loads
        where they are used first, and not before everything else."""
        found: list[ir.Let | ir.Update] = []
        for i in sorted(self._needed(wanted), key=lambda i: (not late and not self._is_plain_load(i), i)):
            value = self.lowered.values[i]
            if not self.is_assigned(i):
                continue
            name = ir.Name(self.names.of[i], self.shape(i, tile))
            together = self.together(i)
            if together is not None:
                found += together
            elif value.op != "iota":  # which the kernel has anyway
                found.append(self._assigned(i, name, tile))
            self.known.setdefault(i, name)
        return tuple(found)

    def is_assigned(self, i: int) -> bool:
        return (i in self.names.assigned or i in self.more) and self.lowered.values[i].op != "const"

    def _is_plain_load(self, i: int) -> bool:
        return self.lowered.values[i].op == "load" and not self.lowered.values[i].args

    def _assigned(self, i: int, name: ir.Name, tile: ir.Shape) -> ir.Let | ir.Update:
        value, said = self.lowered.values[i], self.said(i)
        if value.op == "add" and isinstance(value.args[0], Use) and self.known.get(value.args[0].value) == name:
            return ir.Update(name.text, "add", self._operand(value.args[1], tile), said)
        return ir.Let((name.text,), self._written(i, tile), said)

    def value(self, i: int, tile: ir.Shape) -> ir.Expr:
        """A value where it is used."""
        if i in self.known:
            return self.known[i]
        value, written = self.lowered.values[i], self._written(i, tile)
        if value.op in ("const", "load"):
            return written
        return ir.Part(written, self.names.of.get(i, ""), NOUNS.get(value.op, value.op), bool(value.name))

    def said(self, i: int) -> str:
        """The statement that a value begins, where it is not yet quoted."""
        value = self.lowered.values[i]
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
            named = any(isinstance(a, str) for a in arg.dim)
            if arg.times > 1:
                return ir.Apply("mul", (ir.Number(float(arg.times)), ir.Name("N")), ())
            return ir.Name("N") if named else ir.Number(prod(a for a in arg.dim if isinstance(a, int)))
        return ir.Number(arg)

    def _written(self, i: int, tile: ir.Shape) -> ir.Expr:
        value, shape = self.lowered.values[i], self.shape(i, tile)
        if value.op in ("load", SEARCH):
            return self.load(i, shape)
        if value.op == "const":
            return self._operand(value.args[0], tile)
        if value.op == "place":
            return self._place(i)
        if value.op in LIMITS:
            return ir.Limit(value.op, dtype_of(value))
        args = tuple(self._operand(a, tile) for a in value.args)
        if value.op in REDUCTIONS:
            return self._reduction(i, args[0])
        if value.op in SCANS:
            return self._scan(i, args[0])
        if value.op == "round":
            known = is_number(self.lowered.values, value.args[0])
            return ir.Cast(ir.Cast(args[0], dtype_of(value), is_tensor=not known), "float32", is_tensor=True)
        if value.op == "convert":
            if value.dtype == "bool":
                return ir.Apply("ne", (args[0], ir.Number(0)), shape)
            return ir.Cast(args[0], value.dtype, is_tensor=not is_size(self.lowered.values, value.args[0]))
        if value.op == "where":
            return self._choice(value, args, shape)
        op = value.op
        if op == "div_rn":
            # a divisor may be compiled in, and is no tensor then
            counted = is_counted(self.lowered.values, value.args[1])
            args = (args[0], ir.Cast(args[1], "float32") if counted else args[1])
            op = self._quotient(i)
        return ir.Apply("mul_rn" if op == "mul" and self._is_shifted(i) else op, args, shape)

    def _is_shifted(self, i: int) -> bool:
        """Whether a product of floats is among those of a row whose greatest or least something is computed from, such
        as their difference, which is 0 for that one if all read the same numbers."""
        values = self.lowered.values
        extremes = [j for j, v in enumerate(values) if v.op in ("max", "min") and Use(i) in v.args]
        return values[i].dtype == "float" and any(Use(j) in v.args for j in extremes for v in values)

    def _quotient(self, i: int) -> str:
        """An exact division: one a row where the divisor is the same for a whole row, or for all elements."""
        divisor, levels = self.lowered.values[i].args[1], self.names.levels
        of_row = isinstance(divisor, Use) and levels[divisor.value] in (ROW, SCALAR)
        if not self.by_rows or not of_row or is_number(self.lowered.values, divisor) or levels[i] in (ROW, SCALAR):
            return "div_rn"
        return "quotient" if at_least(self.lowered.values, divisor) >= SMALL else "lifted_quotient"

    def _choice(self, value: Value, args: tuple[ir.Expr, ...], shape: ir.Shape) -> ir.Expr:
        """A `where`. One of whole numbers alone is int32 otherwise, or what holds these: it is given its own dtype."""
        values, chosen = self.lowered.values, ir.Apply("where", args, shape)
        numbers = all(is_number(values, a) or is_size(values, a) for a in value.args[1:])
        if not numbers or value.dtype in ("float", "bool", "int32"):
            return chosen
        if any(abs(constant_of(values, a) or 0) >= 2**31 for a in value.args[1:]):  # one unsigned and the other not
            return ir.Apply("where", (args[0], *(ir.Cast(a, value.dtype) for a in args[1:])), shape)
        return ir.Cast(chosen, value.dtype, is_tensor=True)

    def _reduction(self, i: int, arg: ir.Expr) -> ir.Expr:
        axis = self._axis(self.lowered.values[self.source(i)].axes - self.lowered.values[i].axes)
        numbers = ir.Name(axis.index, (axis,)) if self.lowered.values[i].op in ARG_REDUCTIONS else None
        return self.reduced(i, self.guarded(i, arg), numbers)

    def reduced(self, i: int, arg: ir.Expr, numbers: ir.Expr | None = None, along: ir.Axis | None = None) -> ir.Expr:
        """Reduction `i`, of its operand or of what that came to lane by lane, or part by part `along` an axis;
        `numbers`: of an arg reduction."""
        value, source = self.lowered.values[i], self.lowered.values[self.source(i)]
        axis = along or self._axis(source.axes - value.axes)
        keeps_nan = value.dtype == "float" and i not in self.drops_nan
        of_sizes = value.op == "max" and keeps_nan and source.op == "abs" and self.others is not None
        found = ir.Reduce("size_max" if of_sizes else value.op, arg, axis, keeps_nan, numbers)
        return ir.Cast(found, value.dtype, is_tensor=True) if value.dtype in _NARROW else found

    def operand(self, i: int, *, neutral_alone: bool = False) -> ir.Expr:
        """What reduction `i` reduces of a tile, with what lies beyond the axis made neutral."""
        source = without_parts(self.value(self.source(i), self.tile))
        return self.guarded(i, source, neutral_alone=neutral_alone)

    def scan(self, i: int) -> ir.Scan:
        """A scan of what is in registers."""
        return self._scan(i, self.value(self.source(i), self.tile))

    def _scan(self, i: int, arg: ir.Expr) -> ir.Scan:
        value, reverse = self.lowered.values[i], self.lowered.values[i].attr == REVERSE
        axis = self._axis(frozenset(self.lowered.space.inner_axes()))
        inner = self.guarded(i, arg) if reverse else arg
        return ir.Scan(value.op, inner, axis, value.dtype, reverse, self.is_turned)

    def _axis(self, axes: frozenset[int]) -> ir.Axis:
        """The tile's axis that some of the space are."""
        (axis,) = {self.axes[a].name: self.axes[a] for a in axes}.values()
        return axis

    def source(self, i: int) -> int:
        """The value that a reduction or a scan runs over."""
        source = self.lowered.values[i].args[0]
        assert isinstance(source, Use)
        return source.value

    def guarded(self, i: int, arg: ir.Expr, *, neutral_alone: bool = False) -> ir.Expr:
        """The operand of a reduction, or of a scan from the end, with what lies beyond the axis made neutral, where it
        is not. `neutral_alone`: because it holds what is neutral, and not because no element is less."""
        value, source = self.lowered.values[i], self.lowered.values[self.source(i)]
        if self.others is not None and harmless(
            self.lowered, self.names.levels, i, dict(self.others), neutral_alone=neutral_alone
        ):
            return arg
        axis = self._axis(source.axes - value.axes) if value.op in REDUCTIONS else None
        inside = self.mask(arg.shape) if self.mask else ir.Name(axis.mask, (axis,)) if axis else None
        assert inside is not None
        if value.op in SCANS and value.dtype == "int64" and source.op != "load":
            arg = ir.Cast(arg, "int64", is_tensor=True)  # places are counted in int32
        return ir.Apply("where", (inside, arg, ir.Number(neutral(self.lowered, i))), arg.shape)

    def _place(self, i: int) -> ir.Expr:
        """A counted place; in int32 where it is only compared, else in its own dtype."""
        value = self.lowered.values[i]
        (counted,) = value.index
        assert isinstance(counted, ix.Expr)
        if self.places is None:
            return self.place(counted, value.dtype)
        consumers = [v.op for v in self.lowered.values if Use(i) in v.args]
        if OPERATION in consumers:  # a number among all elements
            return self.places.wide(counted)
        stored = any(o.value == i for o in self.lowered.outputs)
        if i in self.narrow or (not stored and all(op in (*COMPARISONS, "convert") for op in consumers)):
            return self.places.place(counted)
        if not self.places.shape(counted):
            is_size = counted.op == "size"
            return self.places.size(counted.size, wide=True) if is_size else self.places.place(counted)
        return ir.Cast(self.places.place(counted), value.dtype)

    def place(self, expr: ix.Expr, dtype: str = "int64") -> ir.Expr:
        """A counted number, of a dtype where axes of a tile are part of it."""
        match expr.op:
            case "axis":
                return self.counted(expr.number, dtype)
            case "number":
                return ir.Number(expr.number)
            case "size":
                return size_of(expr.size, self.sizes, wide=True)
        left, right = (self.place(arg, dtype) for arg in expr.args)
        return combined(INTEGER[expr.op], left, right)


def dtype_of(value: Value) -> ir.Dtype:
    """What a rounding rounds to."""
    assert value.attr is not None
    tensor, pointer, _ = value.attr.partition("_ptr.dtype")
    return ir.ElementOf(tensor) if pointer else value.attr

"""Where elements lie: index expressions and conditions in the IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelgen.families.access import COLS, Group
from kernelgen.families.naming import RESERVED, Names, unique
from kernelgen.families.values import Lowered, Value, expressions
from kernelgen.frontend.graph import Atom, Dim, same_size
from kernelgen.frontend.indices import Condition, Expr, leaves
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.spec.sizes import renamed
from kernelgen.tile import ir

INTEGER = {"+": "add", "-": "sub", "*": "mul", "//": "int_div", "%": "int_mod"}
_COMPARISON = {op.sign: op.name for op in OPERATIONS.values() if op.is_comparison}


def products(expr: Expr) -> Iterator[Expr]:
    """The products in an expression."""
    if expr.op == "*":
        yield expr
    for arg in expr.args:
        yield from products(arg)


def whole(op: str, left: ir.Expr, right: ir.Expr, tile: ir.Shape = ()) -> ir.Expr:
    """An operation of whole numbers, along the axes of a tile along which either varies."""
    if op == "add" and isinstance(right, ir.Apply) and right.op in ("add", "sub"):  # the same sum, without brackets
        return whole(right.op, whole(op, left, right.args[0], tile), right.args[1], tile)
    axes = {*left.shape, *right.shape}
    return ir.Apply(op, (left, right), tuple(a for a in tile or (*left.shape, *right.shape) if a in axes))


def wide(number: ir.Expr) -> ir.Cast:
    """The number of a program, or one that was loaded, in int64."""
    return ir.Cast(number, "int64", is_tensor=True)


def taken_apart(groups: Sequence[Group], position: int, number: ir.Expr) -> ir.Expr:
    """The index of one of several groups, from the number of an element of them all."""
    found = number
    inner = [count(g.size) for g in groups[position + 1 :]]
    if inner:
        divisor = inner[0]
        for size in inner[1:]:
            divisor = whole("mul", divisor, size)
        found = whole("int_div", found, divisor, number.shape)
    return whole("int_mod", found, count(groups[position].size), number.shape) if position else found


def count(size: str) -> ir.Expr:
    """A size that is a number or an argument."""
    return ir.Number(int(size)) if size.isdigit() else ir.Name(size)


@dataclass
class Places:
    """Writes expressions of places. What is written more than once gets a name, see `lets`."""

    lowered: Lowered
    names: Names
    sizes: Mapping[str, str]
    """The argument for every named size."""
    variables: Mapping[int, ir.Name]
    """What counts along every axis of the space that stands alone."""
    shape_of: Callable[[int], ir.Shape]
    """Along which axes of the tile a value varies."""
    tile: ir.Shape
    run: tuple[Atom, ...] = ()
    """The space, where it is one run of elements."""
    named: dict[Expr, ir.Name] = field(default_factory=dict)
    widened: frozenset[int] = frozenset()
    """The axes that are counted in int64 for now."""

    def shape(self, expr: Expr) -> ir.Shape:
        """Along which axes of the tile a place moves."""
        axes: set[ir.Axis] = set()
        for leaf in leaves(expr):
            if leaf.op == "axis":
                axes.update(self.variables[leaf.number].shape)
            elif leaf.op == "value":
                axes.update(self.shape_of(leaf.number))
        return tuple(axis for axis in self.tile if axis in axes)

    def name(self, written: Callable[[Value], Iterable[Expr]], may_be: Callable[[Expr], bool]) -> None:
        """Give a name to every place that is written more than once and `may_be` named. `written`: the expressions that
        the statements of a value write out."""
        read = [(expr, self._place_name(value, expr)) for value in self.lowered.values for expr in written(value)]
        stored = [(e, self._variable(e)) for o in self.lowered.outputs for e in o.index if isinstance(e, Expr)]
        counts = Counter(expr for expr, _ in (*read, *stored))
        # what is stored in parts is called after what counts it
        labels = dict((*reversed(read), *stored))
        used = {*RESERVED, *self.names.of.values(), *(name.text for name in self.variables.values())}
        for expr, times in counts.items():
            plain = all(leaf.op != "value" for leaf in leaves(expr))
            if times > 1 and expr.args and plain and may_be(expr):
                self.named[expr] = ir.Name(unique(labels[expr], used), self.shape(expr))

    def _place_name(self, value: Value, expr: Expr) -> str:
        """The variable that a place is counted from, with the tensor that is read there."""
        variable = self._variable(expr)
        return f"{value.tensor}_{'w' if variable == COLS else variable}" if value.tensor else f"{variable}_place"

    def _variable(self, expr: Expr) -> str:
        return next((self.variables[leaf.number].text for leaf in leaves(expr) if leaf.op == "axis"), "place")

    def lets(self) -> tuple[ir.Let, ...]:
        """The places that have names."""
        named, self.named = self.named, {}
        made = tuple(ir.Let((name.text,), self.place(expr)) for expr, name in named.items())
        self.named = named
        return made

    def place(self, expr: Expr) -> ir.Expr:
        if expr in self.named:
            return self.named[expr]
        match expr.op:
            case "number":
                return ir.Number(expr.number)
            case "size":
                return self.size(expr.size)
            case "axis":
                variable = self.variables[expr.number]
                return ir.Cast(variable, "int64") if expr.number in self.widened else variable
            case "value":
                return self.loaded(expr.number)
        left, right = (self.place(arg) for arg in expr.args)
        return whole(INTEGER[expr.op], left, right, self.tile)

    def loaded(self, i: int) -> ir.Expr:
        """A place that is read from memory."""
        name, dtype = ir.Name(self.names.of[i], self.shape_of(i)), self.lowered.values[i].dtype
        return name if dtype == "int64" else wide(name)

    def wide(self, expr: Expr) -> ir.Expr:
        """An expression that may pass 2**31: rows are counted in int64, columns where they are multiplied."""
        factors = {leaf.number for product in products(expr) for leaf in leaves(product) if leaf.op == "axis"}
        self.widened = frozenset(a for a in factors if self.variables[a].text == COLS)
        found = self.place(expr)
        self.widened = frozenset()
        return found

    def size(self, dim: Dim, *, wide: bool = False) -> ir.Expr:
        """A size in terms of the kernel's arguments. `wide`: a product in int64, because it may pass 2**31."""
        if self.run and same_size(dim, self.run):
            return ir.Name("n_elements")
        return size_of(dim, self.sizes, wide=wide)

    def spelled(self, condition: Condition) -> ir.Expr:
        """A condition where the names of places are not yet made."""
        named, self.named = self.named, {}
        found = self.condition(condition)
        self.named = named
        return found

    def condition(self, condition: Condition) -> ir.Expr:
        return whole(_COMPARISON[condition.op], self.place(condition.left), self.place(condition.right), self.tile)


def size_of(dim: Dim, sizes: Mapping[str, str], *, wide: bool) -> ir.Expr:
    """A size, by the argument for every named one. `wide`: a product in int64, because it may pass 2**31."""
    factors = [ir.Size(renamed(a, sizes)) if isinstance(a, str) else ir.Number(a) for a in dim]
    found: ir.Expr = factors[0]
    if wide and len(factors) > 1:
        found = ir.Cast(found, "int64")
    for factor in factors[1:]:
        found = whole("mul", found, factor)
    return found


def read_places(value: Value) -> tuple[Expr, ...]:
    """The expressions that a value's statements write out, and what a number is added to in them."""
    found = expressions(value)
    return (*found, *(e.args[0] for e in found if e.op == "+" and e.args[1].op == "number"))

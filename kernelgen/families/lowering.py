"""From a graph to values over one iteration space: views become indices, and every input access is explicit.

Indices are pulled from the outputs back to the inputs, so a view costs nothing and a tensor that is read through two
different views is two loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from kernelgen.families.dtypes import element_types
from kernelgen.families.exclusive_scans import begins_so, begun, is_load, mirror, places_later, settled_scan, visible
from kernelgen.families.folding import constant, folded
from kernelgen.families.joins import Cut, chosen_part, cuts, in_parts, is_simple, reduced_in_parts, times_in
from kernelgen.families.padding import identity
from kernelgen.families.quotients import divides_row, exact_quotients, inverse
from kernelgen.families.ranges import known, simpler
from kernelgen.families.space import atoms_of, not_of_rows, sizes_of, space_of, split
from kernelgen.families.transposed import turned
from kernelgen.families.values import (
    REVERSE,
    Entry,
    Index,
    Length,
    Lowered,
    NotWhole,
    Operand,
    Space,
    Stored,
    Unlowerable,
    Use,
    Value,
    axes_along,
    axes_of,
    axes_read,
    constant_of,
    moves_with,
    values_in,
)  # fmt: skip
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import (
    INDEXED,
    REDUCTIONS,
    SCANS,
    SEARCH,
    Atom,
    Dim,
    Graph,
    Node,
    Output,
    Ref,
    SizeOf,
    same_size,
)
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.joined import in_order
from kernelgen.frontend.operations import LIMITS
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.sizes import size_text


def lower_values(spec: OperatorSpec, graph: Graph) -> Lowered:
    """The values of a graph. Raises Unlowerable where it needs more than one iteration space.

    Where dimensions are read through expressions, every dimension of the result is one axis; elsewhere the factors of
    its size are axes, so that what a reshape has joined need not be taken apart again. What a reshape takes apart all
    the same is read through expressions, with quotients and remainders of axes.
    """
    try:
        return _of_whole_axes(spec, graph)
    except NotWhole:
        if (ordered := in_order(graph)) != graph:
            with suppress(Unlowerable):
                return _of_whole_axes(spec, ordered)
        return _lowered(spec, graph, apart=any(n.op in INDEXED for n in graph.nodes), cuts_axes=True)


def _of_whole_axes(spec: OperatorSpec, graph: Graph) -> Lowered:
    """The values of a graph whose reshapes of what is reduced or scanned join and part whole axes. Raises NotWhole for
    another."""
    apart = any(n.op in INDEXED for n in graph.nodes)
    if any(n.op in SCANS for n in graph.nodes):
        return _lowered(spec, graph, apart=False)
    if not apart and not any(n.op in REDUCTIONS for n in graph.nodes):
        try:
            lowered = _lowered(spec, graph, apart=False)
        except Unlowerable:
            apart = True
        else:
            other = turned(lowered)
            return lowered if other is None else _lowered(spec, graph, apart=False, space=other)
    try:
        whole = _lowered(spec, graph, apart=apart)
    except Unlowerable:  # rows that are read at other places, such as halves that change places
        parts = next(filter(is_simple, _by_cuts(spec, graph, apart=apart)), None)
        if parts is None:
            raise
        return parts
    return in_parts(whole, _by_cuts(spec, graph, apart=apart))


def _by_cuts(spec: OperatorSpec, graph: Graph, *, apart: bool) -> Iterator[Lowered]:
    """The values over one part of every output, for every way in which these fall into parts."""
    for cut in cuts(graph):
        parted = reduced_in_parts(graph, cut)
        if parted is not None:
            with suppress(Unlowerable):
                yield _lowered(spec, parted, apart=apart, cut=cut)


def _lowered(
    spec: OperatorSpec,
    graph: Graph,
    *,
    apart: bool,
    space: Space | None = None,
    cut: Cut | None = None,
    cuts_axes: bool = False,
) -> Lowered:
    if cut is not None:
        space = cut.space(graph)
    space = space or space_of(graph, apart=apart)
    rows = tuple(space.axes[a] for a in space.inner_axes())
    for node in (n for n in graph.nodes if n.op in REDUCTIONS):
        (source,) = (graph.nodes[a.node] for a in node.args[:1] if isinstance(a, Ref))
        if atoms_of(tuple(source.shape[int(d)] for d in node.attrs)) != rows:
            raise Unlowerable("reductions over different dimensions in one operator", node.statement)
    lowering = Lowering(graph, space, apart=apart, cuts_axes=cuts_axes)
    stored = []
    for output in graph.outputs:
        node = graph.nodes[output.node]
        for index in cut.indices(node.shape) if cut else (lowering.output_index(node),):
            stored.append(Stored(output.name, lowering.unrounded(output, index), output.dtype, index))
    likes = {t.name for t in spec.inputs if t.role == "like"}
    for value in lowering.values:
        if value.tensor in likes:
            raise Unlowerable(f"{value.tensor} is declared `like`, but its elements are read")
    variables = element_types(spec, lowering.values)
    values = tuple(replace(v, attr=variables.get(v.attr or "", v.attr)) for v in lowering.values)
    return Lowered(space, values, tuple(stored), has_reciprocals=lowering.has_reciprocals)


class Lowering:
    """Pulls indices from the outputs to the inputs; equal values are made once."""

    def __init__(self, graph: Graph, space: Space, *, apart: bool, cuts_axes: bool = False) -> None:
        self.graph = graph
        self.space = space
        self.apart = apart
        self.cuts_axes = cuts_axes
        """Whether reshapes may read parts of axes."""
        self.conditions: tuple[Condition, ...] = ()
        """Where what is being lowered is looked at."""
        self.fill: float | int | bool | None = None
        self.exact = exact_quotients(graph)
        self.values: list[Value] = []
        self.known: dict[Value, int] = {}
        self.lowered: dict[object, int] = {}
        self.later: dict[int, Expr] = {}
        """Scans that are read later than they begin, and from which place on: before, nothing is added."""
        self.scanned = any(n.op in SCANS for n in graph.nodes)
        self.has_reciprocals = False
        self.flipped = False
        """Whether indices now run along the rows from their ends."""

    def add(self, value: Value) -> int:
        key = replace(value, name=None, statement=None)
        if key not in self.known:
            self.known[key] = len(self.values)
            self.values.append(value)
        elif value.name and not self.values[self.known[key]].name:
            self.values[self.known[key]] = replace(self.values[self.known[key]], name=value.name)
        return self.known[key]

    def unrounded(self, output: Output, index: Index) -> int:
        """The value of an output; storing it rounds it, so that a last cast to the output's dtype is none."""
        i = self.value(output.node, index)
        value = self.values[i]
        source = value.args[0] if value.op == "round" and value.attr == output.dtype else None
        if not isinstance(source, Use) or self.values[source.value].op == "load":
            return i
        if not self.values[source.value].name:
            self.values[source.value] = replace(self.values[source.value], name=value.name)
        return source.value

    def output_index(self, node: Node) -> Index:
        """The whole space, or its outer axes alone where the rows were reduced away."""
        if self.apart and not self.space.inner_axes():
            atoms = sizes_of(node.shape)
            if atoms == self.space.axes:
                numbers = iter(range(len(atoms)))
                return tuple((next(numbers),) if dim else () for dim in node.shape)
        atoms = atoms_of(node.shape)
        for axes in (self.space.natural(), tuple(range(self.space.outer))):
            if same_size(atoms, tuple(self.space.axes[a] for a in axes)):
                return split(node.shape, axes, self.space)
        raise Unlowerable(not_of_rows(node.shape, self.space), node.statement)

    def value(self, number: int, index: Index) -> int:
        """The value of a node at an index, under the conditions at hand; what is used twice is lowered once."""
        key = (number, index, self.conditions, self.fill, self.flipped)
        if key not in self.lowered:
            self.lowered[key] = self.lower(number, index)
        return self.lowered[key]

    def lower(self, number: int, index: Index) -> int:
        node = self.graph.nodes[number]
        if node.op == "input":
            if self.flipped and {a for dim in index for a in axes_of(dim)} & set(self.space.inner_axes()):
                raise Unlowerable(f"a flip of {node.name} outside a scan from the end, x.flip(-1).cumsum(-1).flip(-1)")
            return self.load(node, index)
        if node.op == "full":
            return self.add(constant(node, node.args[0]))  # type: ignore[arg-type]
        if node.op in LIMITS:
            return self.add(
                Value(node.op, (), node.dtype, frozenset(), node.name, node.statement, attr=str(node.attrs[0]))
            )
        if node.op == "iota":
            return self.iota(node, index[int(node.attrs[0])])
        if self.graph.is_view(node):
            source = node.args[0]
            assert isinstance(source, Ref)
            return self.same(node, self.view(node, self.graph.nodes[source.node], index))
        if node.op == "round" and node.attrs == ("float32",):
            return self.same(node, index)
        if node.op in REDUCTIONS:
            return self.reduction(node, index)
        if node.op in SCANS:
            return self.scan(node, index)
        if node.op == SEARCH:
            return self.search(node, index)
        if node.op == "index":
            return self.flip(node, index) if self.scanned and node.attrs else self.indexed(node, index)
        if node.op == "place":
            counted = self.place_number(node, index)
            return self.add(
                Value("place", (), node.dtype, frozenset(axes_of(counted)), node.name, node.statement, index=(counted,))
            )
        part = chosen_part(self.graph, node, lambda place: self.place_number(place, index), self.space.axes)
        if part is not None:
            return self.same(node, index, part)
        return self.map(node, index, exact=number in self.exact)

    def place_number(self, place: Node, index: Index) -> Expr:
        """The number that a place has at an index."""
        found = self.expression(place, index, ()).places[0]
        if self.flipped and set(axes_of(found)) & set(self.space.inner_axes()):
            raise Unlowerable("places that are not those of a row from its start", place.statement)
        return found

    def iota(self, node: Node, axes: Entry) -> int:
        """The numbers of the columns."""
        if axes != self.space.inner_axes() or self.flipped:
            raise Unlowerable("indices that are not those of a row from its start", node.statement)
        return self.add(Value("iota", (), node.dtype, frozenset(axes_of(axes)), index=(axes,)))

    def load(self, node: Node, index: Index) -> int:
        # the first of a dimension is all that is left of one that follows another only where it has no more
        ahead = next((d for d, e in enumerate(index) if e != ix.number(0)), len(index))
        index = tuple(() if e == ix.number(0) and (d < ahead or not node.shape[d]) else e for d, e in enumerate(index))
        runs = Counter(a for e in index if isinstance(e, tuple) for a in e)
        # along a diagonal one axis counts in several dimensions, in none of which it is a run of the tensor's
        index = tuple(self.position(e) if isinstance(e, tuple) and any(runs[a] > 1 for a in e) else e for e in index)
        conditions = tuple(c for c in self.conditions if self.fill is not None or moves_with(c, index, self.values))
        used = [*index, *(side for c in conditions for side in (c.left, c.right))]
        values = tuple(Use(v) for v in values_in(used))
        return self.add(
            Value(
                "load", values, node.dtype, axes_along(used, self.values), node.name, None, str(node.attrs[0]),
                index, conditions, self.fill,
            )
        )  # fmt: skip

    def indexed(self, node: Node, index: Index) -> int:
        """The first operand read at expressions, and only where the conditions hold."""
        if self.flipped:
            raise Unlowerable("moved elements in an operator with a reverse scan", node.statement)
        source, *others = node.args
        assert isinstance(source, Ref)
        values = tuple(self.operand(arg.node, index) for arg in others if isinstance(arg, Ref))
        made = self.expression(node, index, values)
        shape = self.graph.nodes[source.node].shape
        places = tuple(() if d == () else self.plain(p, d) for d, p in zip(shape, made.places, strict=True))
        # where a row is read at several places, what pads it is chosen by its reduction
        padded = not axes_read(made, self.values, values).isdisjoint(self.space.inner_axes())
        value = self.read(node, source.node, places, made, padded=padded)
        if others and node.name is not None and self.values[value].op != "where":
            self.values[value] = replace(self.values[value], name=node.name)
        return value

    def read(self, node: Node, source: int, places: Index, made: ix.Indexing, *, padded: bool) -> int:
        """A value at its places where the conditions hold, and the fill elsewhere."""
        outer, before = self.conditions, self.fill
        moved = made.fill is None and before is not None  # what is read for a fill, which the load is to hold
        fresh = is_load(self.graph, source) and not set(outer) - set(made.conditions) and not padded
        direct = moved or fresh
        self.conditions = tuple(dict.fromkeys((*outer, *made.conditions)))
        self.fill = before if moved else made.fill if fresh else None
        value = self.value(source, places)
        self.conditions, self.fill = outer, before
        done = made.fill is None or direct or begins_so(self.values, self.later, value, made)
        return value if done else self.chosen(node, made, value)

    def chosen(self, node: Node, made: ix.Indexing, value: int) -> int:
        """A value where all conditions hold, and the fill elsewhere."""
        assert made.fill is not None
        for condition in made.conditions:
            sides = [Use(self.counted(side)) for side in (condition.left, condition.right)]
            axes = frozenset(a for side in sides for a in self.values[side.value].axes)
            op = "lt" if condition.op == "<" else "ge"
            test = self.add(Value(op, tuple(sides), "bool", axes, None, node.statement))
            axes = axes | self.values[value].axes
            value = self.add(Value("where", (Use(test), Use(value), made.fill), node.dtype, axes, None, node.statement))
        return value

    def counted(self, expr: Expr) -> int:
        """An expression as a value."""
        used = dict.fromkeys(leaf.number for leaf in ix.leaves(expr) if leaf.op == "value")
        axes = frozenset(axes_of(expr)).union(*(self.values[v].axes for v in used))
        return self.add(Value("place", tuple(Use(v) for v in used), "int64", axes, index=(expr,)))

    def operand(self, number: int, index: Index) -> int:
        """A value that broadcasts to where it is used."""
        before, self.fill = self.fill, None
        value = self.value(number, self.aligned(number, index))
        self.fill = before
        return value

    def aligned(self, number: int, index: Index) -> Index:
        """The index into an operand that broadcasts to where it is used."""
        shape = self.graph.nodes[number].shape
        own = index[len(index) - len(shape) :]
        return tuple(() if d == () else i for d, i in zip(shape, own, strict=True))

    def expression(self, node: Node, index: Index, values: tuple[int, ...]) -> ix.Indexing:
        """How a node is read, in terms of axes of the space and values of the kernel."""

        def leaf(expr: Expr) -> Expr:
            if expr.op == "value":
                return ix.value(values[expr.number])
            return self.position(index[len(index) + expr.number])

        assert node.indexing is not None
        conditions = tuple(
            Condition(ix.substitute(c.left, leaf), c.op, ix.substitute(c.right, leaf)) for c in node.indexing.conditions
        )
        conditions = tuple(c for c in conditions if not known(c, self.space.axes))
        places = tuple(simpler(ix.substitute(p, leaf), self.space.axes) for p in node.indexing.places)
        return ix.Indexing(places, conditions, node.indexing.fill)

    def position(self, entry: Entry) -> Expr:
        """An entry of an index as one expression."""
        if isinstance(entry, Expr):
            return entry
        return ix.linear(tuple(ix.axis(a) for a in entry), tuple((self.space.axes[a],) for a in entry))

    def same(self, node: Node, index: Index, operand: int = 0) -> int:
        """An operand itself, which takes the node's name if it has none."""
        source = node.args[operand]
        assert isinstance(source, Ref)
        value = self.value(source.node, self.aligned(source.node, index))
        if node.name and not self.values[value].name:
            self.values[value] = replace(self.values[value], name=node.name)
        return value

    def map(self, node: Node, index: Index, *, exact: bool) -> int:
        args: list[Operand] = []
        for arg in node.args:
            if isinstance(arg, Ref):
                args.append(Use(self.value(arg.node, self.aligned(arg.node, index))))
            else:
                divides = node.op == "div" and node.dtype == "float"
                args.append((self.divisor if divides else self.length)(arg) if isinstance(arg, SizeOf) else arg)
        op = node.op
        if op == "div" and exact:
            op = "div_rn"
        elif op == "div" and divides_row(self.values, self.space.inner_axes(), args):
            op, args[1] = "mul", Use(self.add(inverse(self.values, args[1], node.statement)))
            self.has_reciprocals = True
        elif op == "where" and (settled := settled_scan(self.values, self.later, args)) is not None:
            return settled
        constants = [constant_of(self.values, arg) for arg in args]
        chosen = (args[1] if constants[0] else args[2]) if op == "where" and constants[0] is not None else None
        if isinstance(chosen, Use):
            return chosen.value
        if None not in constants and node.op != "round":
            return self.add(folded(node, constants))
        axes = frozenset(a for arg in args if isinstance(arg, Use) for a in self.values[arg.value].axes)
        attr = str(node.attrs[0]) if op == "round" else None
        return self.add(Value(op, tuple(args), node.dtype, axes, node.name, node.statement, attr=attr))

    def divisor(self, size: SizeOf) -> Operand:
        """A size that a float is divided by: of several parts of a reduced row, so many times one of them."""
        rows = self.rows()
        times = times_in(size.dim, rows) if rows else 0
        return Length(rows, times) if times > 1 else self.length(size)

    def rows(self) -> tuple[Atom, ...]:
        """What a reduced row is as long as, which kernels have as N; () where N is something else."""
        return tuple(self.space.axes[a] for a in self.space.inner_axes())

    def length(self, size: SizeOf) -> Operand:
        """A size as a number: that of a reduced row, or counted as a place is."""
        rows = self.rows()
        if not any(isinstance(a, str) for a in size.dim) or (rows and same_size(size.dim, rows)):
            return Length(size.dim)
        return Use(self.counted(ix.size(size.dim)))

    def reduction(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        shape = self.graph.nodes[source.node].shape
        reduced = [int(d) + len(shape) for d in node.attrs]
        if any(a in self.space.inner_axes() for d, dim in enumerate(index) if d not in reduced for a in axes_of(dim)):
            raise Unlowerable("a reduction of one row that is used in another", node.statement)
        rows = dict(
            zip(reduced, split(tuple(shape[d] for d in reduced), self.space.inner_axes(), self.space), strict=True)
        )
        # the whole row is read, wherever its reduction is looked at
        before, inside = self.conditions, set(self.space.inner_axes())
        self.conditions = tuple(c for c in before if not inside & {*axes_of(c.left), *axes_of(c.right)})
        value = self.value(source.node, tuple(rows.get(d, dim) for d, dim in enumerate(index)))
        self.conditions = before
        if not set(self.space.inner_axes()) <= self.values[value].axes:
            raise Unlowerable("a reduction of a value that does not vary along the reduced dimensions", node.statement)
        axes = self.values[value].axes - set(self.space.inner_axes())
        return self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement))

    def search(self, node: Node, index: Index) -> int:
        raise Unlowerable("searchsorted or bucketize outside of attention", node.statement)

    def scan(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        before, self.conditions = self.conditions, visible(self.conditions, node, self.space, flipped=self.flipped)
        value, self.conditions = self.scanned_value(node, source.node, index), before
        if not set(self.space.inner_axes()) <= self.values[value].axes:
            raise Unlowerable("a scan of a value that does not vary along the scanned dimension", node.statement)
        attr = REVERSE if self.flipped else None
        if any(v.op in SCANS and v.attr != attr for v in self.values):
            raise Unlowerable("forward and reverse scans in one operator", node.statement)
        axes = self.values[value].axes
        made = self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement, attr=attr))
        if places_later(index[int(node.attrs[0])], self.space.inner_axes()):
            self.later[made] = self.position(index[int(node.attrs[0])])
        return made

    def scanned_value(self, node: Node, source: int, index: Index) -> int:
        """What is scanned. A scan that is read k places later is the scan of its operand k places later, after k
        elements that do not change it: so exclusive scans are one scan."""
        later = places_later(index[int(node.attrs[0])], self.space.inner_axes())
        if later is None:
            raise Unlowerable("scans over different dimensions in one operator", node.statement)
        if not later:
            return self.value(source, index)
        beyond = begun(later, self.space, flipped=self.flipped)
        return self.read(node, source, index, ix.Indexing((), (beyond,), identity(node.op, node.dtype)), padded=False)

    def flip(self, node: Node, index: Index) -> int:
        """The operand from its rows' ends: a scan between two flips is a scan from the end."""
        mirrored = mirror(node, index, self.space)
        self.flipped = not self.flipped
        value = self.same(node, mirrored)
        self.flipped = not self.flipped
        return value

    def view(self, node: Node, source: Node, index: Index) -> Index:
        """The index into a view's source for an index into the view."""
        if node.op == "permute":
            inverse = {int(d): i for i, d in enumerate(node.attrs)}
            return tuple(index[inverse[d]] for d in range(len(source.shape)))
        if node.op == "expand":
            own = index[len(index) - len(source.shape) :]
            return tuple(() if d == () else i for d, i in zip(source.shape, own, strict=True))
        if (self.apart and not self.space.inner_axes()) or any(isinstance(entry, Expr) for entry in index):
            return self.reshape(node, source, index)
        axes = tuple(a for dim in index for a in axes_of(dim))
        try:
            return split(source.shape, axes, self.space, node.statement)
        except NotWhole:
            if self.cuts_axes:
                return self.reshape(node, source, index)
            raise

    def reshape(self, node: Node, source: Node, index: Index) -> Index:
        """Where a reshape reads its source; dimensions that it keeps stay whole."""
        places = ix.reshaped(source.shape, node.shape, tuple(self.position(e) for e in index))
        places = tuple(simpler(place, self.space.axes) for place in places)
        return tuple(() if d == () else self.plain(p, d) for d, p in zip(source.shape, places, strict=True))

    def plain(self, expr: Expr, dim: Dim) -> Entry:
        """An expression that is one axis as that axis, where the whole dimension is read: not only its start."""
        whole = expr.op == "axis" and str(self.space.axes[expr.number]) == size_text(dim)
        return (expr.number,) if whole else expr

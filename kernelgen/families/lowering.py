"""From a graph to values over one iteration space: views become indices, and every input access is explicit.

Indices are pulled from the outputs back to the inputs, so a view costs nothing and a tensor that is read through two
different views is two loads.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.triton_text import evaluate
from kernelgen.families.values import REVERSE, Index, Length, Lowered, Operand, Space, Stored, Unlowerable, Use, Value
from kernelgen.frontend.graph import REDUCTIONS, SCANS, Atom, Dim, Graph, Node, Output, Ref, SizeOf, same_size
from kernelgen.spec.model import OperatorSpec

_STEPS = ("rint", "floor", "ceil", "trunc", "eq", "ne", "lt", "le", "gt", "ge")
"""Operations whose result jumps where their operand changes by one unit in the last place."""


def lower_values(spec: OperatorSpec, graph: Graph) -> Lowered:
    """The values of a graph. Raises Unlowerable where it needs more than one iteration space."""
    space = _space(graph)
    lowering = _Lowering(graph, space)
    stored = []
    for output in graph.outputs:
        index = lowering.output_index(graph.nodes[output.node])
        stored.append(Stored(output.name, lowering.unrounded(output, index), output.dtype, index))
    _check_numbers(graph, space)
    likes = {t.name for t in spec.inputs if t.role == "like"}
    for value in lowering.values:
        if value.tensor in likes:
            raise Unlowerable(f"{value.tensor} is declared like, but its elements are read")
    variables = _variables(spec, lowering.values)
    values = tuple(replace(v, attr=variables.get(v.attr or "", v.attr)) for v in lowering.values)
    return Lowered(space, values, tuple(stored))


def _variables(spec: OperatorSpec, values: list[Value]) -> dict[str, str]:
    """For every dtype variable the element type of a pointer that the kernel has and that carries it."""
    read = {v.tensor for v in values}
    pointers = [*(t for t in spec.inputs if t.name in read), *spec.outputs]
    found = {t.dtype: f"{t.name}_ptr.dtype.element_ty" for t in reversed(pointers) if t.dtype in dict(spec.dtypes)}
    for value in values:
        if value.attr in dict(spec.dtypes) and value.attr not in found:
            raise Unlowerable(f"a cast to {value.attr}, a dtype of nothing that is read or written", value.statement)
    return found


def _check_numbers(graph: Graph, space: Space) -> None:
    """A size may be used as a number where it is the row length, the one size that every kernel knows."""
    rows = tuple(space.axes[a] for a in space.inner_axes())
    for node in graph.nodes:
        for arg in node.args:
            if isinstance(arg, SizeOf) and any(isinstance(a, str) for a in arg.dim) and not same_size(arg.dim, rows):
                shown = " * ".join(str(a) for a in arg.dim)
                raise Unlowerable(
                    f"the size {shown} as a number (supported: the length of a reduced row)", node.statement
                )


def _space(graph: Graph) -> Space:
    reductions = [n for n in graph.nodes if n.op in REDUCTIONS]
    scans = [n for n in graph.nodes if n.op in SCANS]
    if scans:
        return _scanned_space(graph, scans, reductions)
    if not reductions:
        shapes = [_atoms(graph.nodes[o.node].shape) for o in graph.outputs]
        return Space(max(shapes, key=len), len(max(shapes, key=len)))
    best: Space | None = None
    for node in reductions:
        source = node.args[0]
        assert isinstance(source, Ref)
        shape = graph.nodes[source.node].shape
        space = _kept_first(shape, {int(d) for d in node.attrs})
        if best is None or len(space.axes) > len(best.axes):
            best = space
    assert best is not None
    return best


def _kept_first(shape: tuple[Dim, ...], reduced: set[int]) -> Space:
    """The space of a reduction: the atoms of the kept dimensions, then those of the reduced ones."""
    flags = [i - len(shape) in reduced for i, dim in enumerate(shape) for _ in dim]
    places = sorted(range(len(flags)), key=lambda place: flags[place])
    order = tuple(places.index(place) for place in range(len(flags)))
    atoms = _atoms(shape)
    axes = tuple(atoms[place] for place in places)
    return Space(axes, len(flags) - sum(flags), () if order == tuple(range(len(order))) else order)


def _scanned_space(graph: Graph, scans: list[Node], reductions: list[Node]) -> Space:
    """Rows along the scanned dimension, of the largest shape that is scanned or returned."""
    if reductions:
        raise Unlowerable("a reduction and a scan in one operator", reductions[0].statement)
    for node in scans:
        if node.attrs != (-1,):
            raise Unlowerable(f"a scan over dimension {node.attrs[0]} (supported: the last)", node.statement)
        if node.shape[-1] == ():
            raise Unlowerable("a scan over a dimension of one element", node.statement)
    shapes = [node.shape for node in scans] + [graph.nodes[o.node].shape for o in graph.outputs]
    axes = max(map(_atoms, shapes), key=len)
    return Space(axes, len(axes) - len(scans[0].shape[-1]))


def _atoms(shape: tuple[Dim, ...]) -> tuple[Atom, ...]:
    return tuple(atom for dim in shape for atom in dim)


def _exact_quotients(graph: Graph) -> frozenset[int]:
    """The divisions whose last bit decides: 6 / 3 must not be 1.9999999 where it is rounded down or compared."""
    found = set()
    for node in graph.nodes:
        if node.op in _STEPS or (node.op == "convert" and node.dtype != "float"):
            for arg in node.args:
                number = arg.node if isinstance(arg, Ref) else None
                while number is not None and (graph.is_view(graph.nodes[number]) or graph.nodes[number].op == "round"):
                    source = graph.nodes[number].args[0]
                    number = source.node if isinstance(source, Ref) else None
                if number is not None and graph.nodes[number].op == "div":
                    found.add(number)
    return frozenset(found)


class _Lowering:
    """Pulls indices from the outputs to the inputs; equal values are made once."""

    def __init__(self, graph: Graph, space: Space) -> None:
        self.graph = graph
        self.space = space
        self.exact = _exact_quotients(graph)
        self.values: list[Value] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.flipped = False
        """Whether indices now run along the rows from their ends."""

    def add(self, value: Value) -> int:
        key = (value.op, value.args, value.dtype, value.tensor, value.index, value.attr)
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
        if not isinstance(source, Use) or self.values[source.value].op in ("load", "const"):
            return i
        if not self.values[source.value].name:
            self.values[source.value] = replace(self.values[source.value], name=value.name)
        return source.value

    def output_index(self, node: Node) -> Index:
        """The whole space, or its outer axes alone where the rows were reduced away."""
        atoms = _atoms(node.shape)
        for axes in (self.space.natural(), tuple(range(self.space.outer))):
            if atoms == tuple(self.space.axes[a] for a in axes):
                return _split(node.shape, axes, self.space)
        raise Unlowerable(
            "an output whose shape is neither the shape of the rows nor that of their reductions", node.statement
        )

    def value(self, number: int, index: Index) -> int:
        node = self.graph.nodes[number]
        if node.op == "input":
            axes = frozenset(a for dim in index for a in dim)
            if self.flipped and axes & set(self.space.inner_axes()):
                raise Unlowerable(f"a flip of {node.name} outside a scan from the end, x.flip(-1).cumsum(-1).flip(-1)")
            return self.add(Value("load", (), node.dtype, axes, node.name, None, str(node.attrs[0]), index))
        if node.op == "full":
            return self.add(Value("const", node.args, node.dtype, frozenset(), None, node.statement))  # type: ignore[arg-type]
        if node.op == "iota":
            return self.iota(node, index[int(node.attrs[0])])
        if node.op == "flip":
            return self.flip(node, index)
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
        return self.map(node, index, exact=number in self.exact)

    def iota(self, node: Node, axes: tuple[int, ...]) -> int:
        """The numbers of the columns."""
        if axes != self.space.inner_axes() or self.flipped:
            raise Unlowerable("the numbers of other elements than those of a row from its beginning", node.statement)
        return self.add(Value("iota", (), node.dtype, frozenset(axes), index=(axes,)))

    def same(self, node: Node, index: Index) -> int:
        """The operand itself, which takes the node's name if it has none."""
        source = node.args[0]
        assert isinstance(source, Ref)
        value = self.value(source.node, index)
        if node.name and not self.values[value].name:
            self.values[value] = replace(self.values[value], name=node.name)
        return value

    def map(self, node: Node, index: Index, *, exact: bool) -> int:
        args: list[Operand] = []
        for arg in node.args:
            if isinstance(arg, Ref):
                shape = self.graph.nodes[arg.node].shape
                own = index[len(index) - len(shape) :]
                args.append(
                    Use(self.value(arg.node, tuple(() if d == () else i for d, i in zip(shape, own, strict=True))))
                )
            else:
                args.append(Length(arg.dim) if isinstance(arg, SizeOf) else arg)
        op = node.op
        if op == "div" and exact:
            op = "div_rn"
        elif op == "div" and self.divides_row(args):
            op, args[1] = "mul", Use(self.inverse(args[1], node))
        constants = [self.constant(arg) for arg in args]
        if None not in constants and node.op not in ("convert", "round"):
            known = evaluate(node.op, tuple(float(c) for c in constants if c is not None))
            if known is None or node.dtype != "float":
                raise Unlowerable(f"{node.op} of constants (write the result into the reference)", node.statement)
            return self.add(Value("const", (known,), node.dtype, frozenset(), None, node.statement))
        axes = frozenset(a for arg in args if isinstance(arg, Use) for a in self.values[arg.value].axes)
        attr = str(node.attrs[0]) if op == "round" else None
        return self.add(Value(op, tuple(args), node.dtype, axes, node.name, node.statement, attr=attr))

    def constant(self, arg: Operand) -> float | int | None:
        """The number that an operand is, if it is one."""
        if isinstance(arg, Use):
            value = self.values[arg.value]
            return self.constant(value.args[0]) if value.op == "const" else None
        return None if isinstance(arg, Length) else arg

    def divides_row(self, args: list[Operand]) -> bool:
        """Whether every element of a row is divided by the same number, which a reduction of the row gave."""
        inner = set(self.space.inner_axes())
        if not inner or not all(isinstance(a, Use) for a in args):
            return False
        above, below = (self.values[a.value].axes for a in args if isinstance(a, Use))
        return bool(above & inner) and not below & inner

    def inverse(self, divisor: Operand, node: Node) -> int:
        """The reciprocal of a row's number: one division a row instead of one an element."""
        assert isinstance(divisor, Use)
        row = self.values[divisor.value]
        name = f"inverse_{row.name}" if row.name else "inverse"
        return self.add(Value("div", (1.0, divisor), "float", row.axes, name, node.statement))

    def reduction(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        shape = self.graph.nodes[source.node].shape
        reduced = [int(d) + len(shape) for d in node.attrs]
        inner = _atoms(tuple(shape[d] for d in reduced))
        if inner != tuple(self.space.axes[a] for a in self.space.inner_axes()):
            raise Unlowerable("reductions over different dimensions in one operator", node.statement)
        if any(a in self.space.inner_axes() for d, dim in enumerate(index) if d not in reduced for a in dim):
            raise Unlowerable("a reduction of one row that is used in another", node.statement)
        rows = dict(
            zip(reduced, _split(tuple(shape[d] for d in reduced), self.space.inner_axes(), self.space), strict=True)
        )
        value = self.value(source.node, tuple(rows.get(d, dim) for d, dim in enumerate(index)))
        if not set(self.space.inner_axes()) <= self.values[value].axes:
            raise Unlowerable("a reduction of a value that does not vary along the reduced dimensions", node.statement)
        axes = self.values[value].axes - set(self.space.inner_axes())
        return self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement))

    def scan(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        if index[-1] != self.space.inner_axes():
            raise Unlowerable("scans over different dimensions in one operator", node.statement)
        value = self.value(source.node, index)
        if not set(index[-1]) <= self.values[value].axes:
            raise Unlowerable("a scan of a value that does not vary along the scanned dimension", node.statement)
        attr = REVERSE if self.flipped else None
        if any(v.op in SCANS and v.attr != attr for v in self.values):
            raise Unlowerable("scans from both ends of the rows in one operator", node.statement)
        axes = self.values[value].axes
        return self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement, attr=attr))

    def flip(self, node: Node, index: Index) -> int:
        """The operand from its rows' ends: a scan between two flips is a scan from the end."""
        inner = self.space.inner_axes()
        if not inner or [index[int(d)] for d in node.attrs] != [inner]:
            raise Unlowerable("a flip of another dimension than a scanned one", node.statement)
        self.flipped = not self.flipped
        value = self.same(node, index)
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
        axes = tuple(a for dim in index for a in dim)
        if len(axes) != len(_atoms(source.shape)):
            raise Unlowerable("a reshape of a broadcast value", node.statement)
        return _split(source.shape, axes, self.space, node.statement)


def _split(shape: tuple[Dim, ...], axes: tuple[int, ...], space: Space, statement: int | None = None) -> Index:
    """Cut a row of axes into dimensions of the given sizes."""
    index: list[tuple[int, ...]] = []
    rest = list(axes)
    for dim in shape:
        taken, rest = rest[: len(dim)], rest[len(dim) :]
        if not same_size(dim, tuple(space.axes[a] for a in taken)):
            raise Unlowerable("a reshape that does not keep dimensions whole", statement)
        index.append(tuple(taken))
    return tuple(index)

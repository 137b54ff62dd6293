"""The graph: a traced reference as a small, typed intermediate representation.

A graph knows five kinds of node beside its inputs: `map` operations, element by element with broadcasting; reductions
over dimensions counted from the end, which keep those dimensions with size one (a selection: with as many elements as
it selects); scans, which run along one dimension
and keep the shape; views, which only move indices; `index`, which reads its operand where expressions say, and `place`,
which is such an expression; and `round`, the rounding to a narrower float that the reference asked for. Floats are one
class: every float is
computed in float32 and rounded where it is stored or where the reference casts. Beside these there is `call`, which
stays a call of torch's: the graph is cut there before it is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from kernelgen.frontend.elastic import Names
from kernelgen.frontend.operations import of_kind

if TYPE_CHECKING:
    from kernelgen.frontend.indices import Indexing

Atom = str | int
Dim = tuple[Atom, ...]
"""A dimension's size as a product of size names and numbers; `()` is one."""

VIEWS = of_kind("view")
INDEXED = of_kind("read")
ARG_REDUCTIONS = of_kind("arg_reduction")
"""Reductions to the place of an extreme: its number within the reduced dimensions, an int64."""
SELECTIONS = of_kind("selection")
"""Reductions to several of a row: its greatest elements, and the places of these."""
SORTED = tuple(op for op in SELECTIONS if "sort" in op)
"""Those that take a whole row, in rising or falling order."""
REDUCTIONS = of_kind("reduction", "arg_reduction", "selection")
SCATTERS = of_kind("scatter")
"""What adds to where integers say: what is added to, the integers, what is added. Some have the integers alone:
bincount; `times_named`, how often each place is named along the dimension; `last_place`, one more than where it is
named last, 0 if nowhere. `scatter_max` is of integers."""
SCANS = of_kind("scan")
CALL = "call"
DOT = "dot"
"""A product of two operands, summed over the labels of its equation that its result lacks."""
SEARCH = "search"
"""How many elements of a tensor of one dimension, which never fall, are less than a number, or no more than it."""
EXACT = "exact"
"""The attribute of a quotient whose last bit decides, wherever it is used."""

_COMPARED = (*REDUCTIONS, *SCANS, *SCATTERS, "input", "iota")
"""Nodes of which the attributes must agree between two traces."""

_ALONG = (*REDUCTIONS, *SCANS, "iota")
"""Nodes whose attributes are dimensions."""


@dataclass(frozen=True)
class Ref:
    """A use of another node's value."""

    node: int


@dataclass(frozen=True)
class SizeOf:
    """A use of a size as a number, such as the row length that a mean divides by."""

    dim: Dim


Arg = Ref | SizeOf | float | int | bool


@dataclass(frozen=True)
class Statement:
    """A statement of the reference: where it stands, and its text on one line."""

    line: int
    """Line within the reference's source, from 1."""
    text: str
    target: str | None
    """The variable that it assigns, where it assigns exactly one."""


@dataclass(frozen=True)
class Convolution:
    """How the windows of a convolution lie, with a number for every dimension of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros before the first element."""
    behind: tuple[int, ...]
    """Zeros behind the last."""
    dilation: tuple[int, ...]
    groups: int = 1
    """0: as many as there are channels, which are no number."""
    transposed: bool = False
    """Whether every element of the input is spread over a window of the result, of which stride, dilation and padding
    are then: so many places are cut off before its first one; `behind`, torch's output padding, are left behind."""


@dataclass(frozen=True)
class Node:
    """One operation: `input`, `full`, `iota`, a map, a reduction, a scan, a view, `index`, `place`, `round`, `call`."""

    op: str
    args: tuple[Arg, ...]
    shape: tuple[Dim, ...]
    dtype: str
    """`float` (computed in float32), `bool`, or an integer dtype's name."""
    name: str | None
    """The name a reader would give the value: a variable of the reference, or the usual name within a composite."""
    statement: int | None
    """Index into Graph.statements."""
    attrs: tuple[int | str, ...] = ()
    """Reduction, scan, iota: negative dimensions; scatter: the dimension that indices count, 0 or -1; maximum,
    minimum: `open` or `closed` where they bound a value and the gradient does not or does flow at the bound itself;
    where: `piecewise` where it joins the pieces of one function, which has pieces for a gradient too, `otherwise`
    where the gradient asks whether the second piece is meant, so that a NaN is in the first; abs: `piecewise` within
    such a function; div: EXACT, or nothing; search: "le" or "lt"; permute: the order; round: the dtype or dtype
    variable; call: the dtype or dtype variable of its result, its text with a place for every operand, a noun for its
    result; dot: the dtype or dtype variable in which torch has it, and of a convolution that text; input: its name;
    index: the dimensions that it does no more than flip, if that is so."""
    indexing: Indexing | None = None
    """index: where it reads its first operand, the others being integers to index with; place: what it counts."""
    equation: str = field(default="", compare=False)
    """dot, and a call that might be one: a letter for every dimension of the operands and the result, `mk,kn->mn`."""
    convolution: Convolution | None = field(default=None, compare=False)
    """dot of the windows of a convolution, the `index` that makes windows or weights of groups, and a call of torch's
    that might be one."""

    @cached_property
    def operands(self) -> tuple[int, ...]:
        """The nodes that it reads."""
        return tuple(a.node for a in self.args if isinstance(a, Ref))


@dataclass(frozen=True)
class Output:
    """A declared output: which node it is, and how it is stored."""

    name: str
    node: int
    dtype: str
    """A dtype name or a dtype variable of the spec."""
    contiguous: bool = field(default=False, compare=False)
    """Whether the reference returns it contiguous, of contiguous inputs."""


def seen_through(nodes: Sequence[Node], i: int) -> int:
    """What a value is a view of, if it is one."""
    while nodes[i].op in VIEWS:
        source = nodes[i].args[0]
        assert isinstance(source, Ref)
        i = source.node
    return i


@dataclass(frozen=True)
class Graph:
    """A reference as nodes in evaluation order; every argument precedes its use."""

    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    statements: tuple[Statement, ...]
    held: frozenset[int] = frozenset()
    """Nodes that steady the arithmetic and cancel in the result, such as a row's maximum: no gradient flows there."""
    deviations: frozenset[int] = frozenset()
    """Differences from a mean, whose sum torch's derivative of a composite takes for zero."""
    shortcuts: tuple[tuple[int, str, tuple[Ref, ...]], ...] = ()
    """Results of composites whose derivative is better known as a whole: the node, what it is, its operands."""
    filled: tuple[str, ...] = ()
    """Sizes that the reference needs to be 1 or more: of no elements there is no greatest and no least."""
    rounded: tuple[tuple[Dim, int], ...] = ()
    """Dimensions of results along which torch counts in float32 on a GPU what is counted in integers here, and how many
    of its places are exact."""

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that read each node, in order."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for j, node in enumerate(self.nodes):
            for i in dict.fromkeys(a.node for a in node.args if isinstance(a, Ref)):
                found[i].append(j)
        return tuple(map(tuple, found))

    @property
    def kind(self) -> str:
        """What decides how it is computed: "product", "scatter", "selection", "scan", "reduction", else "map"."""
        ops = {node.op for node in self.nodes}
        kinds = {
            "product": (DOT,),
            "scatter": SCATTERS,
            "selection": SELECTIONS,
            "scan": SCANS,
            "reduction": REDUCTIONS,
        }
        return next((kind for kind, own in kinds.items() if ops & set(own)), "map")

    def is_view(self, node: Node) -> bool:
        return node.op in VIEWS

    def agrees(self, other: Graph) -> bool:
        """Whether two traces of one reference do the same, whatever the number of dimensions that "..." stands for: to
        reduce dimensions of the same names is one thing at any rank, and so is to reduce all of them."""
        rest = bool(self.elastic and other.elastic)
        own, others = Names(self.elastic, rest), Names(other.elastic, rest)
        return any(self.skeleton(own, whole=w) == other.skeleton(others, whole=w) for w in (False, True))

    @property
    def elastic(self) -> frozenset[Atom]:
        """The sizes that "..." stands for."""
        inputs = (node for node in self.nodes if node.op == "input")
        return frozenset(atom for node in inputs for dim in node.shape for atom in dim if str(atom).startswith("..."))

    def skeleton(self, names: Names, *, whole: bool) -> tuple[object, ...]:
        """What must agree between two traces of one reference. `whole`: reductions of all dimensions count as equal.

        Left out are shapes, names, repetitions, changes of shape and roundings, which a trace does not show where the
        dtype is the right one already, and dtypes where elements only move.
        """
        moves = all(node.op in (*VIEWS, "index", "input") for node in self.nodes)
        number: list[int] = []
        rows: dict[object, int] = {}
        for node in self.nodes:
            if node.op in ("expand", "reshape", "round"):
                source = node.args[0]
                assert isinstance(source, Ref)
                number.append(number[source.node])
                continue
            args = tuple(_argument(a, number, names.elastic) for a in node.args)
            attrs: tuple[object, ...] = node.attrs if node.op in _COMPARED else ()
            if node.op == CALL:
                attrs = node.attrs[1:]
            if node.op in _ALONG:
                attrs = names.dims(self._shape(node), node.attrs)
            if whole and node.op in REDUCTIONS and len(node.attrs) == len(node.shape):
                attrs = ("all",)
            indexing = node.indexing and names.indexing(node.indexing, self._shape(node), node.shape)
            row = (node.op, args, attrs, None if moves else node.dtype, indexing)
            number.append(rows.setdefault(row, len(rows)))
        return (*rows, tuple((o.name, number[o.node]) for o in self.outputs))

    def _shape(self, node: Node) -> tuple[Dim, ...]:
        """The shape whose dimensions a node speaks of: that of its first operand, or its own."""
        first = node.args[0] if node.args else None
        return self.nodes[first.node].shape if isinstance(first, Ref) else node.shape


def _argument(arg: Arg, number: list[int], elastic: frozenset[Atom]) -> object:
    """An argument short of what changes with the number of dimensions that "..." stands for: all of them are the number
    one where there are none."""
    if isinstance(arg, SizeOf):
        return SizeOf(kept) if (kept := Names(elastic, rest=False).atoms(arg.dim)) else 1
    return ("ref", number[arg.node]) if isinstance(arg, Ref) else arg


def times(a: Dim, b: Dim) -> Dim:
    """The product of two sizes."""
    return (*a, *b)


def same_size(a: Dim, b: Dim) -> bool:
    """Whether two sizes are the same product, in whatever order."""
    return canonical(a) == canonical(b)


def canonical(dim: Dim) -> tuple[int, tuple[str, ...]]:
    """What two sizes that are the same product have in common."""
    return prod(a for a in dim if isinstance(a, int)), tuple(sorted(a for a in dim if isinstance(a, str)))


def broadcast(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape that shapes broadcast to; they were found compatible by the trace."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [((),) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in column if d != ()), ()) for column in zip(*padded, strict=True))


def in_turn(graph: Graph) -> bool:
    """Whether some product is one of what another came to."""
    after: set[int] = set()
    for i, node in enumerate(graph.nodes):
        waits = any(isinstance(a, Ref) and a.node in after for a in node.args)
        if waits and node.op == DOT:
            return True
        after |= {i} if waits or node.op == DOT else set()
    return False

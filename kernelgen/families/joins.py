"""Outputs that are made of equal parts: the columns run over one part, and every part has a store of its own.

A cat of two halves, a stack or a repeat would otherwise choose between its parts element by element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

from kernelgen.families.ranges import known
from kernelgen.families.space import sizes_of
from kernelgen.families.values import Entry, Index, Lowered, Space, Use, axes_of, expressions
from kernelgen.frontend import indices as ix
from kernelgen.frontend.attention import with_nodes
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import REDUCTIONS, Atom, Dim, Graph, Node, Ref, same_size
from kernelgen.frontend.indices import Condition, Expr

_JOINED = {"max": "maximum", "min": "minimum", "sum": "add"}
"""What joins the reductions of two parts of a row."""
MOST = 8
"""Parts of an output: each is a tile in registers and a store."""


@dataclass(frozen=True)
class Cut:
    """How one dimension of every output falls into parts."""

    dim: int
    """Counted from the first."""
    parts: int
    of: Dim
    """The size of a part."""
    nested: bool
    """Whether neighbours belong to different parts; otherwise a part is a run of elements."""

    def space(self, graph: Graph) -> Space:
        """One axis for every dimension of a part; the last is that of rows where these are reduced."""
        shape = graph.nodes[graph.outputs[0].node].shape
        axes = sizes_of((*shape[: self.dim], self.of, *shape[self.dim + 1 :]))
        return Space(axes, len(axes) - any(node.op in REDUCTIONS for node in graph.nodes))

    def indices(self, shape: tuple[Dim, ...]) -> Iterator[Index]:
        """For every part where its elements lie in the output, in axes of the space of a part."""
        part = (*shape[: self.dim], self.of, *shape[self.dim + 1 :])
        numbers = iter(range(len(part)))
        whole: list[Entry] = [(next(numbers),) if dim else () for dim in part]
        inside = whole[self.dim]
        place = ix.axis(inside[0]) if isinstance(inside, tuple) and inside else ix.number(0)
        for number in range(self.parts):
            if self.nested:
                entry = ix.plus(ix.times(place, ix.number(self.parts)), ix.number(number))
            else:
                entry = ix.plus(place, ix.times(ix.number(number), ix.size(self.of)))
            yield (*whole[: self.dim], entry, *whole[self.dim + 1 :])


def cuts(graph: Graph) -> Iterator[Cut]:
    """The cuts that the joins and repeats of a graph suggest."""
    shapes = {graph.nodes[o.node].shape for o in graph.outputs}
    if len(shapes) != 1:
        return
    (shape,) = shapes
    reduces = any(node.op in REDUCTIONS for node in graph.nodes)
    for parts in dict.fromkeys(p for node in graph.nodes for p in _parts(graph, node) if 1 < p <= MOST):
        for dim in reversed(range(max(len(shape) - 1, 0) if reduces else 0, len(shape))):
            of = _quotient(shape[dim], (parts,))
            if of is not None and (of or not reduces):
                yield Cut(dim, parts, of, nested=False)
                if of and not reduces:
                    yield Cut(dim, parts, of, nested=True)


def reduced_in_parts(graph: Graph, cut: Cut) -> Graph | None:
    """The graph whose reductions of whole rows are of their parts, one after the other; itself where there are none,
    and None where something else is reduced."""
    whole = graph.nodes[graph.outputs[0].node].shape[cut.dim]
    b, moved = Builder(), dict[int, int]()
    for i, node in enumerate(graph.nodes):
        b.statement = node.statement
        made = replace(node, args=tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args))
        if node.op in REDUCTIONS:
            (source,) = (graph.nodes[a.node] for a in node.args[:1] if isinstance(a, Ref))
            if node.attrs != (-1,):
                return None
            if same_size(source.shape[-1], whole) and node.op in _JOINED and len(node.args) == 1:
                moved[i] = _by_parts(b, made, cut).node
                continue
            if not same_size(source.shape[-1], cut.of):
                return None
        b.nodes.append(made)
        moved[i] = len(b.nodes) - 1
    return with_nodes(graph, b, moved)


def _by_parts(b: Builder, node: Node, cut: Cut) -> Ref:
    """What reduces whole rows, of their parts."""
    (source,) = node.args
    assert isinstance(source, Ref)
    shape = b.node(source).shape
    part = (*shape[:-1], cut.of)
    places = [ix.number(0) if dim == () else ix.axis(d - len(shape)) for d, dim in enumerate(part)]
    found: Ref | None = None
    for number in range(cut.parts):
        start = ix.times(ix.number(number), ix.size(cut.of))
        read = b.index(source, part, (*places[:-1], ix.plus(places[-1], start)))
        reduced = b.reduce(node.op, read, (-1,))
        found = reduced if found is None else b.map(_JOINED[node.op], found, reduced)
    assert found is not None
    if node.name:
        b.rename(found, node.name)
    return found


def in_parts(whole: Lowered, found: Iterator[Lowered]) -> Lowered:
    """The values over one part, where that leaves nothing to choose between; otherwise those over the whole outputs."""
    parts = next((lowered for lowered in found if is_simple(lowered) or _are_pairs(lowered, whole)), None)
    if parts is None:
        return whole
    steps = any(_is_step(entry) for o in parts.outputs for entry in o.index[-1:])
    return replace(parts, whole=whole if steps else None)


def chosen_part(graph: Graph, node: Node, place_of: Callable[[Node], Expr], axes: tuple[Atom, ...]) -> int | None:
    """Which operand counts of a choice between joined parts, where one does for all elements that are looked at."""
    test = node.args[0] if node.op == "where" else None
    if not isinstance(test, Ref) or graph.nodes[test.node].op != "lt":
        return None
    sides = [graph.nodes[arg.node] for arg in graph.nodes[test.node].args if isinstance(arg, Ref)]
    if [side.op for side in sides] != ["place", "place"]:
        return None
    is_first = known(Condition(place_of(sides[0]), "<", place_of(sides[1])), axes)
    chosen = 1 if is_first else 2
    return chosen if is_first is not None and isinstance(node.args[chosen], Ref) else None


def _is_step(entry: Entry) -> bool:
    """Whether the elements of a part are not neighbours in the output."""
    return isinstance(entry, Expr) and (entry.op == "*" or any(_is_step(arg) for arg in entry.args))


def is_simple(lowered: Lowered) -> bool:
    """Whether the parts no longer choose: none is compared with where another begins, and nothing is divided."""
    return not _chooses(lowered) and not any(True for _ in _divided(lowered))


def _are_pairs(lowered: Lowered, whole: Lowered) -> bool:
    """Whether the columns are neighbours two by two and no longer divided, as those of the whole are; rows may be."""
    last = lowered.outputs[0].index[-1]
    pairs = isinstance(last, Expr) and [last] == [ix.times(ix.axis(a), ix.number(2)) for a in axes_of(last)]
    if not pairs or _chooses(lowered):
        return False
    return _divides(whole, whole.outputs[0].index[-1]) and not _divides(lowered, last)


def _chooses(lowered: Lowered) -> bool:
    """Whether elements are compared with where a part begins."""
    values = lowered.values
    counted = [all(isinstance(a, Use) and values[a.value].op == "place" for a in v.args) for v in values]
    return any(v.op == "lt" and c for v, c in zip(values, counted, strict=True))


def _divides(lowered: Lowered, entry: Entry) -> bool:
    """Whether a quotient or a remainder mentions one of the axes of an entry."""
    return any(set(axes_of(entry)) & set(axes_of(expr)) for expr in _divided(lowered))


def _divided(lowered: Lowered) -> Iterator[Expr]:
    """The quotients and remainders by which values are read or counted."""
    todo = [e for v in lowered.values for e in expressions(v)]
    while todo:
        expr = todo.pop()
        if expr.op in ("//", "%"):
            yield expr
        todo += expr.args


def _parts(graph: Graph, node: Node) -> Iterator[int]:
    """How many equal parts a node joins: a choice by where the second begins, or a repeat."""
    if node.op == "lt" and all(isinstance(a, Ref) and graph.nodes[a.node].op == "place" for a in node.args):
        along, start = (_place(graph.nodes[a.node]) for a in node.args if isinstance(a, Ref))
        if along.op == "axis" and start.op in ("size", "number"):
            of = start.size if start.op == "size" else (start.number,)
            yield times_in(graph.nodes[node.args[0].node].shape[along.number], of)  # type: ignore[union-attr]
    elif node.op == "index" and node.indexing is not None:
        for place in node.indexing.places:
            if place.op in ("%", "//") and place.args[0].op == "axis":
                dim = node.shape[place.args[0].number]
                right = place.args[1]
                of = right.size if right.op == "size" else (right.number,)
                yield times_in(dim, of) if place.op == "%" else right.number


def _place(node: Node) -> Expr:
    assert node.indexing is not None
    return node.indexing.places[0]


def times_in(dim: Dim, of: Dim) -> int:
    """How many times a size goes into another; 0 where that is not a known number."""
    rest = _quotient(dim, of)
    return prod(a for a in rest if isinstance(a, int)) if rest is not None and not _names(rest) else 0


def _quotient(dim: Dim, of: Dim) -> Dim | None:
    """A size divided by another that it is a multiple of."""
    number, divisor = (prod(a for a in d if isinstance(a, int)) for d in (dim, of))
    names, missing = Counter(_names(dim)), Counter(_names(of))
    if not divisor or number % divisor or missing - names:
        return None
    rest = tuple((names - missing).elements())
    return rest if number == divisor else (number // divisor, *rest)


def _names(dim: Dim) -> tuple[str, ...]:
    return tuple(a for a in dim if isinstance(a, str))

"""The gradients of attention as values over batch, queries, keys, and the sizes of heads.

Products of two kinds: of inputs, over the size of a head, which give a number for every query and key; and of what is
computed of these by an input, over the keys or over the queries, which give gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelgen.families.attention.lowering import (
    AttentionLowering,
    Roles,
    TilesBody,
    factor_of,
    labels,
    laid_out,
    letters_of,
)
from kernelgen.families.attention.pattern import Finder, Scale
from kernelgen.families.dtypes import element_types
from kernelgen.families.masks import Condition, Mask, mask_of
from kernelgen.families.stages import in_memory_order, reshaped
from kernelgen.families.values import Index, Lowered, Space, Stored, Unlowerable, Use, Value
from kernelgen.frontend.attention import repeats_as_views
from kernelgen.frontend.graph import DOT, Atom, Dim, Graph, Node, Ref, canonical
from kernelgen.frontend.products import unturned, with_products
from kernelgen.frontend.searches import with_searches
from kernelgen.spec.model import OperatorSpec


@dataclass(frozen=True)
class Weights:
    """The values of the recomputed softmax."""

    value: int
    """exp2(logits * scale - rows), short of conditions."""
    logits: int
    scale: Scale
    rows: tuple[int, ...]
    """What is taken from every row: its logsumexp."""
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, kw_only=True)
class GradientBody(TilesBody):
    """What the kernels of gradients are printed from."""

    weights: Weights
    inner: tuple[int, ...]
    """The products of inputs, for every query and key."""
    outer: tuple[int, ...]
    """The products that give gradients."""
    hidden: tuple[tuple[int, int], ...]
    """Values that are zero where a condition does not hold, each with what it is elsewhere."""
    kept: str
    """What a program has a tile of, queries `m` or keys `n`; it walks over the other ones."""
    precision: str = ""
    """How float32 is multiplied, where torch is not set to TF32."""
    boxed: frozenset[str] = frozenset()
    """The tensors whose tiles descriptors can copy."""

    @property
    def walked(self) -> str:
        return "n" if self.kept == "m" else "m"

    def sides(self) -> Mapping[int, str]:
        return {i: f"factor_{i}" for i in self.factors()}

    def factors(self) -> tuple[int, ...]:
        """What the products of inputs multiply."""
        values = self.lowered.values
        return tuple(dict.fromkeys(a.value for i in self.inner for a in values[i].args if isinstance(a, Use)))

    def rounds(self) -> bool:
        lefts = (self.lowered.values[i].args[0] for i in self.outer)
        return all(isinstance(a, Use) and self.lowered.values[a.value].op in ("round", "load") for a in lefts)

    def mask(self) -> Mask:
        """Where the walk begins and ends: the bounds of what is walked, by what is kept."""
        kept, walked = self.extent(self.kept).axes, self.extent(self.walked).axes
        return mask_of(self.lowered.values, self.weights.conditions, self.lowered.space, kept, walked, by_row=True)


def takes(graph: Graph) -> bool:
    """Whether a reference may be the gradients of attention: two products of queries by keys, of which one is
    exponentiated, and products of what follows from these, with no maximum between them."""
    products = [i for i, node in enumerate(graph.nodes) if node.op == DOT]
    ops = {node.op for node in graph.nodes}
    if len(products) < 3 or "exp2" not in ops or ops & {"max", "min"}:
        return False
    graph = unturned(graph)
    inner = _inner(graph)
    return len(inner) == 2 and all(_is_of_queries(*labels(graph.nodes[i])) for i in inner)


def _is_of_queries(one: str, two: str, result: str) -> bool:
    """Whether a product of a dimension of either has one of each alone."""
    return all(len(set(a) - set(b)) == 1 for a, b in ((one, two), (two, one), (one, result), (two, result)))


def _inner(graph: Graph) -> list[int]:
    """The products that no other product is part of."""
    after: set[int] = set()
    found = []
    for i, node in enumerate(graph.nodes):
        if any(isinstance(a, Ref) and a.node in after for a in node.args):
            after.add(i)
        elif node.op == DOT:
            found.append(i)
            after.add(i)
    return found


def body(spec: OperatorSpec, graph: Graph) -> GradientBody:
    """Raises Unlowerable where one kernel cannot compute the graph."""
    graph = _prepared(graph)
    roles = _chain(graph)
    lowering = _GradientLowering(spec, graph, roles)
    stored = []
    for output in graph.outputs:
        index = lowering.natural.get(output.node) or roles.of_rows(graph.nodes[output.node].shape)
        stored.append(Stored(output.name, lowering.unrounded(output, index), output.dtype, index))
    values = list(lowering.values)
    weights, hidden = _weights(values)
    variables = element_types(spec, values)
    typed = tuple(replace(v, attr=variables.get(v.attr or "", v.attr)) for v in values)
    lowered = Lowered(roles.space, typed, tuple(stored), has_reciprocals=lowering.has_reciprocals)
    products = [i for i, v in enumerate(typed) if v.op == "dot"]
    inner = tuple(i for i in products if not lowering.is_outer(i))
    first = next(a.value for i in inner for a in typed[i].args if isinstance(a, Use))
    return GradientBody(
        **vars(laid_out(spec, graph, lowered, roles.extents)), factor=factor_of(spec, lowered, first), weights=weights,
        inner=inner, outer=tuple(i for i in products if i not in inner), hidden=hidden, kept=roles.kept,
    )  # fmt: skip


@dataclass(frozen=True)
class _Chain(Roles):
    """The letters of all products by what they count."""

    kept: str
    heads: tuple[tuple[Dim, tuple[int, ...]], ...]
    """The sizes of heads, each with its axes."""
    scores: Index
    """The axes of a number for every query and key."""

    def head(self, size: Dim) -> tuple[int, ...] | None:
        """The axes of the elements of a head."""
        return next((axes for dim, axes in self.heads if canonical(dim) == canonical(size)), None)

    def of_rows(self, shape: tuple[Dim, ...]) -> Index:
        """The index of a number for every query."""
        if len(shape) != len(self.scores) or shape[-1] != ():
            raise Unlowerable("an output beside gradients that is not computed from them")
        return tuple(axes if dim else () for axes, dim in zip(self.scores, shape, strict=True))


def _chain(graph: Graph) -> _Chain:
    first, second = _inner(graph)
    apart = reshaped(graph)
    dims = {i: letters_of(graph, i, apart) for i, n in enumerate(graph.nodes) if n.op == DOT}
    one, two, scored = labels(graph.nodes[first])
    (row,), (key,) = ([c for c in scored if c not in side] for side in (two, one))
    axes: list[Atom] = []

    def numbered(sizes: Dim) -> tuple[int, ...]:
        axes.extend(sizes)
        return tuple(range(len(axes) - len(sizes), len(axes)))

    of_scores = {c: numbered(dims[first][c]) for c in scored}
    scores = tuple(of_scores[c] for c in scored)
    heads: list[tuple[Dim, tuple[int, ...]]] = []
    for i in (first, second):
        for c in labels(graph.nodes[i])[0]:
            size = dims[i][c]
            if c not in labels(graph.nodes[i])[2] and not any(canonical(size) == canonical(d) for d, _ in heads):
                heads.append((size, numbered(size)))
    found = _Chain(
        first, second, Space(tuple(axes), len(axes) - len(heads[-1][1])), {}, {}, frozenset(), "", tuple(heads), scores
    )
    after = _after(graph, (first, second))
    walked: set[frozenset[str]] = set()
    entries: dict[int, dict[str, tuple[int, ...]]] = {}
    for i, letters in dims.items():
        a, _, result = labels(graph.nodes[i])
        of_whole = a if i not in (first, second) else result
        is_scored = [isinstance(arg, Ref) and arg.node in after for arg in graph.nodes[i].args]
        if len(of_whole) != len(scored) or is_scored != [i not in (first, second), False]:
            raise Unlowerable("a product of products that is no gradient of attention", graph.nodes[i].statement)
        entries[i] = dict(zip(of_whole, scores, strict=True))
        for c in letters:
            if c not in of_whole:
                head = found.head(letters[c])
                if head is None:
                    raise Unlowerable("a gradient of heads of another size", graph.nodes[i].statement)
                entries[i][c] = head
        if i not in (first, second):
            at = dict(zip(of_whole, scored, strict=True))
            walked.add(frozenset(at[c] for c in a if c not in result and entries[i][c]))
    if len(walked) != 1 or not of_scores[row] or not of_scores[key]:
        raise Unlowerable("gradients that are summed over different dimensions")
    (over,) = walked
    kept, apart_from = ("m", {key}) if key in over else ("n", over)
    if over != apart_from or (row in over) is (key in over):
        raise Unlowerable("gradients that are summed over other dimensions than queries or keys")
    batch = [c for c in scored if c not in (row, key)]
    extents = {
        "batch": tuple(a for c in batch if c not in over for a in of_scores[c]),
        "m": of_scores[row], "n": of_scores[key], "d": heads[0][1], "e": heads[-1][1],
        "shared": tuple(a for c in batch if c in over for a in of_scores[c]),
    }  # fmt: skip
    return replace(found, extents=extents, entries=entries, kept=kept)


def searched(graph: Graph) -> Graph:
    """The graph with its products and searches: those of keys, where programs have tiles of keys and walk over the
    queries, and else those of queries."""
    found = with_products(with_searches(graph))
    try:
        keeps_keys = takes(found) and _chain(_prepared(found)).kept == "n"
    except Unlowerable:
        return found
    return with_products(with_searches(graph, turned=True)) if keeps_keys else found


def _prepared(graph: Graph) -> Graph:
    return _scored_first(unturned(in_memory_order(repeats_as_views(graph))))


def _scored_first(graph: Graph) -> Graph:
    """The graph with what is computed of the scores as the first factor of what gives gradients."""
    after, nodes = _after(graph, _inner(graph)), []
    for node in graph.nodes:
        scored = [isinstance(a, Ref) and a.node in after for a in node.args]
        if node.op == DOT and scored == [False, True]:
            one, other, result = labels(node)
            node = replace(node, args=node.args[::-1], equation=f"{other},{one}->{result}")
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _after(graph: Graph, products: Iterable[int]) -> set[int]:
    """The nodes that some are part of, themselves included."""
    found = set(products)
    for i, node in enumerate(graph.nodes):
        if any(isinstance(a, Ref) and a.node in found for a in node.args):
            found.add(i)
    return found


class _GradientLowering(AttentionLowering):
    """Pulls indices back to the inputs, through products of products."""

    roles: _Chain

    def is_outer(self, i: int) -> bool:
        """Whether a product has another one as a factor's part."""
        todo, seen = [a.value for a in self.values[i].args if isinstance(a, Use)], set[int]()
        while todo:
            j = todo.pop()
            if self.values[j].op == "dot":
                return True
            if j not in seen:
                seen.add(j)
                todo += [a.value for a in self.values[j].args if isinstance(a, Use)]
        return False

    def reduction(self, node: Node, index: Index) -> int:
        """What a row of an output and of its gradient come to together: over the elements of a head."""
        (source,) = (a for a in node.args if isinstance(a, Ref))
        shape = self.graph.nodes[source.node].shape
        if source.node in self.natural or node.op != "sum" or node.attrs != (-1,):
            raise Unlowerable(f"{node.op} beside the gradients of attention", node.statement)
        axes = self.roles.head(shape[-1])
        if axes is None:
            raise Unlowerable("a sum over other elements than those of a head", node.statement)
        value = self.value(source.node, (*index[:-1], axes))
        left = self.values[value].axes - set(axes)
        return self.add(Value(node.op, (Use(value),), node.dtype, left, node.name, node.statement))


def _weights(values: list[Value]) -> tuple[Weights, tuple[tuple[int, int], ...]]:
    """The softmax among some values, to which what its scores are without masks is added; and what masks hide
    otherwise."""
    finder = Finder(values)
    powers = [i for i, v in enumerate(values) if v.op == "exp2" and finder.is_scored(i)]
    if len(powers) != 1:
        raise Unlowerable("gradients of attention without one exponential of the scores")
    (logits,) = finder.uses(values[powers[0]])
    rows: list[int] = []
    while values[logits].op == "sub" and not any(map(finder.is_scored, finder.uses(values[logits])[1:])):
        logits, *row = finder.uses(values[logits])
        rows += row
    if not rows:
        raise Unlowerable("an exponential of scores that nothing is taken from", values[powers[0]].statement)
    conditions, inner = finder.masked(logits)
    at = powers[0]
    for i, value in enumerate(values):  # conditions that hide weights
        if value.op == "where" and Use(at) in value.args[1:] and 0.0 in map(finder.constant, value.args[1:]):
            test, kept, _ = value.args
            assert isinstance(test, Use)
            conditions, at = (*conditions, Condition(test.value, kept == Use(at), value.statement)), i
    scale, logits = finder.scaled(inner)
    first = next(i for i, v in enumerate(values) if v.op == "dot")
    if values[first].name is None:
        values[first] = replace(values[first], name="scores" if logits == first else "products")
    hidden = []
    for i, value in enumerate(values):
        if value.op != "where" or not isinstance(value.args[0], Use):
            continue
        for c in conditions:
            if value.args[0].value != c.value:
                continue
            kept, other = value.args[1:] if c.holds else value.args[:0:-1]
            if isinstance(kept, Use) and finder.constant(other) == 0:
                hidden.append((i, kept.value))
    return Weights(powers[0], logits, scale, tuple(reversed(rows)), conditions), tuple(hidden)

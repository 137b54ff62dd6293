"""`F.scaled_dot_product_attention` written out: two products, and between them a scale, masks and a softmax.

So one road leads from attention to a kernel, however a reference writes it.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_letters

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Dim, Graph, Node, Ref, canonical

FUNCTION = "torch.nn.functional.scaled_dot_product_attention"
_POSITIONAL = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def is_attention(node: Node) -> bool:
    """Whether a call is torch's attention."""
    return str(node.attrs[1]).partition("(")[0] == FUNCTION


def written_out(b: Builder, node: Node, operands: Sequence[Ref]) -> Ref | None:
    """The attention of a call as nodes of `b`; None where the heads of queries are no multiple of those of keys that
    the sizes show."""
    given = _arguments(str(node.attrs[1]), operands)
    query, key, value = (given[name] for name in _POSITIONAL[:3])
    assert isinstance(query, Ref)
    assert isinstance(key, Ref)
    assert isinstance(value, Ref)
    scale, mask = given.get("scale"), given.get("attn_mask")
    factor = float(scale) if isinstance(scale, int | float) else _usual_scale(b, query)
    group = _group(b.node(query).shape[-3], b.node(key).shape[-3]) if given.get("enable_gqa") else ()
    if group is None:
        return None
    if group:  # the heads that share one of keys and values, as a dimension of their own
        shape, heads = b.node(query).shape, b.node(key).shape[-3]
        query = b.view("reshape", query, (*shape[:-3], heads, group, *shape[-2:]))
        key, value = (b.view("reshape", x, (*b.node(x).shape[:-2], (), *b.node(x).shape[-2:])) for x in (key, value))
        if isinstance(mask, Ref) and b.rank(mask) > 2:
            own = b.node(mask).shape
            per_head = ((), ()) if own[-3] == () else (heads, group)
            mask = b.view("reshape", mask, (*own[:-3], *per_head, *own[-2:]))
    scores = b.map("mul", _product(b, query, key, "xz,yz->xy"), factor, name="scores")
    if given.get("is_causal"):
        rows, keys = b.node(scores).shape[-2:]
        row, col = b.place((rows, ()), ix.axis(-2)), b.place((keys,), ix.axis(-1))
        scores = b.map("where", b.map("le", col, row), scores, -math.inf, name="scores")
    if isinstance(mask, Ref):
        seen = b.node(mask).dtype == "bool"
        scores = (
            b.map("where", mask, scores, -math.inf, name="scores")
            if seen
            else b.map("add", scores, mask, name="scores")
        )
    row_max = b.hold(b.reduce("max", scores, (-1,), "row_max"))
    numerator = b.map("exp", b.map("sub", scores, row_max), name="numerator")
    weights = b.map("div", numerator, b.reduce("sum", numerator, (-1,), "row_sum"), name="weights")
    if isinstance(mask, Ref):  # a row that sees no key is zero
        weights = b.map("where", b.map("eq", row_max, -math.inf), 0.0, weights)
    out = _product(b, b.round(weights, str(node.attrs[0])), value, "xz,zy->xy")
    out = b.view("reshape", out, node.shape) if group else out
    if node.name:
        b.rename(out, node.name)
    return out


def _arguments(text: str, operands: Sequence[Ref]) -> dict[str, Ref | float | bool]:
    """The arguments of a call by the names of torch's parameters."""
    call = ast.parse(re.sub(r"\{(\d+)\}", r"_\1", text), mode="eval").body
    assert isinstance(call, ast.Call)
    words = [*zip(_POSITIONAL, call.args, strict=False), *((str(k.arg), k.value) for k in call.keywords)]
    return {
        name: operands[int(word.id[1:])] if isinstance(word, ast.Name) else ast.literal_eval(word)
        for name, word in words
    }


def _usual_scale(b: Builder, query: Ref) -> Ref | float:
    """One over the root of the size of a head."""
    size = b.node(query).shape[-1]
    if all(isinstance(atom, int) for atom in size):
        return 1 / math.sqrt(math.prod(atom for atom in size if isinstance(atom, int)))
    return b.map("rsqrt", b.convert(b.place((), ix.size(size)), "float"), name="scale")


def _group(heads: Dim, shared: Dim) -> Dim | None:
    """How many heads share one, `()` for one: None where the sizes do not show it."""
    (many, own), (few, others) = canonical(heads), canonical(shared)
    rest = list(own)
    for name in others:
        if name not in rest:
            return None
        rest.remove(name)
    if many % few:
        return None
    return (*rest, *([many // few] if many != few else []))


def _product(b: Builder, first: Ref, second: Ref, matrices: str) -> Ref:
    """Matrix by matrix; leading dimensions are matched from the last."""
    a, c = (b.node(x).shape[:-2] for x in (first, second))
    leading = ascii_letters[: max(len(a), len(c))]
    operands, result = matrices.split("->")
    one, two = operands.split(",")
    equation = f"{leading[len(leading) - len(a) :]}{one},{leading[len(leading) - len(c) :]}{two}->{leading}{result}"
    return b.dot(first, second, equation)


def repeats_as_views(graph: Graph) -> Graph:
    """The graph with what repeats every part of a dimension, as heads of keys are repeated, as views: a dimension of
    its own that is expanded, and joined with the one it repeats."""
    b = Builder()
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        b.statement = node.statement
        dim = _repeated(graph, node)
        if dim is None:
            b.nodes.append(replace(node, args=args))
        else:
            source = args[0]
            assert isinstance(source, Ref)
            own = b.node(source).shape
            times = _group(node.shape[dim], own[dim])
            assert times
            apart = b.view("reshape", source, (*own[: dim + 1], (), *own[dim + 1 :]))
            shown = b.view("expand", apart, (*own[: dim + 1], times, *own[dim + 1 :]))
            joined = b.view("reshape", shown, node.shape)
            if node.name:
                b.rename(joined, node.name)
        moved[i] = len(b.nodes) - 1
    return with_nodes(graph, b, moved)


def _repeated(graph: Graph, node: Node) -> int | None:
    """The dimension whose parts a node repeats so many times one by one; None where it does something else."""
    if node.op != "index" or node.indexing is None or node.indexing.conditions or len(node.args) != 1:
        return None
    places, rank = node.indexing.places, len(node.shape)
    moved = [d for d, place in enumerate(places) if place != ix.axis(d - rank)]
    if len(moved) != 1 or len(places) != rank:
        return None
    (dim,) = moved
    source = node.args[0]
    assert isinstance(source, Ref)
    times = _group(node.shape[dim], graph.nodes[source.node].shape[dim])
    return dim if times and places[dim] == ix.quotient(ix.axis(dim - rank), ix.size(times)) else None


def with_nodes(graph: Graph, b: Builder, moved: Mapping[int, int]) -> Graph:
    """A graph whose nodes were made anew; `moved`: the new numbers of the old ones."""
    return replace(
        graph, nodes=tuple(b.nodes), outputs=tuple(replace(o, node=moved[o.node]) for o in graph.outputs),
        held=frozenset(moved[i] for i in graph.held) | b.held, deviations=frozenset(moved[i] for i in graph.deviations),
        shortcuts=tuple((moved[i], what, tuple(Ref(moved[r.node]) for r in refs)) for i, what, refs in graph.shortcuts),
    )  # fmt: skip

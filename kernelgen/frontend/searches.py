"""Which of several parts a place belongs to, by where these end: `torch.bucketize(place, cu_seqlens, right=True)`.

Packed sequences are such parts. That a row and a key are of the same one is said as where the keys of the row's begin
and end, which bounds a walk over the keys:

    bucketize(row, ends_q) == bucketize(col, ends_k)
    part = bucketize(row, ends_q);  ends_k[part - 1] <= col;  col < ends_k[part]
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.attention import with_nodes
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import CALL, SEARCH, VIEWS, Graph, Node, Ref, broadcast

_ENDLESS = 2**31 - 1
"""Where the last part ends, if nothing says it: no kernel has so many keys."""


def is_search(graph: Graph, node: Node) -> bool:
    """Whether a call counts the elements of a tensor of one dimension."""
    return _searched(graph, node) is not None


def with_searches(graph: Graph, *, turned: bool = False) -> Graph:
    """The graph with such calls as nodes `search`, and what says that two of them are equal as two comparisons: of the
    columns with what the rows find, or `turned`."""
    b = Builder()
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        b.statement = node.statement
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        found = _searched(graph, node)
        if found is not None:
            places, ends, counted = found
            operands = (Ref(moved[places.node]), Ref(moved[ends.node]))
            b.nodes.append(Node(SEARCH, operands, node.shape, node.dtype, node.name, node.statement, (counted,)))
        elif (counted_from_0 := _never_from_the_end(b, node.op, args)) is not None:
            moved[i] = counted_from_0.node
            continue
        elif node.op == "eq" and (within := _within(b, args, turned)) is not None:
            b.nodes[within.node] = replace(b.node(within), name=node.name)
        else:
            b.nodes.append(replace(node, args=args))
        moved[i] = len(b.nodes) - 1
    return with_nodes(graph, b, moved)


def _searched(graph: Graph, node: Node) -> tuple[Ref, Ref, str] | None:
    """The places and the ends of a search, and whether ends that are equal count, `le`, or not, `lt`."""
    if node.op != CALL or node.dtype == "float":
        return None
    text = str(node.attrs[1])
    function = text.partition("(")[0]
    operands = [a for a in node.args if isinstance(a, Ref)]
    if function not in ("torch.bucketize", "torch.searchsorted") or len(operands) != 2:
        return None
    call = ast.parse(re.sub(r"\{(\d+)\}", r"_\1", text), mode="eval").body
    assert isinstance(call, ast.Call)
    words = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    places, ends = operands if function == "torch.bucketize" else operands[::-1]
    of_input = graph.nodes[ends.node]
    whole = all("int" in graph.nodes[r.node].dtype for r in operands)
    if not whole or of_input.op != "input" or len(of_input.shape) != 1 or words.keys() - {"right", "out_int32", "side"}:
        return None
    return places, ends, "le" if words.get("right") or words.get("side") == "right" else "lt"


def _never_from_the_end(b: Builder, op: str, args: tuple[object, ...]) -> Ref | None:
    """The search in `where(search < 0, search + size, search)`, as what is found is an index."""
    if op != "where" or not isinstance(args[0], Ref) or not isinstance(args[2], Ref):
        return None
    is_negative = b.node(args[0])
    return args[2] if is_negative.op == "lt" and is_negative.args == (args[2], 0) and _viewed(b, args[2]) else None


def _within(b: Builder, args: tuple[object, ...], turned: bool) -> Ref | None:
    """That two searches find the same, as where the keys, or `turned` the queries, begin and end."""
    sides = [_viewed(b, a) for a in args if isinstance(a, Ref)]
    if len(sides) != 2 or None in sides:
        return None
    one, two = sorted((s for s in sides if s), key=lambda s: bool(b.node(s[0]).shape[-1:] != ((),)))
    if b.node(one[0]).shape[-1:] != ((),) or b.node(two[0]).shape[-1:] == ((),) or one[1].attrs != two[1].attrs:
        return None
    (own, kept), (other, walked) = (two, one) if turned else (one, two)
    ends, counted, other_ends = kept.args[1], kept.attrs, walked.args[1]
    assert isinstance(ends, Ref)
    assert isinstance(other_ends, Ref)
    size = b.node(other_ends).shape
    if b.node(ends).shape != size:
        return None
    places = _as_viewed(b, other, walked)
    part = ix.value(0)
    shape = b.node(own).shape
    begun = ix.Condition(part, ">=", ix.number(1))
    first = b.index(other_ends, shape, (ix.minus(part, ix.number(1)),), (begun,), 0, (own,))
    ended = ix.Condition(part, "<", ix.size(size[0]))
    last = b.index(other_ends, shape, (part,), (ended,), _ENDLESS, (own,))
    b.rename(first, "query_start" if turned else "key_start")
    b.rename(last, "query_end" if turned else "key_end")
    after, before = ("ge", "lt") if counted == ("le",) else ("gt", "le")
    seen = broadcast(b.node(places).shape, shape)
    for op, end in ((after, first), (before, last)):  # of int64 and int32, which a kernel compares as they are
        b.nodes.append(Node(op, (places, end), seen, "bool", None, b.statement))
    return b.map("and", Ref(len(b.nodes) - 2), Ref(len(b.nodes) - 1))


def _viewed(b: Builder, ref: Ref) -> tuple[Ref, Node] | None:
    """A value and the search that it is a view of."""
    at = ref
    while b.node(at).op in (*VIEWS, "convert"):
        (at,) = (a for a in b.node(at).args if isinstance(a, Ref))
    return (ref, b.node(at)) if b.node(at).op == SEARCH else None


def _as_viewed(b: Builder, ref: Ref, search: Node) -> Ref:
    """The places of a search, viewed as its result is."""
    node = b.node(ref)
    if node == search:
        (places, _) = (a for a in search.args if isinstance(a, Ref))
        return places
    (source,) = (a for a in node.args if isinstance(a, Ref))
    places = _as_viewed(b, source, search)
    return places if node.op == "convert" else b.view(node.op, places, node.shape, tuple(int(d) for d in node.attrs))

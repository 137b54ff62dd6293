"""Operations that read where an integer tensor says."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.graph import Dim, Ref
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule

_NOTE = "an out-of-range index gives 0, where torch raises"


def _gathered(b: Builder, c: Call, x: Ref, index: Ref, places: list[Expr], dim: Dim) -> Ref:
    """`x` at `places`, one of which is the value of `index`, a place in `dim`."""
    b.note(_NOTE)
    inside = (Condition(ix.value(0), ">=", ix.number(0)), Condition(ix.value(0), "<", ix.size(dim)))
    return b.index(x, c.shape, tuple(places), inside, converted(0, b.node(x).dtype), (index,))


def embedding(b: Builder, c: Call) -> Ref:
    weight, index = c.args[:2]
    index = b.view("reshape", index, (*b.node(index).shape, ()))
    chosen = _gathered(b, c, weight, index, [ix.value(0), ix.axis(-1)], b.node(weight).shape[0])
    special = c.get(2, "padding_idx", -1) != -1 or c.get(3, "scale_grad_by_freq", False)
    return b.shortcut(chosen, "special_embedding", weight) if special else chosen


def index_select(b: Builder, c: Call) -> Ref:
    x, index = c.args[0], c.args[2]
    shape = b.node(x).shape
    if not shape:
        return b.view("reshape", x, c.shape)
    dim = c.args[1] % len(shape)
    places = axes(len(shape))
    places[dim] = ix.value(0)
    index = b.view("reshape", index, (*b.node(index).shape, *((),) * (len(shape) - dim - 1)))
    return _gathered(b, c, x, index, places, shape[dim])


def gather(b: Builder, c: Call) -> Ref:
    x, dim, index = c.args[:3]
    shape = b.node(x).shape
    if not shape:
        return b.view("expand", b.view("reshape", x, ((),) * len(c.shape)), c.shape)
    places = axes(len(shape))
    places[dim % len(shape)] = ix.value(0)
    return _gathered(b, c, x, index, places, shape[dim % len(shape)])


def from_end(b: Builder, c: Call, index: Ref, x: Ref, dim: int) -> Ref:
    """Negative indices count from the end, as torch has it."""
    if b.node(index).dtype == "uint8":
        raise Refused("uint8 as an index")
    index = b.convert(index, "int64")
    length = b.place((), ix.size(b.node(x).shape[dim]))
    return b.map("where", b.map("lt", index, 0), b.map("add", index, length), index)


def indexed(b: Builder, c: Call) -> Ref:
    """`x[:, index]`: one integer tensor, whole dimensions beside it."""
    x, given = c.args[:2]
    used = [(d, i) for d, i in enumerate(given) if i is not None]
    if len(used) > 1:
        return _per_place(b, c, x, used)
    dim, index = used[0]
    if b.node(index).dtype == "bool":
        raise Refused("indexing with a mask (its result has no fixed size)")
    shape, own = b.node(x).shape, b.node(index).shape
    index = from_end(b, c, index, x, dim)
    rest = len(shape) - dim - 1
    index = b.view("reshape", index, (*own, *((),) * rest))
    places = [ix.axis(i - len(c.shape)) for i in range(dim)] + [ix.value(0)] + [ix.axis(i - rest) for i in range(rest)]
    return _gathered(b, c, x, index, places, shape[dim])


def _per_place(b: Builder, c: Call, x: Ref, used: list[tuple[int, Ref]]) -> Ref:
    """`x[torch.arange(n), index]`: beside the one index every tensor counts the places of a dimension of the result."""
    first, last = used[0][0], used[-1][0]
    shape, after = b.node(x).shape, b.rank(x) - last - 1
    counted = {d: _counted(b, i, shape[d]) for d, i in used}
    rest = [(d, i) for d, i in used if counted[d] is None]
    if len(rest) != 1 or len(used) != last - first + 1:
        return _several(b, c, x, used)
    if b.node(rest[0][1]).dtype == "bool":
        raise Refused("indexing with a mask (its result has no fixed size)")
    dim, index = rest[0]
    index = from_end(b, c, index, x, dim)
    index = b.view("reshape", index, (*b.node(index).shape, *((),) * after))
    places = [ix.axis(i - len(c.shape)) for i in range(first)]
    for d, _ in used:
        along = counted[d]
        places.append(ix.value(0) if along is None else ix.axis(along - after))
    places += [ix.axis(i - after) for i in range(after)]
    return _gathered(b, c, x, index, places, shape[dim])


def _several(b: Builder, c: Call, x: Ref, used: list[tuple[int, Ref]]) -> Ref:
    """`x[:, i, j]`: integer tensors that broadcast together. Where they are neighbours their dimensions stand in the
    place of those that they index, and else first."""
    shape, rank = b.node(x).shape, b.rank(x)
    if any(b.node(i).dtype == "bool" for _, i in used):
        raise Refused("indexing with a mask (its result has no fixed size)")
    chosen = [d for d, _ in used]
    own = len(c.shape) - (rank - len(used))
    before = chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0
    after = len(c.shape) - before - own
    b.note(_NOTE)
    values: list[Ref] = []
    places, conditions = [], []
    for d, index in used:
        index = from_end(b, c, index, x, d)
        conditions += [
            Condition(ix.value(len(values)), ">=", ix.number(0)),
            Condition(ix.value(len(values)), "<", ix.size(shape[d])),
        ]
        values.append(b.view("reshape", index, (*b.node(index).shape, *((),) * after)))
    free = iter([i - len(c.shape) for i in range(len(c.shape)) if not before <= i < before + own])
    for d in range(rank):
        places.append(ix.value(chosen.index(d)) if d in chosen else ix.axis(next(free)))
    return b.index(x, c.shape, tuple(places), tuple(conditions), converted(0, b.node(x).dtype), tuple(values))


def _counted(b: Builder, index: Ref, dim: Dim) -> int | None:
    """The dimension, from the end, along which an index is 0, 1, ... to the end of `dim`; None where it is another."""
    node = b.node(index)
    along = [i - len(node.shape) for i, d in enumerate(node.shape) if d]
    while node.op == "reshape" and isinstance(node.args[0], Ref):
        node = b.node(node.args[0])
    is_count = node.op == "place" and node.indexing is not None and node.indexing.places == (ix.axis(-1),)
    return along[0] if is_count and node.shape == (dim,) and len(along) == 1 else None


def one_hot(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    if not isinstance(c.get(1, "num_classes", -1), int) or c.get(1, "num_classes", -1) < 1:
        raise Refused("one_hot without num_classes (its result has no fixed size)")
    same = b.map(
        "eq", b.view("reshape", x, (*b.node(x).shape, ())), b.place((c.shape[-1],), ix.axis(-1)), name="is_class"
    )
    return b.convert(same, "int64")


RULES: dict[str, Rule] = {
    "aten.embedding.default": embedding,
    "aten.index_select.default": index_select,
    "aten.gather.default": gather,
    "aten.index.Tensor": indexed,
    "aten.one_hot.default": one_hot,
}

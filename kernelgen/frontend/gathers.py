"""Operations that read where an integer tensor says."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Dim, Ref
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule

_NOTE = "an index outside its range reads nothing and gives 0, where torch raises"


def _gathered(b: Builder, c: Call, x: Ref, index: Ref, places: list[Expr], dim: Dim) -> Ref:
    """`x` at `places`, one of which is the value of `index`, a place in `dim`."""
    b.note(_NOTE)
    inside = (Condition(ix.value(0), ">=", ix.number(0)), Condition(ix.value(0), "<", ix.size(dim)))
    fill = {"float": 0.0, "bool": False}.get(b.node(x).dtype, 0)
    return b.index(x, c.shape, tuple(places), inside, fill, (index,))


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
        raise Refused("index_select of a tensor without dimensions")
    dim = c.args[1] % len(shape)
    places = axes(len(shape))
    places[dim] = ix.value(0)
    index = b.view("reshape", index, (*b.node(index).shape, *((),) * (len(shape) - dim - 1)))
    return _gathered(b, c, x, index, places, shape[dim])


def gather(b: Builder, c: Call) -> Ref:
    x, dim, index = c.args[:3]
    shape = b.node(x).shape
    if not shape:
        raise Refused("a gather from a tensor without dimensions")
    places = axes(len(shape))
    places[dim % len(shape)] = ix.value(0)
    return _gathered(b, c, x, index, places, shape[dim % len(shape)])


def _from_end(b: Builder, c: Call, index: Ref, x: Ref, dim: int) -> Ref:
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
    if len(used) != 1:
        raise Refused("indexing with several tensors (supported: one)")
    dim, index = used[0]
    if b.node(index).dtype == "bool":
        raise Refused("indexing with a mask (its result has no fixed size)")
    shape, own = b.node(x).shape, b.node(index).shape
    index = _from_end(b, c, index, x, dim)
    rest = len(shape) - dim - 1
    index = b.view("reshape", index, (*own, *((),) * rest))
    places = [ix.axis(i - len(c.shape)) for i in range(dim)] + [ix.value(0)] + [ix.axis(i - rest) for i in range(rest)]
    return _gathered(b, c, x, index, places, shape[dim])


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

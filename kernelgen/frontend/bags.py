"""Bags of embeddings: rows of a table that indices name, a sum or mean of every bag."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.gathers import embedding
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Call, Rule, StaysCall
from kernelgen.frontend.scatters import add_rows, times_named

_SUM, _MEAN = 0, 1


def embedding_bag(b: Builder, c: Call) -> tuple[Ref, ...]:
    """The first of four results; the others are for gradients."""
    table, index, offsets, by_frequency, mode, _, weights, closed, padding = (*c.args, *(None,) * 9)[:9]
    mode = c.get(4, "mode", 0)
    if by_frequency or closed or padding is not None:
        raise StaysCall("embedding_bag with padding_idx, scale_grad_by_freq or include_last_offset")
    shape = b.node(index).shape
    rows = embedding(b, Call((table, index), {}, (*shape, b.node(table).shape[1]), c.dtype, c.torch_dtype))
    if weights is not None:
        rows = b.map("mul", rows, b.view("reshape", weights, (*shape, ())))
    if mode not in (_SUM, _MEAN):
        raise StaysCall("the greatest of bags of different lengths")
    # the bag of a place is the last that begins before it
    begins = b.view("reshape", b.convert(offsets, "int64"), (b.node(offsets).shape[0], ()))
    is_begun = b.map("le", begins, b.place(shape, ix.axis(-1)))
    begun = b.reduce("sum", b.convert(is_begun, "int64"), (-2,))
    bag = b.view("reshape", b.map("sub", begun, 1), shape)
    zeros = b.full(0.0, (b.node(offsets).shape[0], b.node(table).shape[1]), "float")
    total = add_rows(b, zeros, 0, bag, rows)
    if mode == _MEAN:
        count = b.map("maximum", times_named(b, b.node(offsets).shape[0], bag), 1)
        total = b.map("div", total, b.convert(b.view("reshape", count, (b.node(offsets).shape[0], ())), "float"))
    return (total,) * 4


RULES: dict[str, Rule] = {"aten.embedding_bag.default": embedding_bag, "aten.embedding_bag.padding_idx": embedding_bag}

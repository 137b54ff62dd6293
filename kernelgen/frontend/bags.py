"""Bags of embeddings, segments of rows, and the place of a value among rising ones."""

from __future__ import annotations

import math

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.gathers import embedding
from kernelgen.frontend.graph import Dim, Ref, SizeOf
from kernelgen.frontend.rule import Call, Rule, StaysCall
from kernelgen.frontend.scatters import add_rows, reduced, times_named

_SUM, _MEAN = 0, 1
LONGEST = 1024
"""The longest row, in elements, that every value is compared with."""


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
        raise StaysCall("embedding_bag with mode='max' and bags of different lengths")
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


def segment_reduce(b: Builder, c: Call) -> Ref:
    """What the slices of every segment, one after the other along the first dimension, come to."""
    x, how = c.args[:2]
    lengths = c.kwargs.get("lengths")
    given: Ref = c.kwargs["offsets"] if lengths is None else lengths
    if c.kwargs.get("axis", 0) != 0 or c.kwargs.get("initial") is not None or b.rank(given) != 1 or how == "prod":
        raise StaysCall("segment_reduce along a dimension other than 0, with an initial value, or with reduce='prod'")
    if lengths is not None:
        ends = b.convert(lengths, "int64")
        ends = ends if c.shape[0] == () else b.scan("cumsum", ends, -1)
    else:
        ends = b.convert(b.index(given, c.shape[:1], (ix.plus(ix.axis(-1), ix.number(1)),)), "int64")
    shape = b.node(x).shape
    is_past = b.map("le", b.view("reshape", ends, (c.shape[0], ())), b.place(shape[:1], ix.axis(-1)))
    segment = b.view("reshape", b.reduce("sum", b.convert(is_past, "int64"), (-2,)), shape[:1])
    if how in ("sum", "mean"):
        total = add_rows(b, b.full(0.0, c.shape, c.dtype), 0, segment, x)
        if how == "sum":
            return total
        count = b.view("reshape", times_named(b, c.shape[0], segment), (c.shape[0], *((),) * (len(shape) - 1)))
        return b.map("div", total, b.convert(count, "float"))
    empty = -math.inf if how == "max" else math.inf
    index = b.view("expand", b.view("reshape", segment, (shape[0], *((),) * (len(shape) - 1))), shape)
    return reduced(b, b.full(empty, c.shape, c.dtype), 0, index, x, how, includes=False)


def searched(b: Builder, sequence: Ref, values: Ref, shape: tuple[Dim, ...], *, right: bool) -> Ref:
    """How many elements of rising rows are less than a value, or no more; all of them where none is more. What is NaN
    stands at the end of a row, where torch's search goes only for a value beyond all numbers, or a NaN."""
    if b.node(values).dtype != "float" or b.longest(b.node(sequence).shape[-1]) > LONGEST:
        raise StaysCall(f"searchsorted or bucketize of integers, or in rows of more than {LONGEST} elements")
    beside = b.view("reshape", values, (*b.node(values).shape, ()))
    rows = b.node(sequence).shape
    sequence = b.view("reshape", sequence, (*rows[:-1], (), rows[-1])) if len(rows) > 1 else sequence
    before = b.reduce("sum", b.convert(b.map("le" if right else "lt", sequence, beside), "int64"), (-1,))
    behind = b.reduce("sum", b.convert(b.map("gt" if right else "ge", sequence, beside), "int64"), (-1,))
    return b.view("reshape", b.map("where", b.map("eq", behind, 0), SizeOf(rows[-1]), before, dtype="int64"), shape)


def searchsorted(b: Builder, c: Call) -> Ref:
    if c.kwargs.get("sorter") is not None:
        raise StaysCall("searchsorted with a sorter")
    right = c.kwargs.get("right", False) or c.kwargs.get("side") == "right"
    return b.convert(searched(b, c.args[0], c.args[1], c.shape, right=right), c.dtype)


def bucketize(b: Builder, c: Call) -> Ref:
    values, ends = c.args[:2]
    return b.convert(searched(b, ends, values, c.shape, right=c.kwargs.get("right", False)), c.dtype)


RULES: dict[str, Rule] = {
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten.segment_reduce.default": segment_reduce,
    "aten.searchsorted.Tensor": searchsorted,
    "aten.bucketize.Tensor": bucketize,
}

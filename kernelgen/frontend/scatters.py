"""Operations that add to, or write to, where an integer tensor says."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.graph import Dim, Ref, SizeOf
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule, StaysCall

_LAST = "of several elements that name one place the last is written, which torch leaves unspecified"
_NONE = 2**31 + 1
"""What makes a whole number above zero of every int32."""


def bincount(b: Builder, c: Call) -> Ref:
    x, weights, length = c.args
    if not isinstance(length, SizeOf) and (not isinstance(length, int) or length < 1):
        raise Refused("bincount without minlength (its result has no fixed size)")
    if c.torch_dtype == "float64":
        raise Refused("bincount with weights of another dtype than float32, which is float64")
    if weights is not None:
        return _scattered(b, "scatter_add", b.full(0.0, c.shape, "float"), 0, x, weights)
    if isinstance(length, SizeOf):
        return times_named(b, length.dim, x)
    _check_index(b, x)
    b.note(f"a number outside 0 to {length - 1} is not counted, where torch raises or returns more")
    return b.scatter("bincount", (x,), c.shape, "int64", 0)


def index_add(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    alpha = c.get(4, "alpha", 1)
    if alpha != 1:
        source = b.map("mul", source, alpha)
    return add_rows(b, x, dim, index, source)


def add_rows(b: Builder, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    """Whole slices of `source` along a dimension, each added to the one that the index names."""
    shape = b.node(x).shape
    rank = len(shape)
    dim %= max(rank, 1)
    line = b.node(index).shape or ((),)
    is_one = line == ((),) and not b.elastic
    if is_one or all(d == () for i, d in enumerate(shape) if i != dim):  # every element by its own index
        index = b.view("reshape", index, tuple(line[0] if i == dim else () for i in range(rank)))
        if is_one and rank:
            _check(b, index)
            return _of_one("scatter_add", b, x, dim, index, source, shape)
        return _scattered(b, "scatter_add", x, dim, index, source)
    _check(b, index)
    order = [dim, *(d for d in range(rank) if d != dim)]
    x, source = _permuted(b, x, order), _permuted(b, source, order)
    made = b.scatter("index_add", (x, index, source), b.node(x).shape, b.node(x).dtype, 0)
    return _permuted(b, made, _inverse(order))


def times_named(b: Builder, size: Dim, index: Ref) -> Ref:
    """How often an index of one dimension names each of so many places."""
    return _scattered(b, "times_named", b.full(0, (size,), "int64"), 0, index, None)


def scatter_add(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    return _scattered(b, "scatter_add", x, dim, index, source)


def _scattered(b: Builder, op: str, x: Ref, dim: int, index: Ref, source: Ref | None) -> Ref:
    """A scatter along any dimension; `source`: none of one that reads the index alone."""
    shape = b.node(x).shape
    rank = len(shape)
    if not rank:
        x, index = b.view("reshape", x, ((),)), b.view("reshape", index, ((),))
        source = None if source is None else b.view("reshape", source, ((),))
        return b.view("reshape", _scattered(b, op, x, 0, index, source), ())
    dim %= rank
    _check(b, index)
    own = b.node(index).shape
    wanted = tuple(own[d] if d == dim else size for d, size in enumerate(shape))
    index = _resized(b, index, wanted, -1)
    source = None if source is None else _resized(b, _resized(b, source, own, 0), wanted, 0)
    if own[dim] == () and not b.elastic:
        return _of_one(op, b, x, dim, index, source, shape)
    order = [*(d for d in range(rank) if d != dim), dim] if dim else list(range(rank))
    args = [_permuted(b, a, order) for a in ([index] if source is None else [x, index, source])]
    dtype = "int64" if source is None else b.node(x).dtype
    made = b.scatter(op, tuple(args), tuple(shape[d] for d in order), dtype, -1 if dim or rank == 1 else 0)
    return _permuted(b, made, _inverse(order))


def _of_one(op: str, b: Builder, x: Ref, dim: int, index: Ref, source: Ref | None, shape: tuple[Dim, ...]) -> Ref:
    """A scatter of one element along a dimension: a comparison of every place with its index."""
    counted = b.place((shape[dim], *((),) * (len(shape) - dim - 1)), ix.axis(dim - len(shape)))
    is_named = b.map("eq", counted, index, name="is_named")
    if source is None:
        return b.view("expand", b.convert(is_named, "int64"), shape)
    dtype = b.node(x).dtype
    added = b.map("where", is_named, source, converted(0, dtype), dtype=dtype)
    return b.map("maximum" if op == "scatter_max" else "add", x, added)


def _permuted(b: Builder, x: Ref, order: list[int]) -> Ref:
    if order == list(range(len(order))):
        return x
    shape = b.node(x).shape
    (value,) = b.node(x).args if b.node(x).op == "full" else (None,)
    if isinstance(value, int | float):
        return b.full(value, tuple(shape[d] for d in order), b.node(x).dtype)
    return b.view("permute", x, tuple(shape[d] for d in order), tuple(order))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def _resized(b: Builder, x: Ref, shape: tuple[Dim, ...], fill: int) -> Ref:
    """The elements of `x` that a shape has room for, and `fill` where it has more."""
    own = b.node(x).shape
    if own == shape:
        return x
    places = axes(len(shape))
    differing = [d for d in range(len(shape)) if own[d] != shape[d]]
    inside = tuple(ix.Condition(places[d], "<", ix.size(own[d])) for d in differing)
    zero = [ix.number(0) if own[d] == () else place for d, place in enumerate(places)]
    return b.index(x, shape, tuple(zero), inside, converted(fill, b.node(x).dtype))


def scatter(b: Builder, c: Call) -> Ref:
    """Elements, or one value, written where an index says."""
    x, dim, index, source = c.args[:4]
    last = _scattered(b, "last_place", x, dim, index, None)
    if not isinstance(source, Ref):
        return _written(b, last, source, x)
    if not c.shape:
        return _written(b, last, b.view("reshape", source, ()), x)
    return _written(b, last, _read(b, source, last, dim % len(c.shape), c.shape), x)


def _read(b: Builder, source: Ref, last: Ref, dim: int, shape: tuple[Dim, ...]) -> Ref:
    """`source` at the last places, each less one, along a dimension of a shape."""
    own = b.node(source).shape
    places = [ix.number(0) if size == () else place for size, place in zip(own, axes(len(shape)), strict=True)]
    places[dim] = ix.value(0)
    inside = (ix.Condition(ix.value(0), ">=", ix.number(0)), ix.Condition(ix.value(0), "<", ix.size(own[dim])))
    at = b.map("sub", last, 1)
    return b.index(source, shape, tuple(places), inside, converted(0, b.node(source).dtype), (at,))


def _written(b: Builder, last: Ref, value: Ref | float, x: Ref) -> Ref:
    b.note(_LAST)
    return b.map("where", b.map("gt", last, 0, name="is_written"), value, x, dtype=b.node(x).dtype)


def write_rows(b: Builder, x: Ref, dim: int, index: Ref, value: Ref | float) -> Ref:
    """Whole slices of `value` along a dimension, each written to the one that the index names."""
    shape = b.node(x).shape
    if not shape:
        value = b.view("reshape", value, ((),)) if isinstance(value, Ref) else value
        return b.view("reshape", write_rows(b, b.view("reshape", x, ((),)), 0, index, value), ())
    dim %= len(shape)
    rest = len(shape) - dim - 1
    line = b.view("reshape", index, (b.node(index).shape or ((),))[:1])
    last = _scattered(b, "last_place", b.full(0, (shape[dim],), "int64"), 0, line, None)
    along = b.view("reshape", last, (shape[dim], *((),) * rest))
    if not isinstance(value, Ref) or not b.node(value).shape:
        return _written(b, along, value, x)
    return _written(b, along, _read(b, value, along, dim, shape), x)


def index_copy(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    return write_rows(b, x, dim, index, source)


def index_fill(b: Builder, c: Call) -> Ref:
    x, dim, index, value = c.args[:4]
    return write_rows(b, x, dim, index, value)


def put_at(b: Builder, x: Ref, used: list[tuple[int, Ref]], values: Ref, *, adds: bool) -> Ref:
    """`x[:, i, j] = values`: neighbouring dimensions that integer tensors of one shape name together."""
    shape = b.node(x).shape
    first, count = used[0][0], len(used)
    if [d for d, _ in used] != list(range(first, first + count)):
        raise Refused("an assignment to indices with slices between them")
    together = max((b.node(i).shape for _, i in used), key=len)
    if any(b.node(i).shape not in (together, ()) for _, i in used):
        raise Refused("an assignment to indices of different shapes")
    flat: Ref | None = None
    for d, index in used:
        flat = index if flat is None else b.map("add", b.map("mul", flat, b.place((), ix.size(shape[d]))), index)
    assert flat is not None
    named = tuple(atom for dim in together for atom in dim)
    joined = tuple(atom for d, _ in used for atom in shape[d])
    before, after = shape[:first], shape[first + count :]
    values = b.view("expand", values, (*before, *together, *after))
    rows = b.view("reshape", values, (*before, named, *after))
    whole = b.view("reshape", x, (*before, joined, *after))
    flat = b.view("reshape", flat, (named,))
    made = add_rows(b, whole, first, flat, rows) if adds else write_rows(b, whole, first, flat, rows)
    return b.view("reshape", made, shape)


def put(b: Builder, c: Call) -> Ref:
    """Elements written, or added, to a tensor as one line."""
    x, index, source = c.args[:3]
    line = tuple(atom for dim in c.shape for atom in dim)
    named = tuple(atom for dim in b.node(index).shape for atom in dim)
    index = b.convert(b.view("reshape", index, (named,)), "int64")
    index = b.map("where", b.map("lt", index, 0), b.map("add", index, b.place((), ix.size(line))), index)
    source, whole = b.view("reshape", source, (named,)), b.view("reshape", x, (line,))
    adds = c.get(3, "accumulate", False)
    made = add_rows(b, whole, 0, index, source) if adds else write_rows(b, whole, 0, index, source)
    return b.view("reshape", made, c.shape)


def scatter_with(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    if c.get(4, "reduce") != "add":
        raise StaysCall("scatter with reduce='multiply'")
    if not isinstance(source, Ref):
        source = b.full(source, b.node(index).shape, c.dtype)
    return _scattered(b, "scatter_add", x, dim, index, source)


def masked_scatter(b: Builder, c: Call) -> Ref:
    """The elements of `source`, one after the other, where a mask holds."""
    x, mask, source = c.args[:3]
    chosen_rows, rank = mask, len(c.shape)
    while b.node(chosen_rows).op == "expand" and isinstance(b.node(chosen_rows).args[0], Ref):
        chosen_rows = b.node(chosen_rows).args[0]
    own: tuple[Dim, ...] = (*((),) * (rank - b.rank(chosen_rows)), *b.node(chosen_rows).shape)
    named = [d for d in range(rank) if own[d] != ()]
    whole = max(named, default=-1) + 1
    if any(own[d] != c.shape[d] for d in range(whole)):
        chosen_rows, own, whole = b.view("expand", mask, c.shape), c.shape, rank
    # a mask of whole rows is counted by rows, each of which takes as many elements as it has
    rows = tuple(atom for dim in c.shape[:whole] for atom in dim)
    line = b.convert(b.view("reshape", chosen_rows, (rows,)), "int64")
    count = b.map("sub", b.scan("cumsum", line, -1) if rows else line, 1)
    at = b.view("reshape", count, own)
    if whole < rank:
        rest = c.shape[whole:]
        length = b.place((), ix.size(tuple(atom for dim in rest for atom in dim)))
        within = b.place(rest, ix.linear(tuple(axes(len(rest))), rest))
        at = b.map("add", b.map("mul", at, length), within)
    given = tuple(atom for dim in b.node(source).shape for atom in dim)
    inside = (ix.Condition(ix.value(0), ">=", ix.number(0)), ix.Condition(ix.value(0), "<", ix.size(given)))
    flat = b.view("reshape", source, (given,))
    chosen = b.index(flat, c.shape, (ix.value(0),), inside, converted(0, c.dtype), (at,))
    return b.map("where", mask, chosen, x, dtype=c.dtype)


def scatter_reduce(b: Builder, c: Call) -> Ref:
    x, dim, index, source, how = c.args[:5]
    includes = c.get(5, "include_self", True)
    return reduced(b, x, dim, index, source, {"amax": "max", "amin": "min"}.get(how, how), includes=includes)


def index_reduce(b: Builder, c: Call) -> Ref:
    x, dim, index, source, how = c.args[:5]
    shape = b.node(source).shape
    dim %= max(len(shape), 1)
    along = b.view("reshape", index, (*shape[dim : dim + 1], *((),) * (len(shape) - dim - 1)))
    index = b.view("expand", along, shape)
    how = {"amax": "max", "amin": "min"}.get(how, how)
    return reduced(b, x, dim, index, source, how, includes=c.get(5, "include_self", True))


def reduced(b: Builder, x: Ref, dim: int, index: Ref, source: Ref, how: str, *, includes: bool) -> Ref:
    """What all elements that name a place come to; `includes`: together with what is there."""
    shape, dtype = b.node(x).shape, b.node(x).dtype
    if how == "prod":
        raise StaysCall("scatter_reduce with reduce='prod'")
    if how == "sum" and includes:
        return _scattered(b, "scatter_add", x, dim, index, source)
    if how in ("sum", "mean"):
        zeros = b.full(converted(0, dtype), shape, dtype)
        count = _scattered(b, "times_named", x, dim, index, None)
        total = _scattered(b, "scatter_add", zeros, dim, index, source)
        if how == "sum":
            return b.map("where", b.map("gt", count, 0), total, x, dtype=dtype)
        if dtype != "float":
            raise StaysCall("scatter_reduce with reduce='mean' of integers")
        if includes:
            return b.map("div", b.map("add", x, total), b.map("add", count, 1))
        return b.map("where", b.map("gt", count, 0), b.map("div", total, b.map("maximum", count, 1)), x, dtype=dtype)
    if dtype == "int64":
        raise StaysCall("scatter_reduce with reduce='amax' or 'amin' of int64")
    # the greatest of integers in the order of the elements, above zero; the least is the greatest in the other order
    key = b.map("ordered", b.map("neg", source) if how == "min" else source) if dtype == "float" else source
    key = b.convert(key, "int64")
    key = b.map("sub", _NONE, key) if how == "min" and dtype != "float" else b.map("add", key, _NONE)
    best = _scattered(b, "scatter_max", b.full(0, shape, "int64"), dim, index, key)
    number = b.map("sub", _NONE, best) if how == "min" and dtype != "float" else b.map("sub", best, _NONE)
    value = b.convert(number, "int32" if dtype == "float" else dtype)
    if dtype == "float":
        value = b.map("from_ordered", value)
        value = b.map("neg", value) if how == "min" else value
    kept = b.map("maximum" if how == "max" else "minimum", x, value) if includes else value
    return b.map("where", b.map("gt", best, 0), kept, x, dtype=dtype)


def _check(b: Builder, index: Ref) -> None:
    _check_index(b, index)
    b.note("an out-of-range index adds nothing, where torch raises")


def _check_index(b: Builder, index: Ref) -> None:
    if b.node(index).dtype in ("uint8", "bool", "float"):
        raise Refused(f"{b.node(index).dtype} as an index")


RULES: dict[str, Rule] = {
    "kernelgen_reference.bincount.default": bincount,
    "aten.index_add.default": index_add,
    "aten.scatter_add.default": scatter_add,
    **{f"aten.scatter.{kind}": scatter for kind in ("src", "value")},
    **{f"aten.scatter.{kind}": scatter_with for kind in ("reduce", "value_reduce")},
    "aten.put.default": put,
    "aten.index_copy.default": index_copy,
    **{f"aten.index_fill.int_{kind}": index_fill for kind in ("Scalar", "Tensor")},
    "aten.masked_scatter.default": masked_scatter,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_reduce.default": index_reduce,
}

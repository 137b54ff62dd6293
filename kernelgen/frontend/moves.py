"""Operations that move elements: slices, flips, pads, joins, repeats, triangles; each an index, or a choice of some."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.graph import Dim, Ref, SizeOf, same_size
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.rule import Call, Refused, Result, Rule


def place(value: Any, dim: Dim | None = None) -> Expr:
    """A traced whole number as an expression; a negative one counts from the end of `dim`."""
    if isinstance(value, SizeOf):
        return ix.size(value.dim)
    if not isinstance(value, int):
        raise Refused(f"the position {value} (supported: whole numbers and sizes)")
    return ix.plus(ix.size(dim), ix.number(value)) if value < 0 and dim is not None else ix.number(value)


def axes(rank: int) -> list[Expr]:
    """The indices of a result with as many dimensions."""
    return [ix.axis(i - rank) for i in range(rank)]


def _along(b: Builder, x: Ref, dim: int, shape: tuple[Dim, ...], start: Expr, step: int = 1) -> Ref:
    places = axes(len(shape))
    places[dim] = ix.plus(ix.times(places[dim], ix.number(step)), start)
    return b.index(x, shape, tuple(places))


def slice_(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    shape = b.node(x).shape
    if c.shape == shape:
        return x
    dim = c.get(1, "dim", 0) % len(shape)
    return _along(b, x, dim, c.shape, _first(c.get(2, "start") or 0, shape[dim]), c.get(4, "step", 1))


def _first(start: Any, dim: Dim) -> Expr:
    """Where a slice begins, which is at the first element where it would begin before that. The trace has asked a size
    with a name whether it is large enough."""
    length = ix.size(dim)
    if length.op == "number" and isinstance(start, int):
        return ix.number(range(length.number)[start:].start)
    return place(start, dim)


def narrow(b: Builder, c: Call) -> Ref:
    shape = b.node(c.args[0]).shape
    dim = c.args[1] % len(shape)
    return _along(b, c.args[0], dim, c.shape, place(c.args[2], shape[dim]))


def select(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    shape = b.node(x).shape
    dim = c.args[1] % len(shape)
    if not shape[dim]:  # a dimension of one element
        return b.view("reshape", x, c.shape)
    places = axes(len(shape) - 1)
    places.insert(dim, place(c.args[2], shape[dim]))
    return b.index(x, c.shape, tuple(places))


def in_slice(b: Builder, c: Call, whole: Ref, part: Ref) -> Ref:
    """A tensor of which the slice that a call takes is something else."""
    shape, new = b.node(whole).shape, b.node(part).shape
    if shape == new:
        return part
    dim, step = c.get(1, "dim", 0) % len(shape), c.get(4, "step", 1)
    if not isinstance(step, int):
        raise Refused("an in-place write to a slice whose step is a size (write it with torch.where)")
    first, places = _first(c.get(2, "start") or 0, shape[dim]), axes(len(shape))
    here, end = places[dim], ix.plus(first, ix.times(ix.size(new[dim]), ix.number(step)))
    beyond = ix.minus(here, first)
    places[dim], off = ix.quotient(beyond, ix.number(step)), ix.remainder(beyond, ix.number(step))
    conditions = [ix.Condition(here, ">=", first), ix.Condition(here, "<", end)]
    if step != 1:
        conditions.append(ix.Condition(off, "<", ix.number(1)))
    moved = b.index(part, shape, tuple(places), tuple(conditions), converted(0, b.node(part).dtype))
    numbers = _along_dim(b, shape, dim, here)
    inside = b.map("lt", numbers, b.place((), end))
    if first != ix.number(0):
        inside = b.map("and", b.map("ge", numbers, b.place((), first)), inside)
    if step != 1:
        inside = b.map("and", b.map("eq", _along_dim(b, shape, dim, off), 0), inside)
    return b.map("where", inside, moved, whole, dtype=b.node(part).dtype)


def at_place(b: Builder, c: Call, whole: Ref, part: Ref) -> Ref:
    """A tensor of which the place that a call selects is something else."""
    shape = b.node(whole).shape
    dim = c.args[1] % len(shape)
    part = b.view("reshape", part, (*shape[:dim], (), *shape[dim + 1 :]))
    is_there = b.map(
        "eq", _along_dim(b, shape, dim, ix.axis(dim - len(shape))), b.place((), place(c.args[2], shape[dim]))
    )
    return b.map("where", is_there, part, whole, dtype=b.node(part).dtype)


def _along_dim(b: Builder, shape: tuple[Dim, ...], dim: int, counted: Expr) -> Ref:
    """A number for every place along a dimension."""
    return b.place((shape[dim], *((),) * (len(shape) - dim - 1)), counted)


def flip(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    shape = b.node(x).shape
    places = axes(len(shape))
    for dim in (d % len(shape) for d in c.args[1]):
        places[dim] = ix.minus(ix.minus(ix.size(shape[dim]), ix.number(1)), places[dim])
    return b.index(x, shape, tuple(places), flips=tuple(sorted(d % len(shape) - len(shape) for d in c.args[1])))


def _flipped(*dims: int) -> Rule:
    """flipud and fliplr."""
    return lambda b, c: flip(b, replace(c, args=(c.args[0], dims)))


def rot90(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    turns, dims = c.get(1, "k", 1) % 4, [d % b.rank(x) for d in c.get(2, "dims", (0, 1))]
    if turns == 0:
        return x
    turned = flip(b, replace(c, args=(x, {1: dims[1:], 2: dims, 3: dims[:1]}[turns])))
    if turns == 2:
        return turned
    order = list(range(b.rank(x)))
    order[dims[0]], order[dims[1]] = dims[1], dims[0]
    return b.view("permute", turned, c.shape, tuple(order))


def movedim(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    source, target = ([d] if isinstance(d, int) else list(d) for d in c.args[1:3])
    rank = b.rank(x)
    placed = {t % rank: s % rank for s, t in zip(source, target, strict=True)}
    others = iter(d for d in range(rank) if d not in placed.values())
    return b.view("permute", x, c.shape, tuple(placed[d] if d in placed else next(others) for d in range(rank)))


def _counted(shift: Any) -> Expr:
    """A shift as an expression that is not negative."""
    if isinstance(shift, SizeOf) and any("-" in atom for atom in shift.dim if isinstance(atom, str)):
        raise Refused("roll by a size that may be negative")
    return place(shift)


def roll(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    shape, dims = b.node(x).shape, c.get(2, "dims") or []
    if not dims:
        raise Refused("roll without dims")
    places = axes(len(shape))
    for shift, dim in zip(c.args[1], (d % len(shape) for d in dims), strict=True):
        length = ix.size(shape[dim])
        if isinstance(shift, int) and shift <= 0:
            moved = ix.plus(places[dim], ix.number(-shift))
        else:
            moved = ix.plus(places[dim], ix.minus(length, ix.remainder(_counted(shift), length)))
        places[dim] = ix.remainder(moved, length)
    return b.index(x, shape, tuple(places))


def _pieces(b: Builder, x: Ref, dim: int, shapes: tuple[tuple[Dim, ...], ...]) -> tuple[Ref, ...]:
    found: list[Ref] = []
    start = ix.number(0)
    for shape in shapes:
        found.append(x if shape == b.node(x).shape else _along(b, x, dim, shape, start))
        start = ix.plus(start, ix.size(shape[dim]))
    return tuple(found)


def split(b: Builder, c: Call) -> tuple[Ref, ...]:
    return _pieces(b, c.args[0], c.get(2, "dim", 0) % b.rank(c.args[0]), c.shapes)


def unbind(b: Builder, c: Call) -> tuple[Ref, ...]:
    x: Ref = c.args[0]
    dim = c.get(1, "dim", 0) % b.rank(x)
    found = []
    for i, shape in enumerate(c.shapes):
        places = axes(len(shape))
        places.insert(dim, ix.number(i))
        found.append(b.index(x, shape, tuple(places)))
    return tuple(found)


def glu(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    dim = c.get(1, "dim", -1) % b.rank(x)
    value, gate = _pieces(b, x, dim, (c.shape, c.shape))
    return b.map("mul", value, b.map("sigmoid", gate))


def pad(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    mode, fill = c.get(2, "mode", "constant"), c.get(3, "value")
    if not isinstance(mode, str):
        mode, fill = "constant", mode  # constant_pad_nd has no mode
    if mode != "constant":
        return _continued(b, c, mode)
    shape = b.node(x).shape
    rank, places, conditions = len(shape), axes(len(shape)), []
    for i in range(len(c.args[1]) // 2):
        before, after = place(c.args[1][2 * i]), place(c.args[1][2 * i + 1])
        dim = rank - 1 - i
        inside = ix.plus(places[dim], ix.number(-before.number))
        if before.op != "number":
            inside = ix.minus(places[dim], before)
        if before.number > 0 or before.op != "number":
            conditions.append(Condition(places[dim], ">=", before))
        if after.number > 0 or after.op != "number":
            conditions.append(Condition(inside, "<", ix.size(shape[dim])))
        places[dim] = inside
    return b.index(x, c.shape, tuple(places), tuple(conditions), converted(0 if fill is None else fill, c.dtype))


def _continued(b: Builder, c: Call, mode: str) -> Ref:
    """A pad that repeats elements: mirrored at the border, the border's own, or those of the other end."""
    x: Ref = c.args[0]
    shape, before = b.node(x).shape, c.args[1][::2]
    if any(not isinstance(size, int) for size in c.args[1]):
        raise Refused(f"pad by a size with mode={mode!r}")
    if any(size < 0 for size in c.args[1]):
        raise Refused(f"pad with mode={mode!r} (supported: constant; other modes unless they crop)")
    places = axes(len(shape))
    values: list[Ref] = []
    for i, size in enumerate(before):
        dim = len(shape) - 1 - i
        if not any(c.args[1][2 * i : 2 * i + 2]):
            continue
        along = (c.shape[dim], *((),) * i)
        if mode == "circular":
            before_end = ix.plus(ix.axis(-1 - i), ix.minus(ix.size(shape[dim]), ix.number(size)))
            places[dim] = ix.remainder(before_end, ix.size(shape[dim]))
            continue
        length, inner = ix.size(shape[dim]), b.place(along, ix.plus(ix.axis(-1 - i), ix.number(-size)))
        last = b.place((), ix.minus(length, ix.number(1)))
        name = ("from_col", "from_row", "from_plane")[i]
        if mode == "reflect":
            mirrored = b.map("abs", inner, name="mirrored")
            b.rename(last, ("last_col", "last_row", "last_plane")[i])
            place = b.map("sub", last, b.map("abs", b.map("sub", last, mirrored)), name=name)
        else:
            place = b.map("minimum", b.map("maximum", inner, 0), last, name=name)
        places[dim] = ix.value(len(values))
        values.append(place)
    return b.index(x, c.shape, tuple(places), values=tuple(values))


def _joined(b: Builder, c: Call, dim: int, lengths: list[Dim], places: list[list[Expr]]) -> Ref:
    """Operands side by side along a dimension of the result: each is read only where it lies."""
    along = ix.axis(dim - len(c.shape))
    starts = [ix.number(0)]
    for length in lengths:
        starts.append(ix.plus(starts[-1], ix.size(length)))
    operands = [b.convert(x, c.dtype) for x in c.args[0]]
    parts = []
    for i, operand in enumerate(operands):
        conditions = [Condition(along, ">=", starts[i])] if i else []
        if i + 1 < len(operands):
            conditions.append(Condition(along, "<", starts[i + 1]))
        parts.append(b.index(operand, c.shape, tuple(places[i]), tuple(conditions)))
    result = parts[-1]
    counted = (c.shape[dim], *((),) * (len(c.shape) - dim - 1))
    for i in range(len(parts) - 2, -1, -1):
        first = b.map("lt", b.place(counted, along), b.place((), starts[i + 1]))
        result = b.map("where", first, parts[i], result, dtype=c.dtype)
    return result


def cat(b: Builder, c: Call) -> Ref:
    dim = c.get(1, "dim", 0) % len(c.shape)
    shapes = [b.node(x).shape for x in c.args[0]]
    if any(len(s) != len(c.shape) for s in shapes):
        raise Refused("cat with an empty tensor of one dimension")
    places, start = [], ix.number(0)
    for shape in shapes:
        own = axes(len(c.shape))
        own[dim] = ix.minus(own[dim], start)
        start = ix.plus(start, ix.size(shape[dim]))
        places.append(own)
    return _joined(b, c, dim, [s[dim] for s in shapes], places)


def stack(b: Builder, c: Call) -> Ref:
    dim = c.get(1, "dim", 0) % len(c.shape)
    own = axes(len(c.shape))
    del own[dim]
    return _joined(b, c, dim, [()] * len(c.args[0]), [own] * len(c.args[0]))


def _beside(flat: Rule, dim: int) -> Rule:
    """hstack, vstack and column_stack: `flat` joins tensors of one dimension, others are joined along `dim`."""

    def rule(b: Builder, c: Call) -> Result:
        if len({b.rank(x) for x in c.args[0]}) > 1 or not b.rank(c.args[0][0]):
            raise Refused("cat or stack of tensors with different numbers of dimensions, or with none")
        if b.rank(c.args[0][0]) == 1:
            return flat(b, replace(c, args=(c.args[0], dim)))
        return cat(b, replace(c, args=(c.args[0], dim)))

    return rule


def _hstack_flat(b: Builder, c: Call) -> Ref:
    return cat(b, replace(c, args=(c.args[0], 0)))


def outer(b: Builder, c: Call) -> Ref:
    one, other = c.args[:2]
    return b.map("mul", b.view("reshape", one, (*b.node(one).shape, ())), other)


def repeat(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    shape = b.node(x).shape
    places = axes(len(c.shape))[len(c.shape) - len(shape) :]
    # of fewer counts than dimensions, as tile takes them, the first dimensions are as they are
    times = (*(1 for _ in shape[len(c.args[1]) :]), *c.args[1])[-len(shape) :] if shape else ()
    places = [p if n == 1 else ix.remainder(p, ix.size(d)) for p, n, d in zip(places, times, shape, strict=True)]
    return b.index(x, c.shape, tuple(places))


def repeat_interleave(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    dim = c.get(2, "dim")
    if not isinstance(c.args[1], int) or dim is None:
        raise Refused("repeat_interleave with a tensor of repeats, or without dim")
    places = axes(len(c.shape))
    places[dim % len(places)] = ix.quotient(places[dim % len(places)], ix.number(c.args[1]))
    return b.index(x, c.shape, tuple(places))


def triangle(*, upper: bool) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        diagonal = ix.plus(ix.axis(-2), place(c.get(1, "diagonal", 0)))
        rows, cols = b.place((c.shape[-2], ()), diagonal), b.place((c.shape[-1],), ix.axis(-1))
        kept = b.map("ge" if upper else "le", cols, rows)
        return b.map("where", kept, c.args[0], converted(0, c.dtype), dtype=c.dtype)

    return rule


def arange(b: Builder, c: Call) -> Ref:
    start, step = (c.args[0], c.get(2, "step", 1)) if len(c.args) > 1 else (0, 1)
    if not isinstance(step, int | SizeOf) or not isinstance(start, int | SizeOf):
        raise Refused("arange with fractional limits or steps")
    counted = ix.plus(ix.times(ix.axis(-1), place(step)), place(start))
    result = b.place(c.shape, counted)
    return b.convert(result, c.dtype)


def diagonal(b: Builder, c: Call) -> Ref:
    """Two dimensions read at once, which are the last of the result."""
    x: Ref = c.args[0]
    offset, rank = c.get(1, "offset", 0), b.rank(x)
    first, second = (c.get(i, name, d) % rank for i, name, d in ((2, "dim1", 0), (3, "dim2", 1)))
    others = iter(axes(len(c.shape)))
    places = [next(others) if d not in (first, second) else ix.axis(-1) for d in range(rank)]
    places[first] = ix.plus(ix.axis(-1), ix.number(max(-offset, 0)))
    places[second] = ix.plus(ix.axis(-1), ix.number(max(offset, 0)))
    return b.index(x, c.shape, tuple(places))


def trace(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    rows, columns = b.node(x).shape
    whole = all(isinstance(a, int) for a in (*rows, *columns))
    if not whole and not same_size(rows, columns):
        raise Refused("trace of a matrix that the spec does not declare square")
    length = min(rows, columns, key=lambda d: math.prod(a for a in d if isinstance(a, int))) if whole else rows
    on_diagonal = b.index(x, (length,), (ix.axis(-1), ix.axis(-1)))
    return b.view("reshape", b.reduce("sum", b.convert(on_diagonal, c.dtype), (-1,)), ())


def linalg_diagonal(b: Builder, c: Call) -> Ref:
    offset, first, second = (c.kwargs.get(n, d) for n, d in (("offset", 0), ("dim1", -2), ("dim2", -1)))
    return diagonal(b, replace(c, args=(c.args[0], offset, first, second), kwargs={}))


def unfold(b: Builder, c: Call) -> Ref:
    """`x.unfold(dim, size, step)`: windows side by side, their elements in a dimension behind the others."""
    x, dim, _, step = c.args
    if not b.rank(x):
        return b.view("reshape", x, c.shape)
    places = [ix.axis(i - b.rank(x) - 1) for i in range(b.rank(x))]
    dim %= b.rank(x)
    places[dim] = ix.plus(ix.times(places[dim], ix.number(step)), ix.axis(-1))
    return b.index(x, c.shape, tuple(places))


def pixel_shuffle(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    r = ix.number(c.args[1])
    *leading, channel, h, w = axes(len(c.shape))
    inner = ix.plus(ix.times(ix.remainder(h, r), r), ix.remainder(w, r))
    places = (*leading, ix.plus(ix.times(channel, ix.times(r, r)), inner), ix.quotient(h, r), ix.quotient(w, r))
    return b.index(x, c.shape, places)


def pixel_unshuffle(b: Builder, c: Call) -> Ref:
    x: Ref = c.args[0]
    r = ix.number(c.args[1])
    *leading, channel, h, w = axes(len(c.shape))
    row = ix.plus(ix.times(h, r), ix.remainder(ix.quotient(channel, r), r))
    places = (*leading, ix.quotient(channel, ix.times(r, r)), row, ix.plus(ix.times(w, r), ix.remainder(channel, r)))
    return b.index(x, c.shape, places)


RULES: dict[str, Rule] = {
    "aten.slice.Tensor": slice_,
    "aten.narrow.default": narrow,
    "aten.narrow.int": narrow,
    "aten.select.int": select,
    "aten.flip.default": flip,
    "aten.flipud.default": _flipped(0),
    "aten.fliplr.default": _flipped(1),
    "aten.rot90.default": rot90,
    **{f"aten.movedim.{kind}": movedim for kind in ("int", "intlist")},
    "aten.hstack.default": _beside(_hstack_flat, 1),
    "aten.vstack.default": _beside(stack, 0),
    "aten.column_stack.default": _beside(stack, 1),
    "aten.outer.default": outer,
    "aten.roll.default": roll,
    "aten.glu.default": glu,
    "aten.pad.default": pad,
    "aten.constant_pad_nd.default": pad,
    "aten.cat.default": cat,
    "aten.concat.default": cat,
    "aten.stack.default": stack,
    "aten.repeat.default": repeat,
    "aten.tile.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.tril.default": triangle(upper=False),
    "aten.triu.default": triangle(upper=True),
    **{f"aten.arange.{kind}": arange for kind in ("default", "start", "start_step")},
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
    **{f"aten.{op}": split for op in ("split.Tensor", "split_with_sizes.default", "chunk.default", "split.sizes")},
    "aten.unbind.int": unbind,
    "aten.diagonal.default": diagonal,
    "aten.linalg_diagonal.default": linalg_diagonal,
    "aten.trace.default": trace,
    "aten.unfold.default": unfold,
}

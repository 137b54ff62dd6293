"""The gradients of moved elements: what every operand gets is moved back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from kernelgen.backward import lengths
from kernelgen.backward.tape import Shape, Tape
from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Dim, Node, Ref
from kernelgen.frontend.indices import Expr, Indexing

MOST = 8
"""Copies of an element whose gradients are added one by one; a sum over more is a reduction."""


def moved(t: Tape, op: str, args: Sequence[Ref], shape: Shape, attrs: Sequence[int] = (), *places: Expr) -> Ref:
    """A node that moves elements; what undoes the one before it leaves nothing to do."""
    (x, *_), fill = args, 0.0 if op == "pad" else None
    node = t.node(x)
    if op == node.op == "flip" and tuple(attrs) == node.attrs and isinstance(node.args[0], Ref):
        return node.args[0]
    indexing = Indexing(places, (), fill) if places else None
    return t._add(Node(op, tuple(args), shape, "float", None, None, tuple(attrs), indexing))


def through_move(t: Tape, node: Node, g: Ref) -> Iterator[tuple[int, Ref]]:
    """What the operands of a node of `moves.MOVES` get. A slice gives zeros beside it, which `joined` may take away."""
    operands = [a for a in node.args if isinstance(a, Ref)]
    shape = t.node(operands[0]).shape
    g = t.view("expand", g, node.shape)
    if node.op in ("cat", "stack"):
        yield from _taken_apart(t, node, operands, g)
        return
    yield operands[0].node, _back(t, node, shape, g)


def _back(t: Tape, node: Node, shape: Shape, g: Ref) -> Ref:
    attrs = [int(a) for a in node.attrs]
    if node.op == "flip":
        return flipped(t, g, *attrs)
    if node.op == "roll":
        return moved(t, "roll", [g], shape, [-a if i % 2 else a for i, a in enumerate(attrs)])
    if node.op in ("shuffle", "unshuffle"):
        return moved(t, "unshuffle" if node.op == "shuffle" else "shuffle", [g], shape, attrs)
    if node.op in ("repeat", "interleave"):
        return _added(t, node, shape, g, dict(zip(attrs[::2], attrs[1::2], strict=True)))
    assert node.indexing is not None
    places = node.indexing.places
    if node.op == "pad":
        for dim, before in zip(attrs, places[::2], strict=True):
            whole = _replaced(t.node(g).shape, dim, shape[dim])
            g = moved(t, "slice", [g], whole, [dim, 1], before)
        return g
    dim, step = (attrs[0], 1) if node.op == "select" else attrs
    if node.op == "select":
        g = t.view("reshape", g, (*node.shape[: len(shape) + dim], (), *node.shape[len(shape) + dim :]))
    return moved(t, "spread", [g], shape, [dim, step], *places)


def flipped(t: Tape, x: Ref, *dims: int) -> Ref:
    return moved(t, "flip", [x], t.node(x).shape, dims)


def summed_from_end(t: Tape, x: Ref, dim: int) -> Ref:
    """The sum of every element and those after it. Of the last elements of a row it is the end of the row's own."""
    node = t.node(x)
    if node.op == "slice" and node.attrs == (dim, 1) and isinstance(node.args[0], Ref):
        shape, start = t.node(node.args[0]).shape, _start(node)
        end = lengths.added(lengths.of_place(start), lengths.of_dim(node.shape[dim]))
        if end == lengths.of_dim(shape[dim]):
            return moved(t, "slice", [summed_from_end(t, node.args[0], dim)], node.shape, [dim, 1], start)
    return flipped(t, t.scan("cumsum", flipped(t, x, dim), dim), dim)


def _replaced(shape: Shape, dim: int, length: Dim) -> Shape:
    return tuple(length if d - len(shape) == dim else known for d, known in enumerate(shape))


def _taken_apart(t: Tape, node: Node, operands: Sequence[Ref], g: Ref) -> Iterator[tuple[int, Ref]]:
    """The part of every operand of a join."""
    (dim,), start = (int(a) for a in node.attrs), ix.number(0)
    for number, operand in enumerate(operands):
        shape = t.node(operand).shape
        if node.op == "stack":
            yield operand.node, moved(t, "select", [g], shape, [dim], ix.number(number))
        else:
            yield operand.node, moved(t, "slice", [g], shape, [dim, 1], start)
            start = ix.plus(start, ix.size(shape[dim]))


def _added(t: Tape, node: Node, shape: Shape, g: Ref, times: dict[int, int]) -> Ref:
    """The sum of what came of all copies."""
    split: list[Dim] = []
    axes: list[int] = []
    for d, length in enumerate(shape):
        n = times.get(d - len(shape))
        split += [length] if n is None else [(n,), length] if node.op == "repeat" else [length, (n,)]
        axes += [] if n is None else [len(split) - (2 if node.op == "repeat" else 1)]
    whole = t.view("reshape", g, tuple(split))
    t.keep(whole, "copies")
    counts = [n for d, n in sorted(times.items())]
    if prod(counts) > MOST:
        summed = t.reduce("sum", whole, tuple(a - len(split) for a in axes))
        return t.view("reshape", summed, shape)
    dims = [a - len(split) for a in axes]
    copies = [
        moved(t, "select", [whole], shape, dims, *map(ix.number, chosen))
        for chosen in itertools.product(*map(range, counts))
    ]
    return t.total(copies)


def joined(t: Tape, parts: Sequence[Ref]) -> list[Ref]:
    """The parts of a gradient, those that lie beside one another in one join; a slice that is left gets zeros around
    it."""
    left: list[Ref] = []
    groups: dict[tuple[int | str, ...], list[Node]] = {}
    for part in parts:
        node = t.node(part)
        if node.op == "spread":
            groups.setdefault(node.attrs, []).append(node)
        else:
            left.append(part)
    for attrs, found in groups.items():
        dim, step = (int(a) for a in attrs)
        left += _side_by_side(t, found, dim) if step == 1 else [_interlaced(t, found, dim, step)]
    return left


def _side_by_side(t: Tape, found: Sequence[Node], dim: int) -> list[Ref]:
    """Runs of elements one after the other."""
    ordered = sorted(found, key=lambda node: lengths.of_place(_start(node)))
    pieces = [a for node in ordered for a in node.args if isinstance(a, Ref)]
    ends = [
        lengths.added(lengths.of_place(_start(n)), _length(t, p, dim)) for n, p in zip(ordered, pieces, strict=True)
    ]
    starts = [lengths.of_place(_start(node)) for node in ordered]
    shape = ordered[0].shape
    if lengths.number(starts[0]) == 0 and starts[1:] == ends[:-1] and ends[-1] == lengths.of_dim(shape[dim]):
        return [moved(t, "cat", pieces, shape, [dim])] if len(pieces) > 1 else pieces
    return [_padded(t, node, piece, dim) for node, piece in zip(ordered, pieces, strict=True)]


def _start(node: Node) -> Expr:
    assert node.indexing is not None
    return node.indexing.places[0]


def _length(t: Tape, piece: Ref, dim: int) -> lengths.Values:
    return lengths.of_dim(t.node(piece).shape[dim])


def _padded(t: Tape, node: Node, piece: Ref, dim: int) -> Ref:
    """A slice's gradient with zeros in the place of what the slice left out."""
    start, length = _start(node), t.node(piece).shape[dim]
    taken = lengths.added(lengths.of_place(start), lengths.of_dim(length))
    rest = lengths.number(lengths.less(lengths.of_dim(node.shape[dim]), taken))
    after = (
        ix.number(rest) if rest is not None else ix.minus(ix.minus(ix.size(node.shape[dim]), start), ix.size(length))
    )
    return moved(t, "pad", [piece], node.shape, [dim], start, after)


def _interlaced(t: Tape, found: Sequence[Node], dim: int, step: int) -> Ref:
    """Elements taken in turn from as many slices as steps are long."""
    by_start = {lengths.number(lengths.of_place(_start(node))): node for node in found}
    if sorted(by_start, key=str) != sorted(range(step), key=str) or len(found) != step:
        raise Refused("the gradient of a slice with steps, of which others do not take the rest")
    pieces = [a for start in range(step) for a in by_start[start].args if isinstance(a, Ref)]
    own, shape = t.node(pieces[0]).shape, found[0].shape
    if any(_length(t, p, dim) != _length(t, pieces[0], dim) for p in pieces):
        raise Refused("the gradient of slices with steps that are not of one length")
    at = len(own) + dim + 1
    stacked = moved(t, "stack", pieces, (*own[:at], (step,), *own[at:]), [at - len(own) - 1])
    return t.view("reshape", stacked, shape)

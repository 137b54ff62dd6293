"""Moved elements as PyTorch text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from kernelgen.backward import lengths
from kernelgen.backward.tape import Shape
from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Node
from kernelgen.frontend.indices import Expr
from kernelgen.spec.model import ELLIPSIS

Place = Callable[[Expr], ast.expr]


def move_text(node: Node, operands: Sequence[ast.expr], shape: Shape, place: Place) -> ast.expr:
    """A node of `moves.MOVES`; `shape` is the first operand's."""
    x, attrs = operands[0], [int(a) for a in node.attrs]
    if node.op in ("slice", "select"):
        return _subscript(node, x, shape, place)
    if node.op == "pad":
        return _pad(node, x, place)
    if node.op == "flip":
        return _call(ast.Attribute(x, "flip"), *(_number(d) for d in attrs))
    if node.op == "roll":
        shifts, dims = ([_number(a) for a in attrs[i::2]] for i in (1, 0))
        return _call(ast.Attribute(x, "roll"), *(v[0] if len(v) == 1 else ast.Tuple(v) for v in (shifts, dims)))
    if node.op in ("cat", "stack"):
        function = ast.Attribute(ast.Name("torch"), node.op)
        return ast.Call(function, [ast.Tuple(list(operands))], [ast.keyword("dim", _number(attrs[0]))])
    if node.op in ("shuffle", "unshuffle"):
        return _call(ast.Attribute(ast.Name("F"), f"pixel_{node.op}"), x, _number(attrs[0]))
    if node.op == "interleave":
        for dim, times in zip(attrs[::2], attrs[1::2], strict=True):
            function = ast.Attribute(x, "repeat_interleave")
            x = ast.Call(function, [_number(times)], [ast.keyword("dim", _number(dim))])
        return x
    if node.op == "repeat" and (ELLIPSIS,) not in shape:
        times_of = dict(zip(attrs[::2], attrs[1::2], strict=True))
        return _call(ast.Attribute(x, "repeat"), *(_number(times_of.get(d, 1)) for d in range(-len(shape), 0)))
    raise Refused(f"the gradient of what {node.op} gave")


def _subscript(node: Node, x: ast.expr, shape: Shape, place: Place) -> ast.expr:
    """Dimensions of a tensor cut or chosen from."""
    assert node.indexing is not None
    places = node.indexing.places
    if node.op == "select":
        chosen = {int(d): place(p) for d, p in zip(node.attrs, places, strict=True)}
    else:
        chosen = {int(node.attrs[0]): _slice(node, shape, places[0], place)}
    entries: list[ast.expr] = [chosen.get(d, ast.Slice()) for d in range(-len(shape), 0)]
    before, after = len(shape) + min(chosen), -max(chosen) - 1
    if (ELLIPSIS,) in shape or after < before:
        entries = [ast.Constant(...), *entries[before:]]
    else:
        entries = entries[: len(shape) - after]
    return ast.Subscript(x, ast.Tuple(entries) if len(entries) > 1 else entries[0])


def _slice(node: Node, shape: Shape, start: Expr, place: Place) -> ast.expr:
    dim, step = (int(a) for a in node.attrs)
    stop = ix.plus(start, ix.times(ix.size(node.shape[dim]), ix.number(step)))
    beyond = lengths.less(lengths.of_place(stop), lengths.of_dim(shape[dim]))
    reaches = all(0 <= n < step for n in beyond)
    if not reaches and (left := lengths.number(beyond)) is not None:
        stop = ix.number(left)  # counted from the end
    return ast.Slice(
        None if start == ix.number(0) else place(start),
        None if reaches else place(stop),
        None if step == 1 else _number(step),
    )


def _pad(node: Node, x: ast.expr, place: Place) -> ast.expr:
    assert node.indexing is not None
    places, fill = node.indexing.places, node.indexing.fill
    amounts = {int(d): places[2 * i : 2 * i + 2] for i, d in enumerate(node.attrs)}
    nothing = (ix.number(0), ix.number(0))
    shown = [place(p) for d in range(-1, min(amounts) - 1, -1) for p in amounts.get(d, nothing)]
    value = [] if fill == 0 else [ast.keyword("value", ast.Constant(fill))]
    return ast.Call(ast.Attribute(ast.Name("F"), "pad"), [x, ast.Tuple(shown)], value)


def _call(function: ast.expr, *args: ast.expr) -> ast.expr:
    return ast.Call(function, list(args), [])


def _number(n: int) -> ast.expr:
    return ast.Constant(n) if n >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-n))

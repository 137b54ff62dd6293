"""What statements of the IR mention."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from kernelgen.tile import ir

_T = TypeVar("_T")


def used_names(statements: tuple[ir.Stmt, ...]) -> frozenset[str]:
    """Every variable, argument and constexpr that statements read."""
    return frozenset(name for statement in statements for name in _read(statement))


def trimmed(statements: tuple[ir.Stmt, ...], wanted: frozenset[str] = frozenset()) -> tuple[ir.Stmt, ...]:
    """The statements short of assignments that nothing reads. `wanted`: what is read after them."""
    kept: list[ir.Stmt] = []
    needed = set(wanted)
    for statement in reversed(statements):
        if isinstance(statement, ir.Let) and not needed & set(statement.names):
            continue
        if isinstance(statement, ir.Update) and statement.name not in needed:
            continue
        if isinstance(statement, ir.For | ir.While):
            statement = _trimmed_loop(statement, frozenset(needed))
        if isinstance(statement, ir.If):
            statement = replace(statement, body=trimmed(statement.body, frozenset(needed)))
        if isinstance(statement, ir.Let):
            needed -= set(statement.names)
        needed |= _exposed((statement,))
        kept.append(statement)
    return tuple(reversed(kept))


def _trimmed_loop(loop: ir.For | ir.While, wanted: frozenset[str]) -> ir.For | ir.While:
    """What one turn leaves the next may read, which is known once what nothing reads has gone."""
    carried = frozenset(_read(loop.condition) if isinstance(loop, ir.While) else ())
    while True:
        body = trimmed(loop.body, wanted | carried)
        exposed = _exposed(body)
        if exposed <= carried:
            return replace(loop, body=body)
        carried |= exposed


def _exposed(statements: tuple[ir.Stmt, ...]) -> frozenset[str]:
    """What statements read of what was there before them."""
    found: set[str] = set()
    made: set[str] = set()
    for statement in statements:
        if isinstance(statement, ir.For | ir.While | ir.If):
            read = {*_read(replace(statement, body=())), *_exposed(statement.body)}
        else:
            read = set(_read(statement))
        found |= read - made
        made |= set(statement.names) if isinstance(statement, ir.Let) else set()
    return frozenset(found)


def assigned_names(statements: tuple[ir.Stmt, ...]) -> Iterator[str]:
    """Every variable that statements assign, or may assign for a part of a long line."""
    for statement in statements:
        if isinstance(statement, ir.For | ir.While | ir.If):
            yield from [statement.index] if isinstance(statement, ir.For) else []
            yield from assigned_names(statement.body)
        elif isinstance(statement, ir.When):
            for _, body in statement.choices:
                yield from assigned_names(body)
        elif isinstance(statement, ir.Let):
            yield from statement.names
        for part in parts_of(statement):
            yield part.name


def parts_of(node: object, cut: Collection[ir.Part] = ()) -> list[ir.Part]:
    """The parts of an expression that may have lines of their own, nearest first; `cut`: those that have."""
    found = _outermost(node, cut)
    for part in found:  # which grows
        found += _outermost(part.value, cut)
    return found


def renamed(node: _T, names: Mapping[str, str]) -> _T:
    """Statements or expressions with some variables under other names."""
    found: Any = node
    if isinstance(node, tuple):
        found = tuple(renamed(part, names) for part in node)
    elif isinstance(node, ir.Name):
        found = replace(node, text=names.get(node.text, node.text))
    elif is_dataclass(node) and not isinstance(node, ir.Axis | type):
        found = replace(node, **{f.name: renamed(getattr(node, f.name), names) for f in fields(node)})
        if isinstance(found, ir.Let):
            found = replace(found, names=tuple(names.get(name, name) for name in found.names))
        if isinstance(found, ir.Update):
            found = replace(found, name=names.get(found.name, found.name))
    return found  # type: ignore[no-any-return]


def without_parts(expr: ir.Expr) -> ir.Expr:
    """An expression of which nothing gets a line of its own."""
    if isinstance(expr, ir.Part):
        return without_parts(expr.value)
    if isinstance(expr, ir.Apply):
        return replace(expr, args=tuple(map(without_parts, expr.args)))
    return replace(expr, arg=without_parts(expr.arg)) if isinstance(expr, ir.Cast) else expr


def _outermost(node: object, cut: Collection[ir.Part]) -> list[ir.Part]:
    if isinstance(node, ir.Part):
        return [] if node in cut else [node]
    if isinstance(node, tuple):
        return [part for inner in node for part in _outermost(inner, cut)]
    if is_dataclass(node) and not isinstance(node, ir.Axis):
        return [part for field in fields(node) for part in _outermost(getattr(node, field.name), cut)]
    return []


def _read(node: object) -> Iterator[str]:
    if isinstance(node, ir.Name):
        yield node.text
    if isinstance(node, ir.Update):
        yield node.name
    if isinstance(node, ir.Size):
        yield from re.findall(r"[A-Za-z_]\w*", node.text)
    if isinstance(node, ir.Axis):
        yield from re.findall(r"[A-Za-z_]\w*", node.block)
    if isinstance(node, ir.Contiguous):
        yield f"{node.tensor}_ptr"
    if isinstance(node, ir.Pointer):
        yield from [] if node.base else [f"{node.tensor}_ptr"]
        for _, stride in node.terms:
            yield from re.findall(r"[A-Za-z_]\w*", stride or "")
    if isinstance(node, ir.Box):
        yield node.tensor
    if isinstance(node, ir.For) and node.stages:
        yield node.stages
    if isinstance(node, ir.Dot) and node.precision:
        yield node.precision
    if isinstance(node, ir.ElementOf):
        yield f"{node.tensor}:type"
    if isinstance(node, tuple):
        for part in node:
            yield from _read(part)
    elif is_dataclass(node):
        for field in fields(node):
            if field.name not in ("shape", "names", "comment", "lines"):
                yield from _read(getattr(node, field.name))

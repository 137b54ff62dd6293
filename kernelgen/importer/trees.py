"""Questions about a function's tree: its statements, its names, what stands in it where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.body[1:] if documented and isinstance(first.value.value, str) else function.body  # type: ignore[attr-defined]


def body_span(text: str, begin: int, end: int) -> tuple[int, int]:
    """The offsets of a body with the comments above and behind it, from the start of its first line."""
    line = text.rfind("\n", 0, begin) + 1
    if text[line:begin].strip():  # it stands behind the colon
        return begin, end
    while line:
        above = text.rfind("\n", 0, line - 1) + 1
        if not text[above:line].strip().startswith("#"):
            break
        line = above
    behind = re.compile(r"[ \t]*(#[^\n]*)?").match(text, end)
    assert behind is not None
    return line, behind.end()


def bound(function: ast.FunctionDef) -> set[str]:
    """The names that a function gives a meaning of its own."""
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    arguments = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    inner = {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function}
    return stored | arguments | inner


def operands(tree: ast.AST) -> Iterator[ast.AST]:
    """What stands in front of `**`, of a dot or of an index."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            yield node.left
        elif isinstance(node, ast.Attribute | ast.Subscript):
            yield node.value


def placed(node: ast.AST) -> Iterator[ast.AST]:
    """The nearest descendants that have a place in the text."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from placed(child)

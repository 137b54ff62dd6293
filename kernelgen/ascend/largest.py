"""The line of a kernel that puts the largest tile into the buffer: what to make smaller where the buffer overflows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from math import prod
from typing import TypeGuard

Axes = dict[tuple[int, int], int]
"""The ranges that a value varies along: where each is written, and its length."""


def largest_line(text: str, kernel: str, constants: Mapping[str, int | float | bool]) -> int:
    """The first of the lines with the largest load of a kernel, whose constants are given; its first line where it
    loads nothing of a length that is known."""
    function = next((n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == kernel), None)
    if function is None:
        return 1
    known: dict[str, Axes] = {}
    largest, line = 1, function.lineno
    for statement in _statements(function.body):
        for load in (n for n in ast.walk(statement) if _is_call(n, "load")):
            elements = prod(_axes(load, known, constants).values())
            if elements > largest:
                largest, line = elements, load.lineno
        if isinstance(statement, ast.Assign):
            axes = _axes(statement.value, known, constants)
            names = [n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            known |= dict.fromkeys(names, axes)
    return line


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of loops and branches as well, in the order of the text."""
    for statement in body:
        inner = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
        if inner:
            yield from _statements(inner)
        else:
            yield statement


def _axes(node: ast.AST, known: Mapping[str, Axes], constants: Mapping[str, int | float | bool]) -> Axes:
    """The ranges that an expression mentions; what a reduction takes away of them is not looked at, as a load came
    before it."""
    found: Axes = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found |= known.get(one.id, {})
        elif _is_call(one, "arange") and len(one.args) == 2:
            found[one.lineno, one.col_offset] = _length(one.args[1], constants)
    return found


def _length(node: ast.expr, constants: Mapping[str, int | float | bool]) -> int:
    """A number, or the constant that is named; 1 where it is neither."""
    value = node.value if isinstance(node, ast.Constant) else constants.get(ast.unparse(node), 1)
    return value if isinstance(value, int) else 1


def _is_call(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name

"""Statements of a derived reference in the shape that ruff format would give them."""

from __future__ import annotations

import ast

from kernelgen.families.line import fit


def laid_out(statement: str) -> str:
    """One statement of a function's body, indented."""
    return fit(_spaced(statement), 4)


def _spaced(statement: str) -> str:
    """Spaces beside the colons of slices that do not begin and end at names or numbers."""
    spaces: set[int] = set()
    for node in ast.walk(ast.parse(statement)):
        if not isinstance(node, ast.Slice) or node.step is not None or all(map(_is_simple, (node.lower, node.upper))):
            continue
        if node.lower is not None and node.lower.end_col_offset is not None:
            spaces.add(node.lower.end_col_offset)
        if node.upper is not None:
            spaces.add(node.upper.col_offset)
    return "".join(f" {char}" if i in spaces else char for i, char in enumerate(statement))


def _is_simple(end: ast.expr | None) -> bool:
    operand = end.operand if isinstance(end, ast.UnaryOp) else end
    return operand is None or isinstance(operand, ast.Name | ast.Constant)

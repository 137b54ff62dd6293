"""The reference as Python: compiled to a function, and cut into statements that a generated kernel can cite."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelgen.frontend.graph import Statement
from kernelgen.frontend.masks import OPERATION
from kernelgen.spec.branches import parsed
from kernelgen.spec.model import OperatorSpec


@dataclass(frozen=True)
class Reference:
    """A compiled reference. `statement_at` maps a line of its source to an index of `statements`."""

    function: Callable[..., Any]
    statements: tuple[Statement, ...]
    statement_at: dict[int, int]
    file: str
    writes: bool = False
    """Whether it may have operations in place: by their names, by `+=` and the like, to subscripts, or `inplace=`."""
    whole: bool = False
    """Whether depthwise convolutions stay convolutions in its graph, as their gradients are those of convolutions."""


def compile_reference(spec: OperatorSpec) -> Reference:
    """Compile the spec's reference so that a trace knows its lines.

    The code object is renamed `forward`, because a trace of `torch.export` records the lines of frames of that name
    alone; work done in a helper is then put down to the line that calls it.
    """
    import torch

    from kernelgen.frontend.random_mask import traced

    file = f"<reference of {spec.name}>"
    linecache.cache[file] = (len(spec.reference), None, spec.reference.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": __import__("math"), OPERATION: traced}
    exec(compile(_followed(spec), file, "exec"), scope)
    function = scope[spec.name]
    assert inspect.isfunction(function)
    function.__code__ = function.__code__.replace(co_name="forward", co_qualname="forward")
    statements, at = _statements(spec)
    return Reference(function, statements, at, file, _writes(spec.reference))


def _followed(spec: OperatorSpec) -> ast.Module:
    """The reference with what the tests come to whose sides are settled: a trace follows one side only."""
    tree = parsed(spec.reference)
    taken = {(side.line, side.column): side.taken for side in spec.sides}
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and (node.test.lineno, node.test.col_offset) in taken:
            answer = ast.Constant(taken[node.test.lineno, node.test.col_offset])
            node.test = ast.copy_location(answer, node.test)
    return tree


def _writes(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.AugAssign() | ast.Subscript(ctx=ast.Store()) | ast.keyword(arg="inplace" | "out"):
                return True
            case ast.Attribute(attr=name) if name.endswith("_"):
                return True
    return False


def _statements(spec: OperatorSpec) -> tuple[tuple[Statement, ...], dict[int, int]]:
    tree = ast.parse(spec.reference)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.name)
    statements: list[Statement] = []
    at: dict[int, int] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            at[line] = len(statements)
        statements.append(Statement(node.lineno, ast.unparse(node), _target(node)))
    return tuple(statements), at


def _target(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None

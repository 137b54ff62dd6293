"""Expressions over sizes: whole-number arithmetic that a wrapper computes. The only host code an answer can cause."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from dataclasses import dataclass

LONGEST = 200
LARGEST = 2**40
FUNCTIONS = {"cdiv": "triton.cdiv", "next_power_of_2": "triton.next_power_of_2", "min": "min", "max": "max"}
"""What may be called, and how the wrapper calls it."""
ARITY = {"cdiv": 2, "next_power_of_2": 1, "min": 2, "max": 2}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


class ExpressionError(Exception):
    """Why a text is no expression over sizes."""


@dataclass(frozen=True)
class Expression:
    """One expression as the wrapper writes it."""

    text: str
    names: frozenset[str]
    """The sizes it uses."""


def parse(text: str, sizes: Container[str], tensors: Mapping[str, int | None], *, floats: bool = False) -> Expression:
    """An expression over named sizes and over `x.shape[i]`, `x.numel()` of tensors (each with its rank, None: any).

    `floats`: a float alone is an expression too. Raises ExpressionError.
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text[:60]!r} is no expression") from None
    if floats and (number := _float(tree)) is not None:
        return Expression(repr(number), frozenset())
    names: set[str] = set()
    _check(tree, sizes, tensors, names)
    return Expression(ast.unparse(_Wrapped().visit(tree)), frozenset(names))


def _float(node: ast.expr) -> float | None:
    sign = -1.0 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1.0
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant) and type(inner.value) is float and abs(inner.value) < 1e38:
        return sign * inner.value
    return None


def _check(node: ast.expr, sizes: Container[str], tensors: Mapping[str, int | None], names: set[str]) -> None:
    match node:
        case ast.Constant() if type(node.value) is int and 0 <= node.value <= LARGEST:
            return
        case ast.Name() if node.id in sizes:
            names.add(node.id)
        case ast.BinOp() if isinstance(node.op, _OPERATORS):
            _check(node.left, sizes, tensors, names)
            _check(node.right, sizes, tensors, names)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS and not node.keywords:
            if len(node.args) != ARITY[name]:
                raise ExpressionError(f"{name} takes {ARITY[name]} values, got {ast.unparse(node)[:60]}")
            for argument in node.args:
                _check(argument, sizes, tensors, names)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="numel"), args=[], keywords=[]) if (
            name in tensors
        ):
            return
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape")) if name in tensors:
            _check_dimension(node, tensors[name])
        case _:
            raise ExpressionError(_refusal(node))


def _check_dimension(node: ast.Subscript, rank: int | None) -> None:
    try:
        index = ast.literal_eval(node.slice)
    except ValueError:
        index = None
    if type(index) is not int or not (-8 <= index < 8 if rank is None else -rank <= index < rank):
        raise ExpressionError(f"{ast.unparse(node)[:60]} is no dimension")


def _refusal(node: ast.expr) -> str:
    shown = ast.unparse(node)[:60]
    if isinstance(node, ast.Name):
        return f"{shown} is no size that is known here"
    return f"{shown} is not allowed: whole numbers, sizes, x.shape[i], x.numel(), + - * // % and {', '.join(FUNCTIONS)}"


class _Wrapped(ast.NodeTransformer):
    """The functions by the names that the wrapper knows them by."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            node.func = ast.parse(FUNCTIONS[node.func.id], mode="eval").body
        return node

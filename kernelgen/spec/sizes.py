"""Sizes that follow from named ones: `2 * D`, `A + B`, `(H - 1) // 2 + 1`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)


def check_size(text: str) -> str:
    """The expression in one way of writing it. ValueError where it has more than names, numbers and + - * //."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(text) from None
    for node in ast.walk(tree.body):
        fine = isinstance(node, (ast.Name, ast.Load, ast.UnaryOp, ast.USub, *_OPERATORS))
        fine |= isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS)
        fine |= isinstance(node, ast.Constant) and type(node.value) is int
        if not fine:
            raise ValueError(text)
    return ast.unparse(tree)


def is_expression(entry: object) -> bool:
    """Whether an entry of a shape is neither a number, nor a name, nor "..."."""
    return isinstance(entry, str) and entry != "..." and not entry.isidentifier()


def names_in(entry: object) -> tuple[str, ...]:
    """The size names that an entry of a shape mentions, "..." included."""
    if not isinstance(entry, str):
        return ()
    if not is_expression(entry):
        return (entry,)
    found = [n for n in ast.walk(ast.parse(entry, mode="eval")) if isinstance(n, ast.Name)]
    return tuple(dict.fromkeys(n.id for n in sorted(found, key=lambda n: n.col_offset)))


def multiple(entry: str) -> tuple[int, str]:
    """The factor and the name of `2 * D`, the one kind of expression that binds a size. ValueError for others."""
    tree = ast.parse(entry, mode="eval").body
    match tree:
        case ast.BinOp(ast.Constant(int(factor)), ast.Mult(), ast.Name(name)) if factor > 1:
            return factor, name
        case ast.BinOp(ast.Name(name), ast.Mult(), ast.Constant(int(factor))) if factor > 1:
            return factor, name
    raise ValueError(entry)


def parts(entry: str) -> tuple[int | str, int | str]:
    """`2 * D` as the dimensions 2 and D, `D * 2` as D and 2."""
    factor, name = multiple(entry)
    return (name, factor) if entry.strip().startswith(name) else (factor, name)


def bound_by(entry: object) -> str | None:
    """The name whose size follows from an entry of a shape, where it is that name or a multiple of it."""
    if not is_expression(entry):
        return entry if isinstance(entry, str) else None
    return multiple(str(entry))[1] if is_multiple(str(entry)) else None


def follows(entry: object) -> bool:
    """Whether an entry of a shape binds no size: it follows from names that are bound elsewhere, as `H - 2` does."""
    return is_expression(entry) and not is_multiple(str(entry))


def is_multiple(entry: str) -> bool:
    try:
        multiple(entry)
    except ValueError:
        return False
    return True


def size_text(dim: Sequence[int | str]) -> str:
    """A product of sizes as an expression."""
    if len(dim) == 1:
        return str(dim[0])
    return " * ".join(f"({a})" if is_expression(a) else str(a) for a in dim)


def size_entry(dim: Sequence[int | str]) -> int | str:
    """A product of sizes as an entry of a shape."""
    return dim[0] if len(dim) == 1 else size_text(dim) if dim else 1


def evaluate(entry: str, sizes: Mapping[str, Any]) -> Any:
    """The value of an expression that `check_size` accepts, for whole numbers or torch's symbolic ones."""
    return eval(compile(entry, "<size>", "eval"), {"__builtins__": {}}, dict(sizes))


def renamed(entry: str, names: Mapping[str, str]) -> str:
    """The expression with every name written as something else."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(names[node.id], mode="eval").body

    return ast.unparse(Rename().visit(ast.parse(entry, mode="eval")))

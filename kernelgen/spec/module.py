"""The `module` of a spec: the class an operator was imported from, as far as it can be judged without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from kernelgen.spec.model import Place
from kernelgen.spec.tree import Finding, shorten

FUNCTIONS = ("get_inputs", "get_init_inputs")
"""What stands beside the class: the inputs of forward, and those of the constructor."""


def check(source: str, place: Place, operator: str) -> Iterator[Finding]:
    """Every mistake in a module's text; `place` is where it begins in the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        where = Place(place.line + (error.lineno or 1) - 1, place.column + max((error.offset or 1) - 1, 0))
        yield where, f"the module is not Python: {error.msg}"
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield place, f"the module is not Python: {shorten(str(error))}"
        return
    if calling(tree, operator) is None:
        yield place, f"the module has no class whose forward calls '{operator}'"
    for name in FUNCTIONS:
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body):
            yield place, f"the module has no function '{name}'"


def calling(tree: ast.Module, operator: str) -> ast.ClassDef | None:
    """The class whose forward calls the operator."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            forward = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
            if forward is not None and operator in _called(forward):
                return node
    return None


def _called(function: ast.FunctionDef) -> set[str]:
    return {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}

"""A reference is host code. One that a model wrote may call torch's arithmetic and nothing that reaches outside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

MODULES = ("torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")
"""Below torch, what may stand in front of a function."""
CONSTANTS = re.compile(
    r"(b?float\d*|float8_e4m3fn|double|half|bool|u?int\d*|long|short|complex\d*|inf|nan|pi|e|\w+_format|strided)\Z"
)
"""What of torch may stand without being called: dtypes, numbers, memory formats."""
CALLS = re.compile(r"(?!set_|load|save|_|manual_|use_|import_|from_file|compile\Z|vmap\Z|cond\Z)[a-z]\w*\Z")
"""What of torch may be called: no files, no settings, nothing that takes Python's code."""
METHODS = frozenset([
    "tofile", "dump", "dumps", "save", "numpy", "storage", "untyped_storage", "typed_storage", "data_ptr",
    "share_memory_", "register_hook", "map_", "apply_", "module_load", "backward", "set_", "cuda",
    "requires_grad_", "format", "format_map",
])  # fmt: skip
"""Methods of values that reach outside arithmetic."""


def findings(reference: str) -> list[str]:
    """Why a reference is not to be run; empty for one that is only arithmetic. It must parse."""
    tree = ast.parse(reference)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = [line for node in ast.walk(tree) for line in _node(node, called, inner)]
    return list(dict.fromkeys(found))


def _node(node: ast.AST, called: set[int], inner: set[int]) -> Iterator[str]:
    if isinstance(node, ast.Name) and node.id in ("torch", "F", "math") and id(node) not in inner:
        yield f"line {node.lineno}: {node.id} stands alone"
    if isinstance(node, ast.FunctionDef):
        defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        if node.decorator_list or not all(_is_number(default) for default in defaults):
            yield f"line {node.lineno}: {node.name} has a decorator, or a default that is no number"
    if not isinstance(node, ast.Attribute):
        return
    chain, root = ast.unparse(node), _root(node)
    if node.attr.startswith("_"):
        yield f"line {node.lineno}: {chain[:60]} is private"
    elif root in ("torch", "F", "math"):
        if id(node) in inner:
            known = root == "torch" and any(f"{module}.".startswith(f"{chain}.") for module in MODULES)
            if not known and not CONSTANTS.match(node.attr):
                yield f"line {node.lineno}: {chain[:60]} is no module of arithmetic"
        elif id(node) in called:
            head = chain.rpartition(".")[0]
            if not CALLS.match(node.attr) or head not in ("torch", "F", "math", *MODULES):
                yield f"line {node.lineno}: {chain[:60]} may not be called"
        elif not CONSTANTS.match(node.attr):
            yield f"line {node.lineno}: {chain[:60]} is neither called nor a number, a dtype or a memory format"
    elif node.attr in METHODS:
        yield f"line {node.lineno}: .{node.attr} reaches outside arithmetic"


def _is_number(node: ast.expr) -> bool:
    try:
        return isinstance(ast.literal_eval(node), int | float | None)
    except ValueError:
        return False


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""

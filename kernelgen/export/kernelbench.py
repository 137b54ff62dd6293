"""An operator as a file in KernelBench's form: `ModelNew`, made like the module that the operator was imported from."""

from __future__ import annotations

import ast

from kernelgen.errors import UsageError
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.module import calling

NEW = "ModelNew"


def check_module(spec: OperatorSpec) -> None:
    """Raise UsageError where the spec was not imported from a module."""
    if not spec.module:
        raise UsageError(
            f"{spec.name}: {spec.path} has no 'module:', the class that {NEW} would be made like; "
            "`kernelgen import` writes it for a file with a Model"
        )


def kernelbench_file(kernel: str, spec: OperatorSpec) -> str:
    """The text of a standalone file: the kernel's own text, then the module with a forward that calls it.

    Its constructor is the original's, so that the same seed gives the same weights. UsageError where both
    texts define one name.
    """
    tree = ast.parse(spec.module)
    owner = calling(tree, spec.name)
    assert owner is not None  # the spec was checked
    here, there = ast.parse(kernel), tree
    both = sorted(_defined(here) & (_defined(there) | {NEW}))
    if both:
        raise UsageError(f"{spec.name}: the kernel and the module both define {', '.join(both)}")
    head, body = _split(kernel, here)
    imported, rest = _split(_renamed(spec.module, tree, owner.name), tree)
    lines = {ast.unparse(node) for part in (head, imported) for node in ast.parse(part).body if not _is_text(node)}
    imports = "\n".join(sorted(lines, key=lambda line: (line.startswith("from"), line)))
    documented = head[: head.rindex('"""') + 3]  # a generated file's docstring stands above its imports
    note = "".join(f"# {line}".rstrip() + "\n" for line in (ast.get_docstring(there) or "").splitlines())
    return f"{documented}\n\n{imports}\n\n\n{body.strip()}\n\n\n{note}{rest.strip()}\n"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _split(text: str, tree: ast.Module) -> tuple[str, str]:
    """A module's text up to its last leading import, and the rest of it."""
    end = 0
    for node in tree.body:
        if not (_is_text(node) or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        end = node.end_lineno or end
    lines = text.splitlines(keepends=True)
    return "".join(lines[:end]), "".join(lines[end:])


def _defined(tree: ast.Module) -> set[str]:
    """The names that a module's own statements define."""
    found = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def _renamed(text: str, tree: ast.Module, name: str) -> str:
    """The module's text with its class called ModelNew, `super(Model, self)` included; lines stay lines."""
    lines = text.split("\n")
    places = [(n.lineno, n.col_offset) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            places.append((node.lineno, node.col_offset + len("class ")))
    for line, column in sorted(places, reverse=True):
        data = lines[line - 1].encode()
        lines[line - 1] = (data[:column] + NEW.encode() + data[column + len(name.encode()) :]).decode()
    return "\n".join(lines)

"""The allow-list of device code: what of Python's syntax a kernel may use. Everything not named here is refused.

It must hold for plain Python too: Triton's interpreter runs a kernel's statements as Python.
"""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelgen.custom.values import check_value
from kernelgen.custom.vocabulary import LOOPS, RESERVED

MOST_CHARACTERS = 60_000
DEEPEST = 60
"""Levels of nesting in the syntax tree; far beyond any kernel."""


@dataclass(frozen=True)
class Finding:
    """Why a text is refused, at one of its lines."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"kernels:{self.line}: {self.message}"


@dataclass(frozen=True)
class Kernel:
    """One function of the text."""

    name: str
    arguments: tuple[str, ...]
    """Parameters without tl.constexpr, in order."""
    constexprs: tuple[str, ...]


@dataclass
class Scope:
    """What the names of one function mean."""

    functions: frozenset[str]
    parameters: frozenset[str]
    locals: dict[str, list[ast.expr | None]]
    """Every value that a name is given; None: a loop variable or part of a tuple."""


def check(text: str) -> tuple[tuple[Kernel, ...], tuple[Finding, ...]]:
    """The functions of the text, and why it is refused; it is fit to run only where there is no finding."""
    if finding := _characters(text):
        return (), (finding,)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return (), (Finding(error.lineno or 1, f"does not parse: {error.msg}"),)
    except (RecursionError, MemoryError, ValueError):
        return (), (Finding(1, "does not parse: nested too deep"),)
    if _depth(tree) > DEEPEST:
        return (), (Finding(1, f"nested deeper than {DEEPEST} levels"),)
    functions = frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
    findings: list[Finding] = []
    kernels: list[Kernel] = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            findings.append(
                Finding(node.lineno, f"only functions with @triton.jit may stand here, not {_called(node)}")
            )
            continue
        if node.name in {k.name for k in kernels}:
            findings.append(Finding(node.lineno, f"{node.name} is defined twice"))
        kernel, found = _function(node, functions)
        kernels.append(kernel)
        findings += found
    if not tree.body:
        findings.append(Finding(1, "there is no function"))
    return tuple(kernels), tuple(dict.fromkeys(findings))


def _characters(text: str) -> Finding | None:
    if len(text) > MOST_CHARACTERS:
        return Finding(1, f"longer than {MOST_CHARACTERS} characters")
    for number, line in enumerate(text.split("\n"), start=1):
        for c in line:
            if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c != "\t":
                return Finding(number, f"control character U+{ord(c):04X}")
    return None


def _depth(node: ast.AST) -> int:
    deepest, level = 0, [node]
    while level:
        deepest += 1
        level = [child for one in level for child in ast.iter_child_nodes(one)]
    return deepest


def _function(node: ast.FunctionDef, functions: frozenset[str]) -> tuple[Kernel, list[Finding]]:
    findings = list(_signature(node))
    arguments = tuple(a.arg for a in node.args.args if a.annotation is None)
    constexprs = tuple(a.arg for a in node.args.args if a.annotation is not None)
    scope = Scope(functions, frozenset([*arguments, *constexprs]), {})
    _collect(node.body, scope)
    for name in (node.name, *scope.parameters, *scope.locals):
        if name in RESERVED or (name in functions and name != node.name):
            findings.append(Finding(node.lineno, f"the name {name} is taken"))
        elif name.startswith("__") or not name.isascii():
            findings.append(Finding(node.lineno, f"the name {name} is not allowed"))
    for position, statement in enumerate(node.body):
        docstring = position == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (docstring and isinstance(statement.value.value, str)):  # type: ignore[attr-defined]
            findings += _statement(statement, scope)
    return Kernel(node.name, arguments, constexprs), findings


def _signature(node: ast.FunctionDef) -> Iterator[Finding]:
    decorators = [ast.unparse(d) for d in node.decorator_list]
    if decorators != ["triton.jit"]:
        shown = ", ".join(f"@{d}" for d in decorators) or "none"
        yield Finding(node.lineno, f"{node.name} needs the decorator @triton.jit and no other, has {shown[:60]}")
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg:
        yield Finding(node.lineno, f"{node.name}: plain parameters only")
    if a.defaults or a.kw_defaults:
        yield Finding(node.lineno, f"{node.name}: no default values")
    if node.returns is not None or node.type_comment or getattr(node, "type_params", None):
        yield Finding(node.lineno, f"{node.name}: no annotation of the result, no type parameters")
    for argument in a.args:
        if argument.annotation is not None and ast.unparse(argument.annotation) != "tl.constexpr":
            yield Finding(argument.lineno, f"{argument.arg}: the only annotation is tl.constexpr")


def _collect(body: list[ast.stmt], scope: Scope) -> None:
    """Every name that is assigned, with what it is given."""
    for node in (n for statement in body for n in ast.walk(statement)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _bind(target, node.value, scope)
        elif isinstance(node, ast.AugAssign):
            _bind(node.target, None, scope)
        elif isinstance(node, ast.AnnAssign):
            _bind(node.target, node.value, scope)
        elif isinstance(node, ast.For):
            _bind(node.target, None, scope)


def _bind(target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.locals.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple):
        for part in target.elts:
            _bind(part, None, scope)


def _statement(node: ast.stmt, scope: Scope) -> list[Finding]:
    rule = _STATEMENTS.get(type(node))
    if rule is None:
        return [Finding(node.lineno, f"{_called(node)} is not allowed")]
    return list(rule(node, scope))


def _value(node: ast.expr, scope: Scope) -> Iterator[Finding]:
    for line, message in check_value(node, scope.functions, scope.parameters, scope.locals):
        yield Finding(line, message)


def _assign(node: ast.Assign, scope: Scope) -> Iterator[Finding]:
    for target in node.targets:
        yield from _target(target)
    yield from _value(node.value, scope)


def _target(target: ast.expr) -> Iterator[Finding]:
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(name, ast.Name) for name in names):
        yield Finding(target.lineno, f"{ast.unparse(target)[:40]} cannot be assigned to: only names")


def _aug_assign(node: ast.AugAssign, scope: Scope) -> Iterator[Finding]:
    yield from _target(node.target)
    yield from _value(node.value, scope)


def _ann_assign(node: ast.AnnAssign, scope: Scope) -> Iterator[Finding]:
    yield from _target(node.target)
    if ast.unparse(node.annotation) != "tl.constexpr" or node.value is None:
        yield Finding(node.lineno, "the only annotation is tl.constexpr, with a value")
    if node.value is not None:
        yield from _value(node.value, scope)


def _for(node: ast.For, scope: Scope) -> Iterator[Finding]:
    called = ast.unparse(node.iter.func) if isinstance(node.iter, ast.Call) else ""
    if called not in {"range", *(f"tl.{loop}" for loop in LOOPS)} or not isinstance(node.target, ast.Name):
        yield Finding(node.lineno, "a loop runs a name over range, tl.range or tl.static_range")
    elif isinstance(node.iter, ast.Call):
        for part in (*node.iter.args, *(k.value for k in node.iter.keywords)):
            yield from _value(part, scope)
    yield from _bodies(scope, node.body, node.orelse)


def _while(node: ast.While, scope: Scope) -> Iterator[Finding]:
    yield from _value(node.test, scope)
    yield from _bodies(scope, node.body, node.orelse)


def _if(node: ast.If, scope: Scope) -> Iterator[Finding]:
    yield from _value(node.test, scope)
    yield from _bodies(scope, node.body, node.orelse)


def _bodies(scope: Scope, *bodies: list[ast.stmt]) -> Iterator[Finding]:
    for statement in (s for body in bodies for s in body):
        yield from _statement(statement, scope)


def _return(node: ast.Return, scope: Scope) -> Iterator[Finding]:
    if node.value is not None:
        yield from _value(node.value, scope)


def _expression(node: ast.Expr, scope: Scope) -> Iterator[Finding]:
    if not isinstance(node.value, ast.Call):
        yield Finding(node.lineno, f"a statement that does nothing: {ast.unparse(node)[:40]}")
    yield from _value(node.value, scope)


def _pass(node: ast.Pass, scope: Scope) -> Iterator[Finding]:
    return iter(())


_STATEMENTS: dict[type[ast.stmt], Callable[..., Iterator[Finding]]] = {
    ast.Assign: _assign, ast.AugAssign: _aug_assign, ast.AnnAssign: _ann_assign, ast.For: _for, ast.While: _while,
    ast.If: _if, ast.Return: _return, ast.Expr: _expression, ast.Pass: _pass,
}  # fmt: skip


def _called(node: ast.AST) -> str:
    """A construct by the word that a programmer knows it by."""
    words = {
        "ImportFrom": "import",
        "ClassDef": "class",
        "AsyncFunctionDef": "async def",
        "FunctionDef": "a nested def",
    }
    return f"`{words.get(type(node).__name__, type(node).__name__.lower())}`"

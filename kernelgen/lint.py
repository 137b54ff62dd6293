"""What is wrong with generated Python, seen without running it: its syntax, and names that have no value where they are
used. A kernel's own text is looked at as the host's is; Triton would find it at the first launch.

A name counts as assigned where some path assigns it before, so that nothing right is ever called wrong.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_BUILTINS = frozenset([*dir(builtins), "__file__", "__name__", "__doc__", "__path__"])
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def findings(source: str) -> list[str]:
    """A line for every mistake, such as "12: 'offsets' is used before it is assigned"; empty for a sound file."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"{error.lineno or 1}: not Python: {error.msg}"]
    found = _Scope(frozenset(), _bound(tree.body))
    found.block(tree.body, set())
    return found.mistakes


@dataclass
class _Scope:
    """A module or a function: what it sees from outside, and the names that are its own."""

    outer: frozenset[str]
    own: frozenset[str]
    mistakes: list[str] = field(default_factory=list)

    def block(self, statements: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        """Look at statements in their order; returns the names that some path through them has assigned."""
        for statement in statements:
            assigned = self.statement(statement, assigned)
        return assigned

    def statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ast.iter_child_nodes(node):
                if not isinstance(part, ast.stmt):
                    self.expression(part, assigned)
            self.inner(node)
            return assigned | {node.name}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):  # it reads what it assigns
            self.name(ast.copy_location(ast.Name(node.target.id, ast.Load()), node), assigned)
        blocks = [b for name in ("body", "orelse", "finalbody") if (b := getattr(node, name, None))]
        blocks += [handler.body for handler in getattr(node, "handlers", ())]
        blocks += [case.body for case in getattr(node, "cases", ())]
        for part in ast.iter_child_nodes(node):
            if not isinstance(part, ast.stmt):
                self.expression(part, assigned | _stored(node, named=not isinstance(node, ast.Match)))
        before = assigned | _stored(node)
        after = set(before)
        for block in blocks:  # of an if only one is run; else and finally of a try follow what it tried
            after |= self.block(block, set(before if isinstance(node, ast.If) else after))
        return after

    def inner(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """The body of a function, which runs when all around it is there."""
        around = self.outer | self.own
        if isinstance(node, ast.ClassDef):  # what it has not assigned yet may be a name from around it
            _Scope(around, frozenset(), self.mistakes).block(node.body, set())
            return
        parameters = {a.arg for a in _arguments(node.args)}
        _Scope(around, _bound(node.body) | parameters, self.mistakes).block(node.body, parameters)

    def expression(self, node: ast.AST, assigned: set[str]) -> None:
        """The names that an expression reads; those of a lambda or a comprehension are its own."""
        if isinstance(node, ast.Name):
            self.name(node, assigned)
        elif isinstance(node, ast.Lambda):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self.expression(default, assigned)
            self.expression(node.body, assigned | self.own | {a.arg for a in _arguments(node.args)})
        elif isinstance(node, _COMPREHENSIONS):
            known = assigned | {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            for part in ast.iter_child_nodes(node):
                self.expression(part, known)
        else:
            for part in ast.iter_child_nodes(node):
                if not isinstance(part, ast.stmt):  # those of a handler or a case are blocks
                    self.expression(part, assigned)

    def name(self, node: ast.Name, assigned: set[str]) -> None:
        if not isinstance(node.ctx, ast.Load) or node.id in assigned:
            return
        if node.id in self.own:
            self.mistakes.append(f"{node.lineno}: {node.id!r} is used before it is assigned")
        elif node.id not in self.outer and node.id not in _BUILTINS:
            self.mistakes.append(f"{node.lineno}: {node.id!r} is not defined")


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from filter(None, (arguments.vararg, arguments.kwarg))


def _bound(body: Sequence[ast.stmt]) -> frozenset[str]:
    """The names that statements assign, but for those of functions in them."""
    found: set[str] = set()
    for statement in body:
        found |= _stored(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(statement.name)
            continue
        for child in ast.walk(statement):
            if isinstance(child, ast.stmt) and child is not statement:
                found |= _stored(child)
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.add(child.name)
    return frozenset(found)


def _stored(node: ast.stmt, *, named: bool = False) -> set[str]:
    """What one statement assigns itself, the blocks below it left out; `named`: by `:=` alone."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    found: set[str] = set()
    waiting: list[tuple[ast.AST, bool]] = [
        (n, named) for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)
    ]
    while waiting:
        part, walrus = waiting.pop()
        if isinstance(part, _FUNCTIONS | ast.stmt):
            continue
        if isinstance(part, ast.NamedExpr):
            found.add(part.target.id)
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name and not walrus:
            found.add(part.name)
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load) and not walrus:
            found.add(part.id)
        own = walrus or isinstance(part, _COMPREHENSIONS)  # its targets are its own, what := assigns is not
        waiting += [(child, own) for child in ast.iter_child_nodes(part)]
    return found

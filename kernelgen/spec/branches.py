"""Branches of a reference on sizes: which side of each an operator is for, by the shapes that its spec lists.

A branch whose test says what a constraint may say is settled where all shapes take one side. That side becomes a
constraint, unless all sizes that the spec admits take it anyway.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.spec.cases import Sizes, admits, turning, usual_sizes
from kernelgen.spec.constraints import check, failing
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.model import ELLIPSIS, Case, Constraint, Fork, OperatorSpec, Place, Side, SizeValue

_ASKED = ("shape", "size", "numel", "ndim", "dim")
_TRIED = (1, 2, 3, 4, 5, 8, 33, 128, 1025, 65536)
"""Sizes at which a side is looked for that no listed shape takes."""


@dataclass(frozen=True)
class Branch:
    """A test of sizes."""

    line: int
    """Within the reference, from 1; `column` from 0."""
    column: int
    text: str | None
    """The test as a constraint would write it; None where none can."""


def parsed(reference: str) -> ast.Module:
    """A reference whose branches are all ifs: `N >= 2 and a or b` is `(a if N >= 2 else False) or b`."""
    tree = ast.parse(reference)
    _Ifs().visit(tree)
    return ast.fix_missing_locations(tree)


class _Ifs(ast.NodeTransformer):
    """Comparisons that `and` and `or` choose by as tests of conditional expressions, which mean the same. What is a
    test already is read as a whole."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        first, *rest = node.values
        if not rest or not isinstance(first, ast.Compare):
            return node if rest else first
        others = self.visit_BoolOp(ast.copy_location(ast.BoolOp(node.op, rest), rest[0]))
        all_of = isinstance(node.op, ast.And)
        known = ast.copy_location(ast.Constant(not all_of), first)
        body, orelse = (others, known) if all_of else (known, others)
        return ast.copy_location(ast.IfExp(first, body, orelse), node)

    def _beside_its_test(self, node: Any) -> Any:
        test = node.test
        node.test = ast.Constant(True)
        self.generic_visit(node)
        node.test = test
        return node

    visit_If = visit_IfExp = visit_While = _beside_its_test


def branches(spec: OperatorSpec) -> tuple[Branch, ...]:
    """The tests of a reference that speak of sizes, in the order in which they stand; those of loops have no text."""
    tree = parsed(spec.reference)
    own = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.name), None)
    known = _variables(own) if own else {}
    readable = {id(n.test) for n in ast.walk(own) if isinstance(n, ast.If | ast.IfExp)} if own else set()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.IfExp | ast.While):
            continue
        test = node.test
        written = _Written(known).visit(ast.parse(ast.unparse(test), mode="eval").body)
        if any(isinstance(n, ast.Attribute) and n.attr in _ASKED for n in ast.walk(written)):
            text = _text(spec, own, test, written) if own and id(test) in readable else None
            found.append(Branch(test.lineno, test.col_offset, text))
    return tuple(sorted(found, key=lambda b: (b.line, b.column)))


def settled(spec: OperatorSpec, shapes: Sequence[Sizes]) -> OperatorSpec:
    """The spec with the side of every branch that all of these shapes take, of those that its constraints admit; and
    with the one branch of which they take both."""
    for branch in branches(spec):
        if branch.text is None:
            continue
        answers = {_holds(spec, branch.text, sizes) for sizes in shapes if admits(spec, sizes)}
        if answers == {True, False} and _may_fork(spec, branch.text):
            before = spec.fork.places if spec.fork else ()
            spec = replace(spec, fork=Fork(branch.text, (*before, (branch.line, branch.column))))
            continue
        if answers not in ({True}, {False}):
            continue
        taken = answers == {True}
        wanted = branch.text if taken else failing(Constraint(branch.text))
        if all(_holds(spec, branch.text, sizes) == taken for sizes in _others(spec, branch.text)):
            wanted = ""
        spec = replace(spec, sides=(*spec.sides, Side(branch.line, branch.column, taken, wanted)))
        if wanted:
            start = spec.reference_place
            place = Place(start.line + branch.line - 1, start.column + branch.column)
            spec = replace(spec, constraints=(*spec.constraints, Constraint(wanted, place)))
    return spec


def with_side(spec: OperatorSpec, text: str) -> OperatorSpec | None:
    """The spec where its trace holds on one side of a condition alone: with the side that all listed shapes take, or
    with both where they take both; None where that cannot be. Shapes that nobody listed follow those that are timed."""
    listed = [case for case in (*spec.accuracy, *spec.performance) if not case.derived] or spec.performance
    answers = {_holds(spec, text, case.sizes) for case in listed}
    if answers == {True, False} and _may_fork(spec, text):
        return replace(spec, fork=Fork(text))
    if answers not in ({True}, {False}):
        return None
    wanted = text if answers == {True} else failing(Constraint(text))
    if any(constraint.text == wanted for constraint in spec.constraints):
        return None
    constraints = (*spec.constraints, Constraint(wanted, spec.reference_place))
    more = replace(spec, constraints=constraints, sides=(*spec.sides, Side(0, 0, True, wanted)))
    accuracy = tuple(case for case in spec.accuracy if admits(more, case.sizes))
    return replace(more, accuracy=accuracy) if accuracy else None


def _may_fork(spec: OperatorSpec, text: str) -> bool:
    """Whether a condition may choose between kernels: no other does, and what it asks is always there."""
    optional = {t.name for t in spec.inputs if t.optional}
    asked = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
    return (spec.fork is None or spec.fork.text == text) and not asked & optional


def _text(spec: OperatorSpec, own: ast.FunctionDef, test: ast.expr, written: ast.expr) -> str | None:
    """A test as a constraint, None where none can say it: it asks something else, or of another value than an input."""
    text = ast.unparse(written)
    inputs = [t.name for t in spec.inputs]
    stores = [n for n in ast.walk(own) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    loops = any(isinstance(n, ast.For | ast.While) for n in ast.walk(own))
    changed = {n.id for n in stores if n.lineno < test.lineno or loops}
    asked = {n.id for n in ast.walk(written) if isinstance(n, ast.Name)}
    return None if asked & changed or check(text, inputs) else text


def _variables(own: ast.FunctionDef) -> dict[str, ast.expr]:
    """What stands for a variable that is set once, and for a parameter with a default."""
    found: dict[str, ast.expr] = {}
    defaults = own.args.defaults
    parameters = [*own.args.posonlyargs, *own.args.args]
    for parameter, default in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
        found[parameter.arg] = default
    for node in ast.walk(own):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Attribute(attr="shape") as shape):
                for i, part in enumerate(parts):
                    if isinstance(part, ast.Name):
                        found[part.id] = ast.Subscript(shape, ast.Constant(i), ast.Load())
    stored = [n.id for n in ast.walk(own) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    arguments = {parameter.arg for parameter in parameters}
    return {name: value for name, value in found.items() if stored.count(name) + (name in arguments) == 1}


class _Written(ast.NodeTransformer):
    """Variables as what they stand for."""

    def __init__(self, known: Mapping[str, ast.expr], depth: int = 0) -> None:
        self.known, self.depth = known, depth

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.known.get(node.id)
        if value is None or self.depth > 8:
            return node
        written: ast.expr = _Written(self.known, self.depth + 1).visit(ast.parse(ast.unparse(value), mode="eval").body)
        return written


def _holds(spec: OperatorSpec, text: str, sizes: Sizes) -> bool | None:
    """Whether a condition holds for sizes; None where it cannot be asked."""
    case = Case(sizes, spec.dtype_bindings()[0])
    reason = broken(text, {t.name: Layout(case.shape(t.shape), case.dtype(t.dtype)) for t in spec.inputs})
    return True if reason is None else False if reason == "does not hold" else None


def _others(spec: OperatorSpec, text: str) -> Iterator[Sizes]:
    """Sizes that the constraints admit: of every two names one of several each, those among them about which a
    condition turns."""
    usual = usual_sizes(spec)
    numbers = [n.value for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Constant)]
    each = (*_TRIED, *turning(n for n in numbers if type(n) is int))
    tried: dict[str, tuple[SizeValue, ...]] = dict.fromkeys(usual, each)
    if ELLIPSIS in tried:
        tried[ELLIPSIS] = ((), (1,), (3,), (3, 5))
    pairs = itertools.combinations(usual, 2) if len(usual) > 1 else [tuple(usual)]
    for pair in pairs:
        for values in itertools.product(*(tried[name] for name in pair)):
            sizes = tuple({**usual, **dict(zip(pair, values, strict=True))}.items())
            if admits(spec, sizes):
                yield sizes

"""The allow-list for expressions of device code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from kernelgen.custom.vocabulary import BUILTINS, CALLS, COMBINING, DTYPES, LOOPS, MATH, METHODS, NOT_ALLOWED

Complaint = tuple[int, str]
"""A line and why it is refused."""

LARGEST_SHIFT = 64
TEXTS = frozenset([
    "", "evict_first", "evict_last", "evict_normal", ".ca", ".cg", ".cs", ".cv", ".wb", ".wt", "zero", "nan", "tf32",
    "tf32x3", "bf16x3", "bf16x6", "ieee", "acquire", "release", "acq_rel", "relaxed", "gpu", "cta", "sys",
    "rtne", "rtz",
])  # fmt: skip
"""Texts that a keyword may have: cache and eviction hints, padding, precision, memory order, rounding."""
NUMBERS = frozenset(["inf", "-inf", "nan"])


def check_value(
    node: ast.expr,
    functions: frozenset[str],
    parameters: frozenset[str],
    bound: Mapping[str, Sequence[ast.expr | None]],
) -> Iterator[Complaint]:
    """Why an expression may not stand in device code. `bound`: the locals, each with every value it is given."""
    yield from _Check(functions, parameters, bound).value(node)


class _Check:
    def __init__(
        self, functions: frozenset[str], parameters: frozenset[str], bound: Mapping[str, Sequence[ast.expr | None]]
    ) -> None:
        self._functions, self._parameters, self._bound = functions, parameters, bound

    def value(self, node: ast.expr) -> Iterator[Complaint]:
        match node:
            case ast.Constant():
                yield from _constant(node)
            case ast.Name():
                if node.id not in self._parameters and node.id not in self._bound:
                    yield node.lineno, f"{node.id} is neither a parameter nor assigned in the function"
            case ast.BinOp():
                yield from self._binary(node)
            case ast.UnaryOp():
                yield from self.value(node.operand)
            case ast.BoolOp():
                yield from self._all(node.values)
            case ast.Compare():
                yield from self._compare(node)
            case ast.IfExp():
                yield from self._all([node.test, node.body, node.orelse])
            case ast.Tuple() | ast.List():
                yield from self._all(node.elts)
            case ast.Subscript():
                yield from self.value(node.value)
                yield from self._index(node.slice)
            case ast.Attribute():
                yield from self._attribute(node)
            case ast.Call():
                yield from self._call(node)
            case _:
                yield node.lineno, f"{_shown(node)}: {_word(node)} is not allowed"

    def _all(self, nodes: Sequence[ast.expr]) -> Iterator[Complaint]:
        for node in nodes:
            yield from self.value(node)

    def _binary(self, node: ast.BinOp) -> Iterator[Complaint]:
        if isinstance(node.op, ast.MatMult):
            yield node.lineno, "@ is not allowed: tl.dot multiplies matrices"
        growing = isinstance(node.op, ast.Pow | ast.LShift)
        if growing and not (_small(node.right) and (isinstance(node.op, ast.LShift) or _small(node.left))):
            yield node.lineno, f"{_shown(node)}: ** takes small numbers, << a shift of at most {LARGEST_SHIFT}"
        texts = [n for n in (node.left, node.right) if isinstance(n, ast.List | ast.Tuple)]
        if texts:
            yield node.lineno, f"{_shown(node)}: no arithmetic on lists"
        yield from self._all([node.left, node.right])

    def _compare(self, node: ast.Compare) -> Iterator[Complaint]:
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            yield node.lineno, "`in` is not allowed"
        yield from self._all([node.left, *node.comparators])

    def _index(self, node: ast.expr) -> Iterator[Complaint]:
        """`[:, None]`, a number, or names of numbers: blocks are reshaped, never cut."""
        for part in node.elts if isinstance(node, ast.Tuple) else [node]:
            if isinstance(part, ast.Slice):
                if part.lower or part.upper or part.step:
                    yield part.lineno, "a slice with bounds is not allowed"
            elif not (isinstance(part, ast.Constant) and part.value is None):
                yield from self.value(part)

    def _attribute(self, node: ast.Attribute) -> Iterator[Complaint]:
        chain = ast.unparse(node)
        if _of_tl(node):
            if node.attr not in DTYPES:
                yield node.lineno, _not_allowed(node.attr)
        elif node.attr == "element_ty":
            base = node.value
            if not (isinstance(base, ast.Attribute) and base.attr == "dtype" and self._is_parameter(base.value)):
                yield node.lineno, f"{chain[:60]}: only POINTER.dtype.element_ty of a parameter"
        elif node.attr == "dtype":
            if not self._is_loaded(node.value):
                yield node.lineno, f"{chain[:60]}: dtype of a loaded value, or POINTER.dtype.element_ty"
        elif node.attr == "shape":
            yield from self.value(node.value)
        else:
            yield node.lineno, f"{chain[:60]}: the attribute {node.attr} is not allowed"

    def _is_parameter(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._parameters and node.id not in self._bound

    def _is_loaded(self, node: ast.expr) -> bool:
        """A local that is only ever what tl.load gives: no pointer, so its dtype is a number's."""
        if not isinstance(node, ast.Name) or node.id in self._parameters:
            return False
        return bool(self._bound.get(node.id)) and all(_is_load(value) for value in self._bound[node.id])

    def _call(self, node: ast.Call) -> Iterator[Complaint]:
        function = node.func
        arguments: list[ast.expr] = list(node.args)
        if isinstance(function, ast.Attribute):
            yield from self._method(function, node)
            if _of_tl(function) and function.attr in COMBINING:
                combine = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "combine_fn")]
                for one in combine:
                    if not (isinstance(one, ast.Name) and one.id in self._functions):
                        yield node.lineno, f"{_shown(one)} is no function of the kernels"
                arguments = [a for a in arguments if a not in combine]
                node = ast.Call(
                    function, arguments, [k for k in node.keywords if k.arg != "combine_fn"], lineno=node.lineno
                )
        elif not isinstance(function, ast.Name):
            yield node.lineno, f"{_shown(function)} cannot be called"
        elif function.id == "float":
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if len(node.args) != 1 or node.keywords or texts not in [[n] for n in NUMBERS]:
                yield node.lineno, f'{_shown(node)}: float takes "inf", "-inf" or "nan"'
            return
        elif function.id not in self._functions and function.id not in BUILTINS:
            yield node.lineno, f"{function.id} cannot be called"
        yield from self._arguments(node)

    def _arguments(self, node: ast.Call) -> Iterator[Complaint]:
        for argument in node.args:
            yield from self.value(argument)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg.startswith("_"):
                yield node.lineno, f"{_shown(node)}: the keyword {keyword.arg or '**'} is not allowed"
            if isinstance(keyword.value, ast.Constant) and keyword.value.value in TEXTS:
                continue
            yield from self.value(keyword.value)

    def _method(self, function: ast.Attribute, node: ast.Call) -> Iterator[Complaint]:
        if _of_tl(function):
            if function.attr not in CALLS | LOOPS:
                yield node.lineno, _not_allowed(function.attr)
        elif isinstance(function.value, ast.Attribute) and ast.unparse(function.value) == "tl.math":
            if function.attr not in MATH:
                yield node.lineno, f"tl.math.{function.attr} is not allowed"
        elif function.attr not in METHODS:
            yield node.lineno, f"{_shown(function)}: the method {function.attr} is not allowed"
        else:
            yield from self.value(function.value)


def _constant(node: ast.Constant) -> Iterator[Complaint]:
    if isinstance(node.value, bool | int | float) or node.value is None:
        return
    yield node.lineno, f"{_shown(node)}: a text may only be a known hint"


def _of_tl(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "tl"


def _is_load(value: ast.expr | None) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "tl.load"


def _small(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= LARGEST_SHIFT


def _not_allowed(word: str) -> str:
    why = NOT_ALLOWED.get(word)
    return f"tl.{word} is not allowed" + (f": no {why}" if why else "")


def _shown(node: ast.AST) -> str:
    return ast.unparse(node)[:60]


def _word(node: ast.AST) -> str:
    words = {"JoinedStr": "an f-string", "NamedExpr": ":=", "ListComp": "a comprehension", "Lambda": "lambda"}
    return words.get(type(node).__name__, type(node).__name__.lower())

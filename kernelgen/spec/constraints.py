"""Constraints: Python conditions on the shapes, dtypes and layout of the inputs, held to a small allow-list.

What is allowed can be checked on declared shapes, written into a wrapper, and turned into a message, without running
anything else.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from kernelgen.spec.model import ELLIPSIS, Constraint, OperatorSpec, Place, TensorFacts
from kernelgen.spec.nearest import hint
from kernelgen.spec.sizes import follows, is_expression, multiple
from kernelgen.spec.tree import shorten

MAX_CHARACTERS = 300
"""Enough for any condition worth a message, and too few to exhaust Python's stack."""

_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPPOSITE = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_PLACES = ("is_npu", "is_cuda")
"""Attributes that are conditions themselves: where a tensor is, which only the wrapper can ask."""
_ATTRIBUTES = ("shape", "ndim", "dtype", *_PLACES)
_METHODS = {"numel": 0, "dim": 0, "size": 1, "is_contiguous": 0, "stride": 1}
"""Each method with the number of its arguments."""

_ALLOWED = (
    "a constraint compares .shape[i], .ndim, .dtype, .numel(), .dim(), .size(i), .stride(i), .is_contiguous(), "
    ".is_npu, .is_cuda, len() and whole numbers, with and/or/not and + - * // %"
)


def check(
    text: str,
    input_names: Sequence[str],
    sizes: Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> list[tuple[int, str]]:
    """Every mistake in a constraint, with the offset of its first character in `text`.

    `sizes` says how a constraint would write each named size, for the message about one used by its bare name. `kinds`:
    of what type inputs are that are no tensors, and "optional" of tensors that a call may leave out.
    """
    if len(text) > MAX_CHARACTERS:
        return [(0, f"a constraint of {len(text)} characters; at most {MAX_CHARACTERS} are read")]
    try:
        tree = _parse(text.strip())
    except SyntaxError as error:
        line = text.strip()
        offset = error.offset - 1 if error.offset and error.lineno == 1 else len(line)
        reason = "compare with '=='" if line[offset : offset + 1] == "=" else error.msg
        return [(offset, f"not a Python expression: {reason}")]
    except ValueError as error:
        return [(0, f"not a Python expression: {shorten(str(error))}")]
    asked = _Asked(kinds or {}).visit(_parse(text.strip()))
    found = list(_mistakes(asked, tuple(input_names), sizes or {}))
    if not found:
        found = [(node.col_offset, message) for node, message in _not_conditions(asked)]
    if not found and not _names(tree):
        found = [(0, f"names no input; the inputs are {', '.join(input_names)}")]
    line = text.strip()
    return sorted({(_characters(line, offset), message) for offset, message in found})


def conjuncts(constraint: Constraint) -> tuple[Constraint, ...]:
    """The conditions of a top-level `a and b`, each of which deserves a message of its own."""
    line = constraint.text.strip()
    tree = _parse(line)
    if not (isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)):
        return (constraint,)
    return tuple(
        Constraint(_source(line, part), Place(constraint.place.line, constraint.place.column + part.col_offset))
        for part in tree.values
    )


def facts_of(spec: OperatorSpec) -> TensorFacts:
    """What is known of an operator's tensors. The constraints promise that one is contiguous by saying so and nothing
    else beside it."""
    said = {part.text.strip() for whole in spec.constraints for part in conjuncts(whole)}
    promised = {tensor.name for tensor in spec.inputs if f"{tensor.name}.is_contiguous()" in said}
    return replace(spec.facts, contiguous=spec.facts.contiguous | promised)


def written_sizes(spec: OperatorSpec) -> dict[str, str]:
    """How a constraint says each size that the inputs name: `x.shape[1]`, or `x.shape[1] // 2` of `2 * D`."""
    found: dict[str, str] = {}
    for tensor in spec.inputs:
        for d, entry in enumerate(tensor.shape):
            if entry == ELLIPSIS or not isinstance(entry, str) or follows(entry):
                continue
            factor, name = multiple(entry) if is_expression(entry) else (1, entry)
            said = f"{tensor.name}.shape[{tensor.dim(d)}]"
            found.setdefault(name, said if factor == 1 else f"({said} // {factor})")
    return found


def failing(constraint: Constraint) -> str:
    """The condition under which a constraint is broken, as one would write it: `x.ndim < 1` for `x.ndim >= 1`."""
    line = constraint.text.strip()
    tree = _parse(line)
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        left, right = _side(line, tree.left), _side(line, tree.comparators[0])
        return f"{left} {_OPPOSITE[type(tree.ops[0])]} {right}"
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return _source(line, tree.operand)
    if isinstance(tree, ast.Attribute):  # a torch without the device has no such attribute
        return f'{ast.unparse(tree.value)}.device.type != "{tree.attr.removeprefix("is_")}"'
    return f"not {line}" if isinstance(tree, ast.Call) else f"not ({line})"


def message(operator: str, constraint: Constraint, plain: Collection[str] = ()) -> str:
    """The body of an f-string that says what was needed and what came: `broadcast: needs x.ndim >= 1, got x ...`.
    `plain`: the inputs that are no tensors."""
    line = constraint.text.strip()
    tree = _parse(line)
    asked: dict[str, set[str]] = {name: set() for name in _names(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            asked[node.value.id].add(node.attr)
    got = ", ".join(
        f"{name} {f'{{{name}!r}}' if name in plain else _shown(name, attributes)}" for name, attributes in asked.items()
    )
    return f"{operator}: needs {line}, got {got}"


def _shown(name: str, asked: set[str]) -> str:
    """What a message shows of an input: what was asked for, and the shape unless only the dtype was."""
    if asked & set(_PLACES):
        return f"on {{{name}.device}}"
    if not asked:  # whether there is one
        return f"{{'None' if {name} is None else 'a tensor'}}"
    parts = [] if asked == {"dtype"} else [f"{{tuple({name}.shape)}}"]
    parts += [f"{{{name}.dtype}}"] * ("dtype" in asked)
    parts += [f"with strides {{{name}.stride()}}"] * bool(asked & {"is_contiguous", "stride"})
    return " ".join(parts)


def _parse(line: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(line, mode="eval").body


def _source(line: str, node: ast.expr) -> str:
    """The text of a part, without brackets around it."""
    return ast.get_source_segment(line, node) or ast.unparse(node)


def _side(line: str, node: ast.expr) -> str:
    """The text of one side of a comparison, in brackets where it is a condition itself."""
    text = _source(line, node)
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return f"({text})" if is_not or isinstance(node, ast.BoolOp | ast.Compare) else text


def _names(tree: ast.AST) -> list[str]:
    """The inputs a checked constraint is about, in order of appearance."""
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id != "len"]
    return list(dict.fromkeys(n.id for n in sorted(names, key=lambda n: n.col_offset)))


def _characters(line: str, offset: int) -> int:
    """ast counts UTF-8 bytes; columns count characters."""
    return len(line.encode()[:offset].decode(errors="ignore"))


class _Asked(ast.NodeTransformer):
    """A constraint without what it may ask of inputs that are no tensors, or may be left out: any condition, or any
    number, stands in its place."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = kinds

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, right = node.left, node.comparators[0]
        known = self.kinds.get(left.id) if isinstance(left, ast.Name) else None
        value = right.value if isinstance(right, ast.Constant) and len(node.ops) == 1 else ...
        if known == "optional" and value is None and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return _any_condition(node)
        if known == "str" and isinstance(value, str) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return _any_condition(node)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self.kinds.get(node.id) == "bool":
            return _any_condition(node)
        return ast.copy_location(ast.Constant(0), node) if self.kinds.get(node.id) == "int" else node


def _any_condition(node: ast.expr) -> ast.expr:
    number = ast.copy_location(ast.Constant(0), node)
    return ast.copy_location(ast.Compare(number, [ast.Eq()], [number]), node)


def _mistakes(node: ast.AST, inputs: tuple[str, ...], sizes: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Depth-first, each part that the allow-list does not know."""
    children: list[ast.expr] = []
    column = getattr(node, "col_offset", 0)
    match node:
        case ast.BoolOp(values=values):
            children = values
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            children = [operand]
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _ARITHMETIC):
            children = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=right) if all(isinstance(op, _COMPARISONS) for op in ops):
            children = [left, *right]
        case ast.Constant(value=value) if type(value) is int:
            pass
        case ast.Subscript(value=ast.Attribute(attr="shape") as shape, slice=index):
            children = [shape]
            yield from _index_mistakes(index)
        case ast.Attribute(value=ast.Name() as name, attr=attribute):
            yield from _name_mistakes(name, inputs, sizes)
            if attribute in _METHODS:
                yield column, f"'{attribute}' is a method: write {name.id}.{attribute}({'i' * _METHODS[attribute]})"
            elif attribute not in _ATTRIBUTES:
                known = (*_ATTRIBUTES, *_METHODS)
                yield column, f"'.{attribute}' cannot be used in a constraint{hint(attribute, known)}"
        case ast.Call(func=ast.Attribute(value=ast.Name() as name, attr=method), args=arguments, keywords=[]) if (
            method in _METHODS
        ):
            yield from _name_mistakes(name, inputs, sizes)
            if len(arguments) != _METHODS[method]:
                wanted = f"{name.id}.{method}({'i' * _METHODS[method]})"
                yield column, f"write {wanted}, with {_METHODS[method]} argument{'s' * (_METHODS[method] != 1)}"
            for argument in arguments:
                yield from _index_mistakes(argument)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="shape") as shape], keywords=[]):
            children = [shape]
        case ast.Name() as name:
            yield from _name_mistakes(name, inputs, sizes)
            if name.id in inputs:
                yield column, f"'{name.id}' is a whole tensor; say what of it: {name.id}.shape, .ndim, .dtype, ..."
        case _:
            yield column, f"'{shorten(ast.unparse(node), 40)}' cannot be used here: {_ALLOWED}"
    for child in children:
        yield from _mistakes(child, inputs, sizes)


def _name_mistakes(name: ast.Name, inputs: tuple[str, ...], sizes: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    if name.id in inputs:
        return
    if name.id in sizes:
        yield name.col_offset, f"'{name.id}' is a size, not an input; write {sizes[name.id]}"
    else:
        yield name.col_offset, f"'{name.id}' is no input{hint(name.id, inputs)}"


def _index_mistakes(index: ast.expr) -> Iterator[tuple[int, str]]:
    """An index is a number, a slice two of them; a step would only hide what is compared."""
    parts = [index.lower, index.upper, index.step] if isinstance(index, ast.Slice) else [index]
    for part in parts:
        number = part.operand if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) else part
        if number is not None and not (isinstance(number, ast.Constant) and type(number.value) is int):
            yield getattr(part, "col_offset", 0), f"a dimension is a whole number, got '{ast.unparse(number)}'"


def _not_conditions(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """The parts that should be true or false and are something else."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _not_conditions(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _not_conditions(node.operand)
    elif isinstance(node, ast.Attribute) and node.attr in _PLACES:
        return
    elif not isinstance(node, ast.Compare) and not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "is_contiguous"
    ):
        yield node, f"'{shorten(ast.unparse(node), 40)}' is a value, not a condition; compare it with something"

"""An operator with options, optional inputs or two sides of sizes as the few operators that it is, one for every way of
calling it.

An option has the values that it may be; an optional input is given or is None. With each combination the reference is
one that has them fixed: what decides is then a parameter with that value as its default, as any parameter that is no
input. Each is lowered on its own, behind one wrapper.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelgen.spec.constraints import conjuncts, failing
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.model import OPTION, Case, Constraint, Given, OperatorSpec, Side, TensorSpec, Value

MOST = 8
"""Ways of calling an operator, each with kernels of its own: more make a file that nobody reads."""


@dataclass(frozen=True)
class Choice:
    """One way of calling an operator."""

    given: Given
    when: str
    """The condition under which a wrapper takes it, of those that none before it takes; empty of the last."""
    suffix: str
    """What tells its kernels from the others': `causal`, `weight_bias`, or `plain`."""
    spec: OperatorSpec
    """The operator that it is: the reference with what is given as its defaults."""
    side: str = ""
    """The condition on sizes that it is for, where another choice is for the others."""

    def serves(self, case: Case) -> bool:
        return case.given == self.given and (not self.side or _is_on(self.side, self.spec, case))


def _is_on(side: str, spec: OperatorSpec, case: Case) -> bool:
    tensors = {t.name: Layout(case.shape(t.shape), case.dtype(t.dtype)) for t in spec.tensors}
    return broken(side, tensors) is None


def deciding(spec: OperatorSpec) -> tuple[TensorSpec, ...]:
    """The inputs that decide which kernels run; an option of one value decides nothing."""
    return tuple(t for t in spec.inputs if t.optional or len(t.values) > 1)


def combinations(spec: OperatorSpec) -> tuple[Given, ...]:
    """Every way of calling an operator that its constraints admit, the one with the defaults last; one that gives
    nothing where it has no options."""
    if not deciding(spec):
        return ((),)
    ways = [sum(parts, start=()) for parts in itertools.product(*map(_values, deciding(spec)))]
    admitted = [way for way in ways if not any(left == "False" for _, left in _settled(spec, way))]
    return tuple(sorted(admitted, key=lambda way: sum(_is_default(spec, name, value) for name, value in way)))


def _values(tensor: TensorSpec) -> tuple[Given, ...]:
    """What may be given for an input: nothing, where that is a tensor."""
    return ((), ((tensor.name, None),)) if tensor.optional else tuple(((tensor.name, v),) for v in tensor.values)


def _is_default(spec: OperatorSpec, name: str, value: Value | None) -> bool:
    tensor = next(t for t in spec.inputs if t.name == name)
    return value is None or (type(value), value) == (type(tensor.default), tensor.default)


def choices(spec: OperatorSpec) -> tuple[Choice, ...]:
    """The operators that one with options or optional inputs is, in the order in which its wrapper asks; none of one
    without."""
    if spec.fork is None and not any(t.optional or t.role == OPTION for t in spec.inputs):
        return ()
    ways = combinations(spec)
    found = []
    for number, way in enumerate(ways):
        suffix = _suffix(spec, way) if len(ways) > 1 else ""
        when = "" if number == len(ways) - 1 else _when(spec, way, ways[number + 1 :])
        found += _sides(spec, Choice(way, when, suffix, _fixed(spec, way, "_".join(filter(None, [spec.name, suffix])))))
    return tuple(found)


def _sides(spec: OperatorSpec, choice: Choice) -> list[Choice]:
    """A choice for each side of a condition on sizes, in the order of an `if`."""
    if spec.fork is None:
        return [choice]
    found = []
    for taken, name in ((True, "then"), (False, "else")):
        side = spec.fork.text if taken else failing(Constraint(spec.fork.text))
        asked = f"({side})" if " or " in side and choice.when else side
        when = " and ".join(filter(None, [choice.when, asked if taken else ""]))
        suffix = "_".join(filter(None, [choice.suffix, name]))
        sides = tuple(Side(line, column, taken, side) for line, column in spec.fork.places)
        own = choice.spec
        constraints = (*own.constraints, Constraint(side, own.reference_place))
        own = replace(own, name=f"{own.name}_{name}", constraints=constraints, sides=(*own.sides, *sides), fork=None,
            reference=own.reference.replace(f"def {own.name}(", f"def {own.name}_{name}(", 1),
        )  # fmt: skip
        accuracy = tuple(case for case in own.accuracy if _is_on(side, own, case))
        performance = tuple(case for case in own.performance if _is_on(side, own, case)) or accuracy
        own = replace(own, accuracy=accuracy or performance, performance=performance)
        found.append(Choice(choice.given, when, suffix, own, side))
    return found


def said_of(given: Given) -> str:
    """A way of calling in words: `with causal=True and without bias`."""
    return " and ".join(f"without {name}" if value is None else f"with {name}={value}" for name, value in given)


def _when(spec: OperatorSpec, way: Given, later: Sequence[Given]) -> str:
    """What tells a way of calling from those that a wrapper asks for later."""
    asked = list(deciding(spec))
    for tensor in deciding(spec):
        rest = [t.name for t in asked if t != tensor]
        if not any(all(_said_of(way, name) == _said_of(other, name) for name in rest) for other in later):
            asked.remove(tensor)
    return " and ".join(_test(tensor, dict(way)) for tensor in asked)


def _said_of(way: Given, name: str) -> object:
    return dict(way).get(name, ...)


def _test(tensor: TensorSpec, known: Mapping[str, Value | None]) -> str:
    if tensor.optional:
        return f"{tensor.name} is {'None' if tensor.name in known else 'not None'}"
    if tensor.kind == "bool":
        return tensor.name if known[tensor.name] else f"not {tensor.name}"
    return f"{tensor.name} == {known[tensor.name]!r}".replace("'", '"')


def _suffix(spec: OperatorSpec, way: Given) -> str:
    known = dict(way)
    parts = []
    for tensor in deciding(spec):
        value = known.get(tensor.name)
        if tensor.optional or tensor.kind == "bool":
            parts += [tensor.name] if value is True or tensor.name not in known else []
        else:
            parts.append(f"{tensor.name}_{re.sub(r'[^A-Za-z0-9]', 'm', str(value))}")
    return "_".join(parts) or "plain"


def _fixed(spec: OperatorSpec, way: Given, name: str) -> OperatorSpec:
    """The operator with what is given as defaults of its reference."""
    known = {t.name: t.default for t in spec.inputs if t.role == OPTION} | dict(way)
    inputs = tuple(replace(t, optional=False) for t in spec.inputs if t.name not in known)
    settled = [(c, text) for c, text in _settled(spec, way) if text not in ("True", "")]
    return replace(
        spec,
        name=name,
        inputs=inputs,
        reference=_rebound(spec, [t.name for t in inputs], known, name),
        constraints=tuple(replace(c, text=text) for c, text in settled),
        accuracy=tuple(c for c in spec.accuracy if c.given == way),
        performance=tuple(c for c in spec.performance if c.given == way),
    )


def _rebound(spec: OperatorSpec, inputs: list[str], known: Mapping[str, Value | None], name: str) -> str:
    """The reference with the inputs first and what is given as defaults; every line stays where it is."""
    tree = ast.parse(spec.reference)
    own = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.name)
    parameters = [*own.args.posonlyargs, *own.args.args]
    defaults = dict(zip([p.arg for p in parameters[::-1]], own.args.defaults[::-1], strict=False))
    defaults |= {p.arg: d for p, d in zip(own.args.kwonlyargs, own.args.kw_defaults, strict=True) if d is not None}
    fixed = [f"{n}={known[n]!r}" if n in known else f"{n}={ast.unparse(d)}" for n, d in defaults.items()
             if n not in inputs]  # fmt: skip
    fixed += [f"{n}={value!r}" for n, value in known.items() if n not in defaults]
    head = f"def {name}({', '.join([*inputs, *fixed])}):"
    lines = spec.reference.split("\n")
    first = own.body[0]
    between = first.lineno - own.lineno
    body = lines[first.lineno - 1].encode()[first.col_offset :].decode()
    written = [f"{head} {body}"] if not between else [head, *[""] * (between - 1), lines[first.lineno - 1]]
    return "\n".join([*lines[: own.lineno - 1], *written, *lines[first.lineno :]])


def _settled(spec: OperatorSpec, way: Given) -> Iterator[tuple[Constraint, str]]:
    """The constraints with what is given; "True" and "False" where that decides them, empty where one is about an input
    that is not there."""
    known = {t.name: t.default for t in spec.inputs if t.role == OPTION} | dict(way)
    for part in (part for whole in spec.constraints for part in conjuncts(whole)):
        tree = _Given(known).visit(ast.parse(part.text.strip(), mode="eval").body)
        asks = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        yield part, "" if asks & known.keys() else ast.unparse(tree)


class _Given(ast.NodeTransformer):
    """Puts in what is given, and what follows from it."""

    def __init__(self, known: Mapping[str, Value | None]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.known.get(node.id)
        return node if value is None else ast.Constant(value)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        match node:
            case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
                return ast.Constant((name in self.known) == isinstance(op, ast.Is))
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if all(isinstance(s, ast.Constant) for s in sides):
            return ast.Constant(bool(eval(compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval"))))
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.Constant(not node.operand.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decisive = isinstance(node.op, ast.Or)
        left = []
        for value in node.values:
            if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                if value.value == decisive:
                    return value
            else:
                left.append(value)
        if len(left) < 2:
            return left[0] if left else ast.Constant(not decisive)
        return ast.BoolOp(node.op, left)

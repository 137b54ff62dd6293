"""Sizes that a constraint declares divisible: `x.shape[1] % 8 == 0` makes C the product 8 * C_over_8.

What is declared as a product reaches the trace, every case that is derived and the checks of a wrapper.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernelgen.spec.constraints import conjuncts
from kernelgen.spec.model import ELLIPSIS, Case, Constraint, OperatorSpec, Size
from kernelgen.spec.sizes import is_expression, is_multiple, multiple, names_in, renamed


def divisors(spec: OperatorSpec) -> dict[str, int]:
    """The sizes that constraints declare divisible, each by what."""
    found: dict[str, int] = {}
    for constraint in _conditions(spec):
        for name, number in _divided(spec, constraint):
            found[name] = math.lcm(found.get(name, 1), number)
    return found


def divided(spec: OperatorSpec) -> OperatorSpec:
    """The spec with these sizes as products; labels of cases keep the sizes that the file names."""
    numbers = divisors(spec)
    bounds = {bound for t in spec.inputs for bound in (t.below, t.offsets) if bound}
    used = {name for t in (*spec.inputs, *spec.outputs) for entry in t.shape for name in names_in(entry)}
    numbers = {name: n for name, n in numbers.items() if name not in bounds and f"{name}_over_{n}" not in used}
    if not numbers:
        return spec

    def shape(entries: tuple[Size, ...]) -> tuple[Size, ...]:
        return tuple(_written(entry, numbers) for entry in entries)

    def case(one: Case) -> Case:
        sizes = [
            (f"{name}_over_{numbers[name]}", value // numbers[name])
            if name in numbers and isinstance(value, int)
            else (name, value)
            for name, value in one.sizes
        ]
        return replace(one, sizes=tuple(sizes))

    left = [c for c in _conditions(spec) if not any(name in numbers for name, _ in _divided(spec, c))]
    return replace(
        spec,
        inputs=tuple(replace(t, shape=shape(t.shape)) for t in spec.inputs),
        outputs=tuple(replace(t, shape=shape(t.shape)) for t in spec.outputs),
        constraints=tuple(left),
        accuracy=tuple(map(case, spec.accuracy)),
        performance=tuple(map(case, spec.performance)),
    )


def _conditions(spec: OperatorSpec) -> list[Constraint]:
    return [part for whole in spec.constraints for part in conjuncts(whole)]


def _divided(spec: OperatorSpec, constraint: Constraint) -> Iterator[tuple[str, int]]:
    """The size that a constraint of the form `x.shape[1] % 8 == 0` or `x.size(1) % 8 == 0` is about, and by what it is
    divisible; nothing for other constraints."""
    match ast.parse(constraint.text.strip(), mode="eval").body:  # checked before: it is an expression
        case ast.Compare(ast.BinOp(size, ast.Mod(), ast.Constant(int(number))), [ast.Eq()], [ast.Constant(0)]):
            pass
        case _:
            return
    match size:
        case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), index):
            pass
        case ast.Call(ast.Attribute(ast.Name(name), "size"), [index], []):
            pass
        case _:
            return
    match index:
        case ast.Constant(int(place)):
            pass
        case ast.UnaryOp(ast.USub(), ast.Constant(int(number_from_end))):
            place = -number_from_end
        case _:
            return
    entries = next(t.shape for t in spec.inputs if t.name == name)
    known = entries[:: 1 if place >= 0 else -1]
    known = known[: known.index(ELLIPSIS)] if ELLIPSIS in known else known
    at = place if place >= 0 else -place - 1
    entry = known[at] if at < len(known) else None
    if number > 1 and isinstance(entry, str) and not is_expression(entry):
        yield entry, number


def _written(entry: Size, numbers: Mapping[str, int]) -> Size:
    """A size in terms of what is left of the divisible ones."""
    if not set(names_in(entry)) & numbers.keys() or not isinstance(entry, str):
        return entry
    factor, name = (1, entry) if not is_expression(entry) else multiple(entry) if is_multiple(entry) else (0, "")
    if factor:
        return f"{factor * numbers[name]} * {name}_over_{numbers[name]}"
    over = {name: f"({n} * {name}_over_{n})" for name, n in numbers.items()}
    return renamed(entry, {name: over.get(name, name) for name in names_in(entry)})

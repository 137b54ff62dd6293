"""Names for the sizes of the inputs, and small shapes that the reference accepts.

Every dimension starts with a name of its own; those that the reference needs equal become one, found by tracing it
with free sizes. Two that are equal by chance stay two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.importer.load import said
from kernelgen.importer.naming import size_names, spare
from kernelgen.importer.probing import Probe, Size, small_rows, small_shapes
from kernelgen.importer.rewrite import Input
from kernelgen.importer.traced import Traced
from kernelgen.spec.sizes import check_size, evaluate, multiple, names_in, renamed

Function = Any
"""The reference as a Python function."""


@dataclass(frozen=True)
class Shapes:
    """What a spec says of sizes."""

    inputs: tuple[tuple[Size, ...], ...]
    outputs: tuple[tuple[Size, ...], ...]
    sizes: dict[str, int]
    """Every size name and its value in the file."""
    constraints: tuple[str, ...]
    accuracy: tuple[dict[str, int], ...]


class ShapeError(Exception):
    """Why no spec can say what the shapes are; one line."""


LEVELS = 4
"""Sizes that a spec may leave open: all; those of the data; how many there are of them; none."""


def derive(
    function: Function,
    inputs: Sequence[Input],
    traced: Traced | None = None,
    level: int = 0,
    numbers: frozenset[str] = frozenset(),
) -> Shapes:
    """Sizes, outputs and small shapes of a reference. ShapeError where there are none.

    `traced`: the trace that the reference was written from, where it was. `level`: how few sizes stay open, of LEVELS;
    `numbers`: names of those that are the file's numbers too.
    """
    shapes, results_of = _free(function, inputs) if traced is None else _of_trace(inputs, traced)
    declared, names = _named(inputs, shapes, level, numbers)
    pairs = [p for d, t in zip(declared, inputs, strict=True) for p in zip(d, t.shape, strict=True)]
    sizes = {name: value for name, value in pairs if isinstance(name, str) and name.isidentifier()}
    factors = {name: n for name, n in _factors(shapes, declared).items() if sizes[name] % n == 0}
    probe = Probe(function, inputs, declared)
    if read := _read_at_places(probe, sizes) - numbers:
        return derive(function, inputs, traced, level, numbers | read)
    accepted = small_shapes(probe, sizes, factors)
    if sizes and not accepted:
        raise ShapeError("no small shape was found that the reference accepts")
    factors = _divided(probe, sizes, accepted) | factors
    numbered = _fixed(probe, sizes, accepted)
    own = [case for one in accepted if probe.accepts(case := one | numbered)]
    accepted = [dict(case) for case in dict.fromkeys(tuple(case.items()) for case in own)] or accepted
    found = Shapes(tuple(declared), (), sizes, _least(shapes, inputs, declared, accepted), tuple(accepted))
    outputs = _outputs(probe, found, _expressions(results_of, names))
    multiples = {name: f"{factor} * {name}" for name, factor in factors.items()}
    fixed = {name: str(value) for name, value in numbered.items()}
    written = _written(replace(found, outputs=outputs), multiples | fixed)
    open_sizes = {
        f"{tensor.name}.shape[{i}]"
        for tensor, entries in zip(inputs, written.inputs, strict=True)
        for i, entry in enumerate(entries) if isinstance(entry, str)
    }  # fmt: skip
    return replace(written, constraints=tuple(c for c in written.constraints if c.split(" ")[0] in open_sizes))


def no_tensors(results: Sequence[Any]) -> str | None:
    """What is returned that is no tensor, as a complaint; None where it is tensors."""
    import torch

    wrong = [value for value in results if not isinstance(value, torch.Tensor)]
    return f"it returns a {type(wrong[0]).__name__}, not a tensor or several" if wrong else None


Sizes = list[tuple[Any, ...]]
"""Shapes as traced: numbers, and symbols for what may vary."""


def _of_trace(inputs: Sequence[Input], traced: Traced) -> tuple[Sizes, Sizes]:
    """Inputs' and results' shapes in the trace that a reference was written from."""
    nodes = {**{s.path: n for n, s in traced.state.items()}}
    data = iter([*traced.data, *traced.drawn])
    given = [nodes[t.path] if t.role == "parameter" else next(data) for t in inputs]
    return [tuple(n.meta["val"].shape) for n in given], [tuple(n.meta["val"].shape) for n in traced.outputs]


def _free(function: Function, inputs: Sequence[Input]) -> tuple[Sizes, Sizes]:
    """Inputs' and results' shapes with as many free sizes as torch can follow."""
    free = [[axis not in t.fixed for axis in range(len(t.shape))] for t in inputs]
    data = [[t.role == "data"] * len(t.shape) for t in inputs]
    error: ShapeError | None = None
    for tried in (free, data):
        try:
            given, returned, windows = _traced(function, inputs, tried)
            if any(tried[i][axis] for i, axis in windows):  # the window of a convolution is no size
                tried = [[f and (i, d) not in windows for d, f in enumerate(dims)] for i, dims in enumerate(tried)]
                given, returned, _ = _traced(function, inputs, tried)
            return given, returned
        except ShapeError as found:
            error = error or found
    assert error is not None
    raise error


def _traced(
    function: Function, inputs: Sequence[Input], free: list[list[bool]]
) -> tuple[Sizes, Sizes, set[tuple[int, int]]]:
    """Inputs' and results' shapes with what may vary among the free sizes, and the dimensions that are windows of
    convolutions: the input, its dimension."""
    import torch

    from kernelgen.frontend.exporting import exported_program
    from kernelgen.frontend.rewrites import Rewrites

    class Assigned(Rewrites):
        """Sizes of what is assigned to elements that indices name: torch traces the write without asking for them."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__setitem__ and isinstance(args[2], torch.Tensor):
                args[2].expand(args[0][args[1]].shape)
            return super().__torch_function__(func, types, args, kwargs)

    class Module(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            with Assigned():
                return function(*tensors)

    example = tuple(torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs)
    dynamic = tuple({i: torch.export.Dim.AUTO for i, varies in enumerate(dims) if varies} for dims in free)
    try:
        program = exported_program(Module(), example, (dynamic,), cached=True)
    except Exception as error:
        raise ShapeError(f"the reference cannot be traced: {said(error)}") from None
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    [last] = [node for node in program.graph.nodes if node.op == "output"]
    made = [node for node in last.args[0] if hasattr(node, "meta")]
    given, returned = ([tuple(node.meta["val"].shape) for node in found] for found in (nodes, made))
    return given, returned, _windows(program, nodes)


def _windows(exported: Any, placeholders: list[Any]) -> set[tuple[int, int]]:
    """The dimensions of weights of convolutions that are no sizes: windows, and all where they are in groups."""
    found: set[tuple[int, int]] = set()
    for node in exported.graph.nodes:
        if str(node.target).startswith("aten.conv") and len(node.args) > 1:
            groups = next((a for a in (*node.args[6:7], node.kwargs.get("groups")) if isinstance(a, int)), 1)
            for operand in node.args[1:3]:
                if operand in placeholders:
                    rank = len(operand.meta["val"].shape)
                    found |= {(placeholders.index(operand), d) for d in range(2 if groups == 1 else 0, rank)}
    return found


def _expressions(results_of: Sizes, names: dict[str, Size]) -> list[list[str | None]]:
    """Every size of the results in terms of the declared ones, None where a spec cannot say it."""

    def expression(size: Any) -> str | None:
        text = re.sub(r"\b[a-z]+\d+\b", lambda match: str(names.get(match[0], "?")), str(size))
        try:
            return check_size(text)
        except ValueError:
            return None

    return [[expression(size) for size in shape] for shape in results_of]


def _named(
    inputs: Sequence[Input], shapes: Sizes, level: int, numbers: frozenset[str] = frozenset()
) -> tuple[list[tuple[Size, ...]], dict[str, Size]]:
    """A name for each symbol of the trace, after the tensor in which it comes first; the numbers it insists on, and
    those of the level. What only parameters have is one name where it is one number in the file."""
    names: dict[str, Size] = _tangled(inputs, shapes)
    alone = {str(size) for shape in shapes for size in shape} | names.keys()
    widths: dict[int, str] = {}
    taken = {t.name for t in inputs}
    declared = []
    for tensor, shape in zip(inputs, shapes, strict=True):
        letters = size_names(len(shape), taken)
        entries: list[Size] = []
        for axis, size in enumerate(shape):
            letter = next(letters)  # drawn for a number too: W stays the last dimension's name
            symbol, value, of_data = str(size), tensor.shape[axis], tensor.role == "data"
            times = _MULTIPLE.fullmatch(symbol)
            factor, base = (int(times[1]), times[2]) if times and times[2] in alone else (1, symbol)
            if isinstance(size, int) or not (symbol.isidentifier() or times):
                entries.append(value)
                continue
            if base not in names and level >= (1, 3 if axis == 0 else 2)[of_data]:
                names[base] = value // factor
            elif base not in names:
                same = None if of_data else widths.get(value // factor)
                name = same or (letter if letter not in taken else spare(taken))
                names[base] = value // factor if name in numbers else name
                taken.add(name)
                if not of_data:
                    widths[value // factor] = name
            known = names[base]
            entries.append(value if isinstance(known, int) else known if factor == 1 else f"{factor} * {known}")
        declared.append(tuple(entries))
    return declared, names


_MULTIPLE = re.compile(r"(\d+)\*(\w+)")


def _tangled(inputs: Sequence[Input], shapes: Sizes) -> dict[str, Size]:
    """The symbols of sizes of inputs that are no multiples of one, such as a product of two, with their values."""
    found: dict[str, Size] = {}
    given: dict[str, int] = {}
    for tensor, shape in zip(inputs, shapes, strict=True):
        given |= {str(size): value for size, value in zip(shape, tensor.shape, strict=True)}
    for shape in shapes:
        for size in shape:
            if not isinstance(size, int) and not re.fullmatch(r"(\d+\*)?\w+", str(size)):
                inside = {str(symbol) for symbol in size.node.expr.free_symbols}
                found |= {symbol: given[symbol] for symbol in inside if symbol in given}
    return found


def _factors(shapes: Sizes, declared: Sequence[tuple[Size, ...]]) -> dict[str, int]:
    """The sizes that the trace needs to be multiples of a number, which it is."""
    names: dict[str, str] = {}
    environment: Any = None
    for shape, entries in zip(shapes, declared, strict=True):
        for size, name in zip(shape, entries, strict=True):
            if not isinstance(size, int):
                if isinstance(name, str) and name.isidentifier():
                    names.setdefault(str(size), name)
                environment = size.node.shape_env
    found = {name: int(times[1]) for symbol, name in names.items() if (times := _MULTIPLE.fullmatch(symbol))}
    for condition in _conditions(environment):
        symbols = [str(symbol) for symbol in condition.free_symbols]
        if len(symbols) == 1 and symbols[0] in names:
            name = names[symbols[0]]
            found[name] = math.lcm(found.get(name, 1), _factor_of(condition))
    return {name: factor for name, factor in found.items() if factor > 1}


def _conditions(environment: Any) -> list[Any]:
    """What the trace asks of sizes. torch's Mod refuses a number below 0, which sizes less than a weight's are with
    that subtracted: the third part of split(768) is of s - 1536."""
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy.functions import Mod

    guards = environment.guards if environment is not None else ()
    return [environment.replace(guard.expr).replace(Mod, sympy.Mod) for guard in guards]


_MOST = 64
"""Factors of sizes are no greater."""


def _factor_of(condition: Any) -> int:
    """Of what a size must be a multiple for an equation of one size to hold, as H % 8 == 0 or 2 * (H // 16) == H // 8
    do; 1 where that is not what it says."""
    import sympy

    if not isinstance(condition, sympy.Eq):
        return 1
    [symbol] = condition.free_symbols
    sizes = range(1, 4 * _MOST + 1)
    holds = {size for size in sizes if _holds_at(condition, symbol, size)}
    factors = (n for n in range(2, _MOST + 1) if all(size in holds for size in sizes if size % n == 0))
    return 1 if len(holds) == len(sizes) else next(factors, 1)


def _holds_at(condition: Any, symbol: Any, size: int) -> bool:
    import sympy

    try:
        return bool(condition.subs(symbol, size) == sympy.true)
    except ZeroDivisionError:
        return False


def _divided(probe: Probe, sizes: dict[str, int], accepted: Sequence[dict[str, int]]) -> dict[str, int]:
    """The sizes that the reference takes in multiples of a number alone, as its runs show: rows that are beams of
    sentences, say, where the trace speaks of their product with another size."""
    found = {}
    for name, value in sizes.items() if len(accepted) > 1 else ():
        factor = math.gcd(value, *(case[name] for case in accepted))
        more = [[probe.accepts({**case, name: case[name] + n}) for case in accepted] for n in (1, factor)]
        if factor > 1 and not any(more[0]) and all(more[1]):
            found[name] = factor
    return found


def _least(
    shapes: Sizes, inputs: Sequence[Input], declared: Sequence[tuple[Size, ...]], accepted: Sequence[dict[str, int]]
) -> tuple[str, ...]:
    """Conditions of the trace that sizes are large enough, as constraints: a window that fits, say. What shapes
    that are accepted do not meet is asked, and not needed."""
    import sympy

    places: dict[str, str] = {}
    taken: dict[str, int] = {}
    environment: Any = None
    for shape, tensor, entries in zip(shapes, inputs, declared, strict=True):
        for i, (size, entry) in enumerate(zip(shape, entries, strict=True)):
            if not isinstance(size, int) and isinstance(entry, str) and str(size) not in places:
                places[str(size)] = f"{tensor.name}.shape[{i}]"
                taken[str(size)] = min((evaluate(entry, case) for case in accepted), default=0)
                environment = size.node.shape_env
    found: dict[str, int] = {}
    for condition in _conditions(environment):
        for part in condition.args if isinstance(condition, sympy.And) else (condition,):
            names = [str(symbol) for symbol in part.free_symbols]
            if len(names) == 1 and names[0] in places and 1 < (least := _least_of(part)) <= taken[names[0]]:
                place = places[names[0]]
                found[place] = max(found.get(place, 0), least)
    return tuple(f"{place} >= {least}" for place, least in found.items())


_SOUGHT = 300
"""Windows are smaller than this."""


def _least_of(condition: Any) -> int:
    """From which size on a condition on one size holds; 0 where that is not what it says."""
    import sympy

    if not isinstance(condition, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
        return 0
    [symbol] = condition.free_symbols

    holds = [_holds_at(condition, symbol, size) for size in range(_SOUGHT)]
    least = holds.index(True) if True in holds else 0
    if least == 2 and any(side.is_Symbol for side in condition.args):
        return 0  # torch asks for two of every size
    return least if all(holds[least:]) and not any(holds[:least]) else 0


def _read_at_places(probe: Probe, sizes: dict[str, int]) -> frozenset[str]:
    """The size without whose number in the file places that the reference computes would lie outside, such as the
    buckets of a table of relative positions; empty where any will do."""
    own = {name: min(value, 64) for name, value in sizes.items()}
    tried = [*small_rows(sizes), *({**own, name: 1} for name in sizes)]
    outside = [row for row in tried if probe.accepts(row) and not probe.finds_places(row)]
    for name, value in sizes.items() if outside else ():
        rows = [{**row, name: value} for row in outside]
        if all(probe.accepts(row) and probe.finds_places(row) for row in rows):
            return frozenset({name})
    return frozenset()


def _fixed(probe: Probe, sizes: dict[str, int], accepted: Sequence[dict[str, int]]) -> dict[str, int]:
    """The sizes that the reference takes at no other value than the file's, such as channels in a number of groups, or
    at few others, such as the height of what a linear layer has a weight for."""
    found: dict[str, int] = {}
    for name, value in sizes.items() if accepted else ():

        def refused(other: int, name: str = name) -> bool:
            return not probe.accepts({**accepted[0], name: other})

        if value == 1 or refused(value) or not refused(2 * value):
            continue
        same = all(case[name] == value for case in accepted)
        if refused(value // 2) or (same and refused(value + 1)):
            found[name] = value
    return found


def _written(shapes: Shapes, names: dict[str, str]) -> Shapes:
    """Sizes as a spec declares them: a multiple as 8 * C, so that what divides it may count on it, or a number."""

    def entry(size: Size) -> Size:
        if isinstance(size, int) or not set(names_in(size)) & names.keys():
            return size
        text = renamed(size, {name: names.get(name, name) for name in names_in(size)})
        return _proportional(text) if names_in(text) else int(evaluate(text, {}))

    def counts(sizes: dict[str, int]) -> dict[str, int]:
        kept = {name: value for name, value in sizes.items() if names_in(names.get(name, name))}
        return {name: value // (multiple(names[name])[0] if name in names else 1) for name, value in kept.items()}

    inputs, outputs = (tuple(tuple(map(entry, dims)) for dims in all_) for all_ in (shapes.inputs, shapes.outputs))
    accuracy = tuple(map(counts, shapes.accuracy))
    return replace(shapes, inputs=inputs, outputs=outputs, sizes=counts(shapes.sizes), accuracy=accuracy)


_PERIOD = 4096
"""Quotients of sizes by whole numbers repeat after the product of these, which is no larger where they are compared."""


def _proportional(text: str) -> str:
    """A size that is a multiple of one, as it is written where its quotients leave no rest: 8 * N for 24 * N // 3."""
    divisors = [int(number) for number in re.findall(r"// (\d+)", text)]
    if "//" not in text or len(names_in(text)) != 1 or text.count("//") != len(divisors):
        return text
    (name,), period = names_in(text), math.prod(divisors)
    times = evaluate(text, {name: 1})
    if not 0 < period <= _PERIOD or any(evaluate(text, {name: n}) != times * n for n in range(2 * period + 1)):
        return text
    return name if times == 1 else f"{times} * {name}"


def _outputs(probe: Probe, shapes: Shapes, traced: list[list[str | None]]) -> tuple[tuple[Size, ...], ...]:
    """The size of every output dimension: what the trace says of it, else the name that has its value in all runs, or
    the number that it always is."""
    cases = shapes.accuracy or (shapes.sizes,)
    known = [(binding, found) for binding in cases if (found := probe.results(binding)) is not None]
    if not known:
        raise ShapeError("the reference takes none of its sizes")
    declared = []
    for output in range(len(known[0][1])):
        entries: list[Size] = []
        for axis in range(len(known[0][1][output])):
            values = [found[output][axis] for _, found in known]
            formula = traced[output][axis] if output < len(traced) and axis < len(traced[output]) else None
            # of 4 * C the trace says 4 * (C // 4) too
            same = [n for n in shapes.sizes if [binding[n] for binding, _ in known] == values]
            if formula and [evaluate(formula, binding) for binding, _ in known] == values:
                plain = [n for n in same if len(known) > 1 and n in names_in(formula)]  # 4 * (C // 4) of 4 * C
                entries.append(plain[0] if plain else formula if names_in(formula) else values[0])
                continue
            if not same and len(set(values)) > 1:
                raise ShapeError(
                    f"dimension {axis} of the result has a size that no input has "
                    f"({values[-1]} where {', '.join(f'{k}={v}' for k, v in known[-1][0].items())})"
                )
            entries.append(same[0] if same else values[0])
        declared.append(tuple(entries))
    return tuple(declared)

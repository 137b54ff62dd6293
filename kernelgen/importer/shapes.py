"""Names for the sizes of the inputs, and small shapes that the reference accepts.

Every dimension starts with a name of its own; those that the reference needs equal become one, found by tracing it
with free sizes. Two that are equal by chance stay two.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.importer.load import said
from kernelgen.importer.naming import size_names, spare
from kernelgen.importer.rewrite import Input
from kernelgen.spec.sizes import check_size, evaluate, multiple, names_in, renamed

Size = int | str
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


def derive(function: Function, inputs: Sequence[Input]) -> Shapes:
    """Sizes, outputs and small shapes of a reference. ShapeError where there are none."""
    shapes, results_of = _traced(function, inputs, [[True] * len(t.shape) for t in inputs])
    of_data = {str(size) for t, shape in zip(inputs, shapes, strict=True) if t.role == "data" for size in shape}
    free = [[str(size) in of_data for size in shape] for shape in shapes]
    if not all(map(all, free)):  # what only a parameter has is as the module has it; that may settle other sizes
        shapes, results_of = _traced(function, inputs, free)
    declared = _named(inputs, shapes)
    pairs = [p for d, t in zip(declared, inputs, strict=True) for p in zip(d, t.shape, strict=True)]
    sizes = {name: value for name, value in pairs if isinstance(name, str)}
    factors = _factors(shapes, declared)
    rows = [binding for binding in _small(sizes) if all(binding[name] % n == 0 for name, n in factors.items())]
    accepted = [binding for binding in rows if results(function, inputs, declared, binding) is not None]
    accepted = _grown(function, inputs, declared, sizes, factors) if len(accepted) < 2 else accepted
    if sizes and not accepted:
        raise ShapeError(_returned(function, inputs) or "no small shape was found that the reference accepts")
    accuracy = tuple(dict(case) for case in dict.fromkeys(tuple(b.items()) for b in accepted))[:6]
    found = Shapes(tuple(declared), (), sizes, _least(shapes, inputs), accuracy)
    outputs = _outputs(function, inputs, found, _expressions(results_of, shapes, declared))
    names = {name: f"{factor} * {name}" for name, factor in factors.items()}
    fixed = {name: str(value) for name, value in _fixed(function, inputs, declared, sizes, accuracy).items()}
    return _written(replace(found, outputs=outputs), names | fixed)


def _returned(function: Function, inputs: Sequence[Input]) -> str | None:
    """What the reference returns that is no tensor, as a complaint; None where it returns tensors."""
    import torch

    try:
        found = function(*(torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs))
    except Exception:  # the trace was made in the same way, so it is not this
        return None
    wrong = [v for v in (found if isinstance(found, tuple | list) else (found,)) if not isinstance(v, torch.Tensor)]
    return f"it returns a {type(wrong[0]).__name__}, not a tensor or several" if wrong else None


def _traced(
    function: Function, inputs: Sequence[Input], free: list[list[bool]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Inputs' and results' shapes as traced: numbers, and symbols for what may vary among the free sizes."""
    import torch

    from kernelgen.frontend.export import floor_division
    from kernelgen.frontend.rewrites import Rewrites

    class Module(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            with Rewrites():
                return function(*tensors)

    example = tuple(torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs)
    dynamic = tuple({i: torch.export.Dim.AUTO for i, varies in enumerate(dims) if varies} for dims in free)
    try:
        with floor_division():
            exported = torch.export.export(Module(), example, strict=False, dynamic_shapes=(dynamic,))
    except Exception as error:
        raise ShapeError(f"the reference cannot be traced: {said(error)}") from None
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    [last] = [node for node in exported.graph.nodes if node.op == "output"]
    made = [node for node in last.args[0] if hasattr(node, "meta")]
    given, returned = ([tuple(node.meta["val"].shape) for node in found] for found in (nodes, made))
    return given, returned


def _expressions(
    results_of: list[tuple[Any, ...]], shapes: list[tuple[Any, ...]], declared: Sequence[tuple[Size, ...]]
) -> list[list[str | None]]:
    """Every size of the results in terms of the declared ones, None where a spec cannot say it."""
    names = {
        str(s): str(n)
        for shape, entries in zip(shapes, declared, strict=True)
        for s, n in zip(shape, entries, strict=True)
    }

    def expression(size: Any) -> str | None:
        text = re.sub(r"\b[a-z]+\d+\b", lambda match: names.get(match[0], "?"), str(size))
        try:
            return check_size(text)
        except ValueError:
            return None

    return [[expression(size) for size in shape] for shape in results_of]


def _named(inputs: Sequence[Input], shapes: list[tuple[Any, ...]]) -> list[tuple[Size, ...]]:
    """A name for each symbol of the trace, after the tensor in which it comes first; the numbers it insists on."""
    names: dict[str, str] = {}
    taken = {t.name for t in inputs}
    declared = []
    for shape in shapes:
        letters = size_names(len(shape), taken)
        entries: list[Size] = []
        for size in shape:
            letter = next(letters)  # drawn for a number too: W stays the last dimension's name
            if isinstance(size, int):
                entries.append(size)
                continue
            symbol = str(size)
            if symbol not in names:
                names[symbol] = letter if letter not in taken else spare(taken)
                taken.add(names[symbol])
            entries.append(names[symbol])
        declared.append(tuple(entries))
    return declared


def _factors(shapes: list[tuple[Any, ...]], declared: Sequence[tuple[Size, ...]]) -> dict[str, int]:
    """The sizes that the trace needs to be multiples of a number, which it is."""
    names: dict[str, str] = {}
    environment: Any = None
    for shape, entries in zip(shapes, declared, strict=True):
        for size, name in zip(shape, entries, strict=True):
            if not isinstance(size, int):
                names.setdefault(str(size), str(name))
                environment = size.node.shape_env
    found: dict[str, int] = {}
    for guard in environment.guards if environment is not None else ():
        match = re.fullmatch(r"Eq\(Mod\((\w+), (\d+)\), 0\)", str(environment.replace(guard.expr)))
        if match and match[1] in names:
            name = names[match[1]]
            found[name] = math.lcm(found.get(name, 1), int(match[2]))
    return found


def _least(shapes: list[tuple[Any, ...]], inputs: Sequence[Input]) -> tuple[str, ...]:
    """Conditions of the trace that sizes are large enough, as constraints: a window that fits, say."""
    import sympy  # type: ignore[import-untyped]

    places: dict[str, str] = {}
    environment: Any = None
    for shape, tensor in zip(shapes, inputs, strict=True):
        for i, size in enumerate(shape):
            if not isinstance(size, int):
                places.setdefault(str(size), f"{tensor.name}.shape[{i}]")
                environment = size.node.shape_env
    found = []
    for guard in environment.guards if environment is not None else ():
        condition = environment.replace(guard.expr)
        for part in condition.args if isinstance(condition, sympy.And) else (condition,):
            names = [str(symbol) for symbol in part.free_symbols]
            if len(names) == 1 and names[0] in places and (least := _least_of(part)) > 1:
                found.append(f"{places[names[0]]} >= {least}")
    return tuple(dict.fromkeys(found))


_SOUGHT = 300
"""Windows are smaller than this."""


def _least_of(condition: Any) -> int:
    """From which size on a condition on one size holds; 0 where that is not what it says."""
    import sympy

    if not isinstance(condition, sympy.Ge) or condition.args[1] == 2:
        return 0  # torch asks for two of every size
    [symbol] = condition.free_symbols
    holds = [condition.subs(symbol, size) == sympy.true for size in range(_SOUGHT)]
    least = holds.index(True) if True in holds else 0
    return least if all(holds[least:]) and not any(holds[:least]) else 0


def _fixed(
    function: Function,
    inputs: Sequence[Input],
    declared: Sequence[tuple[Size, ...]],
    sizes: dict[str, int],
    accepted: Sequence[dict[str, int]],
) -> dict[str, int]:
    """The sizes that the reference takes at no other value than the file's, such as channels in a number of groups."""
    same = {name: value for name, value in sizes.items() if accepted and all(c[name] == value for c in accepted)}

    def refused(name: str, value: int) -> bool:
        return results(function, inputs, declared, {**accepted[0], name: value}) is None

    return {name: value for name, value in same.items() if refused(name, value + 1) and refused(name, 2 * value)}


def _written(shapes: Shapes, names: dict[str, str]) -> Shapes:
    """Sizes as a spec declares them: a multiple as 8 * C, so that what divides it may count on it, or a number."""

    def entry(size: Size) -> Size:
        if isinstance(size, int) or not set(names_in(size)) & names.keys():
            return size
        text = renamed(size, {name: names.get(name, name) for name in names_in(size)})
        return text if names_in(text) else int(evaluate(text, {}))

    def counts(sizes: dict[str, int]) -> dict[str, int]:
        kept = {name: value for name, value in sizes.items() if names_in(names.get(name, name))}
        return {name: value // (multiple(names[name])[0] if name in names else 1) for name, value in kept.items()}

    inputs, outputs = (tuple(tuple(map(entry, dims)) for dims in all_) for all_ in (shapes.inputs, shapes.outputs))
    return Shapes(inputs, outputs, counts(shapes.sizes), shapes.constraints, tuple(map(counts, shapes.accuracy)))


_SMALL: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (7,), (127,), (1025,)),
    2: ((1, 1), (1, 7), (5, 129), (33, 64), (3, 1025)),
    3: ((1, 1, 1), (1, 5, 7), (3, 4, 33), (2, 17, 65)),
    4: ((1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 9, 17), (3, 8, 5, 33)),
    5: ((1, 1, 1, 1, 1), (1, 3, 5, 2, 7), (2, 4, 3, 5, 9)),
}
"""Small and odd sizes by how many there are."""


def _small(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Shapes for all size names at once, of a few thousand elements each."""
    count = len(sizes)
    rows = _SMALL.get(count) or tuple(tuple((1, 3, 5, 2, 7, 4)[(i + s) % 6] for i in range(count)) for s in range(4))
    for row in rows:
        yield dict(zip(sizes, row, strict=True))


def _grown(
    function: Function,
    inputs: Sequence[Input],
    declared: Sequence[tuple[Size, ...]],
    sizes: dict[str, int],
    multiples: dict[str, int],
) -> list[dict[str, int]]:
    """Shapes for a reference that wants some sizes large enough, or multiples of something."""
    found = []
    factors = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
    for row in _small(sizes):
        options = [
            tuple(dict.fromkeys(min(v * f, max(n, 1)) for f in factors))
            for v, n in zip(row.values(), sizes.values(), strict=True)
        ]
        tried = sorted(itertools.product(*options), key=math.prod) if len(sizes) <= 4 else zip(*options, strict=False)
        for values in itertools.islice(tried, 300):
            binding = dict(zip(sizes, values, strict=True))
            if any(binding[name] % factor for name, factor in multiples.items()):
                continue
            if binding not in found and results(function, inputs, declared, binding) is not None:
                found.append(binding)
                break
    return found


def results(
    function: Function, inputs: Sequence[Input], declared: Sequence[tuple[Size, ...]], binding: dict[str, int]
) -> tuple[Any, ...] | None:
    """What the reference returns for these sizes on the CPU, None where it refuses them or returns nothing whole."""
    import torch

    arguments = tensors(inputs, declared, binding)
    try:
        with torch.no_grad():
            found = function(*arguments)
    except Exception:  # whatever a user's reference raises: these sizes are not for it
        return None
    found = found if isinstance(found, tuple | list) else (found,)
    if not found or not all(isinstance(value, torch.Tensor) for value in found):
        return None
    return tuple(found)


def tensors(inputs: Sequence[Input], declared: Sequence[tuple[Size, ...]], binding: dict[str, int]) -> list[Any]:
    """Random inputs; integers are 0 and 1, which are indices of nearly everything."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = []
    for tensor, entries in zip(inputs, declared, strict=True):
        shape = tuple(entry if isinstance(entry, int) else evaluate(entry, binding) for entry in entries)
        dtype = getattr(torch, tensor.dtype)
        if dtype.is_floating_point:
            made.append(torch.rand(shape, generator=generator).add(0.1).to(dtype))
        else:
            made.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return made


def _outputs(
    function: Function, inputs: Sequence[Input], shapes: Shapes, traced: list[list[str | None]]
) -> tuple[tuple[Size, ...], ...]:
    """The size of every output dimension: the name that has its value in all runs, what the trace says of it, or the
    number that it always is."""
    cases = shapes.accuracy or ({},)
    runs = [(binding, results(function, inputs, shapes.inputs, binding)) for binding in cases]
    known = [(binding, found) for binding, found in runs if found is not None]
    if not known:
        raise ShapeError("the reference does not run on the CPU")
    first = known[0][1]
    declared = []
    for output in range(len(first)):
        entries = []
        for axis in range(first[output].ndim):
            values = [found[output].shape[axis] for _, found in known]
            same = [n for n in shapes.sizes if [binding[n] for binding, _ in known] == values]
            formula = traced[output][axis] if output < len(traced) and axis < len(traced[output]) else None
            if not same and formula and [evaluate(formula, binding) for binding, _ in known] == values:
                same = [formula] if names_in(formula) else []
            if not same and len(set(values)) > 1:
                raise ShapeError(
                    f"dimension {axis} of the result has a size that no input has "
                    f"({values[-1]} where {', '.join(f'{k}={v}' for k, v in known[-1][0].items())})"
                )
            entries.append(same[0] if same else values[0])
        declared.append(tuple(entries))
    return tuple(declared)

"""From a file that was run to the text of a spec, checked against what the file computes."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelgen.errors import GuardError, Mistake, SpecError, UnsupportedError
from kernelgen.frontend.mistakes import SIZED_BY_VALUES
from kernelgen.importer import shapes as sizes
from kernelgen.importer.draws import drawn_below
from kernelgen.importer.graph_reference import from_graph
from kernelgen.importer.imported import Imported
from kernelgen.importer.into import indexed, results_of, with_written
from kernelgen.importer.load import Loaded, said
from kernelgen.importer.module import module_text
from kernelgen.importer.probing import Probe, Size, small_shapes, tensors
from kernelgen.importer.rewrite import Input, Rewritten, check_examples, rewrite
from kernelgen.importer.same_calls import differs
from kernelgen.importer.shapes import Shapes
from kernelgen.importer.traced import trace
from kernelgen.render import render
from kernelgen.spec import parse_spec
from kernelgen.spec.branches import with_side
from kernelgen.spec.choices import choices
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.sizes import evaluate, is_multiple, multiple, names_in

FLOATS = ("float16", "bfloat16", "float32")

COMPARED_ELEMENTS = 1 << 24
"""The reference is held against the file on inputs up to this size."""


Kinds = tuple[tuple[str, ...], list[str], list[str]]
"""The dtypes of the variable T, every input's dtype, every output's."""


def spec_of(loaded: Loaded, name: str, others: Sequence[Loaded] = ()) -> Imported:
    """The spec of what was loaded. SpecError with a place in the user's file where there is none.

    The reference is the file's own text where all of it can stand in one, else it is written from a trace. `others`:
    modules that have the same reference, whose sizes are to be cases of the spec too.
    """
    check_examples(loaded)
    written, notes = _reference(loaded, name)
    if written.traced is None:
        written = with_written(written, compiled(written.text, name))
    function = compiled(written.text, name)
    try:
        dtypes, inputs, outputs = _dtypes(function, written.inputs)
    except sizes.ShapeError as error:
        raise loaded.source.mistake(loaded.function, str(error)) from None
    cases = [_shapes_of(other, written) for other in others]
    kinds = (dtypes, inputs, outputs)
    text, shapes, refused = _with_all_ways(loaded, function, written, name, kinds, cases)
    notes += [*_compare(loaded, function, written, shapes), *_notes(loaded), *refused]
    left_out = [other for other, case in zip(others, cases, strict=True) if _case(shapes, case) is None]
    return Imported(name, text, tuple(notes), tuple(left_out))


def _with_all_ways(
    loaded: Loaded, function: Any, written: Rewritten, name: str, kinds: Kinds, cases: Sequence[list[tuple[int, ...]]]
) -> tuple[str, Shapes, list[str]]:
    """As `_text_that_is_taken`, with as many ways of calling as a kernel can be made for."""
    first: tuple[str, Shapes, list[str]] | None = None
    error: SpecError | None = None
    try:
        first = _text_that_is_taken(loaded, function, written, name, kinds, cases)
        if not first[2]:
            return first
        reason = first[2][0].partition(": ")[2]
    except SpecError as found:  # no spec has so many ways
        error, reason = found, found.mistakes[0].message.partition("': ")[2]
    for fewer, said_so in _with_fewer_ways(written):
        try:
            text, shapes, refused = _text_that_is_taken(loaded, function, fewer, name, kinds, cases)
        except SpecError:
            continue
        note = f"{said_so}, since `kernelgen new` refuses it otherwise: {reason}"
        if not refused:
            return text, shapes, [note]
        first = first or (text, shapes, [note, *refused])
    if first is None:
        assert error is not None
        raise error
    return first


def _with_fewer_ways(written: Rewritten) -> Iterator[tuple[Rewritten, str]]:
    """The reference with more and more of its parameters fixed, and what is said of that."""
    for kinds in (("float",), ("float", "bool")):
        fixed = [s for s in written.scalars if s.kind in kinds and not s.fixed]
        if fixed and any(s.kind == kinds[-1] for s in fixed):
            scalars = tuple(replace(s, fixed=s.fixed or s in fixed) for s in written.scalars)
            yield replace(written, scalars=scalars), " and ".join(f"{s.name} is {s.text} alone" for s in fixed)
    optional = [t.name for t in written.inputs if t.optional]
    if optional:
        scalars = tuple(replace(s, fixed=bool(s.kind)) for s in written.scalars)
        inputs = tuple(replace(t, optional=False) for t in written.inputs)
        said_so = f"{' and '.join(optional)} must be given, and numbers and flags are what the file calls it with"
        yield replace(written, scalars=scalars, inputs=inputs), said_so


def reference_of(loaded: Loaded, name: str) -> str:
    """The text of the reference alone."""
    check_examples(loaded)
    return _reference(loaded, name)[0].text


def _shapes_of(loaded: Loaded, written: Rewritten) -> list[tuple[int, ...]]:
    """The shapes that another module has where this one has the inputs."""
    data = iter(e for e in loaded.examples if hasattr(e, "shape"))
    found = []
    for tensor in written.inputs:
        path = tensor.path or re.sub(r"\[(\d+)\]", r".\1", tensor.expression).partition(".")[2]
        owner, _, name = path.rpartition(".")
        value = getattr(loaded.module.get_submodule(owner), name) if tensor.role == "parameter" else next(data, None)
        found.append(() if value is None else tuple(value.shape))
    return found


def _case(shapes: Shapes, given: Sequence[tuple[int, ...]]) -> dict[str, int] | None:
    """The sizes, by name, of inputs with other shapes; None where they are not such as the spec declares."""
    found: dict[str, int] = {}
    for entries, shape in zip(shapes.inputs, given, strict=True):
        if len(entries) != len(shape):
            return None
        for entry, value in zip(entries, shape, strict=True):
            if isinstance(entry, str) and entry.isidentifier() and found.setdefault(entry, value) != value:
                return None
    for entries, shape in zip(shapes.inputs, given, strict=True):
        for entry, value in zip(entries, shape, strict=True):
            if isinstance(entry, str) and is_multiple(entry):
                factor, name = multiple(entry)
                found.setdefault(name, value // factor)
            size = entry if isinstance(entry, int) else evaluate(entry, found)
            if size != value:
                return None
    return found


COLUMNS = 120
"""A reference with longer lines, as a long nn.Sequential makes them, is better read call by call."""


def _reference(loaded: Loaded, name: str) -> tuple[Rewritten, list[str]]:
    """The reference, and what its reader should know of how it came about."""
    try:
        written = rewrite(loaded, name)
    except SpecError as refusal:
        return _from_trace(loaded, name, refusal)
    if all(len(line) <= COLUMNS for line in written.text.splitlines()):
        return written, []
    with contextlib.suppress(SpecError):
        return from_graph(loaded, trace(loaded), name), []
    return written, []


def _from_trace(loaded: Loaded, name: str, refusal: SpecError) -> tuple[Rewritten, list[str]]:
    """The reference from a trace. Where that fails too, and for a mistake in the text, the text is what to speak of."""
    first = refusal.mistakes[0]
    try:
        written = from_graph(loaded, trace(loaded), name)
    except SpecError as error:
        of_text = isinstance(error.__cause__, NameError | AttributeError | TypeError | RecursionError)
        raise (refusal if of_text and error.mistakes[0].line == first.line else error) from None
    changed = [f"{own} is given a new value in forward, which the operator does not do" for own in written.changed]
    why = f"the reference was written from a trace, since at {first.path}:{first.line}: {first.message}"
    return written, [why, *changed]


def _text_that_is_taken(
    loaded: Loaded,
    function: Any,
    written: Rewritten,
    name: str,
    dtypes: Kinds,
    cases: Sequence[list[tuple[int, ...]]],
) -> tuple[str, Shapes, list[str]]:
    """The spec with as many open sizes as a kernel can be made for, and a note where none can."""
    first: tuple[str, Shapes, list[str]] | None = None
    error: sizes.ShapeError | None = None
    began = time.process_time()
    tried = [(level, frozenset[str]()) for level in range(sizes.LEVELS)]
    while tried:
        level, numbers = tried.pop(0)
        try:
            shapes = sizes.derive(function, written.inputs, written.traced, level, numbers)
        except sizes.ShapeError as found:
            error = error or found
            continue
        text = _spec(loaded, written, shapes, name, dtypes, cases)
        if first is not None and text == first[0]:
            continue
        if time.process_time() - began > TRIED_S or len(written.text) > TRIED_CHARACTERS:
            return first or (text, shapes, [])
        refusal = _refusal(text, name)
        while isinstance(refusal, UnsupportedError) and time.process_time() - began <= SIDES_S:
            why = ELSEWHERE if isinstance(refusal, GuardError) else "it is traced for these sizes alone"
            kept = _on_one_side(parse_spec(text, f"{name}.yaml"), function, written, shapes, refusal.condition, why)
            if kept is None:
                break
            shapes = kept
            text = _spec(loaded, written, shapes, name, dtypes, cases)
            refusal = _refusal(text, name)
        if refusal is None:
            return text, shapes, []
        reason = refusal.mistakes[0].message
        spoken = frozenset(size for size in shapes.sizes if re.search(rf"\b{size}\b", reason))
        if first is None:
            first = (text, shapes, [f"`kernelgen new` will refuse it: {reason}"])
            tried[:0] = [(0, spoken)] if spoken else []
        if not spoken and not any(re.search(rf"\b{word}\b", reason) for word in SIZE_WORDS):
            break
    if first is None:
        assert error is not None
        raise loaded.source.mistake(loaded.function, str(error)) from None
    return first


SIZE_WORDS = ("size", "sizes", "equal", "number", "dimension", "shape")
"""What a refusal says where it is for a size, beside the sizes' names."""

TRIED_CHARACTERS = 8000
TRIED_S = 10.0
"""Longer references, and those whose shapes take longer, are not traced again to see whether a kernel can be made. The
shapes of a convolution of volumes and a group norm take 4 s alone, and more on a busy machine."""
SIDES_S = 30.0
"""A constraint is written for every condition that a trace asks for, one trace each; with some of them only, `new`
refuses the spec, so that they have more time than other shapes have."""


ELSEWHERE = "as the file's own sizes are; elsewhere the reference does another thing"


def _on_one_side(
    spec: OperatorSpec, function: Any, written: Rewritten, shapes: Shapes, condition: str, why: str
) -> Shapes | None:
    """The shapes that meet a condition or, where the file's own sizes do not, those that do not, with a constraint that
    says so and why; None where none can. Where few of the small ones are on that side, more are looked for there."""
    cases = tuple(replace(case, derived=True) for case in (*spec.accuracy, *spec.performance))
    side = with_side(replace(spec, accuracy=cases), condition) if condition else None
    if side is None or side.fork is not None:
        return None
    said = f"{side.constraints[-1].text}   # {why}"
    kept = {case.sizes for case in side.accuracy}
    accuracy = [case for one, case in zip(_bound(spec), shapes.accuracy, strict=False) if one in kept]
    if len(accuracy) < 2:
        probe = Probe(function, written.inputs, shapes.inputs, [c.text for c in side.constraints])
        accuracy = small_shapes(probe, shapes.sizes, {}) or accuracy
    return replace(shapes, constraints=(*shapes.constraints, said), accuracy=tuple(accuracy)) if accuracy else None


def _bound(spec: OperatorSpec) -> list[Any]:
    """The sizes of the accuracy cases, each once, in the order in which they are listed."""
    return list(dict.fromkeys(case.sizes for case in spec.accuracy))


def _refusal(text: str, name: str) -> SpecError | None:
    """Why the frontend refuses a spec, None where it takes it."""
    from kernelgen.frontend.trace import trace as lowered

    try:
        spec = parse_spec(text, f"{name}.yaml")
        for one in [way.spec for way in choices(spec)] or [spec]:
            lowered(one)
    except SpecError as error:
        return error
    return None


def _spec(
    loaded: Loaded,
    written: Rewritten,
    shapes: Shapes,
    name: str,
    dtypes: Kinds,
    cases: Sequence[list[tuple[int, ...]]],
) -> str:
    variable, inputs, outputs = dtypes
    further = [_case(shapes, case) for case in cases]
    cells = _tensors(written, shapes, inputs, outputs, _limits(compiled(written.text, name), written.inputs, shapes))
    text = render(
        "spec.yaml.jinja",
        name=name,
        summary=_summary(loaded, name),
        fixed=any(
            isinstance(entry, int) and entry > 1
            for tensor, entries in zip(written.inputs, shapes.inputs, strict=True)
            if tensor.role == "data"
            for entry in entries
        ),
        inputs=[*cells[: len(inputs)], *_plain(written)],
        outputs=cells[len(inputs) :],
        dtypes=variable,
        constraints=shapes.constraints,
        reference=written.text,
        accuracy=[_binding(case) for case in shapes.accuracy] if shapes.sizes else [],
        performance=list(dict.fromkeys(_binding(case) for case in (shapes.sizes, *further) if case)),
        module=module_text(loaded, written, shapes.inputs, name) if loaded.owner else "",
    )
    try:
        parse_spec(text, f"{name}.yaml")
    except SpecError as error:
        first: Mistake = error.mistakes[0]
        line = text.splitlines()[first.line - 1].strip()
        message = f"its spec would be wrong at '{line}': {first.message}"
        raise loaded.source.mistake(loaded.function, message) from None
    return text


def compiled(text: str, name: str) -> Any:
    """The reference as a function."""
    import torch

    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(compile(text, f"<reference of {name}>", "exec", dont_inherit=True), scope)
    return scope[name]


def _dtypes(function: Any, inputs: Sequence[Input]) -> Kinds:
    """The dtypes of the variable T (none where no input is a float), then every input's and output's dtype."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from kernelgen.frontend.constructors import beyond
    from kernelgen.frontend.recurrent import Whole

    class Fills(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Without memory torch writes numbers that a dtype does not hold."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            made = isinstance(result, torch.Tensor)
            if made and (value := beyond(func, args, kwargs or {}, result.dtype)) is not None:
                raise OverflowError(f"{value:g} is no number of it")
            return result

    floats = {t.dtype for t in inputs if getattr(torch, t.dtype).is_floating_point}
    follows = len(floats) == 1 and floats <= {*FLOATS}

    def results(dtype: str | None) -> list[str]:
        meta = [
            torch.empty(t.shape, dtype=getattr(torch, dtype if dtype and t.dtype in floats else t.dtype), device="meta")
            for t in inputs
        ]
        try:
            with Whole(), Fills():  # type: ignore[no-untyped-call]
                found = function(*meta)
        except Exception as error:
            if "register_meta function" in str(error):  # torch's word for nonzero, unique, a mask as an index
                raise sizes.ShapeError(f"unsupported: {SIZED_BY_VALUES}") from None
            raise sizes.ShapeError(f"the reference fails with {dtype or 'its dtypes'}: {said(error)}") from None
        found = found if isinstance(found, tuple | list) else (found,)
        if (wrong := sizes.no_tensors(found)) is not None:
            raise sizes.ShapeError(wrong)
        return [str(value.dtype).removeprefix("torch.") for value in found]

    if not follows:
        return (), [t.dtype for t in inputs], results(None)
    runs = {own: results(own) for own in floats}
    for dtype in FLOATS:  # a reference that does not take another dtype is an operator without it
        with contextlib.suppress(sizes.ShapeError):
            runs[dtype] = results(dtype)
    dtypes = tuple(sorted(runs, key=lambda dtype: (dtype not in floats, FLOATS.index(dtype))))  # its own is timed
    outputs = []
    for kinds in zip(*(runs[dtype] for dtype in dtypes), strict=True):
        if kinds != dtypes and len(set(kinds)) > 1:
            raise sizes.ShapeError(f"a result is {', '.join(kinds)} for inputs of {', '.join(dtypes)}")
        outputs.append("T" if kinds == dtypes else kinds[0])
    return dtypes, ["T" if t.dtype in floats else t.dtype for t in inputs], outputs


def _compare(loaded: Loaded, function: Any, written: Rewritten, shapes: Shapes) -> list[str]:
    """Hold the reference against the file itself; a note where that cannot be done, SpecError where they differ."""
    import torch

    if written.traced is not None:
        difference = differs(loaded, function, written.inputs)
        if difference is not None:
            raise loaded.source.mistake(
                loaded.function, f"the reference written from its trace is another: {difference}"
            )
        return []

    weights = [t for t in written.inputs if t.role == "parameter"]
    fixed = {
        name
        for tensor, declared in zip(written.inputs, shapes.inputs, strict=True)
        if tensor.role == "parameter"
        for entry in declared
        for name in names_in(entry)
    }
    if sum(math.prod(t.shape) for t in weights) > COMPARED_ELEMENTS:
        return _compare_calls(loaded, function, written, "its parameters are too large")
    with torch.no_grad():
        for tensor in weights:  # a fresh layer's ones and zeros would hide a weight that was left out
            if tensor.value.is_floating_point():
                tensor.value.copy_(torch.rand(tensor.shape) + 0.5)
    for case in reversed(shapes.accuracy or ({},)):
        binding = {name: shapes.sizes[name] if name in fixed else value for name, value in case.items()}
        made = tensors(written.inputs, shapes.inputs, binding)
        if sum(tensor.numel() for tensor in made) > COMPARED_ELEMENTS:
            continue
        values = [t.value if t.role == "parameter" else m for t, m in zip(written.inputs, made, strict=True)]
        data = [t for t in written.inputs if t.role == "data"]
        examples = dict(zip(_names(loaded), loaded.examples, strict=False))

        def called(*given: Any, data: list[Input] = data, examples: dict[str, Any] = examples) -> Any:
            arguments = dict(zip((t.name for t in data), given, strict=False))
            return loaded.call(*(arguments.get(name, value) for name, value in examples.items()))

        try:
            with torch.no_grad():
                wanted = results_of(called, data, written.into, made[: len(data)])
                got = results_of(function, written.inputs, written.into, values)
        except Exception:  # sizes that the file does not take
            continue
        if not _same(wanted, got):
            raise loaded.source.mistake(
                loaded.function, f"the reference made from '{loaded.function.name}' gives another result"
            )
        return []
    return _compare_calls(loaded, function, written, "it takes none of the small shapes")


def _compare_calls(loaded: Loaded, function: Any, written: Rewritten, reason: str) -> list[str]:
    """Where numbers cannot be compared: a note, unless both make the same calls of the same tensors."""
    try:
        same = differs(loaded, function, written.inputs) is None
    except Exception:  # a file that looks at values
        same = False
    return [] if same else [f"the reference was not run beside the file: {reason}"]


def _same(wanted: Any, got: Any) -> bool:
    import torch

    def wide(tensor: Any) -> Any:
        """torch compares no float8."""
        return tensor.float() if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 else tensor

    pairs = [value if isinstance(value, tuple | list) else (value,) for value in (wanted, got)]
    return len(pairs[0]) == len(pairs[1]) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(wide(a), wide(b), rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(*pairs, strict=True)
    )


def _notes(loaded: Loaded) -> list[str]:
    import torch

    if loaded.module is None:
        return []
    norms = [
        name for name, layer in loaded.module.named_modules()
        if isinstance(layer, torch.nn.modules.batchnorm._NormBase) and layer.training and layer.running_mean is not None
    ]  # fmt: skip
    return [f"self.{name} is in training: the running statistics that it keeps are not updated" for name in norms]


def _names(loaded: Loaded) -> list[str]:
    """The parameters that the examples are for."""
    arguments = loaded.function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if loaded.module is not None else names


def _summary(loaded: Loaded, name: str) -> str:
    """The first sentence that the file says of it, as a YAML scalar."""
    texts = [ast.get_docstring(node) for node in (loaded.owner, loaded.function) if node is not None]
    first = next(
        (text for text in texts if text and text.strip()), f"{name}, as {Path(loaded.source.path).name} has it."
    )
    sentence = re.split(r"(?<=\.)\s|\n\s*\n", " ".join(first.split()) if "\n\n" not in first else first, maxsplit=1)[0]
    sentence = " ".join(sentence.split())
    plain = re.fullmatch(r"[A-Za-z][\w ,.;()/*+'-]*", sentence) is not None
    return sentence if plain else json.dumps(sentence, ensure_ascii=False)


def _limits(function: Any, inputs: Sequence[Input], shapes: Shapes) -> list[Size | None]:
    """For every input the size, or the number, that its elements are indices of, if they are."""
    cases = [shapes.sizes, *shapes.accuracy]
    given = [[tuple(e if isinstance(e, int) else evaluate(e, c) for e in own) for own in shapes.inputs] for c in cases]
    found = list(zip(*(indexed(function, inputs, shape) for shape in given), strict=True))

    def named(values: tuple[int | None, ...]) -> Size | None:
        own = [name for name in shapes.sizes if [case.get(name) for case in cases] == list(values)]
        return own[0] if own else values[0] if len(set(values)) == 1 else None

    return [named(values) if None not in values else None for values in found]


def _tensors(
    written: Rewritten, shapes: Shapes, inputs: list[str], outputs: list[str], limits: Sequence[Size | None]
) -> list[str]:
    """The entries of inputs and outputs, in columns. `limits`: what inputs are indices of."""
    names = [t.name for t in written.inputs]
    taken = {*names, *shapes.sizes}
    into = written.into or ("",) * len(outputs)
    for i, own in enumerate(into):
        wanted = f"new_{own}" if own else "out" if len(outputs) == 1 else f"out{i}"
        names.append(next(n for n in (wanted, f"{wanted}_out", f"{wanted}_result") if n not in taken))
    declared = [*shapes.inputs, *shapes.outputs]
    roles = [
        (", role: parameter" if t.role == "parameter" else "")
        + (_below(t, own, shapes) or ("" if limit is None or t.role == "parameter" else f", below: {limit}"))
        + ", optional: true" * t.optional
        for t, own, limit in zip(written.inputs, shapes.inputs, limits, strict=True)
    ]
    roles += [f", into: {own}" * bool(own) for own in into]
    width = max(len(n) for n in (*names, *(s.name for s in written.scalars if s.kind))) + 1
    texts = [f"[{', '.join(map(str, shape))}]," for shape in declared]
    return [
        f"{{name: {name + ',':{width}} shape: {text:{max(map(len, texts))}} dtype: {dtype}{role}}}"
        for name, text, dtype, role in zip(names, texts, [*inputs, *outputs], roles, strict=True)
    ]


def _plain(written: Rewritten) -> list[str]:
    """The entries of numbers and options."""
    kept = [s for s in written.scalars if s.kind]
    width = max(len(n) for n in (*(t.name for t in written.inputs), *(s.name for s in kept))) + 1 if kept else 0
    found = []
    for one in kept:
        text = one.text.strip("'\"") if one.kind == "str" else one.text.lower()
        values = f", values: [{text}]" if one.fixed else ""
        found.append(f"{{name: {one.name + ',':{width}} scalar: {one.kind}, default: {text}{values}}}")
    return found


def _below(tensor: Input, own: Sequence[Size], shapes: Shapes) -> str:
    """Where an example was drawn as indices, what they stay below: the size that is as large, else the number. `own`:
    the tensor's sizes, which a table that the module keeps has by itself."""
    if tensor.dtype not in ("int32", "int64"):
        return ""
    if tensor.role == "parameter":  # a table of indices that the module keeps
        indices = not tensor.value.is_meta and tensor.value.numel() > 0 and int(tensor.value.min()) >= 0
        high = int(tensor.value.max()) + 1 if indices else None
    else:
        high = drawn_below(tensor.value)
    if high is None:
        return ""
    sizes = {name: value for name, value in shapes.sizes.items() if tensor.role == "data" or name not in own}
    size = next((name for name, value in sizes.items() if value == high), high)
    return f", below: {size}"


def _binding(case: dict[str, Size] | dict[str, int]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in case.items())}}}"

"""From a file that was run to the text of a spec, checked against what the file computes."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.errors import Mistake, SpecError
from kernelgen.importer import shapes as sizes
from kernelgen.importer.draws import drawn_below
from kernelgen.importer.load import Loaded, said
from kernelgen.importer.module import module_text
from kernelgen.importer.rewrite import Input, Rewritten, rewrite
from kernelgen.importer.shapes import Shapes, Size
from kernelgen.render import render
from kernelgen.spec import parse_spec
from kernelgen.spec.sizes import names_in

FLOATS = ("float16", "bfloat16", "float32")

COMPARED_ELEMENTS = 1 << 24
"""The reference is held against the file on inputs up to this size."""


@dataclass(frozen=True)
class Imported:
    """A spec that was made from a file."""

    name: str
    text: str
    notes: tuple[str, ...]
    """What its reader should know that the spec does not say."""


def spec_of(loaded: Loaded, name: str) -> Imported:
    """The spec of what was loaded. SpecError with a place in the user's file where there is none."""
    written = rewrite(loaded, name)
    function = compiled(written.text, name)
    place = loaded.function
    try:
        shapes = sizes.derive(function, written.inputs)
        dtypes, inputs, outputs = _dtypes(function, written.inputs)
    except sizes.ShapeError as error:
        raise loaded.source.mistake(place, str(error)) from None
    notes = [*_compare(loaded, function, written, shapes), *_notes(loaded)]
    cells = _tensors(written, shapes, inputs, outputs)
    text = render(
        "spec.yaml.jinja",
        name=name,
        summary=_summary(loaded, name),
        inputs=cells[: len(inputs)],
        outputs=cells[len(inputs) :],
        dtypes=dtypes,
        constraints=shapes.constraints,
        reference=written.text,
        accuracy=[_binding(case) for case in shapes.accuracy] if shapes.sizes else [],
        performance=_binding(shapes.sizes),
        module=module_text(loaded, written, shapes.inputs, name) if loaded.owner else "",
    )
    try:
        parse_spec(text, f"{name}.yaml")
    except SpecError as error:
        first: Mistake = error.mistakes[0]
        line = text.splitlines()[first.line - 1].strip()
        raise loaded.source.mistake(place, f"its spec would be wrong at '{line}': {first.message}") from None
    return Imported(name, text, tuple(notes))


def compiled(text: str, name: str) -> Any:
    """The reference as a function."""
    import torch

    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(compile(text, f"<reference of {name}>", "exec", dont_inherit=True), scope)
    return scope[name]


def _dtypes(function: Any, inputs: Sequence[Input]) -> tuple[tuple[str, ...], list[str], list[str]]:
    """The dtypes of the variable T (none where no input is a float), then every input's and output's dtype."""
    import torch

    floats = {t.dtype for t in inputs if getattr(torch, t.dtype).is_floating_point}
    follows = len(floats) == 1 and floats <= {*FLOATS}

    def results(dtype: str | None) -> list[str]:
        meta = [
            torch.empty(t.shape, dtype=getattr(torch, dtype if dtype and t.dtype in floats else t.dtype), device="meta")
            for t in inputs
        ]
        try:
            found = function(*meta)
        except Exception as error:
            raise sizes.ShapeError(f"the reference fails with {dtype or 'its dtypes'}: {said(error)}") from None
        found = found if isinstance(found, tuple | list) else (found,)
        return [str(value.dtype).removeprefix("torch.") for value in found]

    if not follows:
        return (), [t.dtype for t in inputs], results(None)
    runs = {own: results(own) for own in floats}
    for dtype in FLOATS:  # a reference that does not take another dtype is an operator without it
        with contextlib.suppress(sizes.ShapeError):
            runs[dtype] = results(dtype)
    dtypes = tuple(dtype for dtype in FLOATS if dtype in runs)
    outputs = []
    for kinds in zip(*(runs[dtype] for dtype in dtypes), strict=True):
        if kinds != dtypes and len(set(kinds)) > 1:
            raise sizes.ShapeError(f"a result is {', '.join(kinds)} for inputs of {', '.join(dtypes)}")
        outputs.append("T" if kinds == dtypes else kinds[0])
    return dtypes, ["T" if t.dtype in floats else t.dtype for t in inputs], outputs


def _compare(loaded: Loaded, function: Any, written: Rewritten, shapes: Shapes) -> list[str]:
    """Hold the reference against the file itself; a note where that cannot be done, SpecError where they differ."""
    import torch

    weights = [t for t in written.inputs if t.role == "parameter"]
    fixed = {
        name
        for tensor, declared in zip(written.inputs, shapes.inputs, strict=True)
        if tensor.role == "parameter"
        for entry in declared
        for name in names_in(entry)
    }
    if sum(math.prod(t.shape) for t in weights) > COMPARED_ELEMENTS:
        return ["the reference was not run beside the file: its parameters are too large"]
    with torch.no_grad():
        for tensor in weights:  # a fresh layer's ones and zeros would hide a weight that was left out
            if tensor.value.is_floating_point():
                tensor.value.copy_(torch.rand(tensor.shape) + 0.5)
    for case in reversed(shapes.accuracy or ({},)):
        binding = {name: shapes.sizes[name] if name in fixed else value for name, value in case.items()}
        made = sizes.tensors(written.inputs, shapes.inputs, binding)
        if sum(tensor.numel() for tensor in made) > COMPARED_ELEMENTS:
            continue
        values = [t.value if t.role == "parameter" else m for t, m in zip(written.inputs, made, strict=True)]
        arguments = dict(zip((t.name for t in written.inputs if t.role == "data"), made, strict=False))
        examples = dict(zip(_names(loaded), loaded.examples, strict=False))
        try:
            with torch.no_grad():
                wanted = loaded.call(*(arguments.get(name, value) for name, value in examples.items()))
                got = function(*values)
        except Exception:  # sizes that the file does not take
            continue
        if not _same(wanted, got):
            raise loaded.source.mistake(
                loaded.function, f"the reference made from '{loaded.function.name}' gives another result"
            )
        return []
    return ["the reference was not run beside the file, which takes none of the small shapes"]


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


def _tensors(written: Rewritten, shapes: Shapes, inputs: list[str], outputs: list[str]) -> list[str]:
    """The entries of inputs and outputs, in columns."""
    names = [t.name for t in written.inputs]
    taken = {*names, *shapes.sizes}
    for i in range(len(outputs)):
        wanted = "out" if len(outputs) == 1 else f"out{i}"
        names.append(next(n for n in (wanted, f"{wanted}_out", f"{wanted}_result") if n not in taken))
    declared = [*shapes.inputs, *shapes.outputs]
    roles = [(", role: parameter" if t.role == "parameter" else "") + _below(t, shapes) for t in written.inputs]
    roles += [""] * len(outputs)
    width = max(len(n) for n in names) + 1
    texts = [f"[{', '.join(map(str, shape))}]," for shape in declared]
    return [
        f"{{name: {name + ',':{width}} shape: {text:{max(map(len, texts))}} dtype: {dtype}{role}}}"
        for name, text, dtype, role in zip(names, texts, [*inputs, *outputs], roles, strict=True)
    ]


def _below(tensor: Input, shapes: Shapes) -> str:
    """Where an example was drawn as indices, what they stay below: the size that is as large, else the number."""
    high = drawn_below(tensor.value)
    if high is None or tensor.dtype not in ("int32", "int64"):
        return ""
    size = next((name for name, value in shapes.sizes.items() if value == high), high)
    return f", below: {size}"


def _binding(case: dict[str, Size] | dict[str, int]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in case.items())}}}"

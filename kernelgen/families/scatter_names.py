"""What kernels of scatters call values of their own, where a tensor has such a name already or stands for two."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from kernelgen.families.family import Kernels
from kernelgen.families.kernel import Body
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

LOCAL = frozenset([
    "back", "before", "bounds", "buckets", "col_mask", "cols", "count", "counts", "end", "error", "first",
    "found", "is_before", "is_named", "is_own", "is_place", "is_row", "is_same", "lanes", "left", "listed",
    "lost", "mask", "num_parts", "num_tiles_n", "number", "offsets", "part", "parts", "place", "places", "pointers",
    "rank", "row", "rows", "slot", "slots", "start", "total", "M", "N",
])  # fmt: skip
_OTHERWISE = {"M": "num_rows", "N": "num_cols"}
_THEIRS = "{}_of_the_spec"
"""What a tensor is called until the values of the kernel have other names."""
_WORDS = re.compile(r"(?<![\w.])[A-Za-z]\w*")


def beside_tensors(kernels: Kernels) -> Kernels:
    """Kernels whose own values have names that no tensor has; a value that is read keeps that of its tensor."""

    def named(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
        tensors = {t.name for t in (*spec.inputs, *spec.outputs)}
        clashing = sorted(tensors & (LOCAL | {f"next_{tensor}" for tensor in tensors}))
        if not clashing:
            return tuple(map(_once, kernels(spec, body, schedule, name)))
        theirs = {tensor: _THEIRS.format(tensor) for tensor in clashing}
        made = kernels(_called(spec, theirs), _read(body, theirs), schedule, name)
        ours = {word: _free(_OTHERWISE.get(word, f"own_{word}"), tensors) for word in clashing}
        back = {f"{other}{end}": f"{tensor}{end}" for tensor, other in theirs.items() for end in ("", "_ptr")}
        back |= {f"next_{other}": f"next_{tensor}" for tensor, other in theirs.items()}
        words = {word + end: other + end for word, other in ours.items() for end in ("", "_ptr")}
        return tuple(_reworded(_once(kernel), words | back) for kernel in made)

    return named


def _once(kernel: ir.Step) -> ir.Kernel:
    """A kernel that gets a tensor once that it reads twice, as what is added and what it is added to."""
    assert isinstance(kernel, ir.Kernel)
    return replace(kernel, arguments=tuple(dict.fromkeys(kernel.arguments)))


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"own_{name}"
    return name


def _called(spec: OperatorSpec, names: dict[str, str]) -> OperatorSpec:
    inputs, outputs = (
        tuple(replace(t, name=names.get(t.name, t.name)) for t in of) for of in (spec.inputs, spec.outputs)
    )
    return replace(spec, inputs=inputs, outputs=outputs)


def _read(body: Body, names: dict[str, str]) -> Body:
    values = tuple(replace(v, tensor=names.get(v.tensor, v.tensor)) if v.tensor else v for v in body.lowered.values)
    return replace(body, lowered=replace(body.lowered, values=values))


def _reworded(kernel: ir.Kernel, words: dict[str, str]) -> ir.Kernel:
    """A kernel in which words are others."""

    def other(text: str) -> str:
        return _WORDS.sub(lambda found: words.get(found[0], found[0]), text)

    def pairs(of: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((other(name), other(value)) for name, value in of)

    changed: dict[str, Any] = {
        "arguments": tuple(replace(a, name=other(a.name), host=other(a.host)) for a in kernel.arguments),
        "body": tuple(replace(s, names=tuple(words.items())) for s in kernel.body if isinstance(s, ir.Scatter)),
        "grid": tuple(map(other, kernel.grid)),
        "counts": pairs(kernel.counts),
        "scratch": tuple(replace(s, name=other(s.name), shape=other(s.shape)) for s in kernel.scratch),
        "constexprs": tuple((name, host and other(host)) for name, host in kernel.constexprs),
    }
    return replace(kernel, **changed)

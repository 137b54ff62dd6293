"""The file that joins forward and backward kernels to one operator of torch, and the test of its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kernelgen.backward.specs import Derived
from kernelgen.families.line import LINE, fit
from kernelgen.frontend.convolution_gradients import CALLED
from kernelgen.render import accuracy_context, operator_context, render
from kernelgen.spec.model import OperatorSpec, Size, TensorSpec
from kernelgen.wrapper import CONTIGUOUS, Layout, allocation


@dataclass(frozen=True)
class Judged:
    """What the test of gradients is told."""

    uniform: tuple[str, ...]
    """The inputs whose gradient is one number shown everywhere."""
    counted: Sequence[tuple[Size, int]]
    """Sizes along which torch rounds its own places, and of how many these are exact (`Graph.rounded`)."""
    finite: frozenset[str]
    """The inputs that are no NaN and not infinite."""
    convolves: bool
    """Whether there are convolutions, between which torch stores what its gradients are computed from too."""


def joined_files(
    spec: OperatorSpec,
    parts: Sequence[Derived],
    passed: dict[str, str],
    judged: Judged,
    laid: Mapping[str, Layout],
    forward: Derived | None = None,
) -> dict[str, str]:
    """NAME_autograd.py and NAME_gradients_accuracy.py. `passed`: inputs whose gradient is that of an output; `laid`:
    how outputs and gradients lie; `forward`: one that saves more than inputs."""
    made = forward.spec if forward else spec
    whole = _whole(spec, parts, made)
    read = {i.name for i in whole.inputs}
    saved = [t.name for t in spec.inputs if t.name in read]
    results = [o.name for o in made.outputs]
    found = {o.name for o in whole.outputs}
    returned = [passed.get(t.name) or (f"grad_{t.name}" if f"grad_{t.name}" in found else "None") for t in spec.inputs]
    incoming = [f"grad_{o.name}" for o in spec.outputs]
    besides = results[len(incoming) :]
    context = {
        **operator_context(spec),
        "parts": [_part(p.spec) | {"import_line": _import(p)} for p in parts],
        "whole": _part(whole) | {"contract": operator_context(whole)["contract"] if parts else ""},
        "op": f"{spec.name}_saving" if forward else spec.name,
        "forward_import": _import(forward) if forward else "",
        "made_spec": made,
        "besides": besides,
        "results": results,
        "kept": [name for name in results if name in read],
        "define": _define,
        "made": partial(_made, laid),
        "returning": partial(_returning, laid),
        "laid_as_inputs": any("memory_format_of" in o.memory_format for o in laid.values()),
        "saved": saved,
        "unpacked": [t.name if t.name in saved else "_" for t in spec.inputs],
        "tuple": _tuple,
        "incoming": [*incoming, *(f"grad_{name}" for name in besides)],
        "returned": returned,
    }
    files = {f"{spec.name}_autograd.py": render("autograd.py.jinja", **context)}
    wanted = [t.name for t in spec.inputs if f"grad_{t.name}" in found]
    products = {dtype for part in parts if (dtype := part.multiplied)}
    if wanted and spec.accuracy:
        files[f"{spec.name}_gradients_accuracy.py"] = render(
            "gradients_accuracy.py.jinja",
            **_accuracy(spec, wanted, incoming, judged),
            multiplied=next(iter(sorted(products)), ""),
            ways=[_part(p.spec) | {"module": f"{p.folder}.{p.spec.name}_baseline"} for p in (forward, *parts)]
            if forward and not judged.convolves
            else [],
            convolves=judged.convolves,
            precision=spec.precision,
            rounded=[o.name for o in spec.outputs],
            any_order=any(not part.spec.deterministic for part in parts),
            called=any(CALLED in part.spec.reference for part in parts),
            finite=judged.finite,
        )
    return files


def _whole(spec: OperatorSpec, parts: Sequence[Derived], made: OperatorSpec) -> OperatorSpec:
    """All parts as one operator: every input of the forward, gradient of an output or result of the forward as it is
    `made` that a part reads."""
    read: dict[str, TensorSpec] = {}
    for part in parts:
        for tensor in part.spec.inputs:
            known = read.get(tensor.name)
            read[tensor.name] = tensor if known is None or known.role == "like" else known
    own = [t.name for t in spec.inputs]
    inputs = [t for n, t in read.items() if n not in own and n in {f"grad_{o.name}" for o in spec.outputs}]
    inputs += [read[n] for n in own if n in read]
    inputs += [t for n, t in read.items() if n in {o.name for o in made.outputs}]
    outputs = tuple(TensorSpec(f"grad_{t.name}", t.shape, t.dtype) for t in spec.inputs if _has(parts, t.name))
    return replace(spec, name=f"{spec.name}_gradients", inputs=tuple(inputs), outputs=outputs, constraints=())


def _has(parts: Sequence[Derived], name: str) -> bool:
    return any(name in p.gradients for p in parts)


def _part(spec: OperatorSpec) -> dict[str, Any]:
    count = len(spec.outputs)
    return {
        "spec": spec,
        "name": spec.name,
        "names": ", ".join(t.name for t in spec.inputs),
        "results": ", ".join(o.name for o in spec.outputs),
        "returns": "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]",
    }


def _import(part: Derived) -> str:
    module, name = f"{part.folder}.{part.spec.name}_triton", part.spec.name
    line = f"from {module} import {name}"
    return line if len(line) <= LINE else f"from {module} import (\n    {name},\n)"


def _define(name: str, spec: OperatorSpec, indent: int = 0) -> str:
    """The first line of a function with an operator's parameters, or its lines."""
    space, returns = " " * indent, _part(spec)["returns"]
    arguments = [f"{t.name}: torch.Tensor" for t in spec.inputs]
    line = f"{space}def {name}({', '.join(arguments)}) -> {returns}:"
    if len(line) <= LINE:
        return line
    inner = "".join(f"{space}    {a},\n" for a in arguments)
    return f"{space}def {name}(\n{inner}{space}) -> {returns}:"


def _returning(laid: Mapping[str, Layout], spec: OperatorSpec, call: str) -> str:
    """The end of an operator that returns what a call gives it, as the fake says that it lies."""
    listed = ", ".join(o.name for o in spec.outputs)
    given = ", ".join(laid[o.name].given(o.name) for o in spec.outputs)
    if given == listed:
        return fit(f"return {call}", 4)
    last = fit(f"return {given}", 4)
    return last if call == listed else f"{fit(f'{listed} = {call}', 4)}\n{last}"


def _made(laid: Mapping[str, Layout], spec: OperatorSpec) -> str:
    """The body of a fake: its outputs without their elements."""

    def empty(output: TensorSpec) -> str:
        expression = laid[output.name].memory_format
        return allocation(spec, output, "" if expression == CONTIGUOUS else expression)

    if len(spec.outputs) == 1:
        return fit(f"return {empty(spec.outputs[0])}", 4)
    lines = [fit(f"{o.name} = {empty(o)}", 4) for o in spec.outputs]
    return "\n".join([*lines, f"    return {', '.join(o.name for o in spec.outputs)}"])


def _tuple(names: Sequence[str]) -> str:
    """Names on the left of an assignment."""
    return ", ".join(names) if len(names) > 1 else f"({names[0]},)"


def _accuracy(
    spec: OperatorSpec,
    wanted: list[str],
    incoming: list[str],
    how: Judged,
) -> dict[str, Any]:
    own = {t.name: replace(t, role="scale") if t.name in how.finite else t for t in spec.inputs}
    gradients = tuple(TensorSpec(f"grad_{o.name}", o.shape, o.dtype) for o in spec.outputs)
    judged = replace(
        spec,
        inputs=(*gradients, *own.values()),
        outputs=tuple(TensorSpec(f"grad_{n}", own[n].shape, own[n].dtype) for n in wanted),
    )
    results = [o.name for o in spec.outputs]
    context = accuracy_context(judged, [f"grad_{n}" for n in how.uniform])
    context["operator"] |= {"rounded": dict.fromkeys(how.counted)}
    return {
        **context,
        "forward": ", ".join(own),
        "names": ", ".join(t.name for t in judged.inputs),
        "wanted": wanted,
        "terms": [f'"{name}"' for name in incoming],
        "wanted_gradients": ", ".join(f"grad_{n}" for n in wanted),
        "wanted_tuple": f"({_tuple(wanted)})" if len(wanted) > 1 else _tuple(wanted),
        "results": ", ".join(results),
        "results_tuple": results[0] if len(results) == 1 else f"({', '.join(results)})",
        "incoming_tuple": incoming[0] if len(results) == 1 else f"({', '.join(incoming)})",
    }

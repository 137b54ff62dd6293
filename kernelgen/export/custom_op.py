"""An operator as an installable package that registers it with torch.library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelgen.export.folder import read
from kernelgen.render import operator_context, render
from kernelgen.spec.model import ELLIPSIS, OPTION, SCALAR, OperatorSpec, TensorSpec
from kernelgen.spec.sizes import is_expression, names_in, renamed
from kernelgen.wrapper import CONTIGUOUS, Layout

NAMESPACE = "kernelgen"


def custom_op_files(
    kernel: str, spec: OperatorSpec, laid: Mapping[str, Layout], folder: Path, to: Path
) -> dict[Path, str]:
    """The files of the package: the kernels as they were generated in `folder`, their registration, and a test. `laid`:
    how outputs lie."""
    package = f"{spec.name}_op"
    own = [output for output in spec.outputs if output.into is None]  # torch lets none return what it was given
    context: dict[str, Any] = {
        **operator_context(spec),
        "mutated": f"({', '.join(map(json.dumps, spec.written))},)" if spec.written else "()",
        "results": ", ".join(output.name for output in own),
        "given": ", ".join(laid[output.name].given(output.name) for output in own),
        "laid_as_inputs": any("memory_format_of" in layout.memory_format for layout in laid.values()),
        "returns": _returns(len(own)),
        "called": ", ".join(output.name if output.into is None else "_" for output in spec.outputs),
        "namespace": NAMESPACE,
        "package": package,
        "description": json.dumps(spec.summary),
        "outputs": [_made(spec, output, laid[output.name]) for output in own],
        "examples": [_example(spec, tensor) for tensor in spec.inputs],
    }
    kernels = {"kernel.py": kernel, "__init__.py": render("custom_op.py.jinja", **context)}
    if spec.backward:
        kernels |= _differentiable(spec, folder)
    return {
        to / "pyproject.toml": render("custom_op_project.toml.jinja", **context),
        to / "README.md": render("custom_op_readme.md.jinja", **context),
        **{to / package / name: text for name, text in kernels.items()},
        to / "tests" / f"test_{spec.name}.py": render("custom_op_test.py.jinja", **context),
    }


def _returns(count: int) -> str:
    if count == 0:
        return "None"
    return "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]"


def _differentiable(spec: OperatorSpec, folder: Path) -> dict[str, str]:
    """NAME_autograd.py as the package itself, and the parts of the backward as modules of it, as the forward that saves
    what they read."""
    text = read(folder / f"{spec.name}_autograd.py")
    parts = re.findall(r"^from (forward|backward\w*)\.(\w+)_triton import", text, re.MULTILINE)
    text = text.replace(f"from {spec.name}_triton import", "from .kernel import")
    text = re.sub(r"^from (?:forward|backward\w*)\.(\w+)_triton import", r"from .\1 import", text, flags=re.MULTILINE)
    text = text.replace(f"from {spec.name}_autograd import", f"from {spec.name}_op import")
    return {"__init__.py": text, **{f"{name}.py": read(folder / at / f"{name}_triton.py") for at, name in parts}}


def _made(spec: OperatorSpec, output: TensorSpec, layout: Layout) -> dict[str, str]:
    """How the fake makes an output: shape, dtype and layout from the inputs."""
    always = [t for t in spec.tensors if not t.optional]
    same = next((t for t in always if t.dtype == output.dtype), None)
    alike = next((t for t in always if (t.dtype, t.shape) == (output.dtype, output.shape)), None)
    if alike is not None:
        made = f"torch.empty_like({alike.name}, memory_format={layout.memory_format})"
    else:
        entries = [_size(spec, entry) for entry in output.shape]
        shape = f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"
        dtype = "" if same is not None else f", dtype=torch.{output.dtype}"
        made = f"{(same or always[0]).name}.new_empty({shape}{dtype})"
        if layout.memory_format != CONTIGUOUS:
            made += f".to(memory_format={layout.memory_format})"
    return {"name": output.name, "made": made}


def _size(spec: OperatorSpec, entry: int | str) -> str:
    """An entry of an output's shape as it is read from an input."""
    if isinstance(entry, int):
        return str(entry)
    if is_expression(entry):
        return renamed(entry, {name: _size(spec, name) for name in names_in(entry)})
    tensor = next(t for t in spec.inputs if entry in t.shape)
    if entry == ELLIPSIS:
        i = tensor.shape.index(ELLIPSIS)
        return f"*{tensor.name}.shape" if len(tensor.shape) == 1 else f"*{tensor.name}.shape[{tensor.span(i, i)}]"
    return f"{tensor.name}.shape[{tensor.dim(tensor.shape.index(entry))}]"


def _example(spec: OperatorSpec, tensor: TensorSpec) -> str:
    """One input of the test, of the shape of the largest small case; the default of what is no tensor."""
    if tensor.role in (SCALAR, OPTION):
        return repr(tensor.default).replace("'", '"')
    case = max(spec.accuracy, key=lambda case: (_elements(spec, case) < 4096) * _elements(spec, case))
    shape, dtype = case.shape(tensor.shape), case.dtype(tensor.dtype)
    if dtype == "bool":
        return f"torch.rand({shape}, device=DEVICE) < 0.5"
    if "float" in dtype:
        return f"torch.randn({shape}, dtype=torch.{dtype}, device=DEVICE)"
    return f"torch.randint(0, 2, {shape}, dtype=torch.{dtype}, device=DEVICE)"


def _elements(spec: OperatorSpec, case: Any) -> int:
    total = 0
    for tensor in spec.inputs:
        count = 1
        for size in case.shape(tensor.shape):
            count *= size
        total += count
    return total

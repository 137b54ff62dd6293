"""What is wrong with a reference, with its place in the spec file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from kernelgen.errors import Mistake, SpecError, UnsupportedError
from kernelgen.frontend.graph import Atom
from kernelgen.frontend.reference import Reference
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.nearest import hint

SIZED_BY_VALUES = "a result whose size depends on values (return one of a fixed size and a mask)"
FROM_VALUE = "a Python number from a tensor's value (.item(), int() or float(); keep it a tensor)"


def at_place(spec: OperatorSpec, place: Any, message: str) -> SpecError:
    return SpecError([Mistake(spec.path, place.line, place.column, message)])


def mistake(spec: OperatorSpec, line: int | None, message: str) -> SpecError:
    return SpecError([_at(spec, line, message)])


def unsupported(spec: OperatorSpec, line: int | None, message: str) -> UnsupportedError:
    return UnsupportedError([_at(spec, line, f"unsupported: {message}")])


def _at(spec: OperatorSpec, line: int | None, message: str) -> Mistake:
    place = spec.reference_place
    return Mistake(spec.path, place.line + (line or 1) - 1, place.column, message)


def line_of(reference: Reference, node: Any) -> int | None:
    found = re.findall(rf'File "{re.escape(reference.file)}", line (\d+)', node.meta.get("stack_trace") or "")
    return int(found[-1]) if found else None


def raised_at(error: BaseException, file: str) -> int | None:
    trace_back, line = error.__traceback__, None
    while trace_back is not None:
        if trace_back.tb_frame.f_code.co_filename == file:
            line = trace_back.tb_lineno
        trace_back = trace_back.tb_next
    return line


def named(text: str, symbols: Mapping[Any, Atom]) -> str:
    """A text of torch's with the spec's names in place of torch's symbols for sizes."""
    for symbol, name in symbols.items():
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", str(name), text)
    return text


def failed(spec: OperatorSpec, reference: Reference, error: BaseException, symbols: Mapping[Any, Atom]) -> SpecError:
    """What torch reports of a reference that it cannot trace, in the words of the spec."""
    line, said = raised_at(error, reference.file), named(first_line(error), symbols)
    dependent = re.search(r"data-dependent expression (.*?) \(unhinted", said)
    if dependent and re.fullmatch(r"\w+", dependent[1]):
        return unsupported(spec, line, FROM_VALUE)
    if dependent:
        return unsupported(
            spec, line, "a branch on the values of a tensor (use torch.where, which selects per element)"
        )
    if re.search(r"different devices|not on the expected device|to wrong device", said):
        said = "a tensor is created on the CPU, whatever device the inputs are on; pass device=x.device"
    if "not linked with support for" in said or "No CUDA GPUs" in said or "NVIDIA driver" in said:
        said = "it names a device; a reference runs on the device of its inputs: remove .cuda() and .to(device)"
    if "not supported for tensor subclasses" in said:
        said = f"{said.split()[0]} leaves torch; a reference may only call torch"
    if "must divide the number of heads" in said:
        said = "the shapes do not show that key heads divide query heads; write the latter as 4 * H, or both as numbers"
    if "a fake tensor in the exported program" in said:
        said = "it uses a tensor that the trace cannot follow (such as .data; write .detach())"
    if said.count(")") > said.count("("):  # torch opens with what is cut off here
        said = said.removesuffix(")")
    unknown = re.search(r"(?:module '([\w.]+)'|'FakeTensor' object) has no attribute '(\w+)'", said)
    if unknown:
        said = _no_attribute(*unknown.groups())
    return mistake(spec, line, f"the reference fails: {said}{even_hint(said)}")


def _no_attribute(module: str | None, name: str) -> str:
    import torch

    owner = {"torch": torch, "torch.nn.functional": torch.nn.functional}.get(module or "", torch.Tensor)
    public = [word for word in dir(owner) if not word.startswith("_")]
    near = hint(name, public) if difflib.get_close_matches(name, public, n=1, cutoff=0.75) else ""
    return f"{module or 'a tensor'} has no attribute '{name}'{near}"


def even_hint(message: str) -> str:
    """The advice that a message deserves in which a size is divided by a number."""
    shown = re.search(r"\b([A-Za-z]\w*)(?: \+ \d+\))?//(\d+)|Mod\(([A-Za-z]\w*), (\d+)\)", message)
    if not shown:
        return ""
    name, factor = shown[1] or shown[3], shown[2] or shown[4]
    return f" (if {name} is always a multiple of {factor}, write it as {factor} * {name} in the shapes of the spec)"


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

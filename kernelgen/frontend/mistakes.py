"""What is wrong with a reference, with its place in the spec file."""

from __future__ import annotations

import re
from typing import Any

from kernelgen.errors import Mistake, SpecError, UnsupportedError
from kernelgen.frontend.reference import Reference
from kernelgen.spec.model import OperatorSpec


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


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

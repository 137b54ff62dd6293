"""Inputs that are numbers: arguments of a kernel, which reads none of them from memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from kernelgen.tile import ir

_T = TypeVar("_T")


def with_numbers(kernel: ir.Kernel, passed: Mapping[str, str]) -> ir.Kernel:
    """The kernel with some of its inputs as numbers that a launch passes: by their names, each with the wrapper's
    expression for it."""
    if not passed:
        return kernel
    pointers = {f"{name}_ptr": name for name in passed}
    arguments = tuple(
        replace(a, name=pointers[a.name], kind="number", host=passed[pointers[a.name]]) if a.name in pointers else a
        for a in kernel.arguments
    )
    return replace(kernel, arguments=arguments, body=_passed(kernel.body, passed.keys()))


def _passed(node: _T, names: Collection[str]) -> _T:
    """Statements or expressions that read numbers by their names."""
    found: Any = node
    if isinstance(node, tuple):
        parts = (_passed(part, names) for part in node)
        found = tuple(part for part in parts if not _says_nothing(part))
    elif isinstance(node, ir.Load) and node.pointer.tensor in names:
        found = ir.Name(node.pointer.tensor)
    elif is_dataclass(node) and not isinstance(node, ir.Axis | type):
        found = replace(node, **{f.name: _passed(getattr(node, f.name), names) for f in fields(node)})
    return found  # type: ignore[no-any-return]


def _says_nothing(part: object) -> bool:
    """Whether a variable is assigned to itself."""
    return isinstance(part, ir.Let) and isinstance(part.value, ir.Name) and part.names == (part.value.text,)

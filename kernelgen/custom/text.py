"""What the `_triton.py` of a proposed kernel prints: its device code as it was checked, and a wrapper of ours."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from typing import Any

from kernelgen.custom.expressions import parse
from kernelgen.custom.form import Answer, Launch, declared_sizes, rank
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import OperatorSpec
from kernelgen.wrapper import allocation, guard, own_names, size_places

WIDTH = 88
"""Columns of generated files."""


@dataclass(frozen=True)
class LaunchText:
    """One launch as the template prints it."""

    kernel: str
    grid: str
    arguments: tuple[str, ...]


def file_context(spec: OperatorSpec, answer: Answer) -> dict[str, Any]:
    """The variables of the template `custom.py.jinja` beyond what every generated file prints of a spec."""
    writer = _Writer(spec, answer)
    idea = answer.idea[:1].upper() + answer.idea[1:]
    return {
        "idea": textwrap.wrap(idea if idea.endswith(".") else f"{idea}.", WIDTH) if idea else [],
        "kernels": answer.kernels.strip("\n"),
        "copied": [t.name for t in spec.inputs if t.role != "like" and t.name not in facts_of(spec).contiguous],
        "outputs": [(t.name, allocation(spec, t)) for t in spec.outputs],
        "sizes": writer.sizes(),
        "scratch": writer.scratch(),
        "launches": [writer.launch(one) for one in answer.launches],
        "guard": guard(spec),
        "grid": own_names(spec, [name for name, _ in (*answer.sizes, *writer.scratch())])["grid"],
    }


def check_file(text: str, spec: OperatorSpec, answer: Answer) -> None:
    """The file is a docstring, three imports, the very functions that were checked, and two of ours.

    Anything else would be a fault of the template, and code that nobody checked.
    """
    head, *rest = ast.parse(text).body
    imports, functions = rest[:3], rest[3:]
    assert isinstance(head, ast.Expr)
    assert isinstance(head.value, ast.Constant)
    assert [ast.unparse(n) for n in imports] == ["import torch", "import triton", "import triton.language as tl"]
    wanted = [ast.dump(n) for n in ast.parse(answer.kernels).body]
    assert [ast.dump(n) for n in functions[:-2]] == wanted, "the kernels are not those that were checked"
    assert [n.name for n in functions[-2:] if isinstance(n, ast.FunctionDef)] == ["check_inputs", spec.name]


class _Writer:
    """Expressions of an answer in the wrapper's words."""

    def __init__(self, spec: OperatorSpec, answer: Answer) -> None:
        self._spec, self._answer = spec, answer
        self._tensors = {t.name: rank(t) for t in (*spec.inputs, *spec.outputs)}
        self._names = {*declared_sizes(spec), *(name for name, _ in answer.sizes)}
        self._used: set[str] = set()

    def sizes(self) -> list[tuple[str, str]]:
        """The declared sizes that something uses, then the answer's own."""
        own = [(name, self._written(value)) for name, value in self._answer.sizes]
        self.scratch()
        for one in self._answer.launches:
            self.launch(one)
        places = size_places(self._spec)
        return [(name, places[name]) for name in declared_sizes(self._spec) if name in self._used] + own

    def scratch(self) -> list[tuple[str, str]]:
        """Scratch memory with the call that makes it: filled each time, so nothing lives on from call to call."""
        device = f"{self._spec.inputs[0].name}.device"
        made = []
        for s in self._answer.scratch:
            shape = f"({', '.join(self._written(e) for e in s.shape)}{',' if len(s.shape) == 1 else ''})"
            fill = repr(s.fill) if s.dtype.startswith(("float", "bfloat")) else repr(int(s.fill))
            made.append((s.name, f"torch.full({shape}, {fill}, dtype=torch.{s.dtype}, device={device})"))
        return made

    def launch(self, one: Launch) -> LaunchText:
        """Constexprs stand in the grid as the numbers or expressions that they are."""
        values = {name: self._written(value) for name, value in one.constexprs}
        grid = [_replaced(self._written(entry, *values), values) for entry in one.grid]
        scratch = {s.name for s in self._answer.scratch}
        arguments = [a if a in self._tensors or a in scratch else self._written(a) for a in one.arguments]
        arguments += [f"{name}={value}" for name, value in values.items()]
        arguments += [f"num_warps={one.num_warps}", f"num_stages={one.num_stages}"]
        return LaunchText(one.kernel, f"({', '.join(grid)}{',' if len(grid) == 1 else ''})", tuple(arguments))

    def _written(self, text: str, *extra: str) -> str:
        found = parse(text, self._names | set(extra), self._tensors, floats=True)
        self._used |= found.names
        return found.text


def _replaced(text: str, values: dict[str, str]) -> str:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(values[node.id], mode="eval").body if node.id in values else node

    return ast.unparse(Replace().visit(ast.parse(text, mode="eval")))

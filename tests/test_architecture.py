"""The import rule of docs/architecture.md and the size of modules and functions, read from the source text."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelgen.families import FAMILIES

PACKAGE = Path(__file__).parent.parent / "kernelgen"

DOCUMENT = PACKAGE.parent / "docs" / "architecture.md"


def read_table(document: str) -> dict[str, set[str]]:
    """Whom each room may import, from the rows `| rooms | job | may import |`: what the row names, and its own rooms."""
    table: dict[str, set[str]] = {}
    for rooms, _, allowed in re.findall(r"^\| (`[^|]+`) \|([^|]*)\| ([^|]+) \|$", document, re.MULTILINE):
        names = {name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", rooms)} - {"templates"}
        said = set(table) if allowed == "all above" else set(re.findall(r"\w+", allowed))
        table |= dict.fromkeys(names, said | names)
    return table


ANYONE = {"collecting", "errors", "files", "lifeline", "outcomes"}
"""Rooms that every room but the judge may import."""

MAY_IMPORT = read_table(DOCUMENT.read_text("utf-8"))

HEAVY = {"torch", "triton", "openai", "jinja2", "pydantic", "numpy"}
"""What costs too long to import for `kernelgen --help`."""

MAX_LINES, FUNCTION_LINES = 600, 60


@dataclass(frozen=True)
class Import:
    """One name that a module imports; `name` is dotted and absolute."""

    name: str
    line: int
    top_level: bool
    """Runs when the module is imported: outside functions and `if TYPE_CHECKING`."""

    @property
    def room(self) -> str | None:
        """The room of kernelgen it reaches; None: another package, or kernelgen itself."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "kernelgen" and len(parts) > 1 else None


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


tree_of = functools.cache(ast.parse)


@functools.cache
def imports(module: str, source: str, is_package: bool = False) -> list[Import]:
    """Every import in the source, relative ones made absolute."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found: list[Import] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.extend(Import(f"{stem}.{alias.name}", node.lineno, top) for alias in node.names)
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inner = inner and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree_of(source), True)
    return found


def rule_breaks(module: str, source: str, is_package: bool = False) -> list[str]:
    """One line for each import that the table forbids."""
    room = room_of(module)
    if room == "":
        allowed = {"api"}
    elif room not in MAY_IMPORT:
        return [f"{module}: the room {room!r} is not in the table"]
    elif room == "judge":
        return _judge_breaks(module, source, is_package)
    else:
        allowed = MAY_IMPORT[room] | ANYONE | {room}
    return [
        f"{module}:{i.line}: {room} may not import {i.room}"
        for i in imports(module, source, is_package)
        if i.room and i.room not in allowed and i.room != "__version__"
    ]


def _judge_breaks(module: str, source: str, is_package: bool) -> list[str]:
    travels = {*sys.stdlib_module_names, "torch", "triton"}
    return [
        f"{module}:{i.line}: the judge travels alone and may not import {i.name}"
        for i in imports(module, source, is_package)
        if i.name.split(".")[0] not in travels and i.room != "judge"
    ]


def sources() -> Iterator[tuple[str, str, bool]]:
    """(module name, text, is a package) of every module of kernelgen."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["kernelgen", *path.relative_to(PACKAGE).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package


MODULES = {name: (text, is_package) for name, text, is_package in sources()}


def reached(start: str, modules: dict[str, tuple[str, bool]]) -> dict[str, list[Import]]:
    """The modules of kernelgen that importing `start` runs, each with its top-level imports."""
    seen: dict[str, list[Import]] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        while name not in modules and "." in name:  # `from kernelgen.errors import SpecError` names no module
            name = name.rpartition(".")[0]
        if name in seen or name not in modules:
            continue
        seen[name] = [i for i in imports(name, *modules[name]) if i.top_level]
        waiting += [i.name for i in seen[name]] + [name.rpartition(".")[0]]
    return seen


def heavy_imports(start: str, modules: dict[str, tuple[str, bool]]) -> list[str]:
    return [
        f"{name}:{i.line}: imports {i.name}"
        for name, found in sorted(reached(start, modules).items())
        for i in found
        if i.name.split(".")[0] in HEAVY
    ]


def long_functions(module: str, source: str) -> list[str]:
    return [
        f"{module}:{node.lineno}: {node.name} has {length} lines"
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]


def import_cycles(modules: dict[str, tuple[str, bool]]) -> list[list[str]]:
    """Modules that import one another when they are imported, each group in alphabetical order."""

    def reached_from(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in edges[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    edges = {
        name: {_module(i.name, modules) for i in imports(name, *source) if i.top_level} - {None, name}
        for name, source in modules.items()
    }
    beyond = {name: reached_from(name) for name in edges}
    groups = {tuple(sorted(n for n in beyond[name] if name in beyond[n])) for name in edges if name in beyond[name]}
    return sorted(map(list, groups))


def _module(name: str, modules: dict[str, tuple[str, bool]]) -> str | None:
    """The module that a dotted name stands in."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name if name in modules else None


def asked_by_name(module: str, source: str, is_package: bool = False) -> list[str]:
    """Attributes of kernelgen's own modules that are asked for by a string, and any attribute in rooms that decide."""
    tree = tree_of(source)
    own = {i.name.rpartition(".")[2] for i in imports(module, source, is_package) if i.name in MODULES}
    return [
        f"{module}:{call.lineno}: {ast.unparse(call)}"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("getattr", "hasattr")
        and (
            ast.unparse(call.args[0]) in own or (room_of(module) in DECLARED and isinstance(call.args[1], ast.Constant))
        )
    ]


DECLARED = {"backends", "families", "plan", "schedule", "strategies", "tile", "wrapper"}
"""Rooms whose interfaces are declared: nothing there is looked for by name."""


def variants_by_name(module: str, source: str) -> list[str]:
    """Comparisons of a variant with the text of its name, which its descriptor has."""
    known = {variant.name for family in FAMILIES.values() for variant in family.every}
    found = []
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Compare) and "variant" in ast.unparse(node):
            texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
            found += [f"{module}:{node.lineno}: {ast.unparse(node)}"] if texts & known else []
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_what_the_table_allows(module: str) -> None:
    assert rule_breaks(module, *MODULES[module]) == []


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    assert set(MAY_IMPORT) == {room_of(module) for module in MODULES} - {""}


def test_the_table_is_read_as_it_is_meant() -> None:
    rows = ["| room | job | may import |", "|---|---|---|", "| `spec/` | reads | – |", "| `a.py`, `b/` | do | spec |"]
    rows += ["| `cli/` | prints | all above |"]
    assert read_table("\n".join(rows)) == {
        "spec": {"spec"},
        "a": {"spec", "a", "b"},
        "b": {"spec", "a", "b"},
        "cli": {"spec", "a", "b", "cli"},
    }


def test_help_reaches_nothing_heavy() -> None:
    assert heavy_imports("kernelgen.cli", MODULES) == []


def test_no_module_imports_one_that_imports_it() -> None:
    assert import_cycles(MODULES) == []


def test_interfaces_are_declared() -> None:
    assert [line for name, source in MODULES.items() for line in asked_by_name(name, *source)] == []


def test_variants_are_known_by_their_descriptors() -> None:
    assert [line for name, (text, _) in MODULES.items() for line in variants_by_name(name, text)] == []


def test_modules_are_short() -> None:
    lines = {name: text.count("\n") for name, (text, _) in MODULES.items()}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


def test_only_backends_and_templates_write_triton() -> None:
    rooms = ("kernelgen.families", "kernelgen.tile", "kernelgen.schedule", "kernelgen.wrapper")
    assert [n for n, (text, _) in MODULES.items() if n.startswith(rooms) and re.search(r"\btl\.", text)] == []


def test_functions_are_short() -> None:
    assert [line for name, (text, _) in MODULES.items() for line in long_functions(name, text)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernelgen.spec.load", "from kernelgen.plan import Plan"),
        ("kernelgen.spec.load", "from kernelgen import plan"),
        ("kernelgen.spec.load", "from ..plan import Plan"),
        ("kernelgen.spec.load", "def late():\n    import kernelgen.optimization"),
        ("kernelgen.evaluate", "from kernelgen.judge import compare"),
        ("kernelgen.judge.timing", "from kernelgen.errors import UsageError"),
        ("kernelgen.judge.timing", "def late():\n    import numpy"),
        ("kernelgen.newroom", "import os"),
        ("kernelgen", "from kernelgen.cli import main"),
    ],
)
def test_the_rule_can_be_broken(module: str, source: str) -> None:
    assert len(rule_breaks(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernelgen.families.row", "from kernelgen.plan import Plan\nfrom . import space\nimport torch"),
        ("kernelgen.judge.timing", "import math, torch, triton.language\nfrom .compare import pair"),
        ("kernelgen.cli.app", "from kernelgen import __version__\nfrom kernelgen.errors import KernelgenError"),
    ],
)
def test_the_rule_lets_right_imports_pass(module: str, source: str) -> None:
    assert rule_breaks(module, source) == []


def test_a_heavy_import_is_found_through_other_modules() -> None:
    modules = {
        "kernelgen": ("", True),
        "kernelgen.cli": ("from kernelgen.cli.app import main", True),
        "kernelgen.cli.app": ("def late():\n    import triton\nfrom kernelgen.plan import Plan", False),
        "kernelgen.plan": ("if TYPE_CHECKING:\n    import openai\nimport torch.nn", False),
    }
    assert heavy_imports("kernelgen.cli", modules) == ["kernelgen.plan:3: imports torch.nn"]


def test_a_long_function_is_found() -> None:
    assert long_functions("m", "def f():\n" + "    pass\n" * FUNCTION_LINES) == ["m:1: f has 61 lines"]
    assert long_functions("m", "def f():\n" + "    pass\n" * (FUNCTION_LINES - 1)) == []


def test_a_cycle_is_found() -> None:
    modules = {
        "kernelgen": ("", True),
        "kernelgen.a": ("from kernelgen.b import one", False),
        "kernelgen.b": ("from kernelgen import c", False),
        "kernelgen.c": ("import kernelgen.a", False),
        "kernelgen.d": ("from kernelgen import a", False),
        "kernelgen.e": ("def late():\n    from kernelgen import e, d", False),
    }
    assert import_cycles(modules) == [["kernelgen.a", "kernelgen.b", "kernelgen.c"]]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernelgen.families.row", "def f(x):\n    return getattr(x, 'notes', None)"),
        ("kernelgen.render", "from kernelgen.families import pointwise\nhasattr(pointwise, 'notes')"),
    ],
)
def test_what_is_asked_by_name_is_found(module: str, source: str) -> None:
    assert len(asked_by_name(module, source)) == 1


def test_a_variant_by_name_is_found() -> None:
    source = "if schedule.variant in ('row', 'rows') or schedule.variant == ROW.name:\n    pass"
    assert len(variants_by_name("kernelgen.wrapper.launch", source)) == 1
    assert variants_by_name("kernelgen.wrapper.launch", "kind == 'row' or schedule.variant == PROPOSED") == []

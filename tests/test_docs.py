"""The documents say what is so: excerpts are the committed files' text, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from kernelgen import families, frontend
from kernelgen.cli import app
from kernelgen.families.family import Family, Variant
from kernelgen.families.kernel import body_of
from kernelgen.frontend.aten import supported
from kernelgen.plan import KernelPlan, Schedule
from kernelgen.settings import Settings
from kernelgen.spec import parse_spec
from kernelgen.tile import ir

REPO = Path(__file__).parent.parent
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]

EXCERPT = re.compile(r"<!-- excerpt of (\S+) -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A block of lines that stand in a file, the first named in a comment above it."""


def excerpts(document: str) -> list[tuple[str, str]]:
    """The file and the text of every excerpt."""
    return [(name, text.strip("\n")) for name, text in EXCERPT.findall(document)]


def is_part(text: str, of: str) -> bool:
    """The text is whole lines of the file, and not nothing."""
    return bool(text) and f"\n{text}\n" in f"\n{of}\n"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_excerpts_are_the_files_text(path: Path) -> None:
    text = path.read_text("utf-8")
    found = excerpts(text)
    assert len(found) == text.count("<!-- excerpt of")
    for name, excerpt in found:
        assert is_part(excerpt, (REPO / name).read_text("utf-8")), f"{path.name}: {name} has no such lines:\n{excerpt}"


def test_the_readme_shows_a_spec_a_kernel_and_a_log() -> None:
    shown = {Path(name).suffix for name, _ in excerpts((REPO / "README.md").read_text("utf-8"))}
    assert {".yaml", ".py", ".md"} <= shown


def test_the_site_and_the_wheel_have_every_page() -> None:
    pages = {path.name for path in DOCUMENTS[1:]}
    site = (REPO / "docs" / "mkdocs.yml").read_text("utf-8")
    assert set(re.findall(r"([\w.]+\.md)", site.partition("nav:")[2])) - {"index.md", "README.md"} >= pages
    assert {
        name
        for name in pages
        if f'"docs/{name}" = "kernelgen/docs/{name}"' not in (REPO / "pyproject.toml").read_text()
    } == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path: Path) -> None:
    commands = options_by_command()
    for line in re.findall(r"(?:^ {4,}|`)kernelgen ([a-z][^`#\n]*)", path.read_text("utf-8"), re.MULTILINE):
        name, *words = line.split()
        assert name in commands, f"{path.name}: kernelgen {line}"
        assert {word for word in words if word.startswith("--")} <= commands[name], f"{path.name}: kernelgen {line}"


def test_the_readme_names_every_command_and_setting() -> None:
    text = (REPO / "README.md").read_text("utf-8")
    assert [name for name in options_by_command() if f"| `{name}" not in text] == []
    settings = [name.replace("_", "-") for name in Settings.__dataclass_fields__]
    assert [name for name in settings if name not in text] == []


@cache
def options_by_command() -> dict[str, set[str]]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: {"--help", *(o for p in found.params for o in p.opts)} for name, found in commands.items()}


def test_an_excerpt_that_is_no_longer_so_is_noticed() -> None:
    document = "<!-- excerpt of a.py -->\n```python\nx = 1\ny = 2\n```\n"
    assert excerpts(document) == [("a.py", "x = 1\ny = 2")]
    assert is_part("x = 1\ny = 2", "w\nx = 1\ny = 2\nz\n")
    assert not is_part("x = 1\ny = 2", "w\nx = 1\ny = 22\nz\n")
    assert not is_part("", "x\n")


def test_the_benchmark_page_is_made_from_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REPO / "docs" / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    measure = importlib.import_module("measure")
    data = json.loads((folder / "h200.json").read_text("utf-8"))
    page = (folder / "README.md").read_text("utf-8")
    assert page == measure.table(data), "python docs/benchmarks/measure.py --table; a changed kernel is marked there"
    assert (folder / "h200.svg").read_text("utf-8") == measure.chart(data)
    assert (folder / "anchors.svg").read_text("utf-8") == measure.chart(measure.anchored(data))


@pytest.mark.parametrize("name", ["kernelbench", "kernelbench_level2", "kernelbench_level3"])
def test_the_page_of_kernelbench_is_made_from_its_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REPO / "docs" / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    data = json.loads((folder / f"{name}.json").read_text("utf-8"))
    page = importlib.import_module("kernelbench").page(data)
    assert page == (folder / f"{name}.md").read_text("utf-8"), "python docs/benchmarks/kernelbench.py"


def test_the_page_of_convolutions_says_what_their_first_schedules_are_today(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REPO / "docs" / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    data = json.loads((folder / "convolutions.json").read_text("utf-8"))
    page = importlib.import_module("convolutions").page(data)
    assert page == (folder / "convolutions.md").read_text("utf-8"), "python docs/benchmarks/convolutions.py --table"


def test_the_list_of_operations_is_whole() -> None:
    text = (REPO / "docs" / "spec.md").read_text("utf-8")
    listed = text.split("### Operations", 1)[1].split("##", 1)[0].split(":", 1)[1]
    assert [name.strip() for name in listed.replace("\n", " ").split(",")] == supported()


def blocks(heading: str, language: str) -> list[str]:
    """The blocks of code in a language below a heading of the guide."""
    text = (REPO / "docs" / "adding.md").read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


GENERATED_AND_RIGHT = """
import runpy, sys
from pathlib import Path
from kernelgen import generation
from kernelgen.spec import load_spec

made = generation.new(load_spec(Path(sys.argv.pop())), Path("operators"))
sys.path.insert(0, str(made.folder))
runpy.run_path(made.folder / f"{made.folder.name}_accuracy.py", run_name="__main__")
"""


def generated(spec: str, folder: Path, package: Path) -> str:
    """The kernel of a spec by a copy of kernelgen, where its accuracy test has passed."""
    name = spec.split()[1]
    (folder / f"{name}.yaml").write_text(spec, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", GENERATED_AND_RIGHT, f"{name}.yaml"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " 0 failed" in ran.stdout
    return (folder / "operators" / name / f"{name}_triton.py").read_text("utf-8")


def test_the_operator_of_the_guide_is_generated_and_right(tmp_path: Path) -> None:
    assert "x * 2" in generated(*blocks("An operator", "yaml"), tmp_path, REPO)


def test_the_family_of_the_guide_is_one_module_and_one_name(tmp_path: Path) -> None:
    package = tmp_path / "kernelgen"
    shutil.copytree(REPO / "kernelgen", package, ignore=shutil.ignore_patterns("__pycache__"))
    module, names = blocks("A family", "python")
    (spec,) = blocks("A family", "yaml")
    (package / "families" / "resident.py").write_text(module, encoding="utf-8")
    model = package / "spec" / "model.py"
    text, count = re.subn(r"^FAMILIES = \([^)]*\)\n", names, model.read_text("utf-8"), flags=re.MULTILINE)
    assert count == 1
    assert names.replace('    "resident",\n', "") in (REPO / "kernelgen" / "spec" / "model.py").read_text("utf-8")
    model.write_text(text, encoding="utf-8")
    kernel = generated(spec, tmp_path, tmp_path)
    assert "for block_start in range(first, n_elements, PROGRAMS * BLOCK_SIZE):" in kernel
    for source, how in ((kernel, ["--isolated"]), (module, [])):
        ruff = [sys.executable, "-m", "ruff", "format", "--diff", *how, "--stdin-filename", str(REPO / "a.py"), "-"]
        said = subprocess.run(ruff, input=source, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout


def test_the_epilogue_operation_of_the_guide_is_one_rule(tmp_path: Path) -> None:
    package = tmp_path / "kernelgen"
    shutil.copytree(REPO / "kernelgen", package, ignore=shutil.ignore_patterns("__pycache__"))
    (rule,), (spec,) = blocks("An epilogue operation", "python"), blocks("An epilogue operation", "yaml")
    with (package / "frontend" / "elementary.py").open("a", encoding="utf-8") as module:
        module.write(rule)
    kernel = generated(spec, tmp_path, tmp_path)
    assert "entropy = " in kernel
    assert kernel.count("@triton.jit\ndef linear_entropy") >= 3  # by pointers, by boxes, split


def test_the_backend_of_the_guide_prints_a_product_that_is_right() -> None:
    (module,) = blocks("A backend", "python")
    backend: dict[str, Any] = {"__name__": "stepped"}
    exec(compile(module, "stepped.py", "exec"), backend)
    (text,) = blocks("An epilogue operation", "yaml")
    said = text.replace("gates = torch.sigmoid(F.linear(x, weight))", "").replace(
        "torch.special.entr(gates)", "torch.abs(F.linear(x, weight)) * 0.5"
    )
    spec = parse_spec(said, "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    schedule = Schedule.make("tiles", BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, GROUP_M=2, num_warps=4, swap=True)
    assert isinstance(plan, KernelPlan)
    (kernel,) = families.family_of(plan).kernels(spec, body_of(plan), schedule, "stepped_kernel")
    assert isinstance(kernel, ir.Kernel)
    printed: dict[str, Any] = {}
    exec(compile(f"{backend['PRELUDE']}\n{backend['source'](kernel)}", "printed.py", "exec"), printed)
    x, weight, out = torch.randn(7, 33), torch.randn(19, 33), torch.empty(7, 19)
    sizes = {"M": 7, "N": 19, "K": 33, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 2, "PRECISION": None}
    host = {"x": x, "weight": weight, "out": out, **sizes}
    given = {a.name: eval(a.host, dict(host)) for a in kernel.arguments} | {n: sizes[n] for n, _ in kernel.constexprs}
    given = {name: value.view(-1) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    for program in range(2):
        printed["stepped_kernel"](program, **given)
    torch.testing.assert_close(out, torch.abs(x @ weight.T) * 0.5)


def test_every_field_of_a_family_is_in_the_guide() -> None:
    page = (REPO / "docs" / "adding.md").read_text("utf-8")
    guide = page[page.index("## A family\n") : page.index("One that is whole:")]
    of_family, of_variant = [field.name for field in fields(Family)], [field.name for field in fields(Variant)]
    needed = of_family.index("prepared")
    listed = [*of_family[:needed], *of_variant, *of_family[needed:]]
    assert re.findall(r"^\| `(\w+)", guide, re.MULTILINE) == listed


def test_every_shipped_spec_without_gradients_is_listed_with_a_reason() -> None:
    page = (REPO / "docs/spec.md").read_text(encoding="utf-8")
    listed = page[page.index("these have no `backward: true`") :].replace("\\_", "_")
    groups = ("quantize_", "dequantize_")
    for path in (REPO / "specs").glob("*.yaml"):
        if "backward: true" not in path.read_text(encoding="utf-8") and not path.stem.startswith(groups):
            assert path.stem.removesuffix("_atomic") in listed, path.stem

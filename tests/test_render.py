"""Generated files: formatted, clean, the same every time, nothing written twice, and as in tests/golden/."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernelgen import families, frontend, generation, render
from kernelgen.families import (
    cooperative,
    matmul,
    partials,
    plane_schedules,
    pointwise,
    reduction,
    row_lanes,
    scan,
    scan_look_back,
    scatter,
    selection,
)
from kernelgen.families.kernel import body_of
from kernelgen.families.line import fit
from kernelgen.plan import Plan, Schedule, TableRow
from kernelgen.schedule import problem
from kernelgen.schedule.problem import Problem
from kernelgen.spec import load_spec, parse_spec, shipped_specs

SPECS = {path.stem: path for path in shipped_specs()}
OTHERS = Path(__file__).parent / "specs"
GOLDEN = Path(__file__).parent / "golden"
OPERATORS = Path(__file__).parent.parent / "operators"


@cache
def plan_of(name: str) -> Plan:
    spec = load_spec(SPECS.get(name) or OTHERS / f"{name}.yaml")
    return generation.lowered(spec)


def structures(plan: Plan) -> Iterator[Schedule]:
    """A schedule for every text that a kernel of the plan can have; the caches are told of both loads and stores or of
    neither, which are texts of their own."""
    for variant in families.family_of(plan).variants(body_of(plan)):
        default = families.family_of(plan).default(variant)
        alone = plan.with_table((TableRow((), default),))
        free = {p.name: p for p in families.space(alone, 0, ()) if p.kind == "structure"}
        caches = [p for name in ("loads", "stores") if (p := free.pop(name, None)) is not None]
        for told, *values in itertools.product((0, -1), *([p.choices[0], p.choices[-1]] for p in free.values())):
            changes = {p.name: p.choices[told] for p in caches} | dict(zip(free, values, strict=True))
            if variant != "planes" or not plane_schedules.refusal(default.replace(**changes)):
                yield default.replace(**changes)


def ruff(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    return found.stdout + found.stderr


def check_format(plan: Plan, folder: Path) -> None:
    """Every file of a spec, and every structure of every kernel beside the first."""
    for file, text in render.quartet(plan).items():
        if file.endswith(".py"):
            (folder / file).write_text(text, encoding="utf-8")
    for i, schedule in enumerate(structures(plan)):
        table = (TableRow((("row_bytes", 1024),), schedule), plan.table[-1])
        (folder / f"structure_{i}.py").write_text(render.triton_source(plan.with_table(table)), encoding="utf-8")
    assert ruff(folder, "format", "--isolated", "--diff", "-q") == ""
    assert "All checks passed!" in ruff(folder, "check", "--isolated", "--select", "E4,E7,E9,F,B,UP,C4,PIE")


def check_texts(plan: Plan) -> None:
    """No file says when or where it was made, and no kernel computes anything twice."""
    for text in render.quartet(plan).values():
        assert not re.search(r"\b20\d\d-\d\d|\d\d:\d\d:\d\d", text)
        assert str(Path.home()) not in text
        assert os.getcwd() not in text
    for schedule in structures(plan):
        assert repeated(render.triton_source(plan.with_table((TableRow((), schedule),)))) == []


def check_table(plan: Plan) -> None:
    """The first table serves every case; what may be searched belongs to the schedules and to a strategy of the spec."""
    for one in (*plan.spec.accuracy, *plan.spec.performance):
        row = plan.table[families.row_of(plan, one)]
        assert families.problem_of(plan, one).fits(row)
    assert problem.mistake(plan.table) is None
    for i, row in enumerate(plan.table):
        for parameter in families.space(plan, i, plan.spec.performance):
            assert parameter.name in dict(row.schedule.values)
            assert parameter.strategy in plan.spec.optimization_strategies


QUICK = {
    *("attention_window", "bincount", "broadcast", "cat", "conv3d_bias", "cumsum_sequence", "dequantize_int8_rows"),
    *("embedding_bag", "gelu_erf", "kv_cache_write", "linear_softmax", "matmul", "pad", "router_biased", "scatter_add"),
}
"""Cheap ones, of every family at least one; that the others' text is as it was, `kernelgen new --check` sees."""


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SPECS])
def test_what_a_shipped_spec_becomes(name: str, tmp_path: Path) -> None:
    """One test, because tracing the spec is what takes time."""
    plan = plan_of(name)
    check_texts(plan)
    check_table(plan)
    check_format(plan, tmp_path)


@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "pad"])
def test_what_is_rendered_is_the_same_every_time(name: str) -> None:
    first = render.quartet(plan_of(name))
    spec = load_spec(SPECS.get(name) or OTHERS / f"{name}.yaml")
    graph, notes = frontend.trace(spec)
    assert frontend.trace(spec) == (graph, notes)
    assert render.quartet(families.lower(spec, graph, notes)) == first
    assert list(first) == [f"{name}_{p}.py" for p in ("triton", "baseline", "accuracy", "performance")] + [
        "definition.md"
    ]


def repeated(source: str) -> list[str]:
    """Arithmetic that stands twice in one block of a kernel on the same values. Offsets, masks and what is computed of
    sizes alone are cheap."""
    found = []
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or "jit" not in ast.unparse(function.decorator_list):
            continue
        for block in [function.body, *(n.body for n in ast.walk(function) if isinstance(n, ast.For))]:
            counts: Counter[str] = Counter()
            for statement in block:
                if isinstance(statement, ast.Assign | ast.Expr):
                    parts = [n for n in computed(statement.value) if isinstance(n, ast.BinOp | ast.Call)]
                    counts.update(
                        ast.unparse(n)
                        for n in parts
                        # 2**14 is computed by nobody, and H - 1 once, as one number of all lanes
                        if any(isinstance(part, ast.Name) and not part.id.isupper() for part in ast.walk(n))
                        and not re.search(
                            r"barrier|stride|arange|program_id|tl.zeros|tl.full|^float\(|\bN\b|_ptr|mask|cols|rows|pixels"
                            r"|\b(tap|ks|start|BATCH|part|batch|lengths)\b|tl\.cast\(batch|\b(\w+_)?[hw]\b",
                            ast.unparse(n),
                        )
                    )
                if isinstance(statement, ast.Assign):  # what reads the variable from now on is another value
                    names = [n.id for n in ast.walk(statement.targets[0]) if isinstance(n, ast.Name)]
                    target = rf"\b({'|'.join(names)})\b"
                    for text in [n for n, count in counts.items() if count == 1 and re.search(target, n)]:
                        del counts[text]
            found += [text for text, count in counts.items() if count > 1]
    return found


def computed(node: ast.AST) -> Iterator[ast.AST]:
    """An expression and all in it, short of where loads and stores go and of what they leave out."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "tl.store"):
        children = [*node.args[1:], *(k.value for k in node.keywords if k.arg != "mask")]
    for child in children:
        yield from computed(child)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("tl.exp(x) + 1", "tl.exp(x) * 2", ["tl.exp(x)"]),
        ("tl.load(p + g * 4)", "tl.load(q + g * 4)", []),
        ("tl.load(p, mask=a & (g < 2 * d))", "tl.load(q, mask=b & (g < 2 * d))", []),
        ("tl.load(p, other=g * 4)", "tl.load(q, other=g * 4)", ["g * 4"]),
        ("tl.load(p)", "1 + tl.load(p)", ["tl.load(p)"]),
        ("tl.minimum(x, H - 1)", "tl.minimum(y, H - 1)", []),
    ],
)
def test_repetitions_would_be_found(first: str, second: str, found: list[str]) -> None:
    assert repeated(f"@triton.jit\ndef k():\n    a = {first}\n    b = {second}\n") == found


WALK = plane_schedules.default().replace(
    BLOCK_SIZE_M=4, BLOCK_SIZE_N=64, ROW_TILES=14, lines="kept", accesses="single", specialize=True
)
LANES = WALK.replace(
    BLOCK_SIZE_M=1,
    BLOCK_SIZE_N=128,
    ROW_TILES=7,
    num_warps=1,
    lines="ahead",
    lane_columns=2,
    accesses="wide",
)
EARLY = LANES.replace(BLOCK_SIZE_M=4, BLOCK_SIZE_N=64, lane_columns=8, unroll=True, LINES_AHEAD=5)
GOLDENS = {
    "pointwise_tile": ("bias_add", (TableRow((), pointwise.default("tile")),)),
    "calls": ("any_window", (TableRow((), pointwise.default("tile")),)),
    "boxes": ("linear_softmax", (TableRow((), matmul.FAMILY.default("boxes")),)),
    "by_parts": ("linear_gelu", (TableRow((), matmul.FAMILY.default("split")),)),
    "several": ("sequence_log_probs", (TableRow((), reduction.default("row")),)),
    "planes": ("depthwise_conv3x3", (TableRow((), WALK),)),
    "lanes": ("max_pool2d", (TableRow((), LANES),)),
    "early": ("depthwise_conv3x3", (TableRow((), EARLY),)),
    "row_lanes": ("avg_pool1d", (TableRow((), row_lanes.default()),)),
    "pointwise_flat": ("gelu_tanh", (TableRow((), pointwise.default("flat")),)),
    "reduction": (
        "layer_norm",
        (TableRow((("row_bytes", 4096),), reduction.default("row")), TableRow((), reduction.default("looped"))),
    ),
    "split": (
        "group_norm",
        (TableRow((("row_bytes", 4096),), reduction.default("row")), TableRow((), reduction.default("split"))),
    ),
    "split_across": ("rms_norm", (TableRow((), reduction.default("split")),)),
    "cooperative": (
        "softmax",
        (TableRow((("row_bytes", 65536),), reduction.default("row")), TableRow((), cooperative.default())),
    ),
    "partials": ("mse_loss", (TableRow((), partials.default(whole=2)),)),
    "columns": ("rms_norm_channels", (TableRow((), reduction.default("columns")),)),
    "twice": ("cross_entropy", (TableRow((), reduction.default("looped")),)),
    "scan": (
        "masked_cumsum",
        (TableRow((("row_bytes", 4096),), scan.default("rows")), TableRow((), scan.default("looped"))),
    ),
    "scan_columns": ("cumsum_sequence", (TableRow((), scan.default("columns")),)),
    "split_scan": ("reverse_cumsum", (TableRow((), scan.default("split")),)),
    "held_scan": ("cumsum_long", (TableRow((), scan_look_back.default()),)),
    "scatter": ("index_add", (TableRow((), scatter.default("buckets")),)),
    "selection": (
        "topk",
        (TableRow((("row_bytes", 4096),), selection.default("rows")), TableRow((), selection.default("looped"))),
    ),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_kernels_are_as_a_person_last_read_them(name: str) -> None:
    """KERNELGEN_GOLDEN=write rewrites the files: read them before they are committed."""
    spec, table = GOLDENS[name]
    text = render.triton_source(plan_of(spec).with_table(table))
    path = GOLDEN / f"{name}.py"
    if os.environ.get("KERNELGEN_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


LONG = (
    f"mask={'a' * 20}[:, None] & {'b' * 20}[None, :] & ({'c' * 15} >= 0)[:, None] & (d < P)[:, None]",
    f"[tl.cast({'a' * 20}, tl.int32), tl.cast({'b' * 20}, tl.int32), tl.cast(c, tl.int32), first_row, 0]",
    f"{'a' * 30}_ptr + {'b' * 20} * stride_b + {'c' * 20} * stride_c",
)


@pytest.mark.parametrize(
    "line",
    [
        # a sum in brackets at the end is no tuple
        f"total = {'a' * 20}[:, None] + ({'b' * 20}[:, None] + {'c' * 30})",
        f"{', '.join('a' * 20 + c for c in 'bcdef')} = _split_8({'a' * 20})",
        f"M = {'a' * 19}.shape[0] * {'a' * 19}.shape[2] * {'a' * 19}.shape[3]",
        f"M = {'a' * 15}.shape[0] * {'a' * 15}.shape[2] * {'a' * 15}.shape[3]",
    ],
)
def test_a_long_line_is_broken_as_ruff_format_breaks_it(line: str, tmp_path: Path) -> None:
    line = fit(line, 4)
    (tmp_path / "long.py").write_text(f"def run():\n{line}\n", encoding="utf-8")
    assert ruff(tmp_path, "format", "--isolated", "--diff", "-q") == ""


@pytest.mark.parametrize(
    ("name", "short"), [("attention_varlen", "cu_seqlens_q"), ("attention_paged_decode", "block_table")]
)
def test_a_look_at_elements_is_laid_out_as_ruff_format_has_it(name: str, short: str, tmp_path: Path) -> None:
    text = SPECS[name].read_text("utf-8").replace(short, f"{short}_of_every_sequence")
    text = re.sub(r"(offsets|below): [^,}]+", r"\g<0>, checked: true", text)
    plan = generation.lowered(parse_spec(text))
    (tmp_path / "checked.py").write_text(render.triton_source(plan), encoding="utf-8")
    assert ruff(tmp_path, "format", "--isolated", "--diff", "-q") == ""


@pytest.mark.parametrize("argument", LONG)
@pytest.mark.parametrize("indent", [4, 8])
def test_an_argument_too_long_for_a_line_is_broken_as_ruff_format_breaks_it(
    argument: str, indent: int, tmp_path: Path
) -> None:
    lines = fit(f"key = load({argument}, other=0.0).reshape(BLOCK_M, BLOCK_D)", indent)
    head = "".join(f"{' ' * i}if True:\n" for i in range(0, indent, 4))
    (tmp_path / "long.py").write_text(f"{head}{lines}\n", encoding="utf-8")
    assert ruff(tmp_path, "format", "--isolated", "--diff", "-q") == ""


def test_functions_of_a_reference_stand_two_lines_apart() -> None:
    source = "def half(x):\n    return x / 2\n# the operator\ndef op(x):\n    return half(x)\n"
    spaced = render.environment().filters["spaced"](source)
    assert spaced == "def half(x):\n    return x / 2\n\n\n# the operator\ndef op(x):\n    return half(x)"


SEVERAL = (
    TableRow((("rows", 8),), reduction.default("looped")),
    TableRow((("row_bytes", 4096), ("rows", 64)), reduction.default("row").replace(num_warps=8)),
    TableRow((("row_bytes", 4096),), reduction.default("row")),
    TableRow((), reduction.default("looped").replace(BLOCK_SIZE_N=4096)),
)


@pytest.mark.parametrize("name", ["softmax", "sequence_log_probs"])
def test_a_table_of_several_sizes_is_printed_with_a_column_for_each(name: str, tmp_path: Path) -> None:
    plan = plan_of(name).with_table(SEVERAL)
    text = render.triton_source(plan)
    (tmp_path / "several.py").write_text(text, encoding="utf-8")
    assert ruff(tmp_path, "format", "--isolated", "--diff", "-q") == ""
    if name != "softmax":
        return
    table = text[text.index("# Each entry: maximum bytes of a row and rows (None: no limit)") :]
    scope = {f"softmax_{kind}kernel": kind for kind in ("", "row_", "looped_")}
    exec(table[: table.index("def check_inputs")], scope)
    pick = scope["pick_schedule"]
    assert callable(pick)
    for row_bytes, rows in ((4096, 8), (2**30, 8), (4096, 9), (4096, 64), (4096, 65), (4097, 64), (1, 1)):
        sizes = Problem((("row_bytes", row_bytes), ("rows", rows)))
        chosen = SEVERAL[problem.row_of(SEVERAL, sizes)].schedule
        assert pick(row_bytes, rows)[1]["num_warps"] == chosen["num_warps"]
        assert pick(row_bytes, rows)[1].get("BLOCK_SIZE_N") == chosen.get("BLOCK_SIZE_N")
    assert "kernel, options = pick_schedule(N * out.element_size(), M)" in text


ODD = re.compile(
    r"\bwalks\b|\bwalked in\b|\bwalk (it|them)\b|naming what|what lies|a line serves|one after the other|held against|"
    r"\b(rows?|columns|once) a (program|row|thread|call)\b|never changes|whatever order|so often"
)
"""What a reviewer of a kernel has to decode, with the field's word for it: loops over, raises if, global memory, per."""


def test_generated_text_has_the_terms_of_the_field() -> None:
    files = [p for name in ("*.py", "definition.md") for p in (*OPERATORS.rglob(name), *GOLDEN.glob(name))]
    assert {f"{p}: {odd[0]}" for p in files if (odd := ODD.search(p.read_text("utf-8")))} == set()

"""Shipped operators, compiled ahead of time for sm_90: wide loads and stores, and nothing spilled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from kernelgen import devices, families, frontend, render
from kernelgen.backward import backward
from kernelgen.outcomes import StaticFacts
from kernelgen.plan import KernelPlan, TableRow
from kernelgen.spec import load_spec, parse_spec, shipped_specs
from kernelgen.worker.client import Worker
from kernelgen.worker.protocol import facts_from_json

SPECS = {path.stem: path for path in shipped_specs()}

# one shape for every line of the first tables: rows in registers, short and long, and rows walked in blocks
SHAPES = {
    "softmax": [(16384, 1024), (16384, 4096), (512, 131072)],
    "layer_norm": [(16384, 1024), (16384, 4096), (64, 65536)],
    "bias_add": [(8192, 4096)],
    "gelu_tanh": [(8192, 4096)],
    "cumsum": [(65536, 1024), (16384, 4096), (4096, 16384)],
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("ahead")
    with Worker("compile", {"TRITON_CACHE_DIR": str(folder / "triton")}, folder) as worker:
        yield worker


def compiled(worker: Worker, folder: Path, name: str) -> dict[str, StaticFacts]:
    """The facts of a spec's kernel, the last of several, at the shapes above, or at those that it is timed at."""
    return dict(launched(worker, folder, name))


def launched(worker: Worker, folder: Path, name: str) -> list[tuple[str, StaticFacts]]:
    """The same of all kernels, in the order of their launches."""
    spec = load_spec(SPECS[name])
    graph, notes = frontend.trace(spec)
    path = folder / f"{name}_triton.py"
    path.write_text(render.triton_source(families.lower(spec, graph, notes)), encoding="utf-8")
    cases = []
    for shape in SHAPES.get(name, ()):
        for dtype in dict(spec.dtypes)["T"]:
            inputs = [[shape if "..." in t.shape else shape[-1:], dtype] for t in spec.inputs]
            cases.append({"label": f"{shape} {dtype}", "inputs": inputs})
    for case in spec.performance if name not in SHAPES else ():
        inputs = [[case.shape(t.shape), case.dtype(t.dtype)] for t in spec.inputs]
        cases.append({"label": case.label, "inputs": inputs})
    facts = asdict(devices.find("cpu", "sm_90").facts)
    result = worker.call("compile", {"path": str(path), "function": name, "device": facts, "cases": cases}, 300)
    return [(label, facts_from_json(data)) for label, data in result["facts"]]


def test_what_a_wrapper_checks_of_its_elements_is_left_out(compiler: Worker, tmp_path: Path) -> None:
    """Tensors without memory have none."""
    text = SPECS["embedding"].read_text(encoding="utf-8").replace("below: V", "below: V, checked: true")
    path = tmp_path / "embedding_triton.py"
    path.write_text(
        render.triton_source(families.lower(spec := parse_spec(text, "embedding.yaml"), *frontend.trace(spec)))
    )
    case = {"label": "", "inputs": [[(100, 256), "float16"], [(40,), "int64"]]}
    facts = asdict(devices.find("cpu", "sm_90").facts)
    call = {"path": str(path), "function": "embedding", "device": facts, "cases": [case]}
    assert len(compiler.call("compile", call, 300)["facts"]) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_the_default_schedules_load_16_bytes_a_thread_and_spill_nothing(
    compiler: Worker, tmp_path: Path, name: str
) -> None:
    found = compiled(compiler, tmp_path, name)
    assert len(found) == len(SHAPES[name]) * len(dict(load_spec(SPECS[name]).dtypes)["T"])
    for label, facts in found.items():
        assert (facts.load_bytes, facts.store_bytes) == (16, 16), label
        assert facts.spill_bytes == 0, label
        assert facts.occupancy > 0, label


BEYOND = """
name: dilated
summary: windows that reach beyond a row of sixteen
inputs:
  - {name: x, shape: [M, N], dtype: T}
outputs:
  - {name: out, shape: [M, N - 13], dtype: T}
dtypes: {T: [float16]}
constraints: ["x.shape[1] >= 14"]
reference: |
  def dilated(x):
      return F.max_pool1d(x, 8, stride=1, padding=4, dilation=3)
accuracy:
  shapes: [{M: 3, N: 33}]
performance:
  shapes: [{M: 12288, N: 65536}]
"""


def test_no_infinity_beyond_a_row_is_a_constant_of_the_machine_code(tmp_path: Path) -> None:
    """A maximum of {-inf, x} as two halves of a word, the first a constant, gave inf (ptxas 12.8 and 13.1, sm_90)."""
    spec, path, cache = parse_spec(BEYOND, "dilated.yaml"), tmp_path / "dilated_triton.py", tmp_path / "cache"
    path.write_text(render.triton_source(families.lower(spec, *frontend.trace(spec))), encoding="utf-8")
    facts = asdict(devices.find("cpu", "sm_90").facts)
    case = {"label": "", "inputs": [[(528, 16), "float16"]]}
    with Worker("compile", {"TRITON_CACHE_DIR": str(cache)}, tmp_path) as worker:
        worker.call("compile", {"path": str(path), "function": "dilated", "device": facts, "cases": [case]}, 300)
    (ptx,) = cache.rglob("dilated_kernel.ptx")
    text = ptx.read_text(encoding="utf-8")
    assert "max.NaN.f16x2" in text  # elements are still compared in pairs
    halves = [-1024, -1024 * 2**16 + 0xFC00]  # of one element, and of two
    assert not [line for line in text.splitlines() if any(line.endswith(f" {half};") for half in halves)]


def test_random_masks_leave_loads_and_stores_wide(compiler: Worker, tmp_path: Path) -> None:
    for label, facts in compiled(compiler, tmp_path, "dropout").items():
        assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (16, 16, 0), label


@pytest.mark.parametrize(
    "name", ["transpose", "channels_last", "reverse_dims", "permute_heads", "embedding", "split_heads"]
)
def test_what_moves_elements_reads_and_writes_16_bytes_a_thread(compiler: Worker, tmp_path: Path, name: str) -> None:
    (facts,) = compiled(compiler, tmp_path, name).values()
    assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (16, 16, 0)


def test_selections_load_16_bytes_a_thread_and_stay_in_registers(compiler: Worker, tmp_path: Path) -> None:
    for label, facts in compiled(compiler, tmp_path, "topk").items():
        assert (facts.load_bytes, facts.spill_bytes) == (16, 0), label


@pytest.mark.parametrize("name", ["cumprod", "cumsum_long"])
def test_scans_of_pairs_and_of_parts_of_rows_stay_in_registers(compiler: Worker, tmp_path: Path, name: str) -> None:
    found = launched(compiler, tmp_path, name)
    stores = [facts.store_bytes for _, facts in found]
    assert stores == ([4, 16] if name == "cumsum_long" else [16]) * len(load_spec(SPECS[name]).performance)
    for label, facts in found:
        assert (facts.load_bytes, facts.spill_bytes) == (16, 0), label


def test_rows_that_elements_are_added_to_stay_in_registers(compiler: Worker, tmp_path: Path) -> None:
    """Of 16 bytes is what starts them."""
    for label, facts in compiled(compiler, tmp_path, "scatter_add").items():
        assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (16, 16, 0), label
    for label, facts in compiled(compiler, tmp_path, "scatter_add_atomic").items():
        assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (16, 16, 0), label


def test_rows_that_are_added_are_read_and_written_in_16_bytes_a_thread(compiler: Worker, tmp_path: Path) -> None:
    for label, facts in compiled(compiler, tmp_path, "index_add").items():
        assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (16, 16, 0), label


@pytest.mark.parametrize(("name", "loads", "stores"), [("depthwise_conv3x3", 16, 16), ("max_pool2d", 16, 8)])
def test_lanes_of_several_columns_read_their_blocks_at_once(
    compiler: Worker, tmp_path: Path, name: str, loads: int, stores: int
) -> None:
    """Eight columns of half precision are 16 bytes, and so is what four are pooled from."""
    for label, facts in compiled(compiler, tmp_path, name).items():
        if "float32" not in label:
            assert (facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (loads, stores, 0), label


DILATED = (
    ("F.avg_pool1d(x, kernel_size=8, stride=1, padding=4)", "F.max_pool1d(x, 8, stride=1, padding=4, dilation=3)"),
    ("L + 1]", "L - 13]"),
    ("L: 1}", "L: 14}"),
    ("reference: |", "constraints:\n  - x.shape[2] >= 14\nreference: |"),
)


@pytest.mark.parametrize(("changes", "blocks"), [((), 3), (DILATED, 7)])
def test_lanes_of_a_row_read_their_blocks_at_once_where_rows_of_the_result_have_an_odd_length(
    compiler: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[tuple[str, str], ...], blocks: int
) -> None:
    """Two lanes a thread; what is written lies across accesses."""
    text = SPECS["avg_pool1d"].read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "avg_pool1d.yaml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setitem(SPECS, "avg_pool1d", path)
    found = compiled(compiler, tmp_path, "avg_pool1d")
    assert len(found) == 2
    for label, facts in found.items():
        size = 4 if "float32" in label else 2
        assert (facts.loads, facts.load_bytes, facts.store_bytes, facts.spill_bytes) == (2 * blocks, 4 * size, size, 0)


@pytest.mark.parametrize("name", ["attention_window", "attention_alibi"])
def test_float32_attention_of_heads_of_128_keeps_to_its_registers(compiler: Worker, tmp_path: Path, name: str) -> None:
    """What spills has local memory for every thread that a GPU may run at once: 1 KB of it are 280 MB of an H100."""
    spec = load_spec(SPECS[name])
    for length in (40, 4096):
        facts = of_attention(compiler, tmp_path, families.lower(spec, *frontend.trace(spec)), "float32", length)
        assert facts.spill_bytes <= 600


def test_two_programs_fit_an_sm_where_products_run_beside_exponentials(compiler: Worker, tmp_path: Path) -> None:
    """Weights of a block before stay in registers for that; heads of 128 leave the least room."""
    spec = load_spec(SPECS["attention_causal"])
    plan = families.lower(spec, *frontend.trace(spec))
    assert isinstance(plan, KernelPlan)
    plan = plan.with_table((TableRow((), families.family_of(plan).default("overlapped")),))
    facts = of_attention(compiler, tmp_path, plan, "float16", 4096)
    assert facts.spill_bytes == 0
    assert facts.occupancy == 2 * facts.num_warps / 64


def of_attention(compiler: Worker, folder: Path, plan: families.LoweredPlan, dtype: str, length: int) -> StaticFacts:
    """The facts of its one kernel, for two heads of 128."""
    path = folder / f"{plan.spec.name}_triton.py"
    path.write_text(render.triton_source(plan), encoding="utf-8")
    sizes = {"B": 1, "H": 2, "S": length, "D": 128}
    inputs = [[[sizes[str(s)] for s in t.shape], dtype] for t in plan.spec.inputs]
    arguments = {"path": str(path), "function": plan.spec.name, "device": asdict(devices.find("cpu", "sm_90").facts)}
    result = compiler.call("compile", {**arguments, "cases": [{"label": "", "inputs": inputs}]}, 300)
    ((_, data),) = result["facts"]
    return facts_from_json(data)


@pytest.mark.parametrize(("dtype", "head"), [("float32", 64), ("float32", 128), ("float32", 129), ("float16", 129)])
def test_gradients_of_attention_keep_to_their_registers(
    compiler: Worker, tmp_path: Path, dtype: str, head: int
) -> None:
    """Of heads whose size is no number in the spec. Causal ones of 129 in float16 spill 80 bytes a thread, not 3.5 KB; in
    float32 both parts of what is multiplied are in registers."""
    spec = load_spec(SPECS["attention_causal"])
    sizes = {"B": 1, "H": 2, "S": 40, "D": head}
    parts = [part for part in backward(spec, frontend.trace(spec)[0]).parts if part.gradients]
    for part in parts:
        name = part.spec.name
        path = tmp_path / f"{name}_triton.py"
        plan = families.lower(part.spec, *frontend.trace(part.spec))
        assert plan.family == "attention_backward"
        path.write_text(render.triton_source(plan), encoding="utf-8")
        inputs = [
            [[sizes.get(str(s), 1) for s in t.shape], dtype if t.dtype == "T" else t.dtype] for t in part.spec.inputs
        ]
        arguments = {"path": str(path), "function": name, "device": asdict(devices.find("cpu", "sm_90").facts)}
        result = compiler.call("compile", {**arguments, "cases": [{"label": name, "inputs": inputs}]}, 300)
        (facts,) = (facts_from_json(data) for _, data in result["facts"])
        assert facts.spill_bytes <= (80 if dtype == "float16" else 950)
    assert parts


def test_a_product_is_not_fused_with_its_split_into_tf32_parts(tmp_path: Path) -> None:
    """Where a * b overflows, the part that is left of it is a * b - inf: NaN, which Triton leaves out of the sum, or
    minus infinity as one FMA, which made NaN of infinite sums (H200, gradients of ALiBi)."""
    spec, cache = load_spec(SPECS["attention_alibi"]), tmp_path / "cache"
    parts = [part.spec for part in backward(spec, frontend.trace(spec)[0]).parts if part.gradients]
    facts, sizes = asdict(devices.find("cpu", "sm_90").facts), {"B": 1, "H": 2, "S": 130, "D": 40}
    with Worker("compile", {"TRITON_CACHE_DIR": str(cache)}, tmp_path) as worker:
        for part in parts:
            path = tmp_path / f"{part.name}_triton.py"
            path.write_text(render.triton_source(families.lower(part, *frontend.trace(part))), encoding="utf-8")
            inputs = [[[sizes.get(str(s), 1) for s in t.shape], "float32"] for t in part.inputs]
            case = {"label": part.name, "inputs": inputs}
            worker.call("compile", {"path": str(path), "function": part.name, "device": facts, "cases": [case]}, 300)
    found = list(cache.rglob("*_kernel.ptx"))
    assert len(found) == len(parts) == 2
    for ptx in found:
        text = ptx.read_text(encoding="utf-8")
        high = set(re.findall(r"cvt\.rna\.tf32\.f32 (%r\d+),", text))
        minus = {to for to, of in re.findall(r"neg\.f32 \t(%r\d+), (%r\d+);", text) if of in high}
        fused = set(re.findall(r"fma\.rn\.f32 \t%r\d+, %r\d+, %r\d+, (%r\d+);", text))
        assert high
        assert not minus & fused

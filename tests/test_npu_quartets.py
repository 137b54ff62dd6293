"""Quartets for an NPU without its compiler: what is written, what is refused, and the simulated NPU."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from kernelgen import families, frontend, generation, render
from kernelgen.ascend.largest import largest_line
from kernelgen.cli import lowered
from kernelgen.devices import find
from kernelgen.errors import SpecError
from kernelgen.families.line import fit
from kernelgen.families.npu.held import row_elements
from kernelgen.plan import Plan
from kernelgen.spec import load_spec, shipped_specs

SPECS = {path.stem: path for path in shipped_specs()}

BROADCAST = """\
name: broadcast_npu
summary: Expand a low-dimensional tensor to the shape of a high-dimensional one.
inputs:
  - {name: x,    shape: [..., D], dtype: T, role: like}
  - {name: bias, shape: [D],      dtype: T}
outputs:
  - {name: out,  shape: [..., D], dtype: T}
dtypes: {T: [float32]}
constraints:
  - x.is_npu and bias.is_npu
  - x.ndim >= 1
  - x.shape[-1] == bias.numel()
  - x.is_contiguous() and bias.is_contiguous()
reference: |
  def broadcast_npu(x, bias):
      return bias.expand(x.shape).contiguous()
accuracy:
  shapes:
    - {...: [3], D: 33}
performance:
  shapes:
    - {...: [3], D: 33}
"""


def plan_of(name: str) -> Plan:
    chip = generation.chip_of(find("npu", "ascend910b3"))
    assert chip is not None
    graph, notes = frontend.trace(load_spec(SPECS[name]))
    return families.retarget(families.lower(load_spec(SPECS[name]), graph, notes), chip)


@pytest.mark.parametrize("name", ["relu", "softmax", "pad", "sum_dim0", "cumsum", "kl_div", "dropout"])
def test_one_program_a_core_walks_tiles_in_int32(name: str, tmp_path: Path) -> None:
    source = render.triton_source(plan_of(name))
    assert "tl.num_programs(0)" in source
    assert "num_cores()" in source
    assert "2**30" in source
    kernels = source.partition("SCHEDULES")[0]
    for other in ("int64", "num_warps", "eviction_policy", "cache_modifier", "num_stages"):
        assert other not in kernels
    path = tmp_path / "kernel.py"
    path.write_text(source)
    assert (
        subprocess.run([sys.executable, "-m", "ruff", "format", "--check", "--isolated", path], check=False).returncode
        == 0
    )


def test_a_mask_stays_an_interval() -> None:
    """Where elements must not be read their place is moved; the mask is that of the tile alone."""
    source = render.triton_source(plan_of("pad"))
    assert "x = tl.load(x_ptr + x_offsets, mask=mask)" in source
    assert "x = tl.where(x_within, x, 0.5)" in source


@pytest.mark.parametrize(
    ("name", "held"),
    [("softmax", 16384), ("log_softmax", 16384), ("rms_norm", 8192), ("layer_norm", 4096), ("argmax", 8192),
     ("quantize_int8_rows", 8192), ("cross_entropy", 16384), ("cumsum", 16384)],
)  # fmt: skip
def test_a_row_is_held_whole_as_long_as_the_buffer_takes_it(name: str, held: int) -> None:
    """In every dtype alike: the table counts float32, which all are computed in. `docs/ascend_rows.py` has what the
    compiler says."""
    plan = plan_of(name)
    *_, row, walked = plan.table
    assert (row.schedule.variant, row.limit("row_bytes")) == ("row", 4 * held)
    assert (walked.schedule.variant, walked.limit("row_bytes")) == ("looped", None)
    assert plan.chip is not None
    assert families.family_of(plan).fits(plan.body, plan.chip, row.schedule, held) is None
    assert families.family_of(plan).fits(plan.body, plan.chip, row.schedule, held + 1) is not None
    assert "pick_schedule(N * 4)" in render.triton_source(plan)
    for case in plan.spec.accuracy:
        assert families.problem_of(plan, case)["row_bytes"] == 4 * families.columns(plan, case)


def test_the_line_of_the_largest_load() -> None:
    """What is named where a buffer overflows: rows times columns count, a row's own number does not."""
    source = render.triton_source(plan_of("layer_norm"))
    tile = {"BLOCK_SIZE_M": 4, "BLOCK_SIZE_N": 1024}
    shown = source.splitlines()
    assert shown[largest_line(source, "layer_norm_kernel", tile) - 1].strip() == "x = tl.load("
    assert shown[largest_line(source, "layer_norm_kernel", {}) - 1].startswith("def layer_norm_kernel(")


def test_a_smaller_buffer_holds_shorter_rows() -> None:
    plan = plan_of("softmax")
    assert plan.chip is not None
    half = replace(plan.chip, buffer_bytes=plan.chip.buffer_bytes // 2)
    assert row_elements(plan.body, half) == row_elements(plan.body, plan.chip) // 2


def test_a_tile_is_as_large_as_the_buffer_allows() -> None:
    """The table's tiles grow no further than what is planned for, and another chip has other tiles."""
    plan = plan_of("softmax")
    for row in plan.table:
        assert plan.chip is not None
        assert families.family_of(plan).fits(plan.body, plan.chip, row.schedule, 64) is None
    assert "for start in range" not in render.triton_source(plan.with_table(plan.table[:1]))


def test_what_the_rows_leave_is_reduced_by_one_program() -> None:
    """In blocks, of any number of rows, in half of the buffer; also of none, which no driver launches."""
    plan = plan_of("cross_entropy")
    assert plan.then is not None
    (row,) = plan.then.table
    assert row.schedule.variant == "looped"
    assert 4 * 4 * row.schedule.int("BLOCK_SIZE_N") * 2 <= 196608  # two loads with two buffers and two accumulators
    source = render.triton_source(plan)
    finish = source.partition("def cross_entropy_finish_kernel(")[2].partition("@")[0]
    assert "# one program reduces the per-row results of the previous kernel\n    loss_sum_acc" in finish
    assert "count_acc += row_counts" in finish
    assert "cross_entropy_finish_kernel[(1,)](" in source
    assert "grid = (max(min(M, num_cores()), 1),)" in source
    assert "M > 2**30 or " in source


def test_a_dtype_that_the_compiler_lacks_is_refused() -> None:
    with pytest.raises(SpecError, match=r"quantize_fp8\.yaml:8:5: unsupported on this chip: out is float8_e4m3fn"):
        plan_of("quantize_fp8")


def test_a_family_without_kernels_for_it_is_refused() -> None:
    with pytest.raises(SpecError, match=r"topk\.yaml:\d+:\d+: unsupported on this chip: the family selection"):
        plan_of("topk")
    with pytest.raises(SpecError, match=r"bincount\.yaml:\d+:\d+: unsupported on this chip: the family scatter"):
        plan_of("bincount")
    with pytest.raises(
        SpecError, match=r"cumprod\.yaml:\d+:\d+: unsupported on this chip: cumulative products of floats"
    ):
        plan_of("cumprod")


def test_random_bits_are_made_of_products_of_sixteen() -> None:
    """triton-ascend takes tl.umulhi for the product of signed numbers, and compares no unsigned ones."""
    source = render.triton_source(plan_of("dropout"))
    assert "_multiply_high(a, 0xD2511F53)" in source
    assert "keep = _random_mask(seed, offsets, 3865470566)" in source
    assert "tl.randint4x" not in source


MASK_OF_NO_TENSOR = """\
name: masked_outer
summary: The row sums of an outer product of which some elements are left out.
inputs:
  - {name: x, shape: [A], dtype: T}
  - {name: y, shape: [B], dtype: T}
  - {name: seed, shape: [], dtype: int64}
outputs:
  - {name: out, shape: [A], dtype: T}
dtypes: {T: [float32]}
reference: |
  def masked_outer(x, y, seed):
      keep = random_mask(seed, (x.shape[0], y.shape[0]), 0.5)
      return torch.where(keep, x[:, None] * y, 0.0).sum(-1)
accuracy: {shapes: [{A: 5, B: 129}]}
performance: {shapes: [{A: 512, B: 512}]}
"""


def test_a_mask_larger_than_every_tensor_is_bounded_as_well(tmp_path: Path) -> None:
    """Its elements are numbered in int32."""
    path = tmp_path / "masked_outer.yaml"
    path.write_text(MASK_OF_NO_TENSOR)
    folder = generation.new(load_spec(path), tmp_path, chip=generation.chip_of(find("npu", "ascend910b3"))).folder
    source = (folder / "masked_outer_triton.py").read_text()
    assert "if M * N > 2**30 or any(t.numel() > 2**30 for t in (x, y, seed, out)):" in source
    assert "M * N > 2**30" not in render.triton_source(plan_of("bias_dropout_add"))


def test_what_numbers_elements_is_int32_from_the_start() -> None:
    """Loaded so once, and not cast at each of its three uses."""
    source = render.triton_source(plan_of("embedding"))
    assert "index = tl.load(index_ptr + rows, mask=row_mask).to(tl.int32)" in source
    assert "out_within = (index >= 0)[:, None] & (index < V)[:, None]" in source
    assert "target = tl.load(target_ptr + row).to(tl.int32)" in render.triton_source(plan_of("cross_entropy_rows"))


def test_a_long_condition_is_broken_between_its_terms() -> None:
    line = f"within = ({'a' * 40} >= 0)[:, None] & ({'b' * 40} < V)[:, None] & (c < V)[:, None]"
    shown = fit(line, 4)
    assert ast.dump(ast.parse(line)) == ast.dump(ast.parse(textwrap.dedent(shown)))
    assert all(len(one) <= 88 for one in shown.splitlines())


def test_a_tile_that_is_turned_is_square() -> None:
    """The compiler turns it in the buffer, which takes many times the tile."""
    (row,) = plan_of("channels_last").table
    assert row.schedule["BLOCK_SIZE_M"] * row.schedule["BLOCK_SIZE_N"] <= 1024
    assert row.schedule["BLOCK_SIZE_M"] >= 16


def test_the_folder_remembers_its_chip(tmp_path: Path) -> None:
    """`new --check` renders what was written, without being told the target again."""
    spec = load_spec(SPECS["relu"])
    generation.new(spec, tmp_path, chip=generation.chip_of(find("npu", "ascend910b3")))
    assert generation.stale(spec, tmp_path) == ()
    assert "num_cores" in (tmp_path / "relu" / "relu_triton.py").read_text()


def test_an_operator_whose_gradient_it_has_no_kernels_for_is_made_alone(tmp_path: Path) -> None:
    spec = load_spec(SPECS["gather"])
    folder = generation.new(spec, tmp_path, chip=generation.chip_of(find("npu", "ascend910b3"))).folder
    source = (folder / "gather_triton.py").read_text().replace("\n", " ")
    assert "Without gradients; the gradient of x: unsupported on this chip: the family scatter," in source
    assert not [path for path in folder.iterdir() if path.is_dir() or "autograd" in path.name]
    assert generation.stale(spec, tmp_path) == ()


def test_what_is_read_some_places_before_is_made_neutral_where_there_is_nothing() -> None:
    """A scan sees every lane, also those whose place was moved to the tensor's first element."""
    source = render.triton_source(plan_of("cumsum_exclusive"))
    row = source.partition("def cumsum_exclusive_row_kernel(")[2].partition("@")[0]
    assert "x_within = cols >= 1\n" in row
    assert "x = tl.where(x_within, x, 0.0)" in row


def test_check_says_that_a_quartet_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there is checked as it is."""
    monkeypatch.setattr("kernelgen.ascend.require", lambda: None)
    monkeypatch.setattr("kernelgen.cli.lowered._asked", lambda *_: ({"launches": [], "left_out": []}, []))
    device = find("npu", "ascend910b3")
    source = tmp_path / "relu" / "relu_triton.py"
    for edit, said in (
        (None, "relu had no kernel"),
        (None, ""),
        ("# more\n", f"{source}: changed by hand; what is there is checked"),
    ):
        if edit:
            source.write_text(source.read_text() + edit)
        lowered.report_of("relu", device, lowered.Chosen(), tmp_path)
        shown = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("spec: ")]
        assert [line.startswith(said) for line in shown] == [True] * bool(said)


def test_the_four_files_run_on_the_simulated_npu(tmp_path: Path) -> None:
    """Tensors are on an npu, as the constraints ask; times are simulated, and no speedup is made of them."""
    path = tmp_path / "broadcast_npu.yaml"
    path.write_text(BROADCAST)
    folder = generation.new(load_spec(path), tmp_path, chip=generation.chip_of(find("npu", "ascend910b3"))).folder
    source = (folder / "broadcast_npu_triton.py").read_text()
    assert 'if x.device.type != "npu":' in source
    assert "needs bias.is_npu, got bias on {bias.device}" in source

    def ran(part: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, folder / f"broadcast_npu_{part}.py", "--only", "[3] D=33"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **variables}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    npu = {"KERNELGEN_SIMULATED_NPU": "ascend910b3"}
    accuracy = ran("accuracy", **npu)
    assert accuracy.returncode == 0, accuracy.stdout + accuracy.stderr
    assert "on a simulated NPU" in accuracy.stdout
    performance = ran("performance", **npu)
    assert performance.returncode == 0, performance.stderr
    assert "simulated" in performance.stdout
    assert "speedup" not in performance.stdout
    assert "x on cpu" in ran("accuracy").stdout

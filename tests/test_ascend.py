"""The Ascend compiler without an NPU: what it finds in planted faults, and the shipped kernels lowered and run.

The first test of a machine installs it (`kernelgen doctor --setup ascend`); where that cannot be done they are skipped,
and the summary says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelgen import ascend, generation
from kernelgen.ascend import launches
from kernelgen.devices import find
from kernelgen.errors import NoDeviceError
from kernelgen.frontend.random_mask import random_mask
from kernelgen.spec import load_spec, shipped_specs
from kernelgen.worker import load

FAULTS = Path(__file__).with_name("ascend_faults.py")
TARGET = "Ascend910B3"
SPECS = {path.stem: path for path in shipped_specs()}


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if ascend.ready() is None:
        try:
            list(ascend.create())  # tests run in several processes, of which one makes it
        except ascend.NotInstalled as error:  # what is installed and does not work is a failure
            pytest.skip(f"the Ascend compiler cannot be installed here: {error}")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are loaded are compiled, whatever another test of this process asked for."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def fault_line(word: str) -> int:
    lines = FAULTS.read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if f"fault: {word}" in line)


def found(function: str, *inputs: list[object]) -> dict[str, ascend.Finding]:
    wrapper = load.candidate(str(FAULTS), function)
    (launch,) = launches.recorded(wrapper, list(inputs), TARGET)
    return {finding.kind: finding for finding in launch.lowered().findings}


@pytest.mark.parametrize(
    ("function", "dtype", "kind", "word", "text"),
    [
        ("large", "float32", "overflow", "tile too large", "ub overflows"),
        ("discrete", "float32", "discrete mask", "discrete mask", "the mask of this load is no interval"),
        ("wide", "int32", "int64", "int64", "int64 arithmetic"),
        ("assembly", "float32", "inline assembly", "inline assembly", "nothing here can run it"),
        ("many", "float32", "grid", "grid", "131072 programs, of which a launch takes 65535"),
    ],
)
def test_a_planted_fault_is_reported_with_its_line(function: str, dtype: str, kind: str, word: str, text: str) -> None:
    finding = found(function, [[2**21], dtype])[kind]
    assert finding.line == fault_line(word)
    assert text in finding.text
    assert finding.severe == (kind != "int64")


def test_reading_element_by_element_is_slow_but_not_wrong() -> None:
    finding = found("scattered", [[8192], "float32"], [[8192], "int32"])["scalar fallback"]
    assert finding.line == fault_line("scalar fallback")
    assert not finding.severe


def quartet(name: str, root: Path) -> Path:
    device = find("npu", "ascend910b3")
    done = generation.new(load_spec(SPECS[name]), root, chip=generation.chip_of(device))
    return done.folder / f"{name}_triton.py"


@pytest.mark.parametrize(("name", "held"), [("softmax", 16384), ("log_softmax", 16384), ("layer_norm", 4096)])
def test_no_row_overflows_the_buffer_and_only_long_ones_are_walked(name: str, held: int, tmp_path: Path) -> None:
    """Up to the longest that the compiler plans whole; `docs/ascend_rows.py` looks at every length and dtype."""
    wrapper = load.candidate(str(quartet(name, tmp_path)), name)
    for length, dtype in (
        (64, "float16"),
        (held, "float16"),
        (held, "float32"),
        (held + 1, "float16"),
        (131072, "float32"),
    ):
        inputs = [[[64, length], dtype], *([[[length], dtype]] * 2 if name == "layer_norm" else [])]
        (launch,) = launches.recorded(wrapper, inputs, TARGET)
        result = launch.lowered()
        assert result.planned, (length, result)
        assert not [f for f in result.findings if f.severe]
        assert 0 < result.ub_bytes <= 196608
        assert launch.grid[0] <= 40
        assert ("looped" in launch.kernel) == (length > held)


ROWS = """\
name: rows
summary: Rows that need much of the buffer beside them.
inputs:
  - {name: x, shape: [A, D], dtype: T}
  - {name: y, shape: [A, D], dtype: T}
outputs:
  - {name: out, shape: [A, D], dtype: T}
dtypes: {T: [float32]}
reference: |
  def rows(x, y):
      return RESULT
accuracy: {shapes: [{A: 5, D: 129}]}
performance: {shapes: [{A: 512, D: 512}]}
"""


@pytest.mark.parametrize(
    "result",
    [
        "torch.log1p(x) - torch.log1p(x).sum(-1, keepdim=True)",
        "torch.softmax(x.masked_fill(y > 0, float('-inf')), -1)",
        "x * (x > y).sum(-1, keepdim=True)",
        "torch.where(torch.isinf(x), y, x) / x.amax(-1, keepdim=True)",
    ],
)
def test_the_longest_row_that_is_held_fits(result: str, tmp_path: Path) -> None:
    """Also with operations that need several times a row while they run."""
    (tmp_path / "rows.yaml").write_text(ROWS.replace("RESULT", result))
    chip = generation.chip_of(find("npu", "ascend910b3"))
    folder = generation.new(load_spec(tmp_path / "rows.yaml"), tmp_path, chip=chip).folder
    wrapper = load.candidate(str(folder / "rows_triton.py"), "rows")
    schedules = wrapper.__globals__["SCHEDULES"]
    (launch,) = launches.recorded(wrapper, [[[16, schedules[-2][0] // 4], "float32"]] * 2, TARGET)
    assert launch.kernel == "rows_row_kernel"
    assert launch.lowered().planned, launch.lowered()


@pytest.mark.parametrize("name", ["channels_last", "rms_norm_channels"])
def test_what_is_turned_fits_the_buffer(name: str, tmp_path: Path) -> None:
    """Both dimensions of a tile are masked, and a mask has one bit an element in the buffer."""
    wrapper = load.candidate(str(quartet(name, tmp_path)), name)
    (launch,) = launches.recorded(wrapper, [[[2, 256, 56, 56], "float16"]], TARGET)
    result = launch.lowered()
    assert result.planned, result
    assert not [f for f in result.findings if f.severe]
    assert 0 < result.ub_bytes <= 196608


@pytest.mark.parametrize(("name", "dtype"), [("softmax", "bfloat16"), ("gelu_erf", "float32"), ("pad", "float16")])
def test_the_lowered_form_run_on_the_cpu_is_right(name: str, dtype: str, tmp_path: Path) -> None:
    """Rows that do not fill their tile; 43 programs take 129 rows."""
    kernel = launches.on_cpu(load.candidate(str(quartet(name, tmp_path)), name), TARGET)
    x = torch.randn(129, 130, generator=torch.Generator().manual_seed(7)).to(getattr(torch, dtype))
    wide = x.to(torch.float64)
    wanted = {
        "softmax": lambda: wide.softmax(-1),
        "gelu_erf": lambda: torch.nn.functional.gelu(wide),
        "pad": lambda: torch.nn.functional.pad(wide, (1, 2), value=0.5),
    }[name]()
    got = kernel(x)
    assert got.shape == wanted.shape
    torch.testing.assert_close(got.double(), wanted, rtol=2**-7, atol=1e-5)


def test_what_reduces_twice_is_right_from_the_lowered_form(tmp_path: Path) -> None:
    """Rows that do not fill their tile, more rows than lanes that reduce them would need, and none at all."""
    kernel = launches.on_cpu(load.candidate(str(quartet("kl_div", tmp_path)), "kl_div"), TARGET)
    generator = torch.Generator().manual_seed(7)
    logits, target = (torch.randn(4999, 10, generator=generator) for _ in range(2))
    target = target.softmax(-1)
    wanted = torch.nn.functional.kl_div(logits.double().log_softmax(-1), target.double(), reduction="batchmean")
    torch.testing.assert_close(kernel(logits, target).double(), wanted, rtol=2e-6, atol=0)
    assert kernel(logits[:0], target[:0]).isnan()


def test_random_bits_are_philoxs_from_the_lowered_form(tmp_path: Path) -> None:
    """Every bit of a seed of 64 counts, and neighbours share a counter."""
    kernel = launches.on_cpu(load.candidate(str(quartet("dropout", tmp_path)), "dropout"), TARGET)
    x = torch.ones(3, 1001)
    for seed in (0, 7, 2**31 + 5, 2**40 + 3, -1):
        key = torch.tensor(seed)
        assert torch.equal(kernel(x, key) > 0, random_mask(key, x.shape, 0.9))


MASKED = """\
name: masked_columns
summary: The sums of columns of which some elements are left out.
inputs:
  - {name: x, shape: [A, B], dtype: T}
  - {name: seed, shape: [], dtype: int64}
outputs:
  - {name: out, shape: [B], dtype: T}
dtypes: {T: [float32]}
reference: |
  def masked_columns(x, seed):
      return torch.where(random_mask(seed, x.shape, 0.3), x, 0.0).sum(0)
accuracy: {shapes: [{A: 5, B: 129}]}
performance: {shapes: [{A: 512, B: 512}]}
"""


def test_random_bits_of_a_turned_tile_fit_the_buffer(tmp_path: Path) -> None:
    """All that follows from the place of an element is turned in the buffer; places are int32 as all others are."""
    (tmp_path / "masked_columns.yaml").write_text(MASKED)
    spec, device = load_spec(tmp_path / "masked_columns.yaml"), find("npu", "ascend910b3")
    folder = generation.new(spec, tmp_path, chip=generation.chip_of(device)).folder
    wrapper = load.candidate(str(folder / "masked_columns_triton.py"), "masked_columns")
    (launch,) = launches.recorded(wrapper, [[[512, 512], "float32"], [[], "int64"]], TARGET)
    result = launch.lowered()
    assert result.planned, result
    assert not result.findings


def test_a_scan_is_planned_but_not_run(tmp_path: Path) -> None:
    kernel = launches.on_cpu(load.candidate(str(quartet("cumsum", tmp_path)), "cumsum"), TARGET)
    with pytest.raises(launches.NotRunnable, match="bufferized"):
        kernel(torch.ones(3, 100, dtype=torch.float16))


SMALL = """\
name: twice
summary: Twice the input.
inputs:
  - {name: x, shape: [...], dtype: T}
outputs:
  - {name: out, shape: [...], dtype: T}
dtypes: {T: [float32]}
reference: |
  def twice(x):
      return x * 2
accuracy: {shapes: [{...: [7, 129]}]}
performance: {shapes: [{...: [64, 100]}]}
"""


def test_rounds_on_the_simulated_npu(tmp_path: Path) -> None:
    """From the spec to the log: its times are there under their name, and nowhere is a speedup made of them."""
    (tmp_path / "twice.yaml").write_text(SMALL)
    command = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main(sys.argv[1:]))"]
    arguments = ["optimize", "twice.yaml", "--device", "npu", "--rounds", "1", "--candidates", "1", "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "KERNELGEN_SIMULATED_NPU": "ascend910b3"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["speedup"] is None
    log = (tmp_path / "operators-ascend910b3" / "twice" / "optimization_log.md").read_text()
    assert re.search(r"Simulated, the speed of no NPU\W+\[64, 100\] float32: \d+ µs", log)
    assert "its times are simulated" in log
    assert "measured" not in log.replace("not measured", "")
    assert not re.search(r"\dx \[", log)  # no speedup with an interval


def test_the_environment_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELGEN_ASCEND_VENV", str(tmp_path))
    with pytest.raises(NoDeviceError, match="doctor --setup ascend") as error:
        found("many", [[16], "float32"])
    assert error.value.exit_code == 3

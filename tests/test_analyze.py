"""`kernelgen analyze`: figures that can be worked out by hand, the kernels that are named, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import kernelgen

from kernelgen import generation
from kernelgen.cli import main
from kernelgen.devices.facts import B200, H200
from kernelgen.roofline import LAUNCH, MATRIX, MEMORY, Analysis, analyse
from kernelgen.spec import find_spec, load_spec
from kernelgen.spec.model import OperatorSpec


def analysis(name: str, *labels: str) -> Analysis:
    return of(load_spec(find_spec(name)[0]), *labels)


def of(spec: OperatorSpec, *labels: str) -> Analysis:
    cases = tuple(c for c in spec.performance if not labels or c.label in labels)
    return analyse(generation.plan_of(spec, Path("nowhere")), cases, H200)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["analyze", *arguments]) == 0
    return capsys.readouterr().out


def test_a_softmax_is_bound_by_memory() -> None:
    (bound,) = analysis("softmax", "[16384] D=4096 float16").bounds
    elements = 16384 * 4096
    assert (bound.bytes_read, bound.bytes_written) == (2 * elements, 2 * elements)
    # greatest, difference, exponential, sum and product of every element, and the reciprocal of a row's sum
    assert bound.flops == 5 * elements + 16384
    assert bound.intensity == pytest.approx(1.25, rel=1e-3)
    assert bound.bottleneck == MEMORY
    assert bound.roofline_us == pytest.approx(4 * elements / H200.dram_bytes_per_s * 1e6)


def test_a_large_product_is_bound_by_the_matrix_units() -> None:
    found = analysis("matmul")
    bound = max(found.bounds, key=lambda b: b.flops)
    assert bound.bottleneck == MATRIX
    assert bound.arithmetic_us > bound.memory_us
    assert bound.intensity > bound.ridge
    assert "a product of matrices" in found.stages[0].why


def test_little_work_is_bound_by_the_launch(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "softmax", "--shape", "...=4,D=128", "--dtype", "fp16", "--json"))
    (bound,) = document["bounds"]
    assert bound["case"] == "[4] D=128 float16"
    assert bound["bytes_read"] == 4 * 128 * 2
    assert bound["bottleneck"] == LAUNCH


def test_the_device_sets_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("softmax", "--shape", "D=4096", "--dtype", "bf16", "--json")
    times = {
        key: json.loads(told(capsys, *arguments, "--device", key))["bounds"][0]["memory_us"] for key in ("h200", "b200")
    }
    assert times["h200"] / times["b200"] == pytest.approx(B200.dram_bytes_per_s / H200.dram_bytes_per_s)


SOLVED = """
name: solved
summary: The solution of a triangular system, halved.
inputs: [{name: a, shape: [M, M], dtype: float32}, {name: b, shape: [M, N], dtype: float32}]
outputs: [{name: out, shape: [M, N], dtype: float32}]
reference: |
  def solved(a, b):
      x = torch.linalg.solve_triangular(a, b, upper=False)
      return x * 0.5
accuracy: {shapes: [{M: 4, N: 3}]}
performance: {shapes: [{M: 512, N: 512}]}
"""


def test_every_kernel_and_call_has_a_reason_and_a_share(tmp_path: Path) -> None:
    (tmp_path / "solved.yaml").write_text(SOLVED)
    found = of(load_spec(tmp_path / "solved.yaml"))
    assert [stage.how.split()[0] for stage in found.stages] == ["torch's", "a"]
    assert "solve_triangular" in found.stages[0].how
    assert all(stage.why for stage in found.stages)
    assert sum(stage.bytes_share for stage in found.stages) == pytest.approx(1)


def test_text_and_markdown_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("softmax", "--shape", "D=4096", "--dtype", "float16")
    text, markdown = told(capsys, *arguments), told(capsys, *arguments, "--markdown")
    for figure in ("1.25 of 14", "memory bandwidth", "NVIDIA H200", "variant"):
        assert figure in text
        assert figure in markdown
    assert "| case | read |" in markdown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("softmax", "--shape", "Q=3"), "--shape Q=3: no size Q; there are ..., D"),
        (("softmax", "--shape", "D"), "--shape D: 'D' is not NAME=SIZE, such as D=4096"),
        (("softmax", "--shape", "D=-1"), "--shape D=-1: D must be a whole number, not '-1'"),
        (("softmax", "--shape", "...=4xB"), "--shape ...=4xB: ... must be sizes with x between them, not '4xB'"),
        (("softmax", "--dtype", "int8"), "--dtype int8: softmax takes bfloat16, float16, float32"),
        (("softmax", "--device", "h300"), "--device h300: not in the table; there are a100, l40s, h100, h200, b200"),
        (("nosuch.py",), "nosuch.py: no such file"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", *arguments]) == 2
    said = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("spec: ")]
    assert said == [f"error: {line}"]


def test_a_python_file_is_analysed(tmp_path: Path) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(
        "import torch\n\ndef scaled(x):\n    return torch.relu(x) * 2\n\nexample_inputs = (torch.randn(64, 512),)\n"
    )
    document = json.loads(kernelgen("analyze", str(path), "--json", cwd=tmp_path).stdout)
    assert document["operator"] == "scaled"
    assert document["stages"][0]["why"].startswith("every element is computed by itself")


def test_what_a_python_file_cannot_become_is_said_of_that_file(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(MADE_ON_THE_CPU)
    done = kernelgen("analyze", str(path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {path}: unsupported: a tensor created on the CPU" in done.stderr


MADE_ON_THE_CPU = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(512, 1024)

    def forward(self, x):
        return torch.nn.functional.conv1d(self.linear(x).unsqueeze(1), torch.ones(1, 1, 3)).squeeze(1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""

"""Operators with calls of torch's: what is counted and said of them, and what does not take them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kernelgen import families, frontend, generation, render
from kernelgen.analysis import floor_seconds, work
from kernelgen.cli.optimize import _check_strategies
from kernelgen.definition import step_notes
from kernelgen.devices.facts import H200
from kernelgen.errors import UnsupportedError, UsageError
from kernelgen.export.custom_op import custom_op_files
from kernelgen.importer import import_file
from kernelgen.outcomes import StaticFacts
from kernelgen.plan import Plan
from kernelgen.predict import predict
from kernelgen.spec import load_spec, parse_spec
from kernelgen.spec.model import Case

CALLS = load_spec(Path(__file__).parent / "specs" / "any_window.yaml")
"""With a call of torch's: no family takes windows of which a spec does not say the size."""

CONV = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """A convolution, then pointwise steps."""

    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out, 3)
        self.scale = nn.Parameter(torch.randn(out, 1, 1))

    def forward(self, x):
        x = self.conv(x)
        return torch.relu(x) * self.scale


def get_inputs():
    return [torch.rand(4, 3, 16, 16)]


def get_init_inputs():
    return [3, 8]
'''


@cache
def plan() -> Plan:
    return families.lower(CALLS, *frontend.trace(CALLS))


def case(dtype: str, **sizes: int | tuple[int, ...]) -> Case:
    return Case(tuple({"..." if n == "leading" else n: v for n, v in sizes.items()}.items()), (("T", dtype),))


def test_the_work_is_that_of_the_kernel_and_of_the_call() -> None:
    b, c, h, j = 64, 512, 56, 256
    found = work(plan(), case("float16", B=b, C=c, H=h, W=h, J=j, R=4))
    result = 4 * b * j * h * h
    assert (found.bytes_read, found.bytes_written) == (2 * (result + j), 2 * result)
    (call,) = found.calls
    assert (call.function, call.flops) == ("torch.nn.functional.conv_transpose2d", 2 * b * c * h * h * j * 16)
    assert call.bytes == 2 * (b * c * h * h + j * c * 16 + result)
    kernel = (found.bytes_read + found.bytes_written) / H200.dram_bytes_per_s
    assert floor_seconds(found, H200) == pytest.approx(kernel + call.flops / H200.fp16_tensor_flops)


@pytest.mark.parametrize(("dtype", "peak"), [("bfloat16", 1.0), ("float32", 0.5)])
def test_a_convolution_may_run_on_the_matrix_units(dtype: str, peak: float) -> None:
    (call,) = work(plan(), case(dtype, B=64, C=256, H=56, W=56, J=256, R=4)).calls
    assert call.flops == 2 * 64 * 256 * 56 * 56 * 256 * 16
    assert call.seconds(H200) == call.flops / (H200.fp16_tensor_flops * peak)


def test_a_prediction_has_the_call_beside_the_launches() -> None:
    one = case("float16", B=64, C=256, H=56, W=56, J=256, R=4)
    whole = work(plan(), one)
    facts = (StaticFacts("k", "sm_90", (4096, 2, 1), 8, 32, 0, 0, 1.0, 4.0, 16, 16, 1, 1),)
    kernel, both = predict(replace(whole, calls=()), facts, H200), predict(whole, facts, H200)
    assert both.seconds - kernel.seconds > whole.calls[0].flops / H200.fp16_tensor_flops


def test_files_say_what_stays_torchs_and_how_much_of_the_whole() -> None:
    found = plan()
    notes = step_notes(found)
    assert "torch.nn.functional.conv_transpose2d" in notes[0]
    assert "43 % of the bytes, 100 % of the operations" in notes[0]
    files = render.quartet(found)
    assert "| `y` | torch's `torch.nn.functional.conv_transpose2d` | 43 % | 100 % |" in files["definition.md"]
    head = " ".join(files["any_window_triton.py"].split('"""')[1].split())
    assert "43 % of the bytes" in head


def test_a_language_model_writes_no_kernel_around_calls() -> None:
    found = plan()
    _check_strategies(found)
    asked = replace(found, spec=replace(found.spec, optimization_strategies=("llm",)))
    with pytest.raises(UsageError, match=r"any_window has calls of torch's \(torch.nn.functional.conv_transpose2d\)"):
        _check_strategies(asked)


def test_gradients_of_calls_are_refused(tmp_path: Path) -> None:
    spec = replace(CALLS, backward=True)
    with pytest.raises(UnsupportedError, match=r"the gradient of torch\.nn\.functional\.conv_transpose2d"):
        generation.new(spec, tmp_path)


def test_a_convolution_of_a_module_is_imported_and_generated(tmp_path: Path) -> None:
    (tmp_path / "conv.py").write_text(CONV, encoding="utf-8")
    imported = import_file(tmp_path / "conv.py", name="conv_scaled")
    spec = parse_spec(imported.text, "conv_scaled.yaml")
    generation.new(spec, tmp_path)
    text = (tmp_path / "conv_scaled" / "conv_scaled_triton.py").read_text("utf-8")
    assert "tl.dot(" in text
    assert "torch.nn.functional.conv_transpose2d(" not in text
    package = custom_op_files(text, spec, tmp_path, tmp_path / "package")
    made = package[tmp_path / "package" / "conv_scaled_op" / "__init__.py"]
    assert "x.new_empty((x.shape[0], bias.shape[0], x.shape[2] + 2, x.shape[3] + 2))" in made

"""Triton launches on the current device: wrappers make it that of their inputs, and leave it as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import Sample, load, plan_of, sample
from triton.runtime import interpreter

from kernelgen import custom, render

X, ROWS = {"x": "M N: float32"}, {"out": "M N: float32"}


def of(lines: str, inputs: dict[str, str] = X, outputs: dict[str, str] = ROWS) -> Sample:
    return sample(lines, inputs, outputs, dtypes=())


SAMPLES: dict[str, tuple[Sample, Callable[..., torch.Tensor]]] = {
    "pointwise": (of("return torch.relu(x)"), torch.relu),
    "reduction": (of("return torch.softmax(x, -1)"), lambda x: torch.softmax(x, -1)),
    "of the whole": (of("return x.sum()", outputs={"out": ": float32"}), torch.sum),
    "divided rows": (of("return x.sum(0)", outputs={"out": "N: float32"}), lambda x: x.sum(0)),
    "scan": (of("return torch.cumsum(x, -1)"), lambda x: torch.cumsum(x, -1)),
    "scatter": (
        of("return x.index_add(0, ids, y)", X | {"ids": "K: int64 < M", "y": "K N: float32"}),
        lambda x, ids, y: x.index_add(0, ids, y),
    ),
    "twice": (
        of("return torch.logsumexp(x, -1).mean()", outputs={"out": ": float32"}),
        lambda x: torch.logsumexp(x, -1).mean(),
    ),
    "several": (
        of("return torch.softmax(x, -1) - x.amax(0)"),
        lambda x: torch.softmax(x, -1) - x.amax(0),
    ),
    "a call of torch's": (
        of("return torch.relu(torch.mm(x, w) + 1)", X | {"w": "N N: float32"}),
        lambda x, w: torch.relu(torch.mm(x, w) + 1),
    ),
}


def inputs_of(found: Sample, device: str = "cpu") -> list[torch.Tensor]:
    shapes = [[{"M": 9, "N": 21, "K": 5}[str(n)] for n in t.shape] for t in found.inputs]
    made = [
        torch.randn(shape) if t.dtype == "float32" else torch.arange(5)
        for t, shape in zip(found.inputs, shapes, strict=True)
    ]
    return [x.to(device) for x in made]


class Machine:
    """Devices of which one is current, as launches and `torch.cuda.device` see them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: int) -> None:
        self.current, self.launched = 0, list[int]()
        launch, machine = interpreter.GridExecutor.__call__, self

        class Device:
            def __init__(self, index: int) -> None:
                self.index = index

            def __enter__(self) -> None:
                self.before, machine.current = machine.current, self.index

            def __exit__(self, *_: object) -> None:
                machine.current = self.before

        def launched(executor: Any, *args: Any, **kwargs: Any) -> Any:
            machine.launched.append(machine.current)
            return launch(executor, *args, **kwargs)

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
        monkeypatch.setattr(torch.cuda, "device", Device)
        monkeypatch.setattr(torch.Tensor, "get_device", lambda x: home)


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are seen in the interpreter")
@pytest.mark.parametrize("name", SAMPLES)
def test_every_launch_is_made_on_the_device_of_the_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, wanted = SAMPLES[name]
    module, inputs = load(render.triton_source(plan_of(found.spec())), together=False), inputs_of(found)
    machine = Machine(monkeypatch, home=1)
    torch.testing.assert_close(module.op(*inputs), wanted(*inputs), rtol=1e-4, atol=1e-4)
    assert machine.launched
    assert set(machine.launched) == {1}
    assert machine.current == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are seen in the interpreter")
def test_a_proposed_kernel_is_launched_there_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (
        "@triton.jit\ndef op_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):\n"
        "    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, BLOCK_SIZE)\n"
        "    mask = tl.arange(0, BLOCK_SIZE) < N\n"
        "    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) * 2, mask=mask)\n"
    )
    launch = {
        "kernel": "op_kernel", "grid": ["M"], "arguments": ["x", "out", "N"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": "next_power_of_2(N)"}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    found, answer = (
        of("return x * 2"),
        {"idea": "", "kernels": kernels, "sizes": [], "scratch": [], "launches": [launch]},
    )
    spec = found.spec()
    module = load(render.triton_source(custom.plan_of(spec, custom.table_of(spec, custom.parse(answer, spec)))))
    (x,) = inputs_of(found)
    machine = Machine(monkeypatch, home=1)
    assert torch.equal(module.op(x), x * 2)
    assert machine.launched == [1]
    assert machine.current == 0


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("name", SAMPLES)
def test_inputs_on_a_device_that_is_not_current(name: str) -> None:
    found, wanted = SAMPLES[name]
    module, inputs = load(render.triton_source(plan_of(found.spec()))), inputs_of(found, "cuda:1")
    with torch.cuda.device(0):
        out = module.op(*inputs)
        assert torch.cuda.current_device() == 0
    assert out.device == inputs[0].device
    torch.testing.assert_close(out, wanted(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_inputs_on_two_devices_are_refused() -> None:
    found = of("return x + y", X | {"y": "M N: float32"})
    x, y = inputs_of(found, "cuda:1")
    with pytest.raises(ValueError, match="y must be on cuda:1, got cuda:0"):
        load(render.triton_source(plan_of(found.spec()))).op(x, y.to("cuda:0"))

"""The npu role: candidates on an NPU, one request at a time; on a simulated one for tests of the way there.

Times are torch.npu's events either way. Those of a simulated NPU are handed out under that name alone, and a
comparison of two is refused here, where it would be made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelgen import judge
from kernelgen.judge import device, memory, npu

judge.prepare()  # before a kernel's module is imported

from kernelgen.judge.timing import quick  # noqa: E402
from kernelgen.worker import accuracy, gpu, load  # noqa: E402
from kernelgen.worker.operations import LaunchError  # noqa: E402

Answer = dict[str, Any]


def canary() -> Answer:
    """An NPU that adds, or the simulated one. Raises LaunchError where there is neither."""
    if not device.is_npu() and not device.is_simulated():
        raise LaunchError("torch-npu finds no NPU")
    total = int(torch.ones(1 << 10, dtype=torch.float32).to("npu").sum().cpu())
    if total != 1 << 10:
        raise LaunchError(f"the NPU does not add up: {total}")
    return {"npu": device.describe()}


def cases(folder: str, name: str, large: bool) -> Answer:
    """The accuracy cases on an NPU: no large one, as a wrapper takes no tensor of more than 2**30 elements."""
    return accuracy.cases(folder, name, "cpu", False)


def once(folder: str, name: str, path: str, case: dict[str, Any]) -> Answer:
    """The time of a candidate by events, and whether the NPU is simulated: such a time is compared with nothing.

    A simulated NPU runs kernels in Triton's interpreter, which takes no large tensors.
    """
    if left_out := memory.accuracy_left_out(
        _operator(folder, name), judge.Case.from_json(case), "cpu", memory.INTERPRETER_ELEMENTS
    ):
        return {"left_out": left_out}
    make, wrapper = _bound(folder, name, path, case)
    (found,) = quick((wrapper,), make, stage=npu.NpuStage((wrapper,), make, sets=1))
    return {"left_out": "", "simulated": device.is_simulated(), "time_us": found.median_us}


def details(folder: str, name: str, path: str, case: dict[str, Any]) -> Answer:
    """What torch-npu's profiler writes of one call of a candidate."""
    make, wrapper = _bound(folder, name, path, case)
    arguments = make()
    return {"kernel_details": npu.kernel_details(lambda: wrapper(*arguments))}


def _bound(folder: str, name: str, path: str, case: dict[str, Any]) -> tuple[Any, Any]:
    make = judge.make_inputs(_operator(folder, name), judge.Case.from_json(case), device="npu")
    return make, load.candidate(path, name)


def _operator(folder: str, name: str) -> judge.Operator:
    operator = load.quartet(folder, name, "accuracy").OPERATOR
    assert isinstance(operator, judge.Operator)
    return operator


def _real(operation: Callable[..., Answer]) -> Callable[..., Answer]:
    """The operation on a real NPU alone."""

    def call(**args: Any) -> Answer:
        if device.is_simulated():
            raise LaunchError("a simulated NPU: its times are simulated and compared with nothing")
        return operation(**args)

    return call


OPERATIONS = {
    "canary": canary,
    "accuracy_cases": cases,
    "accuracy": accuracy.one_case,
    "time": once,
    "details": _real(details),
    "race": _real(gpu.race),
    "compare": _real(gpu.compare),
    "baseline": _real(gpu.baseline),
}

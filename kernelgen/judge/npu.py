"""A real NPU through torch-npu: memory copied there and back around a call, times by its events, its profiler's file.

No kernel of this project has run on one. All that torch.npu is asked for here is also asked of the NPU that is
simulated in torch, which is how it is tested; what a simulated one says of time is no speed, and nobody compares it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import guards
from .device import SIMULATED
from .model import Function
from .oracle import as_tuple
from .timing import MakeInputs, call_times

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
L2_BYTES = 192 << 20
"""Of an Ascend 910B (Ascend C programming guide, architecture parameters)."""
DETAILS = "kernel_details.csv"


@cache
def here() -> bool:
    """Whether an NPU can be worked with through torch-npu; one that is simulated or hidden does not count."""
    if os.environ.get(SIMULATED) or os.environ.get(VISIBLE) == "" or importlib.util.find_spec("torch_npu") is None:
        return False
    importlib.import_module("torch_npu")
    return bool(module().is_available())


def module() -> Any:
    """torch.npu, which torch has no types for."""
    return torch.npu  # type: ignore[attr-defined]


def on_npu(function: Function) -> Function:
    """A function of host tensors that calls `function` with copies of their whole memory, guards included, on the NPU.

    What the call leaves in that memory comes back as well. Raises TypeError where an output is not on the NPU.
    """

    def call(*tensors: torch.Tensor) -> Any:
        copies = [_Copy(tensor) for tensor in tensors]
        try:
            outputs = function(*(copy.there for copy in copies))
            module().synchronize()
        except RuntimeError as error:
            if "out of memory" in str(error).lower():
                raise torch.OutOfMemoryError(str(error)) from None
            raise
        for copy in copies:
            copy.bring_back()
        back = tuple(_back(output, copies) for output in as_tuple(outputs))
        return back[0] if isinstance(outputs, torch.Tensor) else back

    return call


class _Copy:
    """The storage of a host tensor on the NPU, and the same view of it there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.host = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        self.flat = self.host.to("npu")
        self.there = self.flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def bring_back(self) -> None:
        self.host.copy_(self.flat)

    def view(self, output: torch.Tensor) -> torch.Tensor | None:
        """The host's view of an output that lies in this memory; None if it does not."""
        at = output.data_ptr() - self.flat.data_ptr()
        if not output.numel() or not 0 <= at < self.flat.numel():
            return None
        return self.host.view(output.dtype).as_strided(output.shape, output.stride(), at // output.element_size())


def _back(output: Any, copies: Sequence[_Copy]) -> Any:
    if not isinstance(output, torch.Tensor):
        return output
    if output.device.type != "npu":
        raise TypeError(f"an output is on {output.device}, not on the NPU")
    shared = next((view for view in (copy.view(output) for copy in copies) if view is not None), None)
    return output.cpu() if shared is None else shared


class _Launcher:
    """A function bound to its arguments; holds what the last launch wrote."""

    def __init__(self, function: Function, buffers: Sequence[torch.Tensor]) -> None:
        self._function, self._buffers = function, buffers
        self._outputs: Any = ()

    def __call__(self) -> None:
        self._outputs = self._function(*self._buffers)

    def spoil(self) -> None:
        """Overwrite what the last launch wrote: neither the next one nor another function's may find it there."""
        for output in guards.apart(as_tuple(self._outputs), self._buffers):
            number = output.dtype != torch.bool and not output.dtype.is_floating_point
            output.fill_(torch.iinfo(output.dtype).max if number else float("nan"))


class NpuStage:
    """See timing.Stage. There are no graphs: every sample is one launch between two events."""

    launches = 1
    graphed = False

    def __init__(self, functions: Sequence[Function], make_inputs: MakeInputs, sets: int = 2) -> None:
        self._functions, self._make_inputs = tuple(functions), make_inputs
        self._flush = torch.empty(2 * L2_BYTES if here() else 1, dtype=torch.uint8, device="npu")
        arguments = tuple(make_inputs())
        for function in self._functions:  # compile and fill caches before anything is timed
            for _ in range(2):
                outputs = as_tuple(function(*arguments))
        module().synchronize()
        one = sum(t.numel() * t.element_size() for t in (*arguments, *outputs))
        self.swapped_sets = sets == 2 and 2 * one <= free_bytes()
        del outputs
        bound = [_Launcher(f, arguments) for f in self._functions]
        self.sample_us = min(statistics.median(self.time_runs([one], [0] * 4)[1:]) for one in bound)

    def open_block(self, rng: random.Random) -> tuple[Any, Any]:
        first = tuple(self._make_inputs())
        return first, tuple(self._make_inputs()) if self.swapped_sets else first

    def launcher(self, which: int, buffers: Any) -> _Launcher:
        launcher = _Launcher(self._functions[which], buffers)
        launcher()
        return launcher

    def time_runs(self, launchers: Sequence[_Launcher], order: Sequence[int]) -> list[float]:
        npu = module()
        events = [(npu.Event(enable_timing=True), npu.Event(enable_timing=True)) for _ in order]
        for launcher in launchers:
            launcher.spoil()
        npu.synchronize()
        for which, (start, stop) in zip(order, events, strict=True):
            self._flush.zero_()  # takes the NPU longer than it takes the host to queue what follows
            start.record()
            launchers[which]()
            stop.record()
            launchers[which].spoil()
        npu.synchronize()
        return [start.elapsed_time(stop) * 1e3 for start, stop in events]

    def close_block(self) -> bool:
        module().empty_cache()
        return True

    def call_us(self) -> tuple[float | None, ...]:
        return call_times(self._functions, tuple(self._make_inputs()), module().synchronize)


def free_bytes() -> int:
    """Memory that is free on the NPU, or on the host that simulates one."""
    if here():
        return int(module().mem_get_info()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def bandwidths() -> tuple[float, float]:
    """Bytes a second of a device copy (read plus written) and of a fill, the best of ten; measured once a process."""
    size = min(2**30, free_bytes() // 4) // 2**20 * 2**20
    source = torch.zeros(size, dtype=torch.uint8, device="npu")
    target = torch.empty_like(source)
    stage = NpuStage((lambda x: target.copy_(x), lambda x: target.zero_()), lambda: (source,), sets=1)
    bound = [stage.launcher(which, (source,)) for which in (0, 1)]
    copy, fill = (min(stage.time_runs([one], [0] * 10)) * 1e-6 for one in bound)
    return 2 * size / copy, size / fill


def kernel_details(call: Callable[[], Any]) -> str:
    """kernel_details.csv of one call, as torch-npu's profiler writes it with the shares of every unit.

    Raises RuntimeError where the profiler writes none.
    """
    profiler: Any = importlib.import_module("torch_npu").profiler
    experimental = profiler._ExperimentalConfig(
        aic_metrics=profiler.AiCMetrics.PipeUtilization, profiler_level=profiler.ProfilerLevel.Level1
    )
    call()
    module().synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            on_trace_ready=profiler.tensorboard_trace_handler(folder),
            experimental_config=experimental,
        ):
            call()
            module().synchronize()
        found = sorted(Path(folder).rglob(DETAILS))
        if not found:
            raise RuntimeError(f"torch-npu's profiler wrote no {DETAILS}")
        return found[-1].read_text(encoding="utf-8-sig")

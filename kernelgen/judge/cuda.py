"""The stage on an NVIDIA GPU: buffers, CUDA graphs, cache flush and events."""

from __future__ import annotations

import ctypes
import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import device as devices
from . import guards, throttle
from .flush import Flush
from .model import Function
from .oracle import as_tuple
from .timing import MakeInputs, call_times

GRAPH_US = 200.0
"""A sample lasts about this long at least: the clock's resolution and the start of a graph cost about 1 µs each."""
SHORT_US = 50.0
"""Below this device time several launches share a graph; longer kernels are sampled one launch at a time."""
MAX_LAUNCHES = 100
_SLEEP_CYCLES = 1_000_000
"""About half a millisecond in which the host queues a batch ahead of the device."""


# torch has no types for these
_Event: Any = torch.cuda.Event
_Stream: Any = torch.cuda.Stream
_sleep: Any = torch.cuda._sleep


class Launcher:
    """A function bound to K sets of arguments; holds its outputs, so that every launch writes memory of its own."""

    def __init__(self, function: Function, buffers: Sequence[Sequence[torch.Tensor]], graphed: bool) -> None:
        self._function, self._buffers = function, buffers
        self.outputs: list[Any] = []
        self._graph = _captured(self._launch) if graphed else None
        self._spoiling: torch.cuda.CUDAGraph | None = None

    def _launch(self) -> None:
        self.outputs = [self._function(*arguments) for arguments in self._buffers]

    def __call__(self) -> None:
        if self._graph is None:
            self._launch()
        else:
            self._graph.replay()

    def spoil(self) -> None:
        """Overwrite what the last launch wrote: neither the next one nor another function's may find it there.

        Many outputs are overwritten by one graph: queued one by one they would keep the host busy while the clock runs.
        """
        if self._graph is None or not self._written():
            self._overwrite()
            return
        if self._spoiling is None:
            self._spoiling = _captured(self._overwrite)
        self._spoiling.replay()

    def _overwrite(self) -> None:
        for output in self._written():
            guards.overwrite(output, guards.POISONS[0])

    def _written(self) -> list[torch.Tensor]:
        results = zip(self._buffers, self.outputs, strict=False)  # there are none before the first launch
        return [o for arguments, result in results for o in guards.apart(as_tuple(result), arguments)]


def _captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = _Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # not torch.cuda.graph: it may collect garbage and empties the allocator's cache at every capture
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


class CudaStage:
    """See timing.Stage. `sets`: buffer sets wanted; two are swapped, one is shared."""

    def __init__(self, functions: Sequence[Function], make_inputs: MakeInputs, sets: int = 2) -> None:
        self._functions, self._make_inputs = tuple(functions), make_inputs
        self._throttled = throttle.reader()
        self._pad: torch.Tensor | None = None
        self._flush = Flush()
        arguments = tuple(make_inputs())
        for function in self._functions:  # compile, autotune and fill caches before anything is captured or timed
            for _ in range(2):
                outputs = as_tuple(function(*arguments))
        torch.cuda.synchronize()
        self.graphed = self._can_capture(arguments)
        self._input_bytes = _bytes(arguments)
        self._output_bytes = _bytes(outputs)
        del outputs
        self.launches = 1
        shortest = self._shortest_us(arguments, 1)
        if shortest < 2 * SHORT_US:  # several launches in one sample hide what starting a graph costs
            together = min(8, devices.free_bytes("cuda") // (4 * len(self._functions) * max(self._output_bytes, 1)))
            shortest = self._shortest_us(arguments, max(1, together))
        del arguments
        self.launches, self.swapped_sets = self._plan(shortest, sets)
        self.sample_us = shortest * self.launches

    def _can_capture(self, arguments: Sequence[torch.Tensor]) -> bool:
        try:
            for function in self._functions:
                Launcher(function, [arguments], graphed=True)
        except RuntimeError:
            torch.cuda.synchronize()
            _renew_generator()
            return False
        return True

    def _shortest_us(self, arguments: Sequence[torch.Tensor], together: int) -> float:
        """Device time of the fastest function, from samples of so many launches on the same arguments."""
        medians = []
        for function in self._functions:
            launcher = Launcher(function, [arguments] * together, self.graphed)
            medians.append(statistics.median(self.time_runs([launcher], [0] * 4)[1:]) / together)
        return min(medians)

    def _plan(self, shortest: float, sets: int) -> tuple[int, bool]:
        """Launches per sample and whether two buffer sets fit in half of the free memory."""
        budget = devices.free_bytes("cuda") // 2
        one_launch = sets * self._input_bytes + max(len(self._functions), 2) * self._output_bytes
        wanted = min(MAX_LAUNCHES, math.ceil(GRAPH_US / max(shortest, 0.5))) if shortest < SHORT_US else 1
        launches = max(1, min(wanted, budget // max(one_launch, 1))) if self.graphed else 1
        # at one launch a sample, the other half of the memory may be used as well
        return launches, sets == 2 and one_launch * launches <= 2 * budget

    def open_block(self, rng: random.Random) -> tuple[Any, Any]:
        self._pad = torch.empty(rng.randrange(1, 64) << 20, dtype=torch.uint8, device="cuda")
        first = self._buffers()
        return first, self._buffers() if self.swapped_sets else first

    def _buffers(self) -> list[tuple[torch.Tensor, ...]]:
        return [tuple(self._make_inputs()) for _ in range(self.launches)]

    def launcher(self, which: int, buffers: Any) -> Launcher:
        launcher = Launcher(self._functions[which], buffers, self.graphed)
        launcher()
        return launcher

    def time_runs(self, launchers: Sequence[Launcher], order: Sequence[int]) -> list[float]:
        events = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in order]
        reset_persisting_l2()
        for launcher in launchers:
            launcher.spoil()
        torch.cuda.synchronize()
        _sleep(_SLEEP_CYCLES)
        for which, (start, stop) in zip(order, events, strict=True):
            self._flush()
            if not self.graphed:  # the host may be slower than the device: let it get ahead before the clock starts
                _sleep(_SLEEP_CYCLES)
            start.record()
            launchers[which]()
            stop.record()
            launchers[which].spoil()  # before the flush, which leaves nothing of this in the cache
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) * 1e3 / self.launches for start, stop in events]

    def close_block(self) -> bool:
        self._pad = None
        # without this the next block would be given the same memory again
        torch.cuda.empty_cache()
        return not self._throttled()

    def call_us(self) -> tuple[float | None, ...]:
        return call_times(self._functions, tuple(self._make_inputs()), torch.cuda.synchronize)


def _renew_generator() -> None:
    """A capture that failed leaves torch's generator believing that it is still captured: give it a new state."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(generator.device)
    fresh.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def _bytes(result: Any) -> int:
    return sum(t.numel() * t.element_size() for t in as_tuple(result))


@cache
def bandwidths() -> tuple[float, float]:
    """Bytes a second of a device copy (read plus written) and of a fill, the best of ten; measured once a process."""
    size = min(2**31, devices.free_bytes("cuda") // 4) // 2**20 * 2**20
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    flush = Flush()

    def best(run: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(10):
            start, stop = _Event(enable_timing=True), _Event(enable_timing=True)
            flush()
            start.record()
            run()
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) / 1e3)
        return min(times)

    return 2 * size / best(lambda: target.copy_(source)), size / best(lambda: target.zero_())


@cache
def _cudart() -> Any | None:
    """The CUDA runtime that torch has loaded; None where it cannot be found."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libcudart" in path:
            library = ctypes.CDLL(path)
            return library if hasattr(library, "cudaCtxResetPersistingL2Cache") else None
    return None


def reset_persisting_l2() -> None:
    """Give back cache lines that an earlier launch may have pinned."""
    if (runtime := _cudart()) is not None:
        runtime.cudaCtxResetPersistingL2Cache()

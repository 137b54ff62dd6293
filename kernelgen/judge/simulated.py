"""An NPU that is simulated in torch: tensors that say they are on an NPU and lie in the host's memory.

For tests of everything around a kernel: `.npu()`, `.is_npu`, `device="npu"`, `torch.npu.synchronize()`, events. Kernels
run in Triton's interpreter. Times on it are those of this CPU: they are labelled simulated, and no speedup is made of
them. The hooks of torch that this uses are private and may change; torch 2.11 to 2.13 have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .oracle import as_tuple

NAME = "simulated NPU"
_kept: list[Any] = []
"""Registrations, which end when they are collected."""


class NpuTensor(torch.Tensor):
    """A tensor on npu:0; `host` is the memory that it stands for."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> NpuTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device("npu:0"), requires_grad=host.requires_grad,
        )  # fmt: skip
        made.host = host
        assert isinstance(made, NpuTensor)
        return made

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class Event:
    """torch.npu.Event by the host's clock."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, simulated."""
        return (end._at - self._at) * 1e3


def install() -> None:
    """Make torch.npu and the device "npu" in this process; once is enough."""
    if _kept:
        return
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Backend(_DummyBackendModule):
        def Event(self, **options: Any) -> Event:
            return Event(**options)

        def is_available(self) -> bool:
            return True

        def device_count(self) -> int:
            return 1

        def current_device(self) -> int:
            return 0

        def set_device(self, device: Any) -> None:
            pass

        def device(self, index: int) -> Any:
            return nullcontext()

        def synchronize(self, device: Any = None) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_name(self, device: Any = None) -> str:
            return NAME

    _setup_privateuseone_for_python_backend(rename="npu", backend_module=Backend())
    library: Any = torch.library.Library
    everything = library("_", "IMPL")
    everything.fallback(lambda operation, *args, **kwargs: _run(operation, args, kwargs), "PrivateUse1")
    aten = library("aten", "IMPL")
    for name, overload in (("empty", "memory_format"), ("empty_strided", "default"), ("_to_copy", "default")):
        operation = getattr(getattr(torch.ops.aten, name), overload)
        aten.impl(name if overload == "default" else f"{name}.{overload}", _forwarded(operation), "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    _kept.extend([everything, aten])
    _launch_on_the_host()


def _launch_on_the_host() -> None:
    """The interpreter asks tensors for their storage, which these have none of."""
    from triton.runtime import interpreter

    launch = interpreter.GridExecutor.__call__

    def instead(self: Any, *args: Any, **kwargs: Any) -> Any:
        return launch(self, *map(_host, args), **{name: _host(value) for name, value in kwargs.items()})

    interpreter.GridExecutor.__call__ = instead


def on_npu(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of host tensors that calls `function` with the same memory on the simulated NPU."""

    def call(*tensors: torch.Tensor) -> Any:
        outputs = function(*(NpuTensor(tensor) for tensor in tensors))
        back = tuple(output.host if isinstance(output, NpuTensor) else output for output in as_tuple(outputs))
        return back[0] if isinstance(outputs, torch.Tensor) else back

    return call


def time_us(function: Callable[..., Any], tensors: Sequence[torch.Tensor], runs: int = 3) -> float:
    """Simulated microseconds of a call: the least of some runs by torch.npu's events."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    arguments = [NpuTensor(tensor) for tensor in tensors]
    times = []
    for _ in range(runs):
        start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
        start.record()
        function(*arguments)
        end.record()
        npu.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return float(min(times))


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    """An operation on the host's memory; what comes out is on the NPU where something that went in was, or was asked
    for there."""
    given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, NpuTensor)]
    there = bool(given)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == "npu"
        kwargs = {**kwargs, "device": "cpu"}
    known = {id(tensor.host): tensor for tensor in given}
    out = function(*tree_map(_host, args), **tree_map(_host, kwargs))

    def wrapped(result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or isinstance(result, NpuTensor):
            return result
        if id(result) in known:  # of an operation in place
            return known[id(result)]
        return NpuTensor(result) if there else result

    return tree_map(wrapped, out)


def _host(argument: Any) -> Any:
    if isinstance(argument, NpuTensor):
        return argument.host
    return torch.device("cpu") if isinstance(argument, torch.device) and argument.type == "npu" else argument


def _forwarded(operation: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(operation, args, kwargs)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _host(target).copy_(_host(source))
    return target

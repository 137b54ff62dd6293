"""The launches of a wrapper, seen without an NPU: their kernels lowered, and run on the CPU where that is asked."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kernelgen.ascend.lowering import Finding, Lowered, Request, lower
from kernelgen.judge import simulated

MAX_GRID = 65535
POINTERS = {
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64", "int8": "*i8", "uint8": "*u8",
    "int16": "*i16", "int32": "*i32", "int64": "*i64", "bool": "*i1",
}  # fmt: skip


class NotRunnable(Exception):
    """The lowered form of a kernel cannot be run on this machine."""


@dataclass(frozen=True)
class Launch:
    """One launch of a wrapper."""

    kernel: str
    grid: tuple[int, ...]
    request: Request
    arguments: tuple[Any, ...]
    """Tensors and numbers that are not compiled in, in order."""
    line: int
    """Where in the file it is made."""
    elements: int
    """Of its largest tensor."""

    def lowered(self) -> Lowered:
        """What the compiler says of it, the grid's own limits included."""
        found = lower(self.request)
        programs = prod(self.grid)
        if programs > MAX_GRID:
            text = f"{programs} programs, of which a launch takes {MAX_GRID}: one a core with a loop is enough"
            found = replace(found, findings=(*found.findings, Finding("grid", self.line, text)))
        return found


@contextlib.contextmanager
def caught(take: Callable[[Launch], None], target: str) -> Iterator[None]:
    """Hand every launch of a jit function to `take`, instead of compiling it for a GPU."""
    run = JITFunction.run

    def instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        take(_launch(self, args, grid, kwargs, target))

    JITFunction.run = instead
    try:
        yield
    finally:
        JITFunction.run = run


def recorded(wrapper: Callable[..., Any], inputs: list[Any], target: str) -> list[Launch]:
    """The launches that a wrapper makes for inputs of these shapes and dtypes, none of them run."""
    launches: list[Launch] = []
    tensors = [
        said if dtype == "value" else torch.empty(said, dtype=getattr(torch, dtype), device="meta")
        for said, dtype in inputs
    ]
    simulated.install()
    with caught(launches.append, target):
        wrapper(*map(simulated.NpuTensor, tensors))
    return launches


def on_cpu(wrapper: Callable[..., Any], target: str) -> Callable[..., Any]:
    """The wrapper with its kernels run on the CPU from their lowered form. Raises NotRunnable where that cannot be."""

    simulated.install()
    there = simulated.on_npu(wrapper)

    def call(*tensors: Any) -> Any:
        with caught(run, target):
            return there(*tensors)

    return call


def run(launch: Launch) -> None:
    """Every program of a launch, one after the other."""
    found = lower(launch.request)
    if found.object is None:
        raise NotRunnable(found.object_message)
    function = _function(str(found.object), launch.kernel)
    # Two memrefs of the runtime's own come first: the lock of a block, and workspace. Neither is used here.
    passed = [*_memref(0, 0), *_memref(0, 0)]
    for argument in launch.arguments:
        passed += _passed(argument)
    grid = (*launch.grid, 1, 1)[:3]
    sizes = [ctypes.c_int32(n) for n in grid]
    for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
        function(*passed, *sizes, ctypes.c_int32(x), ctypes.c_int32(y), ctypes.c_int32(z))


@cache
def _function(path: str, name: str) -> Any:
    function = getattr(ctypes.CDLL(path), name)
    function.restype = None
    return function


def _memref(address: int, elements: int) -> list[Any]:
    pointer = ctypes.c_void_p(address)
    return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(elements), ctypes.c_int64(1)]


def _passed(argument: Any) -> list[Any]:
    if isinstance(argument, torch.Tensor):
        return _memref(argument.data_ptr(), argument.numel())
    return [ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int32(argument)]


def _launch(function: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any], target: str) -> Launch:
    """One launch as Triton would have made it: an integer that is one is compiled in, as a stride of one must be."""
    options = {name: value for name, value in kwargs.items() if name not in function.signature.parameters}
    bound = function.signature.bind(*args, **{n: v for n, v in kwargs.items() if n not in options})
    bound.apply_defaults()
    values = dict(bound.arguments)
    compiled_in = {p.name for p in function.params if p.is_constexpr}
    compiled_in |= {p.name for p in function.params if not p.do_not_specialize and _is_one(values[p.name])}
    signature = tuple((n, _type(v)) for n, v in values.items() if n not in compiled_in)
    path = inspect.getsourcefile(function.fn) or ""
    size = grid(values) if callable(grid) else grid
    request = Request(
        path, function.fn.__name__, signature, tuple((n, values[n]) for n in values if n in compiled_in), target,
        tuple(sorted(options.items())),
    )  # fmt: skip
    arguments = tuple(values[n] for n, _ in signature)
    elements = max((v.numel() for v in arguments if isinstance(v, torch.Tensor)), default=0)
    return Launch(function.fn.__name__, tuple(int(n) for n in size), request, arguments, _line_in(path), elements)


def _is_one(value: Any) -> bool:
    return type(value) is int and value == 1


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[str(value.dtype).removeprefix("torch.")]
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def _line_in(path: str) -> int:
    """The line of the file that is running now."""
    frame = sys._getframe()
    while frame.f_back is not None and not (frame.f_code.co_filename and Path(frame.f_code.co_filename) == Path(path)):
        frame = frame.f_back
    return frame.f_lineno

"""Kernels at sizes that no machine here holds: the interpreter runs a few programs of every launch, and each address that
they read or write must lie within its tensor. Tensors have a size and no memory."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, TensorHandle
from triton.tools.tensor_descriptor import TensorDescriptor

APART = 2**44
"""Bytes from one tensor to the next; each begins in the middle, so that an offset that is negative is seen as well."""
GRID = (2**31 - 1, 65535, 65535)
"""The most programs along each dimension, and Triton's launcher counts all of them in an int32 (CUDA C Programming
Guide, Technical Specifications per Compute Capability)."""
FEW = 4
"""The iterations of a loop that are run: the first ones and the last."""
LANGUAGE = tl


class OutOfBounds(AssertionError):
    """An address that is not within its tensor, or a grid that no device takes."""


@dataclass(frozen=True)
class Pointer:
    """A tensor as the interpreter sees it."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


class Memory:
    """Where the tensors of a call would lie, and what every element of some of them is: zero, of all others."""

    def __init__(self) -> None:
        self.kernel = ""
        self._storages: list[torch.UntypedStorage] = []
        self._names: list[str] = []
        self._values: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def number(self, tensor: torch.Tensor, name: str, value: int = 0) -> int:
        """Which of the tensors it is, as a number from 1 on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._storages.append(storage)
            self._names.append(name)
            self._numbers[storage._cdata] = len(self._storages)
        if value:
            self._values[self._numbers[storage._cdata]] = value
        return self._numbers[storage._cdata]

    def pointer(self, tensor: torch.Tensor, name: str) -> Pointer:
        # programs wait for words that are not zero
        first = self.number(tensor, name, 1 if name.endswith("words_ptr") else 0) * APART + APART // 2
        return Pointer(first + tensor.storage_offset() * tensor.element_size(), tensor.dtype)

    def check(self, pointers: Any, mask: Any, size: int) -> None:
        """Raises OutOfBounds for an address of an active lane."""
        found = pointers[np.broadcast_to(mask, pointers.shape)].astype(np.int64)
        numbers = found // APART
        for number in np.unique(numbers):
            offsets = found[numbers == number] - number * APART - APART // 2
            if not 0 < number <= len(self._storages):
                raise OutOfBounds(f"{self.kernel}: an address of no tensor")
            length = self._storages[number - 1].nbytes()
            low, high = int(offsets.min()), int(offsets.max()) + size
            if low < 0 or high > length:
                name = self._names[number - 1]
                raise OutOfBounds(f"{self.kernel}: {name}: bytes from {low} to {high}, of {length}")

    def read(self, pointers: Any, dtype: Any) -> Any:
        found = np.zeros(pointers.shape, dtype)
        for number, value in self._values.items():
            found[pointers // APART == number] = value
        return found


def check_call(module: ModuleType, wrapper: Callable[..., Any], tensors: list[torch.Tensor], values: list[int]) -> int:
    """Calls a wrapper with tensors of the device "meta", of which every element of the one is the one of `values`, and
    runs a few programs of each launch; how many launches there were. Raises OutOfBounds, or the wrapper's ValueError."""
    memory, launches = Memory(), 0
    for tensor, value in zip(tensors, values, strict=True):
        memory.number(tensor, "an input", value)

    def call(executor: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal launches
        launches += 1
        given = inspect.getfullargspec(executor.fn).args
        bound = inspect.getcallargs(executor.fn, *args, **{k: v for k, v in kwargs.items() if k in given})
        memory.kernel = executor.fn.__name__
        _run(executor, bound, memory)

    with _patched(memory, module, call):
        wrapper(*tensors)
    return launches


def _run(executor: Any, bound: dict[str, Any], memory: Memory) -> None:
    seen = {n: _seen(memory, n, v) for n, v in bound.items()}
    args = {n: v if n in executor.constexprs else interpreter._implicit_cvt(v) for n, v in seen.items()}
    grid = (*executor.grid, 1, 1)[:3]
    if any(n > most for n, most in zip(grid, GRID, strict=True)) or math.prod(grid) > GRID[0]:
        raise OutOfBounds(f"{memory.kernel}: a grid of {executor.grid}")
    builder: Any = interpreter.interpreter_builder
    builder.set_grid_dim(*grid)
    scope = interpreter._patch_lang(executor.fn)
    try:
        for place in {(0, 0, 0), tuple(n // 2 for n in grid), tuple(n - 1 for n in grid)}:
            builder.set_grid_idx(*place)
            executor.fn(**args)
    finally:
        scope.restore()


def _seen(memory: Memory, name: str, value: Any) -> Any:
    """An argument whose tensor has an address."""
    if isinstance(value, TensorDescriptor):
        described = copy.copy(value)
        described.base = memory.pointer(value.base, name)
        return described
    return memory.pointer(value, name) if isinstance(value, torch.Tensor) else value


@contextmanager
def _patched(memory: Memory, module: ModuleType, call: Callable[..., None]) -> Iterator[None]:
    builder = type(interpreter.interpreter_builder)

    def active(mask: Any) -> Any:
        """Of a descriptor's tile the interpreter has an array."""
        return mask if isinstance(mask, np.ndarray) else mask.data

    def load(self: Any, ptrs: Any, mask: Any, other: Any, *_: Any, **__: Any) -> TensorHandle:
        kind = ptrs.get_element_ty()
        lanes = active(mask)
        memory.check(ptrs.data, lanes, max(kind.primitive_bitwidth // 8, 1))
        read = memory.read(ptrs.data, interpreter._get_np_dtype(kind))
        return TensorHandle(read if other is None else np.where(lanes, read, other.data), kind)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        memory.check(ptrs.data, active(mask), max(ptrs.get_element_ty().primitive_bitwidth // 8, 1))

    def atomic(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *_: Any) -> TensorHandle:
        memory.check(ptr.data, mask.data, val.data.itemsize)
        return TensorHandle(np.zeros_like(val.data), val.dtype.scalar)

    def ends(*args: Any, **_: Any) -> Any:
        every = range(*map(int, args))
        return every if len(every) <= FEW else [*every[: FEW // 2], *every[-FEW // 2 :]]

    core = interpreter._patch_lang_core

    def language(lang: Any, scope: Any) -> None:
        core(lang, scope)
        scope.set_attr(lang, "range", ends)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", load)
        patch.setattr(builder, "create_masked_store", store)
        patch.setattr(builder, "create_atomic_rmw", atomic)
        patch.setattr(interpreter, "_patch_lang_core", language)
        patch.setattr(interpreter, "_patch_lang", inspect.unwrap(interpreter._patch_lang))  # every time: see `call`
        patch.setattr(GridExecutor, "__call__", call)
        patch.setattr(module, "range", ends, raising=False)
        if hasattr(module, "num_waiting"):
            patch.setattr(module, "num_waiting", lambda device, options: 2**20)
        for name, answer in (("num_programs", 132), ("has_copy_engine", True)):  # as an H200 says
            patch.setattr(module, name, lambda device, answer=answer: answer, raising=False)
        yield

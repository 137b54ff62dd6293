"""What the device reaches: `python -m kernelgen.worker.ceilings cuda|cpu [--small]` prints the rates as JSON.

Copies, reads, writes and fills by size, products of matrices by dtype, launches and atomic additions, with torch's own
kernels. On a GPU calls are captured in a graph, so that the host's time for each is not in them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

SIZES = tuple(1 << power for power in range(18, 33))
"""Bytes of a tensor: 256 KiB to 4 GiB."""
SMALL_SIZES = (1 << 16, 1 << 18)
MATRICES, SMALL_MATRICES = (1024, 2048, 4096, 8192), (64, 128)
DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8_e4m3fn")
ADDITIONS, SMALL_ADDITIONS = 1 << 24, 1 << 14
ADDRESSES = 1 << 20
REPETITIONS = 7
SAMPLE_S = 2e-3
"""A sample lasts about this long at least."""
MOST_CALLS = 200

Call = Callable[[], object]
Rate = dict[str, Any]


def measure(device: str, *, small: bool = False) -> dict[str, Any]:
    """Every rate; what fails, for want of memory or because a device does not do it, is left out with its reason."""
    if device == "cpu":
        torch.set_num_threads(1)  # threads that wait for a core that others have say nothing of the device
    rates: list[Rate] = []
    left_out: list[tuple[str, str]] = []
    for what, size, amount, make in (*_moves(device, small), *_products(device, small), *_others(device, small)):
        try:
            timed = _host_seconds if what == "host call" else seconds_of
            rates.append({"what": what, "size": size, "per_s": amount / timed(make(), device)})
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            left_out.append((f"{what} {size}", str(error).splitlines()[0][:200]))
        if device == "cuda":
            torch.cuda.empty_cache()
    gpu = torch.cuda.get_device_properties(0) if device == "cuda" else None
    l2 = int(gpu.L2_cache_size) if gpu is not None else 0
    name = torch.cuda.get_device_name() if gpu is not None else "CPU, one thread"
    return {"device": name, "torch": torch.__version__, "l2_bytes": l2, "rates": rates, "left_out": left_out}


Measured = tuple[str, int, float, Callable[[], Call]]
"""What, its size, how much one call does, and the call with its tensors made."""


def _moves(device: str, small: bool) -> Iterator[Measured]:
    def tensor(size: int) -> torch.Tensor:
        return torch.ones(size // 4, dtype=torch.float32, device=device)

    def copy(size: int) -> Call:
        source, target = tensor(size), tensor(size)
        return lambda: target.copy_(source)

    def read(size: int) -> Call:
        source = tensor(size)
        return lambda: torch.sum(source)

    def write(size: int) -> Call:
        target = tensor(size)
        return lambda: target.fill_(2.0)

    def fill(size: int) -> Call:
        target = tensor(size)
        return lambda: target.zero_()

    moves: tuple[tuple[str, int, Callable[[int], Call]], ...] = (
        ("copy", 2, copy), ("read", 1, read), ("write", 1, write), ("fill", 1, fill),
    )  # fmt: skip
    for size in SMALL_SIZES if small else SIZES:
        for what, times, make in moves:
            yield what, size, float(times * size), partial(make, size)


def _products(device: str, small: bool) -> Iterator[Measured]:
    def product(dtype: str, size: int) -> Call:
        kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        if dtype.startswith("float8"):
            a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
            one = torch.ones((), device=device)
            return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        return lambda: a @ b

    for dtype in DTYPES:
        if dtype == "tf32" and device == "cpu":
            continue
        for size in SMALL_MATRICES if small else MATRICES:
            yield f"matrix {dtype}", size, 2.0 * size**3, partial(product, dtype, size)


def _others(device: str, small: bool) -> Iterator[Measured]:
    def tiny() -> Call:
        one = torch.zeros(1, device=device)
        return lambda: one.add_(1)

    def add(count: int, addresses: int) -> Call:
        target = torch.zeros(addresses, device=device)
        places = torch.randint(addresses, (count,), device=device)
        ones = torch.ones(count, device=device)
        return lambda: target.index_add_(0, places, ones)

    count = SMALL_ADDITIONS if small else ADDITIONS
    yield "launch", 4, 1.0, tiny
    yield "host call", 4, 1.0, tiny
    yield "atomics", 4 * ADDRESSES, float(count), partial(add, count, ADDRESSES)
    yield "atomics on one address", 4, count / 16, partial(add, count // 16, 1)


def seconds_of(call: Call, device: str) -> float:
    """The median time of a call on the device."""
    if device != "cuda":
        return _host_seconds(call, device)
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    count = _count(_events(call))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return statistics.median(_events(graph.replay) for _ in range(REPETITIONS)) / count


def _events(call: Call) -> float:
    event: Any = torch.cuda.Event
    before, after = event(enable_timing=True), event(enable_timing=True)
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e-3


def _host_seconds(call: Call, device: str) -> float:
    """The median time of a call as its caller sees it, one queued after the other."""

    def sample(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    sample(2)
    count = _count(sample(1))
    return statistics.median(sample(count) for _ in range(REPETITIONS))


def _count(seconds: float) -> int:
    return max(1, min(MOST_CALLS, int(SAMPLE_S / max(seconds, 1e-9))))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], small="--small" in sys.argv)))

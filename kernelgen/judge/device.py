"""Where the judge runs: a CUDA device if there is one, else the host with Triton's interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from .interpreter import as_on_a_gpu
from .model import Function

SIMULATED = "KERNELGEN_SIMULATED_NPU"
"""A variable that asks for the simulated NPU."""


def prepare() -> str:
    """Select Triton's interpreter where there is no GPU; returns "cuda" or "cpu".

    Must run before the kernel's module is imported: triton.jit reads the setting when it decorates.
    """
    device = find()
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        as_on_a_gpu()
    if is_simulated():
        from .simulated import install

        install()
    return device


def is_simulated() -> bool:
    """Whether kernels are to be called on an NPU that is simulated in torch, for tests of all that is around them."""
    return bool(os.environ.get(SIMULATED)) and find() == "cpu"


def there(function: Function) -> Function:
    """A function as it is to be called: with its tensors on the simulated NPU where there is one."""
    if not is_simulated():
        return function
    from .simulated import on_npu

    return on_npu(function)


def find() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe() -> str:
    """The device in words, for the head of a report."""
    if find() == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    if is_simulated():
        return f"a simulated NPU on this CPU, torch {torch.__version__}"
    return f"cpu with Triton's interpreter, torch {torch.__version__}"


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def is_lost(device: str) -> bool:
    """A kernel's fault has made the device unusable for this process."""
    try:
        synchronize(device)
    except RuntimeError:
        return True
    return False


def free_bytes(device: str) -> int:
    """Memory that a case may still take: free on the device plus what the caching allocator holds unused."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    for line in _meminfo():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo() -> list[str]:
    try:
        return Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return []

"""Where the judge runs: a CUDA device if there is one, else the host with Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .interpreter import as_on_a_gpu, decorate_again
from .model import Function

_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "busy or unavailable")
"""What drivers and libraries say where the device's memory is full; the last where a process cannot even begin."""
SIMULATED = "KERNELGEN_SIMULATED_NPU"
"""A variable that asks for the simulated NPU."""


def prepare() -> str:
    """Select Triton's interpreter where there is neither a GPU nor an NPU; returns "cuda" or "cpu", where tensors lie
    that a kernel's arguments are copied from.

    Must run before a kernel's module is imported: triton.jit reads the setting when it decorates. Where Triton itself
    was imported before, as torch.export does, its own functions (tl.sum) are decorated again. Raises RuntimeError where
    it is too late.
    """
    device = find()
    interpreted = device == "cpu" and not is_npu()
    if interpreted:
        os.environ["TRITON_INTERPRET"] = "1"
        decorate_again()
        as_on_a_gpu()
    else:
        _expect_compiled()
    if is_simulated():
        from .simulated import install

        install()
    return device


def _expect_compiled() -> None:
    """Kernels of which Triton interprets one half and compiles the other are neither right nor wrong."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if not isinstance(tl.sum, JITFunction):
        raise RuntimeError(
            "TRITON_INTERPRET is set where a device is: unset it, or hide the device (CUDA_VISIBLE_DEVICES='')"
        )


def is_simulated() -> bool:
    """Whether kernels are to be called on an NPU that is simulated in torch, for tests of all that is around them."""
    return bool(os.environ.get(SIMULATED)) and find() == "cpu"


def there(function: Function) -> Function:
    """A function as it is to be called: with its tensors on the NPU where there is one, or on the simulated one."""
    if is_simulated():
        from . import simulated

        return simulated.on_npu(function)
    if is_npu():
        from . import npu

        return npu.on_npu(function)
    return function


def on(device: str, function: Function) -> Function:
    """A function of tensors that gives a tensor, as it is computed on a device; with tensors of the host, where its
    result is wanted too, "cpu" is the NPU where there is one, as in `there`."""
    if device != "cuda":
        return there(function)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = function(*(x.to(device) for x in tensors))
        return found.to(tensors[0].device)

    return call


def is_npu() -> bool:
    """Whether kernels run on a real NPU, by way of tensors in the host's memory."""
    if find() == "cuda" or is_simulated():
        return False
    from . import npu

    return npu.here()


def allocated_on(device: str) -> str:
    """The device that a wrapper allocates on which is called with tensors of `device`."""
    return "npu" if device == "cpu" and is_npu() else device


def timed() -> str:
    """Where times are measured: "cuda", "npu", or "" on a machine with neither."""
    return "cuda" if find() == "cuda" else "npu" if is_npu() else ""


def stage(functions: Sequence[Function], make_inputs: Any, sets: int = 2) -> Any:
    """The timing.Stage of this machine's device."""
    if is_npu():
        from .npu import NpuStage

        return NpuStage(functions, make_inputs, sets)
    from .cuda import CudaStage

    return CudaStage(functions, make_inputs, sets)


def bandwidths() -> tuple[float, float]:
    """Bytes a second of a copy and of a fill on this machine's device."""
    if is_npu():
        from . import npu

        return npu.bandwidths()
    from . import cuda

    return cuda.bandwidths()


@contextmanager
def without_onednn() -> Iterator[None]:
    """While it holds, a CPU computes convolutions in narrower floats as those in float64: oneDNN's skip the zeros that
    a window is padded with, which times infinity are NaN."""
    flags: Any = torch.backends.mkldnn  # its own context warns of TF32
    before, flags.enabled = flags.enabled, False
    try:
        yield
    finally:
        flags.enabled = before


@contextmanager
def without_cudnn() -> Iterator[None]:
    """While it holds, convolutions are computed by torch's own kernels."""
    flags: Any = torch.backends.cudnn  # its own context sets TF32 as well
    before, flags.enabled = flags.enabled, False
    try:
        yield
    finally:
        flags.enabled = before


def empty_cache() -> None:
    """Give back device memory that torch holds unused."""
    if is_npu():
        from . import npu

        npu.module().empty_cache()
    else:
        torch.cuda.empty_cache()


def give_back(most: int) -> None:
    """Give back memory of the GPU that torch holds unused, if that is more than so many bytes."""
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > most:
        torch.cuda.empty_cache()


def forget_peak(device: str) -> None:
    """From now on `peak_bytes` counts."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        _BEFORE[device] = torch.cuda.memory_allocated()


def peak_bytes(device: str) -> int | None:
    """The most memory that was taken since `forget_peak`, beside what was held then; None where nobody counts it."""
    return torch.cuda.max_memory_allocated() - _BEFORE[device] if device == "cuda" else None


_BEFORE: dict[str, int] = {}


def find() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe() -> str:
    """The device in words, for the head of a report."""
    if find() == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    if is_npu():
        return f"{torch.npu.get_device_name()}, torch {torch.__version__}"  # type: ignore[attr-defined]
    if is_simulated():
        return f"a simulated NPU on this CPU, torch {torch.__version__}"
    return f"cpu with Triton's interpreter, torch {torch.__version__}"


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    elif is_npu():
        torch.npu.synchronize()  # type: ignore[attr-defined]


def is_lost(device: str) -> bool:
    """A kernel's fault has made the device unusable for this process."""
    try:
        synchronize(device)
    except RuntimeError:
        return True
    return False


def is_full(error: BaseException) -> bool:
    """Whether an error says that the device has no memory left, which is no fault of a kernel's. Triton and cuBLAS say
    so by a RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


def free_bytes(device: str) -> int:
    """Memory that a case may still take: free on the device plus what the caching allocator holds unused.

    0 where others have taken so much that this process cannot even begin on the device.
    """
    if device == "npu":
        from . import npu

        return npu.free_bytes()
    if device == "cuda":
        try:
            return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        except RuntimeError as error:
            if not is_full(error):
                raise
            return 0
    for line in _meminfo():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo() -> list[str]:
    try:
        return Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return []

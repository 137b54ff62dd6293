"""The few questions that are asked of the NVIDIA driver, through ctypes: no torch, a few milliseconds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any
from uuid import UUID

# CUdevice_attribute of cuda.h
ATTRIBUTES = {
    "max_threads_per_block": 1,
    "clock_khz": 13,
    "sms": 16,
    "compute_mode": 20,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "max_threads_per_sm": 39,
    "major": 75,
    "minor": 76,
    "shared_per_sm": 81,
    "registers_per_sm": 82,
    "shared_per_block_max": 97,
    "max_programs_per_sm": 106,
    "shared_reserved": 111,
}


@dataclass(frozen=True)
class Gpu:
    """The first visible GPU as its driver describes it."""

    name: str
    arch: str
    memory_bytes: int
    attributes: dict[str, int]
    cuda: str
    """The newest CUDA version that the driver supports, such as "13.0"."""
    driver: str
    """The kernel driver's version; empty where NVML does not say."""
    names: tuple[str, ...] = ()
    """Of all visible GPUs, this one first; none where they were not asked for."""


def probe() -> tuple[Gpu | None, str]:
    """The first visible GPU, or None and the reason in a few words."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no NVIDIA driver: libcuda.so.1 is not on this machine"
    error = lib.cuInit(0)
    if error:
        return None, f"the NVIDIA driver does not start: cuInit returned {error}"
    count = ctypes.c_int()
    if lib.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None, "the NVIDIA driver shows no GPU"
    device = ctypes.c_int()
    lib.cuDeviceGet(ctypes.byref(device), 0)
    names = tuple(_name(lib, number) for number in range(count.value))
    total = ctypes.c_size_t()
    lib.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    version = ctypes.c_int()
    lib.cuDriverGetVersion(ctypes.byref(version))
    attributes = {key: _attribute(lib, number, device) for key, number in ATTRIBUTES.items()}
    return Gpu(
        name=names[0],
        arch=f"sm_{attributes['major']}{attributes['minor']}",
        memory_bytes=total.value,
        attributes=attributes,
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
        driver=_driver_version(),
        names=names,
    ), ""


def uuid() -> str:
    """Of the first visible GPU, as NVML names it; empty where there is none."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    found, device = (ctypes.c_ubyte * 16)(), ctypes.c_int()
    if lib.cuInit(0) or lib.cuDeviceGet(ctypes.byref(device), 0) or lib.cuDeviceGetUuid_v2(found, device):
        return ""
    return f"GPU-{UUID(bytes=bytes(found))}"


def _name(lib: Any, number: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    lib.cuDeviceGet(ctypes.byref(device), number)
    lib.cuDeviceGetName(name, 256, device)
    return name.value.decode()


def _attribute(lib: Any, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    lib.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _driver_version() -> str:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, 96):
        return ""
    nvml.nvmlShutdown()
    return text.value.decode()

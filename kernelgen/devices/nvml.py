"""How a GPU is while it is measured: clocks, throttling, temperature and who else uses it, asked of NVML."""

from __future__ import annotations

import ctypes
from typing import Any

from kernelgen.devices import libcuda

SM, MEMORY = 1, 2
"""nvmlClockType_t."""
REASONS = {
    0x04: "software power cap", 0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake",
}  # fmt: skip
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that lower clocks; an idle GPU (0x01) and set clocks are none."""

State = dict[str, int | float | list[str]]


def state() -> State:
    """Of the first visible GPU; empty where NVML does not say. A few milliseconds."""
    uuid = libcuda.uuid()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    handle = ctypes.c_void_p()
    if not uuid or library.nvmlInit_v2():
        return {}
    try:
        if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
            return {}
        return read(library, handle)
    finally:
        library.nvmlShutdown()


def read(library: Any, handle: ctypes.c_void_p) -> State:
    """What NVML says of one GPU; what it does not say is left out."""
    found: State = {}
    value, mask, count = ctypes.c_uint(), ctypes.c_ulonglong(), ctypes.c_uint(0)
    for name, clock in (("sm_mhz", SM), ("memory_mhz", MEMORY)):
        if library.nvmlDeviceGetClockInfo(handle, clock, ctypes.byref(value)) == 0:
            found[name] = value.value
    if library.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(value)) == 0:
        found["celsius"] = value.value
    if library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(value)) == 0:
        found["watts"] = value.value / 1000
    if library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(mask)) == 0:
        found["throttled"] = [reason for bit, reason in REASONS.items() if mask.value & bit]
    # with room for none it says how many there are (7: the room does not suffice)
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None) in (0, 7):
        found["compute_processes"] = count.value
    return found

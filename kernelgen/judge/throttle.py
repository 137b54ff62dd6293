"""Has the device lowered its clocks? Asked of NVML, where its library can be loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

SLOWDOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, software thermal, hardware thermal and power brake. The software power cap (0x04) is left out:
cards run under it all the time and it moves slowly, so it hits both sides of a pair alike."""


def reader() -> Callable[[], bool]:
    """A function that says whether the current device is throttled now; always False where NVML cannot be asked."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        ask = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        ask = ask or library.nvmlDeviceGetCurrentClocksThrottleReasons
        handle = _handle(library)
    except (OSError, AttributeError):
        return lambda: False
    return lambda: bool(_reasons(ask, handle) & SLOWDOWN)


def _handle(library: Any) -> ctypes.c_void_p:
    """NVML's handle of torch's current device (NVML numbers all devices, torch only the visible ones)."""
    uuid = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        raise OSError("NVML does not know the device")
    return handle


def _reasons(ask: Any, handle: ctypes.c_void_p) -> int:
    reasons = ctypes.c_ulonglong()
    return reasons.value if ask(handle, ctypes.byref(reasons)) == 0 else 0

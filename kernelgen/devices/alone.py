"""One process at a time takes times on a device, of all that run kernelgen on this machine."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelgen.devices.device import Device, cache_folder

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


@contextmanager
def alone(device: Device) -> Iterator[None]:
    """Wait until no other process takes times on the device, and let none while the block runs. Where the cache cannot
    be written nobody waits. Ends with the process, however that ends."""
    try:
        place = lock_of(device)
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = place.open("a")
    except OSError:
        yield
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def lock_of(device: Device) -> Path:
    """The file of the first visible device: by its number as the variables that show devices have it."""
    variables = {**os.environ, **dict(device.environment)}
    first = next((variables[name].split(",")[0] for name in _VISIBLE if variables.get(name)), "0")
    return cache_folder() / "devices" / f"{device.name}-{re.sub('[^A-Za-z0-9]+', '-', first)}.lock"

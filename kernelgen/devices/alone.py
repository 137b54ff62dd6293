"""One process at a time takes times on a device, of all that tune with the same cache and see it by the same number."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kernelgen.devices.device import Device, cache_folder

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


@contextmanager
def alone(device: Device) -> Iterator[None]:
    """Wait until no other process takes times on the device, and let none while the block runs. Where the cache cannot
    be written, or knows no locks, nobody waits. Ends with the process, however that ends."""
    with ExitStack() as held:
        with suppress(OSError):
            place = lock_of(device)
            place.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(place.open("a")), fcntl.LOCK_EX)
        yield


def lock_of(device: Device) -> Path:
    """The file of the first visible device: by its number as the variables that show devices have it."""
    variables = {**os.environ, **dict(device.environment)}
    first = next((variables[name].split(",")[0] for name in _VISIBLE if variables.get(name)), "0")
    return cache_folder() / "devices" / f"{device.name}-{re.sub('[^A-Za-z0-9]+', '-', first)}.lock"

"""One process at a time takes times on a device, and nothing else works there meanwhile, of all that use the same cache
and see the device by the same number."""

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
    """Wait until no other process takes times on the device or works beside, and let none while the block runs."""
    with _held(device, fcntl.LOCK_EX):
        yield


@contextmanager
def beside(device: Device) -> Iterator[None]:
    """Work on the device that would disturb times: wait until none are taken, and let none be while the block runs."""
    with _held(device, fcntl.LOCK_SH):
        yield


@contextmanager
def _held(device: Device, how: int) -> Iterator[None]:
    """Hold the lock of a device. Where the cache cannot be written, or knows no locks, nobody waits. Ends with the
    process, however that ends."""
    with ExitStack() as held:
        with suppress(OSError):
            place = lock_of(device)
            place.parent.mkdir(parents=True, exist_ok=True)
            # who waits for others to end is passed by nobody who comes later
            with _locked(place.with_suffix(".next"), how):
                held.enter_context(_locked(place, how))
        yield


@contextmanager
def _locked(place: Path, how: int) -> Iterator[None]:
    with place.open("a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open as well


def lock_of(device: Device) -> Path:
    """The file of the first visible device: by its number as the variables that show devices have it."""
    variables = {**os.environ, **dict(device.environment)}
    first = next((variables[name].split(",")[0] for name in _VISIBLE if variables.get(name)), "0")
    return cache_folder() / "devices" / f"{device.name}-{re.sub('[^A-Za-z0-9]+', '-', first)}.lock"

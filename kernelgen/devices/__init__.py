"""The devices, one module each with NAME, PRIORITY, present(), knows(arch) and open_device(arch); a new device is a new
module."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from types import ModuleType

from kernelgen.devices.alone import alone, beside
from kernelgen.devices.device import Card, Device, cache_folder, installed
from kernelgen.devices.facts import DeviceFacts, NpuFacts, Peaks, canonical
from kernelgen.errors import UsageError

__all__ = [
    "Card",
    "Device",
    "DeviceFacts",
    "NpuFacts",
    "Peaks",
    "alone",
    "beside",
    "cache_folder",
    "find",
    "installed",
    "names",
]


def find(name: str | None = None, arch: str | None = None) -> Device:
    """The device to work on: the one named, or the best one present.

    `arch` ("sm_90", or a device of the table such as "h100" or "ascend910b3") says what is compiled and predicted for
    where no such device is here.
    Raises NoDeviceError where the named device is not here and UsageError for a name or arch nobody knows.
    """
    modules = _modules()
    arch = canonical(arch) if arch is not None else None
    if name is None:
        # An architecture that the GPU here is not asks for the device that compiles for any of them.
        for module in modules.values():
            if module.present() or (arch is not None and module.knows(arch)):
                try:
                    return _open(module, arch)
                except UsageError:
                    if module.NAME == "cpu":
                        raise
        raise AssertionError("the cpu device is always present")
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(modules)}"
        raise UsageError(f"--device {name}: no such device; {hint}")
    return _open(modules[name], arch)


def names() -> tuple[str, ...]:
    """Every device kernelgen knows, the most capable first."""
    return tuple(_modules())


def _open(module: ModuleType, arch: str | None) -> Device:
    device = module.open_device(arch)
    assert isinstance(device, Device)
    return device


@cache
def _modules() -> dict[str, ModuleType]:
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    devices = [module for module in found if hasattr(module, "open_device")]
    return {module.NAME: module for module in sorted(devices, key=lambda m: -m.PRIORITY)}

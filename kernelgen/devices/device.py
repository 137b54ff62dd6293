"""What every device module hands out: one frozen `Device`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kernelgen.devices.facts import DeviceFacts, NpuFacts, Peaks

DEFAULT_ARCH = "sm_90"
"""What the kernels are compiled for where no GPU and no `--arch` says otherwise."""


@dataclass(frozen=True)
class Card:
    """One of the devices that are visible."""

    name: str
    """As its driver names it."""
    variables: tuple[tuple[str, str], ...] = ()
    """Show it alone to a process; none where it is alone anyhow."""


@dataclass(frozen=True)
class Device:
    """A place where kernels are verified, and on some timed."""

    name: str
    """The device module: "cuda", "npu" or "cpu"."""
    measures: bool
    """False: nothing is ever timed here, every time is a prediction."""
    facts: Peaks
    """The hardware that is measured, or that predictions are for."""
    driver: str = ""
    """The kernel driver's version; empty where there is none."""
    cuda: str = ""
    """The newest CUDA version that the driver supports."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that processes running kernels on this device need."""
    cards: tuple[Card, ...] = ()
    """Every visible device, of which this is the first; none where nothing is measured."""
    shared: bool = False
    """Whether it is known that several processes may use it at once."""
    family: str = "gpu"
    """Which variants and schedules its kernels have: those of any GPU, or of a family of chips of its own."""
    simulated: bool = False
    """Whether tensors are on a device that is simulated in torch: its times are no speed of anything."""
    instead: str = "cpu (interpreter; compiled and predicted for {})"
    """What a log says of a machine without the device, with the device's name in it."""

    @property
    def arch(self) -> str:
        return self.facts.arch

    @property
    def each(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """For every visible device, the variables that show it alone to a process, where all are of one kind; else
        none."""
        alike = len({card.name for card in self.cards}) == 1
        return tuple(card.variables for card in self.cards) if alike else ((),)

    @property
    def gpu(self) -> DeviceFacts:
        """The facts of a device that is a GPU."""
        assert isinstance(self.facts, DeviceFacts)
        return self.facts

    @property
    def npu(self) -> NpuFacts:
        """The facts of a device that is an NPU."""
        assert isinstance(self.facts, NpuFacts)
        return self.facts

    def state(self) -> dict[str, int | float | list[str]]:
        """How a device that measures is at this moment, as far as its driver says; see `nvml.State`."""
        from kernelgen.devices import nvml

        return nvml.state() if self.name == "cuda" and self.measures else {}

    def describe(self) -> dict[str, str]:
        """What a log must say of the machine that the figures came from."""
        shown = self.facts.name if self.measures else self.instead.format(self.facts.name)
        return {
            "device": shown,
            "arch": self.arch,
            "driver": self.driver or "none",
            "cuda": self.cuda or "none",
            "torch": installed("torch") or "not installed",
            "triton": installed("triton") or installed("triton-ascend") or "not installed",
            "python": platform.python_version(),
        }


def cards(names: Sequence[str], variable: str) -> tuple[Card, ...]:
    """The visible devices by their names, where `variable` chooses among all that a machine has."""
    visible = os.environ.get(variable)
    numbers = visible.split(",") if visible else [str(number) for number in range(len(names))]
    if len(names) == 1:
        return (Card(names[0]),)
    return tuple(Card(name, ((variable, number),)) for name, number in zip(names, numbers, strict=False))


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cache_folder() -> Path:
    """Where compiled kernels are kept between runs: below XDG_CACHE_HOME, by default ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kernelgen"

"""No accelerator: kernels run in Triton's interpreter, are compiled ahead of time and predicted, never measured."""

from __future__ import annotations

import difflib
import os
import sys

from kernelgen.devices import facts
from kernelgen.devices.device import DEFAULT_ARCH, Device
from kernelgen.errors import UsageError

NAME = "cpu"
PRIORITY = 0
ENVIRONMENT = (("TRITON_INTERPRET", "1"), ("CUDA_VISIBLE_DEVICES", ""))
"""A GPU that is here all the same must not be seen: the judge would take it."""


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def present() -> bool:
    """There is always a CPU."""
    return True


def knows(arch: str) -> bool:
    """What it compiles for it opens itself, as the device of last resort."""
    return False


def open_device(arch: str | None) -> Device:
    """The interpreter, with the facts of the GPU that predictions are for. Raises UsageError for an unknown `arch`."""
    chosen = arch or DEFAULT_ARCH
    target = facts.by_arch(chosen) or facts.by_name(chosen)
    if target is None:
        known = [*facts.DEFAULT_BY_ARCH, *(f.key for f in facts.TABLE)]
        near = difflib.get_close_matches(chosen, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise UsageError(f"--arch {chosen}: unknown architecture; {hint}")
    return Device(name=NAME, measures=False, facts=target, environment=ENVIRONMENT)

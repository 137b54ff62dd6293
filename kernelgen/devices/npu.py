"""An Ascend NPU: kernels are verified and measured on it; without one they are lowered and predicted for it."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kernelgen.devices import facts
from kernelgen.devices.device import Device, cards
from kernelgen.errors import NoDeviceError, UsageError

NAME = "npu"
PRIORITY = 5
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
PROBE_LIMIT_S = 120
"""Importing torch-npu and opening the device from a cold disk."""
SIMULATED = "KERNELGEN_SIMULATED_NPU"
"""A variable that names the NPU to simulate in torch, for tests of all that is around kernels."""
SHOWN = "a simulated NPU on this CPU (compiled for and predicted for {}; its times are simulated)"
INSTEAD = "no NPU (compiled for and predicted for {}, run on the CPU from the lowered form)"

_ASK = """
import json, torch, torch_npu
from triton.runtime import driver
properties = driver.active.utils.get_device_properties(torch.npu.current_device())
print(json.dumps({"name": torch.npu.get_device_name(), "memory": torch.npu.get_device_properties(0).total_memory,
                  "cubes": properties["num_aicore"], "vectors": properties["num_vectorcore"],
                  "cann": getattr(torch.version, "cann", "") or "",
                  "names": [torch.npu.get_device_name(i) for i in range(torch.npu.device_count())]}))
"""


@dataclass(frozen=True)
class Npu:
    """The first visible NPU as torch-npu and Triton's driver describe it."""

    name: str
    memory_bytes: int
    cube_cores: int
    vector_cores: int
    cann: str
    names: tuple[str, ...] = ()
    """Of all visible NPUs, this one first; none where they were not asked for."""


def present() -> bool:
    """Whether an NPU, torch-npu and triton-ascend are here. Imports none of them into this process."""
    return bool(os.environ.get(SIMULATED)) or _probe()[0] is not None


def knows(arch: str) -> bool:
    """Whether the table has facts of a target such as "ascend910b3"."""
    return facts.npu_by_name(arch) is not None


def open_device(arch: str | None) -> Device:
    """The first visible NPU, or the one that `arch` names, to compile and predict for.

    Raises NoDeviceError where there is no NPU and none was named, and UsageError for a name the table does not have.
    """
    simulated = os.environ.get(SIMULATED)
    if simulated:
        known, variables = _named(arch or simulated), ((SIMULATED, simulated),)
        return Device(NAME, False, known, environment=variables, family=NAME, simulated=True, instead=SHOWN)
    target = _named(arch) if arch is not None else None
    npu, why = _probe()
    if npu is None:
        if target is None:
            raise NoDeviceError(f"--device npu: {why}; --target ascend910b3 compiles and predicts without an NPU")
        return Device(name=NAME, measures=False, facts=target, family=NAME, instead=INSTEAD)
    here = facts_of(npu)
    if target is not None and target.key != here.key:
        return Device(name=NAME, measures=False, facts=target, family=NAME, instead=INSTEAD)
    environment = tuple((name, value) for name, value in sorted(os.environ.items()) if name.startswith("ASCEND_"))
    found = cards(npu.names or (npu.name,), VISIBLE)
    return Device(NAME, True, here, driver=npu.cann, family=NAME, environment=environment, cards=found)


def facts_of(npu: Npu) -> facts.NpuFacts:
    """The table's facts of an NPU, with the cores and the memory that it says it has."""
    known = facts.npu_by_name(npu.name)
    if known is None:
        # The peaks of the largest of the family: no floor is then above the truth.
        known = replace(facts.NPU_TABLE[0], key=npu.name.lower(), name=npu.name, arch=npu.name.lower())
    return replace(known, cube_cores=npu.cube_cores, vector_cores=npu.vector_cores, memory_bytes=npu.memory_bytes)


def _named(arch: str) -> facts.NpuFacts:
    found = facts.npu_by_name(arch)
    if found is None:
        known = [f.key for f in facts.NPU_TABLE]
        near = difflib.get_close_matches(arch, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise UsageError(f"--target {arch}: unknown chip; {hint}")
    return found


@cache
def _probe() -> tuple[Npu | None, str]:
    """The first visible NPU, or None and the reason in a few words."""
    if os.environ.get(VISIBLE) == "":
        return None, f"{VISIBLE} is empty, which hides every NPU"
    if not any(Path("/dev").glob("davinci[0-9]*")):
        return None, "no NPU: there is no /dev/davinci0 on this machine"
    for package, module in (("torch-npu", "torch_npu"), ("triton-ascend", "triton")):
        if importlib.util.find_spec(module) is None:
            return None, f"an NPU is here, but {package} is not installed"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"torch-npu did not open the NPU within {PROBE_LIMIT_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, f"torch-npu does not open the NPU: {last[:200]}"
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        memory, cubes, vectors = (int(found[name]) for name in ("memory", "cubes", "vectors"))
        return Npu(str(found["name"]), memory, cubes, vectors, str(found["cann"]), tuple(found["names"])), ""
    except (IndexError, KeyError, TypeError, ValueError):
        return None, f"torch-npu says of the NPU what it should not: {done.stdout.strip()[-200:]!r}"

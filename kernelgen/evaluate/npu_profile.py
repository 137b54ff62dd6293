"""What the units of an NPU's cores do: `msprof op` where CANN's tools are on the path, else torch-npu's profiler.

Neither was ever run by a test: there was no NPU. What they write is read from samples of real files.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

from kernelgen.devices import NpuFacts, msprof
from kernelgen.evaluate.profile import output_of
from kernelgen.outcomes import Counters, StaticFacts

MSPROF = "msprof op"
TORCH_NPU = "torch-npu's profiler"

_refusals: list[str] = []
"""Why msprof did not work in this process; it is not asked again."""


def with_msprof(
    request: dict[str, object], launches: Sequence[StaticFacts], env: dict[str, str], limit_s: float, device: NpuFacts
) -> Counters | None:
    """Counters of the candidate's costliest kernel; None where msprof is missing, fails or takes too long."""
    program = shutil.which("msprof")
    if program is None or _refusals or not launches:
        return None
    kernel = max(launches, key=_elements).kernel
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "request.json")  # msprof joins its arguments anew, quotes and all
        asked.write_text(json.dumps({**request, "device": "npu"}), encoding="utf-8")
        command = [
            program, "op", f"--kernel-name={kernel[-msprof.NAME_LENGTH :]}", "--launch-count=1", f"--output={folder}",
            sys.executable, "-P", "-m", "kernelgen.worker.once", f"@{asked}",
        ]  # fmt: skip
        text = output_of(command, env, limit_s)
        try:
            found = msprof.op_files(Path(folder))
        except ValueError:
            last = (text or "").strip().splitlines()[-1:]
            _refusals.append(f"msprof {f'wrote no files: {last[0][:100]}' if last else 'took too long'}")
            return None
    return of_msprof(found, device, alone=len(launches) == 1)


def of_msprof(found: msprof.KernelProfile, device: NpuFacts, *, alone: bool) -> Counters:
    """What msprof wrote of one kernel as the diagnosis reads it; `alone`: a call launches no other."""
    moved = [value for value in (found.read_gb_s, found.write_gb_s) if value is not None]
    return Counters(
        source=MSPROF, dram_utilisation=sum(moved) * 1e9 / device.dram_bytes_per_s if moved else None,
        busy=found.busy, block_dim=found.block_dim, kernels_us=found.duration_us if alone else None,
    )  # fmt: skip


def of_torch_npu(text: str, names: Sequence[str]) -> Counters:
    """The longest run of a call's own kernels in kernel_details.csv. Raises ValueError where one of them has no row.

    The file has no traffic: what the bandwidth is follows from the bytes that are needed.
    """
    runs = msprof.kernels(text)
    microseconds = msprof.median_us(runs, names)
    ours = [run for name in dict.fromkeys(names) for run in msprof.of_kernel(runs, name)]
    longest = max(ours, key=lambda run: run.duration_us)
    why = _refusals[0] if _refusals else "no msprof on the path"
    return Counters(
        source=f"{TORCH_NPU} ({why})", busy=longest.busy, block_dim=longest.block_dim, kernels_us=microseconds
    )


def _elements(launch: StaticFacts) -> float:
    return launch.waves * prod(launch.grid) * max(launch.tile_elements, 1)

"""What a compiled kernel says of itself: registers and spills from its cubin, access widths from its PTX, occupancy."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelgen.devices.facts import DeviceFacts
from kernelgen.outcomes import StaticFacts
from kernelgen.worker.operations import LaunchError

# ld.global.L1::evict_last.v4.b32, st.global.b16, ld.volatile.global.b32, ld.global.nc.v2.b64 ...
ACCESS = re.compile(r"\b(ld|st)(?:\.[a-z]+){0,2}\.global(?:\.[a-zA-Z_][\w:]*)*?(?:\.v(\d))?\.[bfus](\d+)\b")
# cp.async.cg.shared.global [ %r1 ], [ %rd1 ], 0x10, %r2; the bulk form moves tiles of any size
COPY = re.compile(r"\bcp\.async\.(?:ca|cg)\.shared\S*\.global\S*\s+\[.*?\],\s*\[.*?\],\s*(0x[0-9a-f]+|\d+)")
BULK_LOAD = re.compile(r"\bcp\.async\.bulk\.\S*shared\S*\.global")
BULK_STORE = re.compile(r"\bcp\.async\.bulk\.\S*global\.shared")
BULK_BYTES = 16
"""A bulk copy has no thread's width; 16 bytes, the widest of a thread, stands for it."""
USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:(\d+)\s+LOCAL:(\d+)")


@dataclass(frozen=True)
class Accesses:
    """Global memory instructions in a kernel's text; widths in bytes a thread."""

    load_bytes: int
    store_bytes: int
    loads: int
    stores: int


def accesses(ptx: str) -> Accesses:
    """Count and measure the global loads and stores of a kernel."""
    loads: list[int] = []
    stores: list[int] = []
    for kind, vector, bits in ACCESS.findall(ptx):
        (loads if kind == "ld" else stores).append(int(vector or 1) * int(bits) // 8)
    loads += [int(size, 0) for size in COPY.findall(ptx)]
    loads += [BULK_BYTES] * len(BULK_LOAD.findall(ptx))
    stores += [BULK_BYTES] * len(BULK_STORE.findall(ptx))
    return Accesses(max(loads, default=0), max(stores, default=0), len(loads), len(stores))


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack and local memory a thread, as cuobjdump reads them from a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    match = USAGE.search(text)
    if match is None:
        raise RuntimeError(f"cuobjdump printed no resource usage: {text[:200]!r}")
    return int(match[1]), int(match[2]) + int(match[4])


@cache
def cuobjdump() -> str:
    """The program that travels in Triton's wheel."""
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


def resident_programs(facts: DeviceFacts, num_warps: int, registers: int, shared: int) -> int:
    """How many programs an SM can hold at once; 0: not even one."""
    if num_warps * 32 > facts.max_threads_per_block or shared > facts.shared_per_block_max:
        return 0
    step = facts.register_allocation
    per_warp = -(-max(registers, 1) * 32 // step) * step
    # Warps are spread over four schedulers, each with a quarter of the registers.
    by_registers = facts.registers_per_sm // 4 // per_warp * 4 // num_warps
    by_shared = facts.shared_per_sm // (shared + facts.shared_reserved)
    return min(facts.max_warps_per_sm // num_warps, facts.max_programs_per_sm, by_registers, by_shared)


def static_facts(
    name: str, ptx: str, cubin: bytes, num_warps: int, shared: int, grid: Sequence[int], device: DeviceFacts
) -> StaticFacts:
    """Everything known of one launch without running it. Raises LaunchError where no SM can hold a program."""
    registers, spilled = usage(cubin)
    resident = resident_programs(device, num_warps, registers, shared)
    if resident == 0:
        raise LaunchError(
            f"{name} with {num_warps} warps, {registers} registers a thread and {shared} bytes of shared memory "
            f"fits no SM of {device.name} (at most {device.shared_per_block_max} bytes a program)"
        )
    programs = 1
    for n in grid:
        programs *= n
    found = accesses(ptx)
    return StaticFacts(
        kernel=name,
        arch=device.arch,
        grid=tuple(grid),
        num_warps=num_warps,
        registers=registers,
        spill_bytes=spilled,
        shared_bytes=shared,
        occupancy=resident * num_warps / device.max_warps_per_sm,
        waves=programs / (resident * device.sms),
        load_bytes=found.load_bytes,
        store_bytes=found.store_bytes,
        loads=found.loads,
        stores=found.stores,
    )


def code_of(ptx: str) -> str:
    """The kernel's code without what only names its source: line numbers, file names, debug sections, comments."""
    kept = []
    for line in ptx.splitlines():
        text = line.split("//")[0].strip()
        if text.startswith((".file", ".section")):
            break
        if text and not text.startswith((".loc", "$L__tmp", "$L__func")):
            kept.append(text)
    return "\n".join(kept)

"""How long a kernel should take: a roofline whose memory roof is lowered by Little's law.

It is a model, not a measurement: it ranks schedules where no GPU can be timed, and is labelled *predicted*
wherever it is shown. For one launch,

    time = launch latency + the longest of
        dram     = bytes / (achievable bandwidth x sustained)     sustained = what the bytes in flight can keep busy
        l2       = (bytes + spill traffic) / L2 bandwidth
        compute  = flops / fp32 peak / issue
        programs = programs x cost of a program / programs resident at once

and everything but the launch latency is stretched by the idle part of the last round over the SMs. What stays a call of
torch's adds its roofline. The terms:

sustained
    To keep the DRAM busy, bandwidth x latency bytes must be on their way at any moment (Little's law, about
    2.4 MB on an H200). A resident thread keeps one access of its load width in flight for each load
    instruction, at most MAX_ACCESSES of them. Short of that the bandwidth falls in proportion.
issue
    An SM needs some warps to issue an instruction each cycle: full rate from 16 resident warps on.
last round
    133 programs on 132 SMs take as long as 264 where each SM is busy with its own. SMs with nothing left to do
    leave their bandwidth to the others, so half of the idle part counts. It is counted over SMs and not over
    resident programs: more of those may not make a launch slower here, whatever is left over at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelgen.analysis import Work
from kernelgen.devices.facts import DeviceFacts
from kernelgen.outcomes import StaticFacts

MAX_ACCESSES = 8
"""Loads that one thread keeps in flight: the compiler hoists about that many before the first use."""
PROGRAM_S = 0.4e-6
"""What a program costs beside its work: being placed on an SM, index arithmetic, one exposed latency."""
SMALL = 100
"""A launch with less than one part in so many of the largest one's accesses moves nothing worth counting."""
FULL_ISSUE_WARPS = 16
"""Resident warps from which an SM's four schedulers issue at full rate."""


@dataclass(frozen=True)
class Prediction:
    """A predicted time and what it is made of."""

    seconds: float
    bound_by: str
    """The largest term: "dram", "l2", "compute", "programs" or "launch"."""
    terms: tuple[tuple[str, float], ...]
    """Seconds by name, of all launches together: dram, l2, compute, programs, tail, launch."""
    sustained: float
    """The share of the achievable bandwidth that the bytes in flight can keep busy, 0 to 1."""


def predict(work: Work, facts: Sequence[StaticFacts], device: DeviceFacts) -> Prediction:
    """Time of one call that makes the launches `facts` to do `work`.

    The work is spread over the launches in proportion to the bytes that their threads move at a time. A kernel that
    joins what others found moves few: it costs its launch and one program. With no facts it is the roofline alone.
    """
    kernels = _kernels(work, facts, device)
    beside = sum(c.seconds(device, device.achievable_fraction) + device.launch_latency_s for c in work.calls)
    return replace(kernels, seconds=kernels.seconds + beside) if beside else kernels


def _kernels(work: Work, facts: Sequence[StaticFacts], device: DeviceFacts) -> Prediction:
    moved = work.bytes_read + work.bytes_written
    if not facts:
        dram = moved / (device.dram_bytes_per_s * device.achievable_fraction)
        return _sum(
            [_Terms(dram, moved / device.l2_bytes_per_s, work.flops / device.fp32_flops, 0.0, 1.0)], 1.0, device
        )
    weights = [_bytes_at_a_time(one) for one in facts]
    weights = [weight if weight * SMALL >= max(weights) else 0 for weight in weights]
    shares = [weight / sum(weights) for weight in weights]
    launches = [_launch(moved * s, work.flops * s, one, device) for s, one in zip(shares, facts, strict=True)]
    most = facts[shares.index(max(shares))]
    return _sum(launches, sustained_fraction(most, device), device)


def sustained_fraction(facts: StaticFacts, device: DeviceFacts) -> float:
    """The share of the DRAM's bandwidth that the accesses in flight can keep busy (Little's law), above 0 to 1."""
    width = facts.load_bytes or facts.store_bytes
    instructions = facts.loads or facts.stores
    if width == 0:
        return 1.0  # no global access: no roof
    warps = _resident_warps(facts, device)
    flying = warps * 32 * width * min(max(instructions, 1), MAX_ACCESSES)
    return min(1.0, flying / device.in_flight_bytes())


@dataclass(frozen=True)
class _Terms:
    dram: float
    l2: float
    compute: float
    programs: float
    stretch: float
    """At least 1: how much longer the last, partly filled round makes the launch."""


def _launch(moved: float, flops: float, facts: StaticFacts, device: DeviceFacts) -> _Terms:
    programs = math.prod(facts.grid)
    warps = _resident_warps(facts, device)
    # A spilled value is written and read back once by every thread; it rarely leaves the L2.
    spilled = 2.0 * facts.spill_bytes * facts.num_warps * 32 * programs
    issue = min(1.0, warps / (FULL_ISSUE_WARPS * device.sms))
    resident = max(1.0, warps / facts.num_warps)
    return _Terms(
        dram=moved / (device.dram_bytes_per_s * device.achievable_fraction * sustained_fraction(facts, device)),
        l2=(moved + spilled) / device.l2_bytes_per_s,
        compute=flops / (device.fp32_flops * issue),
        programs=programs * PROGRAM_S / resident,
        stretch=_stretch(programs, device.sms),
    )


def _bytes_at_a_time(facts: StaticFacts) -> int:
    """What all threads of a launch load and store once, at least a byte each."""
    each = facts.loads * facts.load_bytes + facts.stores * facts.store_bytes
    return max(math.prod(facts.grid), 1) * facts.num_warps * 32 * max(each, 1)


def _resident_warps(facts: StaticFacts, device: DeviceFacts) -> float:
    """Warps at work on the whole device: as many as fit, or as many as there are."""
    launched = math.prod(facts.grid) * facts.num_warps
    return max(1.0, min(launched, facts.occupancy * device.max_warps_per_sm * device.sms))


def _stretch(programs: int, sms: int) -> float:
    """At least 1: half of the idle part of the last round of programs over the SMs."""
    if programs <= sms:
        return 1.0  # too few programs lower `sustained` and `issue` already
    return 1.0 + 0.5 * (-programs % sms) / programs


def _sum(launches: Sequence[_Terms], sustained: float, device: DeviceFacts) -> Prediction:
    roofs = {name: sum(getattr(one, name) for one in launches) for name in ("dram", "l2", "compute", "programs")}
    busy = [max(one.dram, one.l2, one.compute, one.programs) for one in launches]
    tail = sum(time * (one.stretch - 1.0) for time, one in zip(busy, launches, strict=True))
    launch = device.launch_latency_s * len(launches)
    terms = {**roofs, "tail": tail, "launch": launch}
    bound = max(roofs, key=lambda name: roofs[name])
    return Prediction(
        seconds=sum(busy) + tail + launch,
        bound_by=bound if roofs[bound] >= launch else "launch",
        terms=tuple(terms.items()),
        sustained=sustained,
    )

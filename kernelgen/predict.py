"""How long a kernel should take: a roofline whose memory roof is lowered by Little's law.

It is a model, not a measurement: it ranks schedules where no GPU can be timed, and is labelled *predicted*
wherever it is shown. For one launch,

    time = launch latency + the longest of
        dram     = bytes / (achievable bandwidth x sustained)     sustained = what the bytes in flight can keep busy
        l2       = (bytes + spill traffic + operands of products once a tile) / L2 bandwidth
        compute  = flops / fp32 peak / issue
        matrix   = flops of products / (peak of their dtype x MATRIX_SHARE x fed)
        programs = programs x cost of a program / programs resident at once

and all but the launch latency and the matrix units is stretched by the idle part of the last round over the SMs. What
stays a call of torch's adds its roofline. The terms:

sustained
    To keep the DRAM busy, bandwidth x latency bytes must be on their way at any moment (Little's law, about
    2.4 MB on an H200). A resident thread keeps one access of its load width in flight for each load
    instruction, at most MAX_ACCESSES of them; a program that multiplies keeps all of its shared memory on its way.
    Short of that the bandwidth falls in proportion.
fed
    The share of the matrix units that have work: each needs a resident warp of its own, and an SM without a program
    in the last round multiplies nothing.
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

from kernelgen.analysis import ProductWork, Work
from kernelgen.devices.facts import DeviceFacts
from kernelgen.outcomes import StaticFacts

MAX_ACCESSES = 8
"""Loads that one thread keeps in flight: the compiler hoists about that many before the first use."""
PROGRAM_S = 0.4e-6
"""What a program costs beside its work: being placed on an SM, index arithmetic, one exposed latency."""
SMALL = 100
"""A launch with less than one part in so many of the largest one's accesses moves nothing worth counting."""
MATRIX_SHARE = 0.7
"""What products reach of the matrix units' peak: cuBLAS and generated kernels were seen at 660 to 700 of 989 TFLOP/s at
8192 cubed on an H200, whose power does not let it clock higher."""
MATRIX_WARPS = 4
"""Warps that keep the matrix units of an SM fed."""
LARGEST_TILE = 256
"""Rows and columns of a tile whose accumulators fit the registers of an SM."""
FULL_ISSUE_WARPS = 16
"""Resident warps from which an SM's four schedulers issue at full rate."""


ROOFS = ("dram", "l2", "compute", "matrix", "programs")
"""What the longest of decides how long a launch is busy."""


@dataclass(frozen=True)
class Prediction:
    """A predicted time and what it is made of."""

    seconds: float
    bound_by: str
    """The largest term: "dram", "l2", "compute", "matrix", "programs" or "launch"."""
    terms: tuple[tuple[str, float], ...]
    """Seconds by name, of all launches together: dram, l2, compute, matrix, programs, tail, launch."""
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
        lanes, matrix = work.lane_seconds(device), work.matrix_seconds(device)
        return _sum([_Terms(dram, moved / device.l2_bytes_per_s, lanes, matrix, 0.0, 1.0)], 1.0, device)
    weights = [_bytes_at_a_time(one) for one in facts]
    weights = [weight if weight * SMALL >= max(weights) else 0 for weight in weights]
    shares = [weight / sum(weights) for weight in weights]
    most = facts[shares.index(max(shares))]
    launches = [
        _launch(moved * s, work.flops * s, work.products if one is most else (), one, device)
        for s, one in zip(shares, facts, strict=True)
    ]
    return _sum(launches, sustained_fraction(most, device, staged=bool(work.products)), device)


def sustained_fraction(facts: StaticFacts, device: DeviceFacts, *, staged: bool = False) -> float:
    """The share of the DRAM's bandwidth that the accesses in flight can keep busy (Little's law), above 0 to 1.

    `staged`: what a program loads goes to shared memory, several stages ahead.
    """
    width = facts.load_bytes or facts.store_bytes
    instructions = facts.loads or facts.stores
    if width == 0:
        return 1.0  # no global access: no roof
    warps = _resident_warps(facts, device)
    flying = warps * 32 * width * min(max(instructions, 1), MAX_ACCESSES)
    if staged:
        flying = max(flying, warps / facts.num_warps * facts.shared_bytes)
    return min(1.0, flying / device.in_flight_bytes())


@dataclass(frozen=True)
class _Terms:
    dram: float
    l2: float
    compute: float
    matrix: float
    programs: float
    stretch: float
    """At least 1: how much longer the last, partly filled round makes all but `matrix`, which has it."""


def _launch(
    moved: float, flops: float, products: Sequence[ProductWork], facts: StaticFacts, device: DeviceFacts
) -> _Terms:
    programs = math.prod(facts.grid)
    warps = _resident_warps(facts, device)
    # A spilled value is written and read back once by every thread; it rarely leaves the L2.
    spilled = 2.0 * facts.spill_bytes * facts.num_warps * 32 * programs
    issue = min(1.0, warps / (FULL_ISSUE_WARPS * device.sms))
    fed = MATRIX_SHARE * _fed(warps, programs, device)
    lanes = sum(p.seconds(device) for p in products if not p.on_matrix_units)
    resident = max(1.0, warps / facts.num_warps)
    return _Terms(
        dram=moved
        / (
            device.dram_bytes_per_s
            * device.achievable_fraction
            * sustained_fraction(facts, device, staged=bool(products))
        ),
        l2=(moved + spilled + sum(_operand_bytes(p, programs) for p in products)) / device.l2_bytes_per_s,
        compute=(flops / device.fp32_flops + lanes) / issue,
        matrix=sum(p.seconds(device) for p in products if p.on_matrix_units) / fed,
        programs=programs * PROGRAM_S / resident,
        stretch=_stretch(programs, device.sms),
    )


def _fed(warps: float, programs: int, device: DeviceFacts) -> float:
    """The share of the matrix units that have work, over all rounds of programs."""
    busy = programs / (-(-programs // device.sms) * device.sms)
    return busy * min(1.0, warps / (MATRIX_WARPS * min(programs, device.sms)))


def _operand_bytes(product: ProductWork, programs: int) -> float:
    """What all programs read of two operands, each for a tile as large as its share of the result; split sums count as
    smaller tiles."""
    results = product.batch * product.rows * product.columns
    rows = min(LARGEST_TILE, product.rows, max(1.0, math.sqrt(results / programs)))
    columns = min(LARGEST_TILE, product.columns, max(1.0, results / programs / rows))
    return results * product.summed * product.itemsize * (1 / rows + 1 / columns)


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
    roofs = {name: sum(getattr(one, name) for one in launches) for name in ROOFS}
    busy = [max(getattr(one, name) for name in ROOFS) for one in launches]
    whole = [max(one.matrix, max(one.dram, one.l2, one.compute, one.programs) * one.stretch) for one in launches]
    tail = sum(whole) - sum(busy)
    launch = device.launch_latency_s * len(launches)
    terms = {**roofs, "tail": tail, "launch": launch}
    bound = max(roofs, key=lambda name: roofs[name])
    return Prediction(
        seconds=sum(whole) + launch,
        bound_by=bound if roofs[bound] >= launch else "launch",
        terms=tuple(terms.items()),
        sustained=sustained,
    )

"""How long a kernel should take on a processor whose cores fill buffers of their own: a model, never measured.

Each of the cores walks its tiles one after the other. For one launch,

    time = launch latency + tiles of the busiest core x (step + copy and arithmetic)
    copy = bytes of a tile / (bandwidth of a core x burst)
    copy and arithmetic = the longer of the two where everything has two buffers, else their sum

A core's share of the bandwidth is that of all cores over their number, and twice that at most where few cores work. The
terms that no document states are estimates: they rank schedules, and are shown only as *predicted*.

step      TILE_S for each tile: synchronising the units and issuing copies
burst     copies of less than BURST_BYTES in a row waste the rest of it
one by one  an access that has no interval costs ELEMENT_S an element and cannot overlap
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelgen.analysis import Work
from kernelgen.devices.facts import NpuFacts
from kernelgen.outcomes import StaticFacts
from kernelgen.predict import Prediction

TILE_S = 0.4e-6
"""Estimate."""
BURST_BYTES = 512
"""Estimate; triton-ascend's guide asks for rows of multiples of 512 bytes where cube and vector cores share them."""
ELEMENT_S = 6e-9
"""Estimate: about ten clocks of the scalar unit."""


def predict(work: Work, facts: Sequence[StaticFacts], device: NpuFacts) -> Prediction:
    """Time of one call that makes the launches `facts` to do `work`, spread over them in proportion to the elements of
    their tiles: a kernel that reduces what others left for every row has few."""
    launches = device.launch_latency_s * max(len(facts), 1)
    terms = {"dram": 0.0, "compute": 0.0, "tiles": 0.0, "elements": 0.0, "launch": launches}
    seconds = terms["launch"]
    sustained = 1.0
    covered = [one.waves * math.prod(one.grid) * max(one.tile_elements, 1) for one in facts]
    for one, elements in zip(facts, covered, strict=True):
        share = elements / sum(covered)
        moved = (work.bytes_read + work.bytes_written) * share
        cores = max(1, min(math.prod(one.grid), device.vector_cores))
        tiles = max(one.waves * math.prod(one.grid), 1.0)
        rounds = math.ceil(tiles / cores)
        burst = min(1.0, one.row_bytes / BURST_BYTES) if one.row_bytes else 1.0
        reachable = device.dram_bytes_per_s * device.achievable_fraction * min(1.0, 2 * cores / device.vector_cores)
        stretch = rounds * cores / tiles  # cores without a tile in the last round wait for the others
        dram = moved / (reachable * max(burst, 1 / 16)) * stretch
        arithmetic = work.arithmetic_seconds(device)
        compute = arithmetic * share * device.vector_cores / cores * stretch
        step = rounds * TILE_S
        one_by_one = one.element_wise * rounds * one.tile_elements * ELEMENT_S
        seconds += (max(dram, compute) if one.overlapped else dram + compute) + step + one_by_one
        for name, value in (("dram", dram), ("compute", compute), ("tiles", step), ("elements", one_by_one)):
            terms[name] += value
        sustained = min(sustained, reachable * burst / (device.dram_bytes_per_s * device.achievable_fraction))
    bound = max(terms, key=lambda name: terms[name])
    return Prediction(seconds=seconds, bound_by=bound, terms=tuple(terms.items()), sustained=sustained)

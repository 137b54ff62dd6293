"""What an operator must do at the least: bytes moved and operations done for one case."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.devices.facts import DeviceFacts


@dataclass(frozen=True)
class Work:
    """The least a kernel must do for one case, whatever its schedule."""

    bytes_read: int
    bytes_written: int
    flops: int


def floor_seconds(work: Work, facts: DeviceFacts) -> float:
    """The least time physics allows: every byte moved once at the vendor's bandwidth, every operation at its peak."""
    return max((work.bytes_read + work.bytes_written) / facts.dram_bytes_per_s, work.flops / facts.fp32_flops)

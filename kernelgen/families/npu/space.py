"""Parameters that schedules of every family on a vector processor have."""

from __future__ import annotations

from kernelgen.plan import Parameter

MULTIBUFFER = Parameter(
    "multibuffer", (False, True), "memory_access", "launch",
    "everything loaded or stored has two buffers, so that copies run beside arithmetic",
)  # fmt: skip


def block(name: str, low: int, high: int, meaning: str) -> Parameter:
    """A block size: a power of two from `low` to `high`."""
    choices = tuple(1 << n for n in range(low.bit_length() - 1, high.bit_length()))
    return Parameter(name, choices, "block_size", "constexpr", meaning)


HELPERS = {"random_mask": "npu_random_mask"}
"""Helpers that are written otherwise, and what takes their place."""

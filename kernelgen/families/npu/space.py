"""Parameters that schedules of every family on a vector processor have."""

from __future__ import annotations

from kernelgen.plan import Parameter

VARIANTS = {
    "flat": "one program a core, which takes every num_programs-th block of BLOCK_SIZE elements",
    "tile": "one program a core, which takes every num_programs-th tile of BLOCK_SIZE_M rows by BLOCK_SIZE_N columns",
    "row": "one program a core, which takes every num_programs-th row whole",
    "rows": "one program a core, which takes BLOCK_SIZE_M whole rows at a time",
    "looped": "one program a core, which walks every num_programs-th row in blocks of BLOCK_SIZE_N",
    "looped_rows": "one program a core, which walks BLOCK_SIZE_M rows at a time in blocks of BLOCK_SIZE_N",
    "columns": "one program a core, which walks BLOCK_SIZE_M kept elements at a time in blocks of BLOCK_SIZE_N",
}
"""What the programs of each variant do."""

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

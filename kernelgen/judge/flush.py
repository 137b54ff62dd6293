"""Empties the L2 cache of an NVIDIA GPU between two launches.

A fill of twice the cache is not enough. Lines that were loaded with `evict_last` outlive it: a kernel launched again on
the same 8 MB read some of them from the cache and took 8.3 µs, on other buffers 9.2 (H200). So lines of the flush's own
are kept in place of those first, and are then given back the priority of any other line.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LINE_BYTES = 128
"""What an L2 line holds and what `applypriority` takes (PTX ISA, "applypriority")."""
KEEPS_LINES = (8, 0)
"""The first compute capability on which a load can ask for that (PTX ISA, "createpolicy" and "applypriority")."""
_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator,misc,unused-ignore]
def _keep(memory_ptr, sums_ptr, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ask the cache to keep a block of int32 zeros."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    found = tl.sum(tl.load(memory_ptr + offsets, eviction_policy="evict_last"))
    # never so: what is not used would not be loaded
    tl.store(sums_ptr, found, mask=found != 0)


@triton.jit  # type: ignore[untyped-decorator,misc,unused-ignore]
def _release(memory_ptr, BLOCK_SIZE: tl.constexpr, LINE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Make ordinary lines of what `_keep` loaded."""
    lines = tl.program_id(0) * (BLOCK_SIZE // LINE) + tl.arange(0, BLOCK_SIZE // LINE)
    tl.inline_asm_elementwise(
        "applypriority.global.L2::evict_normal [$1], 128; mov.u32 $0, 0;",
        "=r,l",
        [memory_ptr + lines * LINE],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


class Flush:
    """Leaves zeros in the whole cache, so that a launch finds nothing of its buffers in it."""

    def __init__(self) -> None:
        size = torch.cuda.get_device_properties().L2_cache_size or 64 << 20
        self._memory = torch.zeros(2 * size, dtype=torch.uint8, device="cuda")
        self._kept = self._memory[: size // (4 * _BLOCK) * 4 * _BLOCK].view(torch.int32)
        self._sums = torch.empty(1, dtype=torch.int32, device="cuda")
        self._keeps_lines = torch.cuda.get_device_capability() >= KEEPS_LINES
        self()  # compiled before anything is timed

    def __call__(self) -> None:
        if self._keeps_lines:
            grid = (self._kept.numel() // _BLOCK,)
            _keep[grid](self._kept, self._sums, BLOCK_SIZE=_BLOCK)
            _release[grid](self._kept, BLOCK_SIZE=_BLOCK, LINE=LINE_BYTES // self._kept.element_size())
        self._memory.zero_()

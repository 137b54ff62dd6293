"""Empties the L2 cache of an NVIDIA GPU between two launches.

A fill of twice the cache, which is common, does neither half of the work:

- Lines that were loaded with `evict_last` outlive it: a kernel launched again on the same 8 MB read some of them from
  the cache and took 8.3 µs, on other buffers 9.2 (H200). So lines of the flush's own are kept in place of those first,
  and are then given back the priority of any other line.
- It leaves the cache full of what it wrote, which goes back to memory while the clock runs: sums of rows of 268 MB
  took 82 µs after it and 75 where the flush had only read (H200). So nothing is written here.
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
def _read(memory_ptr, sums_ptr, BLOCK_SIZE: tl.constexpr, POLICY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring a block of int32 zeros into the cache."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    found = tl.sum(tl.load(memory_ptr + offsets, eviction_policy=POLICY))
    # never so: what is not used would not be loaded
    tl.store(sums_ptr, found, mask=found != 0)


@triton.jit  # type: ignore[untyped-decorator,misc,unused-ignore]
def _release(memory_ptr, BLOCK_SIZE: tl.constexpr, LINE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Make ordinary lines of what `_read` asked the cache to keep."""
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
    """Leaves the cache full of zeros that memory holds as well: a launch finds nothing of its buffers, and has nobody
    else's to write back."""

    def __init__(self) -> None:
        size = torch.cuda.get_device_properties().L2_cache_size or 64 << 20
        # twice the cache: of less, lines that hash to the same place leave some of the others standing
        self._memory = torch.zeros(2 * size // (4 * _BLOCK) * _BLOCK, dtype=torch.int32, device="cuda")
        self._sums = torch.empty(1, dtype=torch.int32, device="cuda")
        self._keeps_lines = torch.cuda.get_device_capability() >= KEEPS_LINES
        self()  # compiled before anything is timed

    def __call__(self) -> None:
        grid = (self._memory.numel() // _BLOCK,)
        _read[grid](self._memory, self._sums, BLOCK_SIZE=_BLOCK, POLICY="evict_last" if self._keeps_lines else "")
        if self._keeps_lines:
            _release[grid](self._memory, BLOCK_SIZE=_BLOCK, LINE=LINE_BYTES // self._memory.element_size())

"""scale: out = 2 x, written by hand for the tests of the workers."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, size, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * 2, mask=mask)


def scale(x):
    if not x.is_contiguous():
        raise ValueError(f"x must be contiguous, got strides {x.stride()}")
    out = torch.empty_like(x)
    size = x.numel()
    if size:
        scale_kernel[(triton.cdiv(size, 1024),)](x, out, size, BLOCK_SIZE=1024, num_warps=4)
    return out

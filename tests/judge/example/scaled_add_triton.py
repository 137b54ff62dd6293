"""scaled_add: out = x + scale * bias, one program a block of elements."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled_add_kernel(x_ptr, bias_ptr, scale_ptr, out_ptr, n_elements, n_columns, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    column = offsets % n_columns
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=mask).to(tl.float32)
    scale = tl.load(scale_ptr + column, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x + scale * bias, mask=mask)


def check(x, bias, scale):
    if x.ndim < 1 or bias.shape != x.shape[-1:] or scale.shape != bias.shape:
        shapes = [list(t.shape) for t in (x, bias, scale)]
        raise ValueError(f"scaled_add: bias and scale must have the last size of x, not shapes {shapes}")
    if not all(t.is_contiguous() for t in (x, bias, scale)):
        raise ValueError("scaled_add: x, bias and scale must be contiguous")


def scaled_add(x, bias, scale):
    check(x, bias, scale)
    out = torch.empty_like(x)
    if out.numel():
        grid = (triton.cdiv(x.numel(), 1024),)
        scaled_add_kernel[grid](x, bias, scale, out, x.numel(), bias.numel(), BLOCK_SIZE=1024)
    return out

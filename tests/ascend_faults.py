"""Kernels with one fault each, in the form of generated files; the comments `fault` mark the lines that must be named."""

import torch
import triton
import triton.language as tl


@triton.jit
def large_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    for block in range(tl.program_id(0), tl.cdiv(N, BLOCK_SIZE), tl.num_programs(0)):
        offsets = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = offsets < N
        x = tl.load(x_ptr + offsets, mask=mask)  # fault: tile too large
        tl.store(out_ptr + offsets, x * x + x, mask=mask)


@triton.jit
def discrete_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = (offsets < N) & (offsets % 3 != 1)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)  # fault: discrete mask
    tl.store(out_ptr + offsets, x, mask=offsets < N)


@triton.jit
def wide_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    for block in range(tl.program_id(0), tl.cdiv(N, BLOCK_SIZE), tl.num_programs(0)):
        offsets = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = offsets < N
        x = tl.load(x_ptr + offsets, mask=mask, other=0)
        total = x.to(tl.int64) * 3 + 1  # fault: int64
        tl.store(out_ptr + offsets, total.to(tl.int32), mask=mask)


@triton.jit
def assembly_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)  # fault: inline assembly
    tl.store(out_ptr + offsets, y, mask=mask)


@triton.jit
def copy_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < N
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def scattered_kernel(x_ptr, places_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < N
    places = tl.load(places_ptr + offsets, mask=mask, other=0)
    x = tl.load(x_ptr + places, mask=mask)  # fault: scalar fallback
    tl.store(out_ptr + offsets, x, mask=mask)


def _launch(kernel, x: torch.Tensor, block: int) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[(8,)](x, out, x.numel(), BLOCK_SIZE=block)
    return out


def large(x: torch.Tensor) -> torch.Tensor:
    return _launch(large_kernel, x, 65536)


def discrete(x: torch.Tensor) -> torch.Tensor:
    return _launch(discrete_kernel, x, 1024)


def wide(x: torch.Tensor) -> torch.Tensor:
    return _launch(wide_kernel, x, 1024)


def assembly(x: torch.Tensor) -> torch.Tensor:
    return _launch(assembly_kernel, x, 1024)


def many(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK_SIZE=16)  # fault: grid
    return out


def scattered(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scattered_kernel[(8,)](x, places, out, x.numel(), BLOCK_SIZE=1024)
    return out

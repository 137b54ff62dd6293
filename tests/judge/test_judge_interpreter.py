"""Scans under the interpreter: the right result, in a tree, for any combine function and either direction."""

import pytest
import torch
import triton
import triton.language as tl

from kernelgen.judge import device as devices

DEVICE = devices.find()


@triton.jit
def _last(a, b):
    return tl.where(b == 0, a, b)


@triton.jit
def scans_kernel(x_ptr, sums_ptr, lasts_ptr, REVERSE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(sums_ptr + offsets, tl.cumsum(x, axis=1, reverse=REVERSE))
    tl.store(lasts_ptr + offsets, tl.associative_scan(x, axis=1, combine_fn=_last, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_run_along_their_axis_in_their_direction(reverse):
    x = torch.tensor([[3.0, 0, 0, 5, 0, 1, 2, 0], [0, 0, 4, 0, 4, 7, 0, 0]], device=DEVICE)
    sums, lasts = torch.empty_like(x), torch.empty_like(x)
    scans_kernel[(1,)](x, sums, lasts, REVERSE=reverse, M=2, N=8)
    if reverse:
        assert sums.equal(x.flip(-1).cumsum(-1).flip(-1))
        assert lasts.tolist() == [[3, 5, 5, 5, 1, 1, 2, 0], [4, 4, 4, 4, 4, 7, 0, 0]]
    else:
        assert sums.equal(x.cumsum(-1))
        assert lasts.tolist() == [[3, 3, 3, 5, 5, 1, 2, 2], [0, 0, 4, 4, 4, 7, 7, 7]]


def test_the_rounding_of_a_sum_does_not_grow_with_its_length():
    """One after the other, 65536 times 0.1 is off by 1e-4 of itself."""
    x = torch.full((1, 65536), 0.1, device=DEVICE)
    sums, lasts = torch.empty_like(x), torch.empty_like(x)
    scans_kernel[(1,)](x, sums, lasts, REVERSE=False, M=1, N=65536)
    torch.testing.assert_close(sums, x.double().cumsum(-1).float(), rtol=2e-6, atol=0)

"""What the interpreter is made to do as a GPU does it: scans in a tree, casts to the nearest, bools of one bit.

On a GPU the same tests say that it does."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

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


@triton.jit
def casts_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets))


def cast(x, dtype):
    """x as tl.store casts it; its length a multiple of 2**14."""
    y = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    casts_kernel[(x.numel() // 2**14,)](x.to(DEVICE), y, BLOCK=2**14)
    return y.cpu()


def around(patterns, drop):
    """float32 numbers on, between and next to those of a shorter float, whose bits are the upper ones of a float32:
    `drop` bits fewer. Infinities, NaN, denormals and what rounds to infinity are among them."""
    half = 1 << (drop - 1)
    near = [(patterns << drop) + d for d in (0, 1, half - 1, half, half + 1, 2 * half - 1)]
    return torch.cat(near).to(torch.uint32).view(torch.float32)


def test_every_bfloat16_is_rounded_to_the_nearest_and_ties_to_even():
    x = around(torch.arange(2**16), drop=16)
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    got = cast(x, torch.bfloat16)
    assert got.isnan().equal(x.isnan())
    there = ~x.isnan()
    assert (got.view(torch.int16).long() & 0xFFFF)[there].equal(nearest[there])
    assert cast(torch.full((2**14,), -41.9997), torch.bfloat16).eq(-42).all()


def test_every_bfloat16_is_the_float32_it_was():
    x = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16)
    got = cast(x, torch.float32)
    assert got.isnan().equal(x.isnan())
    assert (got.view(torch.int32) >> 16).to(torch.int16)[~x.isnan()].equal(x.view(torch.int16)[~x.isnan()])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_float8_is_the_nearest_of_its_256_numbers_and_saturates(source, dtype):
    if DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 needs sm_89")
    x = (
        around(torch.arange(2**16) * 16 + 8, drop=12)
        if source == torch.float32
        else torch.arange(2**16).short().view(source)
    )
    got = cast(x, dtype).float().double()
    wide = x.double().clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    known = torch.arange(256).to(torch.uint8).view(dtype).float().double()
    known = known[known.isfinite()].unique()  # in ascending order
    above = torch.searchsorted(known, wide.nan_to_num()).clamp(1, len(known) - 1)
    low, high = known[above - 1], known[above]
    even = torch.where(
        (above - 1 - int((known < 0).sum())) % 2 == 0, low, high
    )  # 0 and every second one have an even mantissa
    nearest = torch.where(wide - low < high - wide, low, torch.where(wide - low > high - wide, high, even))
    assert got.isnan().equal(x.isnan())
    assert got[~x.isnan()].equal(nearest[~x.isnan()])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_become_bfloat16_numbers(dtype):
    x = torch.arange(2**14).to(dtype)
    assert cast(x, torch.bfloat16).equal(x.to(torch.bfloat16))


@triton.jit
def bools_kernel(x_ptr, s_ptr, i_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes)  # bfloat16
    s = tl.load(s_ptr)
    i = tl.load(i_ptr + lanes)  # uint8
    positive = x > 0
    tl.store(out_ptr + 0 * BLOCK + lanes, (s > 0) & positive)
    tl.store(out_ptr + 1 * BLOCK + lanes, positive | (s < 0))
    tl.store(out_ptr + 2 * BLOCK + lanes, (s != s) ^ positive)
    tl.store(out_ptr + 3 * BLOCK + lanes, ~positive & ~(s < 0))
    tl.store(out_ptr + 4 * BLOCK + lanes, positive + (s > 0))  # numbers of one bit: 1 + 1 is 0
    tl.store(out_ptr + 5 * BLOCK + lanes, x.to(tl.int1))
    tl.store(out_ptr + 6 * BLOCK + lanes, ~i == 255 - i)
    tl.store(out_ptr + 7 * BLOCK + lanes, tl.where(s > 0, positive, s < 0))
    tl.store(out_ptr + 8 * BLOCK + lanes, (positive.to(tl.int32) + (s > 0)) == 2)
    tl.store(out_ptr + 9 * BLOCK + lanes, tl.sum((s > 0) & positive) == 4)


@pytest.mark.parametrize("s", [2.0, -1.0, 0.0])
def test_bools_of_scalars_meet_those_of_blocks(s):
    x = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, 1e-40], device=DEVICE).to(torch.bfloat16)
    i = torch.arange(0, 256, 32, device=DEVICE).to(torch.uint8)
    out = torch.zeros(10, 8, dtype=torch.bool, device=DEVICE)
    bools_kernel[(1,)](x, torch.tensor([s], device=DEVICE), i, out, BLOCK=8)
    p, yes = x > 0, torch.ones(8, dtype=torch.bool, device=DEVICE)
    wanted = [
        p & (s > 0), p | (s < 0), p, ~p & ~torch.tensor(s < 0), p ^ (s > 0), x != 0, yes,
        p if s > 0 else yes & (s < 0), p & (s > 0), yes & (s > 0),
    ]  # fmt: skip
    assert out.equal(torch.stack(wanted))


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, i_ptr, j_ptr, floats_ptr, ints_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)  # bfloat16
    i, j = tl.load(i_ptr + lanes), tl.load(j_ptr + lanes)  # int32
    tl.store(floats_ptr + 0 * BLOCK + lanes, x + y)
    tl.store(floats_ptr + 1 * BLOCK + lanes, x * y)
    tl.store(floats_ptr + 2 * BLOCK + lanes, x - 1.5)
    tl.store(floats_ptr + 3 * BLOCK + lanes, tl.maximum(x, y))
    tl.store(floats_ptr + 4 * BLOCK + lanes, tl.where(x < y, x, y))
    tl.store(floats_ptr + 5 * BLOCK + lanes, tl.full([BLOCK], 0.3, tl.bfloat16))
    tl.store(floats_ptr + 6 * BLOCK + lanes, -x)
    tl.store(floats_ptr + 7 * BLOCK + lanes, tl.load(x_ptr + lanes, mask=lanes < 0, other=-41.9997))
    tl.store(ints_ptr + 0 * BLOCK + lanes, tl.umulhi(i, j))
    tl.store(ints_ptr + 1 * BLOCK + lanes, i % j)
    tl.store(ints_ptr + 2 * BLOCK + lanes, i // j)
    tl.store(ints_ptr + 3 * BLOCK + lanes, i >> 3)
    tl.store(ints_ptr + 4 * BLOCK + lanes, i.to(tl.uint32) >> 3)
    tl.store(ints_ptr + 5 * BLOCK + lanes, i * j)


def test_bfloat16_and_integers_are_computed_as_a_gpu_does():
    torch.manual_seed(0)
    x, y = torch.randn(2, 64).to(torch.bfloat16)
    i, j = torch.randint(-(2**31), 2**31, (2, 64))
    floats, ints = (
        torch.zeros(8, 64, dtype=torch.bfloat16, device=DEVICE),
        torch.zeros(6, 64, dtype=torch.int32, device=DEVICE),
    )
    arithmetic_kernel[(1,)](*(t.to(DEVICE) for t in (x, y, i.int(), j.int())), floats, ints, BLOCK=64)
    wanted = [x + y, x * y, x - 1.5, x.maximum(y), x.minimum(y), x * 0 + 0.3, 0 - x, x * 0 - 42]
    assert floats.cpu().equal(torch.stack(wanted))
    unsigned = [[v % 2**32 for v in t.tolist()] for t in (i, j)]
    high = torch.tensor([a * b >> 32 for a, b in zip(*unsigned, strict=True)])
    shifted = torch.tensor(unsigned[0]) >> 3
    truncated = [high, i.fmod(j), i.div(j, rounding_mode="trunc"), i >> 3, shifted, i * j]
    assert ints.cpu().equal(torch.stack(truncated).int())


@triton.jit
def products_kernel(a_ptr, b_ptr, out_ptr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    sums = tl.dot(a, b, tl.full((M, N), 1.0, tl.float32), input_precision=PRECISION)
    tl.store(out_ptr + m[:, None] * N + n[None, :], sums)


def multiplied(a, b, precision="ieee"):
    """1 + a @ b as a kernel has it."""
    out = torch.empty(a.shape[0], b.shape[1], device=DEVICE)
    products_kernel[(1,)](
        a.to(DEVICE), b.to(DEVICE), out, PRECISION=precision, M=a.shape[0], N=b.shape[1], K=a.shape[1]
    )
    return out.cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_product_reads_all_bits_and_sums_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in ((32, 64), (64, 16)))
    a[0], b[:, 0] = 1, 1
    a[0, 0] = 2048  # in float16, or bfloat16, 2048 + 1 is 2048
    exact = 1 + a.double() @ b.double()
    torch.testing.assert_close(multiplied(a, b).double(), exact, rtol=1e-6, atol=2e-5)
    assert multiplied(a, b)[0, 0] == 2048 + 64


@pytest.mark.parametrize(("precision", "least", "most"), [("tf32", 1e-4, 2e-3), ("tf32x3", 0, 4e-6), ("ieee", 0, 4e-6)])
def test_float32_is_multiplied_at_the_precision_that_is_asked_for(precision, least, most):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(shape, generator=generator) for shape in ((32, 32), (32, 16)))
    exact = 1 + a.double() @ b.double()
    error = (multiplied(a, b, precision).double() / exact - 1).abs().max()
    assert least <= error <= most


def test_integers_are_multiplied_as_they_are():
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((32, 64), (64, 32)))
    out = torch.empty(32, 32, dtype=torch.int32, device=DEVICE)
    integers_kernel[(1,)](a.to(DEVICE), b.to(DEVICE), out, M=32, N=32, K=64)
    assert out.cpu().equal((a.double() @ b.double()).int())


@triton.jit
def integers_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    sums = tl.dot(tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :]))
    tl.store(out_ptr + m[:, None] * N + n[None, :], sums)


@triton.jit
def descriptors_kernel(
    a_ptr, b_desc, out_desc, M, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    first_m, first_n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=3):
        a = a_desc.load([first_m, k * BLOCK_K])
        sums = tl.dot(a, b_desc.load([k * BLOCK_K, first_n]), sums, input_precision="ieee")
    out_desc.store([first_m, first_n], sums.to(out_desc.dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensor_descriptors_pad_with_zeros_and_store_no_more_than_the_tensor(dtype):
    if DEVICE == "cuda":
        if torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("needs a GPU with TMA")
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=DEVICE))
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for shape in ((40, 56), (56, 72)))
    room = torch.full((48, 72), 7.0, dtype=dtype, device=DEVICE)
    out = room[:40]
    descriptors = [TensorDescriptor.from_tensor(b, [32, 32]), TensorDescriptor.from_tensor(out, [16, 32])]
    descriptors_kernel[(3, 3)](a, *descriptors, 40, 56, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32)
    error = (out.double() - a.double() @ b.double()).abs().max().item()
    assert error <= {torch.float16: 2.0**-6, torch.bfloat16: 2.0**-3, torch.float32: 2e-5}[dtype]
    assert room[40:].eq(7).all()


@triton.jit
def loops_kernel(x_ptr, first, steps, STEP: tl.constexpr):
    for k in tl.range(first, tl.load(x_ptr) + steps, STEP):
        tl.store(x_ptr + 1, tl.load(x_ptr + 1) + k)


@pytest.mark.filterwarnings("error")  # NumPy before 2.5 warns where 2.5 raises
def test_a_loop_runs_between_numbers_that_the_kernel_is_given_and_loads():
    x = torch.tensor([3, 0], device=DEVICE)
    loops_kernel[(1,)](x, 1, 7, STEP=2)
    assert x.tolist() == [3, 1 + 3 + 5 + 7 + 9]


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def many_calls_kernel(x_ptr):
    at = x_ptr + tl.program_id(0)
    tl.store(at, _twice(_twice(tl.load(at))))


def test_the_language_is_prepared_once_a_launch_and_not_at_every_call(monkeypatch):
    """Going through all names of triton.language took most of the time of kernels that call device functions."""
    from triton.runtime import interpreter

    prepared = []
    patch = interpreter._patch_builtin
    monkeypatch.setattr(interpreter, "_patch_builtin", lambda *args: (prepared.append(args), patch(*args)))
    counts = []
    for programs in (1, 40):
        x = torch.ones(programs)
        many_calls_kernel[(programs,)](x)
        assert x.tolist() == [4.0] * programs
        counts.append(len(prepared))
        prepared.clear()
    assert counts[0] == counts[1]

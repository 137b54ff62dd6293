"""Products of matrices that a kernel computes itself: right ones pass, every usual mistake is told.

Without a GPU the kernels are interpreted."""

import pytest
import torch
import triton
import triton.language as tl

from kernelgen import judge
from kernelgen.judge import device as devices
from kernelgen.judge import values
from kernelgen.judge.contractions import Errors
from kernelgen.judge.hidden import hidden_cases
from kernelgen.judge.oracle import in_float64
from kernelgen.judge.stored import Stored, Storing

DEVICE = devices.find()
DTYPES = ("float16", "bfloat16", "float32")
OWN = (
    "in lower precision",
    "without its last block",
    "without its last row",
    "of another batch",
    "with what is added to it twice",
)


@triton.jit
def product_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K, stride_xb, stride_xm, stride_xk, stride_wb, stride_wk, stride_wn,
    stride_bias, FAULT: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = relu(x) @ w + bias in blocks of BLOCK**2 elements."""
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    accumulated: tl.constexpr = tl.float16 if FAULT == "summed in float16" else tl.float32
    sums = tl.zeros((BLOCK, BLOCK), accumulated)
    last = tl.cdiv(K, BLOCK) * BLOCK - BLOCK if FAULT == "last block" else K
    for first in range(0, last, BLOCK):
        ks = first + tl.arange(0, BLOCK)
        x_at = x_ptr + batch * stride_xb + rows[:, None] * stride_xm + ks[None, :] * stride_xk
        x = tl.maximum(tl.load(x_at, mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0), 0.0).to(
            x_ptr.dtype.element_ty
        )
        read = 0 if FAULT == "another batch" else batch
        w_at = w_ptr + read * stride_wb + ks[:, None] * stride_wk + columns[None, :] * stride_wn
        w = tl.load(w_at, mask=(ks[:, None] < K) & (columns[None, :] < N), other=0.0)
        if FAULT == "bfloat16":
            x, w = x.to(tl.bfloat16).to(x.dtype), w.to(tl.bfloat16).to(w.dtype)
        if FAULT == "summed in float16":
            sums += tl.dot(x, w).to(tl.float16)
        else:
            sums = tl.dot(x, w, sums, input_precision=PRECISION)
    bias = tl.load(bias_ptr + columns * stride_bias, mask=columns < N, other=0.0).to(tl.float32)
    out = sums.to(tl.float32) + bias[None, :]
    if FAULT == "bias twice":
        out += bias[None, :]
    written = M - 1 if FAULT == "last row" else M
    mask = (rows[:, None] < written) & (columns[None, :] < N)
    tl.store(out_ptr + (batch * M + rows[:, None]).to(tl.int64) * N + columns[None, :], out, mask=mask)


def kernel(fault="", block=32):
    def product(x, w, bias):
        (b, m, k), n = x.shape, w.shape[2]
        out = torch.empty(b, m, n, dtype=x.dtype, device=x.device)
        if fault == "last row":
            out.zero_()
        precision = torch.backends.cuda.matmul.fp32_precision == "tf32" or fault == "tf32"
        if out.numel():
            product_kernel[(triton.cdiv(m, block), triton.cdiv(n, block), b)](
                x, w, bias, out, m, n, k, *x.stride(), *w.stride(), *bias.stride(),
                FAULT=fault, PRECISION="tf32" if precision else "ieee", BLOCK=block,
            )  # fmt: skip
        return out

    return product


def reference(x, w, bias):
    return torch.relu(x) @ w + bias


INPUTS = (
    judge.Tensor("x", ("B", "M", "K"), "T"),
    judge.Tensor("w", ("B", "K", "N"), "T"),
    judge.Tensor("bias", ("N",), "T"),
)


def operator(fault="", function=reference):
    out = (judge.Tensor("out", ("B", "M", "N"), "T"),)
    return judge.Operator("o", kernel(fault), function, function, INPUTS, out, multiplied="T")


def judged(op, dtype, sizes=(2, 20, 70, 36), **kwargs):
    """On inputs that are the same every time: half the distributions may not show a mistake that all of them show."""
    case = judge.Case(dict(zip("BMKN", sizes, strict=True)), {"T": dtype})
    return judge.accuracy_case(op, case, distributions=("normal", "uniform"), seeds=2, seed=1, **kwargs)


@pytest.fixture
def tf32():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_kernel_passes_and_every_wrong_product_is_told(dtype):
    found = judged(operator(), dtype, (2, 20, 300, 36))
    assert found.passed, found.message
    assert found.undiscriminated == ()
    wanted = {f"a product {words}" for words in OWN}
    assert found.told.keys() >= wanted | ({"a product summed in lower precision"} if dtype != "float32" else set())


@pytest.mark.parametrize(
    ("fault", "dtypes"),
    [
        *((fault, DTYPES) for fault in ("last block", "last row", "another batch", "bias twice")),
        ("bfloat16", ("float16", "float32")),
        ("tf32", ("float32",)),
        ("summed in float16", ("float16",)),
    ],
)
def test_a_mistake_of_a_kernel_is_told(fault, dtypes):
    for dtype in dtypes:
        found = judged(operator(fault), dtype, (2, 20, 300, 36), mutants=False)
        assert not found.passed, dtype
        assert "over the bound" in found.message


def test_tf32_is_right_where_torch_is_set_to_it_and_bfloat16_is_not(tf32):
    found = judged(operator(), "float32")
    assert found.passed, found.message
    assert "a product in lower precision" in found.told
    assert "over the bound" in judged(operator("bfloat16"), "float32", mutants=False).message


def test_a_kernel_rounds_what_it_multiplies_and_calls_of_torchs_what_they_sum_too():
    x, w, bias = torch.randn(1, 4, 64).half(), torch.randn(1, 64, 8).half(), torch.zeros(8).half()
    [exact] = in_float64(reference, (x, w, bias))
    [calls] = in_float64(reference, (x, w, bias), stored=Storing(torch.float16))
    [ours] = in_float64(reference, (x, w, bias), stored=Storing(torch.float16, ours=True))
    assert ours.equal(exact)
    assert not calls.equal(exact)
    third = torch.tensor(1 / 3, dtype=torch.float64)
    [ours] = in_float64(lambda x, w, bias: (x * third) @ w, (x, w, bias), stored=Storing(torch.float16, ours=True))
    torch.testing.assert_close(ours, (x.double() * third).half().double() @ w.double(), rtol=1e-12, atol=1e-12)


def test_hidden_cases_have_edges_in_every_direction_and_sums_of_nothing():
    cases = [judge.Case({"B": 2, "M": 8, "K": 8, "N": 8}, {"T": dtype}) for dtype in DTYPES]
    found = hidden_cases(operator(), cases, DEVICE, large=False)
    sizes = [tuple(case.sizes[name] for name in "BMKN") for case in found]
    assert any(k == 0 and b * m * n for b, m, k, n in sizes)
    assert any(m % 16 and n % 16 and k % 16 and min(m, n, k) > 16 for _, m, k, n in sizes)
    assert any(k > 256 for _, _, k, _ in sizes)
    assert {b for b, *_ in sizes} >= {0, 1} or DEVICE == "cpu"
    assert {case.layout for case in found} >= {"contiguous", "transposed"}
    for case in found:
        report = judge.accuracy_case(operator(), case, seeds=1, distributions=("normal",))
        assert report.passed, f"{case.label}: {report.message}"
    assert any(
        not judge.accuracy_case(operator("last block"), c, seeds=1, distributions=("normal",)).passed for c in found
    )


def flips(x, w):
    return torch.nn.functional.layer_norm(torch.sigmoid(x @ w), (w.shape[1],))


def of_one_doubtful_sum(seed):
    """A row whose sums are far above 0 but for one, of which what it is off by decides whether its sigmoid is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 32, generator=generator) * 2**14 + 2**12
    w = torch.rand(32, 256, generator=generator) * 2**12 + 1
    w[:, 0] *= torch.randn(32, generator=generator).sign()
    w[-1, 0] = 0.0
    apart = 60 + 120 * float(torch.rand(1, generator=generator))
    w[-1, 0] = (-float(x.double()[0] @ w.double()[:, 0]) - apart) / x[0, -1]
    return x, w


def test_a_result_that_jumps_is_held_to_sums_that_are_off_by_more(monkeypatch):
    """Eight oracles may all be on one side of a step, and an honest kernel on the other: found in 1 of 150."""
    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T", rows=0)
    op = judge.Operator("o", flips, flips, flips, inputs, (out,), multiplied="T")
    case, given = judge.Case({"M": 1, "K": 32, "N": 256}, {"T": "float32"}), of_one_doubtful_sum(110)

    def honest(number):
        errors = Errors(torch.Generator().manual_seed(110_000 + number))
        storing = Storing(torch.float32, errors, ours=True, multiplies=True)
        return (in_float64(flips, given, stored=storing)[0].float(),)

    got, eager = honest(1), honest(2)
    assert float((got[0] - eager[0]).abs().max()) > 10
    assert values.check(op, case, given, got, eager, 110, False).complaint == ""
    wrong = (eager[0] * 20,)
    assert values.check(op, case, given, wrong, eager, 110, False).complaint
    monkeypatch.setattr(values, "_FAR", 1.0)
    monkeypatch.setattr(values, "_AGAIN", 1)
    assert values.check(op, case, given, got, eager, 110, False).complaint


def near_a_doubtful_sum(seed, distance):
    """The row, with that sum so many times away from 0 as it is off by."""
    x, w = of_one_doubtful_sum(seed)
    sums = torch.stack([honestly(torch.matmul, (x, w), number)[0, 0] for number in range(24)])
    w[-1, 0] = 0.0
    w[-1, 0] = (-float(x.double()[0] @ w.double()[:, 0]) - distance * sums.std()) / x[0, -1]
    return x, w


def honestly(function, given, number):
    errors = Errors(torch.Generator().manual_seed(number))
    return in_float64(function, given, stored=Storing(torch.float32, errors, ours=True, multiplies=True))[0]


@pytest.mark.parametrize(("seed", "distance"), [(17, 1.5), (5, 2.0)])
def test_a_result_that_jumps_is_held_to_many_oracles_where_there_are_many_elements(monkeypatch, seed, distance):
    """Of eight oracles none may jump where a kernel does: seen in 9 of 82 sigmoids of a sum near 0 before a norm."""
    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T", rows=0)
    op = judge.Operator("o", flips, flips, flips, inputs, (out,), multiplied="T")
    case, given = judge.Case({"M": 1, "K": 32, "N": 256}, {"T": "float32"}), near_a_doubtful_sum(seed, distance)
    eager, *others = (honestly(flips, given, seed * 1000 + number).float() for number in range(60))
    got = next(other for other in others if float((other - eager).abs().max()) > 5)
    monkeypatch.setattr(values, "_MANY", 0)
    assert values.check(op, case, given, (got,), (eager,), seed, False).complaint == ""
    assert values.check(op, case, given, (got + 100.0,), (eager,), seed, False).complaint
    monkeypatch.setattr(values, "_SUMS_AGAIN", 0)
    assert values.check(op, case, given, (got,), (eager,), seed, False).complaint


def test_nan_that_torchs_own_call_has_now_here_and_now_there_is_no_fault_of_the_kernel():
    """As a convolution's partial sums do that are added in any order, in float16 beyond its numbers: seen of one of
    1.5 million sums, of which a second call of PyTorch had 90,903 otherwise."""
    generator = torch.Generator().manual_seed(0)

    def called(x, w):
        sums = (x.float() @ w.float()).to(x.dtype)
        lost = torch.rand(sums.shape, generator=generator) < 0.2
        return torch.where(sums.isinf() & lost, float("nan"), sums)

    def reference(x, w):
        return called(x, w) if x.dtype == torch.float16 else x @ w

    def lost_everywhere(x, w):
        return torch.where((found := called(x, w)).isinf(), float("nan"), found)

    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T")
    case = judge.Case({"M": 16, "K": 200, "N": 16}, {"T": "float16"})
    for kernel, right in ((called, True), (lost_everywhere, False), (torch.zeros_like, False)):
        taken = kernel if kernel is not torch.zeros_like else lambda x, w: torch.zeros(16, 16, dtype=x.dtype)
        op = judge.Operator("o", taken, called, reference, inputs, (out,), stored="T", repeatable=False)
        found = judge.accuracy_case(op, case, distributions=("large",), seeds=1, seed=1, mutants=False)
        assert found.passed == right, found.message


def test_where_torchs_own_call_gives_now_nan_and_now_infinity_either_is_right(monkeypatch):
    """Of a convolution in float16 whose partial sums overflow, two calls of PyTorch agreed where the kernel's did not:
    20,488 of 1.5 million elements."""
    generator, own = torch.Generator().manual_seed(0), Stored._own

    def lost(sums):
        return torch.where(sums.isinf() & (torch.rand(sums.shape, generator=generator) < 0.3), float("nan"), sums)

    def rounded(x, w):
        return (x.float() @ w.float()).to(x.dtype)

    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T")
    case = judge.Case({"M": 16, "K": 200, "N": 16}, {"T": "float16"})
    for kernel, right in (
        (lambda x, w: lost(rounded(x, w)), True),
        (lambda x, w: lost(rounded(x, w)).nan_to_num(0, torch.inf, -torch.inf), False),
        (lambda x, w: torch.where(rounded(x, w).isfinite(), torch.nan, rounded(x, w)), False),
    ):
        op = judge.Operator("o", kernel, rounded, lambda x, w: x @ w, inputs, (out,), stored="T", repeatable=False)
        given = {"distributions": ("large",), "seeds": 1, "seed": 1, "mutants": False}
        assert not judge.accuracy_case(op, case, **given).passed
        with monkeypatch.context() as patched:
            patched.setattr(Stored, "_own", lambda *given: lost(own(*given)))
            found = judge.accuracy_case(op, case, **given)
        assert found.passed == right, found.message


@pytest.mark.parametrize("seed", [1005, 1007, 1026])
def test_what_overflows_before_a_bias_is_added_is_no_fault(seed):
    """A kernel may store a product in float16 and add the bias afterwards, as to -65808 + 1164."""

    def pooled(linear):
        def function(x, w, b):
            pairs = linear(x, w, b).unsqueeze(1)
            return (torch.nn.functional.max_pool1d(pairs, 2).squeeze(1).sum(1) * 0.5).to(x.dtype)

        return function

    def apart(x, w, b):
        return (x.float() @ w.float().T).to(x.dtype).float() + b.float()

    kernel, reference = pooled(apart), pooled(torch.nn.functional.linear)
    shapes = {"x": ("M", "N"), "w": ("K", "N"), "b": ("K",)}
    inputs = tuple(judge.Tensor(name, shape, "T") for name, shape in shapes.items())
    out = judge.Tensor("out", ("M",), "T")
    op = judge.Operator("p55", kernel, reference, reference, inputs, (out,), stored="T", multiplied="T")
    case = judge.Case({"M": 1023, "N": 4, "K": 4}, {"T": "float16"}, hidden=True)
    given = {"distributions": ("large",), "seeds": 1, "seed": seed}
    found = judge.accuracy_case(op, case, **given)
    assert found.passed, found.message
    infinite = judge.accuracy_case(op, case, kernel=lambda x, w, b: kernel(x, w, b).abs(), **given)
    assert not infinite.passed

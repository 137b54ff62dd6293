"""What a mask hides need not be read; all else that torch makes NaN of is NaN."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelgen import judge
from kernelgen.judge import contractions, masks
from kernelgen.judge.bounds import CAP
from kernelgen.judge.choices import Part
from kernelgen.judge.oracle import in_float64
from kernelgen.judge.readings import settled_by
from kernelgen.judge.stored import Storing
from kernelgen.judge.trial import Setting, run
from kernelgen.judge.values import check

WINDOW = 24
QKV = tuple(judge.Tensor(name, ("S", "D"), "T") for name in ("q", "k", "v"))
BLOCK = 16


def hidden(rows, columns):
    row = torch.arange(rows)[:, None]
    column = torch.arange(columns)
    return (column > row) | (row - column >= WINDOW)


def windowed(q, k, v):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden(len(q), len(k)), float("-inf"))
    return torch.softmax(scores, dim=-1).to(q.dtype) @ v


def by_blocks(first=lambda start: max(start - WINDOW + 1, 0), clean=lambda weights, v: v):
    """A kernel that reads no block of keys that is hidden as a whole, from `first(start)` for rows from `start` on."""

    def kernel(q, k, v):
        out = torch.empty_like(q)
        mask = hidden(len(q), len(k))
        for start in range(0, len(q), BLOCK):
            stop = min(start + BLOCK, len(q))
            keys = slice(first(start) // BLOCK * BLOCK, stop)
            scores = (q[start:stop].float() @ k[keys].float().mT) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(mask[start:stop, keys], float("-inf"))
            powers = torch.exp(scores - scores.amax(-1, keepdim=True))
            weights = powers.to(q.dtype).float()
            sums = clean(weights, v[keys].float())
            sums = weights @ sums if sums.ndim == 2 else (weights[:, None] @ sums)[:, 0]
            out[start:stop] = sums / powers.sum(-1, keepdim=True)
        return out

    return kernel


def dropping(weights, v):
    """Values of a weight of 0 are not summed, whatever made it 0."""
    return torch.where((weights == 0)[:, :, None], 0.0, v)


def judged(reference, kernel, inputs=QKV, sizes=None, dtype="float16", distributions=("specials",), seed=0, **kwargs):
    out = (judge.Tensor("out", inputs[-1].shape if inputs is QKV else ("M", "N"), "T"),)
    op = judge.Operator("o", kernel, reference, reference, inputs, out, multiplied="T", **kwargs)
    case = judge.Case(sizes or {"S": 150, "D": 16}, {"T": dtype})
    return judge.accuracy_case(op, case, distributions=distributions, seeds=1, seed=seed, mutants=False)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_kernel_that_skips_what_a_mask_hides_is_right(dtype):
    for seed in range(2):
        found = judged(windowed, by_blocks(), dtype=dtype, seed=seed)
        assert found.passed, f"seed {seed}: {found.message}"


def adding(q, k, v):
    """A window as a sum with minus infinity, which of an infinite score makes NaN."""
    mask = torch.zeros(len(q), len(k), device=q.device).masked_fill(hidden(len(q), len(k)), float("-inf"))
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + mask, dim=-1).to(q.dtype) @ v


@pytest.mark.parametrize("kernel", [by_blocks(), adding], ids=["skips", "adds"])
def test_minus_infinity_that_is_added_hides_too(kernel):
    for seed in range(2):
        found = judged(adding, kernel, dtype="float32", seed=seed)
        assert found.passed, f"seed {seed}: {found.message}"


def test_minus_infinity_of_an_input_hides_nothing_infinite():
    def biased(q, k, v, bias):
        return torch.softmax(q @ k.mT + bias, dim=-1) @ v

    def forgiving(q, k, v, bias):
        return torch.softmax(torch.where(bias == -torch.inf, -torch.inf, q @ k.mT + bias), dim=-1) @ v

    inputs = (*QKV, judge.Tensor("bias", ("S", "S"), "T"))
    out = (judge.Tensor("out", ("S", "D"), "T"),)
    case = judge.Case({"S": 12, "D": 4}, {"T": "float32"})
    q, k, v, bias = (torch.randn(12, n) for n in (4, 4, 4, 12))
    q[3], k[5], bias[3, 5] = q[3].abs(), torch.inf, -torch.inf
    for kernel, is_right in ((biased, True), (forgiving, False)):
        op = judge.Operator("o", kernel, biased, biased, inputs, out, multiplied="T")
        got, eager = kernel(q, k, v, bias), biased(q, k, v, bias)
        found = check(op, case, (q, k, v, bias), [got], [eager], 0, verbose=False)
        assert (not found.complaint) == is_right, found.complaint


def test_what_is_seen_may_be_off_by_what_products_round_where_torch_has_nothing_but_nan(monkeypatch):
    """The bound there is that of several oracles: one draw for few elements is small by chance."""
    monkeypatch.setitem(globals(), "WINDOW", 4)
    op = judge.Operator(
        "o", by_blocks(), windowed, windowed, QKV, (judge.Tensor("out", ("S", "D"), "T"),), multiplied="T"
    )
    case = judge.Case({"S": 48, "D": 16}, {"T": "float16"})
    for seed in range(10):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(48, 16, dtype=torch.float16) for _ in range(3))
        v[0] = q[:47] = torch.nan
        eager = windowed(q, k, v)
        assert eager.isnan().all()
        found = check(op, case, (q, k, v), [by_blocks()(q, k, v)], [eager], seed, verbose=False)
        assert not found.complaint, f"seed {seed}: {found.complaint}"


@pytest.mark.parametrize(
    "kernel",
    [
        by_blocks(lambda start: max(start - WINDOW + 1 + BLOCK, 0)),
        by_blocks(clean=lambda weights, v: v.nan_to_num(0.0)),
    ],
    ids=["a block that is seen", "NaN that is seen"],
)
def test_a_kernel_that_skips_what_no_mask_hides_is_wrong(kernel):
    assert not judged(windowed, kernel).passed


MATRICES = (judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T"))
SIZES = {"M": 20, "K": 40, "N": 12}


def skipping_zeros(factor):
    """The product without the pairs of which the first factor is 0."""

    def kernel(x, w):
        found = factor(x)
        return torch.where((found == 0)[:, :, None], 0.0, found[:, :, None] * w).sum(1)

    return kernel


@pytest.mark.parametrize(
    "factor",
    [torch.relu, lambda x: torch.softmax(x * 2000, -1), lambda x: torch.where(x > 0, x, 0.0)],
    ids=["relu", "an exponential that underflows", "a condition on the elements"],
)
def test_a_factor_that_happens_to_be_zero_hides_nothing(factor):
    """0 * NaN is NaN in torch, and a kernel that skips it is wrong."""

    def reference(x, w):
        return factor(x) @ w

    assert judged(reference, lambda x, w: reference(x, w), MATRICES, SIZES, "float32").passed
    found = judged(reference, skipping_zeros(factor), MATRICES, SIZES, "float32")
    assert "NaN or infinity in the wrong place" in found.message


def test_a_triangle_hides_what_is_beyond_it():
    def reference(x, w):
        return torch.tril(x) @ w

    assert judged(reference, skipping_zeros(torch.tril), MATRICES, SIZES, "float32").passed


def test_what_is_hidden_is_left_out_and_nothing_else():
    """A candidate has PyTorch's NaN or what is left without the hidden; an infinity in its place is wrong."""
    infinite = judged(windowed, lambda q, k, v: windowed(q, k, v).nan_to_num(torch.inf), dtype="float32")
    assert "NaN or infinity in the wrong place" in infinite.message


def test_a_row_of_which_everything_is_hidden_is_nan_as_in_torch():
    def none_seen(q, k, v):
        unseen = hidden(len(q), len(k)) | (torch.arange(len(q)) % 3 == 0)[:, None]
        return torch.softmax((q @ k.mT).masked_fill(unseen, float("-inf")), dim=-1) @ v

    assert judged(none_seen, lambda q, k, v: none_seen(q, k, v), dtype="float32").passed
    zeros = judged(none_seen, lambda q, k, v: none_seen(q, k, v).nan_to_num(0.0), dtype="float32")
    assert "NaN or infinity in the wrong place" in zeros.message


def test_a_weight_too_small_to_be_normal_is_zero_on_a_gpu(monkeypatch):
    """Of an infinite element it is NaN there, where torch has an infinity; beside what a mask hides."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "operators" / "attention_softcap")
    shipped = importlib.import_module("attention_softcap_gradients_accuracy")

    def flushing(below):
        def reference(q, k, v, cap=50.0):
            scores = cap * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / cap)
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            weights = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
            lost = torch.where(weights < below, weights, 0.0).detach()
            return (weights - lost) @ v

        return shipped.through(reference)

    def accepts(below):
        case = judge.Case({"B": 2, "H": 257, "S": 2, "D": 3}, {"T": "float32"}, hidden=True)
        return judge.accuracy_case(
            shipped.OPERATOR, case, kernel=flushing(below), distributions=("specials",), seeds=1, seed=1
        ).passed

    assert accepts(2.0**-126)
    assert not accepts(1e-3)


def test_after_torchs_own_attention_a_gradient_has_sums_that_no_mask_is_of():
    """Which products its gradient takes, in which order, is torch's affair: on a GPU other ones than on a CPU."""
    q, k, v = torch.randn(3, 2, 3, 5, 7).unbind()
    pair = (torch.ones(3, 5, dtype=torch.bool), torch.ones(5, 4, dtype=torch.bool))

    def doubled(q, k, v):
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(q.requires_grad_(), k, v)
        return out.detach() + out.detach()

    called = Storing(torch.float32, called=True, multiplies=True, hidden=[pair] * 3)
    (found,) = in_float64(doubled, (q, k, v), stored=called)
    torch.testing.assert_close(found.float(), 2 * torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_any_rounding_has_the_gradient_of_rounding_and_no_sum():
    """A sum more, and a mask is taken to be of another one."""

    def squared(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(x @ x, x, torch.ones((4, 4), dtype=x.dtype))

    def passes(how):
        noted = []
        (found,) = in_float64(squared, (torch.eye(4),), stored=replace(how, noted=noted))
        return found, len(noted)

    plain = Storing(torch.float32, multiplies=True)
    (exact, sums), (found, others) = passes(plain), passes(replace(plain, anyhow=torch.Generator().manual_seed(0)))
    assert sums == others
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


def test_a_row_without_keys_has_no_gradient():
    def gradients(q, k, v, mask):
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    mask = torch.tensor([[False, False], [True, True]])
    given = [*torch.randn(3, 2, 4).unbind(), mask]
    found = in_float64(gradients, given, stored=Storing(torch.float32, multiplies=True))
    for one, right in zip(found, gradients(*given), strict=True):
        torch.testing.assert_close(one.float(), right)
    assert not found[0][0].any()
    nothing = in_float64(gradients, [x[: 2 * n] for n, x in zip((1, 0, 0, 1), [*given[:3], mask[:, :0]], strict=True)],
                         stored=Storing(torch.float32))  # fmt: skip
    assert [tuple(x.shape) for x in nothing] == [(2, 4), (0, 4), (0, 4)]
    assert not nothing[0].any()


def test_gradients_of_sums_without_what_a_mask_hides_are_those_of_what_it_leaves():
    """Of v also where a sum is infinite: p^T g, whatever p v comes to; of q and k where a hidden v is NaN."""

    def gradients(g, q, k, v, mask):
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return torch.autograd.grad(out, (q, k, v), g)

    mask = torch.tensor([[True, True, False], [False, False, True], [True, True, True]])
    g, q, k, v = (torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).double() for n in range(4))
    plain = Storing(torch.float64, multiplies=True)

    def noted(*given):
        pairs = []
        in_float64(gradients, (*given, mask), stored=replace(plain, noted=pairs))
        return pairs

    hides = masks.hidden([noted(g, q, k, v), noted(g, q + 1, k + 1, v)])
    v[0, 1], v[2, 2] = torch.inf, torch.nan
    found = in_float64(gradients, (g, q, k, v, mask), stored=replace(plain, hidden=hides))
    weights = torch.softmax(torch.where(mask, q @ k.mT / 2, -torch.inf), -1)
    torch.testing.assert_close(found[2], weights.mT @ g)
    v[0, 1] = g[2] = 0
    found = in_float64(gradients, (g, q, k, v, mask), stored=replace(plain, hidden=hides))
    right = gradients(g[:1], q[:1], k[:2], v[:2], mask[:1, :2])
    torch.testing.assert_close(found[0][:1], right[0])


def test_a_hidden_weight_that_is_nan_is_left_out_as_well():
    """Torch has NaN in all weights of a row of which one score is NaN, a kernel has 0 where a mask hides."""
    nan, inf = float("nan"), float("inf")
    weights = torch.tensor([[0.5, 0.0], [nan, nan]], dtype=torch.float64)
    given = torch.tensor([[1.0, 2.0], [inf, 3.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True], [False, True]]), torch.zeros(2, 2, dtype=torch.bool)
    called = contractions.of_matrices(weights)
    seen = [masks.sums_of_the_seen(weights @ given, called, (weights, given), mask, nan=told) for told in (False, True)]
    right = torch.tensor([[0.5, 1.0], [nan, nan]], dtype=torch.float64)
    for found in seen:  # a row of NaN stays one through what is seen of it
        torch.testing.assert_close(found, right, equal_nan=True)
    turned = weights.mT.contiguous()
    hides = mask[0].mT, mask[1]
    exact, called = turned @ given, contractions.of_matrices(turned)
    without, also = (masks.sums_of_the_seen(exact, called, (turned, given), hides, nan=told) for told in (False, True))
    assert without[1].isnan().all()
    assert not also[1].any()


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "seed"),
    [
        ("attention_varlen", {"M": 2, "H": 255, "D": 2, "N": 3, "P": 3}, "float32", 0),
        ("attention_varlen_causal", {"M": 2, "D": 3, "N": 257, "P": 3}, "float32", 4),
        ("attention_varlen_causal", {"M": 66, "D": 34, "N": 66, "P": 33}, "bfloat16", 1),
    ],
)
def test_gradients_of_attention_are_right_where_torch_has_nan_through_what_a_mask_hides(
    name, sizes, dtype, seed, monkeypatch
):
    """As torch has it on a GPU, where it computes by the formula what its fused kernels do not take."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "operators" / name)
    shipped = importlib.import_module(f"{name}_gradients_accuracy").OPERATOR

    def by_formula(function):
        def computed(*args):
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args)

        return computed

    op = replace(shipped, baseline=by_formula(shipped.baseline), reference=by_formula(shipped.reference))
    case = judge.Case(sizes, {"T": dtype}, hidden=True)
    found = judge.accuracy_case(op, case, distributions=("specials",), seeds=1, seed=seed)
    assert found.passed, found.message


@pytest.mark.parametrize(("times", "right"), [(1.0, True), (1.02, False)])
def test_where_the_other_way_alone_has_a_number_its_rounding_counts(times, right, monkeypatch):
    """Of a row whose every other element is NaN in PyTorch and in the reference: nothing but the other way, with what
    it saves in half precision, tells what a number there may be off by. Such rows are left by tiles of 16 keys alone."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "operators" / "attention_causal")
    shipped = importlib.import_module("attention_causal_gradients_accuracy").OPERATOR
    for part, kernel, rows in (("forward", "forward_tiles", 16), ("backward", "backward", 32)):
        module = importlib.import_module(f"{part}.attention_causal_{part}_triton")
        options = {"BLOCK_M": rows, "BLOCK_N": 16, "num_stages": 1, "num_warps": 8}
        chosen = getattr(module, f"attention_causal_{kernel}_kernel"), options
        monkeypatch.setattr(module, "pick_schedule", lambda *sizes, chosen=chosen: chosen)

    def off(*given):
        grad_q, *rest = shipped.kernel(*given)
        return grad_q * times, *rest

    case = judge.Case({"B": 1, "H": 4, "S": 64, "D": 130}, {"T": "float16"}, hidden=True)
    operator = replace(shipped, kernel=off).at(case)
    found = run(Setting(operator, case, operator.kernel, "cpu", "specials", 3, repeat=False))
    assert found.passed == right, found.message


def test_what_is_left_of_terms_that_a_mask_leaves_is_measured_by_these():
    """Of one key a row the gradient of a query is 0: a kernel has what rounding took from dp - delta, 1e-7, where
    PyTorch has NaN from what the mask hides."""

    def gradient(g, q, k, v):
        mask = torch.eye(len(g), dtype=torch.bool, device=g.device)
        weights = torch.softmax(torch.where(mask, q @ k.T, -torch.inf), -1)
        delta = (g * (weights @ v)).sum(-1, keepdim=True)
        return torch.where(mask, weights * (g @ v.T - delta), 0) @ k

    given = [torch.randn(3, 8, generator=torch.Generator().manual_seed(n)).half() for n in range(4)]
    given[2][1, 3] = given[3][1, 3] = torch.nan
    inputs = tuple(judge.Tensor(name, ("M", "D"), "T") for name in "gqkv")
    out = (judge.Tensor("out", ("M", "D"), "T"),)
    op = judge.Operator(
        "o", gradient, gradient, gradient, inputs, out, terms=("g",), stored="T", multiplied="T", also=None
    )
    case = judge.Case({"M": 3, "D": 8}, {"T": "float16"})
    eager = gradient(*given)
    assert eager[0].isnan().any()
    for off, right in ((0.0, True), (1.2e-7, True), (0.2, False)):
        got = torch.full((3, 8), off, dtype=torch.float16)
        got[1] = eager[1]
        complaint = check(op, case, given, (got,), (eager,), 1, False).complaint
        assert (not complaint) == right, complaint


def test_a_reading_that_is_far_is_left_to_the_next():
    got, ref = torch.tensor([0.04, 1.0]), torch.tensor([torch.nan, 1.0], dtype=torch.float64)
    part = Part(0, (), got, torch.tensor([torch.nan, 1.0]), ref, [], [])
    other, near = (torch.tensor([x, 1.0], dtype=torch.float64) for x in (0.0, 0.04001))
    assert settled_by(part, other).tolist() == [True, False]
    assert settled_by(part, other, CAP[torch.float32]).tolist() == [False, False]
    assert settled_by(part, near, CAP[torch.float32]).tolist() == [True, False]

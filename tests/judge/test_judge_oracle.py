"""The fp64 oracle, its tiles, and the bound on errors."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from kernelgen import judge
from kernelgen.judge import oracle, readings, values, walks
from kernelgen.judge.bounds import Tally, difference
from kernelgen.judge.choices import Part
from kernelgen.judge.contractions import Errors
from kernelgen.judge.eager import IN_REGISTERS, apart
from kernelgen.judge.stored import Storing, tf32

X = judge.Tensor("x", ("...", "D"), "T", rows=0)
W = judge.Tensor("w", ("D",), "T")


def rms_norm(x, w):
    y = x.float()
    scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * scale).to(x.dtype) * w


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.float() / 3,
        lambda x: x.half() / 3,
        lambda x: x.bfloat16() / 3,
        lambda x: x.to(torch.float32) / 3,
        lambda x: x.to(x.device, torch.float16) / 3,
        lambda x: x.to(dtype=torch.bfloat16) / 3,
        lambda x: x.type(torch.float32) / 3,
        lambda x: x / torch.full((), 3, dtype=torch.float32),
        lambda x: x / torch.tensor(3.0),
        lambda x: x / torch.tensor([3]),
        lambda x: torch.sum(x[..., None], -1, dtype=torch.float32) / 3,
        lambda x: (x.to(torch.int32).to(torch.float16) * 0 + x) / 3,
        lambda x: x.type_as(torch.zeros(1, dtype=torch.float32)) / 3,
        lambda x: F.softmax(torch.stack([x * 0, x * 0, x * 0]), 0, dtype=torch.float32)[0] * x,
    ],
)
def test_no_cast_loses_precision(function):
    x = torch.randn(50)
    (result,) = oracle.in_float64(function, [x])
    assert result.dtype == torch.float64
    assert torch.allclose(result, x.double() / 3, rtol=1e-15, atol=0)
    assert torch.get_default_dtype() == torch.float32


def test_casts_to_integers_are_kept():
    (result,) = oracle.in_float64(lambda x: x.float().round().to(torch.int8), [torch.tensor([1.4, 2.6])])
    assert result.tolist() == [1, 3]
    assert result.dtype == torch.int8


@pytest.mark.parametrize("cast", [torch.Tensor.float, lambda x: x.to(torch.float32), lambda x: x.type(torch.float32)])
def test_an_integer_cast_to_float32_is_what_float32_has(cast):
    (result,) = oracle.in_float64(lambda x: torch.sin(cast(x)), [torch.tensor([2**31 - 1, 2**24 + 1, 7])])
    assert result.tolist() == pytest.approx([math.sin(2**31), math.sin(2**24), math.sin(7)], rel=1e-12)
    assert result.dtype == torch.float64


def cancelling(x):
    squares = x * x
    return 1 - squares / (squares + 1e-3)


def cancelling_gradient(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x / (x * x + 1e-3).sqrt()).sum(), x)[0]


@pytest.mark.parametrize("function", [cancelling, cancelling_gradient])
def test_rounding_errors_of_single_steps_are_known_where_they_are_all_that_is_left(function):
    x = torch.empty(4000).uniform_(50, 100, generator=torch.Generator().manual_seed(1))
    (ref,) = oracle.in_float64(function, [x])
    (moved,) = oracle.in_float64(function, [x], noise(2))
    honest = difference(function(x), ref)
    assert honest.max() > 0.05 * ref.abs().max(), "float32 computes few digits of this"
    assert honest.max() < 4 * difference(moved, ref).max() < 1e-5 * (1 if function is cancelling else 0.1)


def entropy(x):
    logs = F.log_softmax(x, dim=-1)
    return -(logs.exp() * logs).sum(dim=-1)


def test_the_logarithm_of_a_sum_in_float32_is_nothing_beside_one():
    """log(1 + e**-31) is 0 in float32, of which the entropy of few rows is but 31 times as much."""
    x = torch.tensor([[1000.0, 969.0], [500.0, -500.0]])
    (ref,) = oracle.in_float64(entropy, [x])
    probes = [oracle.in_float64(entropy, [x], noise(n))[0] for n in range(4)]
    assert not tally(entropy(x), entropy(x), ref, probes).complaint()
    assert tally(entropy(x) + 1e-5, entropy(x), ref, probes).complaint()


def walked(terms):
    """Their sum in float32, 16 of them at a time."""
    total = torch.zeros(16)
    for block in F.pad(terms, (0, -len(terms) % 16)).view(-1, 16):
        total = total + block
    return total.double().sum()


def test_terms_that_are_cut_off_at_the_same_place_round_alike():
    """Numbers in half precision less their mean: every addition rounds by what the mean has beyond their last bits."""
    x = torch.randn(518, generator=torch.Generator().manual_seed(11)).half().repeat(5)

    def off_its_mean(x):
        return (x.float() - x.float().mean()).sum()

    (ref,) = oracle.in_float64(off_its_mean, [x])
    x = x.float()
    got = walked(x - (walked(x) / len(x)).float()).float()
    probes = [oracle.in_float64(off_its_mean, [x], noise(n, alike=n % 2 > 0))[0] for n in range(8)]
    assert not tally(got, ref.float(), ref, probes).complaint()
    assert tally(got + 0.02, ref.float(), ref, probes).complaint()


class Still(oracle.Noise):
    """Moves nothing."""

    def moved(self, x):
        return x


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [None, 1, -2, (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_every_sum_is_walked(reduce, dims, keepdim):
    x = torch.empty(40, 50, 60).uniform_(1, 2, generator=torch.Generator().manual_seed(1))
    (ref,) = oracle.in_float64(lambda x: reduce(x, dims, keepdim), [x])
    (moved,) = oracle.in_float64(lambda x: reduce(x, dims, keepdim), [x], Still(torch.Generator()))
    assert moved.shape == ref.shape
    assert 0 < float(((moved - ref) / ref).abs().max()) < 2.0**-20


def test_what_float32_flushes_may_be_counted_or_not():
    def above_zero(x):
        return (x.exp() > 0).sum(-1)

    x = torch.tensor([0.0, -88.0, -100.0, -300.0])
    (ref,) = oracle.in_float64(above_zero, [x])
    (moved,) = oracle.in_float64(above_zero, [x], noise(1, alike=True))
    assert (int(ref), int(above_zero(x)), int(moved)) == (4, 3, 1)


def shares(x):
    exponentials = torch.exp(x.float() - 100)  # denormals of float32, a step of 2**-149 apart
    return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_computed_of_denormals_is_as_uncertain_as_these_are(wrong):
    """Their relative error is 2**-149 over what they are, where that of other numbers is 2**-23 at most."""

    def candidate(x):
        found = shares(x)
        return found.where(found < found.amax(-1, keepdim=True), 0.9 * found) if wrong else found

    x, out = judge.Tensor("x", ("N", 64), "float32"), judge.Tensor("out", ("N", 64), "float32")
    operator = judge.Operator("shares", candidate, shares, shares, (x,), (out,))
    report = judge.accuracy_case(operator, judge.Case({"N": 500}), device="cpu")
    assert report.passed != wrong, report.message


@pytest.mark.parametrize("step", [F.relu6, F.elu, F.hardshrink, F.hardswish])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_gradient_at_nan_is_that_of_torchs_loops_over_single_elements(step, wrong):
    """Which its kernels on a GPU agree with; on a CPU others take most of what a product has left in memory."""

    def gradient(x, w):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(step(leaf @ w), leaf, torch.ones_like(x))[0]

    def candidate(x, w):
        with torch.enable_grad():
            sums = (x @ w).detach().requires_grad_()
            one_by_one = [step(one) for one in sums.flatten().split(1)]
            grads = torch.cat(torch.autograd.grad(one_by_one, sums, [torch.ones(1)] * sums.numel())).reshape(x.shape)
        return torch.where(sums.isnan(), 2 * grads, grads) @ w.T if wrong else grads @ w.T

    x, w = judge.Tensor("x", ("N", "D"), "T"), judge.Tensor("w", ("D", "D"), "T")
    out = judge.Tensor("out", ("N", "D"), "T")
    operator = judge.Operator("gradient", candidate, gradient, gradient, (x, w), (out,))
    report = judge.accuracy_case(operator, judge.Case({"D": 8, "N": 12}, {"T": "float32"}), device="cpu")
    assert report.passed != wrong, report.message


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.5, 1e30])


KINDS = {"Tensor": None, "number": 0.5, "Optional[float]": None, "bool": False}
"""Of what these functions take, and what they are given besides tensors."""


def element_by_element():
    """torch's functions that work so: those it tags, and the gradients that it does not."""
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        wanted = [str(a.type) for a in schema.arguments if not a.has_default_value()]
        if space != "aten" or schema.is_mutable or "Tensor" not in wanted or not set(wanted) <= set(KINDS):
            continue
        found = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        if torch.Tag.pointwise in found.tags or name.endswith("_backward"):
            yield found, wanted


def of_special_values(function, wanted, spread):
    """What it gives for all pairs of special values, each of which fills vector registers; None where it takes none."""
    rows = SPECIAL.repeat_interleave(len(SPECIAL)), SPECIAL.repeat(len(SPECIAL))
    operands = itertools.cycle(row.repeat_interleave(64) for row in rows)
    try:
        return function(*(spread(next(operands)) if kind == "Tensor" else KINDS[kind] for kind in wanted))
    except (RuntimeError, NotImplementedError, IndexError):
        return None


def differ(plain, alone):
    if not isinstance(plain, torch.Tensor) or plain.shape != alone.shape:
        return False
    return not torch.allclose(plain.double(), alone.double(), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_what_treats_special_values_otherwise_in_vector_registers_is_known():
    found = {
        function._schema.name
        for function, wanted in element_by_element()
        if differ(*(of_special_values(function, wanted, spread) for spread in (torch.clone, apart)))
    }
    assert found == IN_REGISTERS


def noise(seed, alike=False):
    return oracle.Noise(torch.Generator().manual_seed(seed), alike)


def through_norm(norm):
    def gradient(x, grad, weight):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(norm(x, weight), x, grad)[0]

    return gradient


@pytest.mark.parametrize(
    "norm", [lambda x, w: F.layer_norm(x, (1,), w), lambda x, w: F.group_norm(x[..., None], 1, w)[..., 0]]
)
def test_steps_of_a_gradient_that_torch_computes_in_one_are_disturbed(norm):
    """Of rows of one element the gradient is 0, and fma(grad, weight, -mean) what rounding took from the product."""
    x, grad, weight = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(1)).unbind()
    weight = weight[:1, 0]
    honest = ((grad.double() * weight) - (grad * weight).double()).abs() * 1e-5**-0.5
    moved = [oracle.in_float64(through_norm(norm), [x, grad, weight], noise(n))[0].abs() for n in range(8)]
    assert bool((honest <= 2 * torch.stack(moved).amax(0)).all())


def test_attention_has_gradients_however_its_sums_are_stored():
    """A result that is known from another oracle of the case has gradients for that one's tensors."""
    tensors = torch.randn(4, 1, 1, 3, 16, generator=torch.Generator().manual_seed(1)).half().unbind()
    errors = Errors(torch.Generator().manual_seed(2))
    plain = Storing(torch.float16)
    ways = [plain, replace(plain, called=True), replace(plain, called=True), replace(plain, errors=errors)]

    def gradients(grad, *inputs):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in inputs]
            return torch.autograd.grad(F.scaled_dot_product_attention(*inputs), inputs, grad)

    right = oracle.in_float64(gradients, tensors)
    for way in ways:
        for got, ref in zip(oracle.in_float64(gradients, tensors, stored=way), right, strict=True):
            assert torch.allclose(got, ref, atol=2e-2), way


def test_equal_elements_are_disturbed_alike_as_they_are_rounded(monkeypatch):
    """What rounding took from products of equal rows was seen in their sum, 1.2 times the bound."""
    x = torch.tensor([1.1, -1.0999]).repeat_interleave(2**16)

    def signed_squares(x):
        return (x * x.abs()).sum()

    monkeypatch.setattr(walks, "error", lambda *_: None)
    ref = oracle.in_float64(signed_squares, [x])[0]
    honest = float(difference((x * x.abs()).double().sum(), ref))
    on_its_own, alike = (
        max(float(difference(oracle.in_float64(signed_squares, [x], noise(n, how))[0], ref)) for n in range(4))
        for how in (False, True)
    )
    assert 8 * on_its_own < honest < alike < 2**-20 * float(x.double().square().sum())


def test_what_is_selected_is_not_disturbed():
    x = torch.randn(100, 7, dtype=torch.float64)
    for function in (lambda y: y.amax(-1) == y.sort(-1).values[:, -1], lambda y: y.t().contiguous().t() == y):
        assert bool(oracle.in_float64(function, [x.float()], noise(0))[0].all())


@pytest.mark.parametrize("leading", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (300, 2)])
@pytest.mark.parametrize("tile_bytes", [1, 2000, 2**30])
def test_tiles_together_are_the_whole(leading, tile_bytes):
    case = judge.Case({"...": leading, "D": 17}, {"T": "float32"})
    operator = judge.Operator("rms_norm", rms_norm, rms_norm, rms_norm, (X, W), (X,))
    x, w = torch.randn(case.shape(X)), torch.randn(17)
    (whole,) = oracle.in_float64(rms_norm, [x, w])
    tiling = oracle.Tiling(operator, case, tile_bytes)
    result = torch.full(case.shape(X), math.nan, dtype=torch.float64)
    seen = 0
    for box in tiling.boxes():
        (part,) = oracle.in_float64(rms_norm, [tiling.cut(X, x, box), tiling.cut(W, w, box)])
        tiling.cut(X, result, box).copy_(part)
        seen += part.numel()
        if leading:
            assert part.numel() * 16 <= max(tile_bytes, 17 * 16)
    assert seen == whole.numel(), "no element twice"
    assert torch.equal(result, whole)


@given(st.lists(st.integers(1, 6), max_size=4), st.integers(1, 2000), st.integers(1, 64))
def test_boxes_cover_every_row_once(extents, budget, bytes_per_row):
    rows = math.prod(extents)
    seen = torch.zeros(extents or ())
    for box in oracle._boxes(tuple(extents), rows * bytes_per_row, budget):
        part = seen
        for dim, (start, length) in enumerate(box):
            part = part.narrow(dim, start, length)
        part += 1
        assert part.numel() * bytes_per_row <= max(budget, bytes_per_row)
    assert (seen == 1).all()


def test_a_tensor_without_rows_is_needed_whole():
    case = judge.Case({"...": (1000, 1000), "D": 17}, {"T": "float32"})
    whole = judge.Tensor("out", ("...", "D"), "T")
    operator = judge.Operator("op", rms_norm, rms_norm, rms_norm, (X, W), (whole,))
    assert list(oracle.Tiling(operator, case).boxes()) == [()]


def test_rows_that_differ_are_a_mistake():
    case = judge.Case({"...": (4,), "D": 17}, {"T": "float32"})
    columns = judge.Tensor("out", ("...", "D"), "T", rows=1)
    operator = judge.Operator("op", rms_norm, rms_norm, rms_norm, (X, W), (columns,))
    with pytest.raises(ValueError, match="differ"):
        oracle.Tiling(operator, case)


def test_the_index_of_a_tile_is_turned_into_that_of_the_whole():
    case = judge.Case({"...": (10, 10), "D": 17}, {"T": "float32"})
    operator = judge.Operator("op", rms_norm, rms_norm, rms_norm, (X, W), (X,))
    assert oracle.Tiling(operator, case).index(X, (1, 2, 3), ((4, 2), (5, 5))) == (5, 7, 3)


def tally(got, eager, ref, probes=(), dtype=None, **kwargs):
    result = Tally(dtype or got.dtype, **kwargs)
    result.add(got, eager, ref, list(probes))
    return result


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_lucky_exact_eager_does_not_fail_correct_rounding(dtype):
    """PyTorch happens to be exact here; the other neighbour of the true value is still accepted, the next is not."""
    eager = torch.full((300,), 1.5, dtype=dtype)
    ulp = torch.finfo(dtype).eps
    steps = 1 if dtype == torch.float16 else 16
    assert tally(eager + steps * ulp, eager, eager.double()).complaint() == ""
    assert tally(eager + (steps + 2) * ulp, eager, eager.double()).complaint() != ""


def test_twice_the_error_of_eager_is_accepted_and_not_more():
    ref = torch.rand(1000, dtype=torch.float64) + 1
    eager = (ref + 1e-5).float()
    assert tally((ref + 1.9e-5).float(), eager, ref).complaint() == ""
    assert "over the bound" in tally((ref + 2.2e-5).float(), eager, ref).complaint()
    assert tally((ref + 2.2e-5).float(), eager, ref, factor=1.2).complaint() == ""


def test_large_elements_do_not_hide_small_ones():
    """One element of 0.1 is wrong by 10 %: less than PyTorch's rounding of the elements of 10,000."""
    ref = torch.cat([torch.full((500,), 1e4), torch.full((500,), 0.1)]).double()
    eager = ref.half() + torch.tensor([8.0, 0.0]).half().repeat_interleave(500)
    got = ref.half()
    got[-1] *= 1.1
    assert (got.double() - ref).abs().max() < 8
    assert "elements of about" in tally(got, eager, ref).complaint()


def test_nan_speaks_for_no_elements_error():
    """PyTorch's rounding of 8 is all that is known of an error of few numbers among many NaN."""
    ref = torch.full((1000,), torch.nan, dtype=torch.float64)
    ref[:2] = torch.tensor([8.0, 0.01])
    eager = ref.float()
    got = eager.clone()
    eager[0] += 1e-4
    got[1] += 1e-4
    assert not tally(got, eager, ref).complaint()
    assert not tally(got[:2], eager[:2], ref[:2]).complaint()


def test_the_oracles_own_sensitivity_is_accepted():
    ref = torch.zeros(300, dtype=torch.float64) + 1e-3
    got = (ref + 1e-6).float()
    assert tally(got, ref.float(), ref).complaint() != ""
    assert tally(got, ref.float(), ref, [ref + 1e-6]).complaint() == ""


def test_no_error_of_eager_excuses_more_than_the_cap():
    ref = torch.ones(300, dtype=torch.float64)
    assert tally(ref.float() + 0.01, ref.float() + 0.01, ref).complaint() != ""


@pytest.mark.parametrize(
    ("got", "eager", "ref", "wrong"),
    [
        (math.nan, math.nan, math.nan, 0),
        (1.0, math.nan, math.nan, 1),
        (math.nan, 1.0, 1.0, 1),
        (math.inf, math.inf, math.inf, 0),
        (-math.inf, math.inf, math.inf, 1),
        (math.nan, math.inf, math.inf, 1),
        (65504.0, math.inf, math.inf, 1),
        (2.0, math.inf, 2.0, 0),
        (math.inf, math.inf, 7e4, 0),
        (math.inf, 65504.0, 7e4, 0),
        # rounding alone decides: 65520 is the first number that rounds to infinity
        (math.inf, 65504.0, 65519.9, 0),
        (65504.0, math.inf, 65520.1, 0),
        (-math.inf, -65504.0, -65519.9, 0),
        (-math.inf, 65504.0, 65519.9, 1),
        (math.inf, 65472.0, 3e4, 1),
    ],
)
def test_positions_of_nan_and_infinity(got, eager, ref, wrong):
    values = (torch.tensor([got, 1.0]).half(), torch.tensor([eager, 1.0]).half(), torch.tensor([ref, 1.0]).double())
    found = tally(*values)
    assert found.misplaced == wrong
    assert bool(found.complaint()) == bool(wrong)


@pytest.mark.parametrize(("got", "eager", "ref"), [(math.inf, 65472.0, 65480.0), (65504.0, math.inf, 65600.0)])
def test_an_overflow_is_as_wrong_as_the_number_that_it_stands_for(got, eager, ref):
    right = torch.tensor([ref, 1.0]).double()
    values = (torch.tensor([got, 1.0]).half(), torch.tensor([eager, 1.0]).half(), right)
    assert tally(*values).complaint().startswith("error")
    honest = Tally(torch.float16)
    honest.add(*values, [], [right + torch.tensor([100.0, 0.0])])  # what a sum of large products is off by
    assert honest.complaint() == ""


def test_large_integers_that_differ_by_one():
    a = torch.tensor([2**62, 5])
    assert difference(a, a).tolist() == [0, 0]
    assert difference(a + 1, a).tolist() == [1, 1]
    assert tally(a + 1, a, a).complaint() != ""
    assert tally(a, a, a).complaint() == ""


def test_tiles_add_up():
    ref = torch.randn(1000, dtype=torch.float64)
    eager, got = (ref + 1e-6).float(), (ref + 3e-6).float()
    whole, parts = tally(got, eager, ref), Tally(torch.float32)
    for tile in range(0, 1000, 100):
        cut = slice(tile, tile + 100)
        parts.add(got[cut], eager[cut], ref[cut], [])
    assert parts.max_error == whole.max_error
    assert sum(g.count for g in parts.groups.values()) == 1000
    assert bool(parts.complaint()) == bool(whole.complaint())


def wave(x, w):
    return torch.sin(x @ w)


@pytest.mark.parametrize("stored", ["T", ""])
def test_what_is_rounded_around_calls_of_torchs_is_no_fault_of_the_kernels(stored):
    """A product of about 200 is off by 0.06 in float16, and so is its sine: more than the cap has room for."""
    tensors = (judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T"))
    operator = judge.Operator(
        "wave", kernel=lambda x, w: torch.sin((x @ w).double()).half(), baseline=wave, reference=wave,
        inputs=tensors, outputs=(judge.Tensor("out", ("M", "N"), "T"),), stored=stored,
    )  # fmt: skip
    case = judge.Case({"M": 8, "K": 4096, "N": 64}, {"T": "float16"})
    report = judge.accuracy_case(operator, case, device="cpu", seed=1, seeds=1, distributions=("normal",))
    assert report.passed == bool(stored), report.message


def test_tf32_has_ten_bits():
    ulp = 2.0**-10
    values = torch.tensor([1 + ulp, 1 + 0.4 * ulp, 1 + 0.6 * ulp, -3.0], dtype=torch.float64)
    assert tf32(values).tolist() == [1 + ulp, 1, 1 + ulp, -3]


def test_a_fused_norm_spelled_out_keeps_the_infinity_of_a_weight():
    """torch adds -mean * rstd * weight to the bias: an infinite weight makes NaN of what its formula makes infinite."""
    x, weight = torch.tensor([[1.0, 2.0, 3.0, 5.0]]), torch.tensor([1.0, math.inf, 1.0, 1.0])

    def norm(x, weight):
        return torch.nn.functional.group_norm(x, 2, weight)

    [fused], [spelled] = (oracle.in_float64(norm, [x, weight], spelled_out=s) for s in (False, True))
    assert fused.isnan().tolist() == [[False, True, False, False]]
    assert spelled.isinf().tolist() == [[False, True, False, False]]
    torch.testing.assert_close(fused[:, 2:], spelled[:, 2:])


@pytest.mark.parametrize(
    ("got", "right"),
    [
        # 1, 2 and 3 have the mean 2, which a kernel in float32 may miss by a rounding in either direction
        ([-math.inf, math.nan, math.inf], True),
        ([-math.inf, math.inf, math.inf], True),
        ([-math.inf, -math.inf, math.inf], True),
        ([math.inf, math.nan, math.inf], False),
        ([-math.inf, math.nan, 1.0], False),
    ],
)
def test_a_fused_norm_of_what_is_the_mean_but_for_rounding(got, right):
    def norm(x, weight):
        return torch.nn.functional.group_norm(x, 1, weight)

    tensors = (judge.Tensor("x", ("B", "C"), "T"), judge.Tensor("w", ("C",), "T"))
    outputs = (judge.Tensor("out", ("B", "C"), "T"),)
    operator = judge.Operator("norm", kernel=norm, baseline=norm, reference=norm, inputs=tensors, outputs=outputs)
    case = judge.Case({"B": 1, "C": 3}, {"T": "float16"})
    given = (torch.tensor([[1.0, 2.0, 3.0]]).half(), torch.full((3,), math.inf).half())
    found = values.check(operator, case, given, [torch.tensor([got]).half()], [norm(*given)], seed=1, verbose=False)
    assert (found.complaint == "") == right, found.complaint


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2}]
)
def test_a_transposed_convolution_may_read_zeros_around_its_input(options):
    """Where every pixel is reached, both say the same; a tap beyond the ends makes NaN of an infinite weight."""

    def reference(x, w):
        return torch.nn.functional.conv_transpose1d(x, w, **options)

    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 6), torch.randn(3, 4, 3)
    (exact,), (spelled,) = (oracle.in_float64(reference, [x, w], spelled_out=s) for s in (False, True))
    torch.testing.assert_close(exact, spelled)
    w[0, 1, 0] = torch.inf  # the first tap of one result channel, beyond the last pixels
    (exact,), (spelled,) = (oracle.in_float64(reference, [x, w], spelled_out=s) for s in (False, True))
    beyond = spelled.isnan() & ~exact.isnan()
    assert beyond[:, 1].any()
    assert not beyond[:, [0, 2, 3]].any()
    torch.testing.assert_close(exact[~beyond], spelled[~beyond], equal_nan=True)


def test_errors_in_proportion_are_those_of_all_elements() -> None:
    ref = torch.tensor([0.0, 2.0, 4.0, math.inf], dtype=torch.float64)
    got = torch.tensor([1.0, 2.0, 3.0, math.inf])
    result = tally(got, ref.float(), ref)
    assert result.relative_error == 0.25, "where the reference is 0 nothing is in proportion"
    assert result.l2_error == pytest.approx(math.sqrt(2 / 20))
    assert tally(got[:1], ref[:1].float(), ref[:1]).l2_error == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_share_of_the_bound_is_that_of_the_worst_element(dtype):
    ref = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).exp()
    eager = (ref * 1.0001).to(dtype)
    for off, right in ((1.0, True), (1.00005, True), (1.2, False)):
        got = (ref * off).to(dtype)
        parts = tally(got[:2000], eager[:2000], ref[:2000])
        parts.add(got[2000:], eager[2000:], ref[2000:], [])
        assert parts.share() == pytest.approx(float(parts.score(got, eager, ref).max()))
        assert (parts.share() <= 1) == (parts.complaint() == "") == right
    assert tally(eager, eager, eager.double()).share() == 0


def test_the_share_of_integers_counts_what_differs():
    ref = torch.arange(100)
    eager, probe = ref.clone(), ref.clone()
    eager[:4] += 1
    probe[:50] += 1
    got = eager.clone()
    got[4:6] += 1
    assert tally(got, eager, ref, [probe]).share() == pytest.approx(0.06)
    assert tally(eager, eager, ref).share() == pytest.approx(0.5)
    assert tally(got, ref, ref).share() == math.inf


@pytest.mark.parametrize(
    ("others", "got", "right"),
    [
        ([4], 4, True),  # rounding decides between neighbours
        ([4], 5, False),
        ([4], 2, False),
        ([5], 6, True),  # a sum of what rounding decides has any value near by
        ([5], 7, False),
        ([2, 4], 1, True),
        ([], 4, False),
    ],
)
def test_an_integer_is_excused_where_an_oracle_or_pytorch_has_it_otherwise_and_nowhere_else(others, got, right):
    ref = torch.full((9,), 3, dtype=torch.int32)
    probes = [ref.clone() for _ in others]
    for probe, value in zip(probes, others, strict=True):
        probe[0] = value
    here, elsewhere = ref.clone(), ref.clone()
    here[0] = elsewhere[1] = got
    assert (tally(here, ref, ref, probes).complaint() == "") == right
    assert "1 of 9 integers are wrong" in tally(elsewhere, ref, ref, probes).complaint()
    assert (not tally(here, ref, ref, probes).rejects(here, ref, ref, None, probes)) == right
    assert tally(here, ref, ref, probes).rejects(elsewhere, ref, ref, None, probes)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.round(x),
        lambda x: torch.floor(x) + 3,
        lambda x: 2 * torch.ceil(x) - torch.sign(x) * torch.trunc(x),
        lambda x: (x * 0 + 5) * (x > 0),
    ],
)
def test_what_is_an_integer_in_every_kernel_is_not_disturbed(function):
    x = torch.linspace(-9.3, 9.1, 200)
    noise = oracle.Noise(torch.Generator().manual_seed(0), alike=True, inputs=False, ulps=8.0)
    [exact], [disturbed] = oracle.in_float64(function, [x]), oracle.in_float64(function, [x], noise)
    assert disturbed.equal(exact)
    [moved] = oracle.in_float64(lambda x: function(x) / 3, [x], noise)
    assert not moved.equal(exact / 3)


def test_floats_made_of_integers_are_disturbed_too() -> None:
    """Sines of times by frequencies, as a diffusion model embeds them: of large times float32 knows no phase."""
    times, out = judge.Tensor("times", ("A",), "int64", rows=0), judge.Tensor("out", ("A", 8), "float32", rows=0)

    def embedded(times: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(torch.arange(8, dtype=torch.float32, device=times.device) / -8)
        return torch.sin(times[:, None].float() * rates)

    def otherwise(times: torch.Tensor) -> torch.Tensor:
        rates = torch.exp2(torch.arange(8, dtype=torch.float32, device=times.device) / -8 * 1.442695)
        return torch.sin(times[:, None].float() * rates)

    def passes(kernel: object, distribution: str) -> bool:
        operator = judge.Operator("op", kernel, embedded, embedded, (times,), (out,))  # type: ignore[arg-type]
        case = judge.Case({"A": 50}, {})
        return judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=(distribution,)).passed

    assert passes(otherwise, "large")
    assert not passes(lambda times: embedded(times) * 1.001, "normal")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_any_rounding_may_take_is_half_an_ulp(dtype: torch.dtype) -> None:
    exact = torch.cat(
        [torch.randn(4000, dtype=torch.float64) * 100, torch.tensor([0.0, math.inf, -math.inf, math.nan])]
    )
    off = Storing(dtype, anyhow=torch.Generator().manual_seed(1)).rounded(exact)
    ulp = torch.exp2(exact[:4000].abs().log2().floor()) * torch.finfo(dtype).eps
    share = (off - exact)[:4000] / ulp
    assert share.abs().numpy() == pytest.approx(0.5)
    assert abs(float(share.mean())) < 0.05
    assert not torch.equal(off[:4000], exact[:4000].to(dtype).double())
    assert torch.equal(
        off[4000:].nan_to_num(7.0), torch.tensor([0.0, math.inf, -math.inf, math.nan]).double().nan_to_num(7.0)
    )


def test_any_rounding_of_more_than_the_largest_number_is_infinite() -> None:
    """A convolution that overflows before its bias is added is infinite in memory, whatever the bias makes of it."""
    exact = torch.tensor([65503.0, 65521.0, -66934.0], dtype=torch.float64)
    off = Storing(torch.float16, anyhow=torch.Generator().manual_seed(1)).rounded(exact)
    assert off[0].isfinite()
    assert off[1:].tolist() == [math.inf, -math.inf]


def test_only_near_its_bound_is_a_candidate_held_to_any_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    kept = Storing.rounded

    def rounded(self: Storing, x: torch.Tensor) -> torch.Tensor:
        seen.append(self.anyhow is not None)
        return kept(self, x)

    monkeypatch.setattr(Storing, "rounded", rounded)
    x, w = judge.Tensor("x", ("A", 8), "bfloat16"), judge.Tensor("w", (8, 4), "bfloat16")
    out = judge.Tensor("out", ("A", 4), "bfloat16")

    def passes(factor: float) -> bool:
        def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return ((x.float() @ w.float()) * factor).to(x.dtype)

        operator = judge.Operator("op", kernel, torch.matmul, torch.matmul, (x, w), (out,), stored="bfloat16")
        case = judge.Case({"A": 6}, {})
        return judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=("normal",), mutants=False).passed

    assert passes(1.0)
    assert not any(seen)
    assert not passes(1.02)
    assert any(seen)


def what_float8_takes(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype) - x


def what_half_takes(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - (x * 3).half().float()).to(x.dtype)


@pytest.mark.parametrize("mutants", [True, False])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [(what_float8_takes, "float16"), (what_float8_takes, "float32"), (what_half_takes, "float32")],
)
def test_what_a_cast_takes_away_is_a_result(function: object, dtype: str, mutants: bool) -> None:
    """An oracle that rounds nothing has 0 there: what torch has was called wrong, and zeros right."""
    x, out = judge.Tensor("x", ("A", 8), dtype, rows=0), judge.Tensor("out", ("A", 8), dtype, rows=0)

    def passes(kernel: object) -> bool:
        operator = judge.Operator("op", kernel, function, function, (x,), (out,))  # type: ignore[arg-type]
        case = judge.Case({"A": 40}, {})
        report = judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=("normal",), mutants=mutants)
        return report.passed

    assert passes(lambda x: function(x).clone())  # type: ignore[operator]
    assert not passes(torch.zeros_like)
    assert not passes(lambda x: function(x) * 1.1)  # type: ignore[operator]


def test_a_cast_on_the_way_may_round_or_not() -> None:
    """Where it moves a result by no more than PyTorch's error may, an oracle rounds nothing."""
    x, out = judge.Tensor("x", ("A", 8), "bfloat16", rows=0), judge.Tensor("out", ("A", 8), "bfloat16", rows=0)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x.float().exp().to(x.dtype).float() * 1.7).to(x.dtype)

    for kernel in (rounded, lambda x: (x.float().exp() * 1.7).to(x.dtype)):
        operator = judge.Operator("op", kernel, rounded, rounded, (x,), (out,))
        report = judge.accuracy_case(operator, judge.Case({"A": 40}, {}), seed=1, seeds=1, distributions=("normal",))
        assert report.passed, report.message


@pytest.mark.parametrize(
    "function",
    [lambda x: F.rms_norm(x, (8,)), lambda x: torch.rms_norm(x, [8], eps=None), torch.nn.RMSNorm(8, elementwise_affine=False)],
    ids=["function", "torch", "module"],
)  # fmt: skip
def test_an_eps_by_default_is_that_of_float32(function: object) -> None:
    """A row of small numbers, in float64 normalised by the eps of that, is of another size."""
    x = torch.full((1, 8), 1e-4)
    (ref,) = oracle.in_float64(function, [x])  # type: ignore[arg-type]
    exact = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps)
    torch.testing.assert_close(ref, exact)
    torch.testing.assert_close(function(x).double(), exact, rtol=1e-5, atol=0)  # type: ignore[operator]


@pytest.mark.parametrize(
    "function",
    [torch.nan_to_num, lambda x: (x * 2).nan_to_num(nan=1.0), lambda x: torch.nan_to_num_(x.clone(), posinf=None)],
    ids=["function", "method", "in place"],
)
def test_infinities_become_numbers_of_their_own_dtype(function: object) -> None:
    """Also what is infinite in that dtype alone, as a float16 product is beyond 65504."""
    x = torch.tensor([1.0, math.inf, -math.inf, math.nan, 60000.0]).half()
    (ref,) = oracle.in_float64(function, [x])  # type: ignore[arg-type]
    assert torch.equal(ref, function(x).double())  # type: ignore[operator]


@pytest.mark.parametrize(("got", "settled"), [(math.nan, True), (-math.inf, False)])
def test_a_weight_that_is_rounded_to_zero_makes_nan_of_an_infinite_value(got, settled):
    """What a kernel saves in half precision for its gradients is NaN where float32 has an infinity."""

    def weighed(x, v):
        return (torch.softmax(x.float(), -1) * v.float()).sum(-1).to(x.dtype)

    def by_what_is_saved(rounded, x, v):
        return (rounded(torch.softmax(x.float(), -1).to(x.dtype)) * v).sum(-1)

    x, v, out = (
        judge.Tensor(name, shape, "float16") for name, shape in (("x", ("N", 2)), ("v", (2,)), ("out", ("N",)))
    )
    operator = judge.Operator("weighed", weighed, weighed, weighed, (x, v), (out,), also=by_what_is_saved)
    given = [torch.tensor([[0.0, -30.0], [0.0, 0.0]]).half(), torch.tensor([1.0, math.inf]).half()]
    eager, ref = weighed(*given), weighed(*given).double()
    assert eager.isposinf().all()
    part = Part(0, ((0, 2),), torch.tensor([got, math.inf]).half(), eager, ref, [], [])
    read = readings.read_otherwise(operator, given, part)
    assert not readings.in_doubt(read)[1]
    assert bool(readings.in_doubt(read)[0]) != settled


def test_where_a_mask_hides_nan_the_other_ways_error_in_half_precision_counts():
    """PyTorch has NaN there, of whose error nothing is known; a bound of 0 would be held against what rounds otherwise."""

    def weighed(x, v):
        return (torch.softmax(x.float(), -1) * v.float()).sum(-1).to(x.dtype)

    def of_what_is_seen(rounded, x, v):
        weights = rounded(torch.softmax(x.float(), -1).to(x.dtype))
        return torch.where(weights > 0, weights * v, 0).sum(-1)

    x, v, out = (
        judge.Tensor(name, shape, "float16") for name, shape in (("x", ("N", 3)), ("v", (3,)), ("out", ("N",)))
    )
    operator = judge.Operator("weighed", weighed, weighed, weighed, (x, v), (out,), also=of_what_is_seen)
    given = [torch.tensor([[0.3, 0.1, -math.inf], [0.1, 0.2, 0.3]]).half(), torch.tensor([1.7, 1.3, math.nan]).half()]
    eager, ref = weighed(*given), weighed(*given).double()
    exact = torch.softmax(given[0].double(), -1)[0, :2] @ given[1].double()[:2]
    got = torch.tensor([float(exact) + 2e-3, math.nan]).half()
    read = readings.read_otherwise(operator, given, Part(0, ((0, 2),), got, eager, ref, [], []))
    assert not readings.in_doubt(read).any()
    assert float(read.ref[0]) == pytest.approx(float(exact), abs=1e-3)
    assert 0 < abs(float(read.eager[0]) - float(read.ref[0])) < 2e-3
    assert read.eager[1].isnan()


def scaled(x):
    y = torch.exp(30 * x)
    return y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def scaled_too_early(x):
    y = torch.exp(30 * x)
    return y * ((y * 1e20).square().mean(-1, keepdim=True) + 1e35).rsqrt() * 1e20


@pytest.mark.parametrize(
    ("kernel", "right"),
    [
        (scaled, True),
        (lambda x: scaled(x.double()).float(), True),
        (torch.zeros_like, False),
        (scaled_too_early, False),
        (lambda x: scaled(x) + 0.1, False),
    ],
)
def test_what_overflows_on_the_way_as_the_reference_does_is_right(kernel, right):
    """The squares of large exponentials are infinite in float32, and 1 / sqrt of them 0: PyTorch's result is 0, the
    float64 oracle's is not. Where nothing overflows, 0 is wrong."""
    x = judge.Tensor("x", ("N", 3), "float32", rows=0)
    operator = judge.Operator("op", scaled, scaled, scaled, (x,), (x,))
    for seed in range(5):
        report = judge.accuracy_case(
            operator, judge.Case({"N": 40}, {}), device="cpu", seed=seed, kernel=kernel, distributions=("normal",)
        )
        assert report.passed is right, report.message

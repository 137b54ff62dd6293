"""Products, convolutions and attention: what their long sums may be off by, and what is wrong all the same."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernelgen import judge
from kernelgen.judge import contractions, oracle
from kernelgen.judge import device as devices
from kernelgen.judge.bounds import K as TIMES
from kernelgen.judge.contractions import LOOSEST, Errors
from kernelgen.judge.known import Known
from kernelgen.judge.stored import Storing, tf32

DTYPES = ("float32", "float16", "bfloat16")
MATRICES = (judge.Tensor("x", ("M", "L"), "T"), judge.Tensor("w", ("L", "N"), "T"))
IMAGES = (judge.Tensor("x", ("B", "C", "H", "H"), "T"), judge.Tensor("w", ("J", "C", 3, 3), "T"))
QKV = tuple(judge.Tensor(name, ("B", "S", "D"), "T") for name in ("q", "k", "v"))
ALWAYS = {f"a product {words}" for words in ("in lower precision", "without its last block", "without its last row")}
"""Wrong products that every sum of products has."""
SHAPES = {MATRICES: ("M", "N"), IMAGES: ("B", "J", "H", "H"), QKV: ("B", "S", "D")}


def product(x, w):
    return x @ w


def convolution(x, w):
    return F.conv2d(x, w, padding=1)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def operator(inputs, reference, kernel=None, baseline=None, stored="T"):
    out = (judge.Tensor("out", SHAPES[inputs], "T"),)
    return judge.Operator("o", kernel or reference, baseline or reference, reference, inputs, out, stored=stored)


def judged(op, sizes, dtype="float32", distributions=("normal",), seeds=1, **kwargs):
    case = judge.Case(sizes, {"T": dtype})
    return judge.accuracy_case(op, case, distributions=distributions, seeds=seeds, **kwargs)


def cut_off(x):
    """What matrix units read of float32 that lies in memory."""
    return x.view(torch.int32).bitwise_and(-(2**13)).view(torch.float32)


def rounded_to_tf32(x):
    return tf32(x.double()).float()


@pytest.fixture
def set_to_tf32():
    # not by monkeypatch, which would delete what no instance has in its __dict__
    backends = [torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "tf32"
    yield
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inputs", "reference", "sizes"),
    [
        *((MATRICES, product, {"M": 8, "L": n, "N": 32}) for n in (1, 129, 4096)),
        *((IMAGES, convolution, {"B": 1, "C": n, "H": 5, "J": 8}) for n in (1, 3, 50)),
        *((QKV, attention, {"B": 2, "S": n, "D": 16}) for n in (5, 65)),
    ],
    ids=lambda x: x.__name__ if callable(x) else "-".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_torchs_own_is_right_and_every_wrong_product_is_told(inputs, reference, sizes, dtype):
    # one draw in 200 makes a row of single products too small to be missed
    found = judged(operator(inputs, reference), sizes, dtype, seeds=3)
    assert found.passed, found.message
    assert found.undiscriminated == ()
    assert found.told.keys() >= ALWAYS
    long = dtype != "float32" and reference is product and sizes["L"] > 256
    assert ("a product summed in lower precision" in found.told) == long
    assert ("a product of another batch" in found.told) == (reference is attention)
    assert ("a convolution without a tap of its windows" in found.told) == (reference is convolution)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_weights_of_another_group_are_told(groups, transposed):
    call = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    weight = (8, 2, 3, 3) if transposed else (8, 8 // groups, 3, 3)
    shapes = {"x": ("B", 8, "H", "H"), "w": weight}
    inputs = [judge.Tensor(name, shape, "T") for name, shape in shapes.items()]
    out = judge.Tensor("out", ("B", 2 * groups if transposed else 8, "H", "H"), "T")

    def grouped(x, w):
        return call(x, w, padding=1, groups=groups)

    found = judged(judge.Operator("grouped", grouped, grouped, grouped, inputs, (out,), stored="T"), {"B": 1, "H": 6})
    assert found.passed, found.message
    assert found.undiscriminated == ()
    assert ("a convolution with the weights of another group" in found.told) == (groups > 1)


@pytest.mark.parametrize("add", [torch.add, lambda sums, x: torch.relu(2 * sums) - 1 + x, lambda sums, x: sums.add_(x)])
def test_a_wrong_product_is_wrong_in_one_way(add):
    """What is added twice is so in the mutant of that name alone: short sums of no batch have no other mutants."""
    for function in (lambda x, w: add(x @ w, x[:, :1]), lambda x, w: torch.addmm(x[:, :1], x, w)):
        found = judged(operator(MATRICES, function), {"M": 8, "L": 20, "N": 64})  # some of a row are left by relu
        assert {name for name in found.told if name.startswith("a product")} == {
            *ALWAYS,
            "a product with what is added to it twice",
        }


@pytest.mark.parametrize(("then", "is_mutant"), [(lambda sums: sums, False), (lambda sums: sums * sums, True)])
def test_what_nothing_is_computed_from_is_not_added_twice(then, is_mutant):
    """The gradient of a layer does not depend on its bias; that of its square does."""

    def gradient(x, w):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            result = then(torch.addmm(x[:, :1], leaf, w))
        return torch.autograd.grad(result, leaf, x[:, 1:2].expand(result.shape))[0]

    out = (judge.Tensor("out", ("M", "L"), "T"),)
    op = judge.Operator("o", gradient, gradient, gradient, MATRICES, out, stored="T")
    found = judged(op, {"M": 8, "L": 20, "N": 8})
    assert ("a product with what is added to it twice" in {*found.told, *found.undiscriminated}) == is_mutant


@pytest.mark.parametrize("channels", [3, 64])
def test_a_cpu_adds_a_transposed_convolution_in_float16(channels):
    """Near zero, where a bias takes away what sums were rounded at, eager is off by 15 ulp of what is left."""

    def function(x, w, b):
        return (F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1) + b).clamp(0, 0.5)

    inputs = (*IMAGES[:1], judge.Tensor("w", ("C", "J", 3, 3), "T"), judge.Tensor("b", ("J", 1, 1), "T"))
    out = (judge.Tensor("out", ("B", "J", "2 * H", "2 * H"), "T"),)
    op = judge.Operator("o", function, function, function, inputs, out, stored="T")
    found = judged(op, {"B": 1, "C": channels, "H": 9, "J": 64}, "float16", ("normal", "uniform"), 2)
    assert found.passed, found.message
    assert found.told.keys() >= ALWAYS - {"a product in lower precision"} | {"a product with what is added to it twice"}


@pytest.mark.parametrize("stored", ["", "T"])
def test_a_kernel_may_add_to_what_torchs_product_stored(stored):
    """A bias that takes away most of a sum of several units leaves what it was rounded by in float16."""

    def after(y):
        return F.max_pool2d(y, 2, 2).clamp(-1, 1).mean((2, 3)).tanh()

    def function(x, w, b):
        return after(F.conv_transpose2d(x, w, b, padding=1))

    def kernel(x, w, b):
        return after(F.conv_transpose2d(x, w, padding=1).float() + b.float()[:, None, None]).to(x.dtype)

    shapes = {"x": ("B", "I", "H", "W"), "w": ("I", "O", 3, 3), "b": ("O",)}
    inputs = [judge.Tensor(name, shape, "T") for name, shape in shapes.items()]
    out = (judge.Tensor("out", ("B", "O"), "T"),)
    op = judge.Operator("o", kernel, function, function, inputs, out, stored=stored, multiplied="T")
    for seed, sizes in ((2, {"I": 64, "O": 16, "H": 2, "W": 2}), (9, {"I": 64, "O": 64, "H": 2, "W": 8})):
        found = judged(op, {"B": 1, **sizes}, "float16", ("equal rows",), seed=seed, mutants=False)
        assert found.passed, found.message


def test_a_kernel_may_add_to_what_torchs_product_stored_and_store_the_sum():
    """As the forward of a gradient saves it: where hardswish ends, two roundings decide between g and 1.5 g."""

    def slope(y):
        return torch.where(y <= -3, 0.0, torch.where(y < 3, y / 3 + 0.5, 1.0))

    def function(x, w, b):
        return slope(F.conv2d(x, w, b, padding=1))

    def kernel(x, w, b):
        saved = (F.conv2d(x, w, padding=1).float() + b.float()[:, None, None]).to(x.dtype)
        return slope(saved.float()).to(x.dtype)

    shapes = {"x": ("B", 4, 5, 6), "w": (6, 4, 3, 3), "b": (6,)}
    inputs = [judge.Tensor(name, shape, "T") for name, shape in shapes.items()]
    out = (judge.Tensor("out", ("B", 6, 5, 6), "T"),)
    op = judge.Operator("o", kernel, function, function, inputs, out, stored="T", multiplied="T")
    for batch, seeds in ((2, (0, 41)), (8, (29, 40)), (31, (54,))):
        for seed in seeds:
            found = judged(op, {"B": batch}, "float16", seed=seed, mutants=False)
            assert found.passed, found.message


def test_torchs_product_may_add_before_it_rounds():
    """Where hardswish begins, what torch rounded its sum by is most of what is left, and is not what it would have
    rounded the product by."""

    def after(y, a):
        return (y + a) * F.hardswish(y + a)

    def function(x, w, b, a):
        return after(F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1), a)

    def kernel(x, w, b, a):
        y = F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1)
        return after(y.float(), a.float()).to(x.dtype)

    shapes = {"x": ("B", 3, 2, 3), "w": (3, "O", 3, 3), "b": ("O",), "a": ("B", "O", 4, 6)}
    inputs = [judge.Tensor(name, shape, "T") for name, shape in shapes.items()]
    out = (judge.Tensor("out", ("B", "O", 4, 6), "T"),)
    op = judge.Operator("o", kernel, function, function, inputs, out, multiplied="T")
    for seed in range(8):
        found = judged(op, {"B": 31, "O": 3}, "bfloat16", ("normal", "equal rows"), seed=seed, mutants=False)
        assert found.passed, found.message


def test_what_is_added_to_a_product_may_be_stored_with_it():
    """Rows that are nearly equal differ, after a norm, by what they were rounded by when they were stored."""

    def sums(x, w, b, a):
        return F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1) + a

    def function(x, w, b, a):
        return F.layer_norm(sums(x, w, b, a), (6,))

    def kernel(x, w, b, a):
        return F.layer_norm(sums(x, w, b, a).float(), (6,)).to(x.dtype)

    shapes = {"x": ("B", 3, 2, 3), "w": (3, "O", 3, 3), "b": ("O",), "a": ()}
    inputs = [judge.Tensor(name, shape, "T") for name, shape in shapes.items()]
    out = (judge.Tensor("out", ("B", "O", 4, 6), "T"),)
    op = judge.Operator("o", kernel, function, function, inputs, out, stored="T", multiplied="T")
    for seed in range(8):
        found = judged(op, {"B": 20, "O": 3}, "bfloat16", ("equal rows",), seed=seed, mutants=False)
        assert found.passed, found.message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_made_of_a_product_step_by_step_may_be_stored(dtype):
    """A sigmoid that is nearly 1 everywhere: its norm is what it was rounded by, as PyTorch rounds it too."""

    def norm(y):
        return F.group_norm(y, 2)

    def function(x, w, b):
        return norm(torch.sigmoid(F.conv2d(x, w, padding=1) + b))

    def kernel(x, w, b):
        y = F.conv2d(x.double(), w.double(), padding=1) + b.double()
        return norm(torch.sigmoid(y).to(x.dtype).float()).to(x.dtype)

    def twice(x, w, b):
        return 2 * kernel(x, w, b)

    inputs = [*IMAGES, judge.Tensor("b", ("J", 1, 1), "T")]
    out = (judge.Tensor("out", ("B", "J", "H", "H"), "T"),)
    for candidate, right in ((kernel, True), (twice, False)):
        op = judge.Operator("o", candidate, function, function, inputs, out, stored="T", multiplied="T")
        for seed in range(3):
            found = judged(op, {"B": 4, "C": 8, "H": 7, "J": 6}, dtype, ("uniform",), seed=seed, mutants=False)
            assert found.passed is right, found.message


@pytest.mark.parametrize("step", [F.logsigmoid, F.hardswish, lambda y: torch.frexp(y)[0]])
def test_a_step_of_any_form_may_follow_a_product(step):
    found = judged(operator(MATRICES, lambda x, w: step(x @ w)), {"M": 8, "L": 33, "N": 9}, "float16", mutants=False)
    assert found.passed, found.message


def test_what_is_cast_to_another_dtype_is_stored_in_that():
    def function(x, w):
        return F.group_norm(torch.sigmoid(F.conv2d(x, w, padding=1).float()), 2)

    def kernel(x, w):
        y = torch.sigmoid(F.conv2d(x, w, padding=1).float())
        return F.group_norm(y.to(x.dtype).float(), 2)

    out = (judge.Tensor("out", ("B", "J", "H", "H"), "float32"),)
    op = judge.Operator("o", kernel, function, function, IMAGES, out, stored="T", multiplied="T")
    found = judged(op, {"B": 4, "C": 8, "H": 7, "J": 6}, "float16", ("uniform",), seed=1, mutants=False)
    assert not found.passed


@pytest.mark.filterwarnings("ignore:.*only once for all operators")
@pytest.mark.parametrize("function", [lambda x, w: (x @ w).clamp(-1, 1), lambda x, w: (x @ w - 9).sigmoid()])
def test_what_torchs_own_call_is_off_by_is_no_fault_of_the_kernels_around_it(function):
    """A convolution of a GPU that adds in float16: sums of large products are infinite of either sign, which what
    follows makes a number, and others are off by more than the cap of the bound."""
    library = torch.library.Library("aten", "IMPL")
    bmm = torch.ops.aten.bmm

    def added_as_stored(a, b):
        if a.dtype != torch.float16:
            return bmm(a[None], b[None])[0]
        total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
        for k in range(a.shape[1]):
            total = total + a[:, k : k + 1] * b[k]
        return total

    sizes = {"M": 20, "L": 500, "N": 30}
    try:
        library.impl("mm", added_as_stored, "CPU")
        for distribution in ("large", "normal", "specials"):
            found = judged(operator(MATRICES, function), sizes, "float16", (distribution,))
            assert found.passed, found.message
        double = operator(MATRICES, function, lambda x, w: function(2 * x, w))
        assert not judged(double, sizes, "float16", ("normal",)).passed
        assert not judged(double, sizes, "float32", ("normal",)).passed
    finally:
        library._destroy()


def test_the_same_products_are_multiplied_once_a_case(monkeypatch):
    counted = []
    multiply = torch.Tensor.__matmul__
    library = torch.library.Library("aten", "IMPL")
    bmm = torch.ops.aten.bmm

    def counting(a, b):
        counted.append(a.dtype)
        return bmm(a[None], b[None])[0]

    try:
        library.impl("mm", counting, "CPU")
        assert judged(operator(MATRICES, multiply), {"M": 20, "L": 50, "N": 30}, mutants=False).passed
    finally:
        library._destroy()
    # eager twice, the kernel twice, torch's own twice; in float64 the oracle, the disturbed ones, and once more for all
    # that are off: the product, the same as it is stored, and its squares
    assert counted.count(torch.float32) <= 8
    assert counted.count(torch.float64) <= 12, counted


def in_order(x, w):
    """A sum as one thread takes it, one product after the other."""
    total = torch.zeros(x.shape[0], w.shape[1])
    for k in range(x.shape[1]):
        total += x[:, k : k + 1].float() * w[k].float()
    return total.to(x.dtype)


def by_blocks(x, w):
    return sum(x[:, k : k + 32].float() @ w[k : k + 32].float() for k in range(0, x.shape[1], 32)).to(x.dtype)


@pytest.mark.parametrize("dims", [(slice(None), slice(0, 1)), (slice(5, 6), slice(2, 3)), (slice(0, 0), slice(None))])
def test_what_is_known_is_found_by_its_bits_whatever_its_strides(dims):
    """torch calls a last dimension of one element contiguous at any stride."""
    found, computed = Known(), []
    one = torch.arange(105.0, dtype=torch.float64).view(5, 21).t()[dims]
    for operand in (one, one.clone(), one + 1):
        found.of("double", [operand], lambda operand=operand: computed.append(operand) or (operand * 2,))
    assert len(computed) == (2 if one.numel() else 1)


@pytest.mark.parametrize("order", [in_order, by_blocks])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_a_sum_is_free(order, dtype):
    found = judged(
        operator(MATRICES, product, order), {"M": 8, "L": 1000, "N": 32}, dtype, ("normal", "uniform"), 2, mutants=False
    )
    assert found.passed, found.message


def test_sums_of_equal_products_round_alike():
    """One after the other in float32 1000 are off by 7 times what random products are off by."""
    inputs = (judge.Tensor("x", ("M", "L"), "T"), judge.Tensor("w", ("N", "L"), "T"))
    out = (judge.Tensor("out", ("M", "N"), "T"),)

    def reference(x, w):
        return torch.softmax(x @ w.t() / 64, -1)

    def of(multiply):
        def kernel(x, w):
            return torch.softmax(multiply(x, w.t()) / 64, -1)

        return judge.Operator("o", kernel, reference, reference, inputs, out, stored="T")

    sizes = {"M": 16, "L": 1000, "N": 24}
    for seed in range(2):
        found = judged(of(in_order), sizes, distributions=("equal rows", "one value"), seed=seed)
        assert found.passed, found.message
        assert found.told.keys() >= ALWAYS
        lower = of(lambda x, w: in_order(rounded_to_tf32(x), rounded_to_tf32(w)))
        assert not judged(lower, sizes, distributions=("equal rows",), seed=seed, mutants=False).passed


def normalized(multiply):
    """A sum, and steps that make much of its errors."""

    def function(x, w):
        return torch.tanh(F.batch_norm(multiply(x, w), None, None, training=True))

    return function


@pytest.mark.parametrize("seed", [32, 36])
def test_a_norm_of_two_nearly_equal_sums_is_off_by_the_rounding_of_its_mean(seed):
    """-1 and 1, but for what rounding takes from a mean of some hundreds, which a fused norm does not show."""

    def fused(x, w):
        return F.group_norm(x @ w, w.shape[1] // 2)

    def kernel(x, w):
        pairs = (x @ w).unflatten(1, (-1, 2))
        centered = pairs - pairs.mean(-1, keepdim=True)
        return (centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5)).flatten(1)

    sizes = {"M": 8, "L": 512, "N": 32} if seed == 32 else {"M": 3, "L": 1025, "N": 64}
    for honest in (kernel, fused):
        found = judged(operator(MATRICES, fused, honest), sizes, distributions=("uniform",), seed=seed)
        assert found.passed, found.message
    assert not judged(operator(MATRICES, fused, lambda x, w: kernel(x[:, :-32], w[:-32])), sizes).passed


@pytest.mark.parametrize("read", [rounded_to_tf32, cut_off])
@pytest.mark.parametrize(
    ("inputs", "multiply", "sizes"),
    [(MATRICES, product, {"M": 16, "L": 100, "N": 16}), (IMAGES, convolution, {"B": 2, "C": 3, "H": 6, "J": 8})],
    ids=["product", "convolution"],
)
def test_a_kernel_as_wrong_as_eager_is_right_where_torch_is_set_to_tf32(set_to_tf32, read, inputs, multiply, sizes):
    eager = normalized(lambda x, w: multiply(read(x), read(w)))
    op = operator(inputs, normalized(multiply), eager, eager)
    found = judged(op, sizes, distributions=("normal", "large", "normal"), seeds=3)
    assert found.passed, found.message
    lower = normalized(lambda x, w: multiply(x.bfloat16().float(), w.bfloat16().float()))
    # of so few sums one draw in sixty does not tell bfloat16 from TF32
    assert "over the bound" in judged(op, sizes, kernel=lower, seeds=3).message
    assert {"a product in lower precision", "a product without its last block"} <= found.told.keys()


@pytest.mark.parametrize(
    ("inputs", "multiply", "sizes"),
    [(MATRICES, product, {"M": 16, "L": 100, "N": 16}), (IMAGES, convolution, {"B": 2, "C": 3, "H": 6, "J": 8})],
    ids=["product", "convolution"],
)
def test_tf32_is_wrong_where_torch_is_not_set_to_it(inputs, multiply, sizes):
    op = operator(inputs, normalized(multiply))
    lower = normalized(lambda x, w: multiply(rounded_to_tf32(x), rounded_to_tf32(w)))
    assert judged(op, sizes, mutants=False).passed
    assert "over the bound" in judged(op, sizes, kernel=lower).message


@pytest.mark.parametrize("length", [16, 256, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_more_is_accepted_than_a_stated_multiple_of_torchs_own_error(length, dtype):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator).to(dtype) for shape in ((32, length), (length, 64)))
    [exact] = oracle.in_float64(product, (x, w))
    own = float(((x @ w).double() - exact).abs().max())
    storing = Storing(dtype, Errors(generator))
    accepted = TIMES * max(
        float((oracle.in_float64(product, (x, w), stored=storing)[0] - exact).abs().max()) for _ in range(8)
    )
    assert own <= accepted <= 1.05 * LOOSEST * own  # the result is rounded as well


def test_what_torch_is_set_to_decides_the_precision(set_to_tf32):
    assert contractions.precision("mm", torch.float32, "cpu").operand == 2.0**-11
    assert contractions.precision("convolution", torch.float32, "cpu").operand == 2.0**-11
    assert contractions.precision("mm", torch.float16, "cpu").operand == 0
    assert contractions.precision("mm", torch.float32, "cuda").operand == 0
    assert contractions.precision("convolution", torch.float32, "cuda").operand == 2.0**-11  # torch's default


@pytest.mark.parametrize(
    "function",
    [
        product,
        lambda x, w: torch.addmm(x[:, :1], x, w, alpha=0.5),
        lambda x, w: torch.baddbmm(x[None, :, :1], x[None], w[None], beta=2)[0],
        lambda x, w: F.linear(x, w.t(), x[0, :1].expand(w.shape[1])),
        lambda x, w: torch.einsum("mk,kn->mn", x, w),
        lambda x, w: torch.stack([torch.mv(w.t(), row) for row in x]),
        lambda x, w: F.conv1d(x[None], w.t()[:, :5, None].expand(-1, -1, 3), groups=2),
        lambda x, w: F.conv_transpose2d(x[None, :, :, None], w[:10, None, :2, None], groups=2),
    ],
)
def test_the_error_of_every_call_is_known(function):
    """It is that of sums in float32: more than the rounding of the results, and small."""
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(shape, generator=generator) for shape in ((10, 300), (300, 40)))
    [exact] = oracle.in_float64(function, (x, w))
    [stored] = oracle.in_float64(function, (x, w), stored=Storing(torch.float32))
    [off] = oracle.in_float64(function, (x, w), stored=Storing(torch.float32, Errors(generator)))
    rounding, error, size = (float(e.abs().max()) for e in (stored - exact, off - exact, exact))
    assert 1.5 * rounding < error < 1e-5 * size


def test_errors_of_infinite_and_empty_sums_are_none():
    errors = Storing(torch.float32, Errors(torch.Generator()))
    x, w = torch.ones(2, 3), torch.ones(3, 2)
    x[0, 0] = torch.inf
    [found] = oracle.in_float64(product, (x, w), stored=errors)
    assert found[0].isinf().all()
    assert torch.allclose(found[1], torch.full((2,), 3.0, dtype=torch.float64))
    assert oracle.in_float64(product, (x[:, :0], w[:0]), stored=errors)[0].eq(0).all()


def test_attention_is_taken_as_one_call():
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    mask = torch.randn(6, 6) > -1
    mask[:, 0] = True
    for kwargs in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask.float()}, {"scale": 0.3}):

        def attend(q, k, v, kwargs=kwargs):
            return F.scaled_dot_product_attention(q, k, v, **kwargs)

        [exact] = oracle.in_float64(attend, (q, k, v))
        [stored] = oracle.in_float64(attend, (q, k, v), stored=Storing(torch.float64))
        torch.testing.assert_close(stored, exact)

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    one = (q, k[:, :1], v[:, :1])
    [exact] = oracle.in_float64(grouped, one)
    torch.testing.assert_close(oracle.in_float64(grouped, one, stored=Storing(torch.float64))[0], exact)


@pytest.mark.filterwarnings("ignore:.*only once for all operators")
def test_a_library_that_adds_in_another_order_each_time_is_no_fault():
    calls = itertools.count()
    library = torch.library.Library("aten", "IMPL")
    bmm = torch.ops.aten.bmm

    def unsteady(a, b):
        return bmm(a[None], b[None])[0] * (1 + 2.0**-23 * (next(calls) % 2))

    op = operator(MATRICES, product, lambda x, w: x @ w)
    sizes = {"M": 4, "L": 30, "N": 8}
    try:
        library.impl("mm", unsteady, "CPU")
        assert not torch.equal(torch.ones(2, 2) @ torch.ones(2, 2), torch.ones(2, 2) @ torch.ones(2, 2))
        assert judged(op, sizes, mutants=False).passed
        own = itertools.count()
        ours = judged(op, sizes, kernel=lambda x, w: (x @ w) * (1 + 2.0**-21 * (next(own) % 2)), mutants=False)
        assert "other bits" in ours.message
    finally:
        library._destroy()


def by_another_way(kernel, also):
    """Of float16, with a float32 result."""
    inputs, out = (judge.Tensor("x", ("M", "L"), "T"),), (judge.Tensor("out", ("M", "L"), "float32"),)
    return judge.Operator("o", kernel, scaled, scaled, inputs, out, stored="T", also=also)


def scaled(x):
    return x.float() * 1.37 / 1.37


def saved_as(dtype):
    return lambda x: (x.float() * 1.37).to(dtype).float() / 1.37


@pytest.mark.parametrize("seed", [3, 9])
def test_a_call_may_round_once_what_pytorch_rounds_twice(seed):
    """Of a turned input PyTorch stores the product before it adds the bias; a kernel's own call stores the sum alone."""

    def reference(x, w, b):
        return torch.softmax(torch.nn.functional.linear(x, w, b), -1)

    def kernel(dtype):
        def calling(x, w, b):
            logits = torch.addmm(b.float(), x.reshape(-1, x.shape[-1]).float(), w.mT.float()).to(dtype)
            return torch.softmax(logits.float(), -1).to(x.dtype).view(*x.shape[:-1], len(w))

        return calling

    inputs = (
        judge.Tensor("x", (2, "M", "K"), "T"), judge.Tensor("w", (256, "K"), "T"), judge.Tensor("b", (256,), "T"),
    )  # fmt: skip
    out = (judge.Tensor("out", (2, "M", 256), "T"),)
    case = judge.Case({"M": 17, "K": 257}, {"T": "float16"}, layout="transposed", hidden=True)
    for dtype, right in ((torch.float16, True), (torch.bfloat16, False)):
        op = judge.Operator("o", kernel(dtype), reference, reference, inputs, out, multiplied="T")
        found = judge.accuracy_case(op, case, distributions=("equal rows",), seeds=1, seed=seed)
        assert found.passed == right, found.message


def test_what_lies_in_memory_on_another_way_may_be_rounded():
    def also(rounded, x):
        return rounded(x * 1.37) / 1.37

    assert judged(by_another_way(saved_as(torch.float16), also), {"M": 3, "L": 7}, "float16").passed
    assert not judged(by_another_way(saved_as(torch.float16), None), {"M": 3, "L": 7}, "float16").passed
    assert not judged(by_another_way(saved_as(torch.bfloat16), also), {"M": 3, "L": 7}, "float16").passed


def test_another_way_may_be_finite_where_the_reference_is_not():
    def other(x):
        return torch.where(x.isfinite(), x.float(), 0.0)

    for also, right in ((lambda rounded, x: other(x), True), (None, False)):
        found = judged(by_another_way(other, also), {"M": 16, "L": 16}, "float16", distributions=("specials",))
        assert found.passed is right, found.message


def in_runs(x, w):
    """Products of float32 one after the other, each sum rounded."""
    total = torch.zeros(*x.shape[:-1], w.shape[-1])
    for k in range(x.shape[-1]):
        total = (total.double() + x[..., k, None].double() * w[k].double()).float()
    return total


def test_errors_of_a_run_of_equal_products_add_up():
    """Two halves of equal elements, as rotated rows have them, summed one after the other: what each addition is off by
    is the same throughout a half, and it is the same for each of a few values in any order. A sum of products that all
    differ is held to what such sums are off by."""
    torch.manual_seed(0)
    left = torch.randn(300, 2).abs().repeat_interleave(512, 1)
    right = torch.randn(2, 16).abs().repeat_interleave(512, 0)
    mixed, different = left[:, torch.randperm(1024)], torch.randn(300, 1024).abs()
    zeros = torch.where(torch.rand(300, 1024) < 0.5, mixed, 0)
    said = {}
    for name, x in {"runs": left, "few": mixed, "zeros": zeros, "different": different}.items():
        off = (in_runs(x, right).double() - x.double() @ right.double()).square().mean().sqrt()
        called, at = contractions.of_matrices(x), contractions.Precision(2.0**-24)
        said[name] = contractions._spread(called, x.double(), right.double(), at)[1].square().mean().sqrt()
        assert 0.5 < said[name] / off < 8, name
    assert min(said["runs"], said["few"]) > 3 * said["different"]


@pytest.mark.parametrize(("dtype", "together"), [(torch.float16, 16), (torch.float32, 8)])
def test_matrix_units_cut_partial_sums_off_and_a_mean_of_many_shows_it(set_to_tf32, dtype, together):
    """Sums of one sign, of which 16 products of halves, and 8 of TF32, are cut off two bits behind the sum and added,
    and the sum is cut off: all shrink alike."""
    torch.manual_seed(0)
    a, b = (torch.rand(shape).half().to(dtype) for shape in ((64, 4096), (4096, 8)))
    exact, total = a.double() @ b.double(), torch.zeros(64, 8, dtype=torch.float64)
    for k in range(0, 4096, together):
        products = a[:, k : k + together, None].double() * b[k : k + together].double()
        place = torch.exp2(torch.frexp(torch.maximum(total, products.amax(1))).exponent.double() - 24)
        new = total + ((products / place[:, None] * 4).trunc() / 4 * place[:, None]).sum(1)
        place = torch.exp2(torch.frexp(new).exponent.double() - 24)
        total = (new / place).trunc() * place
    at = contractions.precision("mm", dtype, "cpu")
    called = contractions.of_matrices(a)
    lost = contractions._cut(called, a.double(), b.double(), at, exact).mean()
    assert 0.7 < float((total.double() - exact).mean() / lost) < 1.4
    assert not contractions._cut(called, a.double(), b.double(), contractions.Precision(2.0**-24), exact).any()


def test_sums_at_an_edge_are_cut_off_less_often(set_to_tf32):
    """Zeros around an image leave partial sums as they are, so that a norm does not take out by what all shrink."""
    x, w = torch.rand(1, 8, 3, 3), torch.rand(4, 8, 3, 3)
    at = contractions.precision("convolution", torch.float32, "cpu")
    args = (x.double(), w.double(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    called = contractions.contraction(torch.ops.aten.convolution.default, "convolution", args, {})
    exact = called.product(*args[:2])
    lost = contractions._cut(called, *args[:2], replace(at, operand=0.0), exact) / exact
    assert float(lost[0, 0, 1, 1] / lost[0, 0, 0, 0]) == pytest.approx(9 / 4)
    assert float(lost[0, 0, 1, 1]) == pytest.approx(-72 * 0.09 * 11 / 8 * 2.0**-24)


def test_equal_taps_lose_the_same_bits(set_to_tf32):
    """A weight that is the same at all places of a window, read by matrix units that cut bits off: what the places lose
    adds up."""
    x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 1, 1).expand(4, 3, 3, 3).contiguous()
    at = contractions.precision("convolution", torch.float32, "cpu")
    args = (x.double(), w.double(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    called = contractions.contraction(torch.ops.aten.convolution.default, "convolution", args, {})
    exact = convolution(*args[:2])
    lost = contractions._cut(called, *args[:2], at, exact)
    got = convolution(cut_off(x).double(), cut_off(w).double()) - exact
    assert float((lost - got).abs().max()) < 0.01 * float(got.abs().max())


def test_partial_sums_wander_before_they_are_cut_off():
    """A float16 convolution of 110673 products was twice as wrong as was accepted where its sum was near 0 by chance."""
    generator = torch.Generator().manual_seed(3)
    length, results = 2**14, 1000
    a = torch.randn(1, length, generator=generator).half().double()
    b = torch.randn(results, length, generator=generator).half().double()
    sums = torch.zeros(results)
    for part in (b * a).split(16, dim=1):
        exact = sums.double() + part.sum(1)
        sums = exact.float()
        beyond = sums.double().abs() > exact.abs()
        sums[beyond] = torch.nextafter(sums[beyond], torch.zeros(()))
    exact = (b * a).sum(1)
    small = exact.abs() < 0.1 * (b * a).square().sum(1).sqrt()
    off = (sums.double() - exact)[small].square().mean().sqrt()
    at = contractions.precision("matmul", torch.float16, "cuda")
    called = contractions.of_matrices(a)
    assert small.sum() > 50
    drawn = Errors(generator, truncating=True).of(called, a, b[small].mT, at).square().mean().sqrt()
    rounded = Errors(generator).of(called, a, b[small].mT, at).square().mean().sqrt()
    assert 0.8 < off / drawn < 1.2
    assert off > 2 * rounded


def test_an_oracle_on_the_host_asks_torch_where_the_calls_are_made(monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "on", lambda device, function: asked.append(device) or function)
    x, w = torch.randn(4, 5, 8), torch.randn(6, 5, 3)
    for device in ("cuda", "cpu"):
        [found] = oracle.in_float64(F.conv1d, (x, w), stored=Storing(torch.float32, called=True, device=device))
        torch.testing.assert_close(found, F.conv1d(x, w).double(), rtol=0, atol=0.1)  # a GPU's call reads TF32
    assert asked == ["cuda", "cpu"]


def test_an_oracle_on_the_host_multiplies_as_the_device_does(monkeypatch):
    """A convolution's operands are read as TF32 on a GPU, unless that is switched off, and not on a CPU."""
    monkeypatch.setattr(contractions, "_float32_precision", lambda _, device: "tf32" if device == "cuda" else "")
    x, w = torch.randn(4, 5, 8), torch.randn(6, 5, 3)
    exact = F.conv1d(x.double(), w.double())
    [on_gpu] = oracle.in_float64(F.conv1d, (x, w), stored=Storing(torch.float32, device="cuda"))
    [on_host] = oracle.in_float64(F.conv1d, (x, w), stored=Storing(torch.float32))
    assert 1e-5 < float((on_gpu - exact).abs().max()) < 1e-1
    assert float((on_host - exact).abs().max()) < 1e-5

"""Inputs: values, layouts, guard bands, seeds; hidden cases; what memory they need."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernelgen import judge
from kernelgen.judge import device as devices
from kernelgen.judge import guards, hidden, inputs, memory, values
from kernelgen.judge.eager import InOrder
from kernelgen.judge.hidden import LAYOUTS
from kernelgen.judge.indexing import indexes

X = judge.Tensor("x", ("...", "D"), "T", rows=0)
BIAS = judge.Tensor("bias", ("D",), "T")


def operator(*tensors, **kwargs):
    def same(x, *rest):
        return x + 0

    return judge.Operator("same", same, same, same, tensors or (X, BIAS), (X,), **kwargs)


def case(dtype="float32", **kwargs):
    return judge.Case({"...": (4, 5), "D": 33}, {"T": dtype}, **kwargs)


def make(distribution, dtype="float32", seed=1, **kwargs):
    return inputs.make(operator(), case(dtype, **kwargs), distribution=distribution, seed=seed, device="cpu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS)
def test_the_same_seed_gives_the_same_values(distribution, dtype):
    first, again, other = (make(distribution, dtype, seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert a.view.dtype == getattr(torch, dtype)
        assert torch.equal(a.flat, b.flat)
    assert not torch.equal(first[0].flat, other[0].flat)


def test_distributions_are_what_they_say():
    values = {d: make(d)[0].view for d in inputs.DISTRIBUTIONS}
    assert values["large"].abs().max() > 2e4
    assert set(values["zero-one"].unique().tolist()) == {0, 1}
    assert 0 <= values["uniform"].min() <= values["uniform"].max() <= 1
    assert (values["equal rows"] == values["equal rows"][..., :1]).all()
    assert len(values["equal rows"].unique()) == 20
    special = values["specials"]
    assert all(found.any() for found in (special.isnan(), special.isposinf(), special.isneginf()))
    assert torch.isfinite(special).all(-1).any(), "some rows must stay free of specials"


@pytest.mark.parametrize("layout", ["contiguous", *LAYOUTS])
def test_layouts(layout):
    x, bias = make("normal", layout=layout)
    assert x.view.shape == (4, 5, 33)
    assert bias.view.shape == (33,)
    strides = {
        "contiguous": (165, 33, 1),
        "transposed": (165, 1, 5),
        "sliced": (330, 66, 2),
        "offset": (165, 33, 1),
        "expanded": (0, 33, 1),
    }
    assert x.view.stride() == strides[layout]
    assert (x.view.data_ptr() % 16 == x.flat.data_ptr() % 16) == (layout != "offset")
    assert guards.written_beside([x]) == [False]
    assert torch.isfinite(x.view).all()


@pytest.mark.parametrize("layout", ["contiguous", *LAYOUTS])
def test_inputs_without_memory_lie_as_those_with(layout):
    """What is compiled for them is what a launch asks for: strides and alignment are part of it."""
    scale = judge.Tensor("scale", (), "float32", number=0.5)
    at, one = operator(X, BIAS, scale), case(layout=layout)
    there = [b.view for b in inputs.make(at, one, distribution="normal", seed=1, device="cpu")]
    bare = inputs.without_memory(at, one)
    for x, y in zip(there, bare, strict=True):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
    assert [y.device.type for y in bare] == ["meta", "meta", "cpu"]
    assert [y.data_ptr() % 16 == 0 for y in bare[:2]] == [layout != "offset"] * 2
    assert bare[2] == 0.5


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (lambda x: torch.softmax(x @ x.T, -1).sum(0), False),
        (lambda x: x.argmax(-1), False),
        (lambda x: x[:, torch.where(x[0] > 0, 1, 0)], True),
        (lambda x: x.gather(-1, x.abs().argsort(-1)), True),
        (lambda x: torch.nn.functional.one_hot(x.int().abs().long(), 9), True),
        (lambda x: x[x > 0].sum(), True),
        (lambda x: x * 2 if x.sum() > 0 else x, True),
        (lambda x: x.masked_scatter(x > 0, x[0]), True),
        (lambda x: torch.nn.functional.binary_cross_entropy(x, x), True),
    ],
)
def test_a_reference_that_indexes_by_what_it_computes_is_told(reference, found):
    """Of others nothing is rehearsed on the host, where a convolution takes seconds."""
    x = judge.Tensor("x", (5, 5), "float32")
    operator = judge.Operator("op", reference, reference, reference, (x,), (x,))
    assert indexes(operator, judge.Case({}, {})) is found


@pytest.mark.parametrize("layout", ["contiguous", *LAYOUTS])
@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
def test_guards_see_writes_on_both_sides(layout, dtype):
    for side in (0, 1):
        (x, _) = make("normal", dtype, layout=layout)
        x.flat[(x.body[0] - 1, x.body[1])[side]] = 7
        assert guards.written_beside([x]) == [True]


def test_a_like_input_holds_nothing_but_nan():
    like = judge.Tensor("x", ("...", "D"), "T", like=True, rows=0)
    (x,) = inputs.make(operator(like), case(), distribution="normal", seed=1, device="cpu")
    assert x.view.isnan().all()


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS)
@pytest.mark.parametrize("sizes", [{"...": (), "D": 0}, {"...": (0,), "D": 3}, {"...": (), "D": 1}])
def test_degenerate_shapes(distribution, sizes):
    (x, _) = inputs.make(
        operator(), judge.Case(sizes, {"T": "float16"}), distribution=distribution, seed=1, device="cpu"
    )
    assert x.view.shape == (*sizes["..."], sizes["D"])


def test_cases_name_themselves_and_survive_json():
    some = case("float16")
    assert some.label == str(some) == "[4, 5] D=33 float16"
    assert judge.Case.from_json(some.to_json()) == some
    odd = case("float16", layout="sliced", hidden=True)
    assert judge.Case.from_json(odd.to_json()) == odd
    assert "sliced" in odd.label


def test_an_unbound_dtype_is_named():
    with pytest.raises(KeyError, match="neither a dtype nor bound"):
        judge.Case({"D": 1}).dtype(BIAS)


def test_hidden_cases_of_the_interpreter_are_few_and_tiny():
    found = hidden.hidden_cases(operator(), [case("float16"), case("float32")], "cpu")
    assert 6 <= len(found) <= 8
    assert {c.layout for c in found} == {"contiguous", *LAYOUTS}
    assert {tuple(c.dtypes.values()) for c in found} == {("float16",), ("float32",)}
    assert {len(c.sizes["..."]) for c in found} >= {0, 1, 3}
    assert any(0 in c.shape(X) for c in found)
    assert all(math.prod(c.shape(X)) < 1000 for c in found)
    assert len({c.label for c in found}) == len(found)


def test_hidden_cases_of_a_gpu_cover_the_edges(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    found = hidden.hidden_cases(operator(), [case("float16"), case("float32")], "cuda")
    assert {c.sizes["D"] for c in found} >= set(hidden.EDGES)
    assert any(math.prod(c.shape(X)) > 2**31 and c.dtypes["T"] == "float16" for c in found)
    assert any(math.prod(c.sizes["..."]) > 65535 for c in found)


def test_no_hidden_case_indexes_nothing(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    table, index = judge.Tensor("table", ("V", "D"), "T"), judge.Tensor("index", ("K",), "int64", below="V")
    gather = judge.Operator("gather", print, print, print, (table, index), (judge.Tensor("out", ("K", "D"), "T"),))
    sizes = [
        c.sizes for c in hidden.hidden_cases(gather, [judge.Case({"V": 5, "D": 3, "K": 2}, {"T": "float16"})], "cuda")
    ]
    assert all(s["V"] or not s["K"] for s in sizes)
    assert any(not s["K"] for s in sizes), "but an empty index may stand beside anything"
    assert all(s["D"] or not s["K"] for s in sizes), "torch's gradient of rows of no elements ends the process"


def test_the_large_case_needs_room(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**34)

    def large(**kwargs):
        found = hidden.hidden_cases(operator(), [case("float16")], "cuda", **kwargs)
        return [c for c in found if math.prod(c.shape(X)) > 2**31]

    assert large() == []
    assert {c.label for c in large(large=True)} == {"hidden [715827883] D=3 float16", "hidden [] D=2147483649 float16"}
    assert large(large=False) == []
    said = hidden.not_tried(operator(), [case("float16")], "cuda")
    assert any(line.startswith("not tried: hidden [715827883] D=3 float16 needs ") for line in said)
    assert hidden.not_tried(operator(), [case("float16")], "cpu") == []


def test_every_size_grows_in_turn_beside_small_ones(monkeypatch):
    """The offset of a split is its number times the columns: of two long rows as few as 150,000,000 overflow."""
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    x, out = judge.Tensor("x", ("R", "C"), "T"), judge.Tensor("out", ("C",), "T", rows=0)
    total = judge.Operator("total", print, lambda x: x.sum(0), lambda x: x.sum(0), (x,), (out,))
    listed = [judge.Case({"R": 64, "C": 1024}, {"T": dtype}) for dtype in ("float32", "float16")]
    sizes = [c.sizes for c in hidden.hidden_cases(total, listed, "cuda") if math.prod(c.shape(x)) >= 2**29]
    assert {"R": 2, "C": 2**30 + 1} in sizes
    assert {"R": 2, "C": 2**29} in sizes
    assert any(s["R"] > 2**29 and s["C"] == 3 for s in sizes)
    assert len(sizes) == 4


def test_sizes_beside_a_large_one_are_not_refused(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)

    def checked(x):
        if x.shape[1] % 8 or not x.shape[1]:
            raise ValueError("C is a multiple of 8")
        return x * 2

    x = judge.Tensor("x", ("R", "C"), "T", rows=0)
    twice = judge.Operator("twice", checked, checked, checked, (x,), (x,))
    found = hidden.hidden_cases(twice, [judge.Case({"R": 64, "C": n}, {"T": "int8"}) for n in (64, 16)], "cuda")
    assert {"R": 2**27 + 1, "C": 16} in [c.sizes for c in found]


def test_a_size_that_stands_twice_in_a_shape_grows_to_the_root(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    square = judge.Tensor("x", ("N", "N"), "int8")
    op = judge.Operator("op", torch.neg, torch.neg, torch.neg, (square,), (square,), exact=True)
    found = [c.sizes["N"] for c in hidden.hidden_cases(op, [judge.Case({"N": 8})], "cuda")]
    assert {46341, 32768} <= set(found)


def test_operators_without_leading_dimensions_have_hidden_cases(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    matrix = judge.Tensor("x", ("plain", "leading", 3), "float32", rows=0)
    op = judge.Operator("op", torch.neg, torch.neg, torch.neg, (matrix,), (matrix,))
    found = hidden.hidden_cases(op, [judge.Case({"plain": 8, "leading": 5})], "cuda")
    assert any(math.prod(c.shape(matrix)) > 2**31 for c in found)
    assert len(hidden.hidden_cases(op, [judge.Case({"plain": 8, "leading": 5})], "cpu")) >= 6


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_hidden_cases_of_many_sizes_stay_small(device):
    image = judge.Tensor("x", tuple("NCHW"), "float32", rows=0)
    op = judge.Operator("op", torch.neg, torch.neg, torch.neg, (image,), (image,))
    found = hidden.hidden_cases(op, [judge.Case(dict.fromkeys("NCHW", 8))], device, large=False)
    assert max(math.prod(c.shape(image)) for c in found) < (1000 if device == "cpu" else 2**21)
    assert any(0 in c.shape(image) for c in found)
    if device == "cuda":
        assert all({c.sizes[name] for c in found} >= set(hidden.EDGES) for name in "NCHW")


def windowed(x, w):
    if x.shape[2] < 3 or x.shape[3] < 3 or w.shape[0] % 4:
        raise ValueError("a window is larger than its input")
    return torch.nn.functional.conv2d(x, w)


def of_windows(**kwargs):
    x, w = judge.Tensor("x", tuple("NCHW"), "T"), judge.Tensor("w", ("K", "C", 3, 3), "T")
    out = judge.Tensor("out", ("N", "K", "H - 2", "W - 2"), "T", rows=0)
    return judge.Operator("windowed", windowed, windowed, windowed, (x, w), (out,), **kwargs)


def test_where_windows_and_groups_need_more_than_two_the_other_sizes_of_hidden_cases_grow():
    found = hidden.hidden_cases(
        of_windows(), [judge.Case(dict.fromkeys("NCHWK", 8), {"T": "float32"})], "cuda", large=False
    )
    served = [c.sizes for c in found if min(c.sizes["H"], c.sizes["W"]) >= 3 and c.sizes["K"] % 4 == 0]
    for name in "NCHW":
        assert {s[name] for s in served} >= {1, 31, 33, 127, 129, 4099} - ({1} if name in "HW" else set())
    assert {128} <= {s["K"] for s in served}
    assert len(served) < len(found), "those that both refuse stay"


def test_hidden_cases_of_convolutions_take_no_seconds():
    """Five sizes of 257 are 1.1e12 elements, and steps between have more than inputs and outputs."""
    op = of_windows(multiplied=True)
    found = hidden.hidden_cases(op, [judge.Case(dict.fromkeys("NCHWK", 8), {"T": "float32"})], "cuda", large=False)
    most = {c.label: memory.largest_step(op, c) for c in found if c.sizes["N"] < 70_000}
    assert max(most.values()) <= 2**22, max(most, key=most.get)
    for name in "NCHWK":
        assert max(c.sizes[name] for c in found) >= 1025
    assert any(
        c.sizes["C"] > 120 and c.sizes["K"] > 120 and c.sizes["N"] * c.sizes["H"] * c.sizes["W"] > 256 for c in found
    )


def test_memory_is_estimated_before_anything_is_allocated(monkeypatch):
    big = judge.Case({"...": (1024, 1024), "D": 1024}, {"T": "float16"})
    bytes_of_x = 2 * 1024**3
    assert memory.input_bytes(operator(), big) == bytes_of_x + 2 * 1024
    needed = memory.accuracy_bytes(operator(), big)
    assert 3 * bytes_of_x < needed < 3 * bytes_of_x + 2 * 2**30
    assert memory.accuracy_bytes(operator(exact=True), big) == 3 * bytes_of_x + 2 * 1024 + memory.SCRAPS
    monkeypatch.setattr(devices, "free_bytes", lambda device: 6 * 2**30)
    assert memory.accuracy_left_out(operator(), big, "cuda").endswith("6.00 GiB free on cuda")
    assert "16,777,216" in memory.accuracy_left_out(operator(), big, "cpu")
    assert memory.accuracy_left_out(operator(), case(), "cpu") == ""


def outer(x):
    return (x[:, None] * x).sum(-1)


def counted(x):
    return torch.ones_like(x) * x.nonzero().shape[0]


@pytest.mark.parametrize(
    ("reference", "elements", "device", "free", "times"),
    [
        (torch.exp, 2**28, "cuda", 140, memory.WIDER),
        (torch.exp, 2**28, "cuda", 20, 1),  # it would take more than half of the memory
        (torch.exp, 2**28, "cpu", 140, 1),
        (torch.exp, 2**20, "cuda", 140, 1),  # one tile already
        (outer, 2**28, "cuda", 140, 1),  # a step has more elements than inputs and outputs
        (counted, 2**28, "cuda", 140, 1),  # nobody knows how many the steps have
    ],
)
def test_tiles_are_wider_on_a_gpu_that_has_the_memory(reference, elements, device, free, times, monkeypatch):
    x, out = (judge.Tensor(name, ("N",), "float32", rows=0) for name in ("x", "out"))
    op, one = judge.Operator("op", reference, reference, reference, (x,), (out,)), judge.Case({"N": elements}, {})
    monkeypatch.setattr(devices, "free_bytes", lambda device: free * 2**30)
    assert memory.wider(op, one, device) == times


def cropped(grad, x):
    return grad * x[:, 4:]


def test_no_case_has_sizes_below_zero(monkeypatch):
    """Those of an input may follow from others': H - 4 is none of 0, 1, 2 and 3."""
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**40)
    grad, x = judge.Tensor("grad", ("N", "H - 4"), "float32"), judge.Tensor("x", ("N", "H"), "float32")
    out = judge.Tensor("out", ("N", "H - 4"), "float32")
    op = judge.Operator("op", cropped, cropped, cropped, (grad, x), (out,))
    cases = [judge.Case({"N": 2, "H": 9}, {})]
    for device in ("cpu", "cuda"):
        found = hidden.hidden_cases(op, cases, device, large=device == "cuda")
        assert len(found) > 3
        assert all(size >= 0 for case in found for size in case.shape(grad))
    wide = judge.Case({"N": 2**20, "H": 7}, {})
    assert memory.shrunken(op, wide, "cpu").sizes["H"] >= 4


def chosen(x, w):
    return (x @ w).argmax(-1)


def widened(x, w):
    return (x[:, :, None] * w).sum(1)


def scored(x, w):
    return (x[..., None] * w @ w.mT).sum(-2)


@pytest.mark.parametrize(
    ("reference", "multiplied", "sizes", "device", "quick"),
    [
        (torch.matmul, "float32", (64, 64, 64), "cuda", True),
        (torch.matmul, "float32", (64, 64, 64), "cpu", False),  # it is there already
        (torch.matmul, "float32", (1024, 1, 1024), "cuda", False),  # elements
        (torch.matmul, "float32", (256, 256, 256), "cuda", False),  # products
        (scored, "float32", (64, 64, 64), "cuda", False),  # of a step
        (torch.matmul, "float32", (64, 0, 64), "cuda", False),  # torch's kernels for the host may refuse it
        (chosen, "float32", (64, 64, 64), "cuda", False),  # of equal ones the GPU's is chosen
        (widened, "", (8, 8, 8), "cuda", False),  # few steps
    ],
)
def test_oracles_of_small_products_are_computed_on_the_host(reference, multiplied, sizes, device, quick):
    x, w = judge.Tensor("x", ("M", "K"), "float32"), judge.Tensor("w", ("K", "N"), "float32")
    places = reference is chosen
    out = judge.Tensor("out", ("M",) if places else ("M", "N"), "int64" if places else "float32")
    op = judge.Operator("op", reference, reference, reference, (x, w), (out,), multiplied=multiplied)
    one = judge.Case(dict(zip("MKN", sizes, strict=True)), {})
    assert memory.quick_on_host(op, one, device) is quick


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (1e-3, False)])
def test_what_is_found_in_wider_tiles_is_what_is_found_in_others(off, passes, monkeypatch):
    def kernel(x):
        result = torch.exp(x)
        result[-1] += off
        return result

    x, out = (judge.Tensor(name, ("N",), "float32", rows=0) for name in ("x", "out"))
    op, one = judge.Operator("op", kernel, torch.exp, torch.exp, (x,), (out,)), judge.Case({"N": 5000}, {})
    found = []
    for times in (1, 2, memory.WIDER):
        cut = []
        monkeypatch.setattr(values, "TILE_BYTES", 16 * 500)
        monkeypatch.setattr(values, "PIECE", 100)
        monkeypatch.setattr(values.memory, "wider", lambda *_, times=times: times)
        monkeypatch.setattr(values.Tiling, "cut", _noting(values.Tiling.cut, cut))
        report = judge.accuracy_case(op, one, device="cpu", seed=3, seeds=1, distributions=("normal",), mutants=False)
        monkeypatch.undo()
        assert max(n for n in cut if n < 5000) == times * 500  # what is cast is looked at in a tile of the usual size
        found.append((report.passed, report.max_error, report.eager_error, f"{report.l2_error:.6e}"))
    assert len(set(found)) == 1
    assert found[0][0] is passes


def _noting(cut, seen):
    def noted(*given):
        result = cut(*given)
        seen.append(result.numel())
        return result

    return noted


def test_minimal_bytes_leave_out_like_inputs():
    like = judge.Tensor("x", ("...", "D"), "T", like=True, rows=0)
    assert memory.minimal_bytes(operator(like, BIAS), case()) == (33 * 4, 4 * 5 * 33 * 4)


def test_free_host_memory_is_known():
    assert devices.free_bytes("cpu") > 2**20


def found_at(x, edges):
    return torch.bucketize(x, edges)


def found_in_rows(x, edges):
    def find(right):
        return torch.searchsorted(edges, x, right=right)

    return find(True)


@pytest.mark.parametrize(
    "reference", [found_at, found_in_rows, lambda x, edges: x + torch.bucketize(x, boundaries=edges)]
)
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "expanded"])
def test_what_a_reference_searches_rises(reference, layout):
    """Edges in any order were drawn, of which a binary search names any place: counting those below was called wrong."""
    rows = (3,) if reference is found_in_rows else ()
    x, edges = judge.Tensor("x", (3, "N"), "float32"), judge.Tensor("edges", (*rows, "K"), "float32")
    operator = judge.Operator(
        "op", reference, reference, reference, (x, edges), (judge.Tensor("out", (3, "N"), "int64"),)
    )
    case = judge.Case({"N": 50, "K": 9}, {}, layout=layout)
    for distribution in (*inputs.DISTRIBUTIONS, *inputs.TIES):
        given, searched = inputs.make(operator, case, distribution=distribution, seed=3, device="cpu")
        assert bool(searched.view.isfinite().all()), distribution
        assert bool((searched.view.diff(dim=-1) >= 0).all()), distribution
        if distribution == "normal":
            assert not bool((given.view.diff(dim=-1) >= 0).all())


@pytest.mark.parametrize("layout", ["sliced", "offset", "expanded"])
def test_offsets_begin_with_0_and_end_with_the_total(layout):
    """Expanded ones were all 0: a reference that takes the sequence of a row from them reads beyond, and a GPU stops."""
    x, offsets = judge.Tensor("x", ("M",), "float32"), judge.Tensor("offsets", ("P",), "int32", offsets="M")
    operator = judge.Operator("op", torch.add, torch.add, torch.add, (x, offsets), (x,))
    case = judge.Case({"M": 50, "P": 9}, {}, layout=layout)
    for distribution in inputs.DISTRIBUTIONS:
        found = inputs.make(operator, case, distribution=distribution, seed=3, device="cpu")[1].view
        assert (found[0], found[-1]) == (0, 50), distribution


class Listening(TorchFunctionMode):
    """Notes the tensors that attention and gradients are asked of."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.nn.functional.scaled_dot_product_attention, torch.autograd.grad):
            self.asked += [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("start", [0, 1])
def test_fused_attention_is_given_aligned_memory(start):
    """Torch's reads 16 bytes at once, in its gradient as well."""
    asked = []
    memory = torch.randn(2 * 3 * 8 + 1, dtype=torch.float16)[start : start + 48].view(2, 3, 8)
    with Listening(asked), InOrder():
        out = torch.nn.functional.scaled_dot_product_attention(memory.detach().requires_grad_(), memory, memory)
        torch.autograd.grad(out, (out,), memory)
    assert len(asked) == 6
    assert all(x.data_ptr() % 16 == 0 for x in asked)
    assert (memory.data_ptr() % 16 == 0) == (start == 0)

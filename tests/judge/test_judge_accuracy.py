"""The real thing: right kernels pass; every kind of wrong kernel fails, whatever the secret seed."""

import dataclasses
import functools
import gc
import itertools
import re

import pytest
import scaled_add_accuracy
import softmax_accuracy
import softmax_triton
import torch
import triton
import triton.language as tl

from kernelgen import judge
from kernelgen.judge import accuracy, eager, guards, memory, patience, trial, values
from kernelgen.judge import device as devices
from kernelgen.judge.inputs import DISTRIBUTIONS
from kernelgen.judge.report import accuracy_line

SOFTMAX, SCALED_ADD = softmax_accuracy.OPERATOR, scaled_add_accuracy.OPERATOR
DTYPES = ("float16", "bfloat16", "float32")


def case(dtype: str, **kwargs: object) -> judge.Case:
    return judge.Case({"...": (5, 3), "D": 129}, {"T": dtype}, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", [SOFTMAX, SCALED_ADD], ids=lambda o: o.name)
def test_an_honest_kernel_passes(operator, dtype):
    report = judge.accuracy_case(operator, case(dtype))
    assert report.passed, report.message
    assert len({t.distribution for t in report.trials}) == 6
    assert len({t.seed for t in report.trials}) == 6


@triton.jit
def short_tail_kernel(x_ptr, out_ptr, n_columns, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < n_columns
    x = tl.load(x_ptr + row * n_columns + column, mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    out = e / tl.sum(e, axis=0)
    tl.store(out_ptr + row * n_columns + column, out, mask=column < n_columns - 1)


def short_tail(x):
    """Never writes the last column: what is there is whatever was there before."""
    out = torch.empty_like(x)
    n_columns = x.shape[-1]
    short_tail_kernel[(x.numel() // n_columns,)](x, out, n_columns, BLOCK_SIZE=triton.next_power_of_2(n_columns))
    return out


def unmasked_sum(x):
    """Sums over the padded block with exp(0) in the padding instead of 0."""
    y = x.float()
    e = torch.exp(y - y.amax(-1, keepdim=True))
    return (e / (e.sum(-1, keepdim=True) + 127)).to(x.dtype)


def one_wrong_element(x):
    out = softmax_triton.softmax(x)
    out.view(-1)[out.numel() // 3] *= 1.05
    return out


def lower_precision(x):
    lower = {torch.float32: torch.float16, torch.float16: torch.bfloat16, torch.bfloat16: torch.float8_e5m2}[x.dtype]
    return torch.softmax(x.float().to(lower).float(), -1).to(x.dtype)


def swallows_nan(x):
    return softmax_triton.softmax(torch.nan_to_num(x))


def no_maximum(x):
    e = torch.exp(x.float())
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def mutates(x):
    out = softmax_triton.softmax(x)
    x.view(-1)[-1] += 1
    return out


def writes_before(x):
    out = softmax_triton.softmax(x)
    x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
    return out


def writes_behind(x):
    out = softmax_triton.softmax(x)
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).zero_()
    return out


def all_zeros(x):
    return torch.zeros_like(x)


def copy_of_the_input(x):
    return x.clone()


def the_input_itself(x):
    return x


def stale_memory(x):
    return torch.empty_like(x)


def wrong_dtype(x):
    return torch.softmax(x.double(), -1)


def wrong_shape(x):
    return softmax_triton.softmax(x)[:-1]


def strided(x):
    out = torch.empty(*x.shape, 2, dtype=x.dtype, device=x.device)[..., 0]
    return out.copy_(softmax_triton.softmax(x))


def two_outputs(x):
    return softmax_triton.softmax(x), x


def raises(x):
    raise IndexError("a mistake")


def subclass(x):
    return torch.nn.Parameter(softmax_triton.softmax(x), requires_grad=False)


def steps(x, w):
    return x.add_(w)


def steps_elsewhere(x, w):
    return x + w


def steps_the_other_too(x, w):
    x.add_(w)
    w.zero_()
    return x


def steps_twice(x, w):
    return x.add_(w).add_(w)


def keeps(x, w):
    return x


STEP = judge.Operator(
    "step", steps, steps, steps, (judge.Tensor("x", ("N",), "float32"), judge.Tensor("w", ("N",), "float32")),
    (judge.Tensor("out", ("N",), "float32", into="x"),),
)  # fmt: skip


def test_what_is_written_into_an_input_is_judged_call_by_call():
    assert judge.accuracy_case(STEP, judge.Case({"N": 33})).passed


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (steps_elsewhere, "out is not x, into which it is to be written"),
        (steps_the_other_too, "changes its input w"),
        (steps_twice, "error"),
        (keeps, "error"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_kernel_that_does_not_write_into_its_input_fails(kernel, reason):
    report = judge.accuracy_case(STEP, judge.Case({"N": 33}), kernel=kernel)
    assert not report.passed
    assert reason in report.message


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (short_tail, "NaN or infinity in the wrong place"),
        (unmasked_sum, "error"),
        (one_wrong_element, "error"),
        (lower_precision, "error"),
        (swallows_nan, "NaN or infinity"),
        (no_maximum, "NaN or infinity"),
        (mutates, "changes its input x"),
        (writes_before, "writes outside its input x"),
        (writes_behind, "writes outside its input x"),
        (all_zeros, "error"),
        (copy_of_the_input, "error"),
        (the_input_itself, "shares memory"),
        (stale_memory, "NaN or infinity"),
        (wrong_dtype, "float64"),
        (wrong_shape, "[4, 3, 129]"),
        (strided, "strides"),
        (two_outputs, "2 outputs instead of 1"),
        (raises, "IndexError: a mistake"),
        (subclass, "Parameter"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_kernel_fails(kernel, reason, dtype):
    report = judge.accuracy_case(SOFTMAX, case(dtype), kernel=kernel)
    assert not report.passed
    assert reason in report.message


def test_an_unrepeatable_kernel_fails():
    counter = itertools.count()

    def kernel(x):
        out = softmax_triton.softmax(x)
        bits = out.view(torch.int32).view(-1)
        bits[0] += next(counter) % 2  # one ulp: right each time, but not the same
        return out

    assert "other bits" in judge.accuracy_case(SOFTMAX, case("float32"), kernel=kernel).message
    declared = judge.Operator(**{**vars(SOFTMAX), "repeatable": False})
    assert judge.accuracy_case(declared, case("float32"), kernel=kernel).passed


def test_sums_in_any_order_may_be_off_by_what_the_worst_order_costs():
    calls = itertools.count()

    def added(x):
        return x.float().sum(0)

    def kernel(x):  # large terms first, and others at every call
        total, flip = torch.zeros(x.shape[1], device=x.device), next(calls) % 2
        for row in sorted(x.unbind(), key=lambda r: float(r.abs().max()), reverse=True)[:: 1 - 2 * flip]:
            total = total + row
        return total

    declared = judge.Operator(
        "added",
        kernel,
        added,
        added,
        (judge.Tensor("x", ("A", "B"), "float32"),),
        (judge.Tensor("out", ("B",), "float32"),),
    )
    given = judge.Case({"A": 2000, "B": 3})
    assert not judge.accuracy_case(declared, given).passed
    in_any_order = judge.Operator(**{**vars(declared), "any_order": True})
    assert judge.accuracy_case(in_any_order, given).passed
    short = judge.Case({"A": 20, "B": 3})
    less_precise = judge.accuracy_case(in_any_order, short, kernel=lambda x: added(x.bfloat16()))
    assert "over the bound" in less_precise.message


def test_fewer_checks_than_the_baseline_fail():
    torch_version = SCALED_ADD.reference
    hidden = case("float16", layout="transposed", hidden=True)
    assert judge.accuracy_case(SCALED_ADD, hidden).passed
    assert "refused by both" in judge.accuracy_case(SCALED_ADD, hidden).message
    report = judge.accuracy_case(SCALED_ADD, hidden, kernel=torch_version)
    assert not report.passed
    assert "accepts what the baseline refuses" in report.message


def test_another_error_than_value_error_is_no_agreement():
    hidden = case("float16", layout="transposed", hidden=True)
    report = judge.accuracy_case(SCALED_ADD, hidden, kernel=lambda x, bias, scale: raises(x))
    assert not report.passed
    assert "IndexError" in report.message


def test_a_listed_case_that_the_baseline_refuses_is_a_failure():
    report = judge.accuracy_case(SCALED_ADD, case("float16", layout="sliced"))
    assert not report.passed


def normalized(kernel):
    """A norm over a batch behind the checks of a wrapper; torch refuses one value a channel with a ValueError."""

    def reference(x):
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    def baseline(x):
        if not x.is_contiguous():
            raise ValueError("x is not contiguous")
        return reference(x)

    x, out = (judge.Tensor(name, ("B", "C"), "float32") for name in ("x", "out"))
    return judge.Operator("normalized", kernel, baseline, reference, (x,), (out,))


def test_a_derived_case_that_torch_refuses_is_left_out_with_its_words():
    def kernel(x):
        return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)

    for how in ({"hidden": True}, {"derived": True}):
        one = judge.accuracy_case(normalized(kernel), judge.Case({"B": 1, "C": 3}, **how))
        assert one.passed
        assert one.left_out == (
            "torch refuses it: Expected more than 1 value per channel when training, got input size torch.Size([1, 3])"
        )
    listed = judge.accuracy_case(normalized(kernel), judge.Case({"B": 1, "C": 3}))
    assert not listed.passed
    assert "torch refuses it" in listed.message
    crash = judge.accuracy_case(normalized(raises), judge.Case({"B": 5, "C": 3}, hidden=True))
    assert not crash.passed
    unchecked = judge.accuracy_case(normalized(kernel), judge.Case({"B": 5, "C": 3}, layout="sliced", hidden=True))
    assert "accepts what the baseline refuses: x is not contiguous" in unchecked.message


def test_a_hidden_case_of_many_elements_may_be_refused_by_the_kernel_and_is_left_out(monkeypatch):
    def kernel(x):
        if x.shape[-1] > 8:
            raise ValueError(f"twice: at most 8 columns, got {x.shape[-1]}")
        return x * 2

    x, out = (judge.Tensor(name, ("B", "C"), "float32") for name in ("x", "out"))
    operator = judge.Operator("twice", kernel, lambda x: x * 2, lambda x: x * 2, (x,), (out,))
    sizes = {"B": 3, "C": 9}
    assert not judge.accuracy_case(operator, judge.Case(sizes, hidden=True)).passed
    monkeypatch.setattr(trial, "REFUSABLE", 27)
    report = judge.accuracy_case(operator, judge.Case(sizes, hidden=True))
    assert report.passed
    assert report.left_out == "the kernel refuses it: twice: at most 8 columns, got 9"
    assert not judge.accuracy_case(operator, judge.Case(sizes)).passed
    shy = dataclasses.replace(operator, kernel=raises)
    assert not judge.accuracy_case(shy, judge.Case(sizes, hidden=True)).passed
    monkeypatch.setattr(trial, "REFUSABLE", 81)
    assert not judge.accuracy_case(operator, judge.Case(sizes, hidden=True)).passed
    limited = dataclasses.replace(operator, limits=(("C", 8),))
    assert judge.accuracy_case(limited, judge.Case(sizes, hidden=True)).left_out == report.left_out
    assert not judge.accuracy_case(limited, judge.Case(sizes)).passed  # what a spec lists has to be taken
    wrong = dataclasses.replace(operator, rounded=(("2 * C", 8),))  # where the reference itself is wrong
    left_out = judge.accuracy_case(wrong, judge.Case(sizes, hidden=True)).left_out
    assert left_out == "the reference rounds places along 2 * C: of 18 torch has 8 right in float32"
    assert not judge.accuracy_case(wrong, judge.Case(sizes)).passed
    within = dataclasses.replace(operator, limits=(("C", 9),))
    assert not judge.accuracy_case(within, judge.Case(sizes, hidden=True)).passed

    def between(x):
        return x.repeat(1, 3).sum(1)

    def part(x):
        raise ValueError(f"sums_part_2: at most 8 columns, got {3 * x.shape[-1]}")

    summed = judge.Operator("sums", part, between, between, (x,), (judge.Tensor("out", ("B",), "float32"),))
    assert judge.accuracy_case(summed, judge.Case(sizes, hidden=True)).left_out.endswith("got 27")
    monkeypatch.setattr(trial, "REFUSABLE", 82)
    assert not judge.accuracy_case(summed, judge.Case(sizes, hidden=True)).passed


def test_indices_that_were_drawn_beyond_what_they_index():
    def picked(x, i):
        return x[i]

    def judged(below):
        tensors = (judge.Tensor("x", ("N",), "float32"), judge.Tensor("i", ("M",), "int64", below=below))
        out = (judge.Tensor("out", ("M",), "float32"),)
        operator = judge.Operator("picked", picked, picked, picked, tensors, out)
        return judge.accuracy_case(operator, judge.Case({"N": 1, "M": 999}))

    assert "(where i holds indices, its entry in the spec says which size they stay below" in judged(None).message
    assert judged("N").passed


def test_a_dtype_that_torch_has_no_kernel_for_on_the_host_is_left_out():
    def pooled(x):
        return torch.nn.functional.avg_pool3d(x, 2)

    x, out = judge.Tensor("x", ("B", 2, 2, 2, 2), "T"), judge.Tensor("out", ("B", 2, 1, 1, 1), "T")
    operator = judge.Operator("pooled", pooled, pooled, pooled, (x,), (out,))
    reports = {d: judge.accuracy_case(operator, judge.Case({"B": 2}, {"T": d}), device="cpu") for d in DTYPES}
    assert reports["float32"].passed
    assert not reports["float32"].left_out
    assert "not implemented for 'Half'" in reports["float16"].left_out


def test_a_reference_that_cannot_be_computed():
    def reference(x):
        raise RuntimeError("no such thing")

    broken = judge.Operator(**{**vars(SOFTMAX), "baseline": reference, "reference": reference})
    assert not judge.accuracy_case(broken, case("float16")).passed
    hidden = judge.accuracy_case(broken, case("float16", hidden=True))
    assert hidden.passed
    assert "no such thing" in hidden.left_out


def broadcast_operator(kernel):
    def reference(x, bias):
        return bias.expand(x.shape).contiguous()

    return judge.Operator(
        name="broadcast",
        kernel=kernel,
        baseline=reference,
        reference=reference,
        inputs=(judge.Tensor("x", ("...", "D"), "T", like=True, rows=0), judge.Tensor("bias", ("D",), "T")),
        outputs=(judge.Tensor("out", ("...", "D"), "T", rows=0),),
        exact=True,
    )


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "int32", "int64", "bool"])
def test_exact_operators_are_compared_bit_by_bit(dtype):
    operator = broadcast_operator(lambda x, bias: bias.expand(x.shape).clone(memory_format=torch.contiguous_format))
    assert judge.accuracy_case(operator, case(dtype)).passed

    def one_bit(x, bias):
        out = operator.kernel(x, bias)
        out.view(torch.uint8).view(-1)[-1] ^= 1
        return out

    report = judge.accuracy_case(operator, case(dtype), kernel=one_bit)
    assert not report.passed
    assert "bit-identical" in report.message


def test_reading_a_like_input_shows():
    operator = broadcast_operator(lambda x, bias: bias.expand(x.shape) + x * 0)
    assert not judge.accuracy_case(operator, case("float16")).passed


def comparison_operator(kernel, output="bool"):
    def reference(x, y):
        return x * 3 > y if output == "bool" else torch.round(x * y).to(torch.int32)

    return judge.Operator(
        name="compared",
        kernel=kernel or reference,
        baseline=reference,
        reference=reference,
        inputs=tuple(judge.Tensor(name, ("...", "D"), "T", rows=0) for name in "xy"),
        outputs=(judge.Tensor("out", ("...", "D"), output, rows=0),),
    )


@pytest.mark.parametrize("output", ["bool", "int32"])
def test_integer_outputs(output):
    chosen = {"distributions": ("normal", "uniform", "zero-one")}
    assert judge.accuracy_case(comparison_operator(None, output), case("float32"), **chosen).passed

    def wrong(x, y):
        out = comparison_operator(None, output).reference(x, y)
        out.view(-1)[7] = not out.view(-1)[7]
        return out

    # with the first of the seeds some rounding decides; an integer that it does not decide is wrong all the same
    for seed in (43590736083686, None):
        report = judge.accuracy_case(comparison_operator(wrong, output), case("float32"), seed=seed, **chosen)
        assert not report.passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "quantize",
    [
        lambda x, y: torch.round(x / (y.abs().amax(-1, keepdim=True) / 127 + 1e-6)).clamp(-128, 127).to(torch.int8),
        lambda x, y: (torch.floor(torch.sigmoid(x) * 255 + y) + 3).to(torch.int8),
        lambda x, y: ((x * y).softmax(-1) > 0.01).cumsum(-1).to(torch.int8),
    ],
)
def test_integers_are_right_whatever_kernel_computes_what_is_rounded_and_a_wrong_one_is_not(quantize, dtype):
    x = judge.Tensor("x", ("...", "D"), "T", rows=0)
    y, out = judge.Tensor("y", ("...", "D"), "T", rows=0), judge.Tensor("out", ("...", "D"), "int8", rows=0)

    def exactly(x, y):
        return quantize(x.double(), y.double())

    def wrong(x, y):
        made = exactly(x, y)
        made.view(-1)[11] ^= 64  # in bfloat16 PyTorch itself is off by 1 and 2
        return made

    for kernel in (quantize, exactly):
        operator = judge.Operator("quantized", kernel, quantize, quantize, (x, y), (out,))
        report = judge.accuracy_case(operator, case(dtype), distributions=("normal", "uniform"))
        assert report.passed, f"{report.message} (seed {report.seed})"
    operator = judge.Operator("quantized", wrong, quantize, quantize, (x, y), (out,))
    assert not judge.accuracy_case(operator, case(dtype), distributions=("normal", "uniform")).passed


def test_the_worst_element_is_the_wrong_one():
    report = judge.accuracy_case(SOFTMAX, case("float32"), kernel=one_wrong_element)
    worst = report.trials[-1].worst
    assert worst.index == (1, 2, 0)  # element 645 of 5 x 3 x 129
    assert worst.got == pytest.approx(1.05 * worst.expected, rel=1e-5)


def test_a_seed_repeats_a_report():
    first = judge.accuracy_case(SOFTMAX, case("float16"))
    again = judge.accuracy_case(SOFTMAX, case("float16"), seed=first.seed)
    assert again.trials == first.trials
    assert judge.accuracy_case(SOFTMAX, case("float16")).seed != first.seed


def test_a_case_that_does_not_fit_is_left_out_with_figures(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**20)
    report = judge.accuracy_case(SOFTMAX, judge.Case({"...": (64,), "D": 4096}, {"T": "float32"}))
    assert report.passed
    assert report.trials == ()
    assert "GiB" in report.left_out


def test_free_sizes_shrink_to_what_the_interpreter_takes(monkeypatch):
    monkeypatch.setattr(memory, "INTERPRETER_ELEMENTS", 2**12)
    monkeypatch.setattr(memory, "SHRUNKEN_ELEMENTS", 2**10)
    large = judge.Case({"...": (64, 30), "D": 128}, {"T": "float32"})
    report = judge.accuracy_case(SOFTMAX, large)
    assert report.passed, report.message
    assert report.trials
    assert report.case == large
    assert report.run_as == "[8, 15] D=8 float32"
    assert not report.told  # of its own sizes nothing is known
    assert accuracy_line(report, 0).endswith("(run as [8, 15] D=8 float32)")
    wrong = judge.accuracy_case(SOFTMAX, large, kernel=all_zeros)
    assert not wrong.passed


def test_a_smaller_case_that_the_checks_refuse_is_left_out(monkeypatch):
    monkeypatch.setattr(memory, "INTERPRETER_ELEMENTS", 2**12)
    monkeypatch.setattr(memory, "SHRUNKEN_ELEMENTS", 2**12)

    def baseline(x):
        if x.shape[1] % 5:
            raise ValueError("x.shape[1] must be a multiple of 5")
        return x * 2

    x, out = (judge.Tensor(name, ("B", "C"), "float32") for name in ("x", "out"))
    operator = judge.Operator("twice", baseline, baseline, lambda x: x * 2, (x,), (out,))
    report = judge.accuracy_case(operator, judge.Case({"B": 80, "C": 85}))
    assert report.passed
    assert "of B=80 C=42: refused by both: x.shape[1] must be a multiple of 5" in report.left_out


FIXED = judge.Operator(
    "fixed",
    softmax_triton.softmax,
    *(2 * [functools.partial(torch.softmax, dim=-1)]),
    (judge.Tensor("x", (40, 60), "float32"),),
    (judge.Tensor("out", (40, 60), "float32"),),
)


def test_fixed_sizes_are_tried_once_where_time_allows(monkeypatch):
    monkeypatch.setattr(memory, "INTERPRETER_ELEMENTS", 2**10)
    report = judge.accuracy_case(FIXED, judge.Case({}))
    assert report.passed, report.message
    assert len(report.trials) == 1
    assert not report.run_as
    monkeypatch.setattr(patience, "CALL_S", 1e-9)
    monkeypatch.setattr(patience, "_TELLING_S", 0.0)
    late = judge.accuracy_case(FIXED, judge.Case({}))
    assert late.passed
    assert not late.trials
    assert re.fullmatch(r"time: takes about .* s a call .* 1 of 40 programs tell; the limit is 1e-09 s", late.left_out)
    monkeypatch.setattr(patience, "CALL_S", 60.0)
    assert judge.accuracy_case(FIXED, judge.Case({})).trials
    huge = judge.Operator(**{**vars(FIXED), "inputs": (judge.Tensor("x", (2**13, 2**12), "float32"),)})
    assert "33,554,432 elements in one tensor" in judge.accuracy_case(huge, judge.Case({})).left_out


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore lines"),
        torch.AcceleratorError("CUDA error: out of memory\nmore lines"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_running_out_of_memory_leaves_the_case_out(error):
    def hungry(x):
        raise error

    report = judge.accuracy_case(SOFTMAX, case("float16"), kernel=hungry)
    assert report.left_out == f"ran out of memory: {str(error).splitlines()[0]}"


def test_a_device_that_is_full_before_this_process_begins_on_it_has_nothing_free(monkeypatch):
    def full():
        raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    assert devices.free_bytes("cuda") == 0
    monkeypatch.setattr(devices, "free_bytes", lambda device: 0)
    assert "0.00 GiB free" in judge.accuracy_case(SOFTMAX, case("float16")).left_out


def test_what_a_driver_says_of_other_things_is_no_lack_of_memory():
    def faulty(x):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    report = judge.accuracy_case(SOFTMAX, case("float16"), kernel=faulty)
    assert not report.passed
    assert "illegal memory access" in report.message


@pytest.mark.parametrize(
    ("factor", "many", "times"),
    [(1.0, 2**22, 1), (2.0, 2**22, 1 + (1 + 8) + 1), (2.0, 2**10, 1 + (1 + 2) + 1),
     (1.0 + 22 * 2**-23, 2**22, 1 + (1 + 8) + 1 + (1 + 4 * 8) + 1)],
)  # fmt: skip
def test_oracles_are_disturbed_only_where_it_matters_and_less_where_many_results_speak(
    monkeypatch, factor, many, times
):
    """The sum of 2**30 elements to 1024 was disturbed eight times, which moved most of the bytes of its test, and what
    kept to the bound of PyTorch's error had twenty oracles more. One that does not is held to the exact one, then to
    all of them, and looked at once more for its worst element; near its bound it is held to four times as many."""
    monkeypatch.setattr(values, "_MANY", many)
    calls = []

    def sums(x):
        calls.append(x.dtype)
        return x.sum(0)

    x, out = judge.Tensor("x", ("A", 1024), "float32"), judge.Tensor("out", (1024,), "float32")
    operator = judge.Operator("sums", lambda x: x.sum(0) * factor, lambda x: x.sum(0), sums, (x,), (out,))
    report = judge.accuracy_case(operator, judge.Case({"A": 4}), seeds=1, distributions=("normal",), mutants=False)
    assert report.passed == (factor == 1)
    assert calls == [torch.float32] + [torch.float64] * times  # what it casts to is asked first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_of_what_is_written_to_one_place_stays(dtype):
    """torch's loops over many elements keep any, on a GPU as on several cores."""
    places = torch.randint(0, 5, (2**20,))
    given = torch.arange(2**20).to(dtype)
    last = torch.stack([given[places == place][-1] for place in range(5)])
    for write in (
        lambda x: x.index_put((places,), given),
        lambda x: x.scatter(0, places, given),
        lambda x: x.index_copy(0, places, given),
        lambda x: (x.__setitem__(places, given), x)[1],
        lambda x: x.clone().index_put_((places,), given),
    ):
        with eager.LastWrites():
            assert torch.equal(write(torch.zeros(5, dtype=dtype)), last)
    with eager.LastWrites():
        added = torch.zeros(5, dtype=dtype).index_put((places,), torch.ones(2**20, dtype=dtype), accumulate=True)
    assert torch.equal(added, places.bincount(minlength=5).to(dtype))


def test_assert_accurate():
    judge.assert_accurate(SOFTMAX, case("float16"))
    wrong = judge.Operator(**{**vars(SOFTMAX), "kernel": all_zeros})
    with pytest.raises(AssertionError, match="seed"):
        judge.assert_accurate(wrong, case("float16"))


def test_fingerprints_see_every_change():
    data = torch.randn(3 * 2**10 + 3)
    before = guards.fingerprint(data)
    for place in (0, 1, 1000, 3 * 2**10 + 2):
        changed = data.clone()
        changed[place] += 1
        assert guards.fingerprint(changed) != before
    swapped = data.clone()
    swapped[[0, 2]] = swapped[[2, 0]]
    assert guards.fingerprint(swapped) != before
    assert guards.fingerprint(data.clone()) == before
    assert guards.fingerprint(data[1:]) == guards.fingerprint(data[1:].clone())


@pytest.mark.parametrize("byte", guards.POISONS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the host's allocator")
def test_poison_reaches_fresh_memory(byte):
    with guards.poison([4096], byte, "cpu"):
        filled = sum(bool((torch.empty(4096, dtype=torch.uint8) == byte).all()) for _ in range(20))
    assert filled >= 18
    assert functools.reduce(max, torch.zeros(8).tolist()) == 0


def test_a_huge_case_gets_one_trial():
    """Three of eight billion elements each kept a test of a gradient busy for minutes."""
    operator = judge.Operator(
        "copy", print, print, print, (judge.Tensor("x", ("N",), "T"),), (judge.Tensor("out", ("N",), "T"),)
    )
    plans = [
        accuracy.trial_plan(operator, judge.Case({"N": n}, {"T": "float16"}), 3, 0, "cuda")
        for n in (2**20, 2**28, 2**31)
    ]
    assert [len(plan) for plan in plans] == [len(DISTRIBUTIONS), 3, 1]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_reference_that_casts_on_the_way_is_held_to_what_it_casts_to(wrong: bool) -> None:
    x, out = (judge.Tensor(name, ("A",), "float32", rows=0) for name in ("x", "out"))

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.half().float() * 2

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16() if wrong else x.half()).float() * 2

    operator = judge.Operator("op", kernel, reference, reference, (x,), (out,))
    assert judge.accuracy_case(operator, judge.Case({"A": 300}, {}), seed=1).passed is not wrong


def test_nothing_holds_the_answer_while_a_kernel_runs():
    """A kernel that finds what is right among all that lives has nothing to compute."""
    seen = []

    def thief(x):
        wanted = SOFTMAX.reference(x)
        held = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == wanted.shape]
        floats = [o.double() for o in held if o is not wanted and o.dtype.is_floating_point]
        seen.extend(o for o in floats if torch.allclose(o, wanted.double(), 1e-2, equal_nan=True))
        return wanted

    report = judge.accuracy_case(dataclasses.replace(SOFTMAX, kernel=thief), case("float32"), mutants=False)
    assert report.passed
    assert not seen


def test_a_kernel_that_leaves_what_seems_right_in_its_output_is_wrong():
    """As it would find the answer of the last repetition, where it is timed."""

    def lazy(x):
        out, right = torch.empty_like(x), SOFTMAX.reference(x)
        done = (out[..., :1] == right[..., :1]).all(-1, keepdim=True)
        return out.copy_(torch.where(done, out, right))

    report = judge.accuracy_case(dataclasses.replace(SOFTMAX, kernel=lazy), case("float32"))
    assert report.message.startswith("a second call on the same inputs gives other bits")


def joined_heads(*, contiguous):
    def function(w, v):
        out = torch.matmul(w, v).transpose(1, 2)
        return out.contiguous() if contiguous else out

    return function


def judged_heads(kernel, reference, **sizes):
    names = (("w", ("B", "H", "T")), ("v", ("B", "T", "D")), ("out", ("B", "D", "H")))
    w, v, out = (judge.Tensor(name, shape, "float32") for name, shape in names)
    operator = judge.Operator("heads", kernel, reference, reference, (w, v), (out,), stored="float32")
    return judge.accuracy_case(operator, judge.Case({"B": 2, "H": 3, "T": 4, "D": 5} | sizes), mutants=False)


def test_a_permuted_view_is_wrong_where_pytorch_gives_contiguous_memory():
    report = judged_heads(joined_heads(contiguous=False), joined_heads(contiguous=True))
    assert report.message == "out has strides (15, 1, 5), PyTorch's result is contiguous (normal inputs)"


@pytest.mark.parametrize("sizes", [{}, {"H": 1}, {"B": 0}, {"D": 1}], ids=str)
@pytest.mark.parametrize("contiguous", [True, False])
def test_where_pytorch_gives_a_view_either_is_right(contiguous, sizes):
    assert judged_heads(joined_heads(contiguous=contiguous), joined_heads(contiguous=False), **sizes).passed


def test_strides_of_single_elements_do_not_count():
    def odd(w, v):
        out = joined_heads(contiguous=False)(w, v)
        return out.as_strided(out.shape, (1, *out.stride()[1:]))

    report = judged_heads(odd, joined_heads(contiguous=False), B=1)
    assert report.passed, report.message


def test_other_strides_than_a_views_are_wrong():
    def other(w, v):
        return joined_heads(contiguous=True)(w, v).permute(2, 0, 1).contiguous().permute(1, 2, 0)

    report = judged_heads(other, joined_heads(contiguous=False))
    assert report.message == "out has strides (5, 1, 10), PyTorch's result has (15, 1, 5) (normal inputs)"


def interpolated(x, at):
    place = at.clamp(0, 1) * (x.shape[0] - 1)
    low = place.floor().long()
    return x[low] + (x[(low + 1).clamp(max=x.shape[0] - 1)] - x[low]) * (place - low)


def test_inputs_of_which_torch_itself_can_compute_nothing_are_left_out():
    """An index that is computed from NaN: the case was called wrong."""
    x, at, out = (judge.Tensor(name, ("N",), "float32") for name in ("x", "at", "out"))
    operator = judge.Operator("op", interpolated, interpolated, interpolated, (x, at), (out,))
    report = judge.accuracy_case(operator, judge.Case({"N": 50}, {}), seed=1)
    assert report.passed, report.message
    assert {t.distribution for t in report.trials} == {*DISTRIBUTIONS} - {"specials"}
    assert report.message.startswith("specials inputs left out: the reference cannot be computed: index -9223")
    wrong = dataclasses.replace(operator, kernel=lambda x, at: interpolated(x, at) + 0.01)
    assert not judge.accuracy_case(wrong, judge.Case({"N": 50}, {}), seed=1).passed
    refused = dataclasses.replace(operator, baseline=lambda x, at: interpolated(x, at)[:3])
    assert not judge.accuracy_case(refused, judge.Case({"N": 50}, {}), seed=1).passed


@pytest.mark.parametrize("seed", [7, 71])
def test_a_cast_may_round_to_the_other_neighbour_and_what_follows_amplifies_it(seed):
    """Of 37 factors exp(x).half() + w, some near 0: an ulp of fp32 before the cast came to 2.6 times the bound."""

    def reference(x, w):
        return (torch.exp(x.float()).cummax(-1).values.to(x.dtype) + w).cumprod(-1)

    def kernel(x, w, kept=torch.float16):
        factors = torch.exp2(x.float() * 1.4426950408889634).cummax(-1).values.to(kept)
        return (factors.float() + w.float()).cumprod(-1).to(x.dtype)

    inputs = judge.Tensor("x", ("B", "D"), "T", rows=0), judge.Tensor("w", ("D",), "T")
    op = judge.Operator("op", kernel, reference, reference, inputs, (judge.Tensor("out", ("B", "D"), "T", rows=0),))
    case = judge.Case({"B": 5, "D": 37}, {"T": "float16"}, hidden=True, layout="transposed")
    found = judge.accuracy_case(op, case, seeds=1, seed=seed, mutants=False)
    assert found.passed, found.message
    coarse = judge.accuracy_case(op, case, seeds=1, seed=seed, kernel=lambda x, w: kernel(x, w, torch.bfloat16))
    assert "over the bound" in coarse.message

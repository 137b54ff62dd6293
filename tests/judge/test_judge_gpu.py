"""What only a GPU can show: the stage, the poison in the caching allocator, large tensors, coverage of A/A intervals."""

import math
import random
import statistics

import pytest
import scaled_add_accuracy
import softmax_accuracy
import softmax_performance
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernelgen import judge
from kernelgen.judge import contractions, eager, guards, memory, oracle, throttle
from kernelgen.judge import device as devices
from kernelgen.judge.hidden import hidden_cases

pytestmark = pytest.mark.gpu

SOFTMAX, SCALED_ADD = softmax_accuracy.OPERATOR, scaled_add_accuracy.OPERATOR


def halves(size):
    return lambda: (torch.randn(size, device="cuda", dtype=torch.float16),)


@pytest.mark.parametrize("size", [2**12, 2**22, 2**28])
def test_a_function_is_as_fast_as_itself(size):
    found = judge.compare(torch.clone, torch.clone, halves(size))
    assert found.verdict == "undecided"
    assert found.graphed
    assert found.swapped_sets
    assert found.high - found.low < (0.03 if size < 2**20 else 0.015)


@pytest.mark.parametrize("size", [2**22, 2**27])
def test_twice_the_work_is_called_slower(size):
    found = judge.compare(torch.clone, lambda x: x.clone().clone(), halves(size))
    assert found.verdict == "slower"
    assert 0.4 < found.speedup < 0.65


def test_short_kernels_share_a_graph_and_long_ones_do_not():
    assert judge.compare(torch.neg, torch.neg, halves(2**12)).launches > 10
    assert judge.compare(torch.neg, torch.neg, halves(2**28)).launches == 1


def test_what_cannot_be_captured_is_timed_one_by_one():
    def synchronising(x):
        return x * float(x[0] != 0)

    found = judge.compare(torch.neg, synchronising, halves(2**22))
    assert not found.graphed
    assert math.isfinite(found.speedup)


def test_outputs_of_a_sample_are_all_kept():
    """Every launch of a graph writes memory of its own, and the graph computes what the function does."""
    from kernelgen.judge.cuda import Launcher

    buffers = [halves(1000)() for _ in range(5)]
    launcher = Launcher(torch.neg, buffers, graphed=True)
    launcher()
    torch.cuda.synchronize()
    assert len({out.data_ptr() for out in launcher.outputs}) == 5
    assert all(torch.equal(out, -x) for out, (x,) in zip(launcher.outputs, buffers, strict=True))


def test_outputs_are_overwritten_between_timed_launches():
    from kernelgen.judge.cuda import CudaStage

    stage = CudaStage((torch.neg, torch.abs), halves(1000), sets=1)
    first, _ = stage.open_block(random.Random(1))
    launchers = [stage.launcher(which, first) for which in (0, 1)]
    stage.time_runs(launchers, [0, 1, 0])
    outputs = [out for launcher in launchers for out in launcher.outputs]
    assert len(outputs) == 2 * stage.launches
    assert all(bool((out.view(torch.uint8) == guards.POISONS[0]).all()) for out in outputs)


@triton.jit
def copy_kernel(x_ptr, out_ptr, POLICY: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, eviction_policy=POLICY))


def test_lines_that_a_kernel_asked_the_cache_to_keep_do_not_outlive_the_flush():
    """What a launch gains from the same buffers as the one before is no more than it is of a kernel that keeps none."""
    from kernelgen.judge.cuda import CudaStage, Launcher

    def gained(policy):
        def copied(x):
            out = torch.empty_like(x)
            copy_kernel[(x.numel() // 2048,)](x, out, POLICY=policy, BLOCK_SIZE=2048)
            return out

        stage = CudaStage((copied,), halves(2**22))
        stage.launches = 1
        launchers = [Launcher(copied, [halves(2**22)()], graphed=True) for _ in range(32)]
        again, others = [0] * 96, [*range(32)] * 3
        return statistics.median(stage.time_runs(launchers, others)) / statistics.median(
            stage.time_runs(launchers, again)
        )

    assert gained("evict_last") / gained("") < 1.04  # 1.10 where the flush is a fill alone


def test_the_flush_leaves_a_launch_nothing_to_write_back():
    """A sum takes as long after the flush as after another sum, which wrote nothing."""
    from kernelgen.judge.flush import Flush

    flush, rows, other = Flush(), *(torch.zeros(2**27, dtype=torch.float16, device="cuda") for _ in range(2))

    def median_us(before):
        times = []
        for _ in range(30):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(200_000)
            before()
            start.record()
            rows.sum()
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) * 1e3)
        return statistics.median(times)

    assert median_us(flush) / median_us(other.sum) < 1.03  # 1.11 where the flush is a fill


def test_a_race_ranks_candidates():
    race = judge.quick([lambda x: x.clone().clone().clone(), torch.clone, lambda x: x.clone().clone()], halves(2**24))
    assert race[1].median_us < race[2].median_us < race[0].median_us


def test_a_performance_case():
    report = judge.performance_case(SOFTMAX, softmax_performance.CASES[0])
    assert set(report.comparisons) == {"eager", "compile"}
    assert 0.2 < report.floor_us / report.kernel_us < 1.1
    assert all(c.a_call_us > 0 and c.b_call_us > 0 for c in report.comparisons.values())


def test_a_wrong_kernel_is_not_timed():
    report = judge.performance_case(SOFTMAX, softmax_performance.CASES[0], kernel=torch.zeros_like)
    assert "error" in report.message
    assert not report.comparisons


@pytest.mark.parametrize("megabytes", [0.01, 0.9, 5, 300])
def test_poison_reaches_outputs(megabytes):
    size = int(megabytes * 2**20)
    with guards.poison([size], 0xFF, "cuda") as reached:
        output = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert reached(output)
    assert bool((output == 0xFF).all())


@pytest.mark.parametrize("operator", [SOFTMAX, SCALED_ADD], ids=lambda o: o.name)
def test_hidden_cases_pass(operator):
    listed = [judge.Case({"...": (7, 3), "D": 129}, {"T": t}) for t in ("float16", "bfloat16", "float32")]
    cases = hidden_cases(operator, listed, "cuda", large=False)
    assert len(cases) > 20
    for case in cases:
        report = judge.accuracy_case(operator, case)
        assert report.passed, f"{case.label}: {report.message}"


def test_more_elements_than_32_bits_count():
    found = hidden_cases(SOFTMAX, [judge.Case({"...": (1,), "D": 4096}, {"T": "float16"})], "cuda", large=True)
    case = max(found, key=lambda c: math.prod(c.sizes["..."]))
    assert math.prod(case.shape(SOFTMAX.inputs[0])) > 2**31
    if memory.accuracy_left_out(SOFTMAX, case, "cuda"):
        pytest.fail("this GPU is too small for the test")
    report = judge.accuracy_case(SOFTMAX, case, seeds=1)
    assert report.passed, report.message


def test_the_judge_stays_within_the_memory_it_asks_for():
    case = judge.Case({"...": (2**16,), "D": 4096}, {"T": "float16"})
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert judge.accuracy_case(SOFTMAX, case, seeds=1).passed
    allowed = memory.accuracy_bytes(SOFTMAX, case, memory.wider(SOFTMAX, case, "cuda"))
    assert torch.cuda.max_memory_allocated() - before <= allowed


def test_attention_without_heads_is_empty():
    """By itself the process would die there."""
    query = torch.empty(2, 0, 3, 8, dtype=torch.float16, device="cuda")
    with eager.InOrder():
        out = F.scaled_dot_product_attention(query, query, query)
    assert (out.shape, out.device.type) == ((2, 0, 3, 8), "cuda")


def test_nvml_can_be_asked():
    assert throttle.reader()() in (True, False)


def test_the_interval_covers_one():
    results = judge.self_test((2.0, 20.0), runs=20)
    assert all(r.covered >= 17 for r in results)
    assert results[1].median_width <= 0.015


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_matrix_units_cut_off_what_the_judge_says(dtype):
    """The mean of many sums of one sign, of operands that TF32 has too."""
    torch.manual_seed(0)
    a, b = (torch.rand(shape, device="cuda").half().to(dtype) for shape in ((128, 2**15), (2**15, 64)))
    out = torch.empty(128, 64, device="cuda")
    _product[(1,)](a, b, out, 2**15, BLOCK_K=64)
    exact = a.double() @ b.double()
    at = contractions.precision("mm", dtype, "cuda", as_tf32=dtype == torch.float32)
    lost = contractions._cut(contractions.of_matrices(a), a.double(), b.double(), at, exact).mean()
    assert 0.7 < float((out.double() - exact).mean() / lost) < 1.4


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, K, BLOCK_K: tl.constexpr):
    rows, cols, ks = tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, BLOCK_K)
    total = tl.zeros((128, 64), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + (start + ks)[None, :])
        b = tl.load(b_ptr + (start + ks)[:, None] * 64 + cols[None, :])
        total = tl.dot(a, b, total, input_precision="tf32")
    tl.store(out_ptr + rows[:, None] * 64 + cols[None, :], total)


def convolved(x, w):
    return torch.relu(F.conv2d(x, w, padding=1))


CONVOLUTION = judge.Operator(
    "convolved", convolved, convolved, convolved,
    (judge.Tensor("x", ("B", "C", "H", "W"), "float32"), judge.Tensor("w", ("J", "C", 3, 3), "float32")),
    (judge.Tensor("out", ("B", "J", "H", "W"), "float32"),), multiplied="float32",
)  # fmt: skip


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (0.05, False)])
def test_an_oracle_on_the_host_finds_what_one_on_the_gpu_finds(off, passes, monkeypatch):
    def kernel(x, w):
        result = convolved(x, w)
        result[-1, -1, -1, -1] += off
        return result

    case, found = judge.Case({"B": 2, "C": 8, "H": 9, "W": 11, "J": 5}, {}), []
    for limit in (memory.HOST_ELEMENTS, 0):
        monkeypatch.setattr(memory, "HOST_ELEMENTS", limit)
        report = judge.accuracy_case(CONVOLUTION, case, seed=5, seeds=2, kernel=kernel, mutants=False)
        assert report.passed is passes
        found.append((report.max_error, report.eager_error, report.l2_error))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize(
    ("function", "x", "w", "options"),
    [
        (F.conv2d, (2, 64, 128, 128), (32, 64, 3, 3), {"padding": 1}),
        (F.conv_transpose3d, (1, 32, 16, 32, 32), (32, 64, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        (F.conv_transpose2d, (2, 64, 64, 64), (64, 16, 5, 5), {"groups": 8}),
    ],
)
def test_large_images_are_convolved_by_columns(function, x, w, options, monkeypatch):
    given, without, entered = [torch.randn(shape, device="cuda") for shape in (x, w)], devices.without_cudnn, []
    monkeypatch.setattr(devices, "without_cudnn", lambda: entered.append(True) or without())
    [found] = oracle.in_float64(lambda a, b: function(a, b, **options), given)
    assert entered
    assert torch.backends.cudnn.enabled
    torch.testing.assert_close(found, function(*(t.double() for t in given), **options), rtol=1e-12, atol=1e-12)

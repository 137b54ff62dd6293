"""The paired design on a stage that has planted ratios, noise and biases instead of a GPU."""

import math
import os
import random
import statistics
import subprocess
import sys
import time
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from kernelgen import judge
from kernelgen.judge import npu, performance, selftest, timing
from kernelgen.judge.cuda import Launcher
from kernelgen.judge.simulated import Event


class FakeStage:
    """Functions with known times; every buffer set has a place that costs something, every sample noise."""

    launches, swapped_sets, graphed, sample_us = 1, True, True, 100.0

    def __init__(self, *times, noise=0.01, bias=0.0, drift=0.0, seed=0, throttled=(), delay=0.0):
        self.times, self.noise, self.bias, self.drift = times, noise, bias, drift
        self.rng = random.Random(seed)
        self.throttled = iter(throttled)
        self.delay = delay
        self.blocks = self.runs = 0
        self.orders = []

    def open_block(self, rng):
        self.blocks += 1
        return tuple(math.exp(self.rng.gauss(0, self.bias)) for _ in range(2))

    def launcher(self, which, buffers):
        return self.times[which] * buffers

    def time_runs(self, launchers, order):
        time.sleep(self.delay)
        self.orders.append(order)
        self.runs += len(order)
        clock = 1 + self.drift * self.blocks
        return [launchers[i] * clock * math.exp(self.rng.gauss(0, self.noise)) for i in order]

    def close_block(self):
        return not next(self.throttled, False)

    def call_us(self):
        return tuple(t + 10 for t in self.times)


def compare(stage, **kwargs):
    return judge.compare(None, None, None, stage=stage, seed=5, **kwargs)


def test_a_planted_ratio_is_found():
    found = compare(FakeStage(120.0, 100.0))
    assert found.low < 1.2 < found.high
    assert found.speedup == pytest.approx(1.2, rel=0.01)
    assert found.verdict == "faster"
    assert found.a_us == pytest.approx(120, rel=0.02)
    assert (found.a_call_us, found.b_call_us) == (130, 110)
    assert len(found.samples) == 2 * found.blocks
    assert all(len(arrangement) == 15 for arrangement in found.samples)


@pytest.mark.parametrize(
    ("b", "verdict"), [(100.0, "undecided"), (103.0, "slower"), (97.0, "faster"), (100.5, "undecided")]
)
def test_verdicts(b, verdict):
    assert compare(FakeStage(100.0, b)).verdict == verdict


def test_the_interval_covers_a_planted_ratio():
    covered, called = 0, 0
    for seed in range(200):
        found = compare(FakeStage(100.0, 100.0, bias=0.013, drift=0.01, seed=seed))
        covered += found.low <= 1 <= found.high
        called += found.verdict != "undecided"
    assert covered >= 182
    assert called <= 2


def test_swapping_removes_what_a_place_costs():
    """Each block's places differ by 1.3 %: without the swap the block values would scatter as much."""
    rng = random.Random(0)
    stage = FakeStage(100.0, 100.0, noise=0.0005, bias=0.013)
    blocks = [timing.one_block(stage, 15, rng) for _ in range(20)]
    swapped = statistics.stdev(timing.block_value(b) for b in blocks)
    unswapped = statistics.stdev(statistics.median(math.log(x / y) for x, y in b[0]) for b in blocks)
    assert unswapped > 0.008
    assert swapped < 0.0005


def test_pairs_are_balanced_and_in_random_order():
    stage = FakeStage(1.0, 1.0)
    compare(stage)
    firsts = [tuple(order[::2]) for order in stage.orders]
    assert all(sorted(order[i : i + 2]) == [0, 1] for order in stage.orders for i in range(0, len(order), 2))
    assert all(sum(first) in (7, 8) for first in firsts)
    assert len(set(firsts)) > 1


def test_blocks_are_added_until_the_interval_is_narrow():
    assert compare(FakeStage(1.0, 1.0, noise=0.001)).blocks == 10
    wide = compare(FakeStage(1.0, 1.0, noise=0.3))
    assert wide.blocks == 40
    assert compare(FakeStage(1.0, 1.0, noise=0.3), half_width=1.0).blocks == 10


def test_the_time_cap_ends_a_comparison():
    found = compare(FakeStage(1.0, 1.0, noise=0.3, delay=0.02), time_cap_s=0.1)
    assert 3 <= found.blocks < 10


def test_blocks_of_a_throttled_device_are_thrown_away():
    stage = FakeStage(1.0, 1.0, throttled=[True, False, True])
    found = compare(stage)
    assert (found.throttled, found.blocks, stage.blocks) == (2, 10, 12)


def test_a_device_that_stays_throttled_is_measured_in_the_end():
    found = compare(FakeStage(1.0, 1.0, throttled=[True] * 100))
    assert (found.throttled, found.blocks) == (10, 10)


def test_a_race_finds_the_fastest():
    race = judge.quick([None] * 3, None, stage=FakeStage(3.0, 1.0, 2.0), seed=1)
    assert [round(r.median_us) for r in race] == [3, 1, 2]
    assert all(len(r.samples) == 7 for r in race)


@pytest.mark.parametrize(("mine", "repetitions"), [(1.7, 1), (1.3, 3), (1.05, 9), (0.5, 9)])
def test_a_loser_leaves_a_race_early(mine, repetitions):
    heats = ((1, 1.5), (3, 1.1))
    old, new = judge.quick([None] * 2, None, repetitions=9, heats=heats, stage=FakeStage(1.0, mine), seed=1)
    assert len(old.samples) == len(new.samples) == repetitions
    assert new.median_us == pytest.approx(mine, rel=0.05)


def test_the_self_test_counts_coverage(capsys):
    results = judge.self_test((2.0, 20.0), runs=30, comparison=lambda us: compare(FakeStage(us, us)))
    assert all(r.covered >= 25 and r.runs == 30 and r.called == 0 for r in results)
    assert results[1].actual_us == pytest.approx(20, rel=0.02)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "covered 1.00 in" in lines[0]


def test_the_self_test_needs_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(selftest.devices, "find", lambda: "cpu")
    assert selftest.main([]) == 3
    assert "no GPU" in capsys.readouterr().out


def lazy_negation():
    """A function that does nothing where its output holds the answer, and how often it did."""
    out, skipped = torch.empty(8), []

    def negate(x):
        if torch.equal(out, -x):
            skipped.append(1)
        return out.copy_(-x)

    return negate, skipped


def test_no_timed_launch_finds_the_answer_of_the_last_one(monkeypatch):
    negate, skipped = lazy_negation()
    launcher = Launcher(negate, [(torch.arange(8.0),)], graphed=False)
    for _ in range(3):
        launcher()
        launcher.spoil()
    assert not skipped
    monkeypatch.setattr(npu, "module", lambda: types.SimpleNamespace(Event=Event, synchronize=lambda: None))
    stage = object.__new__(npu.NpuStage)
    stage._functions, stage._flush = (negate,), torch.empty(1)
    stage.time_runs([stage.launcher(0, (torch.arange(8.0),))], [0] * 4)
    assert not skipped


def test_an_output_that_is_part_of_an_input_is_not_overwritten():
    x = torch.arange(8.0)
    launcher = Launcher(lambda x: (x[2:], x * 2), [(x,)], graphed=False)
    launcher()
    launcher.spoil()
    assert torch.equal(x, torch.arange(8.0))
    assert launcher.outputs[0][1].isnan().all()


def scaled(x, by):
    return torch.exp(x) * by


@pytest.mark.parametrize(("fits", "asked", "timed"), [(2, [2], True), (1, [2, 1], True), (0, [2, 1], False)])
def test_what_two_buffer_sets_leave_no_room_for_is_timed_on_one(fits, asked, timed, monkeypatch):
    seen = []

    def compare(a, b, make, *, sets, **_):
        seen.append(sets)
        if sets > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.33 GiB. GPU 0 has 139.80 GiB.")
        return timing.compare(a, b, make, stage=FakeStage(200.0, 100.0), time_cap_s=5.0, blocks=3)

    monkeypatch.setattr(performance, "compare", compare)
    monkeypatch.setattr(performance.devices, "timed", lambda: "cuda")
    monkeypatch.setattr(performance.devices, "free_bytes", lambda device: 2**40)
    monkeypatch.setattr(performance.devices, "empty_cache", lambda: None)
    monkeypatch.setattr(performance.devices, "bandwidths", lambda: (1e12, 1e12))
    x, out = (judge.Tensor(name, ("N",), "float32") for name in ("x", "out"))
    op = judge.Operator("o", torch.exp, torch.exp, torch.exp, (x,), (out,))
    report = judge.performance_case(op, judge.Case({"N": 8}, {}), ["eager"], check=False)
    assert seen == asked
    assert bool(report.comparisons) is timed
    assert report.left_out == (
        "" if timed else "eager: ran out of memory: CUDA out of memory. Tried to allocate 5.33 GiB"
    )


def test_torch_compiles_ahead_what_has_no_memory_and_what_fails_is_left(monkeypatch):
    """Of a size that nobody could allocate."""
    seen = []

    def compile_fx(graph, inputs):
        seen.append([(type(x), x.shape, x.device.type) for x in inputs])
        raise RuntimeError

    monkeypatch.setattr(performance.devices, "timed", lambda: "cpu")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    tensors = (judge.Tensor("x", ("N",), "float32"), judge.Tensor("by", (), "float32", number=2.5))
    op = judge.Operator("o", scaled, scaled, scaled, tensors, (judge.Tensor("out", ("N",), "float32"),))
    performance.compile_ahead(op, judge.Case({"N": 2**45}, {}))
    assert seen == [[(FakeTensor, (2**45,), "cpu")]]


COMPILED_AHEAD = """
import torch
from torch._dynamo.utils import counters
from kernelgen import judge
from kernelgen.judge import device, performance

def scaled(x, by):
    return torch.exp(x) * by

device.timed = lambda: "cpu"
tensors = (judge.Tensor("x", ("N",), "float32"), judge.Tensor("by", (), "float32", number=2.5))
op = judge.Operator("o", scaled, scaled, scaled, tensors, (judge.Tensor("out", ("N",), "float32"),))
case = judge.Case({"N": 8}, {})
performance.compile_ahead(op, case)
made = dict(counters["inductor"])
counters.clear()
given = performance.make_inputs(op, case)()
assert torch.allclose(performance.opponent(op, "compile", case)(*given), op.reference(*given))
print(made["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_what_is_compiled_ahead_is_what_is_timed(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = tmp_path / "code.py"  # torch.compile wants the lines of what it traces
    code.write_text(COMPILED_AHEAD)
    done = subprocess.run([sys.executable, str(code)], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "1", "0"]

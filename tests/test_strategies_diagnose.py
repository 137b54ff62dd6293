"""Planted figures and the bottleneck each must lead to."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernelgen.analysis import ProductWork, Work, floor_seconds
from kernelgen.devices.facts import H200
from kernelgen.diagnose import BANDWIDTH, BOTTLENECKS, CEILING, SHARE, Diagnosis, Seen, diagnose
from kernelgen.outcomes import CaseTiming, Counters, StaticFacts
from kernelgen.spec.model import STRATEGIES

FACTS = StaticFacts("k", "sm_90", (4096,), 4, 32, 0, 0, 1.0, 8.0, 16, 16)
BYTES = 480_000_000  # 100 µs at the H200's peak


def seen(
    time_us: float = 200.0,
    facts: StaticFacts = FACTS,
    counters: Counters | None = None,
    flops: int = 0,
    case: str = "a",
) -> Seen:
    timing = CaseTiming(case, "measured", time_us, "eager", 2 * time_us, 2.0, None, floor_us=100.0)
    return Seen(timing, Work(BYTES // 2, BYTES // 2, flops), (facts,), counters)


def look(*several: Seen) -> Diagnosis:
    return diagnose(several, H200, STRATEGIES)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (seen(115), "memory bandwidth"),
        (seen(200), "latency"),
        (seen(200, replace(FACTS, spill_bytes=128)), "latency"),
        (seen(200, replace(FACTS, waves=0.4)), "parallelism"),
        (seen(200, replace(FACTS, waves=1.1)), "parallelism"),
        (seen(200, replace(FACTS, waves=1.95)), "latency"),
        (seen(200, flops=int(0.8 * 200e-6 * H200.fp32_flops)), "compute"),
        (seen(200, counters=Counters("ncu", sm_utilisation=0.9)), "compute"),
        (seen(200, counters=Counters("ncu", dram_utilisation=0.9)), "cache"),
        (seen(200, counters=Counters("ncu", dram_utilisation=0.55, l2_hit=0.9)), "latency"),
        (seen(300, counters=Counters("ncu", dram_utilisation=0.45, l2_hit=0.1)), "cache"),
        (seen(200, counters=Counters("computed from bytes and time", dram_utilisation=0.5)), "latency"),
    ],
)
def test_planted_figures_lead_to_their_bottleneck(what: Seen, expected: str) -> None:
    assert look(what).bottleneck == expected


def test_a_launch_that_only_joins_is_not_what_leaves_the_device_idle() -> None:
    join = replace(FACTS, grid=(1,), waves=0.004)
    both = replace(seen(200), facts=(replace(FACTS, grid=(8192,)), join))
    assert look(both).bottleneck == "latency"
    assert look(replace(both, facts=(join, join))).bottleneck == "parallelism"


def multiplying(m: int, n: int, k: int, time_us: float, facts: StaticFacts, counters: Counters | None = None) -> Seen:
    one = ProductWork("out", 1, m, n, k, "float16", 2)
    work = Work(2 * (m * k + k * n), 2 * m * n, 0, products=(one,))
    timing = CaseTiming("a", "measured", time_us, "eager", time_us, 1.0, None, floor_us=floor_seconds(work, H200) * 1e6)
    return Seen(timing, work, (facts,), counters)


def tiles(programs: int, spills: int = 0) -> StaticFacts:
    return replace(FACTS, grid=(programs,), num_warps=8, waves=programs / 132, spill_bytes=spills)


@pytest.mark.parametrize(
    ("what", "bottleneck", "why"),
    [
        (multiplying(8192, 8192, 8192, 1658, tiles(2048)), "compute", "67 % of their peak"),
        (multiplying(8192, 8192, 8192, 3000, tiles(2048)), "latency", "loop over K"),
        (multiplying(8192, 8192, 8192, 3000, tiles(2048, 64)), "latency", "accumulators spill"),
        (multiplying(1024, 2048, 8192, 90, tiles(64)), "parallelism", "64 programs for 132 SMs"),
        (multiplying(4352, 1024, 8192, 150, tiles(136)), "parallelism", "136 programs leave 48 %"),
        (multiplying(8192, 8192, 576, 300, tiles(2048)), "latency", "sums of 576 are short"),
        (multiplying(16, 8192, 8192, 35, tiles(512)), "memory bandwidth", ""),
        (multiplying(8192, 8192, 8192, 3000, tiles(2048), Counters("ncu", matrix_utilisation=0.9)), "compute", ""),
    ],
)
def test_what_holds_a_product_back(what: Seen, bottleneck: str, why: str) -> None:
    found = look(what)
    assert found.bottleneck == bottleneck
    assert why in found.ranked[0].reason
    figures = {name: value for name, value, _ in found.evidence}
    assert "TFLOP/s" in figures["products"]
    assert "epilogue" in figures
    assert ("matrix pipe active" in figures) == (what.counters is not None)


@pytest.mark.parametrize(
    ("what", "bottleneck", "why"),
    [
        (multiplying(8192, 8192, 8192, 200, tiles(2048)), "compute", "products are at most at 100 % of their peak"),
        (
            multiplying(8192, 8192, 8192, 200, tiles(2048), Counters("ncu", matrix_utilisation=0.3)),
            "latency", "the matrix units are active 30 % of the time",
        ),
        (multiplying(16, 8192, 8192, 9, tiles(512)), "memory bandwidth", "the bytes use at most 100 % of the DRAM's"),
        (
            multiplying(16, 8192, 8192, 9, tiles(512), Counters("ncu", dram_utilisation=0.8, sm_utilisation=0.1)),
            "memory bandwidth", "the DRAM is at 80 % of its peak",
        ),
    ],
)  # fmt: skip
def test_what_data_leaves_out_is_no_bound(what: Seen, bottleneck: str, why: str) -> None:
    """Lengths that lie in tensors: the sizes say only what is computed and moved at most, which takes longer."""
    (one,) = what.work.products
    work, timing = replace(what.work, products=(replace(one, at_most=True),)), replace(what.timing, floor_us=None)
    found = look(replace(what, work=work, timing=timing))
    assert found.bottleneck == bottleneck
    assert why in found.ranked[0].reason
    shares = [int(n) for _, value, _ in found.evidence for n in re.findall(r"(\d+) %", value)]
    assert max(shares) <= 100
    assert {value.startswith("at most") for name, value, _ in found.evidence if name in ("products", BANDWIDTH)} == {
        True
    }


def test_a_tiny_kernel_waits_for_its_launch() -> None:
    timing = replace(seen().timing, time_us=2.2, floor_us=0.1)
    found = look(Seen(timing, Work(1000, 1000, 0), (FACTS,)))
    assert found.bottleneck == "launch overhead"
    assert all(a.gain < 1.01 for a in found.ranked), "nothing to win: the loop must stop"


def test_the_case_with_the_most_to_win_is_the_one_that_is_shown() -> None:
    tiny = Seen(replace(seen().timing, time_us=3.0, floor_us=0.1, case="tiny"), Work(1000, 1000, 0), (FACTS,))
    found = look(seen(110, case="good"), tiny, seen(300, case="bad"))
    assert found.case == "bad"
    assert found.headroom > 1


def test_strategies_are_ranked_by_gain_and_only_those_of_the_spec() -> None:
    found = diagnose((seen(200),), H200, ("block_size", "warp_stage", "something_new"))
    assert [a.strategy for a in found.ranked] == ["block_size", "warp_stage", "something_new"]
    assert found.gain("warp_stage") == pytest.approx(1.2), "its ceiling"
    assert found.gain("grid_config") == 1.0
    assert all(a.reason for a in found.ranked)


def test_a_kernel_at_its_floor_promises_nothing() -> None:
    assert max(a.gain for a in look(seen(102)).ranked) < 1.01


def test_every_figure_has_a_source_and_what_was_not_read_says_so() -> None:
    rows = look(seen(counters=Counters("ncu", dram_utilisation=0.5, l2_hit=0.25))).evidence
    figures = {name: (value, source) for name, value, source in rows}
    assert figures["L2 hit rate"] == ("25 %", "ncu")
    assert figures["DRAM throughput"] == ("50 %", "ncu")
    assert figures["L1 hit rate"] == ("not read", "-")
    assert figures["bandwidth utilisation"][0] == "50 %"
    assert figures["occupancy limit"] == ("100 %", "compiled for sm_90")
    assert all(value and source for value, source in figures.values())


def test_what_was_only_worked_out_is_not_shown_a_second_time() -> None:
    computed = Counters("computed from bytes and time", dram_utilisation=0.5, achieved_occupancy=1.0)
    rows = look(seen(counters=computed)).evidence
    figures = {name: (value, source) for name, value, source in rows}
    assert figures["L2, L1 hit rate"] == ("not read", "no counters: computed from bytes and time")
    assert [name for name, value, _ in rows if value == "50 %"] == ["share of roofline", "bandwidth utilisation"]
    assert [name for name, value, _ in rows if value == "100 %"] == ["occupancy limit"]


def test_the_tables_cover_every_bottleneck_and_strategy() -> None:
    assert set(SHARE) == set(BOTTLENECKS)
    assert all(set(row) == set(STRATEGIES) for row in (*SHARE.values(), CEILING))

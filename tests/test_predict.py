"""The roofline model: monotone, above the floor, and near what was measured on an H200."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgen.analysis import ProductWork, Work, floor_seconds, floor_us, work
from kernelgen.devices import facts
from kernelgen.devices.facts import DeviceFacts
from kernelgen.generation import lowered
from kernelgen.outcomes import StaticFacts
from kernelgen.predict import predict, sustained_fraction
from kernelgen.spec import find_spec, load_spec

DEVICES = st.sampled_from(facts.TABLE)
WORK = st.builds(Work, st.integers(0, 2**36), st.integers(0, 2**36), st.integers(0, 2**44))
WIDTHS = (1, 2, 4, 8, 16)


@st.composite
def launches(draw: st.DrawFn) -> StaticFacts:
    warps = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    resident = draw(st.integers(1, 64 // warps))
    programs = draw(st.integers(1, 2**22))
    return StaticFacts(
        kernel="k",
        arch="sm_90",
        grid=(programs,),
        num_warps=warps,
        registers=draw(st.integers(16, 255)),
        spill_bytes=draw(st.sampled_from([0, 0, 8, 512])),
        shared_bytes=0,
        occupancy=resident * warps / 64,
        waves=programs / (resident * 132),
        load_bytes=draw(st.sampled_from((0, *WIDTHS))),
        store_bytes=draw(st.sampled_from(WIDTHS)),
        loads=draw(st.integers(0, 32)),
        stores=draw(st.integers(1, 32)),
    )


@given(WORK, launches(), DEVICES)
def test_never_below_the_floor(work: Work, one: StaticFacts, device: DeviceFacts) -> None:
    found = predict(work, [one], device)
    assert found.seconds >= floor_seconds(work, device)
    assert found.seconds >= predict(work, [], device).seconds * (1 - 1e-12)
    assert 0 < found.sustained <= 1
    assert found.bound_by in {"dram", "l2", "compute", "programs", "launch"}


@given(WORK, launches(), DEVICES, st.sampled_from(WIDTHS))
def test_wider_vectors_never_predict_slower(work: Work, one: StaticFacts, device: DeviceFacts, width: int) -> None:
    narrow = replace(one, load_bytes=max(1, one.load_bytes))
    wide = replace(narrow, load_bytes=max(width, narrow.load_bytes))
    assert predict(work, [wide], device).seconds <= predict(work, [narrow], device).seconds


@given(WORK, launches(), DEVICES, st.integers(1, 64))
def test_more_occupancy_never_predicts_slower(work: Work, one: StaticFacts, device: DeviceFacts, more: int) -> None:
    """The same launch with more resident programs, and so with fewer waves."""
    low = round(one.occupancy * 64 / one.num_warps)
    high = max(low, min(more, 64 // one.num_warps))
    programs = one.grid[0]
    before = replace(one, occupancy=low * one.num_warps / 64, waves=programs / (low * device.sms))
    after = replace(one, occupancy=high * one.num_warps / 64, waves=programs / (high * device.sms))
    assert predict(work, [after], device).seconds <= predict(work, [before], device).seconds * (1 + 1e-9)


@given(WORK, launches(), DEVICES)
def test_spills_and_more_work_never_predict_faster(work: Work, one: StaticFacts, device: DeviceFacts) -> None:
    base = predict(work, [one], device).seconds
    assert predict(work, [replace(one, spill_bytes=one.spill_bytes + 256)], device).seconds >= base
    assert predict(replace(work, bytes_read=work.bytes_read + 2**20), [one], device).seconds >= base
    assert predict(work, [one, one], device).seconds >= base


def launch(elements: int, block: int, warps: int, width: int, loads: int = 1) -> StaticFacts:
    """A pointwise launch on an H200 with all registers it could want."""
    programs = -(-elements // block)
    resident = min(64 // warps, 32)
    return StaticFacts(
        "k", "sm_90", (programs,), warps, 32, 0, 0, resident * warps / 64, programs / (resident * 132), width, width,
        loads, 1,
    )  # fmt: skip


def test_near_what_was_measured() -> None:
    """gelu_tanh 8192x16384 fp16 and bias_add 512^3 fp16 took torch.compile 127 to 158 µs on an H200 (4.24 TB/s copy)."""
    elements = 8192 * 16384
    work = Work(2 * elements, 2 * elements, 20 * elements)
    found = predict(work, [launch(elements, 4096, 8, 16, 2)], facts.H200)
    assert found.bound_by == "dram"
    assert 120e-6 < found.seconds < 160e-6


def test_narrow_loads_at_low_occupancy_cannot_keep_the_memory_busy() -> None:
    elements = 2**26
    work = Work(2 * elements, 2 * elements, elements)
    one = launch(elements, 1024, 4, 2)
    starved = replace(one, occupancy=0.125, waves=one.waves * 8)
    assert sustained_fraction(starved, facts.H200) < 0.1
    assert predict(work, [starved], facts.H200).seconds > 5 * predict(work, [one], facts.H200).seconds


def test_tiny_work_is_bound_by_the_launch() -> None:
    found = predict(Work(2048, 2048, 1024), [launch(1024, 1024, 4, 16)], facts.H200)
    assert found.bound_by == "launch"
    assert found.seconds < 2 * facts.H200.launch_latency_s


def test_many_tiny_programs_cost_more_than_their_bytes() -> None:
    elements = 2**24
    work = Work(2 * elements, 2 * elements, elements)
    tiny, usual = (predict(work, [launch(elements, block, w, 2, 8)], facts.H200) for block, w in ((32, 1), (1024, 4)))
    assert tiny.seconds > 2 * usual.seconds
    assert tiny.bound_by == "programs"


def test_a_kernel_that_joins_what_many_programs_found_costs_little_more_than_its_launch() -> None:
    device = facts.H200
    work = Work(2**28, 4, 2**27)
    many = StaticFacts(
        kernel="k", arch="sm_90", grid=(528,), num_warps=8, registers=40, spill_bytes=0, shared_bytes=0, occupancy=1.0,
        waves=0.5, load_bytes=16, store_bytes=4, loads=4, stores=1,
    )  # fmt: skip
    join = replace(many, kernel="j", grid=(1,), num_warps=4, load_bytes=4, loads=1)
    alone, both = (predict(work, launched, device) for launched in ([many], [many, join]))
    assert both.sustained == alone.sustained
    assert alone.seconds < both.seconds < 1.05 * alone.seconds + 2 * device.launch_latency_s


def product(m: int, n: int, k: int, batch: int = 1, dtype: str = "float16") -> Work:
    size = {"float32": 4, "float8_e4m3fn": 1}.get(dtype, 2)
    one = ProductWork("out", batch, m, n, k, dtype, size)
    return Work(size * batch * (m * k + k * n), size * batch * m * n, 0, products=(one,))


def tiled(m: int, n: int, rows: int, columns: int, warps: int = 8, batch: int = 1) -> StaticFacts:
    """A product of matrices, a tile of so many rows and columns a program and a program an SM."""
    programs = batch * -(-m // rows) * -(-n // columns)
    return StaticFacts("k", "sm_90", (programs,), warps, 154, 0, 147456, warps / 64, programs / 132, 16, 16, 2, 1)


@pytest.mark.parametrize(
    ("m", "n", "k", "measured_us"),
    [(8192, 8192, 8192, 1658), (4096, 4096, 4096, 184.5), (2048, 2048, 2048, 29.2), (8192, 8192, 4096, 884)],
)
def test_products_on_an_h200_are_predicted_near_what_was_measured(m: int, n: int, k: int, measured_us: float) -> None:
    """float16, tiles of 128 by 256, 8 warps."""
    found = predict(product(m, n, k), [tiled(m, n, 128, 256)], facts.H200)
    assert found.seconds * 1e6 == pytest.approx(measured_us, rel=0.15)
    assert found.bound_by == "matrix"
    assert found.seconds < predict(product(m, n, k), [tiled(m, n, 64, 64, 4)], facts.H200).seconds


def test_few_rows_wait_for_the_weight_and_many_dtypes_have_a_peak_of_their_own() -> None:
    assert predict(product(16, 8192, 8192), [tiled(16, 8192, 16, 64, 4)], facts.H200).bound_by == "dram"
    by_dtype = [
        floor_seconds(product(4096, 4096, 4096, dtype=dtype), facts.H200)
        for dtype in ("float8_e4m3fn", "bfloat16", "tf32", "float32")
    ]
    assert by_dtype == sorted(by_dtype)
    assert by_dtype[3] == 2 * 4096**3 / facts.H200.fp32_flops


def test_a_last_round_that_few_sms_work_in_costs_a_whole_one() -> None:
    full, more = (product(128 * n, 256, 8192) for n in (132, 133))
    times = [predict(w, [tiled(128 * n, 256, 128, 256)], facts.H200).seconds for w, n in ((full, 132), (more, 133))]
    assert times[1] > 1.8 * times[0]


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), launches(), DEVICES)
def test_a_product_is_never_predicted_below_its_floor(
    m: int, n: int, k: int, one: StaticFacts, device: DeviceFacts
) -> None:
    for dtype in ("float16", "float32"):
        work = product(m, n, k, dtype=dtype)
        assert predict(work, [one], device).seconds >= floor_seconds(work, device)


@pytest.mark.parametrize(("name", "measured_us"), [("conv2d_bn_relu", 367.8), ("conv_transpose2d_bias", 150.3)])
def test_convolutions_of_float32_are_priced_as_the_tf32_that_torch_allows(name: str, measured_us: float) -> None:
    """At float32's own rate the floor was three and five times what an H200 takes, and such kernels were not believed."""
    spec = load_spec(find_spec(name)[0])
    case = next(c for c in spec.performance if "float32" in dict(c.dtypes).values())
    floor_us = floor_seconds(work(lowered(spec), case), facts.H200) * 1e6
    assert 0.2 * measured_us < floor_us < measured_us


def test_a_table_counts_as_far_as_it_is_looked_up() -> None:
    """16,384 of 32,000 rows drawn at random are 12,823 that differ; of 64 they are all."""
    spec = load_spec(find_spec("embedding")[0])
    case = spec.performance[0]
    (table,) = (t for t in spec.inputs if len(t.shape) == 2)
    few = replace(case, sizes=tuple((n, 64 if n == table.shape[0] else s) for n, s in case.sizes))
    plan, (_, columns), (lookups,) = lowered(spec), table.shape, (s for n, s in case.sizes if n == "...")
    for one, rows in ((case, 12823), (few, 64)):
        read = work(plan, one).bytes_read - 8 * lookups[0]
        assert read / (2 * case.size(columns)) == pytest.approx(rows, abs=0.5)


def test_places_that_are_computed_are_not_drawn() -> None:
    """A mirrored image is read whole."""
    spec = load_spec(find_spec("reflection_pad")[0])
    case = spec.performance[0]
    (x,) = spec.inputs
    assert work(lowered(spec), case).bytes_read == 2 * math.prod(case.shape(x.shape))


def test_where_lengths_say_how_much_is_done_nothing_is_a_bound() -> None:
    spec = load_spec(find_spec("attention_varlen")[0])
    done = work(lowered(spec), spec.performance[0])
    assert done.at_most
    assert floor_us(done, facts.H200) is None

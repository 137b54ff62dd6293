"""Which variant the first table names for long rows, and for parts of a chain from the sizes of the whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from references import DEVICE, failures, load, plan_of, sample, schedules

from kernelgen import families, render
from kernelgen.generation import lowered
from kernelgen.plan import KernelPlan, Schedule, TableRow
from kernelgen.spec import parse_spec

CHAIN = """
name: op
summary: A norm of what a convolution comes to.
inputs:
  - {{name: x, shape: [B, C, H, W], dtype: T}}
  - {{name: weight, shape: [{channels}, C, 3, 3], dtype: T, role: parameter}}
  - {{name: scale, shape: [{channels}], dtype: T, role: parameter}}
outputs:
  - {{name: out, shape: {out}, dtype: T}}
dtypes: {{T: [float16, float32]}}
constraints:
  - x.shape[2] >= 3
  - x.shape[3] >= 3
reference: |
  def op(x, weight, scale):
      return {norm}
accuracy: {{shapes: [{{B: 1, C: 1, H: 4, W: 4, N: 1}}]}}
performance: {{shapes: [{{{timed}}}]}}
"""
CONVOLVED = "F.conv2d(x, weight)"
BATCH_NORM = f"F.batch_norm({CONVOLVED}, None, None, scale, None, True)"
GROUP_NORM = f"F.group_norm({CONVOLVED}, 8, scale)"
PLANES = "[B, {channels}, H - 2, W - 2]"


def chain(norm: str, timed: str, channels: str = "N", out: str = PLANES) -> KernelPlan:
    """The last kernel, which reduces what a convolution came to."""
    text = CHAIN.format(norm=norm, timed=timed, channels=channels, out=out.format(channels=channels))
    last = lowered(parse_spec(text)).kernels[-1]
    assert last.family == "reduction"
    return last


def first(plan: KernelPlan, dtype: str = "float32", **sizes: int) -> Schedule:
    """What serves the case that is timed, with some sizes changed."""
    case = next(c for c in plan.spec.performance if dict(c.dtypes)["T"] == dtype)
    changed = tuple((name, sizes.get(name, size)) for name, size in case.sizes)
    return plan.table[families.row_of(plan, replace(case, sizes=changed))].schedule


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("planes", [128, 130, 256])
def test_channels_of_a_batch_are_divided_among_programs(planes: int, dtype: str) -> None:
    """They lie apart in memory, whose places leave programs that wait no registers."""
    found = first(chain(BATCH_NORM, f"B: 128, C: 8, H: {planes}, W: {planes}, N: 64"), dtype)
    assert found.variant == "split"
    assert 1024 <= 64 * found.int("SPLITS") <= 4096


def test_many_channels_have_a_program_each() -> None:
    assert first(chain(BATCH_NORM, "B: 32, C: 8, H: 66, W: 66, N: 512")).variant == "looped"


def test_groups_are_held_by_as_many_programs_as_the_places_of_their_values_leave_registers_for() -> None:
    """Blocks of 100 by 100 cross from one channel to the next anywhere, those of 64 by 64 at multiples of 4096."""
    held = {}
    for planes in (64, 96, 100):
        found = chain(GROUP_NORM, f"B: 64, C: 8, H: {planes + 2}, W: {planes + 2}, N: 16", "8 * N")
        held[planes] = first(found)
        assert held[planes].variant == "cooperative"
        threads = 32 * held[planes].int("num_warps")
        assert held[planes].int("BLOCK_SIZE_N") // threads == (32 if planes == 100 else 64)
        assert held[planes].int("maxnreg") == (128 if planes == 100 else 96)
    assert held[64] == held[96]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_that_no_programs_hold_together_are_divided_or_walked(dtype: str) -> None:
    """A variant that would leave them to one program each does not serve them."""
    found = chain(GROUP_NORM, "B: 64, C: 8, H: 66, W: 66, N: 16", "8 * N")
    for longer in (1, 4, 16, 64, 1024):
        columns = 64 * 64 * 16 * longer
        served = first(found, dtype, N=16 * longer)
        few = first(found, dtype, N=16 * longer, B=2)
        if served.variant == "cooperative":
            registers = 1 << (32 * served.int("num_warps") * served.int("maxnreg") - 1).bit_length()
            assert -(-columns // served.int("BLOCK_SIZE_N")) * registers <= 128 * 65536 // 2
        assert (served.variant, few.variant) in (("cooperative", "cooperative"), ("looped", "split"))
    assert first(found, dtype, N=16 * 1024).variant == "looped"


def test_numbers_of_planes_are_not_copied_ahead() -> None:
    """One by one they would pass through shared memory; rows that hold nothing else are."""
    mean = chain(f"{GROUP_NORM}.mean((1, 2, 3))", "B: 128, C: 8, H: 66, W: 66, N: 16", "8 * N", "[B]")
    assert (first(mean).variant, first(mean)["NUM_STAGES"]) == ("split", 1)
    channels = first(chain(BATCH_NORM, "B: 128, C: 8, H: 130, W: 130, N: 64"))
    assert (channels.variant, channels["NUM_STAGES"]) == ("split", 3)


def test_a_mean_and_a_variance_that_are_left_take_one_walk_and_the_mean_keeps_infinities() -> None:
    found = sample(
        "m = x.mean(-1, keepdim=True)\nreturn m.squeeze(-1), ((x - m) * (x - m)).mean(-1)",
        {"x": "A B: float32"}, {"mean": "A: float32", "variance": "A: float32"}, dtypes=(),
    )  # fmt: skip
    plan = plan_of(found.spec())
    x = torch.randn(6, 70, generator=torch.Generator().manual_seed(0)) + 100
    x[1, 3], x[2, 40], x[3, 3], x[3, 40], x[4, 20] = math.inf, -math.inf, math.inf, -math.inf, math.nan
    wide = x.double()
    wanted = wide.mean(-1), wide.var(-1, correction=0)
    for schedule in schedules(plan):
        text = render.triton_source(plan.with_table((TableRow((), schedule),)))
        assert text.count("for start in") == (schedule.variant in ("looped", "looped_rows", "split")), schedule
        for got, want in zip(load(text).op(x.to(DEVICE)), wanted, strict=True):
            torch.testing.assert_close(got.cpu().double(), want, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_squares_are_summed_in_a_walk_that_another_sum_takes_with_the_mean_known() -> None:
    found = sample(
        "m = x.mean(-1, keepdim=True)\nreturn m.squeeze(-1), ((x - m) * (x - m)).mean(-1), ((x - m) * y).sum(-1)",
        {"x": "A B: float32", "y": "A B: float32"}, dict.fromkeys(("mean", "variance", "total"), "A: float32"),
        dtypes=(),
    )  # fmt: skip
    plan = plan_of(found.spec())
    [looped] = [row.schedule for row in plan.table if row.schedule.variant == "looped"]
    text = render.triton_source(plan.with_table((TableRow((), looped),)))
    assert text.count("for start in") == 2
    assert "block_share" not in text


@pytest.mark.parametrize(
    "unread", ["torch.stack((x, x)).logsumexp(0)", "x.sum(0)", "x.mean(-1)", "torch.cat((x, x), -1).cumsum(-1)"]
)
def test_a_line_that_nobody_reads_does_not_decide_how_kernels_walk(unread: str) -> None:
    """Of a dimension that is in no output no kernel is made: it had no line at all."""
    found = sample(f"unread = {unread}\nreturn torch.sqrt(x.abs())", {"x": "A B"}, {"out": "A B"}, {"A": 3, "B": 5})
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "pointwise"
    assert failures(found, thorough=False) == []

"""Scans of chosen rows: running products whose parts are no float32, and rows that are divided among programs."""

from __future__ import annotations

import math

import pytest
import torch
from references import DEVICE, failures, load, plan_of, sample, schedules

from kernelgen import families, render
from kernelgen.families import scan, scan_look_back
from kernelgen.plan import KernelPlan, TableRow

FORWARD, BACKWARD = "return x.cumprod(-1)", "return x.flip(-1).cumprod(-1).flip(-1)"
INF, NAN = math.inf, math.nan

VANISHED = "back by what plain products allow"
ROWS = {
    "up and back": [2.0**30] * 13 + [2.0**-30] * 17 + [2.0**30] * 6,
    "down and back": [-(2.0**-25)] * 21 + [2.0**25] * 27,
    "through the denormals": [2.0**-110, 1.5] + [0.5] * 45,
    "down and back by less than float32 holds": [2.0**-40] * 4 + [2.0**20] * 4,
    "back over many blocks": [2.0**-40] * 4 + ([1.0] * 15 + [2.0**9]) * 9,
    VANISHED: [2.0**-40] * 4 + [2.0**8, 2.0**8, 0.5, -0.5],
    "of denormals": [2.0**-149, 3 * 2.0**-148, 2.0**120, 2.0**120, -(2.0**60), 2.0**-130, 2.0**-100, 0.75],
    "rounded among denormals": [1.5 * 2.0**-120, 1 + 2.0**-23, 2.0**-20, 1.5, 1.25, 1.75, 2.0**-5, 1.5],
    "greatest": [3.4028234663852886e38, 1.0, 0.5, 2.0, 1.0 + 2.0**-23, 0.25],
    "signs and zeros": [-1.5, 2.0, -0.5, 0.0, -3.0, -2.0, -0.0, 5.0] * 3,
    "zero times infinity": [-2.0, 0.0, 3.0, INF, 1.0],
    "infinity times zero": [-2.0, -INF, 3.0, -0.0, 1.0],
    "infinities": [0.5, INF, -1.0, 1e-30, -INF, 2.0] + [1e-38] * 40,
    "zero before what is large": [0.0] + [1e38] * 40,
    "nothing is a number": [3.0, NAN, 0.0, INF],
    "infinity after what has vanished": [2.0**-40] * 30 + [INF, 2.0, -1.0],
    "infinity after what is small": [2.0**-40] * 20 + [INF, 2.0, -1.0],
    "zero after what is infinite": [2.0**40] * 30 + [0.0, 2.0, -1.0],
}
"""Products of these are exact in float64, but for what has vanished or is infinite in it and stays so."""


@pytest.mark.parametrize("line", [FORWARD, BACKWARD])
def test_running_products_are_those_of_float64_rounded_once(line: str) -> None:
    length = max(map(len, ROWS.values()))
    x = torch.tensor([row + [1.0] * (length - len(row)) for row in ROWS.values()])
    x = x.flip(-1) if line == BACKWARD else x
    directed = x.double().flip(-1).cumprod(-1).flip(-1) if line == BACKWARD else x.double().cumprod(-1)
    plan = plan_of(sample(line, {"x": "A B: float32"}, {"out": "A B: float32"}, dtypes=()).spec())
    tried = schedules(plan)
    walked = scan.default("looped").replace(BLOCK_SIZE_N=16)
    for schedule in (*tried[::2], tried[-1], walked):  # rows in two parts and in four
        out = load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op(x.to(DEVICE)).cpu()
        for name, got, want in zip(ROWS, out, directed.float(), strict=True):
            lost = 2.0**-118 if name == VANISHED else 0
            torch.testing.assert_close(got, want, rtol=0, atol=lost, equal_nan=True, msg=f"{name}: {schedule}")
            if not lost:
                assert torch.equal(got.signbit() | got.isnan(), want.signbit() | want.isnan()), f"{name}: {schedule}"


def test_long_products_of_numbers_around_one_are_those_of_float64() -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.stack([1 + 0.02 * torch.randn(5003, generator=generator), torch.full((5003,), 1.001)])
    # where factors are equal so is what rounding takes from their products, and does not average out
    most = torch.tensor([[128.0], [5003 / 8]]) * 2.0**-24
    plan = plan_of(sample(FORWARD, {"x": "A B: float32"}, {"out": "A B: float32"}, dtypes=()).spec())
    out, want = load(render.triton_source(plan)).op(x.to(DEVICE)).cpu(), x.double().cumprod(-1)
    assert (((out - want) / want).abs() <= most).all()


@pytest.mark.parametrize(
    "shapes", [[(16, 1 << 22)], [(4096, 4096), (8, 1 << 20)], [(512, 1 << 17)], [(64, 20000), (256, 16384)]]
)
def test_few_long_rows_are_divided(shapes: list[tuple[int, int]]) -> None:
    """Rows that fill a device are walked by one program each."""
    found = sample(
        FORWARD.replace("prod", "sum"), {"x": "A B"}, {"out": "A B"}, dtypes=(("T", ("float16", "float32")),)
    )
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    first = scan.of_spec(plan, scan.first_table(plan.body, shapes))
    assert [row.upto for row in first[-1:]] == [()]
    for rows, columns in shapes:
        problem = {"rows": rows, "row_bytes": 2 * columns, "tensor_bytes": 2 * rows * columns}
        schedule = next(row.schedule for row in first if all(problem[name] <= limit for name, limit in row.upto))
        assert (schedule.variant == "split") == (rows <= 64 and shapes != [(64, 20000), (256, 16384)]), first
        if schedule.variant == "split":
            assert 512 <= rows * schedule.int("SPLITS") <= 1024
            assert scan.FAMILY.legal(schedule, columns, 2) is None


@pytest.mark.parametrize(
    "line", ["x.cumsum(-1)", "torch.cummax(x, -1).values", "torch.logcumsumexp(x, -1)", "(x * 2).cumsum(-1) + x"]
)
def test_a_part_waits_for_what_all_before_it_come_to(line: str) -> None:
    """More of them than are read at a time, which are four here."""
    found = sample(f"return {line}", {"x": "A B: float32"}, {"out": "A B: float32"}, dtypes=())
    plan = plan_of(found.spec())
    held = scan_look_back.default().replace(BLOCK_SIZE_N=16)
    text = render.triton_source(plan.with_table((TableRow((), held),)))
    op = load(text.replace(f"num_parts), {scan_look_back.WORDS})", "num_parts), 4)")).op
    x = torch.randn(2, 16 * 10 + 5, device=DEVICE)
    x[1, 100] = math.nan
    wide = x.double()
    wanted = eval(line, {"torch": torch, "x": wide})
    torch.testing.assert_close(op(x).double(), wanted, equal_nan=True, rtol=1e-5, atol=1e-4)


def test_what_programs_leave_is_not_called_like_a_tensor() -> None:
    found = sample(
        "return x.cumsum(-1) * words + words_words", {"x": "A B", "words": "A B", "words_words": "A B"}, {"out": "A B"},
        {"A": 2, "B": 37},
    )  # fmt: skip
    assert failures(found, variant="cooperative") == []
    found = sample("words = x.cumsum(-1)\nreturn words", {"x": "A B"}, {"words": "A B"}, {"A": 2, "B": 37})
    assert failures(found, variant="cooperative") == []


def test_scans_that_one_float_does_not_stand_for_have_no_such_variant() -> None:
    lines = [
        "x.cumprod(-1)",
        "x.flip(-1).cumsum(-1).flip(-1)",
        "x.to(torch.int64).cumsum(-1)",
        "x.cumsum(-1).cumsum(-1)",
    ]
    for line, kind in zip(lines, ["float32", "float32", "int64", "float32"], strict=True):
        plan = plan_of(sample(f"return {line}", {"x": "A B: float32"}, {"out": f"A B: {kind}"}, dtypes=()).spec())
        assert "cooperative" not in families.family_of(plan).variants(plan.body), line


ACROSS = [
    "return x.flatten(1).cumsum(-1).view(x.shape) * w",
    "return x.cumsum(1)", "return x.cumsum(0)", "return x.flip(1).cumsum(1).flip(1)", "return x.cumprod(1)",
    "return F.pad(x.cumsum(1), (0, 0, 1, 0))[:, :-1]", "y = torch.exp(x.cumsum(1)) * x\nreturn y - w",
    "return torch.cummax(x, 1).values", "return torch.cummin(x, 0).indices", "return torch.logcumsumexp(x, 1)",
    "return x.int().cumsum(1)",
]  # fmt: skip


@pytest.mark.parametrize("line", ACROSS)
def test_scans_along_another_dimension_than_the_last(line: str) -> None:
    integers = "indices" in line or "int" in line
    found = sample(
        line, {"x": "A B D", "w": "D"}, {"out": f"A B D: {'int64' if integers else 'T'}"},
        {"A": 3, "B": 37, "D": 5}, {"A": 2, "B": 1, "D": 70},
    )  # fmt: skip
    assert not (said := failures(found, thorough=False)), "\n\n".join([line, *said])
    # the lanes of a program lie along memory, but for products, which are pairs
    assert scan.variants(plan_of(found.spec()).body)[0] == (
        "row" if "cumprod" in line or "flatten" in line else "columns"
    )


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.ones_like(x).triu(1).flip(-1).cumsum(-1) * x",
        "return torch.where(torch.ones_like(x, dtype=torch.bool).tril().flip(-1), x, 0).cumsum(-1)",
        "p = torch.arange(x.shape[1], device=x.device)\nreturn x.cumsum(-1) * p.flip(-1)",
        "p = torch.arange(x.shape[1], device=x.device)\nreturn (x.flip(-1) * p).cumsum(-1).flip(-1).to(x.dtype)",
        "p = torch.arange(x.shape[1], device=x.device)\nreturn torch.where(p > 2, x, 1).flip(-1).cumsum(-1).flip(-1)",
    ],
)
def test_places_beside_a_scan_are_counted_from_the_end_of_a_row_that_is_turned(lines: str) -> None:
    """What no tensor holds was taken as if it were not turned: a triangle of ones, and the numbers of the columns."""
    found = sample(lines, {"x": "A B"}, {"out": "A B"}, {"A": 2, "B": 17}, {"A": 3, "B": 5})
    assert failures(found, thorough=False) == []

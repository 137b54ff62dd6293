"""Rows that several programs hold and wait for one another: side by side in the interpreter, and on a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from references import Sample, failures, load, plan_of, sample

from kernelgen import families, render
from kernelgen.families import cooperative
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import Plan, TableRow
from kernelgen.spec.model import Case

X, OUT = {"x": "... D"}, {"out": "... D"}
LENGTHS = tuple({"...": (2,), "D": columns} for columns in (37, 64, 1))
"""In parts of 16: with a short last one, in whole ones, in one."""
SAMPLES: dict[str, Sample] = {
    "softmax": sample("return torch.softmax(x, -1)", X, OUT, *LENGTHS),
    "log_softmax": sample("return torch.log_softmax(x * 2, -1)", X, OUT, *LENGTHS),
    "less logsumexp": sample("return x - torch.logsumexp(x, -1, keepdim=True)", X, OUT, *LENGTHS),
    "layer_norm": sample(
        "return F.layer_norm(x, (x.shape[-1],), w, b)", {"x": "... D", "w": "D", "b": "D"}, OUT, *LENGTHS
    ),
    "moments kept": sample(
        "m = x.mean(-1, keepdim=True)\nv = ((x - m) * (x - m)).mean(-1, keepdim=True)\n"
        "return (x - m) * torch.rsqrt(v + 1e-5), m.squeeze(-1), v.squeeze(-1)",
        X, {"out": "... D", "mean": "...", "variance": "..."}, *LENGTHS,
    ),
    "batch_norm": sample(
        "return F.batch_norm(x, None, None, w, None, True)", {"x": "A B H W", "w": "B"}, {"out": "A B H W"},
        {"A": 2, "B": 3, "H": 5, "W": 4}, {"A": 3, "B": 2, "H": 1, "W": 17},
    ),
    "two walks": sample(
        "y = x - x.amax(-1, keepdim=True)\nreturn y / (y.abs().sum(-1, keepdim=True) + 1), x.amin(-1)",
        X, {"out": "... D", "least": "..."}, *LENGTHS,
    ),
    "three walks": sample(
        "y = x - x.mean(-1, keepdim=True)\nz = y / (y.abs().amax(-1, keepdim=True) + 1)\n"
        "return z * z.sum(-1, keepdim=True)",
        X, OUT, *LENGTHS,
    ),
    "never negative": sample("return torch.softmax(x.abs(), -1), x - torch.logsumexp(x * x, -1, keepdim=True)", X,
                             {"a": "... D", "b": "... D"}, *LENGTHS),
    "names": sample(
        "s_part = torch.tanh(x)\ns = s_part.sum(-1, keepdim=True)\n_ = s_part * 2\n"
        "m_shift = _ + x\nm = m_shift.mean(-1, keepdim=True)\nd = m_shift - m\n"
        "return s_part + s + _, d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1)",
        X, {"a": "... D", "b": "... D"}, *LENGTHS,
    ),
    "names of tensors": sample(
        "return torch.softmax(x + row_max_part, -1) * row_max_part + row_max_words",
        {"x": "... D", "row_max_part": "... D", "row_max_words": "... D"}, OUT, *LENGTHS,
    ),
    "product": sample("return x * x.tanh().prod(-1, keepdim=True)", X, OUT, *LENGTHS),
}  # fmt: skip


def held(plan: Plan, **changes: int) -> str:
    schedule = cooperative.default().replace(**changes)
    return render.triton_source(plan.with_table((TableRow((), schedule),)))


@pytest.mark.parametrize("name", SAMPLES)
def test_parts_of_a_row_are_joined(name: str) -> None:
    assert failures(SAMPLES[name], variant="cooperative") == []


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "two walks"])
def test_special_values_reach_the_whole_row_and_no_other(name: str) -> None:
    op = load(held(plan_of(SAMPLES[name].spec()), BLOCK_SIZE_N=16)).op
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(6, 50, device=device)
    x[1, 40], x[2, 3], x[3, 20:40], x[4] = math.nan, math.inf, -math.inf, -math.inf
    scales = [torch.ones(50, device=device), torch.zeros(50, device=device)][: len(SAMPLES[name].inputs) - 1]
    found, _ = op(x, *scales) if name == "two walks" else (op(x, *scales), None)
    y = x - x.amax(-1, keepdim=True)
    wanted = {
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: torch.layer_norm(x, (50,)),
        "two walks": lambda: y / (y.abs().sum(-1, keepdim=True) + 1),
    }
    torch.testing.assert_close(found, wanted[name](), equal_nan=True)


def test_the_same_rows_give_the_same_bits() -> None:
    op = load(held(plan_of(SAMPLES["layer_norm"].spec()), BLOCK_SIZE_N=16)).op
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w = torch.randn(3, 200, device=device), torch.randn(200, device=device)
    first = op(x, w, w)
    assert all(torch.equal(first, op(x, w, w)) for _ in range(5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="programs run side by side on a GPU")
def test_where_programs_run_one_after_the_other_none_waits() -> None:
    """A row of one part needs no others; longer ones are walked, as on a device that is too small for them."""
    module = load(held(plan_of(SAMPLES["softmax"].spec()), BLOCK_SIZE_N=16), together=False)
    assert module.num_waiting(torch.device("cpu"), {"num_warps": 4, "maxnreg": 80}) == 1
    for columns in (16, 17, 100):
        x = torch.randn(2, columns)
        torch.testing.assert_close(module.op(x), torch.softmax(x, -1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="programs run side by side on a GPU")
@pytest.mark.parametrize("name", SAMPLES)
def test_programs_whose_others_never_run_reduce_the_parts_of_these_as_well(name: str) -> None:
    """One after the other every program but the last would wait for ever; the bits are those of programs side by side."""
    found = SAMPLES[name]
    text = held(plan_of(found.spec()), BLOCK_SIZE_N=16)
    assert f", {cooperative.PATIENCE})" in text
    alone = load(text.replace(f", {cooperative.PATIENCE})", ", 1)"), together=False)
    alone.num_waiting = lambda device, options: 2**20  # type: ignore[attr-defined]
    for sizes in found.sizes:
        case = Case(tuple(sizes.items()), (("T", "float32"),))
        tensors = [torch.randn(case.shape(t.shape)) for t in found.inputs]
        for first, second in zip(as_tuple(alone.op(*tensors)), as_tuple(load(text).op(*tensors)), strict=True):
            assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_row_of_more_programs_than_run_at_once_comes_to_its_end() -> None:
    """As where a context has fewer multiprocessors than the device says it has."""
    module = load(held(plan_of(SAMPLES["softmax"].spec()), BLOCK_SIZE_N=2048))
    module.num_waiting = lambda device, options: 2**20  # type: ignore[attr-defined]
    x = torch.randn(2, 2**25, device="cuda")
    torch.testing.assert_close(module.op(x), torch.softmax(x, -1))


def test_a_device_holds_as_many_programs_as_its_registers_allow() -> None:
    module = load(held(plan_of(SAMPLES["softmax"].spec())), together=False)
    module.num_sms = lambda device: 132
    device = torch.device("cpu")
    assert module.num_waiting(device, {"num_warps": 4, "maxnreg": 128}) == 132 * 4 // 2
    assert module.num_waiting(device, {"num_warps": 4, "maxnreg": 80}) == 132 * 4 // 2  # as many as of 128
    assert module.num_waiting(device, {"num_warps": 8, "maxnreg": 96}) == 132 * 2 // 2
    assert module.num_waiting(device, {"num_warps": 1, "maxnreg": 64}) == 132 * 16 // 2


def test_a_search_begins_with_such_a_schedule_where_a_device_holds_the_rows() -> None:
    plan = plan_of(SAMPLES["softmax"].spec())

    def begins(columns: int) -> bool:
        case = Case((("...", (9,)), ("D", columns)), (("T", "float16"),))
        return "cooperative" in {schedule.variant for schedule in families.variants(plan, [case])}

    assert [begins(2**n) for n in (12, 13, 21, 22)] == [False, True, True, False]
    longest = Case((("...", (9,)), ("D", 2**29)), (("T", "float16"),))
    assert families.legal(plan, cooperative.default(), longest) is None  # walked, by one program a row


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("rows", "columns", "block", "streams"), [(96, 131072, 8192, 8), (12, 2**21, 8192, 2)])
def test_launches_on_several_streams_come_to_their_end(rows: int, columns: int, block: int, streams: int) -> None:
    op = load(held(plan_of(SAMPLES["softmax"].spec()), BLOCK_SIZE_N=block)).op
    inputs = [torch.randn(rows, columns, device="cuda") for _ in range(streams)]
    lanes = [torch.cuda.Stream() for _ in range(streams)]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        found = []
        for x, lane in zip(inputs, lanes, strict=True):
            with torch.cuda.stream(lane):
                found.append(op(x))
    torch.cuda.synchronize()
    for x, out in zip(inputs, found, strict=True):
        torch.testing.assert_close(out, torch.softmax(x, -1))

"""Results that are written into inputs: by the kernels where that is safe, else by a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from references import Sample, failures, plan_of, sample, schedules

from kernelgen import render
from kernelgen.families.kernel import body_of
from kernelgen.plan import TableRow

SIZES = ({"N": 3, "D": 21}, {"N": 1, "D": 1}, {"N": 5, "D": 40})


def written(lines: str, *into: str, also: str = "", **inputs: str) -> Sample:
    """A reference that returns what it writes into some inputs, and something else of the shape `also` behind."""
    given = {"x": "N D", **inputs}
    outputs = {f"new_{name}": given[name] for name in into} | ({"out": also} if also else {})
    found = sample(lines, given, outputs, *SIZES, constraints=tuple(f"{name}.is_contiguous()" for name in into))
    changed = [replace(t, into=t.name.removeprefix("new_") if t.name != "out" else None) for t in found.outputs]
    return replace(found, outputs=tuple(changed))


DIRECT = {
    "elements": written("return x * 2 + w", "x", w="N D"),
    "two of them": written("return x + w, x - w", "x", "w", w="N D"),
    "by the reference itself": written("x.mul_(2).add_(w)\nreturn x", "x", w="N D"),
    "rows that are reduced": written("return (x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype)", "x"),
    "a mask": written("return torch.where(w > 0, w * 3, x)", "x", w="N D"),
    "rows by an index": written("return x.index_copy(0, i, w)", "x", w="K D", i="K: int64 < N"),
}  # fmt: skip
COPIED = {
    "neighbours": written("return x + x.roll(1, 1)", "x"),
    "other rows": written("return x + x.flip(0)", "x"),
    "columns and rows": written("return x.float().sum(0), x * w", "w", w="D: float32", also="N D: float32"),
    "numbers of rows": written("return w + 1, x * w[:, None]", "w", w="N", also="N D"),
    "several kernels": written("return x - x.amax(), x * x.amax(1, keepdim=True)", "x", also="N D"),
    "a scan": written("return x.cumsum(0)", "x"),
    "turned": written("return x + w.T", "x", w="D N"),
}


def with_k(found: Sample) -> Sample:
    return replace(found, sizes=tuple({**s, "K": k} for s, k in zip(found.sizes, (2, 1, 7), strict=True)))


DIRECT["rows by an index"] = with_k(DIRECT["rows by an index"])


@pytest.mark.parametrize("name", [*DIRECT, *COPIED])
def test_the_inputs_hold_the_results(name: str) -> None:
    assert failures({**DIRECT, **COPIED}[name], thorough=False) == []


@pytest.mark.parametrize("name", DIRECT)
def test_kernels_write_there_where_nothing_else_reads_it(name: str) -> None:
    text = render.triton_source(plan_of(DIRECT[name].spec()))
    assert "copy_(" not in text
    assert "new_x_ptr" not in text


@pytest.mark.parametrize("name", ["neighbours", "other rows", "several kernels"])
def test_what_others_read_is_copied_after_them(name: str) -> None:
    assert "    x.copy_(new_x)\n" in render.triton_source(plan_of(COPIED[name].spec()))


def test_a_mask_is_that_of_the_store_and_nothing_is_read() -> None:
    text = render.triton_source(plan_of(DIRECT["a mask"].spec()))
    assert "tl.load(x_ptr" not in text
    assert "mask=mask & (w > 0)" in text


def test_programs_that_reduce_for_one_another_write_elsewhere() -> None:
    """A program that waited in vain reads what another may have written."""
    plan = plan_of(DIRECT["rows that are reduced"].spec())
    variants = {schedule.variant: schedule for schedule in schedules(plan)}
    assert body_of(plan)
    copied = {
        name for name, schedule in variants.items()
        if "copy_(" in render.triton_source(plan.with_table((TableRow((), schedule),)))
    }  # fmt: skip
    assert "cooperative" in copied
    assert not copied & {"row", "rows", "looped", "split"}

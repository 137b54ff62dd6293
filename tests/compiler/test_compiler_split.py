"""Rows that are divided among programs and written by others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from references import DEVICE, load, plan_of, sample

from kernelgen import render
from kernelgen.families import split_schedules
from kernelgen.families.forms import SPLIT
from kernelgen.plan import TableRow

IN_ORDER = "in memory order"


def divided(line: str, shape: str, block: int) -> str:
    plan = plan_of(sample(f"return {line}", {"x": f"{shape}: float32"}, {"out": f"{shape}: float32"}, dtypes=()).spec())
    schedule = split_schedules.default(SPLIT).replace(BLOCK_SIZE_N=block, SPLITS=4)
    return render.triton_source(plan.with_table((TableRow((), schedule),)))


@pytest.mark.parametrize(
    "line", ["F.batch_norm(x, None, None, training=True)", "x / x.abs().amax((0, 2), keepdim=True)"]
)
@pytest.mark.parametrize(("plane", "block"), [(50, 16), (48, 16), (16, 16), (7, 16), (33, 64), (1, 16)])
def test_tiles_of_channels_are_written_in_the_order_of_memory(line: str, plane: int, block: int) -> None:
    """Tiles that fit a plane, that do not, and that are larger; every element is written, however they lie."""
    text = divided(line, "B C S", block)
    assert IN_ORDER in text
    for batch in (1, 3, 5):
        x = torch.randn(batch, 3, plane, device=DEVICE)
        if batch * plane > 1:
            wanted = eval(line, {"F": F, "x": x.double()})
            torch.testing.assert_close(load(text).op(x).double(), wanted, rtol=1e-4, atol=1e-4)


def test_tiles_of_rows_are_in_the_order_of_memory_as_they_are() -> None:
    assert IN_ORDER not in divided("torch.softmax(x, -1)", "B C S", 16)
    assert IN_ORDER not in divided("x / x.abs().amax((1, 2), keepdim=True)", "B C S", 16)

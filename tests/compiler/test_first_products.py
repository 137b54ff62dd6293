"""What convolutions and attention begin with at small sizes, and what their masks leave to be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from references import failures, sample

from kernelgen import families, generation
from kernelgen.analysis import work
from kernelgen.plan import KernelPlan, Schedule
from kernelgen.spec import find_spec, load_spec
from kernelgen.spec.model import Case


def plan_of(name: str) -> KernelPlan:
    plan = generation.plan_of(load_spec(find_spec(name)[0]), Path("nowhere"))
    assert isinstance(plan, KernelPlan)
    return plan


def begun(plan: KernelPlan, **sizes: int) -> Schedule:
    """The schedule of the first table for a case in half precision."""
    case = Case(tuple(sizes.items()), (("T", "float16"),), "")
    return plan.table[families.row_of(plan, case)].schedule


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "splits"),
    [(4, 4, 4096, 32), (32, 16, 2048, 16), (4, 4, 512, 1), (100, 4, 4096, 1), (4, 17, 4096, 1)],
)
def test_few_queries_of_few_heads_share_many_keys_among_programs(
    heads: int, queries: int, keys: int, splits: int
) -> None:
    found = begun(plan_of("attention"), B=1, H=heads, S=queries, L=keys, D=64, E=64)
    assert (found.variant == "split", found.get("SPLITS") or 1) == (splits > 1, splits)


def test_few_queries_that_share_keys_are_right() -> None:
    lines = "return torch.softmax((q @ k.mT).float() * 0.25, -1).to(q.dtype) @ v"
    found = sample(
        lines, {"q": "H S D", "k": "H L D", "v": "H L D"}, {"out": "H S D"},
        {"H": 2, "S": 3, "L": 1100, "D": 16}, {"H": 1, "S": 16, "L": 1030, "D": 16},
    )  # fmt: skip
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize(("size", "channels", "columns"), [(56, 256, 64), (56, 1024, 128), (128, 256, 128)])
def test_a_convolution_of_few_pixels_has_narrow_tiles(size: int, channels: int, columns: int) -> None:
    plan = generation.plan_of(load_spec(find_spec("conv2d_bias_relu")[0]), Path("nowhere"))
    assert isinstance(plan, KernelPlan)
    found = begun(plan, B=1, C=64, H=size, W=size, J=channels)
    assert (found.variant, found.int("BLOCK_N")) == ("boxes", columns)


def test_steps_between_products_are_done_of_what_masks_leave() -> None:
    """A window of 128 of 16384 keys leaves less than a hundredth of a causal mask's half."""
    sizes = (("B", 1), ("H", 16), ("S", 16384), ("D", 64))
    case = Case(sizes, (("T", "float16"),), "")
    window, causal = (work(plan_of(name), case).flops for name in ("attention_window", "attention_causal"))
    elements = 16 * 16384 * 16384
    assert 0.4 * elements < causal < 20 * elements
    assert window < 0.02 * causal

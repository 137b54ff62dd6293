"""Attention of packed sequences: one kernel, whose tiles walk over the keys of their own sequences alone; and what is said
of ends and pages that are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from references import DEVICE, load, plan_of, sample

from kernelgen import families, render
from kernelgen.families.kernel import body_of
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan, Schedule, TableRow
from kernelgen.spec import parse_spec

PACKED = {"q": "T 2 D", "k": "U 2 D", "v": "U 2 E", "cu_q": "P: int32", "cu_k": "P: int32"}
ALONE = {"q": "T 2 D", "k": "T 2 D", "v": "T 2 E", "cu": "P: int32"}
PLACES = "row = torch.arange(q.shape[0], device=q.device)\ncol = torch.arange(k.shape[0], device=q.device)\n"
TURNED = "q, k, v = (x.transpose(0, 1) for x in (q, k, v))\n"
SDPA = "return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1)"
BY_HAND = (
    "s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float('-inf'))\n"
    "return (torch.softmax(s, -1).to(q.dtype) @ v).transpose(0, 1)"
)
BUCKETS = (
    "part = torch.bucketize(row, cu_q, right=True)\nseen = part[:, None] == torch.bucketize(col, cu_k, right=True)\n"
)
FORMS = {
    "full": (PLACES + BUCKETS + TURNED + SDPA, PACKED, False),
    "causal": (
        PLACES + BUCKETS + "last = row + cu_k[part] - cu_q[part]\nseen = seen & (col <= last[:, None])\n" + TURNED + SDPA,
        PACKED, True,
    ),
    "causal among themselves": (
        PLACES + "part = torch.searchsorted(cu, row, right=True)\nseen = part[:, None] == part\n"
        "seen = seen & (col <= row[:, None])\n" + TURNED + BY_HAND, ALONE, True,
    ),
    "by ends": (
        PLACES + "part = torch.bucketize(row, cu_q, right=True)\nseen = (col >= cu_k[part - 1][:, None])"
        " & (col < cu_k[part][:, None])\n" + TURNED + SDPA, PACKED, False,
    ),
}  # fmt: skip
LENGTHS = (
    ((21, 30), (37, 5)), ((5, 0, 40, 1, 17), (9, 3, 33, 0, 20)), ((0, 7, 0, 0), (2, 8, 0, 3)), ((16, 16, 16), (16, 32, 48)),
    ((1,) * 19, (2,) * 19), ((130,), (257,)),
)  # fmt: skip
"""Of queries and of keys."""


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def wrappers(name: str) -> Iterator[tuple[Schedule, Callable[..., Any]]]:
    lines, inputs, _ = FORMS[name]
    plan = plan_of(sample(lines, inputs, {"out": "T 2 E"}).spec())
    assert isinstance(plan, KernelPlan), [k.family for k in plan.kernels]
    family = families.family_of(plan)
    for variant in family.variants(body_of(plan)):
        schedule = family.default(variant).replace(BLOCK_M=16, BLOCK_N=16)
        yield schedule, load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op


def ends(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


def one_by_one(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: bool) -> torch.Tensor:
    """Sequence by sequence in float64; a query without keys is 0."""
    found = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64, device=q.device)
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        scores = torch.einsum("mhd,nhd->hmn", q[a:b].double(), k[c:d].double()) * q.shape[-1] ** -0.5
        if causal:
            hidden = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).triu((d - c) - (b - a) + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        found[a:b] = torch.einsum("hmn,nhe->mhe", scores.softmax(-1).nan_to_num(0.0), v[c:d].double())
    return found


def tensors(name: str, lengths: tuple[tuple[int, ...], tuple[int, ...]]) -> list[torch.Tensor]:
    of_q, of_k = lengths if FORMS[name][1] is PACKED else lengths[:1] * 2
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(sum(n), 2, size, generator=generator).to(DEVICE) for n, size in ((of_q, 24), (of_k, 24), (of_k, 40))
    )
    return [q, k, v, ends(of_q), ends(of_k)]


@pytest.mark.parametrize("name", FORMS)
def test_sequences_of_any_lengths(name: str) -> None:
    for schedule, op in wrappers(name):
        for lengths in LENGTHS:
            given = tensors(name, lengths)
            right = one_by_one(*given, causal=FORMS[name][2])
            off = (op(*given[: len(FORMS[name][1])]).double() - right).abs().max()
            assert float(off) <= 4e-6, (schedule, lengths)


@pytest.mark.parametrize("name", FORMS)
def test_a_tile_of_one_sequence_reads_no_other_keys(name: str) -> None:
    """Of a weight of 0 and NaN the product would be NaN."""
    for schedule, op in wrappers(name):
        given = tensors(name, ((16, 32, 16), (16, 32, 16)))
        given[1][:16], given[2][:16], given[1][48:], given[2][48:] = (torch.nan,) * 4
        out = op(*given[: len(FORMS[name][1])])
        assert bool(out[16:48].isfinite().all()), schedule
        assert bool(out[:16].isnan().all()), schedule


def test_a_search_for_something_else_stays_torchs() -> None:
    """Torch's own decomposition takes as many steps as the ends that are traced need."""
    found = sample("return torch.bucketize(x, y) * 2", {"x": "A: int32", "y": "B: int32"}, {"out": "A: int64"})
    op = load(render.triton_source(plan_of(found.spec()))).op
    x, y = torch.randint(0, 9999, (70,), dtype=torch.int32, device=DEVICE), torch.arange(0, 9999, device=DEVICE).int()
    assert torch.equal(op(x, y), torch.bucketize(x, y) * 2)


OFF = {
    "ends that fall": ("attention_varlen", [0, 9, 4, 20], "cu_seqlens_q must never fall from 0 to q.shape[0], 20, got [0, 9, 4, 20]"),
    "ends that end short": ("attention_varlen", [0, 4, 9, 19], "cu_seqlens_q must never fall from 0 to q.shape[0], 20, got [0, 4, 9, 19]"),
    "ends that begin late": ("attention_varlen", [1, 4, 9, 20], "cu_seqlens_q must never fall from 0 to q.shape[0], 20, got [1, 4, 9, 20]"),
    "a page beyond the cache": ("attention_paged_decode", [[0, 3]], "block_table must hold indices from 0 and below k_cache.shape[0], 3, got 0 to 3"),
    "a page before it": ("attention_paged_decode", [[-1, 2]], "block_table must hold indices from 0 and below k_cache.shape[0], 3, got -1 to 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", OFF)
def test_ends_and_pages_are_looked_at_where_the_spec_says_so(name: str) -> None:
    operator, integers, message = OFF[name]
    path = Path(__file__).parents[2] / "specs" / f"{operator}.yaml"
    text = re.sub(r"(offsets: M|below: P)", r"\1, checked: true", path.read_text("utf-8"))
    wrapper = getattr(load(render.triton_source(plan_of(parse_spec(text)))), operator)
    checked = torch.tensor(integers, dtype=torch.int32, device=DEVICE)
    if operator == "attention_varlen":
        q, k = torch.randn(20, 1, 16, device=DEVICE), torch.randn(9, 1, 16, device=DEVICE)
        given = (q, k, k, checked, torch.tensor([0, 4, 4, 9], device=DEVICE).int())
    else:
        q, cache = torch.randn(1, 32, 1, 16, device=DEVICE), torch.randn(3, 8, 64, 16, device=DEVICE)
        given = (q, cache, cache, checked, torch.tensor([70], device=DEVICE).int())
    with pytest.raises(ValueError, match=re.escape(f"{operator}: {message}")) as refused:
        wrapper(*given)
    assert "\n" not in str(refused.value)

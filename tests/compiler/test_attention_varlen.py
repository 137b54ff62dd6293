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

from kernelgen import families, frontend, render
from kernelgen.backward import backward
from kernelgen.families.kernel import body_of
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, Schedule, TableRow
from kernelgen.spec import parse_spec
from kernelgen.spec.model import OperatorSpec

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


def derived(name: str) -> list[tuple[OperatorSpec, Callable[..., Any]]]:
    """The forward that saves and the gradients of a form, in small blocks."""
    lines, inputs, _ = FORMS[name]
    spec = sample(lines, inputs, {"out": "T 2 E"}).spec()
    found = []
    for part in backward(spec, frontend.trace(spec)[0]).parts:
        plan = plan_of(part.spec)
        assert isinstance(plan, KernelPlan), [k.family for k in plan.kernels]
        schedule = plan.table[-1].schedule.replace(BLOCK_M=16, BLOCK_N=16)
        text = render.triton_source(plan.with_table((TableRow((), schedule),)))
        found.append((part.spec, getattr(load(text), part.spec.name)))
    return found


def run(parts: list[tuple[OperatorSpec, Callable[..., Any]]], known: dict[str, Any]) -> dict[str, Any]:
    for spec, kernel in parts:
        results = as_tuple(kernel(*(known[t.name] for t in spec.inputs)))
        known = known | dict(zip((o.name for o in spec.outputs), results, strict=True))
    return known


@pytest.mark.parametrize("name", FORMS)
def test_gradients_of_sequences_of_any_lengths(name: str) -> None:
    parts = derived(name)
    for lengths in LENGTHS[:5]:
        given = tensors(name, lengths)
        leaves = [x.double().requires_grad_() for x in given[:3]]
        grad = torch.randn(len(given[0]), 2, 40, generator=torch.Generator().manual_seed(4)).to(DEVICE)
        exact = one_by_one(*leaves, *given[3:], causal=FORMS[name][2])
        right = torch.autograd.grad(exact, leaves, grad.double(), materialize_grads=True)
        got = run(parts, dict(zip(FORMS[name][1], given, strict=False)) | {"grad_out": grad})
        for tensor, ref in zip("qkv", right, strict=True):
            off = (got[f"grad_{tensor}"].double() - ref.nan_to_num(0.0)).abs().max()
            assert float(off) <= 2e-5, (tensor, lengths)


def test_gradients_of_one_sequence_read_no_other() -> None:
    """Neither keys nor queries; of a causal form, whose queries know where keys end by what they find themselves."""
    parts, given = derived("causal"), tensors("causal", ((16, 32, 16), (16, 32, 16)))
    known = dict(zip(PACKED, given, strict=True)) | {"grad_out": torch.ones(64, 2, 40, device=DEVICE)}
    for name in ("q", "k", "v", "grad_out"):
        known[name][:16], known[name][48:] = torch.nan, torch.nan
    got = run(parts, known)
    assert all(bool(got[f"grad_{tensor}"][16:48].isfinite().all()) for tensor in "qkv")
    assert all(bool(got[f"grad_{tensor}"][:16].isnan().all()) for tensor in "qkv")


def test_a_search_for_something_else_stays_torchs() -> None:
    """Torch's own decomposition takes as many steps as the ends that are traced need."""
    found = sample("return torch.bucketize(x, y) * 2", {"x": "A: int32", "y": "B: int32"}, {"out": "A: int64"})
    op = load(render.triton_source(plan_of(found.spec()))).op
    x, y = torch.randint(0, 9999, (70,), dtype=torch.int32, device=DEVICE), torch.arange(0, 9999, device=DEVICE).int()
    assert torch.equal(op(x, y), torch.bucketize(x, y) * 2)


OFF = {
    "ends that fall": ("attention_varlen", [0, 9, 4, 20], "cu_seqlens_q must begin with 0, be non-decreasing and end at q.shape[0], 20, got [0, 9, 4, 20]"),
    "ends that end short": ("attention_varlen", [0, 4, 9, 19], "cu_seqlens_q must begin with 0, be non-decreasing and end at q.shape[0], 20, got [0, 4, 9, 19]"),
    "ends that begin late": ("attention_varlen", [1, 4, 9, 20], "cu_seqlens_q must begin with 0, be non-decreasing and end at q.shape[0], 20, got [1, 4, 9, 20]"),
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

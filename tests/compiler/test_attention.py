"""Attention as one kernel: every form of it against float64, and which blocks of keys a mask leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import DEVICE, Sample, load, plan_of, sample
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelgen import families, render
from kernelgen.errors import SpecError
from kernelgen.families.attention import LONGEST_HEAD
from kernelgen.families.attention.schedules import LIBRARY, room
from kernelgen.families.kernel import body_of
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, Schedule, TableRow

WITHIN = {"float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""What a result may be off by, as a part of the largest."""
SIZES = {"B": 2, "H": 2, "S": 21, "L": 37, "D": 24, "E": 40}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def attention(lines: str, inputs: dict[str, str] | None = None, out: str = "B H S E", **more: Any) -> Sample:
    given = {"q": "B H S D", "k": "B H L D", "v": "B H L E"} | (inputs or {})
    outputs = {"out": out, **more.pop("outputs", {})}
    used = " ".join(text.partition(":")[0] for text in (*given.values(), *outputs.values())).replace("*", " ").split()
    return sample(lines, given, outputs, {name: size for name, size in SIZES.items() if name in used}, **more)


SQUARE = {"k": "B H S D", "v": "B H S E"}
PLACES = "row = torch.arange(q.shape[2], device=q.device)[:, None]\ncol = torch.arange(k.shape[2], device=q.device)\n"
SCORES = "s = q @ k.mT * q.shape[-1] ** -0.5\n"
WEIGH = "return torch.softmax(s, -1).to(q.dtype) @ v"
GROUPED = {"q": "B 6 S D", "k": "B 2 L D", "v": "B 2 L E"}
SDPA = "return F.scaled_dot_product_attention"
FORMS = {
    "sdpa": attention(f"{SDPA}(q, k, v)"),
    "sdpa, causal": attention(f"{SDPA}(q, k, v, is_causal=True)"),
    "sdpa of a scale": attention(f"{SDPA}(q, k, v, scale=0.3)"),
    "sdpa with a bias": attention(f"{SDPA}(q, k, v, attn_mask=m)", {"m": "H S L"}),
    "sdpa with heads that share keys": attention(f"{SDPA}(q, k, v, enable_gqa=True)", GROUPED, "B 6 S E"),
    "sdpa of three dimensions": attention(f"{SDPA}(q, k, v)", {"q": "B S D", "k": "B L D", "v": "B L E"}, "B S E"),
    "sdpa of two": attention(f"{SDPA}(q, k, v)", {"q": "S D", "k": "L D", "v": "L E"}, "S E"),
    "a product, a softmax, a product": attention(f"{SCORES}{WEIGH}"),
    "baddbmm with factors": attention(
        "s = torch.baddbmm(m, q, k.transpose(1, 2), beta=0.5, alpha=0.2)\nreturn torch.bmm(torch.softmax(s, -1), v)",
        {"q": "B S D", "k": "B L D", "v": "B L E", "m": "B S L"}, "B S E",
    ),
    "one query whose dimension comes and goes": attention(
        f"{SDPA}(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]", {"q": "B 6 D", "k": "B 2 L D", "v": "B 2 L E"}, "B 6 E"
    ),
    "heads of two sizes": sample(
        "n = x.shape[2] // 12\nq, k, v = (y.view(*x.shape[:2], 4, n).transpose(1, 2) for y in x.split(4 * n, -1))\n"
        f"{SCORES}{WEIGH}", {"x": "B S 24*H"}, {"out": "B 4 S 2*H"}, {"B": 2, "S": 21, "H": 3},
    ),
    "divided by a root": attention("s = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])\n" + WEIGH),
    "einsum": attention(
        "s = torch.einsum('bshd,blhd->bhsl', q, k) * 0.2\nreturn torch.einsum('bhsl,blhe->bshe', s.softmax(-1), v)",
        {"q": "B S H D", "k": "B L H D", "v": "B L H E"}, "B S H E",
    ),
    "softmax by hand": attention(
        f"{SCORES}e = torch.exp(s - s.amax(-1, keepdim=True))\nreturn (e / e.sum(-1, keepdim=True)).to(q.dtype) @ v"
    ),
    "divided at the end": attention(
        f"{SCORES}e = torch.exp(s - s.amax(-1, keepdim=True))\nreturn ((e.to(q.dtype) @ v) / e.sum(-1, keepdim=True))"
    ),
    "scaled queries": attention("s = (q * q.shape[-1] ** -0.5) @ k.mT\n" + WEIGH),
    "triu of ones": attention(
        f"{SCORES}m = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)\n"
        f"s = s.masked_fill(m, float('-inf'))\n{WEIGH}"
    ),
    "tril of ones == 0": attention(
        f"{SCORES}m = torch.tril(torch.ones(q.shape[2], k.shape[2], device=q.device))\n"
        f"s = s.masked_fill(m == 0, float('-inf'))\n{WEIGH}"
    ),
    "a causal mask that is added": attention(
        f"{SCORES}m = torch.full((q.shape[2], k.shape[2]), float('-inf'), device=q.device).triu(1)\ns = s + m\n{WEIGH}"
    ),
    "causal from the end": attention(
        f"{PLACES}{SCORES}s = torch.where(col <= row + (k.shape[2] - q.shape[2]), s, float('-inf'))\n{WEIGH}"
    ),
    "a window": attention(
        f"{PLACES}{SCORES}s = s.masked_fill((col > row) | (row - col >= 8), float('-inf'))\n{WEIGH}", SQUARE
    ),
    "slopes": attention(
        f"{PLACES}{SCORES}s = s + m[:, None, None] * (col - row)\n"
        f"s = s.masked_fill(col > row, float('-inf'))\n{WEIGH}", {**SQUARE, "m": "H"},
    ),
    "a soft cap": attention(f"{SCORES}s = 5.0 * torch.tanh(s / 5.0)\n{WEIGH}"),
    "a mask of every element": attention(
        f"{SCORES}s = s.masked_fill(~m, float('-inf'))\n{WEIGH}", {"m": "B 1 S L: bool"}
    ),
    "hidden by a finite number": attention(
        f"{PLACES}{SCORES}s = s.masked_fill(col > row, -1e4)\n{WEIGH}"
    ),
    "repeated heads": attention(
        f"k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)\n{SCORES}{WEIGH}", GROUPED, "B 6 S E"
    ),
    "expanded heads": attention(
        "k, v = (x[:, :, None].expand(-1, -1, 3, -1, -1).flatten(1, 2) for x in (k, v))\n" + SCORES + WEIGH,
        GROUPED, "B 6 S E",
    ),
    "one query of grouped heads": attention(
        f"{SDPA}(q, k, v, enable_gqa=True)", {"q": "B 6 1 D", "k": "B 2 L D", "v": "B 2 L E"}, "B 6 1 E"
    ),
    "lengths": attention(
        "col = torch.arange(k.shape[2], device=q.device)\n"
        f"{SCORES}s = torch.where(col < n[:, None, None, None], s, float('-inf'))\n{WEIGH}",
        {"n": "B: int32"},
    ),
    "the logsumexp as well": attention(
        f"{SCORES}lse = torch.logsumexp(s.float(), -1)\nreturn torch.softmax(s, -1).to(q.dtype) @ v, lse",
        outputs={"lse": "B H S: float32"},
    ),
    "sinks": attention(
        f"{PLACES}{SCORES}s = s.masked_fill(col > row, float('-inf'))\n"
        "z = m[:, None, None].expand(q.shape[0], -1, q.shape[2], 1)\n"
        "w = torch.softmax(torch.cat([s, z], dim=-1), dim=-1)[..., :-1]\nreturn w.to(q.dtype) @ v", {"m": "H"},
    ),
    "sinks before the scores": attention(
        f"{SCORES}z = m[:, None, None].expand(q.shape[0], -1, q.shape[2], 1)\n"
        "w = torch.softmax(torch.cat([z, s], dim=-1), dim=-1)[..., 1:]\nreturn w.to(q.dtype) @ v", {"m": "H"},
    ),
    "sinks in the logsumexp": attention(
        f"{SCORES}lse = torch.logaddexp(torch.logsumexp(s, -1, keepdim=True), m[:, None, None])\n"
        "return torch.exp(s - lse).to(q.dtype) @ v", {"m": "H"},
    ),
    "sinks that are taken off at the end": attention(
        f"{SCORES}lse = torch.logsumexp(s, -1, keepdim=True)\n"
        "return torch.softmax(s, -1).to(q.dtype) @ v * torch.sigmoid(lse - m[:, None, None])", {"m": "H"},
    ),
    "sinks, and the greatest taken off before the softmax": attention(
        f"{PLACES}{SCORES}s = s.masked_fill(col > row, float('-inf'))\n"
        "z = m[None, :, None, None].expand(q.shape[0], -1, q.shape[2], 1)\nc = torch.cat([s, z], dim=-1)\n"
        "c = c - c.max(dim=-1, keepdim=True).values\n"
        "w = torch.softmax(c, dim=-1)[..., :-1]\nreturn w.to(q.dtype) @ v", {"m": "H"},
    ),
    "another number of the row taken off": attention(
        f"{SCORES}top = s.amax(-1, keepdim=True) + 3.0\ne = torch.exp(s - top)\n"
        "return (e / e.sum(-1, keepdim=True)).to(q.dtype) @ v"
    ),
    "a softmax off by one": attention(
        f"{SCORES}top = s.amax(-1, keepdim=True).clamp(min=0)\ne = torch.exp(s - top)\n"
        "return (e / (e.sum(-1, keepdim=True) + torch.exp(-top))).to(q.dtype) @ v"
    ),
    "joined heads": attention(
        f"{SCORES}y = torch.softmax(s, -1).to(q.dtype) @ v\nreturn y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)",
        out="B S H*E",
    ),
    "heads that are joined with the batch": attention(
        "q, k, v = (x.view(x.shape[0], x.shape[1] * 4, 16).transpose(0, 1) for x in (q, k, v))\n"
        "w = torch.softmax(torch.bmm(q * 0.25, k.mT), -1)\n"
        "return torch.bmm(w.to(q.dtype), v).transpose(0, 1).reshape(q.shape[1], -1, 64)",
        {"q": "S B 64", "k": "L B 64", "v": "L B 64"}, "S B 64",
    ),
    "rotated": attention(
        "q = q * c + torch.cat([-q[..., 16:], q[..., :16]], -1) * n\n" + SCORES + WEIGH,
        {"q": "B H S 32", "k": "B H S 32", "v": "B H S 32", "c": "S 32", "n": "S 32"}, "B H S 32",
    ),
    "gated": attention(f"{SCORES}y = torch.softmax(s, -1).to(q.dtype) @ v\nreturn y * torch.sigmoid(g)", {"g": "B H S E"}),
}  # fmt: skip


ROTATED = "q, k = (x * c + torch.cat([-x[..., 16:], x[..., :16]], -1) * n for x in (q, k))\n"


def kernel_of(found: Sample) -> KernelPlan:
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan), [k.family for k in plan.kernels]
    assert plan.family == "attention"
    return plan


def inputs_of(found: Sample, dtype: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(found.source()))
    sizes = dict(found.sizes[0])
    made = []
    for t in found.inputs:
        shape = [eval(str(size), {}, sizes) for size in t.shape]
        kind = dtype if t.dtype == "T" else t.dtype
        if kind == "bool":
            values = torch.rand(shape, generator=generator) < 0.7
        elif kind == "int32":
            values = torch.tensor([0, sizes["L"] - 1][: shape[0]], dtype=torch.int32)
        else:
            values = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        made.append(values.to(DEVICE))
    return made


def exact(found: Sample, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": __import__("math")}
    exec(found.source().replace(".float()", ".double()"), scope)
    return as_tuple(scope["op"](*(t.double() if t.is_floating_point() else t for t in tensors)))


def wrappers(plan: KernelPlan) -> Iterator[tuple[Schedule, Callable[..., Any]]]:
    """The wrapper of every variant with small blocks, of which keys are divided among four programs."""
    family = families.family_of(plan)
    small = {"BLOCK_M": 16, "BLOCK_N": 16, "SPLITS": 4}
    for variant in family.variants(body_of(plan)):
        usual = family.default(variant)
        schedule = usual.replace(**{name: small[name] for name, _ in usual.values if name in small})
        yield schedule, load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op


@pytest.mark.parametrize("name", FORMS)
def test_every_variant_is_right(name: str) -> None:
    """In small blocks, of which several are whole, one is cut by the mask, and one by the last key."""
    found = FORMS[name]
    for at, (schedule, op) in enumerate(wrappers(kernel_of(found))):
        dtype = ("float32", "float16")[(at + len(name)) % 2]
        tensors = inputs_of(found, dtype)
        for got, right in zip(as_tuple(op(*tensors)), exact(found, tensors), strict=True):
            assert torch.equal(got.isnan(), right.isnan()), schedule
            off = float((got.double() - right).nan_to_num(0.0).abs().max())
            assert off <= WITHIN[dtype] * float(right.nan_to_num(0.0, 0.0, 0.0).abs().max()), (schedule, dtype, off)


@pytest.mark.parametrize("name", ["sdpa, causal", "lengths"])
def test_keys_that_no_row_of_a_tile_sees_are_not_read(name: str) -> None:
    """Values beyond the mask are NaN: of a weight of 0 that would be NaN too."""
    found = FORMS[name]
    for schedule, op in wrappers(kernel_of(found)):
        tensors = inputs_of(found, "float32")
        tensors[2][:, :, 32:] = torch.nan
        if name == "lengths":
            tensors[3].fill_(20)
        if schedule.variant == LIBRARY:  # which may
            continue
        assert bool(as_tuple(op(*tensors))[0].isfinite().all()), schedule


@pytest.mark.parametrize(
    ("lines", "share"),
    [
        (f"{SDPA}(q, k, v)", 1.0),
        (f"{SDPA}(q, k, v, is_causal=True)", 0.5),
        (f"{PLACES}{SCORES}s = torch.where(row - col < 8, s, -torch.inf)\n{WEIGH}", 0.5 + 7 / 64),
        (f"{PLACES}{SCORES}s = torch.where((col <= row) & (row - col < 4), s, -torch.inf)\n{WEIGH}", 4 / 64),
    ],
)
def test_scores_that_a_mask_hides_are_no_work(lines: str, share: float) -> None:
    plan, size = kernel_of(attention(lines, SQUARE)), 64
    scores, weighed = families.family_of(plan).products(plan.spec, body_of(plan))
    for product, columns, summed in ((scores, size, 16), (weighed, 16, size)):
        assert product.left is not None
        assert product.left(size, columns, summed, lambda _: size) == pytest.approx(share * size * size * 16, rel=0.05)


def test_sizes_move_what_a_mask_hides_and_lengths_are_not_known() -> None:
    late = f"{PLACES}{SCORES}s = torch.where(col <= row + (k.shape[2] - q.shape[2]), s, -torch.inf)\n{WEIGH}"
    plan, sizes = kernel_of(attention(late)), {"S": 32, "L": 96, "L - S": 64}
    scores, _ = families.family_of(plan).products(plan.spec, body_of(plan))
    assert scores.left is not None
    assert scores.left(32, 96, 1, lambda dim: sizes[str(dim[0])]) == sum(range(65, 97))
    assert scores.hides_more is not None
    assert not scores.hides_more(lambda dim: sizes[str(dim[0])])
    plan = kernel_of(FORMS["lengths"])
    found = families.family_of(plan).products(plan.spec, body_of(plan))
    assert all(p.hides_more is not None and p.hides_more(lambda _: 9) for p in found)


@pytest.mark.parametrize("mask", ["attn_mask=m", "attn_mask=m.float().log().to(q.dtype)"])
def test_a_row_that_sees_no_key_is_zero_where_torch_has_zero(mask: str) -> None:
    found = attention(f"{SDPA}(q, k, v, {mask})", {"m": "S L: bool"})
    for schedule, op in wrappers(kernel_of(found)):
        tensors = inputs_of(found, "float32")
        tensors[3][5] = False
        (got,) = as_tuple(op(*tensors))
        assert not bool(got[:, :, 5].any()), schedule
        assert bool(got.isfinite().all()), schedule


@pytest.mark.parametrize("name", ["sdpa", "a product, a softmax, a product"])
def test_without_keys_the_result_is_zero(name: str) -> None:
    found = FORMS[name]
    for schedule, op in wrappers(kernel_of(found)):
        q, k, v = inputs_of(found, "float32")
        assert not bool(as_tuple(op(q, k[:, :, :0], v[:, :, :0]))[0].any()), schedule


def test_lengths_from_1_to_300_and_heads_of_any_size() -> None:
    """Lengths one by one are primes and their neighbours here; each meets another size of a head."""
    found = FORMS["sdpa, causal"]
    schedule, op = next(iter(wrappers(kernel_of(found))))
    for at, length in enumerate((1, 2, 15, 16, 17, 31, 33, 64, 130, 257, 300)):
        head = (16, 17, 24, 40, 64, 80, 96, 100, 128, 160, 256)[at]
        q, k, v = (torch.randn(1, 1, length, head, device=DEVICE) for _ in range(3))
        off = (as_tuple(op(q, k, v))[0].double() - exact(found, [q, k, v])[0]).abs().max()
        assert float(off) <= 2e-5, (schedule, length, head)


@pytest.mark.parametrize(("lines", "queries"), [(f"{SDPA}(q, k, v, enable_gqa=True)", 1), (f"{SCORES}{WEIGH}", 20)])
def test_the_last_line_of_the_table_has_heads_of_any_size(lines: str, queries: int) -> None:
    """The lines before it are for heads of up to 128 elements, whose tiles are larger, and of up to 256 where torch's
    attention is not called for these."""
    shapes = {**GROUPED, "q": "B 6 1 D"} if queries == 1 else {"q": "B 6 20 D", "k": "B 6 L D", "v": "B 6 L E"}
    plan = kernel_of(found := attention(lines, shapes, f"B 6 {queries} E"))
    *usual, last = plan.table
    long = [dict(usual.pop().upto)] if last.schedule.variant != LIBRARY else []
    assert all(row.limit(head) in (64, 128) for row in usual for head in "DE")
    assert long in ([], [{"D": 256, "E": 256}])
    assert not last.upto
    heads = 2 if queries == 1 else 6
    q, k, v = (
        torch.randn(1, count, length, size, device=DEVICE)
        for count, length, size in ((6, queries, 160), (heads, 19, 160), (heads, 19, 130))
    )
    op = load(render.triton_source(plan)).op
    assert float((op(q, k, v).double() - exact(found, [q, k, v])[0]).abs().max()) <= 2e-5


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
def test_a_spec_says_how_float32_is_multiplied(precision: str) -> None:
    """Whatever torch is set to, which its own call would follow."""
    plan = kernel_of(replace(FORMS["sdpa"], precision=precision))
    text = render.triton_source(plan)
    assert f'PRECISION="{precision}"' in text
    assert "attention_precision" not in text
    assert ("_sum_and_dot(out" in text) == (precision == "tf32x3")
    assert LIBRARY not in {row.schedule.variant for row in plan.table}


def test_a_table_of_float32_alone_has_no_line_of_half_precision() -> None:
    """Nor the kernels of such lines, which nothing reached."""
    plan = kernel_of(
        attention(
            f"{SDPA}(q, k, v)",
            {t: f"B H {n} {s}: float32" for t, n, s in ("qSD", "kLD", "vLE")},
            "B H S E: float32",
            dtypes=(),
        )
    )
    assert plan.table
    assert {row.limit("itemsize") for row in plan.table} == {None}


def test_what_is_multiplied_in_float32_is_counted_so_whatever_is_stored() -> None:
    """A key `precision` was refused here, as if nothing were float32, and the roofline was that of half precision."""
    lines = "return ((q.float() @ k.float().mT * 0.2).softmax(-1) @ v.float()).to(q.dtype)"
    plan = kernel_of(attention(lines, dtypes=(("T", ("float16",)),), precision="tf32x3"))
    assert {(p.dtype, p.precision) for p in families.products(plan)} == {("float32", "tf32x3")}
    assert 'PRECISION="tf32x3"' in render.triton_source(plan)


@pytest.mark.parametrize(
    ("mask", "inputs", "tall"),
    [("", {}, 128), (", is_causal=True", {}, 64), (", attn_mask=m", {"m": "S L: bool"}, 64)],
)
def test_tiles_of_float32_are_half_as_tall_where_scores_are_masked(
    mask: str, inputs: dict[str, str], tall: int
) -> None:
    plan = kernel_of(attention(f"{SDPA}(q, k, v{mask})", inputs))
    assert [row.schedule["BLOCK_M"] for row in plan.table if row.limit("D") == 64] == [tall]


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("head", [16, 64, 128, 256, 512, 1024])
def test_blocks_of_heads_whose_size_is_known_fit_shared_memory(head: int, queries: int) -> None:
    """Of every line that float32 may reach, which are all but those of two bytes an element."""
    shapes = {"q": f"B 8 {queries} {head}", "k": f"B 2 L {head}", "v": f"B 2 L {head}"}
    plan = kernel_of(attention(f"{SDPA}(q, k, v, enable_gqa=True)", shapes, f"B 8 {queries} {head}"))
    refused = room(body_of(plan.main), 4)
    reached = [row.schedule for row in plan.table if row.limit("itemsize") is None]
    assert {schedule: why for schedule in reached if (why := refused(schedule))} == {}


def test_float32_is_multiplied_as_torchs_attention_multiplies_it() -> None:
    module = load(render.triton_source(kernel_of(FORMS["sdpa"])))
    before = torch.backends.cuda.matmul.fp32_precision
    assert [module.attention_precision(head) for head in (64, 256, 257)] == ["tf32x3", "tf32x3", "ieee"]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert [module.attention_precision(head) for head in (64, 257)] == ["tf32", "tf32"]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    half = kernel_of(replace(FORMS["sdpa"], dtypes=(("T", ("float16", "bfloat16")),)))
    assert "PRECISION" not in render.triton_source(half)


def test_the_judge_is_told_how_long_heads_may_be() -> None:
    """Hidden cases have sizes of 1025 and more, of which the wrapper says that it takes 1024."""
    plan = kernel_of(attention(f"{SDPA}(q, k, v)", {"q": "B 6 20 D", "k": "B 6 L D", "v": "B 6 L E"}, "B 6 20 E"))
    assert families.limits(plan) == (("D", LONGEST_HEAD), ("E", LONGEST_HEAD))
    fixed = attention(f"{SDPA}(q, k, v)", {"q": "B 6 20 64", "k": "B 6 L 64", "v": "B 6 L 64"}, "B 6 20 64")
    assert families.limits(kernel_of(fixed)) == ()
    queries, keys, values = (torch.empty(1, 6, n, d, device=DEVICE) for n, d in ((20, 1025), (3, 1025), (3, 8)))
    with pytest.raises(ValueError, match=rf"at most .* {LONGEST_HEAD} elements per head, got .*1025"):
        load(render.triton_source(plan)).op(queries, keys, values)


def test_scores_of_long_heads_are_hidden_whatever_they_are() -> None:
    """torch's attention without a fused kernel adds minus infinity to them: of an infinite one that is NaN."""
    found = attention(f"{PLACES}{SCORES}s = s.masked_fill(col > row, float('-inf'))\n{WEIGH}", SQUARE)
    q, k, v = (torch.randn(1, 2, 5, 130, device=DEVICE) for _ in range(3))
    k[:, :, 3] = torch.inf
    with sdpa_kernel(SDPBackend.MATH):
        out = load(render.triton_source(plan_of(found.spec()))).op(q, k, v)
    assert bool(out[:, :, :3].isfinite().all())


SCALES = {"a tensor": ("", ""), "a head": ("H 1 1", "H 1 1"), "a key and a column": ("H L 1", "H 1 E")}


@pytest.mark.parametrize("name", SCALES)
def test_float8_is_multiplied_as_memory_holds_it_and_the_sum_is_scaled(name: str) -> None:
    shapes = [f"{shape}: float32" for shape in SCALES[name]]
    inputs = {"k": "B H L D: float8_e4m3fn", "v": "B H L E: float8_e4m3fn", "ks": shapes[0], "vs": shapes[1]}
    found = attention(
        f"key, value = (k.float() * ks).to(q.dtype), (v.float() * vs).to(q.dtype)\n{SDPA}(q, key, value)", inputs,
    )  # fmt: skip
    scaled = replace(found, inputs=tuple(replace(t, role="scale") if "s" in t.name else t for t in found.inputs))
    generator = torch.Generator().manual_seed(5)
    sizes = {**SIZES, "1": 1}
    tensors = [torch.randn([sizes[str(s)] for s in t.shape], generator=generator).to(DEVICE) for t in scaled.inputs]
    q, k, v, ks, vs = (t.to(getattr(torch, i.dtype), copy=True) if "float" in i.dtype else t.half()
                       for t, i in zip(tensors, scaled.inputs, strict=True))  # fmt: skip
    exactly = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double() * ks, v.double() * vs)
    for schedule, op in wrappers(kernel_of(scaled)):
        off = (op(q, k, v, ks, vs).double() - exactly).abs().max()
        assert float(off) <= 1e-3 * float(exactly.abs().max()), schedule
    assert ".to(tl.float32)" not in render.triton_source(kernel_of(scaled))


def test_another_reduction_of_the_scores_is_a_kernel_of_its_own() -> None:
    found = attention(f"{SCORES}w = torch.softmax(s, -1)\nreturn w.to(q.dtype) @ v * s.sum(-1, keepdim=True)")
    plan = plan_of(found.spec())
    assert [k.family for k in plan.kernels] != ["attention"]
    tensors = inputs_of(found, "float32")
    off = (load(render.triton_source(plan)).op(*tensors).double() - exact(found, tensors)[0]).abs().max()
    assert float(off) <= 1e-4


REFUSED = {
    "heads whose sizes do not show it": ("(q, k, v, enable_gqa=True)", {"k": "B G L D", "v": "B G L E"}, "B H S E"),
    "heads that do not divide": ("(q, k, v, enable_gqa=True)", {"q": "B 30 S D", "k": "B 8 L D", "v": "B 8 L E"}, "B 30 S E"),
    "a mask of another shape": ("(q, k, v, attn_mask=m)", {"m": "L S: bool"}, "B H S E"),
    "a mask of integers": ("(q, k, v, attn_mask=m)", {"m": "S L: int32"}, "B H S E"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_one_clear_error(name: str) -> None:
    arguments, inputs, out = REFUSED[name]
    with pytest.raises(SpecError) as refused:
        plan_of(attention(f"{SDPA}{arguments}", inputs, out).spec())
    assert len(refused.value.mistakes) == 1


def test_the_logsumexp_of_an_infinite_score_is_infinite() -> None:
    """An infinite element of a key: queries of one sign score it infinite, those of the other do not see it."""
    found = FORMS["the logsumexp as well"]
    for schedule, op in wrappers(kernel_of(found)):
        q, k, v = (tensor.clone() for tensor in inputs_of(found, "float32"))
        k[:, :, 1, 0] = torch.inf
        results, right = op(q, k, v), exact(found, [q, k, v])
        assert bool((right[1] == torch.inf).any())
        assert bool(right[1].isfinite().any())
        for got, ref in zip(results, right, strict=True):
            assert torch.allclose(got.double(), ref, atol=1e-4, equal_nan=True), schedule


@pytest.mark.parametrize("head", [1, 2, 16])
def test_parts_without_keys_join_to_zero_whatever_the_scale_is(head: int) -> None:
    found = FORMS["one query of grouped heads"]
    for schedule, op in wrappers(kernel_of(found)):
        q, k, v = (torch.randn(1, heads, length, head, device=DEVICE) for heads, length in ((6, 1), (2, 0), (2, 0)))
        assert not bool(as_tuple(op(q, k, v))[0].any()), schedule


def test_keys_that_are_rotated_are_computed_before() -> None:
    """In the loop over keys every block of queries would rotate them anew."""
    turned = {"k": "B H L 32", "v": "B H L 32", "c": "L 32", "n": "L 32"}
    many = attention(ROTATED + SCORES + WEIGH, {"q": "B H L 32", **turned}, "B H L 32")
    plan = plan_of(many.spec())
    assert {k.family for k in plan.kernels[:-1]} == {"pointwise"}
    assert plan.kernels[-1].family == "attention"
    op, tensors = load(render.triton_source(plan)).op, inputs_of(many, "float32")
    torch.testing.assert_close(op(*tensors).double(), exact(many, tensors)[0], rtol=1e-4, atol=1e-5)

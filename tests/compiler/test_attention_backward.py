"""The gradients of attention: two kernels that make the weights again, held against autograd in float64."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import DEVICE, Sample, load, plan_of, sample
from test_backward import files_of

from kernelgen import families, frontend, render
from kernelgen.backward import Backward, backward
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, TableRow
from kernelgen.spec.model import Case

WITHIN = {"float32": 4e-6, "float16": 4e-3}
"""What a gradient may be off by, as a part of the largest."""
SIZES = {"B": 2, "H": 2, "S": 37, "L": 53, "D": 24, "E": 40}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def attention(lines: str, inputs: dict[str, str] | None = None, out: str = "B H S E") -> Sample:
    given = {"q": "B H S D", "k": "B H L D", "v": "B H L E"} | (inputs or {})
    used = " ".join((*given.values(), out)).replace("*", " ").split()
    return sample(lines, given, {"out": out}, {name: size for name, size in SIZES.items() if name in used})


SDPA = "return F.scaled_dot_product_attention"
PLACES = "row = torch.arange(q.shape[2], device=q.device)[:, None]\ncol = torch.arange(k.shape[2], device=q.device)\n"
SCORES = "s = q @ k.mT * q.shape[-1] ** -0.5\n"
WEIGH = "return torch.softmax(s, -1).to(q.dtype) @ v"
SQUARE = {"k": "B H S D", "v": "B H S E"}
GROUPED = {"q": "B 6 S D", "k": "B 2 L D", "v": "B 2 L E"}
FORMS = {
    "full": attention(f"{SDPA}(q, k, v)"),
    "causal": attention(f"{SDPA}(q, k, v, is_causal=True)", SQUARE),
    "more keys than queries, causal": attention(f"{SDPA}(q, k, v, is_causal=True)"),
    "of a scale": attention(f"{SDPA}(q, k, v, scale=0.3)"),
    "heads that share keys": attention(f"{SDPA}(q, k, v, enable_gqa=True)", GROUPED, "B 6 S E"),
    "shared and causal": attention(f"{SDPA}(q, k, v, is_causal=True, enable_gqa=True)", GROUPED, "B 6 S E"),
    "heads that are repeated, under the same names": attention(
        f"k = k.repeat_interleave(3, 1)\nv = v.repeat_interleave(3, 1)\n{SCORES}{WEIGH}", GROUPED, "B 6 S E"
    ),
    "of two dimensions": attention(f"{SDPA}(q, k, v)", {"q": "S D", "k": "L D", "v": "L E"}, "S E"),
    "written out": attention(f"{PLACES}{SCORES}s = s.masked_fill(col > row, float('-inf'))\n{WEIGH}", SQUARE),
    "a window": attention(
        f"{PLACES}{SCORES}s = s.masked_fill((col > row) | (row - col >= 8), float('-inf'))\n{WEIGH}", SQUARE
    ),
    "a soft cap": attention(f"{SCORES}s = 5.0 * torch.tanh(s / 5.0)\n{WEIGH}"),
    "a bias": attention(f"{SDPA}(q, k, v, attn_mask=m)", {"m": "H S L"}),
    "a bias of its own for every score": attention(f"{SCORES}s = s + m\n{WEIGH}", {"m": "B H S L"}),
    "slopes": attention(
        f"{PLACES}{SCORES}s = s + m[:, None, None] * (col - row)\n"
        f"s = s.masked_fill(col > row, float('-inf'))\n{WEIGH}", {**SQUARE, "m": "H"},
    ),
    "sinks": attention(
        f"{PLACES}{SCORES}s = s.masked_fill(col > row, float('-inf'))\n"
        "z = m[:, None, None].expand(q.shape[0], -1, q.shape[2], 1)\n"
        "w = torch.softmax(torch.cat([s, z], dim=-1), dim=-1)[..., :-1]\nreturn w.to(q.dtype) @ v", {**SQUARE, "m": "H"},
    ),
    "rotated by tables": attention(
        "q, k = (x * c + torch.cat([-x[..., 12:], x[..., :12]], -1) * n for x in (q, k))\n" + SCORES + WEIGH,
        {"q": "B H S 24", "k": "B H S 24", "v": "B H S E", "c": "S 24", "n": "S 24"},
    ),
    "heads of one tensor": sample(
        "q, k, v = (y.view(y.shape[0], y.shape[1], 2, 24).transpose(1, 2) for y in x.split(48, -1))\n"
        f"{SCORES}return (torch.softmax(s, -1).to(q.dtype) @ v).transpose(1, 2).flatten(2)",
        {"x": "B S 144"}, {"out": "B S 48"}, {"B": 2, "S": 37},
    ),
    "heads of two sizes": sample(
        "n = x.shape[2] // 12\nq, k, v = (y.view(*x.shape[:2], 4, n).transpose(1, 2) for y in x.split(4 * n, -1))\n"
        f"{SCORES}{WEIGH}", {"x": "B S 24*H"}, {"out": "B 4 S 2*H"}, {"B": 2, "S": 37, "H": 3},
    ),
    "rows that see no key": attention(f"{SDPA}(q, k, v, attn_mask=m)", {"m": "S L: bool"}),
}  # fmt: skip


def derived(found: Sample) -> Backward:
    spec = found.spec()
    return backward(spec, frontend.trace(spec)[0])


def kernels(made: Backward, variant: str) -> Iterator[Callable[..., Any]]:
    """The forward that saves, then the gradients, in small blocks, by a variant where there is such a one."""
    for part in made.parts:
        plan = plan_of(part.spec)
        if isinstance(plan, KernelPlan) and plan.family.startswith("attention"):
            own = [s for s in families.variants(plan, plan.spec.accuracy) if s.variant == variant]
            schedule = (own[0] if own else plan.table[-1].schedule).replace(BLOCK_M=16, BLOCK_N=16)
            plan = plan.with_table((TableRow((), schedule),))
        else:  # what is added to the scores, stands beside them, or moves what is multiplied
            assert not {"q", "k", "v"} & {*part.gradients} or not part.multiplied
        yield getattr(load(render.triton_source(plan)), part.spec.name)


def computed(made: Backward, known: dict[str, torch.Tensor], variant: str = "walk") -> dict[str, torch.Tensor]:
    for part, kernel in zip(made.parts, kernels(made, variant), strict=True):
        results = as_tuple(kernel(*(known[t.name] for t in part.spec.inputs)))
        known = known | dict(zip((o.name for o in part.spec.outputs), results, strict=True))
    return known


def inputs_of(found: Sample, dtype: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(found.source()))
    tensors = (*found.inputs, *(replace(o, name=f"grad_{o.name}") for o in found.outputs))
    hidden = {t.name: torch.rand(SIZES["S"], SIZES["L"]) < 0.6 for t in tensors if t.dtype == "bool"}
    for mask in hidden.values():
        mask[3:20:5] = False
    return {
        t.name: torch.randn([eval(str(s), {}, dict(found.sizes[0])) for s in t.shape], generator=generator)
        .to(getattr(torch, dtype)).to(DEVICE)
        for t in tensors if t.dtype == "T"
    } | {name: mask.to(DEVICE) for name, mask in hidden.items()}  # fmt: skip


def by_autograd(found: Sample, known: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": __import__("math")}
    exec(found.source(), scope)
    leaves = {t.name: known[t.name].double().requires_grad_() for t in found.inputs if t.dtype == "T"}
    out = scope["op"](*((known | leaves)[t.name] for t in found.inputs))
    grads = torch.autograd.grad(out, list(leaves.values()), known["grad_out"].double())
    return {f"grad_{name}": g for name, g in zip(leaves, grads, strict=True)}


@pytest.mark.parametrize("variant", ["walk", "boxes"])
@pytest.mark.parametrize("name", FORMS)
def test_the_gradients_agree_with_autograd(name: str, variant: str) -> None:
    found = FORMS[name]
    dtype = ("float32", "float16")[len(name) % 2]
    known = inputs_of(found, dtype)
    got, right = computed(derived(found), known, variant), by_autograd(found, known)
    assert right
    for gradient, exact in right.items():
        off = float((got[gradient].double() - exact).abs().max())
        assert off <= WITHIN[dtype] * float(exact.abs().max()), (gradient, dtype, off)


@pytest.mark.parametrize("variant", ["walk", "boxes"])
def test_blocks_that_a_mask_hides_are_not_read(variant: str) -> None:
    """Queries before the last block of keys have gradients of 0 of these, whatever they are."""
    found = FORMS["causal"]
    known = inputs_of(found, "float32")
    known["grad_out"][:, :, :32] = torch.nan
    got = computed(derived(found), known, variant)
    assert bool(got["grad_k"][:, :, 32:].isfinite().all())
    assert bool(got["grad_v"][:, :, 32:].isfinite().all())
    assert bool(got["grad_q"][:, :, 32:].isfinite().all())


def test_nothing_beyond_the_last_row_is_added() -> None:
    """Where a block of queries ends behind the last, what is added to scores would make weights of rows infinite that
    there are not."""
    found = FORMS["slopes"]
    known = inputs_of(found, "float32")
    known["m"] = torch.full_like(known["m"], -20.0)
    got = computed(derived(found), known)
    assert all(bool(got[f"grad_{tensor}"].isfinite().all()) for tensor in "qkv")


@pytest.mark.parametrize(("gradients", "longest"), [(True, 512), (False, 1024)])
def test_heads_are_as_long_as_the_gradients_take_them(gradients: bool, longest: int) -> None:
    """The forward refuses what the backward has no room for; without gradients it takes more."""
    plan = plan_of(replace(FORMS["full"].spec(), backward=gradients))
    assert isinstance(plan, KernelPlan)
    wrapper = render.triton_source(plan)
    assert f"D > {longest} or E > {longest}" in wrapper
    assert f"{longest} elements per head" in " ".join(wrapper.split())


def test_no_saved_value_hides_what_rounds_the_outputs() -> None:
    """Joined queries without a name are saved, which are called after their operation: rounded."""
    lines = f"s = torch.cat([q, m], -1) @ k.mT * 0.2\n{WEIGH}"
    found = attention(lines, {**SQUARE, "q": "B H S 16", "m": "B H S 8", "k": "B H S 24"})
    spec = replace(found.spec(), accuracy=(Case(tuple(found.sizes[0].items()), (("T", "float32"),)),))
    made = backward(spec, frontend.trace(spec)[0])
    (judged,) = (text for file, text in files_of(made).items() if file.endswith("_gradients_accuracy.py"))
    (through,) = (n for n in ast.walk(ast.parse(judged)) if isinstance(n, ast.FunctionDef) and n.name == "from_saved")
    bound = [n.id for n in ast.walk(through) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assert through.args.args[0].arg not in bound
    assert "rounded" in bound

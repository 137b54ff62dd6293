"""Operations that stay calls of torch's: kernels and calls together agree with torch, and what is refused is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from references import DEVICE, Sample, failures, load, plan_of, sample, tensor
from test_compiler_random import TIMES

from kernelgen import render
from kernelgen.errors import UnsupportedError
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import Plan, TorchCall

CHANNELS = {"x": "B D L", "w": "E D 1", "b": "E", "v": "D E 1"}
SIZES: tuple[dict[str, Any], ...] = ({"B": 1, "D": 21, "E": 34, "L": 3}, {"B": 2, "D": 5, "E": 1, "L": 9})
IMAGES = {"x": "B C H W", "w": "E C 3 3", "b": "E", "v": "E C 2 2", "s": "E 1 1"}
PLACES = ({"B": 2, "C": 3, "H": 6, "W": 7, "E": 4}, {"B": 1, "C": 1, "H": 5, "W": 4, "E": 3})


def chain(lines: str, out: str = "B E L", **more: str) -> Sample:
    """Of convolutions of single elements, which mix channels and nothing else."""
    return sample(lines, CHANNELS, {"out": out, **more}, *SIZES)


def mixed(lines: str, out: str = "B E L", **more: str) -> Sample:
    """With `einsum` of three operands, which stays torch's."""
    inputs = {"x": "B D L", "u": "D E", "b": "E"}
    lines = lines.replace("MIX(", "torch.einsum('bdl,de,e->bel', ").replace("BACK(", "torch.einsum('bel,de,e->bdl', ")
    return sample(lines, inputs, {"out": out, **more}, *SIZES)


MIX, BACK = ('torch.einsum("bdl,de,e->bel", {0}, {1}, {2})', 'torch.einsum("bel,de,e->bdl", {0}, {1}, {2})')


def image(lines: str, out: str) -> Sample:
    return sample(lines, IMAGES, {"out": out}, *PLACES, constraints=("x.shape[2] >= 4", "x.shape[3] >= 4"))


def steps(found: Sample) -> list[str]:
    """The kernels by what they make, the calls by their text."""
    return [
        s.text if isinstance(s, TorchCall) else " ".join(t.name for t in s.spec.outputs)
        for s in plan_of(found.spec()).steps
    ]


def test_the_graph_is_cut_at_calls_and_the_rest_fuses() -> None:
    found = mixed(
        "h = F.layer_norm(x, (x.shape[-1],))\ny = torch.relu(MIX(h, u, b))\nreturn BACK(y, u, b) * 2 + h, y",
        "B D L", y="B E L",
    )  # fmt: skip
    assert steps(found) == ["h", MIX, "y", BACK, "out"]
    last = plan_of(found.spec()).kernels[-1]
    assert {t.name for t in last.spec.inputs} == {"h", "product_2"}  # neither is computed again


def test_what_a_call_reads_is_stored_as_torch_stores_it() -> None:
    first, *_ = plan_of(CORNERS["a product that another call reads"].spec()).kernels
    assert [(t.name, t.dtype) for t in first.spec.outputs] == [("kv", "T")]


def test_what_no_family_takes_as_a_whole_is_several_kernels() -> None:
    statistics = sample(
        "y = torch.softmax(F.conv_transpose1d(x, w), -1)\nreturn y - y.mean(0, keepdim=True)",
        {"x": "D L", "w": "D E 1"}, {"out": "E L"},
    )  # fmt: skip
    assert steps(statistics) == ["torch.nn.functional.conv_transpose1d({0}, {1})", "row_max denominator", "out"]
    assert steps(CORNERS["places, then channels"])[1:] == ["intermediate", "out"]


def test_views_of_what_lies_in_memory_are_no_kernels() -> None:
    found = mixed("return torch.exp(MIX(x, u, b)), MIX(x, u, b)[:, :, None]", out2="B E 1 L")
    assert steps(found) == [MIX, MIX, "out", "{0}"]


CORNERS = {
    "a product that another call reads": sample(
        "kv = torch.einsum('bsd,bse->bde', F.elu(k) + 1, v)\nreturn torch.einsum('bsd,bde,b->bse', k, kv, w)",
        {"k": "B S D", "v": "B S E", "w": "B"}, {"out": "B S E"}, {"B": 2, "S": 5, "D": 7, "E": 3},
    ),
    "before": chain("return F.conv1d(torch.relu(x) * 2, w, b)"),
    "after": chain("return F.gelu(F.conv1d(x, w) + b[:, None])"),
    "between": chain("h = F.softmax(F.conv1d(x, w), -1)\nreturn F.conv_transpose1d(h, w)", "B D L"),
    "residual": chain(
        "h = F.rms_norm(x, (x.shape[-1],), eps=1e-6)\n"
        "return x + F.conv_transpose1d(torch.tanh(F.conv1d(h, w, b)), w) + h", "B D L",
    ),
    "several read": chain("h = x * 2\ng = torch.sigmoid(x)\nreturn F.conv1d(h, w) * F.conv1d(g, w, b)"),
    "a loss": chain("return ((F.conv1d(x, w) - b[:, None]) ** 2).mean()", ""),
    "in float32": chain("return F.conv1d(x.float(), w.float()).to(x.dtype) + b[:, None]"),
    "returned": chain("y = F.conv_transpose1d(x, v)\nreturn y, y, torch.relu(y)", a="B E L", b2="B E L"),
    "transposed": chain("return torch.relu(F.conv1d(x, w).mT + b)", "B L E"),
    "image": image("return F.hardswish(F.conv2d(x, w, b, padding=1)) * s", "B E H W"),
    "smaller image": image("return torch.relu(F.conv2d(x, w) + s)", "B E H-2 W-2"),
    "larger image": image("y = F.conv_transpose2d(x.mT, v.permute(1, 0, 2, 3))\nreturn y - s", "B E W+1 H+1"),
    "places, then channels": sample(
        "y = F.conv_transpose2d(x, w)\ny = y.mean((2, 3))\nreturn torch.logsumexp(y + b, 1, keepdim=True) * 10",
        {"x": "B C H W", "w": "C E 3 3", "b": "E"}, {"out": "B 1"}, PLACES[0],
    ),
    "two images": image(
        "y = F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2)\nreturn F.relu(F.conv_transpose2d(y, v))",
        "B C H//2+1 W//2+1",
    ),
    "attention": sample(
        "s = torch.tanh(q) * 0.5\nreturn F.scaled_dot_product_attention(s, k, v, is_causal=True) + q",
        {"q": "B H S 8", "k": "B H S 8", "v": "B H S 8"}, {"out": "B H S 8"}, {"B": 2, "H": 3, "S": 9},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_corners_agree_with_torch(name: str) -> None:
    assert not (found := failures(CORNERS[name], thorough=False)), "\n\n".join([CORNERS[name].source(), *found])


ATTENTION = {"q": "B H 8: float32", "k": "B 6 8: float32", "v": "B 6 D: float32"}
VIEWED = "y = F.scaled_dot_product_attention(torch.relu(q), k, v)\n"


@pytest.mark.parametrize(
    ("returned", "shapes"),
    [
        ("y.transpose(1, 2).contiguous()", ["B D H"]),
        ("y.transpose(1, 2)", ["B D H"]),
        ("y, y.mT.contiguous(), y.mT", ["B H D", "B D H", "B D H"]),
        ("y.permute(2, 0, 1).contiguous().view(v.shape[2], q.shape[0], q.shape[1], 1)", ["D B H 1"]),
        ("y.mT.contiguous().mT.contiguous(), torch.relu(y).mT", ["B H D", "B D H"]),
        ("y.mT.clone(memory_format=torch.contiguous_format)", ["B D H"]),
        ("y.mT.flatten(1)", ["B D*H"]),
    ],
)
def test_what_the_reference_makes_contiguous_is_contiguous(returned: str, shapes: list[str]) -> None:
    """What it leaves as a view may be one, with the same strides, or contiguous."""
    outputs = {f"out{number}": f"{shape}: float32" for number, shape in enumerate(shapes)}
    found = sample(f"{VIEWED}return {returned}", ATTENTION, outputs, dtypes=())
    spec = found.spec()
    op = load(render.triton_source(plan_of(spec))).op
    reference = load(render.baseline_source(spec)).reference
    tensors = [torch.randn(2, *rest, device=DEVICE) for rest in ((3, 8), (6, 8), (6, 5))]
    for made, wanted in zip(as_tuple(op(*tensors)), as_tuple(reference(*tensors)), strict=True):
        torch.testing.assert_close(made, wanted)
        assert made.is_contiguous() or made.stride() == wanted.stride()


def test_a_channels_last_result_that_is_made_contiguous_is_so() -> None:
    found = image("return F.conv2d(x, w, b, padding=1).contiguous(), torch.relu(x)", "B E H W")
    found = replace(found, outputs=(*found.outputs, tensor("other", "B C H W")))
    op = load(render.triton_source(plan_of(found.spec()))).op
    x, w = torch.randn(2, 3, 6, 7, device=DEVICE), torch.randn(4, 3, 3, 3, device=DEVICE)
    rest = torch.randn(4, 3, 2, 2, device=DEVICE), torch.randn(4, 1, 1, device=DEVICE)
    b = torch.randn(4, device=DEVICE)
    out, _ = op(x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last), b, *rest)
    assert out.is_contiguous()


POINTWISE = ["torch.relu({})", "{} * 0.5 + 1", "F.silu({})", "torch.tanh({})"]
ROWS = ["F.softmax({}, -1)", "F.layer_norm({0}, ({0}.shape[-1],))", "{0} - {0}.amax(-1, keepdim=True)"]
TO_E = ["F.conv1d({}, w)", "F.conv1d({}, w, b)", "F.conv_transpose1d({}, v)", "F.conv1d({}, v.transpose(0, 1))"]
TO_D = ["F.conv1d({}, v)", "F.conv_transpose1d({}, w)", "F.conv1d({}, w.transpose(0, 1))"]


@st.composite
def chains(draw: st.DrawFn) -> Sample:
    """Steps, a convolution, steps, perhaps a second one and steps again, with what was there before added."""
    step = st.sampled_from(POINTWISE + ROWS)
    lines, now, wide, at = [], "x", False, 0
    for number in range(draw(st.integers(1, 2))):
        for text in draw(st.lists(step, max_size=2)):
            at += 1
            lines.append(f"h{at} = {text.format(now)}")
            now = f"h{at}"
        at += 1
        lines.append(f"h{at} = {draw(st.sampled_from(TO_D if wide else TO_E)).format(now)}")
        now, wide = f"h{at}", number == 0
    lines.append(f"h = {draw(step).format(now)}")
    back = " + x" if not wide and draw(st.booleans()) else ""
    return chain("\n".join([*lines, f"return h{back}"]), "B E L" if wide else "B D L")


@settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    max_examples=5 * TIMES,
    phases=(Phase.generate,),
)
@given(chains())
def test_chains_agree_with_torch(found: Sample) -> None:
    assert not (said := failures(found, thorough=False)), "\n\n".join([found.source(), *said])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("y = x\nreturn torch.einsum('bdl,bdm,e->bel', y, y, b)", "3:1: unsupported: nothing left for a kernel"),
        ("return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)", "attention with dropout"),
        (
            "y = torch.einsum('...dl,kd->...lk', x, w[..., 0])\nreturn y + b",
            "2:1: unsupported: torch.einsum with an ellipsis",
        ),
        ("return torch.matmul(x.mT.int(), x.int()) * 2", "2:1: unsupported: torch.matmul of integers"),
        (
            "y = torch.einsum('bdl,bdm,e->bel', x, x, b)\nreturn torch.igamma(y, y)",
            "2:1: unsupported: nothing left for a kernel: .*einsum and torch.igamma",
        ),
        ("y = F.conv1d(x, w)\nreturn y[y > 0]", "unsupported: a result whose size depends on values"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(lines: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said.replace("(", r"\(")):
        plan_of(chain(lines).spec())


def test_a_chip_takes_no_calls() -> None:
    from kernelgen.families import retarget
    from kernelgen.plan import Chip

    plan: Plan = plan_of(CORNERS["a product that another call reads"].spec())
    with pytest.raises(UnsupportedError, match=r"unsupported on this chip: calls of torch's .*einsum"):
        retarget(plan, Chip("ascend910b3", "npu", 40, 192 * 1024))

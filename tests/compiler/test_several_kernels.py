"""Operators that no one kernel holds: where they are cut, and that the kernels together agree with torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from references import Sample, failures, plan_of, sample
from test_compiler_random import TIMES

from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families import planning
from kernelgen.families.kernel import body_of
from kernelgen.frontend.graph import Graph
from kernelgen.plan import KernelPlan
from kernelgen.spec.model import Case, OperatorSpec

ROWS: tuple[dict[str, Any], ...] = ({"A": 3, "B": 5, "D": 17}, {"A": 2, "B": 1, "D": 34})


def three(lines: str, **outputs: str) -> Sample:
    """Of a tensor of three dimensions and a vector."""
    return sample(lines, {"x": "A B D", "w": "D"}, outputs, *ROWS)


def kernels(found: Sample) -> list[str]:
    """What every kernel writes."""
    return [" ".join(t.name for t in k.spec.outputs) for k in plan_of(found.spec()).kernels]


ROUTER = """\
weights, ids = torch.topk(torch.softmax(x, -1), 4, -1)
return weights / weights.sum(-1, keepdim=True), ids"""
BIASED = """\
scores = x.sigmoid()
ids = torch.topk(scores + b, 4, -1).indices
weights = scores.gather(1, ids)
return weights / weights.sum(-1, keepdim=True) * 2.5, ids"""
LOGPS = """\
per_token = torch.gather(x.float().log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
return (per_token * (labels != 0)).sum(-1)"""
POOLED = """\
pooled = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)
return F.normalize(pooled, dim=-1)"""
RESPONSE = """\
length = torch.sqrt((x * x).sum((1, 2), keepdim=True))
return x * (length / (length.mean(-1, keepdim=True) + 1e-6)) + x"""

NEAREST = """\
y = x.permute(0, 2, 3, 1)
flat = y.reshape(-1, 4)
d = (flat * flat).sum(1, keepdim=True) + (w * w).sum(1) - 2 * flat @ w.T
ids = d.argmin(1)
rows = w[ids].view(y.shape)
return y + (rows - y), ((rows - y) ** 2).mean(), ids"""

CORNERS = {
    "a mean of maxima": (three("return x.amax(-1).mean(-1)", out="A"), ["reduced", "out"]),
    "rows, then over rows": (three("return F.softmax(x, -1).mean(1)", out="A D"), ["row_max denominator", "out"]),
    "two reductions of one row and over rows": (
        three("return x - x.mean(-1, keepdim=True) - x.mean(1, keepdim=True)", out="A B D"), ["intermediate", "out"],
    ),
    "outputs of three shapes": (three("return x * 2, x.sum(-1), x.sum((0, 1))", y="A B D", s="A B", t="D"), ["y s", "t"]),
    "an output that is read again": (
        three("s = x.sum(-1, keepdim=True)\nreturn s, (x * s).sum(1)", s="A B 1", t="A D"), ["s s_2", "t"],
    ),
    "a scan of what was reduced": (three("return torch.softmax(x, -1).cumsum(-1)", out="A B D"), ["row_max denominator", "out"]),
    "reduced after a scan": (three("y = x.cumsum(-1)\nreturn y / y.abs().amax(-1, keepdim=True)", out="A B D"), ["y", "out"]),
    "a scan of rows that are turned": (three("return x.flip(-1).cumsum(-1)", out="A B D"), ["intermediate", "out"]),
    "places from the end": (three("return x.flip(-1).cummax(-1).indices.flip(-1)", out="A B D: int64"), ["intermediate", "scanned", "out"]),
    "a scan between turns of another dimension": (three("return x.flip(0).cumsum(-1).flip(0)", out="A B D"), ["intermediate", "scanned", "out"]),
    "a router": (
        sample(ROUTER, {"x": "A D"}, {"weights": "A 4", "ids": "A 4: int64"}, {"A": 5, "D": 12}, constraints=("x.shape[1] >= 4",)),
        ["ids selected", "weights"],
    ),
    "a router with a bias": (
        sample(BIASED, {"x": "A D", "b": "D"}, {"weights": "A 4", "ids": "A 4: int64"}, {"A": 5, "D": 12},
               constraints=("x.shape[1] >= 4",)),
        ["ids", "weights"],
    ),
    "counted, then divided": (
        sample("return torch.bincount(i, minlength=7).float() / i.numel()", {"i": "A: int64 < 7"}, {"out": "7: float32"}, {"A": 30}),
        ["scattered", "out"],
    ),
    "counted of what is computed": (
        sample("b = (x.nan_to_num(0) * 3).clamp(0, 2).long()\nreturn torch.bincount(b, minlength=3)", {"x": "A"}, {"out": "3: int64"}, {"A": 30},
               dtypes=(("T", ("float32",)),)),
        ["b", "out"],
    ),
    "the nearest rows of a table, and how far they are": (
        sample(NEAREST, {"x": "A 4 H W", "w": "K 4"}, {"rows": "A H W 4", "loss": "", "ids": "A*H*W: int64"},
               {"A": 2, "H": 3, "W": 5, "K": 6}, dtypes=(("T", ("float32",)),)),
        ["reduced", "reduced_2", "reduced_3", "ids", "rows loss"],
    ),
    "batches of windows that are joined again": (
        sample("return F.softmax((x + m).reshape(-1, x.shape[-1]), -1)", {"x": "4 6 D", "m": "6 1"}, {"out": "24 D"}, {"D": 17}),
        ["out"],
    ),
    "norms of two tensors": (
        sample("n = (x.square().sum() + y.square().sum()).sqrt()\nreturn x / n, y / n", {"x": "A", "y": "B"}, {"a": "A", "b": "B"},
               {"A": 7, "B": 40}),
        ["reduced", "reduced_2", "a", "b"],
    ),
    "log probabilities of a sequence": (
        sample(LOGPS, {"x": "A B D", "labels": "A B: int64 < D"}, {"out": "A: float32"}, *ROWS), ["intermediate", "out"],
    ),
    "places, then channels": (sample(POOLED, {"x": "A B D", "mask": "A B: float32"}, {"out": "A D: float32"}, *ROWS), ["pooled", "out"]),
    "a norm over places by that of channels": (
        sample(RESPONSE, {"x": "A H W D"}, {"out": "A H W D"}, {"A": 2, "H": 3, "W": 4, "D": 17}), ["length", "reduced", "out"],
    ),
    "all of a slice": (
        sample("return x[:, 1:].mean()", {"x": "A B D"}, {"out": ""}, {"A": 3, "B": 5, "D": 9}, constraints=("x.shape[1] >= 2",)),
        ["out"],
    ),
    "columns of a slice": (
        sample("return x[:, 1:].sum((0, 1))", {"x": "A B D"}, {"out": "D"}, {"A": 3, "B": 5, "D": 9}, constraints=("x.shape[1] >= 2",)),
        ["reduced", "out"],
    ),
    "total variation": (
        sample("return (x[:, 1:] - x[:, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()", {"x": "A B D"}, {"out": ""},
               {"A": 3, "B": 5, "D": 9}, constraints=("x.shape[1] >= 2 and x.shape[2] >= 2",)),
        ["intermediate", "intermediate_2", "out"],
    ),
    "one element of a row, then all": (
        sample("return x.gather(-1, i[..., None]).amax(-1).sum(-1)", {"x": "A B D", "i": "A B: int64 < D"}, {"out": "A"}, *ROWS),
        ["out"],
    ),
    "one place of a dimension that is reduced with others": (
        three("y = x[:, -1:] * 0.5 + x\nreturn y - y.amax((0, 1), keepdim=True)", out="A B D"), ["reduced", "reduced_2", "out"],
    ),
    "an input named like the end of another": (
        sample("gx = x.sum(1, keepdim=True)\nreturn x * (gx / gx.abs().amax(-1, keepdim=True))", {"x": "A B D"}, {"out": "A B D"}, *ROWS),
        ["gx", "reduced", "out"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_corners_are_cut_where_little_is_moved(name: str) -> None:
    found, expected = CORNERS[name]
    assert kernels(found) == expected


@pytest.mark.parametrize("name", CORNERS)
def test_corners_agree_with_torch(name: str) -> None:
    found, _ = CORNERS[name]
    assert not (said := failures(found, thorough=False)), "\n\n".join([found.source(), *said])


STEPS = [
    "{0} * 2 + 1", "torch.tanh({0})", "F.softmax({0}, -1)", "{0} - {0}.mean(1, keepdim=True)", "{0}.cumsum(-1)", "{0}.cumsum(1)",
    "F.rms_norm({0}, ({0}.shape[-1],), eps=1e-6)", "{0} * w", "{0} / ({0}.abs().amax((1, 2), keepdim=True) + 1)",
]  # fmt: skip
ENDS = {
    "{0}": {"out": "A B D"}, "{0}.sum(-1)": {"out": "A B"}, "{0}.amax(-1).mean(-1)": {"out": "A"},
    "{0}.mean(1)": {"out": "A D"}, "{0}.mean()": {"out": ""}, "{0}.sum((0, 1))": {"out": "D"},
    "{0}.amax(-1), {0}.sum(1)": {"a": "A B", "b": "A D"},
}  # fmt: skip


@st.composite
def chains(draw: st.DrawFn) -> Sample:
    """Steps along different dimensions one after the other, and what is returned of them."""
    chosen = draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=3))
    names = ["x", *(f"h{n}" for n in range(len(chosen)))]
    lines = [f"{after} = {step.format(before)}" for before, after, step in zip(names, names[1:], chosen, strict=False)]
    end = draw(st.sampled_from(list(ENDS)))
    return three("\n".join([*lines, f"return {end.format(names[-1])}"]), **ENDS[end])


@settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    max_examples=12 * TIMES,
    phases=(Phase.generate,),
)
@given(chains())
def test_chains_agree_with_torch(found: Sample) -> None:
    assert not (said := failures(found, thorough=False, most=2)), "\n\n".join([found.source(), *said])


TABLE = {"x": "A B", "i": "D: int64 < A", "y": "D B"}, {"out": "A B"}
SQUARE = {"x": "A A"}, {"out": "A A"}
WIDE = ({"A": 3, "B": 4, "D": 7},)
BESIDE: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "softmax of a selection": (
        "values, places = x.topk(3)\nreturn torch.softmax(values, -1)", {"x": "B 64"}, {"out": "B 3"}
    ),
    "a scatter of what is computed": ("return x.index_add(0, i, y * 2)", *TABLE),
    "a scatter, and more": ("return x.index_add(0, i, y) + 1", *TABLE),
    "beside a selection": ("return x.topk(3).values, x * 2", {"x": "B 64"}, {"out": "B 3", "y": "B 64"}),
    "two selections": (
        "return x.topk(3).values, (-x).topk(3).values", {"x": "B 64"}, {"out": "B 3", "least": "B 3"}
    ),
    "one dimension and two": (
        "return x - x.sum(-1, keepdim=True) - x.sum((-1, -2), keepdim=True)", {"x": "A B D"}, {"out": "A B D"}
    ),
    "a row's mean in another row": ("return x - x.mean(-1)", *SQUARE),
    "a scan that is turned": ("return x.cumsum(-1).T", *SQUARE),
    "a vector beside rows": ("return x.sum(-1), w * 2", {"x": "A D", "w": "D"}, {"out": "A", "v": "D"}),
    "scans from both ends": ("return x.cumsum(-1) + x.flip(-1).cumsum(-1).flip(-1)", {"x": "A D"}, {"out": "A D"}),
    "as many heads of one as of another": (
        "return q * 2, k.sum(-1)", {"q": "A B D", "k": "A D B"}, {"out": "A B D", "s": "A D"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_one_iteration_space_does_not_serve(name: str) -> None:
    lines, inputs, outputs = BESIDE[name]
    found = sample(lines, inputs, outputs, *WIDE)
    assert len(plan_of(found.spec()).kernels) == 2
    assert not (said := failures(found, thorough=False)), "\n\n".join([found.source(), *said])


FLATTENED = {
    "all": ("p = torch.sigmoid(x).flatten()\nreturn (p * x.reshape(-1)).sum() / p.sum()", ""),
    "all but the batch": ("y = x.flatten(1)\nreturn y / y.norm(dim=-1, keepdim=True)", "N W*C*4"),
    "scanned, and taken apart": ("y = x.flatten(1).cumsum(-1).view(x.shape)\nreturn y * x.amax((0, 1, 2))", "N W C 4"),
    "and back": ("y = torch.softmax(x.flatten(2), -1)\nreturn y.view(x.shape) * x", "N W C 4"),
}


@pytest.mark.parametrize("name", FLATTENED)
def test_dimensions_are_joined_in_the_order_of_memory(name: str) -> None:
    """The trace has products of sizes in an order of its own."""
    lines, out = FLATTENED[name]
    inputs = {"x": "N W C 4"}
    found = sample(lines, inputs, {"out": out}, {"N": 2, "W": 3, "C": 5}, {"N": 1, "W": 7, "C": 2})
    assert not (said := failures(found, thorough=False)), "\n\n".join([found.source(), *said])


def test_what_is_refused_is_the_part_that_no_family_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest one: a scan that is refused, and not all that is computed from it."""
    lower = planning._one_kernel

    def without_scans(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...] = ()) -> KernelPlan:
        if graph.kind == "scan":
            raise UnsupportedError([Mistake("op.yaml", 1, 1, f"a scan among {len(graph.nodes)} nodes")])
        return lower(spec, graph, notes)

    monkeypatch.setattr(planning, "_one_kernel", without_scans)
    found = three("y = x.cumsum(1)\nreturn y - y.mean(-1, keepdim=True)", out="A B D")
    with pytest.raises(UnsupportedError, match="a scan among 2 nodes"):
        plan_of(found.spec())


MIXED_WINDOWS = """\
y = x.flatten(start_dim=2).transpose(1, 2)
norm = F.layer_norm(y, a.shape, a)
norm1 = F.layer_norm(norm, b.shape, b)
v = norm1.view(2, 8, 8, 24)
v = v.view(2, 4, 2, 4, 2, 24).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 3, 8)
v = v.transpose(1, 2).reshape(-1, 12, 8)
u = F.conv1d(v, w, bias, groups=3).view(-1, 3, 4, 8).transpose(1, 2).reshape(-1, 2, 2, 24)
u = u.view(2, 4, 4, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).contiguous().view(2, 64, 24)
z = norm + u
return F.linear(F.layer_norm(z, a.shape, b), m)"""


def test_windows_of_what_a_convolution_came_to_are_partitioned_and_joined_again() -> None:
    """A convolution by groups is left as its last view, of which another reads parts of dimensions."""
    inputs = {"x": "2 24 8 8", "a": "24", "b": "24", "w": "12 4 1", "m": "K 24", "bias": "12"}
    timed = Case((("K", 24),), (("T", "float32"),))
    found = sample(MIXED_WINDOWS, inputs, {"out": "2 64 K"}, {"K": 3}, dtypes=(("T", ("float32",)),))
    assert plan_of(replace(found.spec(), performance=(timed,)))
    assert not (said := failures(found, thorough=False, most=1)), "\n\n".join(said)


PARTED = {
    "rows of parts of a dimension": ("return x.reshape(-1, 3, 8).softmax(-1)", "B 3 8", 1),
    "rows before and after": ("return x.softmax(-1).reshape(-1, 3, 8).softmax(-1)", "B 3 8", 2),
    "sums over a part": ("return x.reshape(-1, 3, 8).sum(1)", "B 8", 1),
    "a scan": ("return x.transpose(1, 2).reshape(-1, 3, 8).cumsum(-1)", "B 3 8", 1),
    "a selection": ("return x.transpose(1, 2).reshape(-1, 3, 8).topk(2).values", "B 3 2", 1),
    "beside what is whole": ("return (x.relu().reshape(-1, 3, 8) + x.sum()).softmax(-1)", "B 3 8", 2),
    "flipped before it is scanned": ("y = x.flip(0).cumsum(1)\nreturn y - y.mean(-1, keepdim=True)", "B 6 4", 3),
    "over a product of sizes": ("return x - x.reshape(-1, 8).mean(0).reshape(2, 4).repeat(3, 1)", "B 6 4", 3),
}


@pytest.mark.parametrize("name", PARTED)
def test_a_reshape_takes_dimensions_apart_and_joins_their_parts(name: str) -> None:
    lines, out, count = PARTED[name]
    found = sample(lines, {"x": "B 6 4"}, {"out": out}, {"B": 5}, {"B": 1})
    assert len(kernels(found)) == count
    assert not (said := failures(found, thorough=False)), "\n\n".join([found.source(), *said])


def test_a_convolution_by_groups_is_a_kernel_where_its_result_is_moved() -> None:
    """Its result is left as the view that the bias is added to, which is computed after all products are."""
    lines = "y = F.conv1d(x, w, b, groups=3).view(-1, 3, 4, 8).transpose(1, 2).reshape(-1, 4, 24)\nreturn F.pad(y, (0, 0, 1, 1))"
    found = sample(lines, {"x": "B 12 8", "w": "12 4 1", "b": "12"}, {"out": "B 6 24"}, {"B": 2})
    assert kernels(found) == ["product", "out"]
    assert not plan_of(found.spec()).calls
    assert not (said := failures(found, thorough=False, most=1)), "\n\n".join(said)


IMAGES = {"B": 32, "C": 64, "D": 20, "H": 64, "W": 64, "J": 64}
LEFT: dict[str, tuple[str, str, str, dict[str, int], set[str]]] = {
    "a cheap function that is read twice": (
        "y = torch.relu(F.conv2d(x, w, b, padding=1))\nreturn y - y.mean((0, 2, 3), keepdim=True)", "H W", "B J H W", {},
        {"add", "maximum"},
    ),
    "a chain of instructions that is read twice": (
        "y = torch.tanh(F.conv2d(x, w, b, padding=1))\nreturn y - y.mean((0, 2, 3), keepdim=True)", "H W", "B J H W", {},
        {"add", "tanh"},
    ),
    "one that memory hides": ("return torch.tanh(F.conv2d(x, w, b, padding=1)).mean((2, 3))", "H W", "B J", {}, {"add"}),
    "what torch's call comes to": (
        "return torch.relu(F.conv3d(x, w, b, padding=1)).mean((2, 3, 4))", "D H W", "B J", {"C": 3}, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_a_convolution_leaves_is_its_sum_with_the_bias_or_what_is_computed_once(name: str) -> None:
    """Without its bias a result may be infinite that is not, and is rounded once more; but torch's call adds that in
    a pass of its own. It is left in the dtype that torch has it in."""
    lines, space, out, sizes, computed = LEFT[name]
    inputs = {"x": f"B C {space}", "w": f"J C {' '.join('3' for _ in space.split())}", "b": "J"}
    found = sample(lines, inputs, {"out": out}, {**IMAGES, **sizes})
    case = Case(tuple((IMAGES | sizes).items()), (("T", "float32"),))
    first, *rest = plan_of(replace(found.spec(), performance=(case,))).kernels
    assert first.family == "convolution"
    assert rest
    assert {v.op for v in body_of(first).lowered.values} - {"load", "dot"} == computed
    assert [t.dtype for t in first.spec.outputs] == ["T"]


def test_what_is_read_many_times_is_looked_at_once() -> None:
    """By every way to a value there would be 2**40 of them."""
    lines = "y = F.conv2d(x, w, padding=1)\nfor _ in range(40):\n    y = y * (y + 1)\nreturn y - y.mean((0, 2, 3), keepdim=True)"
    found = sample(lines, {"x": "B C H W", "w": "J C 3 3"}, {"out": "B J H W"}, IMAGES)
    assert plan_of(found.spec()).kernels[0].family == "convolution"


def test_no_group_is_lowered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is cut before what reductions read is written, the second search knows what the first one tried."""
    lowered, lower = Counter[Any](), planning._one_kernel

    def counted(spec: OperatorSpec, graph: Graph, notes: tuple[str, ...] = ()) -> KernelPlan:
        lowered[spec.inputs, spec.outputs, graph.nodes, graph.outputs] += 1
        return lower(spec, graph, notes)

    monkeypatch.setattr(planning, "_one_kernel", counted)
    assert kernels(CORNERS["total variation"][0])
    assert lowered.most_common(1)[0][1] == 1


def test_one_kernel_stays_one() -> None:
    plan = plan_of(three("return F.softmax(x, -1) * w", out="A B D").spec())
    assert isinstance(plan, KernelPlan)

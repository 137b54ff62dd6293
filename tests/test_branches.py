"""Branches of a reference on sizes: the side that all shapes of the spec take becomes a constraint."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kernelgen import families
from kernelgen.errors import UnsupportedError
from kernelgen.frontend import trace
from kernelgen.generation import lowered
from kernelgen.plan import ChoicesPlan
from kernelgen.render import triton_source
from kernelgen.spec import parse_spec
from kernelgen.spec.branches import parsed
from kernelgen.spec.model import OperatorSpec

SPEC = """\
name: op
inputs:
  - {{name: x, shape: [{shape}], dtype: float32}}
outputs:
  - {{name: out, shape: [{shape}], dtype: float32}}
{constraints}reference: |
  def op(x, most=64):
{body}
{shapes}"""
TIMED = "performance: {shapes: [{N: 4096, D: 1024}]}\n"
BOTH = "accuracy: {shapes: [{N: 1, D: 3}]}\n" + TIMED


def spec_of(body: str, shapes: str = TIMED, constraint: str = "", shape: str = "N, D") -> OperatorSpec:
    lines = "\n".join(f"      {line}" for line in body.splitlines())
    said = f"constraints: ['{constraint}']\n" if constraint else ""
    return parse_spec(SPEC.format(shape=shape, body=lines, shapes=shapes, constraints=said), "op.yaml")


SETTLED = {
    "return x * 2 if x.shape[1] > most else x": "x.shape[1] > 64",
    "return x if x.size(1) <= most else x * 2": "x.size(1) > 64",
    "n, d = x.shape\nlong = d > most\nif long and n >= 1:\n    x = x * 2\nreturn x": "x.shape[1] > 64 and x.shape[0] >= 1",
    "if not x.numel() > 100:\n    return x\nreturn x * 2": "x.numel() > 100",
    "if x.shape[0] == 1:\n    return x\nreturn x * 2": "x.shape[0] != 1",
    "if len(x.shape) == 3:\n    return x\nreturn x * 2": "",
    "if x.shape[1] == 2000:\n    return x\nreturn x * 2": "x.shape[1] != 2000",
    "return x if x.shape[1] // 100 > 50 else x * 2": "x.shape[1] // 100 <= 50",
    "return x * (x.shape[1] >= 2 and 2.0 or 3.0)": "x.shape[1] >= 2",
    "n = x.shape[0]\nscale = n == 1 and 2.0 or 3.0\nreturn x * scale": "x.shape[0] != 1",
    "return x * (x.shape[1] > 2000 and 2.0 or 3.0)": "x.shape[1] <= 2000",
    "return x * (2.0 if x.shape[1] > 8 and x.shape[0] > 8 else 3.0)": "x.shape[1] > 8 and x.shape[0] > 8",
}


@pytest.mark.parametrize("body", SETTLED)
def test_the_side_that_is_used_becomes_a_constraint(body: str) -> None:
    spec = spec_of(body)
    assert [side.constraint for side in spec.sides] == [SETTLED[body]]
    assert [c.text for c in spec.constraints] == [SETTLED[body]] * bool(SETTLED[body])
    graph, notes = trace(spec)
    assert [node.op for node in graph.nodes] == ["input", "mul"]
    assert any("another branch" in note for note in notes) == bool(SETTLED[body])


def test_the_wrapper_refuses_the_other_side() -> None:
    spec = spec_of("return x * 2 if x.shape[1] > most else x")
    text = triton_source(families.lower(spec, *trace(spec)))
    assert 'raise ValueError(f"op: needs x.shape[1] > 64, got x {tuple(x.shape)}")' in text
    assert all(dict(case.sizes)["D"] > 64 for case in spec.accuracy)


def test_the_side_that_is_traced_is_at_sizes_that_take_it() -> None:
    """A slice that keeps all of a short row would be no slice."""
    spec = spec_of("if x.shape[1] > 100:\n    return x - x[:, :100].sum(1, keepdim=True)\nreturn x")
    graph, _ = trace(spec)
    assert [node.op for node in graph.nodes] == ["input", "index", "sum", "sub"]


def test_any_number_of_dimensions() -> None:
    timed = "accuracy: {shapes: [{...: [2, 3], D: 5}]}\nperformance: {shapes: [{...: [4, 1024], D: 1024}]}\n"
    spec = spec_of("return x * 2 if x.ndim >= 3 else x", timed, shape="..., D")
    assert [side.constraint for side in spec.sides] == ["x.ndim >= 3"]
    assert [node.op for node in trace(spec)[0].nodes] == ["input", "mul"]


BOTH_SIDES = "return x if x.shape[1] > 64 else x + 1"
UNREAD = "y = x[:, 1:]\nreturn x if y.shape[1] > 64 else x + 1"
REFUSED = {
    "both": (
        BOTH_SIDES,
        BOTH,
        "write two specs, one with the constraint x.shape[1] > 64 and one with x.shape[1] <= 64",
    ),
    "made": (UNREAD, TIMED, "only tests of the inputs' .shape, .ndim and numbers can be settled"),
    "changed": (
        "x = x + 1\nreturn x if x.shape[1] > 64 else -x",
        TIMED,
        "of the inputs' .shape, .ndim and numbers can",
    ),
    "guard": (
        "scale = (1.0, 2.0)[int(x.shape[1] > 30)]\nreturn x * scale",
        TIMED,
        "write the constraint x.shape[1] > 30)",
    ),
    "guard about a large size": (
        "scale = (1.0, 2.0)[int(x.shape[1] > 2000)]\nreturn x * scale",
        TIMED,
        "write the constraint x.shape[1] <= 2000)",
    ),
    "guard about a large product": (
        "scale = (1.0, 2.0)[int(x.shape[0] * x.shape[1] > 20000)]\nreturn x * scale",
        TIMED,
        "write the constraint x.shape[0] * x.shape[1] <= 20000)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_the_way_out(name: str) -> None:
    body, shapes, said = REFUSED[name]
    with pytest.raises(UnsupportedError) as error:
        trace(spec_of(body, shapes))
    assert said in str(error.value)


def test_a_constraint_settles_it_too() -> None:
    spec = spec_of(BOTH_SIDES, TIMED, "x.shape[1] >= 65")
    assert [side.constraint for side in spec.sides] == [""]
    assert len(spec.constraints) == 1
    assert [node.op for node in trace(spec)[0].nodes] == ["input"]


CHOSEN = "scale = (1.0, 2.0)[int(x.shape[1] > 64)]\nreturn x * scale"


@pytest.mark.parametrize(
    ("body", "side", "other"),
    [(BOTH_SIDES, "x.shape[1] > 64", "x.shape[1] <= 64"), (CHOSEN, "x.shape[1] <= 64", "x.shape[1] > 64")],
)
def test_both_sides_that_shapes_take_have_kernels_of_their_own(body: str, side: str, other: str) -> None:
    plan = lowered(spec_of(body, BOTH))
    assert isinstance(plan, ChoicesPlan)
    assert [(one.choice.when, one.choice.suffix) for one in plan.alternatives] == [(side, "then"), ("", "else")]
    assert [[c.text for c in one.choice.spec.constraints] for one in plan.alternatives] == [[side], [other]]
    served = [plan.at(case).spec.name for case in (*plan.spec.accuracy, *plan.spec.performance)]
    assert served == (["op_else", "op_then"] if ">" in side else ["op_then", "op_else"])
    text = triton_source(plan)
    assert f"        if {side}:\n            return op_then(x)\n        return op_else(x)\n" in text
    assert 'ValueError(f"op: needs' not in text  # no size is refused


def test_what_is_timed_has_the_table_that_is_tuned() -> None:
    body = "return x if x.shape[1] <= 64 else x - x.mean(1, keepdim=True)"
    plan = lowered(spec_of(body, BOTH))
    assert isinstance(plan, ChoicesPlan)
    assert [one.is_tuned for one in plan.alternatives] == [False, True]
    assert plan.family == "reduction"


def test_a_guard_of_the_trace_becomes_the_constraint_that_all_shapes_meet() -> None:
    plan = lowered(spec_of(CHOSEN))
    assert [c.text for c in plan.spec.constraints] == ["x.shape[1] > 64"]
    assert any("another branch unless x.shape[1] > 64" in note for note in plan.notes)
    plan = lowered(spec_of(CHOSEN, "performance: {shapes: [{N: 4, D: 8}]}\n"))
    assert [c.text for c in plan.spec.constraints] == ["x.shape[1] <= 64"]


def test_a_second_condition_that_shapes_take_both_sides_of_is_refused() -> None:
    body = "y = x if x.shape[0] > 9 else x * 2\nreturn y if x.shape[1] > 64 else y + 1"
    with pytest.raises(UnsupportedError, match=r"one with the constraint x.shape\[1\] > 64 and one with"):
        lowered(spec_of(body, BOTH))


@pytest.mark.parametrize(
    "text", ["n > 1 and a or b", "n > 1 or a and n < 5 and b", "a and n > 1", "(n > 1 and n < 5) or b"]
)
def test_and_and_or_mean_the_same_as_ifs(text: str) -> None:
    """Where comparisons choose, for every value of what they choose between."""
    tree = parsed(f"def op(n, a, b):\n    return {text}\n")
    scope: dict[str, Any] = {}
    exec(compile(tree, "op", "exec"), scope)
    for n, a, b in itertools.product((0, 1, 2, 9), (0, 7), (0.0, 5)):
        assert scope["op"](n, a, b) == eval(text, {"n": n, "a": a, "b": b})

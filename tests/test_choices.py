"""Options and optional inputs: the operators that one is, by how it is called, behind one wrapper."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_spec import expect

from kernelgen import generation, render
from kernelgen.errors import SpecError
from kernelgen.families import row_of
from kernelgen.judge import Case, Operator, Tensor
from kernelgen.plan import ChoicesPlan, KernelPlan
from kernelgen.spec import parse_spec
from kernelgen.spec.choices import choices
from kernelgen.spec.model import OperatorSpec
from kernelgen.verify import covering

NORM = """\
name: norm
inputs:
  - {name: x, shape: [..., D], dtype: T}
  - {name: weight, shape: [D], dtype: T, optional: true}
  - {name: bias, shape: [D], dtype: T, optional: true}
  - {name: eps, scalar: float, default: 1e-5}
outputs:
  - {name: out, shape: [..., D], dtype: T}
dtypes: {T: [float32]}
constraints:
  - bias is None or weight is not None
reference: |
  def norm(x, weight=None, bias=None, eps=1e-5):
      out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
      if weight is not None:
          out = out * weight
      return out if bias is None else out + bias
accuracy: {shapes: [{...: [3], D: 5}]}
performance: {shapes: [{...: [64], D: 512}]}
"""
SCALE = """\
name: scale
inputs:
  - {name: x, shape: [M, N], dtype: float32}
  - {name: mode, scalar: str, values: [sum, tanh], default: tanh}
  - {name: power, scalar: int, values: [-1, 2], default: 2}
  - {name: upper, scalar: bool, default: false}
outputs:
  - {name: out, shape: [M, N], dtype: float32}
constraints:
  - not upper or x.shape[0] == x.shape[1]
  - mode == "tanh" or power == 2
reference: |
  def scale(
      x, mode="tanh",
      power=2, upper=False,
  ):
      kept = x.triu() if upper else x
      return (kept.tanh() if mode == "tanh" else kept + x) ** power
"""


def test_an_operator_is_one_for_every_way_of_calling_it() -> None:
    found = choices(parse_spec(NORM))
    assert [(c.given, c.when, c.suffix) for c in found] == [
        ((), "bias is not None", "weight_bias"),
        ((("bias", None),), "weight is not None", "weight"),
        ((("weight", None), ("bias", None)), "", "plain"),
    ]
    assert [t.name for t in found[1].spec.inputs] == ["x", "weight", "eps"]
    assert found[1].spec.reference.startswith("def norm_weight(x, weight, eps, bias=None):\n    out = x *")
    assert [c.label for c in found[2].spec.accuracy] == ["[3] D=5 float32 without weight without bias"]
    assert all(not c.spec.constraints for c in found)


def test_options_have_values_and_constraints_say_which_go_together() -> None:
    spec = parse_spec(SCALE)
    found = {c.suffix: c for c in choices(spec)}
    assert set(found) == {f"mode_{m}_power_{p}{u}" for m, p in (("sum", 2), ("tanh", 2), ("tanh", "m1"))
                          for u in ("", "_upper")}  # fmt: skip
    assert list(found)[-1] == "mode_tanh_power_2"
    assert [c.text for c in found["mode_sum_power_2_upper"].spec.constraints] == ["x.shape[0] == x.shape[1]"]
    assert found["mode_sum_power_2"].spec.constraints == ()
    assert found["mode_tanh_power_m1"].when == "power == -1"
    # lines stay where they are, for messages
    lines = spec.reference.split("\n")
    assert found["mode_tanh_power_2"].spec.reference.split("\n")[4:] == lines[4:]


def test_a_spec_without_options_is_itself() -> None:
    text = SCALE.split("  - {name: mode")[0] + SCALE[SCALE.index("outputs:") : SCALE.index("constraints")]
    text += 'reference: |\n  def scale(x, mode="tanh"):\n      return x\n'
    assert choices(parse_spec(text)) == ()


ALWAYS = ("{name: x, shape: [..., D], dtype: T}", "§{name: x, shape: [..., D], dtype: T, optional: true}")


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([("weight, shape: [D]", "weight, shape: [§K]"), ("D: 5}", "D: 5, K: 5}"), ("D: 512}", "D: 512, K: 5}")],
         "size 'K' is bound by optional inputs alone"),
        ([("bias, shape: [D], dtype: T", "bias, shape: [D], dtype: §B"), ("[float32]", "[float32], B: [float16]")],
         "the dtype 'B' is that of optional inputs alone"),
        ([ALWAYS, ("  - {name: weight", "  - {name: y, shape: [..., D], dtype: T}\n  - {name: weight"),
          ("(x, weight", "(x, y, weight")], "optional inputs stand behind the others"),
        ([("\ndtypes", "\nbackward: §true\ndtypes")], "there are no gradients beside numbers yet"),
        ([("bias is None or", "§bias is 0 or")], "cannot be used here"),
        ([("bias is None or", "§x is None or")], "cannot be used here"),
        ([("bias is None or", "§eps or")], "'eps' is a whole tensor"),
        ([("weight=None, bias", "§gain=None, bias"), ("if weight", "if gain"), ("out * weight", "out * gain")],
         "parameter 'gain' stands where the input 'weight' is declared"),
        ([("out, shape: [..., D], dtype: T", "out, shape: [D], dtype: T, into: §bias")], "bias is optional"),
    ],
)  # fmt: skip
def test_mistakes_of_optional_inputs_have_their_place(edits: list[tuple[str, str]], message: str) -> None:
    text = NORM
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    expect(text, message)


def test_more_ways_than_anybody_reads_are_refused() -> None:
    extra = "".join(f"  - {{name: flag{i}, scalar: bool, default: false}}\n" for i in range(2))
    text = NORM.replace("  - {name: eps", f"{extra}  - {{name: eps").replace("  - {name: weight", "  - §{name: weight")
    expect(text.replace("bias=None,", "bias=None, flag0=0, flag1=0,"), "16 ways of calling the operator")


def made(text: str, folder: Path) -> ModuleType:
    """The wrapper of a spec, as a module."""
    spec = parse_spec(text)
    files = render.quartet(generation.plan_of(spec, folder))
    path = folder / f"{spec.name}_triton.py"
    path.write_text(files[path.name])
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


APART = NORM.replace(
    "return out if bias is None else out + bias", "return out if bias is None else out.cumsum(-1) + bias"
)


def test_the_wrapper_chooses_and_refuses_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm: Any = made(APART, tmp_path)
    called: list[tuple[str, int]] = []
    for name in ("norm_weight_bias", "norm_weight", "norm_plain"):
        monkeypatch.setattr(norm, name, lambda *given, name=name: called.append((name, len(given))))
    x, weight = torch.ones(2, 4), torch.ones(4)
    norm.norm(x)
    norm.norm(x, weight, eps=1)
    norm.norm(x, weight, bias=weight)
    assert called == [("norm_plain", 2), ("norm_weight", 3), ("norm_weight_bias", 4)]
    for given, message in [
        ((x, torch.ones(5)), r"weight.shape must be \(x.shape\[-1\],\), got shapes \(5,\) and \(2, 4\)"),
        ((x, None, weight), "needs bias is None or weight is not None, got bias a tensor, weight None"),
        ((x, weight.half()), "weight must have the dtype of x"),
        ((x, None, None, "small"), "eps must be a number, got 'small'"),
    ]:
        with pytest.raises(ValueError, match=f"norm: {message}"):
            norm.norm(*given)


def test_kernels_that_have_most_in_common_are_one(tmp_path: Path) -> None:
    text = render.triton_source(generation.plan_of(parse_spec(NORM), tmp_path))
    assert "def norm_plain" not in text
    assert "    HAS_WEIGHT: tl.constexpr,\n    HAS_BIAS: tl.constexpr,\n    BLOCK_SIZE_M" in text
    assert "    if HAS_BIAS:\n" in text
    assert "    elif HAS_WEIGHT:\n" in text
    assert "    else:\n" in text
    assert "HAS_WEIGHT=weight is not None," in text
    assert "0 if weight is None else weight.stride(0)," in text


def test_a_mistake_of_one_way_is_said_of_it(tmp_path: Path) -> None:
    text = NORM.replace("if weight is not None:", "if bias is None:")
    with pytest.raises(
        SpecError, match="called without weight and without bias: the reference fails: unsupported operand"
    ):
        generation.plan_of(parse_spec(text), tmp_path)


STEP = """\
name: step
inputs:
  - {name: x, shape: [...], dtype: float32}
  - {name: order, scalar: int, default: 2, values: [2]}
  - {name: count, scalar: int, default: 3}
outputs:
  - {name: out, shape: [...], dtype: float32}
reference: |
  def step(x, order=2, count=3):
      return x ** order * (1 - 0.9 ** count)
"""


def test_an_option_of_one_value_stays_in_the_signature_and_decides_nothing(tmp_path: Path) -> None:
    spec = parse_spec(STEP)
    (only,) = choices(spec)
    assert (only.given, only.suffix, only.spec.name) == ((), "", "step")
    assert {case.label for case in spec.accuracy} >= {"[300]"}
    files = render.quartet(generation.plan_of(spec, tmp_path))
    assert 'fixed=(("order", 2),),' in files["step_accuracy.py"]
    assert "def step(x: torch.Tensor, order: int = 2, count: int = 3) -> torch.Tensor:" in files["step_triton.py"]
    # a whole number is a float in the kernel, which Triton would else compile anew for 1
    assert "float(count)," in files["step_triton.py"]
    assert case_argument(spec, "order") == (2, "value")
    wrapper: Any = made(STEP, tmp_path)
    for given, message in [((3,), "order must be 2, got 3"), ((2, 1.5), "count must be a whole number, got 1.5")]:
        with pytest.raises(ValueError, match=f"step: {message}"):
            wrapper.step(torch.ones(3), *given)


def case_argument(spec: OperatorSpec, name: str) -> tuple[object, str]:
    return spec.accuracy[0].argument(next(t for t in spec.inputs if t.name == name))


def test_one_table_serves_kernels_of_one_family_and_every_way_is_compiled(tmp_path: Path) -> None:
    plan = generation.plan_of(parse_spec(NORM), tmp_path)
    assert isinstance(plan, ChoicesPlan)
    assert all(one.is_tuned for one in plan.alternatives)
    fewer = plan.with_table(plan.table[-1:])
    assert all(isinstance(one.plan, KernelPlan) and len(one.plan.table) == 1 for one in fewer.alternatives)
    lines = {(case.given, row_of(plan, case)) for case in covering(plan)}
    assert {given for given, _ in lines} == {c.choice.given for c in plan.alternatives}


def test_kernels_of_another_family_keep_their_schedules(tmp_path: Path) -> None:
    text = SCALE.replace(
        'kept.tanh() if mode == "tanh" else kept + x', 'kept.tanh() if mode == "tanh" else kept.cumsum(1)'
    )
    plan = generation.plan_of(parse_spec(text), tmp_path)
    assert isinstance(plan, ChoicesPlan)
    assert {one.choice.suffix[:8]: one.is_tuned for one in plan.alternatives} == {"mode_sum": True, "mode_tan": False}
    tuned = plan.with_table(plan.table[-1:])
    assert [one.plan.table for one in tuned.alternatives if not one.is_tuned] == [
        one.plan.table for one in plan.alternatives if not one.is_tuned
    ]


def test_the_judge_calls_an_operator_as_a_case_says() -> None:
    def norm(x: Any, weight: Any = None, eps: float = 1.0, wide: bool = False) -> Any:
        return x, weight, eps, wide

    operator = Operator("norm", norm, norm, norm, (
        Tensor("x", ("D",), "float32"), Tensor("weight", ("D",), "float32"), Tensor("eps", (), "float32", number=1.0),
    ), ())  # fmt: skip
    case = Case({"D": 4}, given={"weight": None, "wide": True})
    assert case.label == "D=4 without weight wide=True"
    assert Case.from_json(case.to_json()) == case
    one = operator.at(case)
    assert [t.name for t in one.inputs] == ["x", "eps"]
    x = torch.ones(4)
    for function in (one.kernel, one.reference, one.taking(norm)):
        assert function(x, torch.tensor(2.0)) == (x, None, 2.0, True)
    assert operator.at(Case({"D": 4})) is operator
    fixed = replace(operator, fixed=(("wide", True),)).at(Case({"D": 4}))
    assert fixed.kernel(x, x, torch.tensor(2.0)) == (x, x, 2.0, True)


@pytest.mark.parametrize(
    "norm",
    ["layer_norm(x, x.shape[-1:], None, None, eps)", "rms_norm(x, x.shape[-1:], eps=eps)", "group_norm(x, 1, eps=eps)"],
)
def test_the_eps_of_a_norm_may_be_a_number_that_a_call_gives(norm: str) -> None:
    inputs = "inputs:\n  - {name: x, shape: [M, N], dtype: float32}\n  - {name: eps, scalar: float, default: 0.1}\n"
    text = f"name: op\n{inputs}outputs: [{{name: out, shape: [M, N], dtype: float32}}]\n"
    spec = parse_spec(f"{text}reference: |\n  def op(x, eps=0.1):\n      return F.{norm}\n")
    printed = render.triton_source(generation.lowered(spec))
    assert re.search(r"tl\.rsqrt\([^)]* \+ eps\)", printed)


def test_what_a_way_refuses_it_refuses_in_the_name_of_the_operator(tmp_path: Path) -> None:
    out = "(x if weight is None else x * weight).cumsum(0)"
    text = NORM.replace(
        "return out if bias is None else out + bias", f"out = {out}\n      return out - out.amax(-1, True)"
    )
    printed = render.triton_source(generation.plan_of(parse_spec(text.replace("shape: [..., D]", "shape: [M, D]")
        .replace("...: [3]", "M: 3").replace("...: [64]", "M: 64")), tmp_path))  # fmt: skip
    assert "norm: needs x.shape[1] >= 1" in printed
    assert "norm: at most" in printed
    assert re.search(r"norm_\w+: (needs|at most)", printed) is None

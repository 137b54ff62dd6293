"""Gradients of convolutions: by the weight a call of torch's, by the input a convolution, kernels around them."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from references import Sample, load, plan_of, sample
from test_backward import RANDOM, check, composed, derived, references
from torch.utils._python_dispatch import TorchDispatchMode

from kernelgen import judge
from kernelgen.errors import UnsupportedError
from kernelgen.render import baseline_source, triton_source
from kernelgen.spec import load_spec

SPECS = Path(__file__).parents[2] / "specs"


def of(lines: str, inputs: dict[str, str], output: str, *sizes: dict[str, int]) -> Sample:
    found = sample(lines, inputs, {"out": output}, *(sizes or ({"B": 2},)))
    return replace(found, dtypes=(("T", ("float32",)),))


IMAGE = {"x": "B 4 6 7", "w": "6 4 3 3"}
FORMS = {
    "alone": of("return F.conv2d(x, w, padding=1)", IMAGE, "B 6 6 7"),
    "a bias": of("return F.conv2d(x, w, c)", {**IMAGE, "c": "6"}, "B 6 4 5"),
    "relu, from what it gave": of("return torch.relu(F.conv2d(x, w, padding=1))", IMAGE, "B 6 6 7"),
    "gelu, of what is saved": of("return F.gelu(F.conv2d(x, w, c, padding=1))", {**IMAGE, "c": "6"}, "B 6 6 7"),
    "a residual": of("return x + F.conv2d(x, w, padding=1)", {"x": "B 4 6 7", "w": "4 4 3 3"}, "B 4 6 7"),
    "two in turn": of(
        "y = torch.relu(F.conv2d(x, w, padding=1))\nreturn F.conv2d(y, v)", {**IMAGE, "v": "5 6 1 1"}, "B 5 6 7"
    ),
    "a linear layer after it": of(
        "y = torch.relu(F.conv2d(x, w, padding=1)).mean((2, 3))\nreturn F.linear(y, v)", {**IMAGE, "v": "5 6"}, "B 5"
    ),
    "what is padded before": of("return F.gelu(F.conv2d(F.pad(x, (1, 2)), w))", IMAGE, "B 6 4 8"),
    "the weights of two": of(
        "return torch.tanh(F.conv2d(x, w, padding=1)) * torch.sigmoid(F.conv2d(x, w, padding=2, dilation=2))",
        IMAGE,
        "B 6 6 7",
    ),
    "every channel by itself": of(
        "return torch.relu(F.conv2d(x, w, c, padding=1, groups=4))",
        {"x": "B 4 6 7", "w": "4 1 3 3", "c": "4"},
        "B 4 6 7",
    ),
    "every channel by itself, of what is saved": of(
        "return F.gelu(F.conv2d(x, w, dilation=2, groups=4)) * 2.0", {"x": "B 4 9 7", "w": "4 1 3 2"}, "B 4 5 5"
    ),
    "every channel by itself, however many": of(
        "return F.gelu(F.conv2d(x, w, c, padding=1, groups=x.shape[1]))",
        {"x": "B C 6 7", "w": "C 1 3 3", "c": "C"},
        "B C 6 7",
        {"B": 2, "C": 3},
        {"B": 1, "C": 1},
    ),
    "every channel by itself in steps, however many": of(
        "return torch.relu(F.conv1d(x, w, stride=2, groups=w.shape[0]))",
        {"x": "B C 9", "w": "C 1 3"},
        "B C 4",
        {"B": 2, "C": 5},
    ),
    "a weight without a dimension for its one channel": of(
        "return F.silu(F.conv1d(F.pad(x, (2, 0)), w.unsqueeze(1), groups=x.shape[1]))",
        {"x": "B C 9", "w": "C 3"},
        "B C 9",
        {"B": 2, "C": 5},
    ),
    "a weight that all channels have": of(
        "return F.silu(F.conv1d(x, w.expand(4, 1, 3), padding=1, groups=4))", {"x": "B 4 9", "w": "3"}, "B 4 9"
    ),
    "a weight that all channels have of two dimensions": of(
        "return torch.relu(F.conv2d(x, w.expand(6, 4, 3, 3), padding=1))", {"x": "B 4 6 7", "w": "6 1 3 3"}, "B 6 6 7"
    ),
    "a weight that all channels have, in steps": of(
        "return torch.relu(F.conv2d(x, w.expand(6, 4, 3, 3), stride=2))", {"x": "B 4 7 7", "w": "6 1 3 3"}, "B 6 3 3"
    ),
    "a weight that all channels have, turned": of(
        "return torch.relu(F.conv2d(x, w.expand(3, 3, 6, 4).permute(2, 3, 0, 1), padding=1))",
        {"x": "B 4 6 7", "w": "3 3 6 1"},
        "B 6 6 7",
    ),
    "a weight that all channels have, times a number": of(
        "return torch.relu(F.conv2d(x, w.expand(6, 4, 3, 3) * 0.5))", {"x": "B 4 6 7", "w": "6 1 3 3"}, "B 6 4 5"
    ),
    "a weight that all channels have, reshaped": of(
        "return torch.relu(F.conv2d(x, w.expand(6, 4, 9).reshape(6, 4, 3, 3)))",
        {"x": "B 4 6 7", "w": "6 1 9"},
        "B 6 4 5",
    ),
    "a weight that stands for several twice": of(
        "return F.silu(F.conv1d(x, w.expand(6, 1, 3).expand(6, 4, 3)))", {"x": "B 4 9", "w": "1 1 3"}, "B 6 7"
    ),
    "a weight that is multiplied before": of("return torch.relu(F.conv2d(x, w * 0.5))", IMAGE, "B 6 4 5"),
    "twice as many channels as a name says": of(
        "return F.silu(F.conv2d(x, w, padding=1, groups=x.shape[1]))",
        {"x": "B 2*C 6 7", "w": "2*C 1 3 3"},
        "B 2*C 6 7",
        {"B": 2, "C": 2},
    ),
    "depthwise and separable": of(
        "y = F.silu(F.conv2d(x, w, padding=1, stride=2, groups=4))\nreturn F.conv2d(y, v)",
        {"x": "B 4 6 8", "w": "4 1 3 3", "v": "5 4 1 1"},
        "B 5 3 4",
    ),
    "more padding behind": of(
        "return torch.relu(F.conv2d(x, w, padding='same'))", {**IMAGE, "w": "6 4 2 4"}, "B 6 6 7"
    ),
    "scaled by channel": of("return torch.tanh(F.conv2d(x, w) * s)", {**IMAGE, "s": "6 1 1"}, "B 6 4 5"),
}


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    check(FORMS[name])


@st.composite
def convolutions(draw: st.DrawFn) -> Sample:
    """A convolution of any rank, stride, padding, dilation and groups, which may be channels that are no number,
    transposed or not, of an image whose sizes are numbers or names, with what may follow it; its weight may stand for
    several."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    groups, transposed = draw(st.sampled_from([1, 1, 2, 4])), draw(st.booleans())
    window, size = (tuple(draw(st.integers(*ends)) for _ in range(rank)) for ends in ((1, 4), (7, 8)))
    stride, padding, dilation = (draw(st.integers(*ends)) for ends in ((1, 2), (0, 1), (1, 2)))
    rest = draw(st.integers(0, stride - 1)) if transposed else 0
    is_same = not transposed and stride == 1 and draw(st.booleans())
    reach = [dilation * (k - 1) for k in window]
    names = draw(st.sampled_from([(), (), ("P", "Q", "R")]))[:rank]
    if is_same:
        out = list(size)
    elif transposed:
        out = [(n - 1) * stride - 2 * padding + r + rest + 1 for n, r in zip(size, reach, strict=True)]
    else:
        out = [(n + 2 * padding - r - 1) // stride + 1 for n, r in zip(size, reach, strict=True)]
    given, made = (groups, groups) if groups > 2 else (2 * groups, 3 * groups)
    weight = (given, made // groups) if transposed else (made, given // groups)
    words = [("stride", stride, 1), ("padding", "'same'" if is_same else padding, 0), ("output_padding", rest, 0)]
    words += [("groups", groups, 1), ("dilation", dilation, 1)]
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    bias = draw(st.booleans())
    sizes = {"B": 2, **dict(zip(names, size, strict=False))}
    if groups > 2 and draw(st.booleans()):
        sizes["C"], given, made, weight = groups, "C", "C", ("C", 1)
        words = [(name, "x.shape[1]" if name == "groups" else value, usual) for name, value, usual in words]
    options = "".join(f", {name}={value}" for name, value, usual in words if value != usual)
    inputs = {"x": f"B {given} " + " ".join(map(str, size)), "w": " ".join(map(str, (*weight, *window)))}
    shown, whole = "w", (*weight, *window)
    if "C" not in weight and draw(st.booleans()):
        shown = f"w.expand({', '.join(map(str, whole))})"
        inputs["w"] = " ".join(str(draw(st.sampled_from([1, n]))) for n in whole)
    called = f"F.{name}(x, {shown}{', c' if bias else ''}{options})"
    around = draw(st.sampled_from(["{}", "torch.relu({})", "F.silu({})", "{} * 0.5", "torch.sigmoid({}) * 2.0"]))
    if bias:
        inputs["c"] = str(made)
    made_of, needs = [str(n) for n in out], []
    if names:
        inputs["x"] = f"B {given} " + " ".join(names)
        beyond = [n - stride * m if transposed else 2 * padding - r for n, m, r in zip(out, size, reach, strict=True)]
        followed = [_following(name, n, stride, transposed) for name, n in zip(names, beyond, strict=True)]
        made_of = list(names) if is_same else followed
        short = [2 * padding - r - rest if transposed else r - 2 * padding for r in reach]
        least = [0 if is_same else -(-n // stride if transposed else -n) + 1 for n in short]
        needs = [f"x.shape[{d}] >= {n}" for d, n in enumerate(least, start=2) if n > 1]
    found = of(f"return {around.format(called)}", inputs, f"B {made} " + " ".join(made_of), sizes)
    return replace(found, constraints=tuple(needs))


def _following(name: str, beyond: int, stride: int, transposed: bool) -> str:
    """What is made of a size by that name, as torch says it. `beyond`: places that windows have beyond the image's, or of
    a transposed convolution elements beyond its stride's multiple."""
    if transposed:
        multiple = name if stride == 1 else f"{stride}*{name}"
        return f"{multiple}{beyond:+}" if beyond else multiple
    first = f"{name}{beyond + 1 - stride:+}" if beyond + 1 - stride else name
    return first if stride == 1 else f"({first})//{stride}+1"


@settings(RANDOM, max_examples=40)
@given(convolutions())
def test_every_form_has_the_gradients_of_autograd(found: Sample) -> None:
    assume(not has_only_calls(found))
    check(found)


@settings(RANDOM, max_examples=30)
@given(convolutions())
def test_every_form_is_right(found: Sample) -> None:
    try:
        kernel = load(triton_source(plan_of(found.spec()))).op
    except UnsupportedError as error:
        assume("nothing left for a kernel" not in str(error))
        raise
    spec, baseline = found.spec(), load(baseline_source(found.spec()))
    inputs, (out,) = (tuple(judge.Tensor(t.name, t.shape, t.dtype) for t in own) for own in (spec.inputs, spec.outputs))
    operator = judge.Operator(
        "op", kernel, baseline.op, baseline.reference, inputs, (out,), stored="T", multiplied="T"
    )  # fmt: skip
    for sizes in found.sizes:
        case = judge.Case(sizes, {"T": "float32"})
        report = judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=("normal", "specials"))
        assert report.passed, found.source() + report.message


def has_only_calls(found: Sample) -> bool:
    """Whether its gradients are calls of torch's alone, which is refused."""
    try:
        for part in derived(found.spec()).parts:
            plan_of(part.spec)
    except UnsupportedError as error:
        return "nothing left for a kernel" in str(error)
    return False


def test_what_relu_gave_says_where_its_gradient_flows() -> None:
    (lines,) = references(load_spec(SPECS / "conv2d_bias_relu.yaml"))
    assert lines == [
        "    dtype = x.dtype",
        "    grad_out, out = grad_out.float(), out.float()",
        "    grad_y = torch.where(out <= 0.0, 0.0, grad_out).to(dtype)",
        "    grad_bias = grad_y.float().sum(dim=(0, 2, 3), keepdim=True).reshape(-1, 1, 1)",
        "    grad_x = F.conv_transpose2d(grad_y, weight, padding=1)",
        "    grad_weight = torch.nn.grad.conv2d_weight(x, weight.shape, grad_y, padding=1)",
        "    return grad_x, grad_weight, grad_bias.to(dtype)",
    ]


def test_a_result_that_is_rounded_afterwards_says_too_little() -> None:
    """Of tanh of float32 near 1, what float16 holds of it leaves nothing right of 1 - tanh * tanh."""
    scaled = {"x": "B 4 6 7", "w": "6 4 3 3", "s": "6 1 1: float32"}
    found = sample("return torch.tanh(F.conv2d(x, w) * s).to(x.dtype)", scaled, {"out": "B 6 4 5"})
    *_, part = derived(found.spec()).parts
    assert "out" not in [t.name for t in part.spec.inputs]
    found = sample("return torch.tanh(F.conv2d(x, w))", IMAGE, {"out": "B 6 4 5"})
    assert "out" in [t.name for t in derived(found.spec()).parts[-1].spec.inputs]


@pytest.mark.parametrize(
    ("lines", "weight", "kinds"),
    [
        ("F.conv2d(x, w.half(), padding=1)", "6 4 3 3: float32", ["torch.float16", "torch.float32"]),
        ("F.conv2d(x.float(), w, padding=1).half()", "6 4 3 3: float32", ["torch.float16", "torch.float32"]),
    ],
)
def test_operands_that_are_cast_get_gradients_of_their_own_dtypes(lines: str, weight: str, kinds: list[str]) -> None:
    inputs = {"x": "B 4 6 7: float16", "w": weight}
    spec = sample(f"return torch.relu({lines})", inputs, {"out": "B 6 6 7: float16"}).spec()
    given = torch.randn(2, 4, 6, 7).half(), torch.randn(6, 4, 3, 3)
    run = composed(derived(spec), spec)
    x, w = (t.requires_grad_() for t in given)
    load(baseline_source(spec)).reference(x, w).sum().backward()
    with torch.no_grad():
        found = run({"x": x, "w": w, "grad_out": torch.ones(2, 6, 6, 7).half()})
    for name, leaf in (("x", x), ("w", w)):
        got = found[f"grad_{name}"]
        torch.testing.assert_close(got, leaf.grad, atol=0.02, rtol=0.02)
    assert [str(found[f"grad_{n}"].dtype) for n in "xw"] == kinds


def test_a_gradient_of_another_convolution_is_refused_where_it_stands() -> None:
    inputs = {**IMAGE, "g": "B 6 6 7"}
    found = of("return torch.nn.grad.conv2d_weight(x, w.shape, g * 2.0) * 0.5", inputs, "6 4 3 3")
    with pytest.raises(UnsupportedError, match="conv2d_weight of a gradient of 6 places"):
        plan_of(found.spec())


def test_a_forward_saves_what_would_be_convolved_again_and_nothing_else() -> None:
    forward, part = derived(load_spec(SPECS / "conv1d_gelu.yaml")).parts
    assert [o.name for o in forward.spec.outputs] == ["out", "y"]
    assert "F.conv1d(" not in part.spec.reference
    forward, part = derived(FORMS["two in turn"].spec()).parts
    assert [o.name for o in forward.spec.outputs] == ["out", "y"], "what the second one reads"


@pytest.mark.parametrize(
    ("lines", "weight", "output", "said"),
    [
        (
            "F.conv_transpose2d(x, w, dilation=3, output_padding=2)",
            "4 6 2 2",
            "B 6 11 12",
            "output_padding of its stride",
        ),
    ],
)
def test_what_torch_nn_grad_does_not_know_is_refused(lines: str, weight: str, output: str, said: str) -> None:
    found = of(f"return torch.relu({lines})", {"x": "B 4 6 7", "w": weight}, output)
    with pytest.raises(UnsupportedError, match=said):
        derived(found.spec())


def test_a_convolution_that_is_not_known_in_numbers_has_no_gradient_and_says_why() -> None:
    lines = "return torch.relu(F.conv2d(x, w, padding=1, groups=x.shape[1]))"
    found = of(lines, {"x": "B C 6 7", "w": "2*C 1 3 3"}, "B 2*C 6 7", {"B": 2, "C": 3})
    with pytest.raises(UnsupportedError, match="conv2d, without a batch or with a stride, window or groups that"):
        derived(found.spec())


@pytest.mark.parametrize("name", ["conv2d_input", "conv2d_weight"])
def test_a_reference_may_call_them_itself(name: str) -> None:
    first = {"conv2d_input": "x.shape, w", "conv2d_weight": "x, w.shape"}[name]
    output = "B 4 6 7" if name == "conv2d_input" else "6 4 3 3"
    inputs = {**IMAGE, "g": "B 6 6 7"}
    found = of(f"return torch.nn.grad.{name}({first}, g * 2.0, padding=1) * 0.5", inputs, output)
    text = triton_source(plan_of(found.spec()))
    assert f"torch.nn.grad.{name}(" in text
    x, w, g = torch.randn(2, 4, 6, 7), torch.randn(6, 4, 3, 3), torch.randn(2, 6, 6, 7)
    expected = getattr(torch.nn.grad, name)(*((x.shape, w) if name == "conv2d_input" else (x, w.shape)), g, padding=1)
    torch.testing.assert_close(load(text).op(x, w, g), expected)


def test_a_convolution_of_a_tensor_by_itself_stays_torchs() -> None:
    found = of("return torch.relu(F.conv2d(x, x, padding=1))", {"x": "B 4 3 3"}, "B B 3 3")
    x = torch.randn(2, 4, 3, 3)
    op = load(triton_source(plan_of(found.spec()))).op
    torch.testing.assert_close(op(x), torch.relu(torch.nn.functional.conv2d(x, x, padding=1)))


@pytest.mark.parametrize("laid", [("x",), ("weight",), ("x", "weight")], ids=" and ".join)
@pytest.mark.parametrize("name", ["conv2d_bias_relu", "conv_transpose2d_bias"])
def test_traced_results_lie_as_the_operator_returns_them(
    name: str, laid: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inputs that have their channels last: what torch.compile makes of it reads by these strides."""
    monkeypatch.syspath_prepend(SPECS.parent / "operators" / name)
    importlib.import_module(f"{name}_autograd")
    window = 4 if "transpose" in name else 3
    given = {"x": torch.randn(2, 3, 5, 6), "weight": torch.randn(3, 3, window, window), "bias": torch.randn(3, 1, 1)}
    inputs = [(t.to(memory_format=torch.channels_last) if n in laid else t).requires_grad_() for n, t in given.items()]
    torch.library.opcheck(getattr(torch.ops.kernelgen, name).default, tuple(inputs))


class Unsteady(TorchDispatchMode):
    """Under which the gradient of a weight is another in its last bit at every call, as a library may add it up."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = itertools.count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution_backward.default:
            return tuple(g if g is None else g * (1 + 2.0**-23 * (next(self.calls) % 2)) for g in found)
        return found


def test_that_the_gradient_of_a_weight_is_added_up_in_any_order_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SPECS.parent / "operators" / "conv2d_bias_relu" / "backward")
    accuracy = importlib.import_module("conv2d_bias_relu_backward_accuracy")
    case = next(c for c in accuracy.CASES if c.dtypes["T"] == "float32" and c.sizes["B"] == 2)
    with Unsteady():
        report = judge.accuracy_case(accuracy.OPERATOR, case, device="cpu")
    assert report.passed, report.message
    own = itertools.count()

    def other(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grad_x, *rest = accuracy.OPERATOR.kernel(*inputs)
        return grad_x * (1 + 2.0**-21 * (next(own) % 2)), *rest

    with Unsteady():
        report = judge.accuracy_case(accuracy.OPERATOR, case, kernel=other, device="cpu")
    assert "other bits" in report.message

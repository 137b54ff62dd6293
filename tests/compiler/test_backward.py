"""Gradients: the derived references, their kernels against autograd in float64, and the operators that join them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from references import Sample, load, plan_of, sample, tensor

from kernelgen import families, frontend, generation, judge, render
from kernelgen.backward import Backward, backward
from kernelgen.backward.source import laid_out
from kernelgen.cli.new import load as load_named
from kernelgen.errors import UnsupportedError
from kernelgen.export import export_custom_op
from kernelgen.spec import load_spec, parse_spec
from kernelgen.spec.model import OperatorSpec
from kernelgen.wrapper import Layout

RANDOM = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
ROW = {"x": "... D"}, {"out": "... D"}
PAIR = {"x": "...", "y": "..."}
SIZES: tuple[dict[str, Any], ...] = ({"...": (3,), "D": 37}, {"...": (), "D": 16}, {"...": (2, 2), "D": 5})
SPECS = Path(__file__).parents[2] / "specs"


def files_of(made: Backward) -> dict[str, str]:
    """What lies beside the quartet, where all outputs are contiguous."""
    specs = (made.spec, *(part.spec for part in made.parts))
    return made.files([{output.name: Layout() for output in spec.outputs} for spec in specs])


def derived(spec: OperatorSpec) -> Backward:
    return backward(spec, generation.differentiated(spec))


def references(spec: OperatorSpec) -> list[list[str]]:
    """The statements of every part."""
    return [part.spec.reference.rstrip().split("\n")[1:] for part in derived(spec).parts]


def composed(made: Backward, forward: OperatorSpec | None = None) -> Callable[..., dict[str, torch.Tensor]]:
    """All parts in turn, by their kernels; tensors in and out by name. First the forward, where they read its results
    and none of them gives these."""
    parts = [part.spec for part in made.parts]
    given = {o.name for o in forward.outputs} if forward and made.parts[0].folder != "forward" else set()
    if forward and any(t.name in given for p in parts for t in p.inputs):
        parts = [forward, *parts]
    kernels = [getattr(load(render.triton_source(plan_of(spec))), spec.name) for spec in parts]

    def run(known: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for spec, kernel in zip(parts, kernels, strict=True):
            results = kernel(*(known[t.name] for t in spec.inputs))
            results = results if isinstance(results, tuple) else (results,)
            known = {**known, **dict(zip((o.name for o in spec.outputs), results, strict=True))}
        return known

    return run


def judged(found: Sample, made: Backward) -> list[str]:
    """What the judge has against the gradients that the kernels of a sample give."""
    spec = found.spec()
    forward = load(render.baseline_source(spec)).reference
    wanted = [name for part in made.parts for name in part.gradients]
    own = {t.name: t for t in spec.inputs}
    names = [f"grad_{o.name}" for o in spec.outputs] + list(own)
    run = composed(made, spec)

    def by_kernels(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run(dict(zip(names, tensors, strict=True)))
        return tuple(results[f"grad_{n}"] for n in wanted)

    def by_autograd(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = dict(zip(names, tensors, strict=True))
        with torch.enable_grad():
            leaves = {n: known[n].detach().requires_grad_() for n in wanted}
            results = forward(*(leaves.get(n, known[n]) for n in own))
            results = results if isinstance(results, tuple) else (results,)
            incoming = [known[f"grad_{o.name}"] for o in spec.outputs]
            return torch.autograd.grad(results, list(leaves.values()), incoming)

    incoming = tuple(judge.Tensor(f"grad_{o.name}", o.shape, o.dtype) for o in spec.outputs)
    # kernels multiply as torch's convolutions are set to
    products = {"stored": "T", "multiplied": "T"} if "F.conv" in spec.reference else {}
    operator = judge.Operator(
        "gradients", by_kernels, by_autograd, by_autograd,
        (*incoming, *(judge.Tensor(t.name, t.shape, t.dtype, below=t.below) for t in spec.inputs)),
        tuple(judge.Tensor(f"grad_{n}", own[n].shape, own[n].dtype) for n in wanted), **products,
    )  # fmt: skip
    said = []
    for sizes in found.sizes:
        case = judge.Case(sizes, {"T": "float32"})
        report = judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=("normal",))
        if not report.passed:
            said.append(f"{case.label}: {report.message}\n" + "\n".join(p.spec.reference for p in made.parts))
    return said


def check(found: Sample) -> None:
    problems = judged(found, derived(found.spec()))
    assert not problems, "\n\n".join([found.source(), *problems])


def of(lines: str, *tensors: dict[str, str]) -> Sample:
    inputs, outputs = tensors or ROW
    return replace(sample(lines, inputs, outputs, *SIZES), dtypes=(("T", ("float32",)),))


def test_what_stands_for_several_is_written_whole_before_it_is_looked_at_otherwise() -> None:
    lines = "return x * torch.tanh(s.expand(4, 9).reshape(36)) + s.expand(4, 9).t().reshape(36)"
    found = sample(lines, {"x": "B 36", "s": "4 1"}, {"out": "B 36"}, {"B": 3})
    check(replace(found, dtypes=(("T", ("float32",)),)))


# what a derived reference looks like


def test_factors_that_terms_share_are_taken_out() -> None:
    inputs = {"gate": "...", "up": "..."}
    (lines,) = references(sample("return F.silu(gate) * up", inputs, {"out": "..."}).spec())
    assert lines == [
        "    dtype = gate.dtype",
        "    grad_out, gate, up = grad_out.float(), gate.float(), up.float()",
        "    sigmoid = torch.sigmoid(gate)",
        "    grad_up = grad_out * (gate * sigmoid)",
        "    grad_gate = grad_out * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))",
        "    return grad_gate.to(dtype), grad_up.to(dtype)",
    ]


def test_sums_over_rows_and_over_what_leads_are_two_parts_and_the_first_hands_on_what_a_row_was_reduced_to() -> None:
    made = derived(load_spec(SPECS / "layer_norm.yaml"))
    assert [(p.folder, p.gradients) for p in made.parts] == [
        ("backward", ("x",)), ("backward_weight_bias", ("weight", "bias"))
    ]  # fmt: skip
    assert [t.name for t in made.parts[0].spec.outputs] == ["grad_x", "mean", "rstd"]
    assert [t.name for t in made.parts[1].spec.inputs] == ["grad_out", "x", "mean", "rstd"]


def test_the_sum_of_deviations_from_a_mean_is_not_taken() -> None:
    (lines,) = references(of("return F.layer_norm(x, x.shape[-1:])").spec())
    assert sum(".sum(" in line or ".mean(" in line for line in lines) == 4  # mean, variance, and one for each of both


def test_a_gradient_that_is_another_is_no_kernel() -> None:
    made = derived(sample("return x + b", {"x": "... D", "b": "D"}, {"out": "... D"}).spec())
    assert [p.gradients for p in made.parts] == [("b",)]
    assert "return grad_out, grad_b" in files_of(made)["op_autograd.py"]


def test_inputs_that_are_added_have_one_gradient() -> None:
    made = derived(of("return torch.sigmoid(x + y)", PAIR, {"out": "..."}).spec())
    assert [p.gradients for p in made.parts] == [("x",)]
    assert "return grad_x, grad_x" in files_of(made)["op_autograd.py"]


def test_pieces_of_one_place_are_joined() -> None:
    (lines,) = references(of("return F.smooth_l1_loss(x, y, reduction='none')", PAIR, {"out": "..."}).spec())
    assert any("torch.where(distance < 1.0, grad_out * distance, grad_out)" in line for line in lines)


# against autograd in float64

POINTWISE = [
    "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.mish(x)", "F.softplus(x)", "F.elu(x)", "F.relu(x)",
    "F.leaky_relu(x, 0.1)", "F.hardswish(x)", "F.logsigmoid(x)", "x.abs()", "x.clamp(-0.5, 0.5)", "torch.sin(x) * x.cos()",
    "torch.exp2(x) + torch.expm1(x)", "torch.log1p(x * x) / (1 + x.abs())", "torch.log(x * x + 1) * torch.log2(x * x + 2)",
    "torch.erf(x) * torch.rsqrt(x * x + 1)", "torch.sqrt(x * x + 1) - torch.tanh(x)", "torch.sigmoid(x) ** 3",
]  # fmt: skip
ROWS = [
    "torch.softmax(x, -1)", "torch.log_softmax(x, -1)", "F.layer_norm(x, x.shape[-1:])", "x - x.mean(-1, keepdim=True)",
    "x / x.norm(dim=-1, keepdim=True)", "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)",
    "torch.tanh(x) * x.exp().sum(-1, keepdim=True)", "x * torch.logsumexp(x, -1, keepdim=True)",
    "x / x.abs().amax(-1, keepdim=True)", "x * x.min(-1, keepdim=True).values", "x - x.norm(float('inf'), -1, True)",
]  # fmt: skip


def test_every_pointwise_rule() -> None:
    lines = [f"t{i} = {text}" for i, text in enumerate(POINTWISE)]
    check(of("\n".join([*lines, f"return {' + '.join(f't{i}' for i in range(len(lines)))}"])))


@pytest.mark.parametrize("text", ROWS)
def test_row_reductions(text: str) -> None:
    check(of(f"return {text}"))


def test_weights_that_rows_share() -> None:
    inputs = {"x": "... D", "w": "D", "b": "D"}
    check(of("return F.layer_norm(x, x.shape[-1:], w, b)", inputs, {"out": "... D"}))
    check(of("return F.rms_norm(x * w, x.shape[-1:], b, 1e-5)", inputs, {"out": "... D"}))


def test_losses() -> None:
    indices = {"x": "... D", "target": "...: int64 < D"}
    of_pair = {"x": "...", "y": "..."}
    for loss in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"):
        check(of(f"return F.{loss}(x, y, reduction='none')", of_pair, {"out": "..."}))
    found = of(
        "return F.cross_entropy(x, target, reduction='none')", {"x": "N D", "target": "N: int64 < D"}, {"out": "N"}
    )
    check(replace(found, sizes=({"N": 3, "D": 37}, {"N": 1, "D": 5})))
    assert indices


def test_losses_that_are_one_number() -> None:
    for loss in ("mse_loss", "l1_loss", "huber_loss"):
        found = of(f"return F.{loss}(x, y)", PAIR, {"out": ""})
        check(replace(found, sizes=({"...": (3, 37)}, {"...": (5,)})))
    (part,) = derived(found.spec()).parts
    assert "grad_out / n_elements" in render.triton_source(plan_of(part.spec))
    found = of("return F.cross_entropy(x, t)", {"x": "N D", "t": "N: int64 < D"}, {"out": ""})
    check(replace(found, sizes=({"N": 3, "D": 37}, {"N": 1, "D": 5})))
    assert [p.gradients for p in derived(found.spec()).parts] == [(), ("x",)]  # the first counts the rows


def test_a_product_of_sizes_is_taken_in_int64() -> None:
    (part,) = derived(of("return (x * y[:, None]).mean()", {"x": "A B", "y": "A"}, {"out": ""}).spec()).parts[:1]
    assert "tl.cast(B, tl.int64) * A" in render.triton_source(plan_of(part.spec))


def test_no_gradient_flows_through_what_is_detached() -> None:
    check(of("return torch.sigmoid(x.detach()) * x"))


def test_ties_are_shared_out_as_torch_does() -> None:
    found = of("return torch.maximum(x, y) + F.relu(x) + y.clamp(0.0, 1.0)", {"x": "...", "y": "..."}, {"out": "..."})
    (part,) = derived(found.spec()).parts
    spec = parse_spec(part.text)
    gradients = getattr(load(render.triton_source(plan_of(spec))), spec.name)
    x, y = torch.tensor([0.0, 1.0, -1.0, torch.nan]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    out = torch.maximum(*leaves) + torch.relu(leaves[0]) + leaves[1].clamp(0.0, 1.0)
    torch.testing.assert_close(
        gradients(torch.ones(4), x, y), torch.autograd.grad(out, leaves, torch.ones(4)), equal_nan=True
    )


@pytest.mark.parametrize(
    "text", ["x.amax(-1)", "x.amin(-1)", "x.max(-1).values", "x.min(-1)[0]", "x.aminmax(dim=-1)[1]"]
)
def test_the_greatest_of_several_that_are_equal_passes_its_gradient_on_as_torchs_does(text: str) -> None:
    found = of(f"return {text}", {"x": "B D"}, {"out": "B"})
    (part,) = derived(found.spec()).parts
    gradient = getattr(load(render.triton_source(plan_of(parse_spec(part.text)))), part.spec.name)
    x, g = (
        torch.tensor([[1.0, 2.0, 2.0, 0.0], [-1.0, 3.0, -1.0, -1.0], [4.0, 4.0, 4.0, 4.0]]),
        torch.tensor([1.0, 3.0, 6.0]),
    )
    leaf = x.clone().requires_grad_()
    wanted = torch.autograd.grad(eval(text, {"x": leaf}), leaf, g)
    torch.testing.assert_close(gradient(g, x), wanted[0])


def test_bounds_that_are_tensors_share_what_they_cut_off_as_torch_does() -> None:
    """Also where the lower is above the upper, where both are the same, and of NaN."""
    found = of("return torch.clamp(x, low, high)", {"x": "...", "low": "...", "high": "..."}, {"out": "..."})
    (part,) = derived(found.spec()).parts
    spec = parse_spec(part.text)
    gradients = getattr(load(render.triton_source(plan_of(spec))), spec.name)
    x = torch.tensor([0.0, -2.0, 2.0, -2.0, 0.5, torch.nan, torch.nan, 3.0, 1.0])
    low = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    high = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    leaves = tuple(t.clone().requires_grad_() for t in (x, low, high))
    wanted = torch.autograd.grad(torch.clamp(*leaves), leaves, torch.ones(9))
    torch.testing.assert_close(gradients(torch.ones(9), x, low, high), wanted, equal_nan=True)


def test_an_infinite_gradient_may_be_multiplied_last() -> None:
    """Autograd adds inf - inf; the kernel's infinity is right where it has the sign of a large gradient's result."""
    grad = judge.Tensor("grad", ("N",), "float32")
    case, values = judge.Case({"N": 96}, {}), torch.linspace(0.25, 4, 96)

    def of_two_uses(g: torch.Tensor) -> torch.Tensor:
        return g - g * values.to(g.dtype)

    def verdict(kernel: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        operator = judge.Operator(
            "two_uses",
            kernel,
            of_two_uses,
            of_two_uses,
            (grad,),
            (judge.Tensor("out", ("N",), "float32"),),
            terms=("grad",),
        )
        report = judge.accuracy_case(operator, case, seed=5, seeds=1, distributions=("specials",), mutants=False)
        return bool(report.passed)

    def turned(g: torch.Tensor) -> torch.Tensor:
        return torch.where(g.isinf(), -g, g) * (1 - values)

    assert verdict(of_two_uses)
    assert verdict(lambda g: g * (1 - values))
    assert not verdict(turned)


def at(lines: str, x: torch.Tensor, grad: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient at some places by the kernel, and by autograd."""
    spec = of(lines).spec()
    grad = torch.ones_like(x) if grad is None else grad
    found = composed(derived(spec))({"grad_out": grad, "x": x})["grad_x"]
    leaf = x.clone().requires_grad_()
    out = load(render.baseline_source(spec)).reference(leaf)
    return found, torch.autograd.grad(out, leaf, grad)[0]


def test_the_norm_of_zeros_and_the_branch_that_overflows_give_no_nan() -> None:
    for found, wanted in (
        at("return F.normalize(x, dim=-1)", torch.tensor([[0.0, 0.0], [3.0, 4.0]])),
        at("return x * x.norm(dim=-1, keepdim=True)", torch.tensor([[0.0, 0.0], [3.0, 4.0]])),
        at("return F.elu(x) + F.hardswish(x)", torch.tensor([[1e3, 90.0, -1e3, 3.0], [-3.0, 0.0, 2.0, 1.0]])),
    ):
        torch.testing.assert_close(found, wanted, equal_nan=True)


# so few elements that torch takes them one by one, as a GPU does: its vector loops treat NaN otherwise
SPECIAL = torch.tensor([[torch.nan, torch.inf, -torch.inf], [0.0, -3.0, 3.0]])
SPREADING = ["F.elu(x)", "F.hardswish(x)", "x.abs()", "F.gelu(x, approximate='tanh')"]


@pytest.mark.parametrize("text", SPREADING)
def test_special_values_go_where_torch_puts_them(text: str) -> None:
    for grad in (torch.ones(3), torch.tensor([torch.inf, 0.0, -torch.inf])):
        for x in SPECIAL:
            found, wanted = at(f"return {text}", x, grad)
            torch.testing.assert_close(found, wanted, equal_nan=True)


def test_an_infinite_gradient_spreads_over_the_rows_of_a_norm_that_is_written_out() -> None:
    lines = "c = x - x.mean(-1, keepdim=True)\nreturn c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5)"
    x, grad = torch.tensor([[1.0, -2.0, 3.0, 0.5]]), torch.tensor([[1.0, torch.inf, 1.0, 1.0]])
    found, wanted = at(lines, x, grad)
    assert wanted.isnan().all()
    assert found.isnan().all()


def test_an_infinite_factor_is_not_taken_out_of_a_sum() -> None:
    lines = "return (x - b[:, None]) * w[:, None]"
    made = derived(of(lines, {"x": "N D", "b": "N", "w": "N"}, {"out": "N D"}).spec())
    tensors = {"x": torch.ones(1, 2), "b": torch.ones(1), "w": torch.tensor([torch.inf])}
    found = composed(made)({"grad_out": torch.tensor([[1.0, -2.0]]), **tensors})
    assert found["grad_b"].isnan().all()


UNARY = ["torch.tanh({})", "torch.sigmoid({})", "F.silu({})", "{} * 0.7", "1 - {}", "torch.sin({})", "F.gelu({})",
         "torch.exp(-{}.abs())", "F.softplus({})", "{}.square()", "torch.rsqrt({}.square() + 0.5)"]  # fmt: skip
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / ({}.abs() + 1)", "torch.where(m, {}, {})"]
CHAINS = ["torch.softmax({}, -1)", "F.layer_norm({}, x.shape[-1:])", "{0} - {0}.mean(-1, keepdim=True)",
          "{0} * {0}.square().mean(-1, keepdim=True)", "torch.tanh({})", "{} * y", "{} * w"]  # fmt: skip


@st.composite
def trees(draw: st.DrawFn) -> Sample:
    """A tree over two inputs and a mask, all of one shape."""
    values, lines = ["x", "y"], []
    for step in range(draw(st.integers(2, 6))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        form = draw(st.sampled_from(draw(st.sampled_from([UNARY, BINARY]))))
        lines.append(f"t{step} = {form.format(a, b)}")
        values.append(f"t{step}")
    return of(
        "\n".join([*lines, f"return {values[-1]} + x * y"]), {"x": "... D", "y": "... D", "m": "... D: bool"}, ROW[1]
    )


@st.composite
def chains(draw: st.DrawFn) -> Sample:
    """A chain over rows with another tensor and a weight."""
    value, lines = "x", []
    for step in range(draw(st.integers(1, 3))):
        lines.append(f"t{step} = {draw(st.sampled_from(CHAINS)).format(value)}")
        value = f"t{step}"
    return of("\n".join([*lines, f"return {value} * w + y"]), {"x": "... D", "y": "... D", "w": "D"}, ROW[1])


@settings(RANDOM, max_examples=6)
@given(trees())
def test_the_gradients_of_pointwise_trees_agree_with_autograd(found: Sample) -> None:
    check(found)


@settings(RANDOM, max_examples=5)
@given(chains())
def test_the_gradients_of_row_reductions_agree_with_autograd(found: Sample) -> None:
    try:
        made = derived(found.spec())
        for part in made.parts:
            plan_of(part.spec)
    except UnsupportedError:
        assume(False)
    check(found)


# what indices read

GATHERS: dict[str, tuple[str, dict[str, str], dict[str, str], dict[str, Any]]] = {
    "embedding": (
        "return F.embedding(i, w)", {"w": "V D", "i": "...: int64 < V"}, {"out": "... D"}, {"...": (3, 5), "V": 4, "D": 19}
    ),
    "embedding of a matrix of indices": (
        "return F.embedding(i, w)", {"w": "V D", "i": "A B: int64 < V"}, {"out": "A B D"}, {"A": 3, "B": 5, "V": 4, "D": 19}
    ),
    "scaled embedding beside others": (
        "return F.embedding(i, w) * s + p",
        {"w": "V D", "i": "A B: int64 < V", "s": "D", "p": "B D"}, {"out": "A B D"}, {"A": 3, "B": 5, "V": 4, "D": 19},
    ),
    "rows": (
        "return x.index_select(0, i)", {"x": "V 3 D", "i": "A: int64 < V"}, {"out": "A 3 D"}, {"A": 9, "V": 4, "D": 7}
    ),
    "elements of rows": (
        "return x.gather(-1, i)", {"x": "... V", "i": "... A: int64 < V"}, {"out": "... A"}, {"...": (3,), "A": 9, "V": 4}
    ),
    "elements of columns": (
        "return torch.take_along_dim(x, i, dim=0)",
        {"x": "V B", "i": "A B: int64 < V"}, {"out": "A B"}, {"A": 9, "V": 4, "B": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GATHERS)
def test_the_gradient_of_what_indices_read_is_added_up(name: str) -> None:
    lines, inputs, outputs, sizes = GATHERS[name]
    check(replace(sample(lines, inputs, outputs, sizes), dtypes=(("T", ("float32",)),)))


def test_opcheck_of_an_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SPECS.parent / "operators" / "embedding")
    importlib.import_module("embedding_autograd")
    weight, index = torch.randn(11, 5, requires_grad=True), torch.randint(0, 11, (3, 2))
    torch.library.opcheck(torch.ops.kernelgen.embedding.default, (weight, index))


def test_where_sums_may_come_in_any_order_those_of_a_gradient_do() -> None:
    text, rows = ((SPECS / f"{name}.yaml").read_text("utf-8") for name in ("gather", "embedding"))
    made = derived(parse_spec(text + "deterministic: false\n"))
    assert "deterministic: false" in made.parts[0].text
    assert "any_order=True" in files_of(made)["gather_gradients_accuracy.py"]
    assert "any_order" not in files_of(derived(parse_spec(text)))["gather_gradients_accuracy.py"]
    # an order of rows costs nothing
    assert "deterministic" not in derived(parse_spec(rows + "deterministic: false\n")).parts[0].text


# what is moved

HALVES: dict[str, Any] = {"...": (3,), "D": 19}
MOVED: dict[str, tuple[str, dict[str, str], dict[str, str], dict[str, Any]]] = {
    "halves": ("a, b = x.chunk(2, -1)\nreturn a * torch.sigmoid(b)", {"x": "... 2*D"}, {"out": "... D"}, HALVES),
    "thirds, one of them twice": (
        "a, b, c = x.split(x.shape[-1] // 3, -1)\nreturn a * b + c * a", {"x": "A 3*D"}, {"out": "A D"}, {"A": 3, "D": 19}
    ),
    "a half that nothing is made of": ("return x.chunk(2, -1)[0] * 2.0", {"x": "... 2*D"}, {"out": "... D"}, HALVES),
    "columns without the first and the last": (
        "return F.pad(x[..., 1:-1] * y[..., 1:-1], (1, 1))", {"x": "... D", "y": "... D"}, {"out": "... D"}, HALVES
    ),
    "neighbours": (
        "a, b = x[..., 0::2], x[..., 1::2]\nreturn torch.stack((a * w - b, a + b * w), -1).flatten(-2)",
        {"x": "A 2*D", "w": "A D"}, {"out": "A 2*D"}, {"A": 3, "D": 19},
    ),
    "parts of a stack": ("return x[:, 0] * x[:, 2]", {"x": "A 3 D"}, {"out": "A D"}, {"A": 4, "D": 19}),
    "joins": (
        "return torch.cat((x, y * x), 0).flip(0).roll(2, 1)", {"x": "A D", "y": "A D"}, {"out": "2*A D"}, {"A": 3, "D": 19}
    ),
    "repeats": (
        "return x.repeat(2, 3).tanh() * y.repeat_interleave(3, dim=-1)", {"x": "A D", "y": "2*A D"}, {"out": "2*A 3*D"},
        {"A": 3, "D": 19},
    ),
    "many repeats": ("return x.repeat(1, 9)", {"x": "A D"}, {"out": "A 9*D"}, {"A": 3, "D": 19}),
    "pixels": (
        "return F.pixel_unshuffle(F.pixel_shuffle(x, 2).exp().roll((1, -2), (2, 3)), 2)",
        {"x": "B 4*C H W"}, {"out": "B 4*C H W"}, {"B": 2, "C": 2, "H": 3, "W": 5},
    ),
    "running sums": (
        "return torch.where(m, x.exp(), 0.0).cumsum(-1) * 0.5 + x", {"x": "... D", "m": "... D: bool"}, {"out": "... D"}, HALVES
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_the_gradient_of_what_is_moved_is_moved_back(name: str) -> None:
    lines, inputs, outputs, sizes = MOVED[name]
    needs = ("x.shape[-1] >= 2",) if "1:-1" in lines else ()
    check(replace(sample(lines, inputs, outputs, sizes, constraints=needs), dtypes=(("T", ("float32",)),)))


FOLLOWING: dict[str, tuple[str, dict[str, str], dict[str, str], dict[str, Any]]] = {
    "windows within": (
        "return torch.relu(F.conv2d(x, w))", {"x": "B C H W", "w": "J C 3 3"}, {"out": "B J H-2 W-2"},
        {"B": 2, "C": 3, "H": 5, "W": 7, "J": 4},
    ),
    "windows apart": (
        "return torch.tanh(F.conv2d(x, w, stride=2, padding=1))", {"x": "B C H W", "w": "J C 3 3"},
        {"out": "B J (H-1)//2+1 (W-1)//2+1"}, {"B": 2, "C": 3, "H": 8, "W": 7, "J": 4},
    ),
    "windows without what they read": (
        "return F.conv_transpose1d(x, w)", {"x": "B C L", "w": "C J 3"}, {"out": "B J L+2"}, {"B": 2, "C": 3, "L": 9, "J": 4}
    ),
    "windows of windows": (
        "return torch.relu(F.conv1d(torch.relu(F.conv1d(x, w)), v))", {"x": "B C L", "w": "J C 3", "v": "K J 2"},
        {"out": "B K L-3"}, {"B": 2, "C": 3, "L": 9, "J": 4, "K": 2},
    ),
    "differences": ("return torch.sigmoid(x[..., 1:] - x[..., :-1])", {"x": "A D"}, {"out": "A D-1"}, {"A": 3, "D": 19}),
    "more of them": ("return F.pad(x, (1, 2)).exp()", {"x": "... D"}, {"out": "... D+3"}, HALVES),
    "only joined": ("return torch.cat((x, y), 1)", {"x": "A D", "y": "A E"}, {"out": "A D+E"}, {"A": 3, "D": 9, "E": 4}),
    "a part of one": ("return x[:, 2:] + y", {"x": "A D", "y": "D-2"}, {"out": "A D-2"}, {"A": 3, "D": 19}),
    "joined": ("return torch.cat((x, y), 1).exp()", {"x": "A D", "y": "A E"}, {"out": "A D+E"}, {"A": 3, "D": 9, "E": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWING)
def test_gradients_of_outputs_whose_sizes_follow_from_those_of_inputs(name: str) -> None:
    lines, inputs, outputs, sizes = FOLLOWING[name]
    needs = {
        "windows within": ("x.shape[2] >= 3", "x.shape[3] >= 3"), "windows of windows": ("x.shape[2] >= 4",),
        "a part of one": ("x.shape[1] >= 3",),
    }.get(name, ())  # fmt: skip
    check(replace(sample(lines, inputs, outputs, sizes, constraints=needs), dtypes=(("T", ("float32",)),)))


def test_a_gradient_reads_sizes_where_they_stand_by_themselves() -> None:
    """That of a pad is a part of its output's, in which no name stands alone: the input is there for its shape."""
    (part,) = derived(load_spec(SPECS / "pad.yaml")).parts
    assert [(t.name, t.shape, t.role) for t in part.spec.inputs][1:] == [("x", ("...", "D"), "like")]


def test_the_gradients_of_pieces_are_joined_and_those_of_joins_cut() -> None:
    (lines,) = references(load_spec(SPECS / "glu.yaml"))
    assert "    grad_x = torch.cat((grad_out * sigmoid, grad_piece), dim=-1)" in lines
    (lines,) = references(load_spec(SPECS / "stack.yaml"))
    # in the dtype that they have
    assert lines == ["    grad_x = grad_out[:, 0]", "    grad_y = grad_out[:, 1]", "    return grad_x, grad_y"]
    (lines,) = references(load_spec(SPECS / "reverse_cumsum.yaml"))
    assert lines[2] == "    grad_x = grad_out.cumsum(-1)"


def test_what_is_constant_has_no_gradient() -> None:
    made = derived(load_spec(SPECS / "rotary_half.yaml"))
    assert [p.gradients for p in made.parts] == [("q",)]
    assert "return grad_q, None, None" in files_of(made)["rotary_half_autograd.py"]


def test_a_gradient_that_is_one_number_is_judged_as_such() -> None:
    made = derived(load_spec(SPECS / "sum_all.yaml"))
    assert families.uniform_outputs(plan_of(made.parts[0].spec)) == {"grad_x"}
    assert "uniform=True" in files_of(made)["sum_all_gradients_accuracy.py"]
    made = derived(load_spec(SPECS / "row_sum.yaml"))
    assert not families.uniform_outputs(plan_of(made.parts[0].spec))
    assert "uniform" not in files_of(made)["row_sum_gradients_accuracy.py"]


def test_groups_are_not_cut_beside_channels() -> None:
    rows, channels = (plan_of(part.spec) for part in derived(load_spec(SPECS / "group_norm.yaml")).parts)
    assert families.independent_dims(rows)["grad_x"] == 0
    assert set(families.independent_dims(channels).values()) == {None}


# what is refused


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("return torch.round(x)", "the gradient of rint, which is zero wherever it exists"),
        ("return x.cummax(-1)[0]", "the gradient of cummax"),
        ("return F.pad(x[..., ::2], (1, 0))[..., 1:].sum(-1, keepdim=True) + x", "a slice with steps, of which others"),
    ],
)
def test_what_has_no_derivative_here_is_refused_by_name(lines: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        derived(of(lines).spec())


@pytest.mark.parametrize(
    ("name", "message"),
    [("avg_pool2d", "the gradient of moved elements")],
)
def test_gradients_of_shipped_operators_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        derived(load_spec(SPECS / f"{name}.yaml"))


def test_the_gradient_of_an_embedding_with_special_rows_is_refused() -> None:
    table = {"w": "V D", "i": "A: int64 < V"}, {"out": "A D"}
    with pytest.raises(UnsupportedError, match="the gradient of an embedding with padding_idx"):
        derived(of("return F.embedding(i, w, padding_idx=1)", *table).spec())


def test_a_sum_of_moved_elements_over_leading_dimensions() -> None:
    """It was an IndexError where the wrapper merges dimensions of what is moved: they are summed one after the other."""
    lines = "a, b = x.chunk(2, dim=-1)\nreturn x * w + torch.cat((-b, a), dim=-1) * w"
    sizes = {"A": 2, "B": 3, "C": 2, "D": 5}
    check(sample(lines, {"x": "A B C 2*D", "w": "C 2*D"}, {"out": "A B C 2*D"}, sizes))


@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("y = x[..., :n] + x[..., -1:]", "    y = x[..., :n] + x[..., -1:]"),
        ("y = x[..., x.shape[-1] // 2:]", "    y = x[..., x.shape[-1] // 2 :]"),
        ("y = x[x.shape[0] - 1:2 * n]", "    y = x[x.shape[0] - 1 : 2 * n]"),
        (
            "copies = gradient.reshape(gradient.shape[0], gradient.shape[1] // 2, 2, gradient.shape[2])",
            "    copies = gradient.reshape(\n"
            "        gradient.shape[0], gradient.shape[1] // 2, 2, gradient.shape[2]\n    )",
        ),
    ],
)
def test_statements_of_derived_references_are_laid_out_as_ruff_would(statement: str, lines: str) -> None:
    assert laid_out(statement) == lines


def test_an_operator_without_gradients_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no float output depends on a float input"):
        derived(of("return x.argmax(-1)", {"x": "... D"}, {"out": "...: int64"}).spec())


# the whole operator


@pytest.fixture(scope="module")
def rms_norm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """NAME_autograd.py of a norm with a weight, generated afresh."""
    text = (SPECS / "rms_norm.yaml").read_text("utf-8").replace("rms_norm", "tested_norm")
    spec = replace(parse_spec(text, "tested_norm.yaml"), backward=True)
    folder = generation.new(spec, tmp_path_factory.mktemp("operators")).folder
    assert generation.stale(spec, folder.parent) == ()
    sys.path.insert(0, str(folder))
    yield importlib.import_module("tested_norm_autograd")
    sys.path.remove(str(folder))


def example() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 37, requires_grad=True), torch.randn(37, requires_grad=True)


def test_opcheck(rms_norm: Any) -> None:
    torch.library.opcheck(torch.ops.kernelgen.tested_norm.default, example())


def test_torch_compile_takes_forward_and_backward_whole(rms_norm: Any) -> None:
    x, weight = example()
    compiled = torch.compile(lambda x, w: rms_norm.tested_norm(x.sin(), w).cos(), fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, weight).sum(), (x, weight))
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    out = torch.nn.functional.rms_norm(wide[0].sin(), (37,), wide[1], 1e-6).cos()
    torch.testing.assert_close(found, torch.autograd.grad(out.sum(), wide), check_dtype=False, rtol=1e-4, atol=1e-5)


def test_the_autograd_function_gives_the_same(rms_norm: Any) -> None:
    x, weight = example()
    one = torch.autograd.grad(rms_norm.tested_norm(x, weight).sum(), (x, weight))
    two = torch.autograd.grad(rms_norm.Differentiable.apply(x, weight).sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_exported_package_has_the_gradients(rms_norm: Any, tmp_path: Path) -> None:
    folder = Path(rms_norm.__file__).parent
    text = (SPECS / "rms_norm.yaml").read_text("utf-8").replace("rms_norm", "tested_norm")
    export_custom_op(replace(parse_spec(text), backward=True), folder, tmp_path / "package")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "package"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "gradients or opcheck"]
    ran = subprocess.run(command, cwd=tmp_path / "package", env=env, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_a_package_has_the_forward_that_saves_what_gradients_need(tmp_path: Path) -> None:
    export_custom_op(load_spec(SPECS / "conv1d_gelu.yaml"), SPECS.parent / "operators" / "conv1d_gelu", tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "gradients or opcheck"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_a_part_is_an_operator_with_a_spec_of_its_own(rms_norm: Any) -> None:
    folder = Path(rms_norm.__file__).parent / "backward"
    spec = load_named("tested_norm_backward", folder.parents[1])
    assert (spec.name, spec.folder) == ("tested_norm_backward", "tested_norm/backward")
    assert generation.stale(spec, folder.parents[1]) == ()
    assert tensor("rstd", "... 1", "float32").shape == next(o for o in spec.outputs if o.name == "rstd").shape


def test_sizes_that_nobody_listed_are_not_listed_in_a_gradient() -> None:
    """A case that kernelgen made up may be one that torch refuses; a case that somebody listed must pass."""
    text = """\
name: op
inputs: [{name: x, shape: [M, N], dtype: T}, {name: b, shape: [N], dtype: T}]
outputs: [{name: out, shape: [M, N], dtype: T}]
dtypes: {T: [float16, float32]}
backward: true
reference: |
  def op(x, b):
      return torch.tanh(x * b)
performance: {dtypes: {T: [float16]}}
"""
    for part in derived(parse_spec(text, "op.yaml")).parts:
        assert part.spec.accuracy
        assert all(case.derived for case in (*part.spec.accuracy, *part.spec.performance))
        assert {dict(case.dtypes)["T"] for case in part.spec.performance} == {"float16"}
    listed = parse_spec(f"{text}accuracy: {{shapes: [{{M: 3, N: 8}}]}}\n", "op.yaml")
    assert not any(case.derived for case in derived(listed).parts[0].spec.accuracy)


def test_sizes_that_a_constraint_rules_are_listed_where_the_gradient_lacks_it() -> None:
    text = """\
name: op
inputs: [{name: x, shape: [M, N], dtype: T}, {name: b, shape: [M], dtype: T}]
outputs: [{name: out, shape: [M, N], dtype: T}]
dtypes: {T: [float32]}
constraints: ["b.shape[0] <= 5000"]
backward: true
reference: |
  def op(x, b):
      return torch.tanh(x) + b[:, None]
"""
    parts = derived(parse_spec(text, "op.yaml")).parts
    lacking = [part.spec for part in parts if not part.spec.constraints]
    assert lacking
    assert all(not case.derived and dict(case.sizes)["M"] <= 5000 for spec in lacking for case in spec.accuracy)


QUICK = "silu"
"""Whose gradient is traced in a quick run; the others take up to ten seconds."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem == QUICK else pytest.mark.slow)
        for path in sorted(SPECS.glob("*.yaml"))
        if "\nbackward: true" in path.read_text("utf-8")
    ],
)
def test_a_gradient_means_one_thing_for_every_dtype_and_rank(path: Path) -> None:
    """As that of which it is the gradient does, so `new` traces it once."""
    for part in derived(load_spec(path)).parts:
        assert frontend.trace(part.spec) == frontend.trace(part.spec, derived=True), part.spec.name

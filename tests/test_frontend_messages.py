"""What the front end says of references that write, make tensors, branch on values, or ask torch for what it has not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from test_frontend import refusal, spec_of

from kernelgen import generation
from kernelgen.errors import SpecError
from kernelgen.frontend import trace
from kernelgen.frontend.gradients import check_differentiable
from kernelgen.spec import parse_spec
from kernelgen.wrapper.checks import checks

ROWS, SAME = "x: [N, D] T", "out: [N, D] T"
INPUT = (
    "an in-place change of x: a reference may not change its inputs (write x.clone(), or declare the output that it becomes with "
    "into: x)"
)
VIEW = "an in-place write to a tensor whose view is used afterwards (write to a clone())"
PART = "an in-place write to part of a tensor (write it with torch.where or torch.cat)"
VALUE = "unsupported: a Python number from a tensor's value (.item(), int() or float(); keep it a tensor)"
BRANCH = "unsupported: a branch on the values of a tensor (use torch.where, which selects per element)"
CPU = "a tensor is created on the CPU, whatever device the inputs are on; pass device=x.device"

WRITES = {
    "input": ("x.add_(1)\nreturn x", 9, INPUT),
    "operator on an input": ("y = x\ny += 1\nreturn y", 10, INPUT),
    "view of an input": ("y = x.t()\ny.mul_(2)\nreturn y.t()", 10, INPUT),
    "what may be an input": ("y = x.t().contiguous()\ny.mul_(2)\nreturn y.t()", 10, INPUT),
    "input of one dtype": ("y = x.float()\ny += 1\nreturn y.to(x.dtype)", 10, f"with T=float32: unsupported: {INPUT}"),
    "every so many": ("y = x * 2\ny[:, ::x.shape[0]] = 1\nreturn y", 10, "an in-place write to a slice whose step is a size"),
    "overlapping slices": ("y = x * 2\ny[:, 1:] = y[:, :-1]\nreturn y", 10, PART),
    "slices that meet": ("y = x * 2\nv = y[:, :1]\ny[:, 0] = 1\nreturn v + y", 11, PART),
    "pieces": ("y = x * 2\na, b = y.split([1, x.shape[1] - 1], 1)\nb += 1\nreturn y", 11, PART),
    "reshaped": ("y = x * 2\nv = y.view(-1)\nv += 1\nreturn y", 11, VIEW),
    "view made before": ("y = x * 2\nv = y.t()\ny += 1\nreturn v.t()", 11, VIEW),
    "slice made before": ("y = x * 2\nv = y[:, :1]\ny += 1\nreturn v + y", 11, VIEW),
    "what contiguous returns": ("y = x * 2\nz = y.contiguous()\nz.mul_(3)\nreturn y", 11, VIEW),
    "read through a view": ("y = x * 2\ny.add_(y.t())\nreturn y", 10, VIEW),
    "expanded": ("y = (x * 2)[:, :1].expand(x.shape)\ny.add_(1)\nreturn y", 10, "an in-place write to an expanded tensor"),
    "out": ("y = x * 2\ntorch.add(x, y, out=y)\nreturn y", 10, "out= (give the result a name)"),
    "added values": ("y = x * 2\ny.index_put_((x[:, 0] > 0,), x[0], accumulate=True)\nreturn y", 10, "an assignment to a mask combined with other indices, or with accumulate=True"),
    "random": ("y = x * 2\ny.normal_()\nreturn y", 10, "normal.default, which draws from torch's generator"),
    "never written": ("y = torch.empty_like(x)\nreturn y + x", 10, "elements of torch.empty that are never written"),
    "several numbers": ("y = x * 2\nz = torch.tensor([1.0] * 17)\nreturn y * z.sum()", 10, "a tensor of more than 16 numbers (make it an input with role: constant)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_others_would_see_is_refused_at_its_line(name: str) -> None:
    body, line, message = WRITES[name]
    found = refusal(body, *(("x: [D, D] T", "out: [D, D] T") if name == "read through a view" else (ROWS, SAME)))
    assert found.startswith(f"op.yaml:{line}:3: "), found
    assert f"unsupported: {message.removeprefix('with T=float32: unsupported: ')}" in found
    assert message in found


def test_the_write_of_one_dtype_alone_is_none_where_that_dtype_is_not_declared() -> None:
    spec = spec_of("y = x.float()\ny += 1\nreturn y.to(x.dtype)", ROWS, SAME)
    text = spec.reference
    narrow = parse_spec(
        "name: op\ninputs: [{name: x, shape: [N, D], dtype: T}]\noutputs: [{name: out, shape: [N, D], dtype: T}]\n"
        "dtypes: {T: [float16, bfloat16]}\nreference: |\n" + "".join(f"  {line}\n" for line in text.splitlines())
    )
    assert any(node.op == "add" for node in trace(narrow)[0].nodes)


SAID = {
    "sizes": ("y = x * 2\nreturn y + w", f"{ROWS}; w: [E] T", SAME, "11:3: the reference fails: The size of tensor a (D) must match the size of tensor b (E) at non-singleton dimension 1"),
    "halves": ("a, b = x.chunk(2, -1)\nreturn a * b", ROWS, SAME, "(D + 1)//2))) at non-singleton dimension 1 (if D is always a multiple of 2, write it as 2 * D in the shapes of the spec)"),
    "views": ("n, d = x.shape\nreturn x.view(n, 2, d // 2).sum(1)", ROWS, SAME, "shape '[N, 2, (D//2)]' is invalid for input of size N*D (if D is always a multiple of 2, write it as 2 * D"),
    "halves that are given back": ("a, b = x.chunk(2, -1)\nreturn torch.cat([b, a], -1)", ROWS, SAME, "(if D is always a multiple of 2, write it as 2 * D"),
    "number": ("return x * torch.sym_max(x.shape[-1], 3.5)", ROWS, SAME, "the number Max(3.5, ToFloat(D))"),
    "branch": ("y = x * 2\nif y.sum() == 0:\n  return x\nreturn y", ROWS, SAME, f"10:3: {BRANCH}"),
    "item": ("y = x.sum().item()\nreturn x * y", ROWS, SAME, f"10:3: {VALUE}"),
    "int": ("return x * int(x.sum())", ROWS, SAME, f"9:3: {VALUE}"),
    "torch": ("return torch.softmx(x, -1)", ROWS, SAME, "9:3: the reference fails: torch has no attribute 'softmx'; did you mean 'softmax'?"),
    "functional": ("return F.sofmax(x, -1)", ROWS, SAME, "torch.nn.functional has no attribute 'sofmax'; did you mean 'softmax'?"),
    "tensors": ("return x.sofmax(-1)", ROWS, SAME, "a tensor has no attribute 'sofmax'; did you mean 'softmax'?"),
    "data": ("y = x * 2\ny.data.add_(1)\nreturn y", ROWS, SAME, "it uses a tensor that the trace cannot follow (such as .data; write .detach())"),
    "nothing near": ("return x.qqqqqqq(-1)", ROWS, SAME, "a tensor has no attribute 'qqqqqqq'"),
    "another fp8": ("return x.clamp(-3, 3).to(torch.float8_e5m2).to(x.dtype)", ROWS, SAME, "a cast to float8_e5m2 (supported: float16, bfloat16, float32 and float8_e4m3fn)"),
    "NumPy": ("return x.numpy()", ROWS, SAME, "9:3: the reference fails: .numpy() leaves torch; a reference may only call torch"),
    "zeros without a device": ("y = torch.zeros(x.shape, dtype=x.dtype)\nreturn y + x", ROWS, SAME, f"10:3: the reference fails: {CPU}"),
    "numbers without a device": ("y = torch.arange(x.shape[-1])\nreturn x * y", ROWS, SAME, CPU),
    "a sum without a device": ("y = torch.tensor(0.0)\ny += x.sum()\nreturn x * y", ROWS, SAME, CPU),
    "a place beyond one": ("return x[:, 1]", "x: [N, C] T", "out: [N] T", "index 1 of a dimension that has one element with C = 1 (write the constraint x.shape[1] >= 2)"),
    "a number that float16 lacks": ("y = torch.tanh(x)\nreturn y.masked_fill(x > 0, -1e9)", ROWS, SAME, "10:3: unsupported: -1e+09 in float16, which torch refuses (write torch.finfo(x.dtype).min or .max, or an infinity; or leave float16 out of the dtypes)"),
    "one result alone": ("y = torch.ops.aten.native_layer_norm_backward(x, x, [x.shape[1]], x[:, :1], x[:, :1], None, None, [True, False, False])\nreturn y[0]", ROWS, SAME, "unsupported: aten.native_layer_norm_backward.default, which gives None among its results"),
    "returned without a device": ("return torch.ones(x.shape[-1], dtype=x.dtype)", ROWS, "out: [D] T", "9:3: unsupported: a tensor created on the CPU"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_message_has_the_names_of_the_spec_and_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    body, inputs, outputs, message = SAID[name]
    found = refusal(body, inputs, outputs)
    assert message in found
    assert "\n" not in found
    assert capfd.readouterr() == ("", "")


WITH_GRADIENT = """\
name: op
inputs:
  - {{name: x, shape: [N, D], dtype: float32}}
  - {{name: w, shape: [N, D], dtype: float32{role}}}
outputs: [{{name: out, shape: [N, D], dtype: float32}}]
backward: true
reference: |
  def op(x, w):
      y = x * 2
      {body}
"""
NO_GRADIENT = {
    "return F.soft_margin_loss(y, w, reduction='none')": "op.yaml:10:3: unsupported: torch has no gradient of "
    "soft_margin_loss for its target; give w role: constant",
    "return F.binary_cross_entropy_with_logits(y, x, pos_weight=w, reduction='none')": "op.yaml:10:3: unsupported: "
    "torch has no gradient of binary_cross_entropy_with_logits for its pos_weight; give w role: constant",
    "z = torch.exp(y); z += w; return z": "unsupported: backward: true, but the reference overwrites in place what torch needs",
}


@pytest.mark.parametrize("body", NO_GRADIENT)
def test_a_gradient_that_torch_does_not_have_is_refused(body: str) -> None:
    with pytest.raises(SpecError) as error:
        check_differentiable(parse_spec(WITH_GRADIENT.format(body=body, role=""), "op.yaml"))
    assert NO_GRADIENT[body] in str(error.value)


def test_a_gradient_that_is_not_asked_for_need_not_be_there() -> None:
    body = next(iter(NO_GRADIENT))
    check_differentiable(parse_spec(WITH_GRADIENT.format(body=body, role=", role: constant"), "op.yaml"))


SPEC = """\
name: op
inputs:
  - {{name: x, shape: [8*N], dtype: float32}}
  - {{name: i, shape: [M], dtype: {dtype}, below: {below}}}
outputs: [{{name: out, shape: [M], dtype: float32}}]
reference: |
  def op(x, i):
      return x[i]
"""


@pytest.mark.parametrize("below", ["8*N", "8 * N", "N", "5"])
def test_a_bound_is_spelt_as_a_size_is(below: str) -> None:
    spec = parse_spec(SPEC.format(dtype="int64", below=below))
    assert spec.inputs[1].below == {"8*N": "8 * N", "5": 5}.get(below, below)


@pytest.mark.parametrize(
    ("dtype", "below", "message"),
    [
        ("int", "N", "op.yaml:4:34: unknown dtype 'int'; did you mean 'int32' or 'int64'?"),
        ("float", "N", "op.yaml:4:34: unknown dtype 'float'; did you mean 'float32'?"),
        ("int64", "8*K", "op.yaml:4:48: size '8*K' is bound by no input"),
    ],
)
def test_a_bound_or_a_dtype_that_is_none(dtype: str, below: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_spec(SPEC.format(dtype=dtype, below=below), "op.yaml")
    assert message in str(error.value)


SLICES = {
    "x[:, -2:]": ("x: [N, D] T", "out: [N, 2] T", "x.shape[1] >= 2"),
    "x[:, :2]": ("x: [N, D] T", "out: [N, 2] T", "x.shape[1] >= 2"),
    "x[:, -3:-1]": ("x: [N, D] T", "out: [N, 2] T", "x.shape[1] >= 3"),
    "x[:, -3:]": ("x: [N, 2 * D] T", "out: [N, 3] T", "x.shape[1] >= 4"),
    "x[..., -2:]": ("x: [..., D] T", "out: [..., 2] T", "x.shape[-1] >= 2"),
}


@pytest.mark.parametrize("lines", SLICES)
def test_a_slice_that_is_shorter_where_a_size_is_1(lines: str) -> None:
    """torch traces as if no size were 1: where it is, the kernel would read before or beyond the tensor."""
    x, out, constraint = SLICES[lines]
    said = f"a slice that is shorter with D = 1 (write the constraint {constraint})"
    assert said in refusal(f"return {lines} * 2", x, out)


def test_a_slice_whose_end_divides_by_zero_at_a_size_of_one_is_refused_in_words() -> None:
    with pytest.raises(SpecError, match=r"a reference that takes one branch where .* and another one elsewhere"):
        trace(spec_of("return x[: x.shape[0] // (x.shape[1] - 1), 0]", ROWS, "out: [N // (D - 1)] T"))


@pytest.mark.parametrize("size", ["N // 0", "N // (D - D)"])
def test_a_size_that_divides_by_zero_is_a_mistake_of_the_spec(size: str) -> None:
    with pytest.raises(SpecError) as raised:
        trace(spec_of("return x.sum(-1)", ROWS, f"out: [{size}] T"))
    (mistake,) = raised.value.mistakes
    assert mistake.message == f"outputs declares out with a size of {size}, which divides by zero"
    assert mistake.line > 1


OFFSETS = """\
name: op
inputs:
  - {name: x, shape: [N], dtype: float32}
  - {name: ends, shape: [P], dtype: int32, offsets: N, checked: true}
  - {name: i, shape: [M], dtype: int64, below: N, checked: true}
outputs: [{name: out, shape: [M], dtype: float32}]
reference: |
  def op(x, ends, i):
      return x[i] + ends[0] * 0.0
"""


@pytest.mark.parametrize(
    ("ends", "i", "message"),
    [
        (
            [0, 3, 2, 8],
            [0],
            "op: ends must begin with 0, be non-decreasing and end at x.shape[0], 8, got [0, 3, 2, 8], ending with [8]",
        ),
        (
            [0, 3, 7],
            [0],
            "op: ends must begin with 0, be non-decreasing and end at x.shape[0], 8, got [0, 3, 7], ending with [7]",
        ),
        (
            [1, 8],
            [0],
            "op: ends must begin with 0, be non-decreasing and end at x.shape[0], 8, got [1, 8], ending with [8]",
        ),
        ([0, 8], [3, 8], "op: i must hold indices from 0 and below x.shape[0], 8, got 3 to 8"),
        ([0, 8], [-1], "op: i must hold indices from 0 and below x.shape[0], 8, got -1 to -1"),
    ],
)
def test_elements_are_looked_at_where_the_spec_says_so(ends: list[int], i: list[int], message: str) -> None:
    spec = parse_spec(OFFSETS)
    scope: dict[str, Any] = {"torch": torch}
    lines = [f"if {c.condition}:\n    raise ValueError(f'{c.message}')" for c in checks(spec)]
    given = {"x": torch.zeros(8), "ends": torch.tensor(ends, dtype=torch.int32), "i": torch.tensor(i)}
    with pytest.raises(ValueError, match=re.escape(message)):
        exec("\n".join(lines), scope | given)
    exec("\n".join(lines), scope | given | {"ends": torch.tensor([0, 5, 5, 8]).int(), "i": torch.tensor([0, 7])})


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("offsets: N", "offsets: K", "op.yaml:4:53: size 'K' is bound by no input"),
        ("[P], dtype: int32", "[P], dtype: float32", "indices are int32 or int64, and ends is float32"),
        ("[P]", "[P, 2]", "offsets are a tensor of one dimension, and ends has 2"),
        ("offsets: N", "below: N, offsets: N", "one of below, offsets and ends: indices do not rise"),
        ("offsets: N, ", "", "checked: of what? It goes with below, offsets or ends"),
    ],
)
def test_offsets_that_are_none(before: str, after: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_spec(OFFSETS.replace(before, after), "op.yaml")
    assert message in str(error.value)


WINDOW = """\
name: op
inputs: [{name: x, shape: [B, 4, H], dtype: float32}, {name: w, shape: [6, 4, 3], dtype: float32}]
outputs: [{name: out, shape: [B, 6, H - 2], dtype: float32}]
reference: |
  def op(x, w):
      return F.conv1d(x, w)
accuracy:
  shapes:
    - {B: 2, H: 9}
    - {B: 2, H: 2}
"""


def test_a_listed_shape_that_torch_refuses_is_named_and_no_branch() -> None:
    with pytest.raises(SpecError, match=r"^op.yaml:10:7: B=2 H=2: the reference fails: Calculated padded input size"):
        generation.lowered(parse_spec(WINDOW, "op.yaml"))
    assert generation.lowered(parse_spec(WINDOW.replace("H: 2}", "H: 3}"), "op.yaml"))

"""`kernelgen import`: what becomes of a file, and what is said of one that is not understood."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_process import contents, kernelgen, refused

from kernelgen.errors import KernelgenError, SpecError
from kernelgen.frontend import trace
from kernelgen.importer import process, shapes
from kernelgen.importer.naming import operator_name
from kernelgen.importer.process import imported
from kernelgen.importer.rewrite import Input
from kernelgen.importer.shapes import derive
from kernelgen.spec import parse_spec
from kernelgen.spec.choices import choices

MODULE = '''\
import torch
from torch import nn


class Model(nn.Module):
    """Norm, then "scale": of many. More."""

    def __init__(self, dim, slope, eps=1e-6):
        super(Model, self).__init__()
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.act = nn.Sequential(nn.LeakyReLU(slope), nn.Identity())
        self.gain = nn.Parameter(torch.ones(dim))
        self.temperature = 0.7
        self.power = -1

    def forward(self, x, scale: float):
        """Not of the reference."""
        # the comment stays
        y = self.act(self.norm(x)) * self.gain
        return (y / self.temperature) * scale + self.power ** 2


def get_inputs():
    return [torch.rand(6, 8), 2.0]


def get_init_inputs():
    return [8, 0.1]
'''

FUNCTION = '''\
import torch
import torch.nn.functional as Fn

SHIFT = -2


def half(v):
    return v * 0.5


def gate(x: torch.Tensor, bias, factor=1.5):
    """Gate x softly. More."""
    return half(Fn.silu(x + bias)) * factor + SHIFT


example_inputs = (torch.randn(4, 8, 8), torch.randn(8))
'''

LAYER = """\
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.{layer}

    def forward(self, {names}):
        return self.layer({names})

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


def of(text: str, folder: Path, name: str = "36_RMSNorm_.py", **options: str | None) -> str:
    """The spec's text for a file's, made in this process."""
    path = folder / name
    path.write_text(text)
    made = imported(path, options.get("name"), options.get("function"))
    assert parse_spec(made.text).name == made.name
    return made.text


def reference(text: str) -> str:
    return parse_spec(text).reference


def test_a_module_becomes_a_spec_as_a_person_writes_it(tmp_path: Path) -> None:
    text = of(MODULE, tmp_path)
    assert text.startswith(
        """\
name: rms_norm
summary: "Norm, then \\"scale\\": of many."
inputs:
  - {name: x,      shape: [M, N], dtype: T}
  - {name: weight, shape: [N],    dtype: T, role: parameter}
  - {name: bias,   shape: [N],    dtype: T, role: parameter}
  - {name: gain,   shape: [N],    dtype: T, role: parameter}
outputs:
  - {name: out,    shape: [M, N], dtype: T}
dtypes: {T: [float32, float16, bfloat16]}
reference: |
  def rms_norm(x, weight, bias, gain, scale=2.0, temperature=0.7):
      # the comment stays
      y = F.leaky_relu(F.layer_norm(x, weight.shape, weight, bias, eps=1e-6), negative_slope=0.1) * gain
      return (y / temperature) * scale + (-1) ** 2
accuracy:
  shapes:
    - {M: 1, N: 1}
"""
    )
    assert "performance:\n  shapes:\n    - {M: 6, N: 8}\n" in text


def test_the_module_calls_the_operator_and_is_otherwise_as_it_was(tmp_path: Path) -> None:
    module = parse_spec(of(MODULE, tmp_path)).module
    head, _, tail = MODULE.partition("        # the comment stays\n")
    made, _, called = head.partition("        self.power = -1\n")
    assert module.startswith(f"{made}        self.power = -1\n        self._check_fixed()\n{called}")
    assert module.endswith(tail.partition("** 2\n")[2])
    assert (
        "        self._check_fixed()\n"
        "        if scale != 2.0:\n"
        '            raise ValueError("rms_norm is compiled for scale = 2.0")\n'
        "        return rms_norm(x, self.norm.weight, self.norm.bias, self.gain)\n\n"
        "    def _check_fixed(self):\n"
    ) in module


ARGUMENTS = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n, eps=1e-5, act="relu", bias=True, groups=2, width=3): super().__init__(); {made}

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.rand(2, 4, 9, 9)]


def get_init_inputs():
    return [4]
"""


@pytest.mark.parametrize(
    ("made", "result", "arguments", "message"),
    [
        ("self.eps = eps", "x + self.eps", {"eps": 1.0}, "op is compiled for self.eps = 1e-05, not 1.0"),
        ("self.n = nn.GroupNorm(groups, n)", "self.n(x)", {"groups": 4}, "self.n.num_groups = 2, not 4"),
        ("self.n = nn.BatchNorm2d(n, eps=eps)", "self.n(x)", {"eps": 1.0}, "self.n.eps = 1e-05, not 1.0"),
        ("self.p = nn.AvgPool2d(width)", "self.p(x)", {"width": 2}, "self.p.stride = 3, not 2"),
        ("self.c = nn.Conv2d(n, 4, width)", "self.c(x)", {"width": 2}, "self.c.weight.shape[2] = 3, not 2"),
        ("self.c = nn.Conv2d(n, 4, 3, bias=bias)", "self.c(x)", {"bias": False}, "self.c.bias is None = False"),
        (
            "self.a = nn.Sequential(nn.ReLU() if act == 'relu' else nn.ELU())", "self.a(x)", {"act": "elu"},
            "type(self.a[0]).__name__ = 'ReLU', not 'ELU'",
        ),
        ("self.axes = (2, 3) if bias else (2,)", "x.sum(self.axes)", {"bias": False}, "self.axes = (2, 3), not (2,)"),
    ],
)  # fmt: skip
def test_arguments_that_the_kernel_is_not_compiled_for_are_refused(
    made: str, result: str, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    module = parse_spec(of(ARGUMENTS.format(made=made, result=result), tmp_path, "op.py")).module
    scope: dict[str, Any] = {"op": lambda *tensors: "called"}
    exec(module, scope)
    with pytest.raises(ValueError, match=re.escape(message)):
        scope["Model"](4, **arguments)
    assert scope["Model"](4)(*scope["get_inputs"]()) == "called"


def test_what_is_changed_later_is_refused_where_it_is_called(tmp_path: Path) -> None:
    text = of(ARGUMENTS.format(made="self.norm = nn.BatchNorm2d(n)", result="self.norm(x)"), tmp_path, "op.py")
    scope: dict[str, Any] = {"op": lambda *tensors: "called"}
    exec(parse_spec(text).module, scope)
    module = scope["Model"](4)
    assert module(torch.rand(2, 4, 3, 3)) == "called"
    with pytest.raises(ValueError, match=r"op is compiled for self\.norm\.training = True, not False"):
        module.eval()(torch.rand(2, 4, 3, 3))


def test_sizes_that_the_kernel_takes_stay_free(tmp_path: Path) -> None:
    text = of(ARGUMENTS.format(made="self.norm = nn.LayerNorm(n + 5)", result="self.norm(x)"), tmp_path, "op.py")
    scope: dict[str, Any] = {"op": lambda x, weight, bias: weight.shape}
    exec(parse_spec(text).module, scope)
    assert scope["Model"](20)(torch.rand(2, 25)) == (25,)


def test_a_function_becomes_a_spec(tmp_path: Path) -> None:
    text = of(FUNCTION, tmp_path)
    assert "name: gate\nsummary: Gate x softly.\n" in text
    assert "{name: x,      shape: [B, M, N], dtype: T}" in text
    assert "{name: bias,   shape: [N],       dtype: T}" in text
    assert "{name: factor, scalar: float, default: 1.5}" in text
    assert "module:" not in text
    assert reference(text) == (
        "def half(v):\n    return v * 0.5\n\n"
        "def gate(x, bias, factor=1.5):\n    return half(F.silu(x + bias)) * factor + -2\n"
    )


SIGNATURE = """\
import torch
import torch.nn.functional as F


def norm(x, upcast: bool, weight=None, bias=None, eps={eps}, *, dim=-1, mode="silu", scale=None):
    y = x.float() if upcast else x
    y = {norm}
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return (F.silu(y) if mode == "silu" else y).to(x.dtype)


def get_inputs():
    return [torch.randn(6, 8), True, torch.ones(8)]
"""
WRITTEN_OUT = "y * torch.rsqrt(y.pow(2).mean(dim, keepdim=True) + eps)"


def entries(text: str) -> list[str]:
    return [line.strip(" -") for line in text.split("inputs:\n")[1].split("outputs:")[0].splitlines()]


def test_a_function_keeps_its_signature(tmp_path: Path) -> None:
    text = of(SIGNATURE.format(eps="1e-6", norm=WRITTEN_OUT), tmp_path)
    assert entries(text) == [
        "{name: x,      shape: [M, N], dtype: T}",
        "{name: weight, shape: [N],    dtype: T, optional: true}",
        "{name: upcast, scalar: bool, default: true}",
        "{name: eps,    scalar: float, default: 1e-6}",
        "{name: dim,    scalar: int, default: -1, values: [-1]}",
        "{name: mode,   scalar: str, default: silu, values: [silu]}",
    ]
    # of a tensor without an example nothing is known
    head = 'def norm(x, weight=None, upcast=True, eps=1e-6, dim=-1, mode="silu", bias=None, scale=None):'
    assert reference(text).startswith(head)


@pytest.mark.parametrize(
    ("norm", "kept", "said"),
    [
        ("F.celu(y, alpha=eps)", {"upcast": "default: true}", "weight": "optional: true}"},
         "eps is 1e-6 alone, since"),
        ("F.celu(y, alpha=eps if upcast else x.sum().item())",
         {"upcast": "values: [true]}", "weight": "optional: true}"}, "upcast is True alone and eps is 1e-6 alone, since"),
        ("y * torch.rsqrt(y.pow(2).mean(dim, keepdim=True) + (eps if weight is not None else x.sum().item()))",
         {"upcast": "values: [true]}", "weight": "dtype: T}"}, "weight must be given, and numbers and flags are what"),
    ],
    ids=["float", "bool", "optional"],
)  # fmt: skip
def test_what_no_kernel_can_be_made_for_is_fixed_and_said(
    norm: str, kept: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "norm.py"
    path.write_text(SIGNATURE.format(eps="1e-6", norm=norm))
    made = imported(path, None, None)
    found = {line.split(",")[0].removeprefix("{name: "): line for line in entries(made.text)}
    assert found["eps"].endswith("values: [1e-6]}")
    for name, ending in kept.items():
        assert found[name].endswith(ending), found[name]
    assert any(note.startswith(said) for note in made.notes), made.notes


def test_the_side_of_the_files_own_sizes_becomes_a_constraint(tmp_path: Path) -> None:
    text = of(
        "import torch\ndef f(x):\n    return x * (1.0, 2.0)[int(x.shape[1] > 60)]\n"
        "example_inputs = (torch.rand(4, 200),)\n",
        tmp_path,
    )
    assert "  - x.shape[1] > 60   # as the file's own sizes are; elsewhere the reference does another thing\n" in text
    sizes = [dict(case.sizes) for case in parse_spec(text).accuracy]
    assert sizes
    assert all(case["N"] > 60 for case in sizes)


def test_cases_are_made_anew_for_a_side_that_no_small_shape_is_on(tmp_path: Path) -> None:
    """Which were none: of two conditions neither was written, and a size that stays open was the file's number."""
    text = of(
        "import torch\ndef f(x):\n"
        "    return x * (1.0, 2.0)[int(x.shape[2] > 40)] * (1.0, 3.0)[int(x.shape[3] > 60)]\n"
        "example_inputs = (torch.rand(2, 4, 64, 200),)\n",
        tmp_path,
    )
    spec = parse_spec(text)
    assert spec.inputs[0].shape == ("B", "C", "H", "W")
    assert [c.text for c in spec.constraints] == ["x.shape[2] > 40", "x.shape[3] > 60"]
    sizes = [dict(case.sizes) for case in spec.accuracy]
    assert len({tuple(case.items()) for case in sizes}) > 1
    assert all(case["H"] > 40 and case["W"] > 60 for case in sizes)


@pytest.mark.parametrize(
    ("body", "inputs", "shapes"),
    [
        ("x.relu()", "torch.rand(4, 4)", ["[M, N]"]),
        ("x + y", "torch.rand(4, 4), torch.rand(4, 4)", ["[M, N]", "[M, N]"]),
        ("x * y", "torch.rand(4, 4), torch.rand(4)", ["[M, N]", "[N]"]),
        ("x * y[:, None]", "torch.rand(4, 4), torch.rand(4)", ["[M, N]", "[M]"]),
        ("x * y", "torch.rand(4, 4), torch.rand(1, 4)", ["[M, N]", "[1, N]"]),
        ("x + N", "torch.rand(4, 4), torch.rand(())", ["[M, K]", "[]"]),
        ("torch.where(y, x, 0)", "torch.rand(4, 4), torch.rand(4, 4) < 0.5", ["[M, N]", "[M, N]"]),
    ],
)
def test_only_sizes_that_must_be_equal_share_a_name(body: str, inputs: str, shapes: list[str], tmp_path: Path) -> None:
    names = ("x, N" if "+ N" in body else "x, y") if len(shapes) > 1 else "x"
    text = of(f"import torch\ndef f({names}):\n    return {body}\ndef get_inputs():\n    return {inputs}\n", tmp_path)
    spec = parse_spec(text)
    assert [f"[{', '.join(map(str, t.shape))}]" for t in spec.inputs] == shapes
    assert spec.outputs[0].shape == spec.inputs[0].shape


FOUR = "torch.rand(2, 8, 6, 6)"


@pytest.mark.parametrize(
    ("layer", "inputs", "call"),
    [
        ("ReLU()", FOUR, "F.relu(x)"),
        ("GELU('tanh')", FOUR, "F.gelu(x, approximate='tanh')"),
        ("Softmax(dim=1)", FOUR, "F.softmax(x, dim=1)"),
        ("Threshold(0.1, 20)", FOUR, "F.threshold(x, 0.1, 20)"),
        ("LayerNorm((6, 6), bias=False)", FOUR, "F.layer_norm(x, weight.shape, weight)"),
        ("LayerNorm(6, elementwise_affine=False)", FOUR, "F.layer_norm(x, (x.shape[-1],))"),
        ("RMSNorm(6, eps=1e-3)", FOUR, "F.rms_norm(x, weight.shape, weight, eps=0.001)"),
        ("GroupNorm(4, 8)", FOUR, "F.group_norm(x, 4, weight, bias)"),
        ("BatchNorm2d(8)", FOUR, "F.batch_norm(x, None, None, weight=weight, bias=bias, training=True)"),
        ("BatchNorm2d(8, affine=False).eval()", FOUR, "F.batch_norm(x, running_mean, running_var)"),
        ("InstanceNorm2d(8, eps=1e-4)", FOUR, "F.instance_norm(x, eps=0.0001)"),
        ("AvgPool2d(1)", FOUR, "F.avg_pool2d(x, 1)"),
        ("MaxPool2d(3, stride=1, padding=1)", FOUR, "F.max_pool2d(x, 3, stride=1, padding=1)"),
        ("Linear(6, 5)", FOUR, "F.linear(x, weight, bias)"),
        ("Conv2d(8, 4, 1, bias=False)", FOUR, "F.conv2d(x, weight)"),
        ("Dropout().eval()", FOUR, "x"),
        ("MSELoss(reduction='sum')", f"{FOUR}, {FOUR}", "F.mse_loss(x, y, reduction='sum')"),
        ("HuberLoss(delta=2.0)", f"{FOUR}, {FOUR}", "F.huber_loss(x, y, delta=2.0)"),
    ],
)
def test_a_layer_is_the_call_that_gives_the_same(layer: str, inputs: str, call: str, tmp_path: Path) -> None:
    """What the reference computes is compared with the layer, on random weights, by the import itself."""
    names = "x, y" if inputs.count(FOUR) > 1 else "x"
    text = of(LAYER.format(layer=layer, names=names, inputs=inputs), tmp_path)
    assert reference(text).splitlines()[-1].strip() == f"return {call}"


def test_what_only_a_parameter_has_is_a_size_too_and_a_multiple_is_declared_as_one(tmp_path: Path) -> None:
    linear = of(LAYER.format(layer="Linear(6, 5)", names="x", inputs=FOUR), tmp_path)
    assert "{name: weight, shape: [M, W]," in linear
    assert "{name: bias,   shape: [M]," in linear
    assert "{name: out,    shape: [B, C, H, M]," in linear
    group = parse_spec(of(LAYER.format(layer="GroupNorm(4, 8)", names="x", inputs=FOUR), tmp_path))
    assert [t.shape for t in group.inputs] == [("B", "4 * C", "H", "W"), ("4 * C",), ("4 * C",)]
    assert group.outputs[0].shape == ("B", "4 * C", "H", "W")
    assert dict(group.performance[0].sizes)["C"] == 2


def test_a_window_has_sizes_that_follow_and_sizes_that_must_be_large_enough(tmp_path: Path) -> None:
    depthwise = "Conv2d(8, 8, (3, 5), stride=2, groups=8, bias=False)"
    conv = parse_spec(of(LAYER.format(layer=depthwise, names="x", inputs=FOUR), tmp_path))
    assert [t.shape for t in conv.inputs] == [("B", 8, "H", "W"), (8, 1, 3, 5)]
    assert conv.outputs[0].shape == ("B", 8, "(H - 3) // 2 + 1", "(W - 5) // 2 + 1")
    assert {c.text for c in conv.constraints} == {"x.shape[2] >= 3", "x.shape[3] >= 5"}
    assert "C" not in dict(conv.performance[0].sizes)


def test_a_pooled_size_is_no_multiple_where_torch_asks_whether_its_half_is_whole(monkeypatch) -> None:
    """torch 2.11 asks, 2.13 does not; `H = 1` became `2 * H` with `H = 0`, of which a GPU pools nothing."""
    import torch._meta_registrations as registered

    def asking(x: Any, y: Any) -> Any:
        return x // y + (1 if x % y != 0 and (x < 0) != (y < 0) else 0)

    monkeypatch.setattr(registered, "div_rtn", asking)
    x = Input("x", (2, 4, 6, 8), "float32", "data", "x", None)
    found = derive(lambda x: torch.nn.functional.max_pool2d(x, 2, padding=1), [x])
    assert found.inputs == (("B", "C", "H", "W"),)
    assert all(value > 0 for case in found.accuracy for value in case.values())


def test_small_sizes_are_multiples_of_what_the_trace_says(monkeypatch) -> None:
    monkeypatch.setattr(shapes, "_factors", lambda traced, declared: {"C": 3})
    found = derive(lambda x: x * 2, [Input("x", (2, 6, 6, 8), "float32", "data", "x", None)])
    assert found.inputs == (("B", "3 * C", "H", "W"),)
    assert found.accuracy
    assert all(value > 0 for case in found.accuracy for value in case.values())


def test_a_result_has_the_size_that_it_has_at_numbers_of_the_file(monkeypatch) -> None:
    """Where the file's own height and width are all that is taken, small ones said how many elements are returned."""
    small = [{"C": c, "H": 8, "W": 8} for c in (2, 3)]
    monkeypatch.setattr(shapes, "small_shapes", lambda probe, sizes, factors: small)

    def unfolded(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(x, 4).flatten(2).transpose(1, 2)
        side = int(x.shape[1] ** 0.5)
        windows = x.view(x.shape[0], side // 2, 2, side // 2, 2, -1).transpose(2, 3)
        return windows.reshape(int(windows.numel() / x.shape[1] / x.shape[2]), side * side, -1)

    found = derive(unfolded, [Input("x", (2, 3, 32, 32), "float32", "data", "x", None)])
    assert (found.inputs, found.outputs) == (((2, "C", 32, 32),), ((2, 64, "C"),))


def forward(body: str) -> str:
    return MODULE.replace("        return (y / self.temperature) * scale + self.power ** 2", f"        {body}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", ":1:7: not Python: invalid syntax"),
        ("x = 1\n", ":1:1: the file has neither a class with a forward nor a function to import"),
        ("def f(x):\n    return x\n", ":1:1: 'f' needs 'get_inputs()' or 'example_inputs = (...)' beside it"),
        ("import nothing_like_it\ndef f(x):\n    return x\nexample_inputs = 1\n", ":1:1: the file fails: ModuleNotFound"),
        ("def f(x):\n    return x\nexample_inputs = 1\n", ":3:1: the inputs are a int, not a list or a tuple"),
        ("def f(x):\n    return x\nexample_inputs = [1]\n", ":1:1: 'f' takes no tensor"),
        ("def f(x):\n    return x\nexample_inputs = [[]]\n", ":1:7: 'x' is a list; an input is a tensor or a number"),
        ("def f(x):\n    return x\ndef g(x):\n    return x\n", ":3:1: several functions could be meant (f, g)"),
        (FUNCTION.replace("SHIFT = -2", "SHIFT = []").replace("+ SHIFT", "+ undefined"), ":13:47: 'undefined' is not defined"),
        (FUNCTION.replace("Fn.silu(x + bias)", "nosuch.silu(x)"), ":13:17: 'nosuch' is not defined"),
        (MODULE.replace("def get_init", "def get_inits"), ":5:1: the file has class Model but no function 'get_init_inp"),
        (MODULE.replace("[8, 0.1]", "[8]"), "Model cannot be made: TypeError: "),
        (MODULE.replace("[8, 0.1]", "[8 // 0]"), ":28:1: get_init_inputs fails: ZeroDivisionError: "),
        (forward("return self.nothing(y)"), ":20:16: self.nothing is not set by the constructor"),
        (forward("self.gain = y; return y"), ":20:9: forward changes self.gain; a reference changes nothing"),
        (forward("return y + self.gain.add_(1)"), ":20:9: forward changes self.gain; a reference changes nothing: return"),
        (forward("return self.norm"), ":16:5: it returns a LayerNorm, not a tensor or several"),
        (forward("return self.train(y)"), ":20:9: it cannot be traced: ValueError: training mode is expected to be boolean"),
        (forward("return y.reshape(5)"), ":16:5: the reference fails with float32: RuntimeError: shape '[5]' is"),
        (forward("return torch.rand_like(y)"), ":16:5: the reference made from 'forward' gives another result"),
        (LAYER.format(layer="LSTM(6, 6)", names="x", inputs=FOUR), ":10:9: it cannot be traced: ValueError: LSTM: Expected input to be 2D or 3D"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_one_line_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(KernelgenError) as raised:
        of(text, tmp_path)
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith(f"{tmp_path / '36_RMSNorm_.py'}:")
    assert message in line


STACKED = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.lin(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.stack, self.net = Block(), nn.ModuleList([nn.ReLU(), nn.Tanh()]), nn.Sequential(nn.ReLU())

    def forward(self, x):
        {body}

    def _act(self, y):
        return torch.relu(y)


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("return self.stack[1](x) + self.stack[0](x)", "torch.tanh(x) + F.relu(x)"),
        ("return sum(m(x) for m in self.stack)", "F.relu(x) + 0 + torch.tanh(x)"),
        ("return self.net[:1](x)", "F.relu(x)"),
        ("return self.block(x)", "torch.relu(F.linear(x, weight, bias))"),
        ("return self._act(x)", "F.relu(x)"),
        ("with torch.no_grad(): return nn.Tanh()(x)", "torch.tanh(x)"),
        ("print(f'{x.shape}'); return x if hasattr(self, 'none') else -x", "-x"),
    ],
)
def test_what_the_text_cannot_say_is_written_from_a_trace(body: str, result: str, tmp_path: Path) -> None:
    text = of(STACKED.replace("{body}", body), tmp_path, "op.py")
    assert reference(text).splitlines()[-1] == f"    return {result}".replace("torch.relu", "F.relu")


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        ("return self(x)", "20:16", "self() calls forward in forward itself"),
        ("return {'out': x}", "19:5", "it returns a dict, not a tensor or several"),
        ("x + 1", "19:5", "it returns a NoneType, not a tensor or several"),
        ("return self.block(x), [x]", "19:5", "it returns a tuple with a list, not a tensor or several"),
        ("return self._act(x) if x.sum() > 0 else x", "20:9", "what it does next follows from a tensor's values"),
        ("return self._act(x) * float(x[0, 0])", "20:9", "what it does next follows from a tensor's values"),
        ("return nn.Dropout(0.5)(self._act(x))", "20:9", "a dropout of 0.5 in training draws from torch's generator"),
    ],
)
def test_what_no_trace_can_say_is_one_line_with_its_place(body: str, place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=re.escape(f"op.py:{place}: {message}")):
        of(STACKED.replace("{body}", body), tmp_path, "op.py")


@pytest.mark.parametrize(
    ("result", "dtype"),
    [("(x * 2).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)", "float8_e4m3fn"), ("x * self.q.to(x.dtype)", "float32")],
)
def test_float8_is_compared(result: str, dtype: str, tmp_path: Path) -> None:
    made = 'self.register_buffer("q", torch.ones(9).to(torch.float8_e4m3fn))'
    text = of(ARGUMENTS.format(made=made, result=result), tmp_path, "op.py")
    assert parse_spec(text).outputs[0].dtype == dtype


def test_an_error_that_nobody_foresaw_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(process, "spec_of", broken)
    (tmp_path / "op.py").write_text(STACKED.replace("{body}", "return x"))
    (tmp_path / "request").write_text(json.dumps({"path": "op.py", "name": None, "function": None, "blocks": False}))
    monkeypatch.chdir(tmp_path)
    process.main(tmp_path / "request", tmp_path / "answer")
    said = json.loads((tmp_path / "answer").read_text())
    assert said["placed"]
    assert re.fullmatch(
        r"op\.py:1:1: cannot be imported: ZeroDivisionError: of ours \(kernelgen/importer/process\.py:\d+\)",
        said["error"],
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("36_RMSNorm_.py", "rms_norm"), ("19_ReLU.py", "relu"), ("20_LeakyReLU.py", "leaky_relu"), ("39_L2Norm_.py", "l2_norm"),
        ("94_MSELoss.py", "mse_loss"), ("47_Sum_over_a_dim.py", "sum_over_a_dim"), ("1_3D_tensor.py", "op_3d_tensor"), ("1_.py", ""),
    ],
)  # fmt: skip
def test_an_operator_is_called_after_its_file(file: str, name: str) -> None:
    assert operator_name(Path(file)) == name


def test_import_writes_a_spec_and_never_over_one(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"print('noise')\n{MODULE}")
    done = kernelgen("import", "model.py", "--name", "scaled", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "scaled.yaml: written; `kernelgen new scaled.yaml` makes its kernel\n")
    assert "noise" in done.stderr
    (tmp_path / "model.py").write_text(MODULE)
    (tmp_path / "scaled.yaml").write_text("mine")
    line = refused("import", "model.py", "--name", "scaled", cwd=tmp_path)
    assert line.startswith("error: scaled.yaml already exists: choose another --name")
    assert (tmp_path / "scaled.yaml").read_text() == "mine"


def test_a_precision_is_a_key_of_what_multiplies(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\ndef f(x, y):\n    return x @ y\nexample_inputs = torch.rand(5, 7), torch.rand(7, 3)\n"
    )
    done = kernelgen("import", "model.py", "--precision", "ieee", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nprecision: ieee\nreference: |\n" in (tmp_path / "f.yaml").read_text()
    (tmp_path / "model.py").write_text(MODULE)
    done = kernelgen("import", "model.py", "--name", "scaled", "--precision", "ieee", cwd=tmp_path)
    assert (
        "note: left out: precision says how kernels multiply float32 matrices, and here none does, or torch multiplies them"
        in done.stderr
    )
    assert "precision" not in (tmp_path / "scaled.yaml").read_text()
    line = refused("import", "model.py", "--name", "other", "--precision", "fp32", cwd=tmp_path)
    assert line.startswith("error: --precision: must be ieee, tf32x3 or tf32, not 'fp32'")


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        (MODULE.replace("class Model", "class Model(("), "60", "model.py:5:25: not Python: invalid syntax"),
        ("import time\ntime.sleep(100)\n", "3", "model.py:1:1: the file was still running after 3 s"),
        ("import os\nos._exit(7)\n", "60", "model.py:1:1: the process that ran the file ended with exit code 7"),
    ],
)
def test_a_mistake_writes_nothing(text: str, limit: str, message: str, tmp_path: Path) -> None:
    text = text if "Model" in text else f"{text}def f(x):\n    return x\nexample_inputs = 1\n"
    (tmp_path / "model.py").write_text(text)
    assert refused("import", "model.py", "--limit-s", limit, cwd=tmp_path).startswith(message)
    assert contents(tmp_path) == {"model.py": text}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refused("import", "none.py", cwd=tmp_path) == "error: none.py: no such file"


def test_indices_are_drawn_as_in_the_file(tmp_path: Path) -> None:
    """What stays below a size says so by name; what stays below another number says the number."""
    text = """\
import torch

def pick(x, index, bucket, count):
    return torch.nn.functional.cross_entropy(x, index) + bucket.sum() + count.sum()

def get_inputs():
    x = torch.rand(64, 4096)
    return [x, torch.randint(0, 4096, (64,)), torch.randint(10, (64,)), torch.randint(1, 9, (64,))]
"""
    made = parse_spec(of(text, tmp_path, "pick.py"), "pick.yaml")
    assert [t.below for t in made.inputs] == [None, made.inputs[0].shape[1], 10, None]


RENDERED = """\
import torch


def weights(raw, z, white: bool = True):
    steps = z[..., 1:] - z[..., :-1]
    steps = torch.cat([steps, torch.full_like(steps[..., :1], 1e10)], -1)
    return 1.0 - torch.exp(-torch.relu(raw) * steps) if white else raw * steps


example_inputs = (torch.rand(16, 12), torch.rand(16, 12))
"""


def test_a_dtype_that_lacks_a_number_is_left_out_and_a_slice_that_needs_two_has_them(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(RENDERED)
    made = imported(tmp_path / "op.py", None, None)
    spec = parse_spec(made.text)
    assert dict(spec.dtypes) == {"T": ("float32", "bfloat16")}  # first what it has itself, which is timed
    assert [c.text for c in spec.constraints] == ["raw.shape[1] >= 2"]
    assert not made.notes


LOOKED_UP = """\
import torch


def biased(scores, table):
    n = scores.shape[-1]
    far = (torch.arange(n, device=scores.device) - n // 2).abs().clamp(max=5)
    return scores + table[far + 6 * (far > 2)]


example_inputs = (torch.rand(16, 40), torch.rand(12))
"""


def test_a_table_that_is_read_at_computed_places_keeps_the_file_s_own_size(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(LOOKED_UP)
    spec = parse_spec(imported(tmp_path / "op.py", None, None).text)
    assert [t.shape for t in spec.inputs] == [("M", "N"), (12,)]


MANY_WAYS = '''\
import torch


def op(x, a=None, b=None, c=None, soft: bool = True):
    """Of every step x[:, :, i] the third."""
    x = x if a is None else x + a
    x = x if b is None else x * b
    x = x if c is None else x - c
    y = sum(x[:, :, i] for i in range(4))
    return torch.nn.functional.softplus(y) if soft else y


example_inputs = (torch.rand(6, 3, 9), torch.rand(9), torch.rand(9), torch.rand(9))
'''


def test_more_ways_of_calling_than_kernels_serve_are_fewer_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(MANY_WAYS)
    made = imported(tmp_path / "op.py", None, None)
    spec = parse_spec(made.text)
    assert [t.optional for t in spec.inputs if t.name in "abc"] == [True] * 3
    assert made.notes[0].startswith(
        "soft is True alone, since `kernelgen new` refuses it otherwise: 16 ways of calling"
    )
    assert [c.text for c in spec.constraints] == ["x.shape[2] >= 4"]


BEAMS = '''\
import torch


def step(scores, done, beams: int = 4):
    """The best of the beams of a sentence."""
    scores = torch.where(done[:, None], -1.0, scores)
    return torch.topk(scores.view(-1, beams * scores.shape[-1]), 3, dim=1)[0]


example_inputs = (torch.rand(32, 100), torch.rand(32) > 0.5)
'''


def test_rows_that_come_in_multiples_alone_are_declared_so(tmp_path: Path) -> None:
    """The trace speaks of the product with another size."""
    (tmp_path / "op.py").write_text(BEAMS)
    made = imported(tmp_path / "op.py", None, None)
    assert [t.shape for t in parse_spec(made.text).inputs if t.shape] == [("4 * M", "N"), ("4 * M",)]
    assert not made.notes


def test_a_result_sized_by_values_is_refused_in_words_of_ours(tmp_path: Path) -> None:
    text = "import torch\n\ndef places(x):\n    return torch.nonzero(x)\n\nexample_inputs = (torch.ones(3),)\n"
    with pytest.raises(SpecError, match="unsupported: a result whose size depends on values"):
        of(text, tmp_path, "places.py")


WRITTEN = {
    "a slice": (
        "def op(cache, new, pos: int = 3):\n    cache[:, pos : pos + new.shape[1]] = new\n    return cache\n",
        "torch.rand(2, 9, 4), torch.rand(2, 5, 4)",
        ["cache: [B, 9, N]", "new: [B, 5, N]", "new_cache: [B, 9, N] into cache"],
    ),
    "rows of two, and nothing returned": (
        "def op(k_cache, v_cache, k, v, slots):\n    k_cache[slots] = k\n    v_cache[slots] = v\n",
        "torch.rand(9, 4), torch.rand(9, 3), torch.rand(2, 4), torch.rand(2, 3), torch.tensor([3, 5])",
        ["k_cache: [M, N]", "v_cache: [K, L]", "k: [P, N]", "v: [P, L]", "slots: [P] below M",
         "new_k_cache: [M, N] into k_cache", "new_v_cache: [K, L] into v_cache"],
    ),
    "index_copy": (
        "def op(cache, new, idx):\n    return cache.index_copy_(1, idx, new)\n",
        "torch.rand(2, 9, 4), torch.rand(2, 3, 4), torch.arange(3)",
        ["cache: [B, M, N]", "new: [B, L, N]", "idx: [L] below M", "new_cache: [B, M, N] into cache"],
    ),
    "a step, and a new tensor": (
        "def op(param, grad):\n    param.mul_(0.9).add_(grad)\n    return param, param.abs().amax(-1)\n",
        "torch.rand(9, 4), torch.rand(9, 4)",
        ["param: [M, N]", "grad: [M, N]", "new_param: [M, N] into param", "out1: [M]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_results_lie_in_the_inputs_that_a_function_writes_into(name: str, tmp_path: Path) -> None:
    body, inputs, declared = WRITTEN[name]
    spec = parse_spec(of(f"import torch\n\n{body}\n\ndef get_inputs():\n    return [{inputs}]\n", tmp_path, "op.py"))
    for way in [way.spec for way in choices(spec)] or [spec]:
        trace(way)
    found = [(t, "[" + ", ".join(map(str, t.shape)) + "]") for t in (*spec.inputs, *spec.outputs) if t.role == "data"]
    assert [
        f"{t.name}: {shape}{f' into {t.into}' if t.into else ''}{f' below {t.below}' if t.below else ''}"
        for t, shape in found
    ] == declared

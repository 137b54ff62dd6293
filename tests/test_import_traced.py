"""`kernelgen import` of what only a trace can say: nested modules, lists of layers, writes in place, recurrent layers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_process import kernelgen, refused

from kernelgen import frontend
from kernelgen.errors import SpecError
from kernelgen.frontend import export
from kernelgen.importer import process, same_calls, shapes, source, write
from kernelgen.importer.load import load
from kernelgen.importer.rewrite import Rewritten
from kernelgen.spec import parse_spec
from kernelgen.spec.model import OperatorSpec

FILE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, slope=0.1):
        super().__init__()
        self.lin, self.norm, self.slope = nn.Linear(width, width), nn.LayerNorm(width), slope

    def forward(self, x):
        if x.dim() != 2:
            raise ValueError(f"not {x.shape}")
        out = self.lin(x)
        out = F.leaky_relu(self.norm(out), self.slope)
        return out + x


class Model(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        {made}

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.rand({inputs})]


def get_init_inputs():
    return [{arguments}]
"""
BLOCKS = "self.layers = nn.ModuleList([Block(width) for _ in range(depth)])"
WALK = "\n        ".join(["for layer in self.layers:", "    x = layer(x)", "return x"])


def file(body: str, made: str = "pass", inputs: str = "6, 8", arguments: str = "8") -> str:
    text = FILE.replace("{made}", made).replace("{body}", body.replace("; ", "\n        "))
    return text.replace("{inputs}", inputs).replace("{arguments}", arguments)


def of(text: str, folder: Path) -> OperatorSpec:
    (folder / "model.py").write_text(text)
    return parse_spec(process.imported(folder / "model.py", "op", None).text)


def body_of(spec: OperatorSpec) -> list[str]:
    """The statements of a reference, each on a line."""
    [function] = ast.parse(spec.reference).body
    assert isinstance(function, ast.FunctionDef)
    return [ast.unparse(statement) for statement in function.body]


def test_nested_modules_are_one_reference_with_the_names_of_the_source(tmp_path: Path) -> None:
    spec = of(file(WALK, BLOCKS), tmp_path)
    assert [t.name for t in spec.inputs][:3] == ["x", "layers_0_lin_weight", "layers_0_lin_bias"]
    assert [t.shape for t in spec.inputs][:3] == [("M", "N"), ("N", "N"), ("N",)]
    norm = "layers_0_norm_weight.shape, layers_0_norm_weight, layers_0_norm_bias"
    assert body_of(spec)[:3] == [
        "out = F.linear(x, layers_0_lin_weight, layers_0_lin_bias)",
        f"out = F.leaky_relu(F.layer_norm(out, {norm}), negative_slope=0.1)",
        "x = out + x",
    ]


def test_the_module_refuses_other_arguments_of_the_constructor(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"op": lambda *tensors: len(tensors)}
    exec(of(file(WALK, BLOCKS), tmp_path).module, scope)
    assert scope["Model"](8)(torch.rand(2, 8)) == 9
    with pytest.raises(ValueError, match="op is compiled for depth = 2, not 3"):
        scope["Model"](8, 3)
    with pytest.raises(ValueError, match=r"op is compiled for self\.training = True, not False"):
        scope["Model"](8).eval()(torch.rand(2, 8))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("y = torch.exp(self.act(x)); y += x; return y", ["y = torch.exp(F.relu(x))", "return y + x"]),
        ("y = self.act(x).clone(); z = y[0]; z.zero_(); return y + 1", ["y = F.relu(x)", "y = y.clone()", "z = y[0]", "z.zero_()", "return y + 1"]),
        ("a, b = self.act(x).chunk(2, dim=1); return a * b", ["a, b = F.relu(x).chunk(2, dim=1)", "return a * b"]),
        ("return self.act(x)[:, 1::2].mean(dim=-1)", ["return torch.mean(F.relu(x)[:, 1::2], -1)"]),
        ("m, n = x.shape; return self.act(x).view(m, 2, n // 2).sum(1)", ["m = x.shape[0]", "return torch.sum(F.relu(x).view(m, 2, -1), 1)"]),
        ("return self.act(x) - 2 * (x - (x - 1))", ["return F.relu(x) - (x - (x - 1)) * 2"]),
        ("return self.act(x) * torch.tensor(0.5)", ["return F.relu(x) * torch.full((), 0.5, device=x.device)"]),
        ("return self.act(F.dropout(x, 0.0))", ["return F.relu(x)"]),
        ("y = self.act(x).to(torch.float32); y = torch.exp(y).to(x.dtype); return y + x", ["dtype = x.dtype", "y = F.relu(x).to(torch.float32)", "y = torch.exp(y).to(dtype)", "return y + x"]),
        ("y = x.float(); return self.act(y * 2).type_as(x) + x", ["y = x.to(torch.float32)", "return F.relu(y * 2).type_as(x) + x"]),
        ("return self.act(x).masked_fill(x > 1, torch.finfo(x.dtype).min)", ["dtype = x.dtype", "return F.relu(x).masked_fill(x > 1, torch.finfo(dtype).min)"]),
    ],
)  # fmt: skip
def test_what_a_trace_becomes(body: str, result: list[str], tmp_path: Path) -> None:
    text = file(body, "self.act = nn.ModuleList([nn.ReLU(inplace=False)])[0]", inputs="6, 8")
    (tmp_path / "model.py").write_text(text)
    loaded = load(source.read(tmp_path / "model.py"), None)
    written = write.from_graph(loaded, write.trace(loaded), "op")
    assert [line.strip() for line in written.text.splitlines()[1:]] == result
    function = write.compiled(written.text, "op")
    x = torch.rand(6, 8) - 0.5
    torch.testing.assert_close(function(x.clone()), loaded.module(x.clone()))


def test_a_recurrent_layer_stays_torchs_and_its_first_state_is_an_input(tmp_path: Path) -> None:
    body = "h = torch.randn(1, x.shape[0], 4); out, _ = self.rnn(x, h); return self.act(out[:, -1])"
    made = "self.rnn, self.act = nn.GRU(3, 4, batch_first=True), nn.ModuleList([nn.Tanh()])[0]"
    spec = of(file(body, made, "2, 5, 3"), tmp_path)
    assert [(t.name, t.shape) for t in spec.inputs][:3] == [
        ("x", ("B", "M", 3)), ("h", (1, "B", 4)), ("weight_ih_l0", (12, 3)),
    ]  # fmt: skip
    weights = "(weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0)"
    assert f"torch.gru(x, h, {weights}, True, 1, 0.0, True, False, True)[0]" in spec.reference
    assert "return op(x, torch.randn((1, x.shape[0], 4), device=x.device), self.rnn.weight_ih_l0" in spec.module


def test_a_table_of_indices_is_drawn_as_the_module_has_it(tmp_path: Path) -> None:
    made = "self.register_buffer('order', torch.tensor([2, 0, 1])); self.f = nn.ModuleList([nn.Tanh()])"
    spec = of(file("return self.f[0](x)[:, self.order]", made.replace("; ", "\n        ")), tmp_path)
    assert [(t.name, t.dtype, t.below) for t in spec.inputs][1:] == [("order", "int64", 3)]


def test_a_reference_with_other_calls_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(file(WALK, BLOCKS))
    loaded = load(source.read(tmp_path / "model.py"), None)
    written: Rewritten = write.from_graph(loaded, write.trace(loaded), "op")
    assert same_calls.differs(loaded, write.compiled(written.text, "op"), written.inputs) is None
    for old, new, name in [
        ("negative_slope=0.1", "negative_slope=0.2", "leaky_relu"),
        ("(x, layers_0_lin_weight, layers_0_lin_bias)\n", "(x, layers_1_lin_weight, layers_0_lin_bias)\n", "addmm"),
        ("x = out + x", "x = out - x", "sub"),
    ]:
        assert old in written.text
        other = write.compiled(written.text.replace(old, new, 1), "op")
        assert name in str(same_calls.differs(loaded, other, written.inputs))


def test_equal_blocks_are_one_operator_with_the_sizes_of_each(tmp_path: Path) -> None:
    made = "self.layers = nn.ModuleList([Block(8), Block(8), Block(16), Block(16, 0.2)])"
    body = "y = torch.cat([x, x], 1); a = self.layers[1](self.layers[0](x)); b = self.layers[3](self.layers[2](y)); return a, b"
    (tmp_path / "model.py").write_text(file(body, made))
    first, second = process.blocks(tmp_path / "model.py")
    assert (first.name, second.name) == ("block", "block_2")
    assert first.notes[0] == "block stands for 3 of the module's: layers.0, layers.1, layers.2"
    assert "performance:\n  shapes:\n    - {M: 6, N: 8}\n    - {M: 6, N: 16}\n" in first.text
    assert "negative_slope=0.2" in second.text


def test_a_module_without_blocks_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(file("return torch.relu(x)"))
    with pytest.raises(SpecError, match="it has no blocks: import it whole"):
        process.blocks(tmp_path / "model.py")


def test_blocks_are_written_each_to_a_file_or_none(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(file(WALK, BLOCKS))
    line = refused("import", "model.py", "--blocks", "--name", "mine", cwd=tmp_path)
    assert line.startswith("error: --blocks names its operators after their classes")
    done = kernelgen("import", "model.py", "--blocks", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "block.yaml: written; `kernelgen new block.yaml` makes its kernel\n")


def test_the_file_s_own_number_stays_where_a_kernel_needs_it_and_the_spec_says_so(tmp_path: Path) -> None:
    text = "import torch\ndef op(x):\n    return x.repeat(1, x.shape[1])\nexample_inputs = (torch.rand(3, 4),)\n"
    (tmp_path / "op.py").write_text(text)
    made = process.imported(tmp_path / "op.py", None, None).text
    assert "# numbers are the file's own sizes: the operator takes no others there\ninputs:\n" in made
    assert [t.shape for t in (*parse_spec(made).inputs, *parse_spec(made).outputs)] == [("M", 4), ("M", 16)]


def test_sizes_that_are_named_in_multiples_alone_are_admitted(tmp_path: Path) -> None:
    """Channels in groups are `4 * C`, and C stands nowhere else: asking what a guard leaves out raised a NameError."""
    text = "import torch\ndef op(x, w):\n    return torch.nn.functional.group_norm(x, 4, w) * x.shape[0]\n"
    (tmp_path / "op.py").write_text(text + "example_inputs = (torch.rand(3, 8, 5), torch.rand(8))\n")
    spec = parse_spec(process.imported(tmp_path / "op.py", None, None).text)
    assert [t.shape for t in spec.inputs] == [("B", "4 * M", "N"), ("4 * M",)]
    assert export._admitted(spec, {"B": 7})


def test_heads_of_the_last_part_of_a_split_are_named_in_multiples(tmp_path: Path) -> None:
    """The trace asks whether s - 16 is a multiple of 2, which torch's own Mod refused at sizes below 16."""
    body = """
    q, k, v = torch.nn.functional.linear(x, w).split(8, dim=2)
    q, k, v = (part.view(*x.shape[:2], 2, x.shape[2] // 2).transpose(1, 2) for part in (q, k, v))
    return (q @ k.mT).relu() @ v
example_inputs = (torch.rand(2, 5, 8), torch.rand(24, 8))
"""
    (tmp_path / "op.py").write_text(f"import torch\ndef op(x, w):{body}")
    spec = parse_spec(process.imported(tmp_path / "op.py", None, None).text)
    assert [t.shape for t in (*spec.inputs, *spec.outputs)] == [("B", "M", 8), (24, 8), ("B", 2, "M", 4)]


def test_a_size_whose_quotients_leave_no_rest_is_written_as_a_multiple(tmp_path: Path) -> None:
    """The last part of three is what the first two leave, and its heads a quarter of that."""
    body = "    parts = x.split(x.shape[1] // 3, 1)\n    return parts[0] * parts[2].view(x.shape[0], 4, -1).sum((1, 2))[:, None]"
    more = "\n\ndef op(x):\n    return last(x)[:, : (x.shape[1] - 2 * (x.shape[1] // 3)) // 4] * 2\n"
    text = f"import torch\ndef last(x):\n{body}{more}example_inputs = (torch.rand(2, 24),)\n"
    (tmp_path / "op.py").write_text(text)
    spec = parse_spec(process.imported(tmp_path / "op.py", "op", None).text)
    assert not any("//" in str(size) for t in (*spec.inputs, *spec.outputs) for size in t.shape)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("(24 * N - 2 * (24 * N // 3)) // 4", "2 * N"),
        ("3 * N // 3", "N"),
        ("(N + 1) // 2", "(N + 1) // 2"),
        ("12 * N // 8", "12 * N // 8"),
        ("N * (2 * N // 2)", "N * (2 * N // 2)"),
    ],
)
def test_what_is_no_multiple_is_written_as_it_is(text: str, written: str) -> None:
    assert shapes._proportional(text) == written


def test_more_sizes_than_a_dozen_are_traced(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(10)]
    head = f"import torch\ndef op({', '.join(names)}):\n    return {' + '.join(f'{n}.sum()' for n in names)}\n"
    (tmp_path / "op.py").write_text(head + f"example_inputs = ({'torch.rand(2, 3), ' * 10})\n")
    spec = parse_spec(process.imported(tmp_path / "op.py", None, None).text)
    assert len({size for t in spec.inputs for size in t.shape}) == 20
    assert len(frontend.trace(spec)[0].nodes) > 10


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ("F.embedding(i, x)", ["(4, 6)", "places"]),
        ("F.mse_loss(x, i, reduction='sum')", ["(4, 6)", "(4, 6)"]),
        ("F.cross_entropy(x, i, reduction='sum', label_smoothing=0.1)", ["(2, 6)", "places"]),
        ("x.max(-1)", ["(4, 6)"]),
        ("x[:, [0, 2]] * torch.arange(2)", ["(4, 6)"]),
        ("x.view(torch.int32)", ["(4, 6)"]),
    ],
)
def test_what_is_written_for_an_operation_is_what_torch_takes(body: str, given: list[str], tmp_path: Path) -> None:
    """Operations whose function takes its arguments otherwise, makes several results or reads lists of places."""
    arguments = ["torch.randint(0, 4, (2,))" if g == "places" else f"torch.randn{g}" for g in given]
    text = "\n".join([
        "import torch", "import torch.nn.functional as F", "", "", f"def f({', '.join('xi'[: len(given)])}):",
        "    assert x.ndim > 0", f"    return {body}", "", "", f"example_inputs = ({', '.join(arguments)},)", "",
    ])  # fmt: skip
    file = tmp_path / "f.py"
    file.write_text(text)
    made = process.imported(file, None, None)  # holds what it has written against the file's own calls
    assert "from a trace" in made.notes[0]
    parse_spec(made.text, "f.yaml")


def test_a_cache_that_is_written_to_at_places_is_written_to_in_the_reference(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text(
        "import torch\n\n\ndef append(cache, key, places):\n    assert places.shape[0] == key.shape[1]\n"
        "    out = cache.clone()\n    out[:, places] = key\n    return out\n\n\n"
        "example_inputs = (torch.zeros(2, 9, 4), torch.randn(2, 3, 4), torch.arange(3))\n"
    )
    assert "[:, places] = key" in process.imported(file, None, None).text


def test_the_class_that_no_other_uses_is_the_module(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    text = (
        FILE.replace("{made}", BLOCKS).replace("{body}", WALK).replace("{inputs}", "8, 16").replace("{arguments}", "16")
    )
    file.write_text(text.replace("Model", "Net"))
    assert "class Net" in process.imported(file, None, None).text


def test_a_state_that_is_given_before_it_is_read_is_no_state(tmp_path: Path) -> None:
    body = "self.state.copy_(start); self.state = torch.tanh(x + self.state); return self.state * 2"
    text = file(body, "self.state = torch.zeros(6, 8)", "6, 8), torch.rand(6, 8")
    (tmp_path / "model.py").write_text(text.replace("x):\n        self.state", "x, start):\n        self.state"))
    made = process.imported(tmp_path / "model.py", "op", None)
    assert [t.name for t in parse_spec(made.text).inputs] == ["x", "start"]
    assert "self.state is given a new value in forward, which the operator does not do" in made.notes


def test_sizes_are_multiples_of_what_halves_and_doubles_them(tmp_path: Path) -> None:
    body = "half = F.max_pool1d(x, 2); return half + F.interpolate(F.max_pool1d(half, 2), scale_factor=2)"
    spec = of(file(body, inputs="3, 5, 16"), tmp_path)
    assert spec.inputs[0].shape == ("B", "M", "4 * N")

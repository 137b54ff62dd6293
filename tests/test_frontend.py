"""The front end: names and statements recovered, and every refusal with its place in the file."""

from __future__ import annotations

import re

import pytest
import torch

from kernelgen.errors import SpecError, UnsupportedError
from kernelgen.frontend import trace
from kernelgen.frontend.exporting import exported_program
from kernelgen.frontend.graph import Graph, Node
from kernelgen.spec import parse_spec
from kernelgen.spec.model import OperatorSpec

SPEC = """\
name: op
inputs:
{inputs}
outputs:
{outputs}
dtypes: {{T: [float16, bfloat16, float32]}}
reference: |
  def op({arguments}):
{body}
"""


def spec_of(body: str, inputs: str = "x: [..., D] T", outputs: str = "out: [..., D] T") -> OperatorSpec:
    """A spec from `name: shape dtype [role]` entries, separated by semicolons, and the reference's lines."""

    def declared(text: str) -> tuple[str, list[str]]:
        lines, names = [], []
        for entry in text.split(";"):
            name, rest = entry.strip().split(":", 1)
            shape, _, tail = rest.strip().partition("]")
            dtype, *role = tail.split()
            lines.append(f"  - {{name: {name}, shape: {shape}], dtype: {dtype}{f', role: {role[0]}' if role else ''}}}")
            names.append(name)
        return "\n".join(lines), names

    entries, names = declared(inputs)
    text = "\n".join(f"      {line}" for line in body.splitlines())
    filled = SPEC.format(inputs=entries, outputs=declared(outputs)[0], arguments=", ".join(names), body=text)
    return parse_spec(filled, "op.yaml")


def refusal(*args: str) -> str:
    from kernelgen.families import lower

    spec = spec_of(*args)
    with pytest.raises(SpecError) as error:
        lower(spec, trace(spec)[0])
    return str(error.value)


def named(graph: Graph) -> dict[str, Node]:
    return {node.name: node for node in graph.nodes if node.name}


def test_variables_and_statements_of_the_reference_are_recovered() -> None:
    graph, _ = trace(spec_of("centered = x - x.mean(-1, keepdim=True)\nscale = 2.0\nreturn centered * scale"))
    assert [s.text for s in graph.statements] == [
        "centered = x - x.mean(-1, keepdim=True)", "scale = 2.0", "return centered * scale",
    ]  # fmt: skip
    assert [s.line for s in graph.statements] == [2, 3, 4]
    nodes = named(graph)
    assert nodes["centered"].op == "sub"
    assert nodes["out"].op == "mul"
    assert nodes["out"].args[1] == 2.0
    assert graph.nodes[graph.outputs[0].node] is nodes["out"]


def test_work_done_in_a_helper_belongs_to_the_line_that_calls_it() -> None:
    graph, _ = trace(spec_of("y = F.gelu(x)\nreturn y + 1"))
    assert {n.statement for n in graph.nodes if n.op == "erf"} == {0}


def test_composites_keep_the_names_a_reader_expects() -> None:
    graph, _ = trace(spec_of("return torch.softmax(x, -1)"))
    assert {"row_max", "numerator", "denominator"} <= named(graph).keys()


def test_a_cast_to_a_dtype_variable_follows_the_variable() -> None:
    graph, _ = trace(spec_of("half = (x.float() * 2).to(x.dtype)\nreturn half * 3"))
    assert [n.attrs for n in graph.nodes if n.op == "round" and n.attrs != ("float32",)] == [("T",)]


def test_a_cast_to_a_fixed_dtype_stays_fixed() -> None:
    graph, _ = trace(spec_of("return x.to(torch.bfloat16).to(x.dtype)"))
    assert [n.attrs[0] for n in graph.nodes if n.op == "round"] == ["bfloat16", "T"]


def test_casts_between_two_variables_are_told_apart() -> None:
    text = SPEC.format(
        inputs="  - {name: x, shape: [D], dtype: T}\n  - {name: w, shape: [D], dtype: U}",
        outputs="  - {name: out, shape: [D], dtype: U}", arguments="x, w",
        body="      y = (x.float() * w.float()).to(x.dtype)\n      return y.to(w.dtype)",
    ).replace("dtypes: {T:", "dtypes: {U: [float16, float32], T:")  # fmt: skip
    graph, _ = trace(parse_spec(text))
    assert [n.attrs[0] for n in graph.nodes if n.op == "round" and n.attrs != ("float32",)] == ["T", "U"]


REFUSED = {
    "mode": ("y = x\nreturn y.mode(-1, True)[0].expand(x.shape)", "nothing left for a kernel: all of it is torch.mode"),
    "values": ("return x[x.nonzero()[:, 0]].sum()", "op.yaml:9:3: unsupported: "),
    "powers of integers": ("return (x.int() ** x.int()).to(x.dtype)", "unsupported: a power of integers whose exponent is a tensor"),
    "remainders of booleans": ("return ((x > 0) % (x < 1)).to(x.dtype)", "unsupported: remainder of booleans"),
    "high power of integers": ("return (x.int() ** 40).to(x.dtype)", "unsupported: the power 40 of integers (supported: up to 32)"),
    "weighted bins": ("return torch.bincount(x.int(), x, minlength=3)[:3]", "unsupported: bincount with weights"),
    "bins": ("return torch.bincount(x.int())", "unsupported: bincount without minlength (its result has no fixed size)"),
    "double": ("return x.double().to(x.dtype)", "unsupported: float64 (arithmetic is done in float32)"),
    "made tensor": ("return x * torch.arange(3).sum()", "unsupported: "),
    "chunk of any size": ("a, b = x.chunk(2, -1)\nreturn torch.cat([b, a], -1)", "takes one branch where "),
    "pad": ("return F.pad(x.reshape(1, 1, -1), (2, -2), mode='replicate').view_as(x)", "unsupported: pad with mode='replicate'"),
    "constants": ("return x + torch.tanh(torch.full_like(x, 2.0)).floor().exp().digamma()", "of constants (write the result"),
    "dropout without a seed": (
        "y = x * 2\nreturn F.dropout(y, 0.1)",
        "op.yaml:10:3: unsupported: dropout.default, which draws from torch's generator (supported: random_mask with a seed)",
    ),
    "random numbers": ("return x * torch.rand_like(x)", "unsupported: rand_like.default, which draws from torch's generator"),
    "not the last": ("return x - x.mean(0, keepdim=True)", "with ... as 2 dimensions the reference computes something else"),
    "one dtype": ("return x.exp() if x.dtype == torch.float32 else x", "with T=float32 the reference computes something else"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_lowered_is_refused_with_its_line(name: str) -> None:
    body, message = REFUSED[name]
    found = refusal(body)
    assert message in found
    assert "\n" not in found


def test_a_maximum_with_its_index() -> None:
    graph = trace(spec_of("v, i = x.max(-1)\nreturn v, i", outputs="v: [...] T; i: [...] int64"))[0]
    assert [(n.op, n.dtype) for n in graph.nodes if n.op in ("max", "argmax")] == [
        ("max", "float"),
        ("argmax", "int64"),
    ]


def test_a_scan_knows_its_dimension_and_what_it_accumulates_in() -> None:
    graph, _ = trace(spec_of("return i.cumsum(1), x", "i: [A, D] int8; x: [A] T", "out: [A, D] int64; y: [A] T"))
    scan = graph.nodes[graph.outputs[0].node]
    assert (scan.op, scan.attrs, scan.dtype) == ("cumsum", (-1,), "int64")


def test_numbers_that_an_integer_dtype_does_not_hold() -> None:
    found = refusal("return i + 1000, x", "x: [D] T; i: [D] int8", "out: [D] int8; same: [D] T")
    assert "unsupported: the number 1000 among values of int8" in found


def test_a_like_input_is_not_read() -> None:
    found = refusal("return x + b", "x: [..., D] T like; b: [D] T")
    assert "op.yaml:" in found
    assert "unsupported: x is declared `like`, but its elements are read" in found


MISTAKES = {
    "dtype": ("return x.float()", "out: [..., D] T", "op.yaml:5:5: outputs", "as T, but the reference returns float32"),
    "shape": ("return x.sum(-1)", "out: [..., D] T", "op.yaml:5:5: ", "as [..., D], but the reference returns [...]"),
    "count": ("y = (x, x)\nreturn y", "out: [..., D] T", "op.yaml:8:", "the reference returns 2 tensors, but outputs"),
    "ranks": (
        "return x.transpose(0, 1)",
        "out: [D, ...] T",
        "op.yaml:5:5: ",
        "with ... as 2 dimensions: outputs declares",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_output_that_is_not_as_declared(name: str) -> None:
    body, outputs, start, end = MISTAKES[name]
    with pytest.raises(SpecError) as error:
        trace(spec_of(body, outputs=outputs))
    assert not isinstance(error.value, UnsupportedError)
    assert start in str(error.value)
    assert end in str(error.value)


def test_a_reference_that_torch_refuses_names_its_line() -> None:
    with pytest.raises(SpecError, match=r"^op.yaml:11:3: the reference fails: "):
        trace(spec_of("y = x * 2\nreturn y @ b @ b", "x: [A, D] T; b: [D] T", "out: [A, D] T"))


def test_sizes_that_the_reference_needs_equal() -> None:
    with pytest.raises(SpecError, match=r"^op.yaml:10:3: the reference fails: The size of tensor a"):
        trace(spec_of("return x + y", "x: [A, D] T; y: [E] T", "out: [A, D] T"))


BRANCHES = {
    "return x if x.shape[-1] == 1 else x + 1": "op.yaml:9:3: unsupported: a branch on a size (the shapes of the spec take both branches",
    "long = x.shape[-1] > 50\nreturn x if long else x + 1": "one with the constraint x.shape[-1] > 50 and one with x.shape[-1] <= 50",
    "odd = x.numel() % 2 == 1\nreturn x * 2 if odd else x": "one with the constraint x.numel() % 2 == 1 and one with x.numel() % 2 != 1",
    "return x / float(x.shape[-1])": "op.yaml:3:5: the reference turns D of x into a Python number",
    "y = x\nfor i in range(x.shape[0]):\n    y = y + i\nreturn y": "the reference turns D of x into a Python number",
    "return x / math.log(x.shape[-1])": "the reference turns D of x into a Python number",
}


@pytest.mark.parametrize("body", BRANCHES)
def test_a_reference_that_means_another_thing_for_other_sizes(body: str) -> None:
    assert BRANCHES[body] in refusal(body, "x: [D] T", "out: [D] T")


def test_a_node_says_where_it_comes_from() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    sizes = ({0: torch.export.Dim.AUTO},)
    program = exported_program(Doubled(), (torch.empty(37, device="meta"),), sizes)
    [node] = [node for node in program.graph.nodes if node.op == "call_function"]
    line = Doubled.forward.__code__.co_firstlineno + 1
    assert re.findall(r'File "(.*)", line (\d+), in (\w+)', node.meta["stack_trace"]) == [
        (__file__, str(line), "forward")
    ]

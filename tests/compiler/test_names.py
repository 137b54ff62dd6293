"""What a reference calls its variables: it shows in the generated file, and decides nothing else."""

from __future__ import annotations

import ast
import inspect
import random
import re

import pytest
import torch
from references import DEVICE, failures, load, plan_of, sample

from kernelgen import render
from kernelgen.families.helpers import HELPERS
from kernelgen.families.naming import RESERVED
from kernelgen.judge.interpreter import as_on_a_gpu

NAMES = (
    "mean", "inverse_x", "inverse", "rstd", "zeros", "copies", "row", "kept", "rest", "total", "row_max", "row_sum",
    "x_ptr", "cols", "tmp", "a_1", "denom", "out_acc", "pairs", "mask", "_exp", "value", "centered", "numbers",
)  # fmt: skip
"""What variables are renamed to: what composites and kernels call theirs, and what anybody would."""

REFERENCES = {
    "deviations": """
        v_m = v0.float().mean(-1, keepdim=True)
        v_d = v0.float() - v_m
        v_s = (v_d * v_d).mean(-1, keepdim=True)
        v_r = v_d * torch.rsqrt(v_s + 1e-5)
        return v_r.to(v0.dtype)
    """,
    "quotient": """
        v_e = torch.exp(v0.float() - v0.float().amax(-1, keepdim=True))
        v_s = v_e.sum(-1, keepdim=True)
        v_q = v_e / v_s
        return v_q.to(v0.dtype)
    """,
    "reciprocal by hand": """
        v_s = v0.float().abs().sum(-1, keepdim=True)
        v_i = torch.reciprocal(v_s)
        v_r = v0 * v_i
        return v_r.to(v0.dtype)
    """,
    "composite": """
        v_a = F.layer_norm(v0, v0.shape[-1:])
        v_b = torch.sigmoid(v_a)
        v_c = v_b * 2
        return v_c - v_b * v_a
    """,
    "scan": """
        v_a = torch.cumsum(v0.float(), -1)
        v_b = v_a / (1 + v_a * v_a)
        return v_b.to(v0.dtype)
    """,
    "bounds": """
        v_a = torch.clamp(v0, min=0)
        v_b = v_a.clamp(max=6)
        v_c = v_b % 3
        return v_b * v_c
    """,
    "call": """
        v_p = v0 @ v0.transpose(0, 1)
        v_g = torch.tanh(v_p)
        return v_g * v_p
    """,
}  # fmt: skip


def text(lines: str, shape: str) -> str:
    body = "\n".join(line.strip() for line in lines.strip().splitlines())
    return render.triton_source(plan_of(sample(body, {"v0": "A D"}, {"out": shape}).spec()))


def variables(lines: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"^\s*(\w+) = ", lines, re.M)))


def anonymous(source: str, variables: list[str]) -> str:
    """A file without comments and what its functions say, the variables of each numbered in the order in which they
    appear, and those of the reference left out of what the file says of itself."""
    tree = ast.parse(source)
    said = " ".join((ast.get_docstring(tree) or "").split())
    tree.body[0] = ast.Expr(ast.Constant(re.sub(rf"\b({'|'.join((*variables, *NAMES))})\b", "...", said)))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if ast.get_docstring(function):
            function.body = function.body[1:]
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own = {a.arg for a in function.args.args} | stored
        numbers: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in own:
                node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
            elif isinstance(node, ast.arg):
                node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
    return ast.unparse(tree)


@pytest.mark.parametrize("kind", REFERENCES)
def test_names_change_names_alone(kind: str) -> None:
    lines, shape = REFERENCES[kind], "A A" if kind == "call" else "A D"
    own, draw = variables(lines), random.Random(kind)
    wanted = anonymous(text(lines, shape), own)
    for names in (list(NAMES[: len(own)]), draw.sample(NAMES, len(own))):
        other = lines
        for old, new in zip(own, names, strict=True):
            other = re.sub(rf"\b{old}\b", f"new_{new}", other)
        other = other.replace("new_", "")
        assert anonymous(text(other, shape), names) == wanted, other


def test_deviations_from_an_unnamed_mean_are_carried_along_with_it() -> None:
    lines = """
        s = (v0.float() - v0.float().mean(-1, keepdim=True)).square().sum(-1)
        return s.to(v0.dtype)
    """
    assert "block_mean" in text(lines, "A")


def test_a_reciprocal_is_noted_by_what_is_computed() -> None:
    note = "multiplied by the reciprocal"
    assert note in text(REFERENCES["quotient"], "A D")
    assert note not in text(REFERENCES["reciprocal by hand"].replace("v_i", "inverse_x"), "A D")


OF_WRAPPERS = [
    ("M", "N"), ("n_elements", "M"), ("options", "total_parts"), ("kernel", "grid"), ("num_parts", "options"),
    ("x", "x_view"), ("tiles", "num_tiles"), ("row_max_parts", "num_rows"),
]  # fmt: skip
"""What wrappers call variables of their own, and kernels the memory that they share."""

OF_TWO = {
    "softmax": ({"a": "... D", "b": "D"}, "... D", "return torch.softmax(a * b, -1)", {"...": (3,), "D": 37}),
    "sum": ({"a": "D", "b": "D"}, "", "return (a * b).sum()", {"D": 137}),
    "columns": ({"a": "B D", "b": "D"}, "D", "return (a * b).sum(0)", {"B": 67, "D": 7}),
    "transposed": ({"a": "B D", "b": "D B"}, "D B", "return a.t() * b", {"B": 5, "D": 37}),
    "loss": ({"a": "B D", "b": "B: int64 < D"}, "", "return F.cross_entropy(a, b)", {"B": 5, "D": 37}),
    "call": ({"a": "B D", "b": "D K"}, "B K", "return torch.relu(a @ b)", {"B": 5, "D": 7, "K": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "names"), [*zip([*OF_TWO, "softmax", "loss"], OF_WRAPPERS, strict=True)])
def test_inputs_may_be_called_as_the_wrapper_calls_its_variables(kind: str, names: tuple[str, str]) -> None:
    inputs, out, lines, sizes = OF_TWO[kind]
    called = dict(zip("ab", names, strict=True))
    text = re.sub(r"\b[ab]\b", lambda name: called[name[0]], lines)
    declared = {called[name]: shape for name, shape in inputs.items()}
    found = sample(text, declared, {"out": out}, sizes, dtypes=(("T", ("float32",)),))
    assert list(inspect.signature(load(render.triton_source(plan_of(found.spec()))).op).parameters) == list(names)
    as_on_a_gpu()
    assert not failures(found, thorough=False, most=2)


def functions_of_helpers() -> list[str]:
    """Every function that the table of helpers may print."""
    module = render.environment().get_template("helpers.py.jinja").module
    texts = [getattr(module, macro)() for macro in HELPERS]
    return [f.name for text in texts for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]


def test_no_variable_takes_the_name_of_a_function_that_a_file_may_define() -> None:
    names = functions_of_helpers()
    assert len(names) > len(HELPERS) > 60
    assert set(names) <= RESERVED


def test_variables_may_be_called_as_helpers_are() -> None:
    """Each helper's name is a variable, beside calls of helpers."""
    names = list(dict.fromkeys(functions_of_helpers()))
    calls = ["torch.exp(x)", "torch.tanh(x)", "torch.sigmoid(x)", "F.softplus(x)", "torch.fmod(x, 0.7)", "x % 0.3"]
    calls += ["torch.erf(x)", "torch.expm1(x)", "torch.log1p(x.abs())", "x.clamp(-1, 1)", "torch.atan2(x, y)"]
    lines = [f"{name} = {calls[i % len(calls)]} + {i}.0" for i, name in enumerate(names)]
    reference = "\n".join([*lines, f"return {' + '.join(names)}"])
    as_on_a_gpu()
    found = sample(reference, {"x": "A", "y": "A"}, {"out": "A"}, dtypes=(("T", ("float32",)),))
    x, y = torch.randn(300, device=DEVICE), torch.randn(300, device=DEVICE)
    scope: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    exec(found.source(), scope)
    got = load(render.triton_source(plan_of(found.spec()))).op(x, y)
    torch.testing.assert_close(got, scope["op"](x, y), rtol=1e-5, atol=1e-3)  # type: ignore[operator]


SCATTERS = {
    "rows": ("return {x}.index_add(0, {i}, {y})", "A B", "D: int64 < A", "D B"),
    "elements": ("return {x}.scatter_add(-1, {i}, {y})", "A B", "A D: int64 < B", "A D"),
}
OF_SCATTERS = [("M", "N", "counts"), ("left", "slots", "M"), ("y", "next_x", "x"), ("x", "i", "x")]
"""What a tensor, the indices and what is added are called: as kernels call their own; the last is one tensor twice."""


@pytest.mark.parametrize("names", OF_SCATTERS, ids="-".join)
@pytest.mark.parametrize("kind", SCATTERS)
def test_scatters_of_tensors_called_as_kernels_call_their_own(kind: str, names: tuple[str, str, str]) -> None:
    form, x, i, y = SCATTERS[kind]
    if names[0] == names[2]:
        i, y = i.replace("D", "A") if kind == "rows" else i.replace("A D", "A B"), x
    inputs = {
        name: f"{shape}{'' if ':' in shape else ': float32'}" for name, shape in zip(names, (x, i, y), strict=True)
    }
    found = sample(
        form.format(x=names[0], i=names[1], y=names[2]),
        inputs,
        {"out": f"{x}: float32"},
        {"A": 5, "B": 7, "D": 37},
        dtypes=(),
    )
    assert not failures(found, thorough=False, most=3)

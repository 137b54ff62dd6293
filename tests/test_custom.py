"""Kernels that no family wrote: the form of an answer, what its device code may hold, and the file made of it."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelgen import custom, generation, render
from kernelgen.custom.expressions import ExpressionError
from kernelgen.custom.expressions import parse as parse_expression
from kernelgen.custom.syntax import check
from kernelgen.plan import Plan, Schedule
from kernelgen.spec import load_spec
from kernelgen.spec.model import OperatorSpec

SPECS = Path(__file__).parent.parent / "specs"
KERNEL = '''\
@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, BLOCK_SIZE_N: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * N may pass 2**31
    cols = tl.arange(0, BLOCK_SIZE_N)
    mask = cols < N
    x = tl.load(x_ptr + row * N + cols, mask=mask, other=float("-inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * N + cols, numerator / tl.sum(numerator, axis=0), mask=mask)
'''
ANSWER: dict[str, Any] = {
    "idea": "One row a program, held in registers",
    "kernels": KERNEL,
    "sizes": [{"name": "M", "value": "x.numel() // max(D, 1)"}],
    "scratch": [],
    "launches": [
        {
            "kernel": "softmax_kernel", "grid": ["M"], "arguments": ["x", "out", "D"],
            "constexprs": [{"name": "BLOCK_SIZE_N", "value": "next_power_of_2(D)"}], "num_warps": 4, "num_stages": 1,
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def spec() -> OperatorSpec:
    return load_spec(SPECS / "softmax.yaml")


@pytest.fixture(scope="module")
def plan(spec: OperatorSpec) -> Plan:
    return generation.plan_of(spec, Path("nowhere"))


def changed(**changes: Any) -> dict[str, Any]:
    """The answer with fields changed; those of its launch as well."""
    answer = copy.deepcopy(ANSWER)
    for name, value in changes.items():
        (answer if name in answer else answer["launches"][0])[name] = value
    return answer


def refusal(answer: object, spec: OperatorSpec) -> str:
    with pytest.raises(custom.Refused) as caught:
        custom.parse(answer, spec)
    return "\n".join(caught.value.reasons)


def test_the_file_of_an_answer_is_formatted_and_holds_what_was_checked(plan: Plan, tmp_path: Path) -> None:
    answer = custom.parse(ANSWER, plan.spec)
    text = render.triton_source(plan.with_table(custom.table_of(plan.spec, answer)))
    assert KERNEL in text
    assert "proposed by a language model" in text
    assert "BLOCK_SIZE_N=triton.next_power_of_2(D)," in text
    path = tmp_path / "softmax_triton.py"
    path.write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--isolated", "--check", path], check=True)


def test_an_answer_survives_as_a_schedule(spec: OperatorSpec) -> None:
    answer = custom.parse(ANSWER, spec)
    schedule = custom.schedule_of(spec, answer)
    assert custom.answer_of(spec, Schedule.from_json(json.loads(json.dumps(schedule.to_json())))) == answer


def test_a_schedule_that_was_tampered_with_is_refused(spec: OperatorSpec) -> None:
    schedule = custom.schedule_of(spec, custom.parse(ANSWER, spec))
    text = schedule["answer"]
    assert isinstance(text, str)
    with pytest.raises(custom.Refused, match="only functions"):
        custom.answer_of(spec, schedule.replace(answer=text.replace("@triton.jit", "import os\\n@triton.jit")))
    with pytest.raises(custom.Refused, match="no JSON"):
        custom.answer_of(spec, schedule.replace(answer=text[:-9]))
    with pytest.raises(custom.Refused, match="no kernel"):
        custom.answer_of(spec, Schedule.make("row", num_warps=2))
    other = dataclasses.replace(spec, reference=spec.reference.replace("softmax(x", "log_softmax(x"))
    with pytest.raises(custom.Refused, match="another interface or reference"):
        custom.answer_of(other, schedule)


def test_no_idea_can_end_the_docstring_it_stands_in(plan: Plan) -> None:
    answer = custom.parse(changed(idea='x"""\nimport os\nos.abort()\n"""\\'), plan.spec)
    text = render.triton_source(plan.with_table(custom.table_of(plan.spec, answer)))
    assert "X''' import os os.abort() '''/." in " ".join(text.split())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "the answer is no JSON object"),
        ({}, "the answer has no field kernels"),
        (changed() | {"setup": "x"}, "the unknown field 'setup'"),
        (changed(num_warps="4"), "launches 1: num_warps is no integer"),
        (changed(num_warps=True), "num_warps is no integer"),
        (changed(num_warps=3), "num_warps is one of 1, 2, 4"),
        (changed(num_stages=99), "num_stages 1 to 8"),
        (changed(grid=[]), "launches 1: grid is no list of 1 to 3 entries"),
        (changed(grid=["M", 2]), "something else than texts"),
        (changed(kernel="other"), "there is no kernel other"),
        (changed(arguments=["x", "out"]), "takes 3 arguments (x_ptr, out_ptr, N), got 2"),
        (changed(arguments=["x", "x", "D"]), "no kernel is given the output out"),
        (changed(constexprs=[]), "the constexprs of softmax_kernel are BLOCK_SIZE_N; got none"),
        (changed(grid=["M", "__import__('os')"]), "is not allowed"),
        (changed(grid=["unknown"]), "unknown is no size that is known here"),
        (changed(arguments=["x", "out", "D + q"]), "q is no size"),
        (changed(sizes=[{"name": "x", "value": "1"}]), "the name 'x' is taken"),
        (changed(sizes=[{"name": "triton", "value": "1"}]), "is taken or no name"),
        (changed(sizes=[{"name": "a b", "value": "1"}]), "is taken or no name"),
        (changed(scratch=[{"name": "s", "shape": ["D"], "dtype": "uint4", "fill": 0}]), "dtype must be one of"),
        (changed(scratch=[{"name": "s", "shape": ["D"], "dtype": "float32", "fill": 1e999}]), "no finite number"),
        (changed(launches=[]), "launches is no list of 1 to 8 entries"),
        (changed(kernels=""), "there is no function"),
    ],
)  # fmt: skip
def test_what_breaks_the_form_is_refused_in_one_line(answer: object, message: str, spec: OperatorSpec) -> None:
    assert message in refusal(answer, spec)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("cdiv(D, 2) * 3", "triton.cdiv(D, 2) * 3"),
        ("next_power_of_2(x.shape[-1])", "triton.next_power_of_2(x.shape[-1])"),
        ("min(x.numel(), 65535)", "min(x.numel(), 65535)"),
        ("D % 8 + D // 4 - 1", "D % 8 + D // 4 - 1"),
        ("-1e-5", "-1e-05"),
    ],
)
def test_expressions_as_the_wrapper_writes_them(text: str, written: str) -> None:
    assert parse_expression(text, {"D"}, {"x": None}, floats=True).text == written


@pytest.mark.parametrize(
    "text",
    [
        "D ** D", "D / 2", "x", "x.data_ptr()", "x.shape", "x.shape[D]", "x.shape[9]", "x.numel(1)", "cdiv(D)",
        "cdiv(D, b=2)", "[D][0]", "D if D else 1", "lambda: 1", "(D := 3)", "open('f')", "'a'", "True", "1.5 * D",
        "D.__class__", "x.shape[0].__class__", "max(D)", "f'{D}'", "", "1 +", "9" * 20, "D " * 200, "(" * 150, "x.t()",
    ],
)  # fmt: skip
def test_what_is_no_expression_over_sizes(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text, {"D"}, {"x": None})


@pytest.mark.parametrize(
    "bomb", ["(" * 5000 + ")" * 5000, "-" * 50_000 + "1", "x" * 70_000, "x = " + "[" * 200 + "]" * 200]
)
def test_bombs_in_the_text_are_findings(bomb: str) -> None:
    _, findings = check(f"@triton.jit\ndef k(x):\n    y = {bomb}\n")
    assert findings
    assert len(str(findings[0])) < 200


def test_the_schema_is_what_servers_take() -> None:
    """Structured output wants every property required and nothing else allowed."""

    def visit(node: dict[str, Any]) -> None:
        if node["type"] == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
            for child in node["properties"].values():
                visit(child)
        elif node["type"] == "array":
            visit(node["items"])

    visit(custom.schema())
    assert custom.schema()["required"] == list(ANSWER)

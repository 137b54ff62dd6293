"""No offset passes what its integers hold: kernels at sizes of more than 2**31 elements, in each of their dimensions."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from offsets import OutOfBounds, check_call
from references import load, plan_of, sample

from kernelgen import families, judge, render
from kernelgen.families.kernel import body_of
from kernelgen.plan import TableRow
from kernelgen.spec.model import Case

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="addresses are seen in the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
OPERATORS = Path(__file__).parent.parent.parent / "operators"
TESTS = sorted(p for p in OPERATORS.rglob("*_accuracy.py") if not p.stem.endswith("_gradients_accuracy"))
TOTALS = (3 * 2**26, 3 * 2**29, 3 * 2**30)
"""Elements of the largest tensor: with what programs leave more than 2**31, by their bytes, and by themselves."""


def elements(operator: judge.Operator, case: judge.Case) -> int:
    return max(math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs))


def scaled(case: judge.Case, name: str, factor: int) -> judge.Case:
    size: Any = case.sizes[name]
    grown = (*size[:-1], (size or (1,))[-1] * factor) if isinstance(size, tuple) else size * factor
    return replace(case, sizes={**case.sizes, name: grown}, label="")


def huge(operator: judge.Operator, least: judge.Case) -> list[judge.Case]:
    """Each size grown until the largest tensor has a total; one that several dimensions have is doubled until then."""
    found = []
    for name in least.sizes:
        for total in TOTALS:
            case = scaled(least, name, max(total // max(elements(operator, least), 1), 1))
            while elements(operator, case) > 2 * total:
                half: Any = case.sizes[name]
                case = replace(case, sizes={**case.sizes, name: half // 2}, label="")
            found.append(case)
    return found


def tensors(operator: judge.Operator, case: judge.Case) -> tuple[list[torch.Tensor], list[int]]:
    made = [
        torch.empty(case.shape(t), dtype=case.dtype(t), device="meta") if t.number is None else torch.tensor(t.number)
        for t in operator.inputs
    ]
    return made, [max(case.dims(t.below)[-1] - 1, 0) if t.below else 0 for t in operator.inputs]


def least_of_each_dtype(operator: judge.Operator, cases: list[judge.Case]) -> list[judge.Case]:
    found: dict[str, judge.Case] = {}
    for case in sorted((c for c in cases if elements(operator, c)), key=lambda c: elements(operator, c)):
        found.setdefault(str((case.given, case.dtypes)), case)
    return list(found.values())


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem.removesuffix("_accuracy"))
def test_addresses_of_a_shipped_operator_are_within_its_tensors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a size is refused, it is refused in words."""
    monkeypatch.syspath_prepend(file.parent)
    name = file.stem.removesuffix("_accuracy")
    for other in (f"{name}_{part}" for part in ("accuracy", "baseline", "triton")):
        monkeypatch.delitem(sys.modules, other, raising=False)  # an operator of that name that another test generated
    operator = importlib.import_module(file.stem).OPERATOR
    cases = importlib.import_module(file.stem).CASES
    module = sys.modules[operator.kernel.__module__]
    ran, said = dict[str, int](), list[str]()
    for least in least_of_each_dtype(operator, cases):
        way, one = str(least.given), operator.at(least)
        if ran.get(way):  # else all of it is torch's call in the dtypes before
            continue
        for case in huge(one, least):
            try:
                ran[way] = ran.get(way, 0) + check_call(module, one.kernel, *tensors(one, case))
            except ValueError as refused:
                said.append(str(refused))
            except OutOfBounds as error:
                pytest.fail(f"{case.label}: {error}")
    assert ran
    launches = "@triton.jit" in Path(str(module.__file__)).read_text("utf-8")  # else all of it is torch's call
    assert all(ran.values()) or not launches
    assert all("at most" in text or "needs " in text for text in said), said  # a limit of ours, or a constraint


ROWS = {
    "normalized": sample("return torch.softmax(x, -1)", {"x": "M N"}, {"out": "M N"}),
    "moments": sample("return F.layer_norm(x, (x.shape[-1],))", {"x": "M N"}, {"out": "M N"}),
    "two walks": sample(
        "y = x - x.mean(-1, keepdim=True)\nreturn y / y.abs().amax(-1, keepdim=True)", {"x": "M N"}, {"out": "M N"}
    ),
    "columns": sample("return x.argmax(0)", {"x": "N M"}, {"out": "M: int64"}),
    "channels": sample("return F.batch_norm(x, None, None, training=True)", {"x": "M C N"}, {"out": "M C N"}),
    "scanned": sample("return torch.cumsum(x, -1)", {"x": "M N"}, {"out": "M N"}),
    "from the end": sample("return torch.cumprod(x.flip(-1), -1).flip(-1)", {"x": "M N"}, {"out": "M N"}),
    "chosen": sample("return torch.topk(x, 3).values", {"x": "M N"}, {"out": "M 3"}, constraints=("x.shape[-1] >= 3",)),
    "as a whole": sample("return (x * x).sum()", {"x": "M N"}, {"out": ""}),
    "windows": sample("return F.avg_pool2d(x, 2)", {"x": "M C 2*N 2*K"}, {"out": "M C N K"}),
    "multiplied": sample("return torch.relu(a @ b)", {"a": "M K", "b": "K N"}, {"out": "M N"}),
    "multiplied, long sums": sample("return F.linear(x, w, b)", {"x": "M N", "w": "K N", "b": "K"}, {"out": "M K"}),
    "multiplied, many": sample("return torch.bmm(a, b) + 1", {"a": "M C K", "b": "M K N"}, {"out": "M C N"}),
    "added": sample("return x.index_add(0, i, y)", {"x": "M N", "i": "C: int64 < M", "y": "C N"}, {"out": "M N"}),
}
SIZES = (
    {"M": 3 * 2**28, "N": 5},
    {"M": 3, "N": 5 * 2**27},
    {"M": 7, "N": 3 * 2**28},
    {"M": 2**16, "N": 3 * 2**14},
    {"M": 2**13, "N": 2**16},
)


@pytest.mark.parametrize("name", ROWS)
def test_addresses_are_within_the_tensors_whatever_the_schedule(name: str) -> None:
    plan, ran = plan_of(ROWS[name].spec()), 0
    for variant, sizes in itertools.product(families.family_of(plan).variants(body_of(plan)), SIZES):
        schedule = families.family_of(plan).default(variant)
        case = Case(tuple((sizes | {"C": 2, "K": 4}).items()), (("T", "float32"),))
        if families.legal(plan, schedule, case) is not None:
            continue
        if variant == "vector" and sizes["M"] * sizes["N"] > 2**31:  # for few rows: two columns of one a program
            continue
        module = load(render.triton_source(plan.with_table((TableRow((), schedule),))), together=False)
        shapes = [(case.shape(t.shape), getattr(torch, case.dtype(t.dtype))) for t in ROWS[name].inputs]
        made = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
        values = [sizes["M"] - 1 if t.below else 0 for t in ROWS[name].inputs]
        try:
            ran += check_call(module, module.op, made, values)
        except ValueError as refused:
            if "at most" not in str(refused):
                raise
        except OutOfBounds as error:
            pytest.fail(f"{variant} {sizes}: {error}")
    assert ran

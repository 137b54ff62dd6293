"""Mutants: what a test must reject before it is believed, and what is said of one that cannot."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import list_mutants
import pytest
import softmax_accuracy
import torch

from kernelgen import judge
from kernelgen.judge import lint, mutants

SOFTMAX = softmax_accuracy.OPERATOR
# the parts of a backward are mutated by its gradients
SHIPPED = [
    pytest.param(path, marks=pytest.mark.slow if "backward" in path.parent.name else ())
    for path in sorted((Path(__file__).parents[2] / "operators").rglob("*_accuracy.py"))
]
USUAL = {
    "zeros", "a copy of x", "the first element repeated", "a wrong last tile", "one wrong element",
    "a lower precision", "a former call's output", "memory as allocated",
}  # fmt: skip


def operator(reference, *names: str, output: str = "T") -> judge.Operator:
    """An operator that is its own kernel, over matrices."""
    return judge.Operator(
        name="op", kernel=reference, baseline=reference, reference=reference,
        inputs=tuple(judge.Tensor(name, ("...", "D"), "T", rows=0) for name in names or ("x",)),
        outputs=(judge.Tensor("out", ("...", "D"), output, rows=0),),
    )  # fmt: skip


def case(rows: int = 5, columns: int = 129, dtype: str = "float32") -> judge.Case:
    return judge.Case({"...": (rows,), "D": columns}, {"T": dtype})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_sound_test_rejects_every_mutant(dtype: str) -> None:
    report = judge.accuracy_case(operator(SOFTMAX.reference), case(dtype=dtype))
    assert report.passed
    assert set(report.told) == USUAL
    assert report.undiscriminated == ()


def test_a_case_that_cannot_tell_is_reported_with_the_inputs_that_can() -> None:
    """Softmax of one column is all ones."""
    whole = operator(SOFTMAX.reference)
    reports = [judge.accuracy_case(whole, one) for one in (case(5, 1), case())]
    assert "a lower precision" in reports[0].undiscriminated
    lines = mutants.complaints(reports)
    (line,) = [line for line in lines if "a lower precision" in line]
    assert line == (
        "weak case: cannot detect a lower precision in [5] D=1 float32; detected by normal inputs at [5] D=129 float32"
    )


def test_where_no_case_can_tell_there_is_advice() -> None:
    vacuous = operator(lambda x: torch.zeros_like(x))
    lines = mutants.complaints([judge.accuracy_case(vacuous, case())])
    assert "weak case: cannot detect zeros in any of 1 cases; inputs whose results are not all zero would" in lines
    assert any("a former call's output" in line for line in lines)
    assert not any("one wrong element" in line for line in lines)


def test_exact_and_integer_operators_are_mutated_too() -> None:
    exact = dataclasses.replace(operator(lambda x: x.flip(-1)), exact=True)
    assert set(judge.accuracy_case(exact, case()).told) == USUAL
    compared = operator(lambda x, y: x > y, "x", "y", output="bool")
    told = judge.accuracy_case(compared, case()).told
    assert {"zeros", "one wrong element", "a copy of x", "a copy of y"} <= set(told)


def test_a_uniform_output_is_told_from_one_whose_end_is_unwritten() -> None:
    """Repeated elements are right in it; one that is only said to be uniform has the usual mutants."""
    shown = operator(lambda x: x[:1, :1].expand(x.shape).clone())
    outputs = tuple(dataclasses.replace(t, uniform=True) for t in shown.outputs)
    assert "a wrong last tile" in judge.accuracy_case(shown, case()).undiscriminated
    told = judge.accuracy_case(dataclasses.replace(shown, outputs=outputs), case()).told
    assert set(told) == USUAL - {"the first element repeated"}
    usual = dataclasses.replace(operator(SOFTMAX.reference), outputs=outputs)
    assert set(judge.accuracy_case(usual, case()).told) == USUAL


def test_every_output_has_its_own_mutants() -> None:
    both = dataclasses.replace(
        operator(lambda x: (x * 2, x.sum(-1, keepdim=True))),
        outputs=(
            judge.Tensor("double", ("...", "D"), "T", rows=0), judge.Tensor("total", ("...", 1), "T", rows=0)
        ),
    )  # fmt: skip
    told = judge.accuracy_case(both, case()).told
    assert {"zeros of double", "zeros of total"} <= set(told)
    assert told["a copy of x of total"] == mutants.ANY  # its shape gives it away


def test_hidden_and_wrong_cases_say_nothing_of_mutants() -> None:
    hidden = dataclasses.replace(case(), hidden=True)
    assert judge.accuracy_case(operator(SOFTMAX.reference), hidden).told == {}
    wrong = dataclasses.replace(operator(SOFTMAX.reference), kernel=torch.zeros_like)
    assert judge.accuracy_case(wrong, case(5, 1)).undiscriminated == ()


@pytest.mark.parametrize(
    ("value", "bits", "kept"), [(1 + 2**-10, 10, 1 + 2**-10), (1 + 2**-11 + 2**-20, 10, 1 + 2**-10), (-3e38, 3, -3e38)]
)
def test_rounding_to_fewer_bits(value: float, bits: int, kept: float) -> None:
    assert mutants.rounded(torch.tensor([value]), bits).item() == pytest.approx(kept, rel=2.0**-bits if bits < 5 else 0)


def test_rounding_keeps_what_is_not_finite() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    assert torch.equal(mutants.rounded(values, 3).nan_to_num(7.0), values.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1.0, 1 + 2**-5, 1024.0, 2.0**-20], [1.0, 1.0, 1024.0, 2.0**-20]),  # the mantissa alone tells
        ([1.0, 1024.0, -(2.0**120), 2.0**-20, math.inf], [1.0, 448.0, -448.0, 0.0, math.inf]),
        ([1.0, 1.0, 0.0], [1.0, 1.0, 0.0]),
    ],
)
def test_levels_of_float8_are_told_from_float8_by_their_range(values: list[float], kept: list[float]) -> None:
    assert mutants.lowered(torch.tensor(values, dtype=torch.bfloat16)).tolist() == kept


@pytest.mark.parametrize(
    ("reference", "names", "line"),
    [
        (lambda x: torch.ones_like(x), ("x",), "out is 1 everywhere, whatever the inputs"),
        (lambda x, y: x * 2, ("x", "y"), "no result depends on the values of y"),
        (lambda x: x.clone(), ("x",), "out equals x on normal inputs"),
        (lambda x: x.clamp(-100, 100), ("x",), "out equals x on normal inputs"),
        (lambda x: x + torch.rand_like(x), ("x",), "two calls on the same inputs differ"),
    ],
)
def test_the_lint_finds_references_that_invite_cheating(reference, names: tuple[str, ...], line: str) -> None:
    found = lint.reference_lint(operator(reference, *names), [case(), case(64, 1)], "cpu", 1)
    assert any(line in one for one in found), found


def test_the_lint_says_of_a_small_case_only_what_larger_ones_do_not_deny() -> None:
    """Attention over one key depends on no query."""
    q, k, v = (judge.Tensor(name, ("S", "D"), "T") for name in "qkv")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.T, -1) @ v

    one = judge.Operator("op", attend, attend, attend, (q, k, v), (judge.Tensor("out", ("S", "D"), "T"),))
    cases = [judge.Case({"S": s, "D": 16}, {"T": "float32"}) for s in (1, 3, 9)]
    said = lint.reference_lint(one, cases[:1], "cpu", 1)
    assert any("no result depends on the values of k" in line for line in said)
    assert lint.reference_lint(one, cases, "cpu", 1) == []
    alone = dataclasses.replace(one, inputs=(*one.inputs, judge.Tensor("w", ("D",), "T")))
    unused = dataclasses.replace(alone, reference=lambda q, k, v, w: attend(q, k, v))
    (line,) = lint.reference_lint(unused, cases, "cpu", 1)
    assert line.startswith("reference: no result depends on the values of w")


@pytest.mark.parametrize("reference", [SOFTMAX.reference, torch.relu, lambda x: x * 0 + 1 / x.sum(-1, keepdim=True)])
def test_the_lint_says_nothing_of_sound_references(reference) -> None:
    assert lint.reference_lint(operator(reference), [case(3, 1), case()], "cpu", 1) == []


def smallest(cases: tuple[judge.Case, ...]) -> list[judge.Case]:
    """Small cases of several shapes; most operators need one or two of them.

    Those of few elements come last, largest first: they tell what an average over many hides.
    """

    def size(case: judge.Case) -> int:
        return math.prod(math.prod(s) if isinstance(s, tuple) else s for s in case.sizes.values())

    order = sorted(cases, key=lambda c: (size(c), c.label))
    few = [c for c in order if size(c) <= 64]
    return [*order[len(few) :][:12], *reversed(few)]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem.removesuffix("_accuracy"))
def test_every_shipped_spec_rejects_every_mutant(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In some small case; the baseline stands in for the kernel, so nothing is interpreted."""
    monkeypatch.syspath_prepend(file.parent)
    module = importlib.import_module(file.stem)
    baseline, written = module.OPERATOR.baseline, module.OPERATOR.written
    copying = dataclasses.replace(
        module.OPERATOR, baseline=lambda *a, **k: list_mutants.copied(baseline(*a, **k), written)
    )
    told: set[str] = set()
    left: set[str] = set()
    for one in smallest(module.CASES):
        report = judge.accuracy_case(copying, one, kernel=copying.baseline, seed=1)
        told |= set(report.told)
        left |= set(report.undiscriminated)
        if told and left <= told:  # the page looks at all cases
            return
    assert told
    assert left - told <= {list_mutants.SUMMED}  # the page names where


def test_the_page_of_mutants_covers_all_that_is_shipped() -> None:
    """A spec that was added is a row that is missing: `python tests/judge/list_mutants.py --missing`."""
    rows = list_mutants.rows()
    assert sorted(rows) == sorted(list_mutants.files())
    assert list_mutants.DOCUMENT.read_text("utf-8") == list_mutants.page(rows)
    assert list_mutants.SOUND in list_mutants.DOCUMENT.read_text("utf-8")


@pytest.mark.parametrize("name", ["flip", "max_pool2d", "triu"])
def test_a_sample_of_the_page_is_still_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    assert list_mutants.row(list_mutants.files()[name]) == list_mutants.rows()[name]


def test_an_operator_that_crashes_leaves_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = {"killed": "import os; os.kill(os.getpid(), 9)", "raising": "raise ValueError"}
    for name, source in bad.items():
        (tmp_path / f"{name}_accuracy.py").write_text(source)
    wanted = {name: tmp_path / f"{name}_accuracy.py" for name in bad} | {"flip": list_mutants.files()["flip"]}
    found = dict(list_mutants.looked_at(wanted, 2))
    assert found == {"killed": None, "raising": None, "flip": list_mutants.rows()["flip"]}
    said = capfd.readouterr().err
    assert "killed: crashed with exit code -9" in said
    assert "raising: crashed with exit code 1" in said


def test_the_page_says_where_no_case_can_tell() -> None:
    page = list_mutants.page(
        {"op": "| op | 1 | zeros in any of 1 cases; inputs whose results are not all zero would |"}
    )
    assert "No case of op detects some of their mutants" in page
    assert list_mutants.SOUND not in page


def test_a_sum_in_lower_precision_that_no_case_tells_is_named() -> None:
    line = f"| op | 1 | {list_mutants.SUMMED} in any of 1 cases; longer sums would |"
    page = list_mutants.page({"op": line})
    assert list_mutants.SOUND in page
    assert f"no case of op detects {list_mutants.SUMMED}" in page.replace("\n", " ")

"""Gradients on a GPU: every case of every gradients' test, and forward and backward timed against torch's."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kernelgen import judge

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent.parent / "operators"
TESTS = sorted(ROOT.rglob("*_gradients_accuracy.py"))


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.parent.name)
def test_gradients_are_accurate_and_measured(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    module = importlib.import_module(file.stem)
    for case in [*module.CASES, *judge.hidden_cases(module.OPERATOR, module.CASES, "cuda", large=False)]:
        report = judge.accuracy_case(module.OPERATOR, case)
        assert report.passed or report.left_out, report
    timed = importlib.import_module(f"{file.parent.name}_performance").CASES
    for case in timed:
        measured = judge.performance_case(module.OPERATOR, case, ("eager",))
        print(f"{file.parent.name} forward and backward, {case.label}: {measured.comparisons}{measured.left_out}")
        assert not measured.message, measured

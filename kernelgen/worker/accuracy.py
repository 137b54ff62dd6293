"""Accuracy of a candidate through its quartet's own OPERATOR, one case a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelgen import judge
from kernelgen.worker import load
from kernelgen.worker.operations import FaultError


def cases(folder: str, name: str, device: str, large: bool) -> dict[str, Any]:
    """The quartet's accuracy cases and those that the judge derives; `large`: one beyond 2**31 elements if it fits."""
    module = load.quartet(folder, name, "accuracy")
    listed = list(module.CASES)
    hidden = judge.hidden_cases(module.OPERATOR, listed, device, large=None if large else False)
    return {"cases": [case.to_json() for case in [*listed, *hidden]]}


def one_case(folder: str, name: str, path: str, case: dict[str, Any]) -> dict[str, Any]:
    """Judge the candidate in `path` on one case. Raises FaultError where the device is lost after it."""
    operator = load.quartet(folder, name, "accuracy").OPERATOR
    return judged(operator, judge.Case.from_json(case), load.candidate(path, name))


def judged(operator: judge.Operator, case: judge.Case, kernel: Callable[..., Any]) -> dict[str, Any]:
    """A kernel in the place of the operator's own on one case. Raises FaultError where the device is lost after it."""
    report = judge.accuracy_case(operator, case, kernel=kernel)
    if report.fatal:
        raise FaultError(report.message)
    return {
        "label": report.case.label,
        "passed": report.passed,
        "message": report.message,
        "max_error": report.max_error,
        "eager_error": report.eager_error,
        "relative_error": report.relative_error,
        "l2_error": report.l2_error,
        "bound_share": report.bound_share,
        "peak_bytes": report.peak_bytes,
        "left_out": report.left_out,
        "refused": report.refused,
    }

"""The judge: decides whether a generated kernel is right and how fast it is.

Imports torch, triton and the standard library only, and itself only relatively: the folder works wherever it is
copied, under any name.
"""

from .accuracy import accuracy_case, assert_accurate
from .device import prepare
from .hidden import hidden_cases
from .main import accuracy_main, performance_main
from .model import Case, CaseReport, Comparison, Operator, PerformanceReport, Tensor, Trial, Worst
from .performance import assert_measured, make_inputs, performance_case
from .pytest_marks import each
from .report import to_json
from .selftest import self_test
from .timing import Quick, compare, quick

__all__ = [
    "Case",
    "CaseReport",
    "Comparison",
    "Operator",
    "PerformanceReport",
    "Quick",
    "Tensor",
    "Trial",
    "Worst",
    "accuracy_case",
    "accuracy_main",
    "assert_accurate",
    "assert_measured",
    "compare",
    "each",
    "hidden_cases",
    "make_inputs",
    "performance_case",
    "performance_main",
    "prepare",
    "quick",
    "self_test",
    "to_json",
]

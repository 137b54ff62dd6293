"""Performance of scale."""

from scale_accuracy import OPERATOR  # noqa: F401

from kernelgen import judge

CASES = (judge.Case({"...": (4096,), "D": 4096}, {"T": "float32"}, "[4096] D=4096 float32"),)

"""Accuracy of softmax: python softmax_accuracy.py [--verbose] [--json], or pytest softmax_accuracy.py."""

from kernelgen import judge

judge.prepare()  # without a GPU this selects Triton's interpreter; it must run before the kernel is imported

import softmax_baseline  # noqa: E402
import softmax_triton  # noqa: E402

OPERATOR = judge.Operator(
    name="softmax",
    kernel=softmax_triton.softmax,
    baseline=softmax_baseline.softmax,
    reference=softmax_baseline.reference,
    inputs=(judge.Tensor("x", ("...", "D"), "T", rows=0),),
    outputs=(judge.Tensor("out", ("...", "D"), "T", rows=0),),
)

CASES = (
    judge.Case({"...": (7, 3), "D": 129}, {"T": "float16"}),
    judge.Case({"...": (7, 3), "D": 129}, {"T": "bfloat16"}),
    judge.Case({"...": (7, 3), "D": 129}, {"T": "float32"}),
    judge.Case({"...": (2048, 16), "D": 4096}, {"T": "float16"}),
)


@judge.each(CASES)
def test_softmax(case: judge.Case) -> None:
    judge.assert_accurate(OPERATOR, case)


if __name__ == "__main__":
    raise SystemExit(judge.accuracy_main(OPERATOR, CASES))

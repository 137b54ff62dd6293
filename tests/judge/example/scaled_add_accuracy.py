"""Accuracy of scaled_add: python scaled_add_accuracy.py [--verbose] [--json], or pytest scaled_add_accuracy.py."""

from kernelgen import judge

judge.prepare()  # without a GPU this selects Triton's interpreter; it must run before the kernel is imported

import scaled_add_baseline  # noqa: E402
import scaled_add_triton  # noqa: E402

OPERATOR = judge.Operator(
    name="scaled_add",
    kernel=scaled_add_triton.scaled_add,
    baseline=scaled_add_baseline.scaled_add,
    reference=scaled_add_baseline.reference,
    inputs=(
        judge.Tensor("x", ("...", "D"), "T", rows=0),
        judge.Tensor("bias", ("D",), "T"),
        judge.Tensor("scale", ("D",), "T"),
    ),
    outputs=(judge.Tensor("out", ("...", "D"), "T", rows=0),),
)

CASES = (
    judge.Case({"...": (7, 3), "D": 129}, {"T": "float16"}),
    judge.Case({"...": (7, 3), "D": 129}, {"T": "bfloat16"}),
    judge.Case({"...": (7, 3), "D": 129}, {"T": "float32"}),
)


@judge.each(CASES)
def test_scaled_add(case: judge.Case) -> None:
    judge.assert_accurate(OPERATOR, case)


if __name__ == "__main__":
    raise SystemExit(judge.accuracy_main(OPERATOR, CASES))

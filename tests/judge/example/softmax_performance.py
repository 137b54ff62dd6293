"""Performance of softmax: python softmax_performance.py [--verbose] [--json], or pytest softmax_performance.py."""

from softmax_accuracy import OPERATOR

from kernelgen import judge

CASES = (judge.Case({"...": (16384,), "D": 4096}, {"T": "float16"}),)


@judge.each(CASES, gpu=True)
def test_softmax_speed(case: judge.Case) -> None:
    judge.assert_measured(OPERATOR, case)


if __name__ == "__main__":
    raise SystemExit(judge.performance_main(OPERATOR, CASES))

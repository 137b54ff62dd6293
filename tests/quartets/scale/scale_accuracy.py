"""Accuracy of scale."""

from kernelgen import judge

judge.prepare()

import scale_baseline  # noqa: E402
import scale_triton  # noqa: E402

OPERATOR = judge.Operator(
    name="scale",
    kernel=scale_triton.scale,
    baseline=scale_baseline.scale,
    reference=scale_baseline.reference,
    inputs=(judge.Tensor("x", ("...", "D"), "T", rows=0),),
    outputs=(judge.Tensor("out", ("...", "D"), "T", rows=0),),
)
CASES = (
    judge.Case({"...": (4,), "D": 128}, {"T": "float32"}, "[4] D=128 float32"),
    judge.Case({"...": (3, 5), "D": 129}, {"T": "float16"}, "[3, 5] D=129 float16"),
)

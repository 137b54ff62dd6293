"""The same inputs give the same bits: every operator that multiplies, and its gradients, called a hundred times."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch

from kernelgen import judge
from kernelgen.judge.performance import make_inputs

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent.parent / "operators"
FILES = sorted(file for file in ROOT.glob("*/*_accuracy.py") if "multiplied=" in file.read_text("utf-8"))
CALLS = 100


def elements(case: judge.Case) -> int:
    return math.prod(math.prod(size) if isinstance(size, tuple) else size for size in case.sizes.values())


def bits(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The bytes of every result, so that a NaN equals itself and -0.0 differs from 0.0."""
    results = result if isinstance(result, tuple) else (result,)
    return [tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone() for tensor in results]


def cases(module: str, folder: str) -> list[judge.Case]:
    """Those of every dtype: the last of the accuracy test, and the smallest and the largest that are timed."""
    timed = importlib.import_module(f"{folder}_performance").CASES
    found: dict[str, judge.Case] = {}
    for case in importlib.import_module(module).CASES:
        found[f"last {case.dtypes}"] = case
    for case in sorted(timed, key=elements):
        found.setdefault(f"smallest {case.dtypes}", case)
        found[f"largest {case.dtypes}"] = case
    return list({case.label: case for case in found.values()}.values())


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem.removesuffix("_accuracy"))
def test_a_hundred_calls_give_the_same_bits(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    operator = importlib.import_module(file.stem).OPERATOR
    for case in cases(file.stem, file.parent.name):
        at = operator.at(case)
        inputs = make_inputs(at, case, seed=1)()
        first = bits(at.kernel(*inputs))
        for call in range(1, CALLS):
            again = bits(at.kernel(*inputs))
            assert all(map(torch.equal, first, again)), f"{case.label}: call {call} differs from the first"
        print(f"{file.stem}: {CALLS} equal calls at {case.label}")

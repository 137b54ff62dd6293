"""The shipped operators' own accuracy tests at their smallest cases; a GPU runs them whole (`kernelgen check NAME`)."""

from __future__ import annotations

import importlib
import math
import zlib
from pathlib import Path

import pytest

from kernelgen import judge

ROOT = Path(__file__).parent.parent.parent / "operators"
# the parts of a backward are run by the test of the gradients
TESTS = sorted(path for path in ROOT.rglob("*_accuracy.py") if not path.parent.name.startswith("backward"))


def elements(case: judge.Case) -> int:
    return math.prod(math.prod(size) if isinstance(size, tuple) else size for size in case.sizes.values())


def widest(case: judge.Case) -> int:
    return max((n for size in case.sizes.values() for n in (size if isinstance(size, tuple) else (size,))), default=0)


def smallest(cases: tuple[judge.Case, ...], *, narrow: bool = False) -> list[judge.Case]:
    """Of every dtype and way of calling the smallest case, single elements last: a tile's edges show only beyond them.
    `narrow`: the one of the shortest dimensions; the sums over many rows of a gradient are as many programs for every few
    columns."""
    found: list[judge.Case] = []
    for kind in {(tuple(case.dtypes.items()), tuple(case.given.items())): None for case in cases}:
        own = [case for case in cases if (tuple(case.dtypes.items()), tuple(case.given.items())) == kind]
        found.append(min(own, key=lambda case: (elements(case) < 64, narrow and widest(case), elements(case))))
    return found


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem.removesuffix("_accuracy"))
def test_a_shipped_operator_is_accurate(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    module = importlib.import_module(file.stem)
    cases = smallest(module.CASES, narrow=file.stem.endswith("_gradients_accuracy"))
    assert cases
    for case in cases:
        # the same inputs in every run: of a thousand a right kernel may be called wrong once, which `check` looks for
        report = judge.accuracy_case(module.OPERATOR, case, seed=zlib.crc32(file.stem.encode()))
        assert report.passed or report.left_out, report

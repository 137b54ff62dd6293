"""Writes docs/mutants.md: what the cases of the shipped specs cannot tell. `python tests/judge/list_mutants.py`, about 2 minutes.

The baseline stands in for the kernel, so nothing is interpreted; cases that are too large for that are left out.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from kernelgen import judge
from kernelgen.judge import lint, mutants

REPO = Path(__file__).parents[2]
DOCUMENT = REPO / "docs" / "mutants.md"
SEED = 1
HEAD = """\
# Mutants that a case cannot tell

Made by `python tests/judge/list_mutants.py` (seed {seed}, on a CPU) from the accuracy cases of every shipped spec. A case is
blind to a mutant where a result of that kind *is* right: zeros are the logarithm of the softmax of one column.
**Every spec rejects every mutant in some case**; what single cases cannot tell is listed here with one that can.
[measuring.md](measuring.md) says what the mutants are.

| spec | cases | blind |
|---|---:|---|
"""


def row(file: Path) -> str:
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    operator = dataclasses.replace(module.OPERATOR, kernel=lambda *a: copied(module.OPERATOR.baseline(*a)))
    reports = [judge.accuracy_case(operator, case, seed=SEED, seeds=1) for case in module.CASES]
    lines = [line.removeprefix("cannot discriminate: ") for line in mutants.complaints(reports)]
    lines += lint.reference_lint(operator, module.CASES, "cpu", SEED)
    ran = sum(bool(r.told) for r in reports)
    return f"| {operator.name} | {ran} | {'<br>'.join(lines) or 'none'} |"


def copied(result: Any) -> Any:
    return tuple(r.clone() for r in result) if isinstance(result, tuple) else result.clone()


def main() -> None:
    warnings.simplefilter("ignore")
    judge.prepare()
    rows = [row(file) for file in sorted((REPO / "operators").rglob("*_accuracy.py"))]
    DOCUMENT.write_text(HEAD.format(seed=SEED) + "\n".join(rows) + "\n", "utf-8")


if __name__ == "__main__":
    main()

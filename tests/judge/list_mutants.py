"""Writes docs/mutants.md: what single cases of the shipped specs cannot tell, and which case can.

    python tests/judge/list_mutants.py             all of it, about 10 minutes on one core
    python tests/judge/list_mutants.py --missing   what the page lacks, after a spec was added
    python tests/judge/list_mutants.py softmax     these operators again, after their cases were changed

The baseline stands in for the kernel, so nothing is interpreted. The page is written after every operator: a command
that is interrupted goes on with `--missing`. Exit code 1 where some mutant is rejected by no case, but for sums in lower
precision, which the page names.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kernelgen import judge
from kernelgen.files import write_atomic
from kernelgen.judge import lint, mutants

REPO = Path(__file__).parents[2]
DOCUMENT = REPO / "docs" / "mutants.md"
SEED = 1
SUFFIX = "_accuracy.py"
NONE = "in any of"
"""Stands in a line about a mutant that no case tells."""
HEAD = """\
# Mutants that a case cannot detect

Made by `python tests/judge/list_mutants.py` (seed {seed}, on a CPU) from the accuracy cases of all {count} shipped operators,
including gradients. A mutant is a wrong result that the accuracy test must reject;
[measuring.md](measuring.md) lists them. A case cannot detect a mutant if such a result *is* right, or as accurate as PyTorch's
own: the log-softmax of one column is zero, 5 equal results equal the first one repeated, and an average over many elements hides
the precision of each. No distribution of inputs helps there (small cases use all six, large ones the first three); another
shape does.

{verdict}
For each mutant that single cases cannot detect, the table names the first such case, and a case with a distribution of inputs that
detects it; "any inputs" means that the shape or dtype of the result suffices. A line that begins with "reference" is a remark on the
reference: a gradient may need the shape of an input and none of its values.

| operator | cases | not detected by single cases |
|---|---:|---|
"""
SOUND = "**Every operator rejects every mutant in some case.**"
SUMMED = "a product summed in lower precision"
SUMS = """ But no case of {names} detects {what}:
rounding such a sum after every step changes these results little more than rounding the factors does.
"""
UNSOUND = "**No case of {names} detects some of their mutants.**"


def files() -> dict[str, Path]:
    """The accuracy test of every shipped operator, by the operator's name."""
    found = sorted((REPO / "operators").rglob(f"*{SUFFIX}"))
    return {file.name.removesuffix(SUFFIX): file for file in found}


def row(file: Path) -> str:
    """The line of one operator."""
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    shipped = module.OPERATOR
    operator = dataclasses.replace(shipped, kernel=lambda *a, **k: copied(shipped.baseline(*a, **k), shipped.written))
    reports = [judge.accuracy_case(operator, case, seed=SEED) for case in module.CASES]
    if wrong := next((r for r in reports if not r.passed), None):
        raise SystemExit(
            f"{file}: the baseline in the kernel's place is called wrong: {wrong.case.label}: {wrong.message}"
        )
    lines = [line.removeprefix("weak case: cannot detect ") for line in mutants.complaints(reports)]
    lines += lint.reference_lint(operator, module.CASES, "cpu", SEED)
    ran = sum(bool(r.told) for r in reports)
    return f"| {file.name.removesuffix(SUFFIX)} | {ran} | {'<br>'.join(lines) or 'none'} |"


def copied(result: Any, written: Collection[int]) -> Any:
    """The result in memory of its own, but for what is `written` into an input; a clone of one element that was
    expanded would keep its stride of 0."""
    many = result if isinstance(result, tuple) else (result,)
    made = tuple(r if i in written else r.new_empty(r.shape).copy_(r) for i, r in enumerate(many))
    return made if isinstance(result, tuple) else made[0]


def rows() -> dict[str, str]:
    """The lines of the page as it is, by operator."""
    lines = DOCUMENT.read_text("utf-8").splitlines() if DOCUMENT.is_file() else []
    found = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    return {name: line for name, line in found.items() if name != "operator"}


def untold(found: Mapping[str, str], *, sums: bool) -> str:
    """The operators of which no case tells some mutant: a sum in lower precision, or another one."""
    remarks = {name: line.split("|")[3].strip().split("<br>") for name, line in found.items()}
    return ", ".join(
        name for name in sorted(found) if any(NONE in r and r.startswith(SUMMED) == sums for r in remarks[name])
    )


def page(found: Mapping[str, str]) -> str:
    """The whole page."""
    unsound, unsummed = untold(found, sums=False), untold(found, sums=True)
    verdict = UNSOUND.format(names=unsound) if unsound else SOUND
    verdict += SUMS.format(names=unsummed, what=SUMMED) if unsummed else ""
    return HEAD.format(seed=SEED, count=len(found), verdict=verdict) + "".join(f"{found[n]}\n" for n in sorted(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these operators; all without a name")
    parser.add_argument("--missing", action="store_true", help="only what the page lacks")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    judge.prepare()
    known = files()
    found = {name: line for name, line in rows().items() if name in known}
    for name in options.names or [n for n in known if not (options.missing and n in found)]:
        found[name] = row(known[name])
        print(found[name], flush=True)
        write_atomic(DOCUMENT, page(found))
    write_atomic(DOCUMENT, page(found))  # an operator that is no more leaves no line
    return int(bool(untold(found, sums=False)))


if __name__ == "__main__":
    sys.exit(main())

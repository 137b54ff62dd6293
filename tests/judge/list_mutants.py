"""Writes docs/mutants.md: what single cases of the shipped specs cannot tell, and which case can.

    python tests/judge/list_mutants.py             all of it, about 10 minutes on one core
    python tests/judge/list_mutants.py --missing   what the page lacks, after a spec was added
    python tests/judge/list_mutants.py softmax     these operators again, after their cases were changed
    python tests/judge/list_mutants.py --jobs 64   all of it, 64 operators at a time

The baseline stands in for the kernel, so nothing is interpreted; where it is too far off, the reference in float64 does. Every operator is looked at by a process of its own: one
that crashes has a line on stderr and none on the page. The page is written after every operator: a command that is
interrupted goes on with `--missing`. Exit code 1 where an operator crashed or some mutant is rejected by no case, but for
sums in lower precision, which the page names.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import multiprocessing
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from kernelgen import judge
from kernelgen.files import write_atomic
from kernelgen.judge import lint, mutants
from kernelgen.judge.oracle import as_tuple, in_float64

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
    if not all(r.passed for r in reports):  # PyTorch's own half precision may be too far off to stand in
        operator = dataclasses.replace(shipped, kernel=lambda *a, **k: rounded(shipped, a, k))
        reports = [judge.accuracy_case(operator, case, seed=SEED) for case in module.CASES]
    if wrong := next((r for r in reports if not r.passed), None):
        raise SystemExit(
            f"{file}: the reference in the kernel's place is called wrong: {wrong.case.label}: {wrong.message}"
        )
    lines = [line.removeprefix("weak case: cannot detect ") for line in mutants.complaints(reports)]
    lines += lint.reference_lint(operator, module.CASES, "cpu", SEED)
    ran = sum(bool(r.told) for r in reports)
    return f"| {file.name.removesuffix(SUFFIX)} | {ran} | {'<br>'.join(lines) or 'none'} |"


def looked_at(wanted: Mapping[str, Path], jobs: int) -> Iterator[tuple[str, str | None]]:
    """The name and the line of every operator as they come, `jobs` side by side; None for one whose process crashed."""
    fork = multiprocessing.get_context("fork")  # what is imported here is not imported again
    waiting = list(wanted.items())
    running: dict[Connection, tuple[str, multiprocessing.process.BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, file = waiting.pop(0)
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=lambda sender, file: sender.send(row(file)), args=(sender, file))
            process.start()
            sender.close()  # the process holds the only other end: when it is gone there is nothing to receive
            running[receiver] = name, process
        for receiver in [one for one in wait(list(running)) if isinstance(one, Connection)]:
            name, process = running.pop(receiver)
            try:
                line = receiver.recv()
            except EOFError:
                line = None
            process.join()
            if line is None:
                print(f"{name}: crashed with exit code {process.exitcode}", file=sys.stderr, flush=True)
            yield name, line


def rounded(operator: judge.Operator, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The reference in float64, in the dtypes of PyTorch's result."""
    result = operator.baseline(*inputs, **options)
    exact = in_float64(partial(operator.pure, **options), inputs)
    made = tuple(r.new_empty(r.shape).copy_(x) for r, x in zip(as_tuple(result), exact, strict=True))
    return made if isinstance(result, tuple) else made[0]


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
    parser.add_argument("--jobs", type=int, default=1, help="how many operators at a time (1)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    judge.prepare()
    torch.set_num_threads(1)  # small tensors gain nothing by more, and other operators have the cores
    known = files()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no shipped operator is called {', '.join(unknown)}")
    found = {name: line for name, line in rows().items() if name in known}
    names = options.names or [n for n in known if not (options.missing and n in found)]
    crashed = False
    for name, line in looked_at({name: known[name] for name in names}, options.jobs):
        found.pop(name, None)
        if line is None:
            crashed = True
        else:
            found[name] = line
            print(line, flush=True)
        write_atomic(DOCUMENT, page(found))
    write_atomic(DOCUMENT, page(found))  # an operator that is no more leaves no line
    return int(crashed or bool(untold(found, sums=False)))


if __name__ == "__main__":
    sys.exit(main())

"""One problem, in a process of its own.

With several cores, forks compile for the small shapes and judge them while this process has torch.compile prepare its
part. The answer is written again after each stage, so that what a time limit cuts short is known up to there. Before
the stages that want the device for themselves it waits for its turn.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernelgen import generation
from kernelgen.errors import KernelgenError
from kernelgen.export import export_kernelbench
from kernelgen.files import write_atomic
from kernelgen.importer import Imported, import_file, naming
from kernelgen.kernelbench import rounds, shared
from kernelgen.kernelbench.asked import DTYPE, Asked
from kernelgen.kernelbench.turns import READY
from kernelgen.spec import load_spec

JUDGES = 1
"""So many forks judge on a GPU beside this process, and the others compile: a GPU runs one process at a time, so that
more of them wait for one another."""
TIME_CAP_S = 2.0
"""For each opponent: these shapes take milliseconds, of which this is hundreds of samples."""
BLOCKS = 5
"""So many at first, and up to four times as many where they leave the interval wide: launches that long scatter little,
and filling and freeing their memory takes as long as timing them."""


class Problem:
    """The stages of one problem; each adds what it found to `answer`."""

    def __init__(self, file: Path, out: Path, answer: Path, asked: Asked, cores: int, turn: Connection) -> None:
        self.file, self.out, self._path, self.asked, self.cores = file, out, answer, asked, cores
        self._turn = turn
        self.answer: dict[str, Any] = {"imported": False, "generated": False, "reason": "", "stage": "import"}
        self.answer["stage_s"] = {}
        self._began = time.monotonic()
        self._save()

    def _save(self) -> None:
        write_atomic(self._path, json.dumps(self.answer))

    def _stage(self, name: str) -> None:
        """The next stage; the journal keeps how many seconds every one took."""
        now = time.monotonic()
        self.answer["stage_s"][self.answer["stage"]] = round(now - self._began, 2)
        self._began = now
        self.answer["stage"] = name
        self._save()

    def run(self) -> None:
        """All stages; a refusal ends them and is the answer's reason."""
        from kernelgen import judge

        try:
            found = import_file(self.file, name_of(self.file), forks=True)  # first: nothing has asked for a GPU
            judge.prepare()
            spec = self._generated(found)
        except KernelgenError as error:
            self.answer["reason"] = str(error).splitlines()[0]
            self._save()
            return
        device = judge.device.find()
        ahead = rounds.begun(self.out, spec.name, self.asked.rounds, DTYPE) if self.asked.rounds else None
        sys.path.insert(0, str(self.out / "operators" / spec.folder))
        importlib.import_module(f"{spec.name}_accuracy")
        judging = partial(self._small, spec.name, device, shared.Queue())
        compiling = partial(self._small_compiled, spec.name, device, shared.Queue())
        on_gpu = device == "cuda"
        judges = min(self.cores - 1, JUDGES if on_gpu else self.cores)
        compilers = max(1, self.cores - 1 - judges) if on_gpu else 0  # what judges waits for its turn on the GPU, too
        begun = shared.begin([judging] * judges, self._path.parent)
        helpers = shared.begin([compiling] * compilers, self._path.parent / "compiling")
        if device == "cuda":
            self._compile_opponents(spec.name)
        self._stage("accuracy")
        verdicts = itertools.chain(judging(), shared.ended(begun))
        self._count("accuracy", len(self._small_cases(spec.name, device)), verdicts, self.answer)
        shared.end(helpers)
        if device == "cuda":
            self._stage(READY)
            self._turn.recv()
            self._at_its_shapes(spec.name, self.answer)
        if ahead is not None and not self.answer["accuracy"]["failed"]:
            self._optimized(spec, ahead)
        elif ahead is not None:
            rounds.left(ahead)
        self._stage("done")

    def _small(self, name: str, device: str, queue: shared.Queue) -> Iterator[shared.Verdict]:
        """What those cases of small shapes come to that no other process takes."""
        operator, cases = sys.modules[f"{name}_accuracy"].OPERATOR, self._small_cases(name, device)
        own = (cases[number] for number in queue.taken(len(cases)))
        return shared.judged(operator, own, device, 3 if device == "cuda" else 1)

    def _small_compiled(self, name: str, device: str, queue: shared.Queue) -> Iterator[shared.Verdict]:
        """What those cases launch, each compiled by one process."""
        operator, cases = sys.modules[f"{name}_accuracy"].OPERATOR, self._small_cases(name, device)
        return shared.compiled(operator, (cases[number] for number in queue.taken(len(cases))))

    def _small_cases(self, name: str, device: str) -> list[Any]:
        from kernelgen import judge

        accuracy = sys.modules[f"{name}_accuracy"]
        cases = _of(self.asked.dtypes, accuracy.CASES)
        if device == "cuda":
            cases += judge.hidden_cases(accuracy.OPERATOR, cases, device, large=False)
        return cases

    def _compile_opponents(self, name: str) -> None:
        """By torch.compile, before the turn on the device: it takes seconds, most of them on the host."""
        from kernelgen.judge.performance import compile_ahead

        self._stage("torch.compile")
        performance = importlib.import_module(f"{name}_performance")
        for case in _of((DTYPE,), performance.CASES):
            compile_ahead(performance.OPERATOR, case)

    def _at_its_shapes(self, name: str, found: dict[str, Any]) -> None:
        """Right at its own shapes, and then timed; one problem at a time, since some fill the device's memory."""
        performance = importlib.import_module(f"{name}_performance")
        self._stage("its own shapes, KernelBench's tolerance")
        self._within_tolerance(name, found)
        self._stage("its own shapes, our tolerance")
        cases = _of((DTYPE,), performance.CASES)
        verdicts = shared.judged(performance.OPERATOR, cases, "cuda", 1)
        self._count("accuracy_at_its_shapes", len(cases), verdicts, found)
        if not found["accuracy_at_its_shapes"]["failed"]:
            self._stage("performance")
            self._timed(performance, found)

    def _optimized(self, spec: Any, ahead: rounds.Rounds) -> None:
        """Rounds, and what the kernel that they leave comes to."""
        from kernelgen import judge

        self._stage("optimize")
        found = self.answer["optimized"] = rounds.played(ahead)
        self._save()
        if not found["kept"] or judge.device.find() != "cuda":
            return
        self._exported(spec)
        for part in ("triton", "accuracy", "performance"):  # in the order in which they import one another
            importlib.reload(importlib.import_module(f"{spec.name}_{part}"))
        self._at_its_shapes(spec.name, found)

    def _generated(self, found: Imported) -> Any:
        path = self.out / f"{found.name}.yaml"
        text, notes = found.text, list(found.notes)
        if self.asked.precision:
            text, left_out = generation.with_precision(text, path.name, self.asked.precision)
            notes += [left_out] if left_out else []
        write_atomic(path, text)
        self.answer |= {"imported": True, "operator": found.name, "notes": notes}
        self._stage("new")
        spec = load_spec(path)
        generation.new(spec, self.out / "operators", force=True)
        self._exported(spec)
        self.answer["generated"] = True
        return spec

    def _exported(self, spec: Any) -> None:
        folder = self.out / "operators" / spec.folder
        export_kernelbench(spec, folder, self.out / "kernelbench" / f"{spec.name}.py", force=True)

    def _count(self, key: str, cases: int, verdicts: Iterable[shared.Verdict], found: dict[str, Any]) -> None:
        """How many cases are right; the count is kept up while they run."""
        counts: dict[str, Any] = {"cases": cases, "passed": 0, "failed": 0, "left_out": 0}
        counts |= {"first_failure": "", "first_left_out": ""}
        found[key] = counts
        for verdict in verdicts:
            if verdict.left_out:
                counts["left_out"] += 1
                counts["first_left_out"] = counts["first_left_out"] or f"{verdict.label}: {verdict.left_out}"
            elif verdict.passed:
                counts["passed"] += 1
            else:
                counts["failed"] += 1
                counts["first_failure"] = counts["first_failure"] or f"{verdict.label}: {verdict.message}"
            self._save()

    def _within_tolerance(self, name: str, found: dict[str, Any]) -> None:
        from kernelgen.kernelbench.tolerance import compare

        exported = self.out / "kernelbench" / f"{name}.py"
        found["kernelbench"] = {DTYPE: compare(self.file, exported, DTYPE)}
        self._save()

    def _timed(self, performance: Any, found: dict[str, Any]) -> None:
        from kernelgen import devices, judge

        rows = found["performance"] = []
        for case in _of((DTYPE,), performance.CASES):
            with devices.alone(devices.find("cuda")):
                report = judge.performance_case(
                    performance.OPERATOR, case, ["eager", "compile"], time_cap_s=TIME_CAP_S, blocks=BLOCKS, check=False
                )
            against = {
                key: {"speedup": c.speedup, "low": c.low, "high": c.high, "verdict": c.verdict, "us": c.a_us}
                for key, c in report.comparisons.items()
            }
            rows.append(
                {
                    "case": case.label, "kernel_us": report.kernel_us, "floor_us": report.floor_us,
                    "message": report.message or report.left_out or "; ".join(report.notes), "against": against,
                }
            )  # fmt: skip
            self._save()


def name_of(file: Path) -> str | None:
    """With its number where another problem of the folder would be the same operator; None for the usual name. They may
    be at work at the same time."""
    usual = {f: naming.operator_name(f) for f in sorted(file.parent.glob("*.py"))}
    counts = Counter(usual.values())
    taken = {name for name, count in counts.items() if count == 1}
    for other, name in usual.items():
        if name and counts[name] > 1:
            number = re.match(r"\d+", other.name)
            found = naming.unique(f"{name}_{number[0]}" if number else name, taken)
            if other == file:
                return found
            taken.add(found)
    return None


def _of(dtypes: Sequence[str], cases: Sequence[Any]) -> list[Any]:
    """The cases in one of these dtypes, or all where there is none or none is asked for."""
    return [case for case in cases if not case.dtypes or set(dtypes) & set(case.dtypes.values())] or list(cases)


def main(file: Path, out: Path, answer: Path, asked: Asked, cores: int, turn: Connection) -> None:
    """`turn`: where it hears that it has the device for itself."""
    # Triton's default, in which forks compile: torch.compile would choose another folder
    home = Path(os.environ.get("TRITON_HOME", "~")).expanduser()
    os.environ.setdefault("TRITON_CACHE_DIR", str(home / ".triton/cache"))
    problem = Problem(file, out, answer, asked, cores, turn)
    _guarded(problem.run, problem)


def _guarded(action: Callable[[], None], problem: Problem) -> None:
    """A fault of ours is an answer too: it must not end the other problems."""
    try:
        action()
    except Exception as error:
        traceback.print_exc()
        problem.answer["reason"] = (
            f"{type(error).__name__} in {problem.answer['stage']}: {str(error).split(chr(10))[0]}"
        )
        problem.answer["fault"] = True
        problem._save()

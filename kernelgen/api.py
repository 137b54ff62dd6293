"""The Python API: `import kernelgen`, then these functions by their names.

Paths are relative to the working folder, as on the command line. Mistakes are raised as
`kernelgen.errors.KernelgenError`.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelgen.errors import UsageError, WrongOrSlowError
from kernelgen.spec.model import OperatorSpec

if TYPE_CHECKING:
    from kernelgen.generation import Written
    from kernelgen.optimization import Reporter, RunResult

OPERATORS, LOGS = Path("operators"), Path("logs")


@dataclass(frozen=True)
class CaseAccuracy:
    """One accuracy case."""

    case: str
    passed: bool
    message: str
    """Why it failed, or what is to be said of a pass."""
    left_out: str
    """Why it was not run; empty where it was."""
    max_error: float
    """Largest absolute error against the reference in float64."""
    eager_error: float
    """PyTorch's own."""
    bound_share: float
    """Largest error over the bound of its element: at most 1 in a pass."""
    relative_error: float
    l2_error: float
    peak_bytes: int | None
    """None without a GPU."""


@dataclass(frozen=True)
class Accuracy:
    """What an operator's accuracy test found."""

    operator: str
    device: str
    passed: bool
    cases: tuple[CaseAccuracy, ...]


@dataclass(frozen=True)
class CaseSpeed:
    """One performance case, measured."""

    case: str
    kernel_us: float
    speedups: dict[str, tuple[float, float, float]]
    """Over eager and torch.compile: the estimate and its 95 % interval."""


@dataclass(frozen=True)
class Speed:
    """What an operator's performance test measured."""

    operator: str
    measured: bool
    """False without a GPU: nothing was timed."""
    cases: tuple[CaseSpeed, ...]


def load_spec(spec: str | Path) -> OperatorSpec:
    """The spec in a file, or the shipped one of a name. Raises SpecError with every mistake in it."""
    from kernelgen.spec import find_spec
    from kernelgen.spec import load_spec as load

    return load(find_spec(str(spec))[0])


def generate(spec: OperatorSpec | str | Path, *, operators: Path = OPERATORS, force: bool = False) -> Written:
    """Write the quartet and definition.md; says what was written and what changed. Nothing is run: see `check`.

    Raises HandEditedError for files that a person changed, unless `force`.
    """
    from kernelgen import generation

    return generation.new(_spec(spec), operators, force=force)


def check(
    operator: str, *, operators: Path = OPERATORS, device: str | None = None, only: Sequence[str] = ()
) -> Accuracy:
    """Run the accuracy test in a process of its own. `device`: `cpu` runs it in Triton's interpreter."""
    found = _tested("accuracy", operator, operators, device, only)
    cases = [
        CaseAccuracy(
            c["case"]["label"],
            c["passed"],
            c["message"],
            c["left_out"],
            float(c["max_error"]),
            float(c["eager_error"]),
            float(c["bound_share"]),
            float(c["relative_error"]),
            float(c["l2_error"]),
            c["peak_bytes"],
        )
        for c in found["cases"]
    ]
    return Accuracy(found["operator"], found["device"], found["exit_code"] == 0, tuple(cases))


def bench(operator: str, *, operators: Path = OPERATORS, only: Sequence[str] = ()) -> Speed:
    """Run the performance test in a process of its own: paired times against eager and torch.compile."""
    found = _tested("performance", operator, operators, None, only)
    cases = [
        CaseSpeed(
            c["case"]["label"],
            next(one["b_us"] for one in c["comparisons"].values()),
            {name: (one["speedup"], one["low"], one["high"]) for name, one in c["comparisons"].items()},
        )
        for c in (found["cases"] if found["measured"] else ())
        if c["comparisons"]
    ]
    return Speed(found["operator"], found["measured"], tuple(cases))


def optimize(
    spec: OperatorSpec | str | Path,
    *,
    rounds: int | None = None,
    candidates: int | None = None,
    strategies: Sequence[str] = (),
    max_minutes: float | None = None,
    device: str | None = None,
    arch: str | None = None,
    operators: Path = OPERATORS,
    logs: Path = LOGS,
    force: bool = False,
    reporter: Reporter | None = None,
) -> RunResult:
    """Make an operator's kernel faster, in rounds; generates it where there is none, and resumes an interrupted run.

    Without a GPU every figure is predicted. `reporter` is told of rounds and candidates as they go.
    """
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.devices import find
    from kernelgen.evaluate import evaluator
    from kernelgen.optimization import Options
    from kernelgen.optimization import optimize as play

    here, written = find(device, arch), _spec(spec)
    chip, folder = generation.chip_of(here), generation.folder_of(written, operators)
    if not (folder / f"{written.name}_triton.py").is_file():
        generation.new(written, operators, force=force, chip=chip)
    plan = generation.plan_of(written, operators, chip)
    if strategies:
        plan = replace(plan, spec=replace(written, optimization_strategies=tuple(strategies)))
    options = Options(operators, logs, rounds or written.max_rounds, max_minutes=max_minutes, force=force)
    options = replace(options, candidates=candidates) if candidates else options
    return play(plan, here, lambda store: evaluator(here, plan, folder, store, partial(work, plan)), options, reporter)


def op(operator: str, *, operators: Path = OPERATORS) -> Callable[..., Any]:
    """A generated operator's function, such as `kernelgen.op("softmax")(x)`.

    Without a GPU it runs in Triton's interpreter, on tensors of the CPU: right, and slow.
    """
    from kernelgen import judge

    file = _file(operator, operators, "triton")
    judge.prepare()  # without a GPU this selects the interpreter; it must run before the kernel is imported
    made = importlib.util.spec_from_file_location(file.stem, file)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    found: Callable[..., Any] = vars(module)[file.stem.removesuffix("_triton")]
    return found


def _spec(spec: OperatorSpec | str | Path) -> OperatorSpec:
    return spec if isinstance(spec, OperatorSpec) else load_spec(spec)


def _file(operator: str, operators: Path, kind: str) -> Path:
    from kernelgen.cli.names import find_quartet

    return find_quartet(operator, operators).file(kind)


def _tested(kind: str, operator: str, operators: Path, device: str | None, only: Sequence[str]) -> dict[str, Any]:
    """The document of one of the operator's tests."""
    from kernelgen.cli.measure import run_test

    test = _file(operator, operators, kind)
    arguments = [str(test), "--json", *(f"--only={text}" for text in only)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as progress:
        code = run_test(str(test), arguments, device, out, progress)
        out.seek(0)
        progress.seek(0)
        text, last = out.read().strip(), progress.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    if not text:
        failure = UsageError if code == UsageError.exit_code else WrongOrSlowError
        raise failure(f"{test}: {last.removeprefix('error: ') or f'ended with {code}'}")
    found: dict[str, Any] = json.loads(text)
    return found

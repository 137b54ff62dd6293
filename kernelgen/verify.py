"""What `new` has seen of the files that it is about to write: a case run, kernels compiled; nothing is claimed beyond.

A confined process starts while the reference is traced. Its children run the smallest accuracy case in Triton's
interpreter, and compile kernels for a GPU that need not be here, of every variant that the schedule table has at least
one. What does not fit its time is said to be left out.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

from kernelgen import families
from kernelgen.devices import Device, cache_folder, find
from kernelgen.errors import Mistake, NoDeviceError
from kernelgen.files import write_atomic
from kernelgen.generation import Made
from kernelgen.outcomes import Status
from kernelgen.plan import ChoicesPlan, LoweredPlan, Plan, TableRow, WrittenPlan, at
from kernelgen.schedule.problem import limits_text
from kernelgen.spec.cases import admits
from kernelgen.spec.cases import label as label_of
from kernelgen.spec.model import ELLIPSIS, Case, OperatorSpec, SizeValue
from kernelgen.worker import private
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.confine import Confinement

LIMIT_S = 5.0
"""For running and for compiling, side by side, all files of a command together. Most take one or two seconds."""
ENOUGH_S = 1.0
"""Beyond these no schedule is begun to be compiled of whose variant one was."""
_AT_ONCE = 2
"""Kernels that are compiled side by side: as many cores as nearly every machine has."""
FEW = 2
"""Elements below which a case says little."""
MOST = 1 << 20
"""Elements beyond which a case is not run: the interpreter takes seconds."""


@dataclass(frozen=True)
class Verified:
    """What was seen of the files, in words."""

    ran: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    arch: str = ""
    left_out: tuple[str, ...] = ()
    """What was not run or not compiled, and why."""
    faults: tuple[str, ...] = ()
    """What is wrong with the files."""
    refused: tuple[Mistake, ...] = ()
    """Listed shapes that the reference does not take."""


@contextmanager
def verifying(device: Device) -> Iterator[Callable[[Sequence[Made]], Verified]]:
    """A function that looks at files before they are written; its process starts at once and ends with the block.

    `device`: what is compiled for. Raises UsageError where no scratch folder can be made.
    """
    scratch = private.make(cache_folder() / "work")
    staged = Path(tempfile.mkdtemp(prefix="kernelgen-"))
    compiles = device.family == "gpu"  # beside an NPU Triton may lack what compiling for a GPU takes
    # a GPU that is here must not be seen: the judge would take it
    extra = {"CUDA_VISIBLE_DEVICES": ""} if compiles else dict(find("cpu").environment)
    environment = {**private.variables(scratch), "OMP_NUM_THREADS": "1", **extra}
    allowed = Confinement((str(staged),), (str(scratch),))
    worker = Worker("verify" if compiles else "interpret", environment, scratch / "cwd", allowed)
    pool = ThreadPoolExecutor(2, thread_name_prefix="kernelgen-verify")
    start = pool.submit(worker.start)

    def verify(made: Sequence[Made]) -> Verified:
        for spec, _, files in made:
            for name, text in files.items():
                write_atomic(staged / spec.name / name, text)
        running = pool.submit(_once_started, start, _run, worker, made, staged)
        compiling = pool.submit(_once_started, start, _compile, worker, made, staged, device)
        ran, compiled = running.result(), compiling.result()
        left_out, faults = (*ran.left_out, *compiled.left_out), (*ran.faults, *compiled.faults)
        return Verified(ran.done, compiled.done, device.arch, left_out, faults, ran.refused)

    try:
        yield verify
    finally:
        worker.close()
        pool.shutdown()
        private.remove(scratch)
        shutil.rmtree(staged, ignore_errors=True)


@dataclass(frozen=True)
class _Found:
    """What a worker finds."""

    done: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    refused: tuple[Mistake, ...] = ()


def _once_started(start: Future[None], work: Callable[..., _Found], *arguments: object) -> _Found:
    """What a worker finds; all is left out where it does not start."""
    try:
        start.result()
    except NoDeviceError as error:
        return _Found(left_out=(f"not {'run' if work is _run else 'compiled'}: {error}",))
    return work(*arguments)


def _run(worker: Worker, made: Sequence[Made], staged: Path) -> _Found:
    """The smallest case of every operator in Triton's interpreter, of one with options in every way of calling it,
    judged as `check` judges it."""
    ends = time.monotonic() + LIMIT_S
    ran: list[str] = []
    left_out: list[str] = []
    wrong: list[str] = []
    refused: list[Mistake] = []
    for spec, plan, case in [(spec, one, case) for spec, one, _ in made for case in _smallest(one)]:
        if plan.chip is not None or case is None:
            why = (
                f"made for {plan.chip.name}" if plan.chip is not None else "every case is too large for the interpreter"
            )
            left_out.append(f"not run: {spec.name}: {why}; use `kernelgen check {spec.name}`")
            continue
        label = f"{spec.name} [{case.label}]"
        request = {**_paths(spec, staged), "folder": str(staged / spec.name), "case": case.to_json()}
        try:
            report = worker.call("accuracy", request, _left(ends))
        except Failed as error:
            (wrong if _is_fault(error) else left_out).append(_said(label, "not run", error))
            continue
        if report["left_out"]:
            left_out.append(f"not run: {label}: {report['left_out']}")
        elif report["refused"]:
            said = f"{case.label}: {report['message']} (list other sizes)"
            refused.append(Mistake(spec.path, case.place.line, case.place.column, said))
        else:
            (ran if report["passed"] else wrong).append(label if report["passed"] else f"{label}: {report['message']}")
    return _Found(tuple(ran), tuple(left_out), tuple(wrong), tuple(refused))


@dataclass(frozen=True)
class _Line:
    """A line of a schedule table that is to be compiled, with a case that it serves."""

    spec: OperatorSpec
    plan: Plan
    case: Case
    needed: bool
    """No other line of its variant has larger blocks."""


def _lines(spec: OperatorSpec, plan: Plan) -> list[_Line]:
    """The lines of a table that some case reaches, in its order."""
    if isinstance(plan, WrittenPlan):
        return [_Line(spec, plan, case, needed=True) for case in covering(plan)]
    plans = {case: at(plan, case) for case in covering(plan)}
    schedules = {case: one.table[families.row_of(one, case)].schedule for case, one in plans.items()}

    def size(case: Case) -> int:
        return prod(int(v) for name, v in schedules[case].values if name.startswith("BLOCK"))

    largest = {(plans[case].spec.name, schedules[case].variant): case for case in sorted(schedules, key=size)}
    return [_Line(spec, plan, case, needed=case in largest.values()) for case in schedules]


def _compile(worker: Worker, made: Sequence[Made], staged: Path, device: Device) -> _Found:
    """The kernels of schedule tables, compiled for a GPU that has room for them or not: of every variant the line with
    the largest blocks, and of what is left as many as are begun in ENOUGH_S."""
    begun = time.monotonic()
    left_out: list[str] = []
    wrong: list[str] = []
    lines: list[_Line] = []
    for spec, plan, _ in made:
        if plan.chip is not None or device.family != "gpu":
            left_out.append(f"not compiled: {spec.name}; use `kernelgen check {spec.name} --target {device.arch}`")
        else:
            lines += _lines(spec, plan)

    def one(line: _Line) -> Failed | Literal["done", "not begun"]:
        if not line.needed and time.monotonic() > begun + ENOUGH_S:
            return "not begun"
        shapes = [line.case.argument(t) for t in line.spec.inputs]
        cases = [{"label": line.case.label, "inputs": shapes}]
        request = {"path": _paths(line.spec, staged)["path"], "function": line.spec.name, "device": asdict(device.gpu)}
        try:
            worker.call("compile", {**request, "cases": cases}, _left(begun + LIMIT_S))
        except Failed as error:
            return error
        return "done"

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kernelgen-compile") as pool:
        order = sorted(range(len(lines)), key=lambda n: not lines[n].needed)
        answers = {n: pool.submit(one, lines[n]) for n in order}
    became = Counter[tuple[str, str]]()
    for n, line in enumerate(lines):
        found = answers[n].result()
        if isinstance(found, Failed) and found.status is not Status.TIMEOUT:
            said = _said(f"{line.spec.name} [{line.case.label}]{_line(line.plan, line.case)}", "not compiled", found)
            (wrong if _is_fault(found) else left_out).append(said)
        else:
            became[line.spec.name, found if isinstance(found, str) else "late"] += 1
    compiled: list[str] = []
    for name, count in {line.spec.name: _schedules(line.plan) for line in lines}.items():
        if done := became[name, "done"]:
            compiled.append(f"{name} ({done} of {count} schedules)")
        whys = {
            "late": f"did not finish within {LIMIT_S:g} s",
            "not begun": "use a variant of which another schedule was compiled",
        }
        for state, why in whys.items():
            if some := became[name, state]:
                said = f"not compiled: {name}: {some} of {count} schedules {why}"
                left_out.append(f"{said}; use `kernelgen check {name}`")
    return _Found(tuple(compiled), tuple(left_out), tuple(wrong))


def _schedules(plan: Plan) -> int:
    """The lines of all schedule tables that are tuned."""
    plans = [one.plan for one in plan.alternatives] if isinstance(plan, ChoicesPlan) else [plan]
    return sum(len(one.table) for one in plans)


def _paths(spec: OperatorSpec, staged: Path) -> dict[str, object]:
    return {"name": spec.name, "path": str(staged / spec.name / f"{spec.name}_triton.py")}


def _left(ends: float) -> float:
    """The seconds that are left; too few for anything where they are over."""
    return max(ends - time.monotonic(), 0.001)


_FAULTS = ("CompilationError", "PTXASError", "NameError", "UnboundLocalError", "TypeError", "SyntaxError")
"""Exceptions that a right file does not raise."""


def _is_fault(error: Failed) -> bool:
    """Whether it says that a kernel is wrong, and not that there was no time or memory for it."""
    if error.status in (Status.TIMEOUT, Status.OUT_OF_MEMORY):
        return False
    return error.status in (Status.INCORRECT, Status.LAUNCH_ERROR) or any(name in error.message for name in _FAULTS)


def _said(label: str, what: str, error: Failed) -> str:
    if _is_fault(error):
        return f"{label}: {error.message[:300]}"
    why = f"did not finish within {LIMIT_S:g} s" if error.status is Status.TIMEOUT else error.message[:300]
    return f"{what}: {label}: {why}; use `kernelgen check {label.partition(' ')[0]}`"


def _smallest(plan: Plan) -> list[Case | None]:
    """The smallest case that says something, of every way of calling; None where all are too large."""
    spec, found = plan.spec, list[Case | None]()
    chosen_by: dict[str, list[Case]] = {}
    for case in spec.accuracy:
        name = spec.name if isinstance(plan, WrittenPlan) else at(plan, case).spec.name
        chosen_by.setdefault(name, []).append(case)
    for cases in chosen_by.values():
        sizes = [max(prod(case.shape(t.shape)) for t in (*spec.inputs, *spec.outputs)) for case in cases]
        fit = sorted((n, i) for i, n in enumerate(sizes) if 0 < n <= MOST)
        chosen = next((i for n, i in fit if n >= FEW), fit[-1][1] if fit else None)
        found.append(None if chosen is None else cases[chosen])
    return found


def covering(plan: Plan) -> list[Case]:
    """A case for each line of the schedule table: those that are timed first, then what else is listed, then a listed
    case with sizes at the limits of a line, or just beyond, that none of them reaches."""
    if isinstance(plan, WrittenPlan):
        return list(plan.spec.performance[:1])
    listed = (*plan.spec.performance, *plan.spec.accuracy)
    found: dict[tuple[str, int], Case] = {}
    for case in (*listed, *(c for row in plan.table for c in _at_limits(plan, row, listed))):
        one = at(plan, case)
        found.setdefault((one.spec.name, families.row_of(one, case)), case)
    return list(found.values())


def _at_limits(plan: LoweredPlan, row: TableRow, listed: Sequence[Case]) -> Iterator[Case]:
    """Listed cases in which the sizes that a row limits are as large as it serves, and with one of them just beyond,
    which a later row serves."""
    factors = {named.name: named.factors for named in families.named_sizes(plan)}
    for case in listed:
        sizes, most = dict(case.sizes), dict[str, int]()
        for name, limit in row.upto:
            free = next((f for f in factors[name] if isinstance(f, str) and f in sizes), None)
            if free is not None:
                sizes[free] = _as_size(free, 1)
                each = families.problem_of(plan, replace(case, sizes=tuple(sizes.items())))[name]
                if not 0 < each <= limit:  # its other sizes alone are more
                    break
                most[free] = limit // each
                sizes[free] = _as_size(free, most[free])
        else:
            yield from _admitted(plan, case, sizes)
            for free, count in most.items():
                yield from _admitted(plan, case, sizes | {free: _as_size(free, count + 1)})


def _as_size(name: str, value: int) -> SizeValue:
    return (value,) if name == ELLIPSIS else value


def _admitted(plan: LoweredPlan, case: Case, sizes: dict[str, SizeValue]) -> Iterator[Case]:
    """The case with other sizes, if the spec takes them."""
    found = tuple(sizes.items())
    if admits(plan.spec, found):
        yield Case(found, case.dtypes, label_of(found, case.dtypes, case.given), True, case.given)


def _line(plan: Plan, case: Case) -> str:
    """Which line of the schedule table serves a case, where there are several."""
    if isinstance(plan, WrittenPlan) or len(plan.table) < 2:
        return ""
    row = families.row_of(plan, case)
    limits = limits_text(plan.table[row]) or "whatever is left"
    return f", line {row + 1} of SCHEDULES ({limits}: {plan.table[row].schedule})"

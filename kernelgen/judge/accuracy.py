"""Is a kernel right on one case? Several trials with secret inputs."""

from __future__ import annotations

import math
import time
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import device as devices
from . import inputs, memory, patience, trial
from .inputs import DISTRIBUTIONS, TIES
from .model import Case, CaseReport, Function, Operator, Trial
from .mutants import Suite

HEAVY_ELEMENTS = {"cuda": 2**27, "cpu": 2**14}
"""Cases with more elements in all get as many trials as seeds were asked for; smaller ones all distributions."""

HUGE_ELEMENTS = 2**31
"""A case of this size is there for its offsets: one trial. So has one that takes the interpreter long."""


def accuracy_case(
    operator: Operator,
    case: Case,
    *,
    device: str | None = None,
    seed: int | None = None,
    seeds: int = 3,
    kernel: Function | None = None,
    distributions: Sequence[str] = DISTRIBUTIONS,
    verbose: bool = False,
    mutants: bool = True,
) -> CaseReport:
    """Judge the operator's kernel, or another callable in its place, on one case.

    `seed` repeats an earlier report; without it the inputs come from a secret seed.
    `verbose` also locates the worst element where a trial passes.
    `mutants`: find out as well, in cases that the spec lists and with their sizes, which wrong results would pass.
    """
    device, operator = device or devices.find(), operator.at(case)
    seed = inputs.secret_seed() if seed is None else seed
    ran = memory.shrunken(operator, case, device)
    run_as = "" if ran is case else replace(ran, label="").label
    if left_out := memory.accuracy_left_out(operator, ran, device):
        return CaseReport(case, passed=True, left_out=left_out, seed=seed)
    begin = time.perf_counter()
    trials: list[Trial] = []
    suite = Suite() if mutants and not case.hidden and not run_as else None
    taken = operator.taking(kernel) if kernel else operator.kernel
    settings = (
        # the interpreter is slow and runs programs one by one: two calls differ only by memory left uninitialised
        trial.Setting(operator, ran, taken, device, *inputs_of, verbose,
                      repeat=device == "cuda" or not trials, first=not trials, suite=suite)
        for inputs_of in _planned(operator, ran, seeds, seed, device, distributions, trials)
    )  # fmt: skip
    passed, message, left_out, refused = _try(settings, trials, case.hidden or case.derived, run_as)
    passed = passed or bool(left_out)
    return CaseReport(
        case,
        passed,
        message or next((t.remark for t in trials if t.remark), ""),
        max((t.max_error for t in trials), default=0.0),
        max((t.eager_error for t in trials), default=0.0),
        max((t.bound_share for t in trials), default=0.0),
        max((t.relative_error for t in trials), default=0.0),
        max((t.l2_error for t in trials), default=0.0),
        max((t.peak_bytes for t in trials if t.peak_bytes is not None), default=None),
        tuple(trials),
        left_out,
        run_as,
        fatal=any(t.fatal for t in trials) or (bool(left_out) and devices.is_lost(device)),
        refused=refused and not passed,
        seed=seed,
        seconds=time.perf_counter() - begin,
        told=dict(suite.told) if suite else {},
        undiscriminated=tuple(suite.open) if suite and passed else (),
    )


def _try(
    settings: Iterator[trial.Setting], trials: list[Trial], derived: bool, run_as: str
) -> tuple[bool, str, str, bool]:
    """Add trials until one fails: whether the case passes, what is to be said of it, why it is left out, and whether
    the reference does not take it."""
    remarks: list[str] = []
    try:
        for setting in settings:
            try:
                with devices.without_onednn():
                    trials.append(trial.run(setting))
            except trial.UncomputableError as error:
                # what other values allow, as an index that is computed from NaN, is no fault of the reference
                if not trials or devices.is_lost(setting.device):
                    raise
                remarks.append(f"{setting.distribution} inputs left out: {error}")
                continue
            if not trials[-1].passed:
                return False, trials[-1].message, "", False
    except trial.RefusedError as refused:  # right for a derived case, a mistake of the spec for a listed one
        return derived, str(refused), _of_smaller(run_as, refused), True
    except trial.UncomputableError as error:
        return derived, str(error), str(error) if derived else _of_smaller(run_as, error), True
    except (trial.LimitError, trial.NotOnHostError) as limit:
        return True, "", str(limit), False
    except patience.TooLongError as error:
        return True, "", f"time: {error}", False
    except RuntimeError as error:
        if not devices.is_full(error):
            raise
        return True, "", f"ran out of memory: {trial.first_line(error)}", False
    return True, "; ".join(remarks), "", False


def _of_smaller(run_as: str, message: object) -> str:
    """Why a case is left out that is refused, though perhaps not with the sizes that it lists; "" with these."""
    return f"too large for the interpreter, and of {run_as}: {message}" if run_as else ""


def trial_plan(
    operator: Operator, case: Case, seeds: int, seed: int, device: str, distributions: Sequence[str] = DISTRIBUTIONS
) -> list[tuple[str, int]]:
    """Which distributions, each with a seed of its own: all of them, or the first few for a heavy case."""
    elements = sum(math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs))
    if elements > HUGE_ELEMENTS or memory.takes_long(operator, case, device):
        seeds, distributions = 1, distributions[:1]
    count = max(seeds, 1) if elements > HEAVY_ELEMENTS[device] else max(seeds, len(distributions))
    names = [distributions[i] if i < len(distributions) else "normal" for i in range(count)]
    return [(name, inputs.derive_seed(seed, case.label, i)) for i, name in enumerate(names)]


def _planned(
    operator: Operator,
    case: Case,
    seeds: int,
    seed: int,
    device: str,
    distributions: Sequence[str],
    trials: Sequence[Trial],
) -> Iterator[tuple[str, int]]:
    """The plan, and where the trials show that equal elements may decide, as many inputs that are full of them."""
    plan = trial_plan(operator, case, seeds, seed, device, distributions)
    yield from plan
    if len(plan) >= len(TIES) and any(trial.selects for trial in trials):
        yield from ((name, inputs.derive_seed(seed, case.label, name)) for name in TIES)


def assert_accurate(operator: Operator, case: Case) -> None:
    """For pytest: the case must pass; one that does not fit this machine is skipped with its figures."""
    report = accuracy_case(operator, case)
    if report.left_out:
        raise unittest.SkipTest(f"{case.label}: {report.left_out}")
    assert report.passed, f"{case.label}: {report.message} (seed {report.seed})"

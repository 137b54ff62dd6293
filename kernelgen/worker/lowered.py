"""The lowered role: kernels lowered for an NPU that is not here, planned, and run on this CPU from the lowered form."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from kernelgen import judge
from kernelgen.ascend import launches, room_client
from kernelgen.judge import npu
from kernelgen.outcomes import Status
from kernelgen.worker import accuracy, load
from kernelgen.worker.operations import CompileError, classify

# An NPU's torch must not take the place of the simulated tensors that launches are recorded with.
os.environ[npu.VISIBLE] = ""
# The quartet's tests select Triton's interpreter where there is no GPU: here the kernels stay what the compiler takes.
judge.prepare = lambda: "cpu"


def canary() -> dict[str, Any]:
    """Proof of life."""
    return {}


def cases(folder: str, name: str, large: bool) -> dict[str, Any]:
    """The accuracy cases that a CPU takes: no large one, whatever is asked."""
    return accuracy.cases(folder, name, "cpu", False)


def one_case(folder: str, name: str, path: str, target: str, case: dict[str, Any]) -> dict[str, Any]:
    """Judge the lowered form of the candidate in `path` on one case; `runs` is false where this CPU cannot run it."""
    operator = load.quartet(folder, name, "accuracy").OPERATOR
    kernel = launches.on_cpu(load.candidate(path, name), target)
    refused: list[str] = []

    def call(*tensors: Any) -> Any:
        try:
            return kernel(*tensors)
        except (launches.NotRunnable, room_client.RoomError) as error:
            refused.append(str(error))
            raise

    report = accuracy.judged(operator, judge.Case.from_json(case), call)
    return {**report, "runs": not refused, "why": refused[0] if refused else ""}


def plan(path: str, function: str, target: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What the compiler says of every launch of each case.

    A case is {"label", "inputs": [[shape, dtype], ...]}. Returns {"launches": [[label, launch], ...],
    "left_out": [[label, why], ...]}: the wrapper refuses inputs beyond its bounds.
    """
    wrapper = load.candidate(path, function)
    found: list[list[Any]] = []
    left_out: list[list[str]] = []
    for case in cases:
        try:
            made = launches.recorded(wrapper, case["inputs"], target)
        except ValueError as error:
            left_out.append([case["label"], str(error)])
            continue
        except (Exception, SystemExit) as error:
            if classify(error)[0] in (Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY):
                raise
            raise CompileError(f"{case['label']}: {type(error).__name__}: {error}") from error
        found += [[case["label"], _described(launch)] for launch in made]
    return {"launches": found, "left_out": left_out}


def _described(launch: launches.Launch) -> dict[str, Any]:
    constants = dict(launch.request.constants)
    data: dict[str, Any] = {
        "kernel": launch.kernel, "grid": list(launch.grid), "line": launch.line, "elements": launch.elements,
        "types": [kind for _, kind in launch.request.signature if kind.startswith("*")],
        "constants": constants, "options": dict(launch.request.options), "refused": "",
    }  # fmt: skip
    try:
        found = launch.lowered()
    except room_client.RoomError as error:
        return {**data, "refused": str(error), "lowered": None}
    return {**data, "lowered": {**asdict(found), "object": found.object is not None}}


OPERATIONS = {"canary": canary, "accuracy_cases": cases, "accuracy": one_case, "plan": plan}

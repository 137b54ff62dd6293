"""Choosing the evaluator for a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernelgen.analysis import Work
from kernelgen.devices import Device
from kernelgen.evaluate.base import Evaluator, Limits, default_jobs
from kernelgen.evaluate.cpu import CpuEvaluator
from kernelgen.evaluate.crew import Crew
from kernelgen.evaluate.cuda import CudaEvaluator
from kernelgen.evaluate.lowered import LoweredEvaluator
from kernelgen.evaluate.npu import NpuEvaluator, SimulatedEvaluator
from kernelgen.plan import Plan
from kernelgen.spec.model import Case

EVALUATORS: dict[tuple[str, bool, bool], tuple[type[Evaluator], str]] = {
    ("cuda", True, False): (CudaEvaluator, "run"),
    ("cpu", False, False): (CpuEvaluator, "interpret"),
    ("npu", False, False): (LoweredEvaluator, "lowered"),
    ("npu", False, True): (SimulatedEvaluator, "npu"),
    ("npu", True, False): (NpuEvaluator, "npu"),
}
"""By the device's name, whether it measures and is simulated: the evaluator, and the worker that runs kernels."""


def evaluator(
    device: Device,
    plan: Plan,
    quartet: Path,
    store: Path,
    work: Callable[[Case], Work],
    *,
    jobs: int | None = None,
    limits: Limits | None = None,
    crew: Crew | None = None,
) -> Evaluator:
    """An evaluator of the operator whose quartet lies in `quartet`; use it as a context manager.

    `store` is the folder where candidates' sources are kept by hash; `work` says what a case must do at the
    least (`analysis.work` with the plan). No process starts before the first request, but for those of `crew`, which
    are this evaluator's from now on.
    """
    kind, role = _kind(device)
    return kind(
        device, plan, quartet.resolve(), store.resolve(), work, jobs or default_jobs(), limits or Limits(), role, crew
    )


def begins_early(device: Device) -> bool:
    """Whether the processes of its evaluator take long to start, and may do so beside what comes before."""
    return _kind(device)[0].begins_early


def begun(device: Device, quartet: Path) -> Crew:
    """The processes of an evaluator of the operator whose quartet lies in `quartet`, already starting."""
    kind, role = _kind(device)
    crew = kind.crew(device, (quartet.resolve(),), role)
    crew.begin(together=device.shared)
    return crew


def _kind(device: Device) -> tuple[type[Evaluator], str]:
    return EVALUATORS[device.name, device.measures, device.simulated]

"""`kernelgen check --target ascend910b3`: what the Ascend compiler says of an operator's kernels, and whether they are
right when the lowered form is run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelgen.cli.names import Quartet, root_of
from kernelgen.cli.new import load
from kernelgen.cli.terminal import emit, note, wanted
from kernelgen.errors import SpecError, UsageError, WrongOrSlowError

if TYPE_CHECKING:
    from kernelgen.ascend.report import Report
    from kernelgen.devices import Device
    from kernelgen.spec.model import Case, OperatorSpec


@dataclass(frozen=True)
class Chosen:
    """Which cases are looked at, and how."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    planned: frozenset[str] | None = None
    """The labels of the cases that are planned; None: all."""
    judged: frozenset[str] | None = None
    """Those whose accuracy is judged; None: all, and those that the judge derives from them."""


def check_lowered(names: Sequence[str], device: Device, chosen: Chosen, json: bool) -> int:
    """Check operators one after the other; 1 where one is wrong or cannot run on the target."""
    documents: list[dict[str, Any]] = []
    failed = False
    for name in names:
        try:
            report = report_of(name, device, chosen)
        except SpecError as error:
            if len(names) == 1:
                raise
            note(f"error: {name}: {error}")
            documents.append({"operator": name, "error": str(error)})
            failed = True
            continue
        failed = failed or not report.good
        documents.append(asdict(report))
        if not json:
            print("\n".join(report.lines()))
    if json:
        emit(documents if len(documents) != 1 else documents[0])
    return WrongOrSlowError.exit_code if failed else 0


def report_of(name: str, device: Device, chosen: Chosen, root: Path | None = None) -> Report:
    """Generate the quartet for the device where there is none, then plan and judge its kernels; one that is there is
    judged as it is, and where it is stale that is said."""
    from kernelgen import generation
    from kernelgen.ascend import require
    from kernelgen.ascend.report import Report

    require()
    spec = load(name)
    root = root or root_of(device)
    quartet = Quartet(spec.name, root / spec.folder)
    if not quartet.file("triton").is_file():
        generation.new(spec, root, chip=generation.chip_of(device))
        note(f"{spec.name} had no kernel for {device.facts.name} yet; generated in {quartet.folder}")
    else:
        for old in generation.stale(spec, root):
            note(f"{old}; what is there is checked")
    planned, accuracy = _asked(spec, quartet, device, chosen)
    return Report.of(spec.name, str(quartet.file("triton")), device.npu, planned, accuracy)


def _asked(
    spec: OperatorSpec, quartet: Quartet, device: Device, chosen: Chosen
) -> tuple[dict[str, list[tuple[str, Any]]], list[dict[str, Any]]]:
    """What the workers say: every launch of every case, and the accuracy test's cases."""
    cases = [c for c in (*spec.accuracy, *spec.performance) if _wanted(c.label, chosen, chosen.planned)]
    if not cases:
        raise UsageError(f"no case of {spec.name} is left")
    described = [_described(spec, case) for case in _distinct(cases)]
    from kernelgen.worker.client import Failed

    try:
        return _answers(spec, quartet, device, chosen, described)
    except Failed as failure:
        raise WrongOrSlowError(f"{spec.name}: {failure}") from None


def _answers(
    spec: OperatorSpec, quartet: Quartet, device: Device, chosen: Chosen, described: list[dict[str, Any]]
) -> tuple[dict[str, list[tuple[str, Any]]], list[dict[str, Any]]]:
    from kernelgen.worker.judging import Judging

    with Judging(quartet.folder.resolve(), spec.name, device.npu.compiler_target) as judging:
        planned = judging.plan(described)
        accuracy = list(judging.accuracy(lambda label: _wanted(label, chosen, chosen.judged)))
    return planned, accuracy


def _described(spec: OperatorSpec, case: Case) -> dict[str, Any]:
    return {"label": case.label, "inputs": [case.argument(t) for t in spec.inputs]}


def _distinct(cases: Sequence[Case]) -> Iterator[Case]:
    """Each case once; accuracy and performance may list the same."""
    seen = set()
    for case in cases:
        if case.label not in seen:
            seen.add(case.label)
            yield case


def _wanted(label: str, chosen: Chosen, labels: frozenset[str] | None) -> bool:
    if labels is not None and label not in labels:
        return False
    return wanted(label, chosen.only, chosen.skip)

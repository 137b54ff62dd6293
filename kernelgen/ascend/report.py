"""What was found of one operator for one target, as data and as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.ascend.reading import SLOW
from kernelgen.devices import NpuFacts

EVIDENCE = "lowered and planned by the Ascend compiler, run on this CPU from the lowered form; not run on an NPU"


@dataclass(frozen=True)
class Kernel:
    """One kernel with one set of constants and one dtype, over all the cases that launch it."""

    name: str
    types: str
    """Of its first pointer, such as fp16."""
    constants: str
    ub_bytes: int
    l0c_bytes: int
    overlapped: bool
    cases: tuple[str, ...]
    refused: str
    object_message: str
    """Why it cannot be run on the CPU; empty where it can."""

    def line(self, facts: NpuFacts) -> str:
        """One line of the report."""
        what = f"{self.name}  {self.types}  {self.constants}"
        if self.refused:
            return f"  ✗ {what}  refused: {self.refused}"
        l0c = f", L0C {self.l0c_bytes} of {facts.l0c_bytes} B" if self.l0c_bytes else ""
        share = f"UB {self.ub_bytes} of {facts.ub_bytes} B ({self.ub_bytes / facts.ub_bytes:.0%}){l0c}"
        return f"    {what}  {share}" + ("" if self.overlapped else ", one buffer each")


@dataclass(frozen=True)
class Fault:
    """One finding at one line of the generated kernel."""

    kind: str
    line: int
    text: str
    severe: bool


@dataclass(frozen=True)
class Judged:
    """One case of the accuracy test."""

    case: str
    passed: bool
    how: str
    """lowered form, or interpreter: why."""
    message: str
    left_out: str


@dataclass(frozen=True)
class Report:
    """One operator on one target."""

    operator: str
    target: str
    path: str
    kernels: tuple[Kernel, ...]
    faults: tuple[Fault, ...]
    accuracy: tuple[Judged, ...]
    left_out: tuple[tuple[str, str], ...]
    """Cases that the wrapper refuses, each with why."""
    facts: NpuFacts

    @staticmethod
    def of(
        operator: str,
        path: str,
        facts: NpuFacts,
        planned: Mapping[str, Sequence[tuple[str, Any]]],
        accuracy: Sequence[dict[str, Any]],
    ) -> Report:
        """From what the workers said: `planned` as `worker.judging` hands it out."""
        launches = planned["launches"]
        groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for label, launch in launches:
            groups.setdefault(str((launch["kernel"], launch["types"], launch["constants"])), []).append((label, launch))
        kernels = tuple(_kernel([label for label, _ in group], group[0][1]) for group in groups.values())
        found = {
            Fault(f["kind"], f["line"], f["text"], f["kind"] not in SLOW): None
            for _, launch in launches
            if launch["lowered"]
            for f in launch["lowered"]["findings"]
        }
        faults = tuple(sorted(found, key=lambda f: (not f.severe, f.line, f.kind)))
        judged = tuple(Judged(a["label"], a["passed"], a["how"], a["message"], a["left_out"]) for a in accuracy)
        return Report(operator, facts.arch, path, kernels, faults, judged, tuple(planned["left_out"]), facts)

    @property
    def good(self) -> bool:
        """Whether something was looked at and nothing is wrong: slow findings are told, and do not fail."""
        refused = any(kernel.refused for kernel in self.kernels)
        right = all(a.passed for a in self.accuracy)
        return self.looked_at and right and not refused and not any(f.severe for f in self.faults)

    @property
    def looked_at(self) -> bool:
        """Whether a kernel was planned or a case ran; the wrapper may refuse all, and all may be left out."""
        return bool(self.kernels) or any(not a.left_out for a in self.accuracy)

    def lines(self) -> list[str]:
        """The report as it is printed."""
        out = [f"{self.operator} for {self.facts.name}: {EVIDENCE}"]
        out += [kernel.line(self.facts) for kernel in self.kernels]
        out += [f"  {'✗' if f.severe else '!'} {self.path}:{f.line}: {f.kind}: {f.text}" for f in self.faults]
        out += [f"    {case}: refused by the wrapper: {why}" for case, why in self.left_out]
        out += [f"  ✗ {a.case}: {a.message} ({a.how})" for a in self.accuracy if not a.passed]
        if self.accuracy:
            out.append(f"  {self.verdict()}")
        if not self.looked_at:
            out.append("  ✗ nothing was tested: every case was refused or left out")
        return out

    def verdict(self) -> str:
        """The accuracy test in a few words."""
        ran = [a for a in self.accuracy if not a.left_out]
        ways = {how: [a for a in ran if a.how == how] for how in dict.fromkeys(a.how for a in ran)}
        parts = [f"{sum(a.passed for a in some)} of {len(some)} cases right ({how})" for how, some in ways.items()]
        out = len(self.accuracy) - len(ran)
        return "accuracy: " + "; ".join([*parts, *([f"{out} left out"] if out else [])])


def _kernel(labels: Sequence[str], launch: dict[str, Any]) -> Kernel:
    lowered = launch["lowered"]
    constants = " ".join(f"{name}={value}" for name, value in launch["constants"].items() if name.startswith("BLOCK"))
    wanted = launch["options"].get("multibuffer", True)
    return Kernel(
        launch["kernel"], launch["types"][0].lstrip("*") if launch["types"] else "", constants,
        lowered["ub_bytes"] if lowered else 0, lowered["l0c_bytes"] if lowered else 0,
        bool(lowered and wanted and not lowered["multibuffer_dropped"]), tuple(labels), launch["refused"],
        lowered["object_message"] if lowered else "",
    )  # fmt: skip

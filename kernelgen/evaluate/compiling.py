"""Compiling candidates ahead of time, several at once, and knowing what was compiled already."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelgen.devices import Peaks
from kernelgen.evaluate.candidate import Candidate, keep
from kernelgen.outcomes import StaticFacts, Status
from kernelgen.spec.model import Case, OperatorSpec
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.protocol import ProtocolError, facts_from_json


@dataclass(frozen=True)
class Compiled:
    """What is known of one candidate for one case before it runs."""

    facts: tuple[StaticFacts, ...]
    """One a launch."""
    digest: str
    """Equal digests: the same machine code with the same grids and scalars."""


class Compiler:
    """Compiles through the fork server; `compile` may be called from several threads."""

    def __init__(
        self, worker: Worker, spec: OperatorSpec, facts: Peaks, stores: Sequence[Path], limit_s: float
    ) -> None:
        self._worker = worker
        self._spec = spec
        self._facts = facts
        self._stores = stores
        self._limit_s = limit_s
        self._known: dict[tuple[str, str], Compiled] = {}  # by source hash and case label
        self._lock = threading.Lock()

    def compile(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Compiled]:
        """By case label. Raises Failed where it does not compile or could never be launched."""
        with self._lock:
            missing = [case for case in cases if (candidate.source_hash, case.label) not in self._known]
        if missing:
            found = self._ask(candidate, missing)
            with self._lock:
                self._known.update({(candidate.source_hash, label): one for label, one in found.items()})
        with self._lock:
            return {case.label: self._known[candidate.source_hash, case.label] for case in cases}

    def _ask(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Compiled]:
        inputs = self._spec.inputs
        request: dict[str, object] = {
            "path": str(keep(candidate, self._stores)),
            "function": self._spec.name,
            "device": asdict(self._facts),
            "cases": [{"label": case.label, "inputs": [case.argument(t) for t in inputs]} for case in cases],
        }
        result = self._worker.call("compile", request, self._limit_s)
        try:
            facts = [(str(label), facts_from_json(data)) for label, data in result["facts"]]
            digests = {str(label): str(digest) for label, digest in result["digests"]}
            return {
                case.label: Compiled(tuple(f for label, f in facts if label == case.label), digests[case.label])
                for case in cases
            }
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise Failed(Status.CRASHED, f"the compile worker's answer makes no sense: {error}") from None


def facts_of(compiled: dict[str, Compiled]) -> tuple[tuple[str, StaticFacts], ...]:
    """The form that an Evaluation carries."""
    return tuple((label, one) for label, found in compiled.items() for one in found.facts)

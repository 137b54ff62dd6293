"""Planning and judging a quartet for an NPU that is not here, by the workers that can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelgen.ascend import environment
from kernelgen.devices import cache_folder
from kernelgen.worker.client import Failed, Worker

LIMIT_S = 600.0
PLAN_LIMIT_S = 1800.0
LOWERED = "lowered form"


class Judging:
    """A context manager: leaving it ends the workers."""

    def __init__(self, folder: Path, name: str, target: str) -> None:
        self._folder, self._name, self._target = folder, name, target
        scratch = cache_folder() / "work"
        threads = {"OMP_NUM_THREADS": "1"}
        self._lowered = Worker("lowered", {**threads, **environment()}, scratch)
        self._interpreter = Worker("interpret", {**threads, "TRITON_INTERPRET": "1"}, scratch)

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *_: object) -> None:
        self._lowered.close()
        self._interpreter.close()

    @property
    def _path(self) -> str:
        return str(self._folder / f"{self._name}_triton.py")

    def plan(self, cases: Sequence[dict[str, Any]]) -> dict[str, list[tuple[str, Any]]]:
        """`launches`: every launch of every case as the lowered worker describes it; `left_out`: cases that the wrapper
        refuses, each with why. Raises Failed where the wrapper fails otherwise."""
        request: dict[str, object] = {
            "path": self._path, "function": self._name, "target": self._target, "cases": list(cases),
        }  # fmt: skip
        answer = self._lowered.call("plan", request, PLAN_LIMIT_S)
        return {key: [(label, one) for label, one in answer[key]] for key in ("launches", "left_out")}

    def accuracy(self, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
        """The quartet's accuracy cases, each with `how` it was run: from the lowered form, else in the interpreter."""
        own: dict[str, object] = {"folder": str(self._folder), "name": self._name}
        for case in self._lowered.call("accuracy_cases", {**own, "large": False}, LIMIT_S)["cases"]:
            if wanted(case["label"]):
                yield self._one({**own, "path": self._path, "case": case})

    def _one(self, request: dict[str, object]) -> dict[str, Any]:
        try:
            report = self._lowered.call("accuracy", {**request, "target": self._target}, LIMIT_S)
            if report["runs"]:
                return {**report, "how": LOWERED}
            again = self._interpreter.call("accuracy", request, LIMIT_S)
            return {**again, "how": f"interpreter: {report['why']}"}
        except Failed as failure:
            case = request["case"]
            assert isinstance(case, dict)
            return {
                "label": case["label"], "passed": False, "message": str(failure), "left_out": "", "how": LOWERED,
            }  # fmt: skip

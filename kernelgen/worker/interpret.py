"""The interpret role: accuracy on the CPU through Triton's interpreter, which the environment has switched on."""

from __future__ import annotations

from typing import Any

from kernelgen.worker import accuracy


def canary() -> dict[str, Any]:
    """Proof of life."""
    return {}


OPERATIONS = {"canary": canary, "accuracy_cases": accuracy.cases, "accuracy": accuracy.one_case}

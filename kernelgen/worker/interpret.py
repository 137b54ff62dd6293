"""The interpret role: accuracy on the CPU through Triton's interpreter, which the environment has switched on."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kernelgen.judge import npu
from kernelgen.worker import accuracy

os.environ[npu.VISIBLE] = ""  # an NPU that is here is not what this role runs on
importlib.import_module("triton.runtime.jit").mangle_type(0)  # Triton, and Gluon, which a first launch imports: once


def canary() -> dict[str, Any]:
    """Proof of life."""
    return {}


def cases(folder: str, name: str, large: bool) -> dict[str, Any]:
    """The accuracy cases under the interpreter: no large one, whatever is asked."""
    return accuracy.cases(folder, name, "cpu", False)


OPERATIONS = {"canary": canary, "accuracy_cases": cases, "accuracy": accuracy.one_case}

"""The verify role: kernels are compiled for a GPU, and cases run in Triton's interpreter, by one process that has
loaded torch and Triton once. A child is for one request: only where it runs a case does it select the interpreter."""

from __future__ import annotations

import importlib
import os
from typing import Any

import triton
from triton.runtime import cache, jit

from kernelgen import judge
from kernelgen.judge import npu
from kernelgen.worker import accuracy

os.environ[npu.VISIBLE] = ""  # an NPU that is here is not what this role runs on
cache.triton_key = lambda: triton.__version__  # a hash of 460 MB; nothing but this process reads what it has compiled
jit.mangle_type(0)  # imports Gluon, which the first launch of a child would: a third of what a small case takes


def one_case(folder: str, name: str, path: str, case: dict[str, Any]) -> dict[str, Any]:
    """Judge the candidate in `path` on one case, in the interpreter."""
    judge.prepare()
    return accuracy.one_case(folder, name, path, case)


OPERATIONS = {**importlib.import_module("kernelgen.worker.ahead").OPERATIONS, "accuracy": one_case}

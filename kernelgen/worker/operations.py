"""What a worker can be asked to do, by role, and what becomes of an exception."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kernelgen.outcomes import Status
from kernelgen.worker.protocol import MAX_TEXT, Reply, Request, one_line

Operation = Callable[..., dict[str, Any]]

MODULES = {
    "compile": "kernelgen.worker.ahead",
    "interpret": "kernelgen.worker.interpret",
    "lowered": "kernelgen.worker.lowered",
    "run": "kernelgen.worker.gpu",
    "verify": "kernelgen.worker.verify",
    "npu": "kernelgen.worker.npu",
}
"""Each module has OPERATIONS, a table of name to function; importing it makes the process ready for its role. A role
without one computes nothing."""


achieved: dict[str, Any] = {"holds": ["scrubbed environment"], "missing": ["everything else: not asked for"]}
"""What this process is confined to; the entry of a worker sets it."""


def table(role: str) -> dict[str, Operation]:
    """The operations of a role, imported."""
    operations = importlib.import_module(MODULES[role]).OPERATIONS if role in MODULES else {"canary": dict}
    assert isinstance(operations, dict)
    return {**operations, "confinement": lambda: achieved}


def perform(operations: dict[str, Operation], request: Request) -> Reply:
    """Do what is asked and say what became of it; an exception of any kind is a typed reply."""
    try:
        result = operations[request.op](**request.args)
    except (Exception, SystemExit) as error:
        status, poisoned = classify(error)
        message = one_line(f"{type(error).__name__}: {error}")
        return Reply(request.id, status, {}, message[:MAX_TEXT], poisoned)
    return Reply(request.id, Status.OK, result)


class LaunchError(Exception):
    """A kernel asks for more than the device has."""


class CompileError(Exception):
    """A candidate's module or wrapper does not get as far as a compiled kernel."""


class WrongError(Exception):
    """A kernel computes something else than it should."""


class FaultError(Exception):
    """The device reported a fault that stays for as long as the process lives."""


def classify(error: BaseException) -> tuple[Status, bool]:
    """The status of an exception, and whether the process that raised it is spoilt.

    By name where the class is torch's or triton's: this module must not need either to be imported.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error).lower()
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or "out of memory" in text:
        return Status.OUT_OF_MEMORY, False
    if isinstance(error, WrongError):
        return Status.INCORRECT, False
    if isinstance(error, FaultError):
        return Status.CRASHED, True
    if isinstance(error, LaunchError) or "OutOfResources" in names:
        return Status.LAUNCH_ERROR, False
    if isinstance(error, CompileError) or names & {"CompilationError", "PTXASError"}:
        return Status.COMPILE_ERROR, False
    if "acl stream synchronize failed" in text or "aicore exception" in text:  # torch-npu, after a fault in a kernel
        return Status.CRASHED, True
    if "AcceleratorError" in names or "cuda error" in text or "triton error [cuda]" in text:
        # A bad launch leaves the context whole; a fault inside a kernel does not. A fresh process costs
        # seconds and a wrong figure costs trust, so both get one.
        refused = "invalid argument" in text or "invalid configuration" in text or "too many resources" in text
        return (Status.LAUNCH_ERROR if refused else Status.CRASHED), True
    return Status.CRASHED, False

"""Kernels that passed their accuracy test on this machine: a run may begin with one without verifying it again.

A file per kernel in the cache, named after what decides: its text, the quartet's test and baseline, kernelgen itself,
the machine, the device and the versions of what runs on it. Failures are not kept, nor a test of which a case was left
out: the memory that it lacked may be there next time. Without the files everything is verified again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernelgen.devices import Device, cache_folder, installed
from kernelgen.errors import UsageError
from kernelgen.files import write_atomic
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json, to_json

PACKAGE = Path(__file__).parent.parent
PTXAS = "TRITON_PTXAS_PATH"
"""Names another assembler than Triton's own."""


def test_of(quartet: Path, name: str) -> bytes | None:
    """What tells one accuracy test of an operator from another; None where the quartet has none."""
    try:
        return b"".join(_digest((quartet / f"{name}_{part}.py").read_bytes()) for part in ("baseline", "accuracy"))
    except OSError:
        return None


def place(device: Device, name: str, test: bytes, source: str) -> Path:
    """Where a kernel with the text `source` is kept, of the operator `name` with such a test."""
    here = {**device.describe(), "host": platform.node(), "numpy": installed("numpy"), PTXAS: os.environ.get(PTXAS)}
    told = (test, _kernelgen(), json.dumps(here, sort_keys=True).encode(), source.encode())
    return cache_folder() / "verified" / f"{name}-{_digest(b''.join(map(_digest, told))).hex()[:32]}.json"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


@cache
def _kernelgen() -> bytes:
    """What tells one kernelgen from another."""
    return b"".join(_digest(path.read_bytes()) for path in sorted(PACKAGE.rglob("*.py")))


def found(at: Path) -> Evaluation | None:
    """What the accuracy test said, with a message that says when; None where nothing is kept, or it cannot be read."""
    try:
        data = json.loads(at.read_text("utf-8"))
        evaluation = evaluation_from_json(data["evaluation"])
        said = f"verified on this machine on {data['date']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    passed = evaluation.status is Status.OK and evaluation.accuracy and all(a.passed for a in evaluation.accuracy)
    return replace(evaluation, message=said, seconds=0.0) if passed else None


def keep(at: Path, passed: Evaluation) -> None:
    """Have a kernel known that passed; where the cache cannot be written, it is verified again next time."""
    data = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "evaluation": to_json(passed)}
    with suppress(UsageError):
        write_atomic(at, json.dumps(data))

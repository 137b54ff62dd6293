"""Kernels that passed their accuracy test on this machine: the same one under the same test is not verified twice.

A file per kernel in the cache, named after all that decides: its text, the quartet's test and baseline, the judge, the
device and the versions of what runs on it. Failures are not kept. Without the files everything is verified again.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernelgen.devices import Device, cache_folder
from kernelgen.errors import UsageError
from kernelgen.files import write_atomic
from kernelgen.outcomes import Evaluation, evaluation_from_json, to_json

JUDGE = Path(__file__).parent.parent / "judge"


def place(device: Device, quartet: Path, name: str, source: str) -> Path:
    """Where a kernel with this text is kept, of the operator `name` whose quartet lies in the folder `quartet`."""
    tests = [(quartet / f"{name}_{part}.py").read_bytes() for part in ("baseline", "accuracy")]
    machine = json.dumps(device.describe(), sort_keys=True)
    digest = hashlib.sha256()
    for text in (_judge(), machine.encode(), source.encode(), *tests):
        digest.update(hashlib.sha256(text).digest())
    return cache_folder() / "verified" / f"{name}-{digest.hexdigest()[:32]}.json"


@cache
def _judge() -> bytes:
    """What tells one version of the judge from another."""
    digest = hashlib.sha256()
    for path in sorted(JUDGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def found(at: Path) -> Evaluation | None:
    """What the accuracy test said, with a message that says when. None where nothing is kept, or something else is."""
    try:
        data = json.loads(at.read_text("utf-8"))
        evaluation = evaluation_from_json(data["evaluation"])
        return replace(evaluation, message=f"verified on this machine on {data['date']}", seconds=0.0)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(at: Path, passed: Evaluation) -> None:
    """Have a kernel known that passed; where the cache cannot be written, it is verified again next time."""
    data = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "evaluation": to_json(passed)}
    with suppress(UsageError):
        write_atomic(at, json.dumps(data))

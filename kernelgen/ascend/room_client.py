"""One request to the script that runs in the compiler's environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from kernelgen.errors import NoDeviceError

LIMIT_S = 300
ROOM = Path(__file__).with_name("room.py")


class RoomError(Exception):
    """The compiler's front end refused a kernel, or died over it."""


def ask(python: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises RoomError with one line where the compiler fails, NoDeviceError where it does not start."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            [python, "-I", ROOM], input=json.dumps(request), capture_output=True, text=True, timeout=LIMIT_S,
            env={**kept, "TRITON_DISABLE_LINE_INFO": "0"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RoomError(f"the Ascend compiler was not done after {LIMIT_S} s") from None
    except OSError as error:
        raise NoDeviceError(f"{python}: {error.strerror}; `kernelgen doctor --setup ascend` reinstalls it") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RoomError(f"the Ascend compiler died ({done.returncode}): {last[:300]}")
    try:
        answer = json.loads(lines[-1])
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise RoomError(f"the Ascend compiler gave no answer: {lines[-1][:300]}")
    if "error" in answer:
        raise RoomError(str(answer["error"]))
    return answer

"""What a worker says of itself before it is given work: its kind, and whether its clock can be believed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from kernelgen import __version__
from kernelgen.devices import Card, Device
from kernelgen.fleet.model import Kind

SELF_TEST = "import sys; from kernelgen.judge.selftest import main; sys.exit(main())"
STATE = "import json; from kernelgen.devices import find; print(json.dumps(find().state()))"
RUNS, LEAST = 20, 15
"""A/A comparisons of a worker, and how many of their 95 % intervals must hold 1.00: an honest clock has fewer in 3 of
10,000 times (binomial)."""
DURATION_US = "20"
LIMIT_S = 300.0


def kind(device: Device, card: Card | None = None) -> Kind:
    """The kind of one of a device's cards, or of the machine where it has none."""
    said = device.describe()
    name = said.pop("device")
    return Kind(card.name if card else name, (*sorted(said.items()), ("kernelgen", f"{__version__} {digest()}")))


@cache
def digest() -> str:
    """The first 8 hex digits of the SHA-256 of kernelgen's own files."""
    package = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:8]


def device_gone(variables: Mapping[str, str]) -> str:
    """Why a worker's device can no longer be used, such as one that fell off the bus; "" where it can."""
    ask = "import sys; from kernelgen.devices import find; sys.exit(not find().measures)"
    return "its device no longer answers" if _asked(["-c", ask], variables).returncode else ""


def _asked(arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path, **variables}, capture_output=True,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def self_test(variables: Mapping[str, str]) -> tuple[dict[str, object], str]:
    """What the judge's A/A self-test found, and why the worker may not be used; "" where it may."""
    try:
        done = _asked(["-c", SELF_TEST, "--json", "--runs", str(RUNS), "--microseconds", DURATION_US], variables)
    except subprocess.TimeoutExpired:
        return {}, f"its A/A self-test was not finished after {LIMIT_S:g} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {}, f"its A/A self-test does not run: {last[:300]}"
    seen, why = judged(json.loads(done.stdout.strip().splitlines()[-1]))
    said = _asked(["-c", STATE], variables)
    return {**seen, **(json.loads(said.stdout) if not said.returncode else {})}, why


def judged(said: dict[str, list[dict[str, float]]]) -> tuple[dict[str, object], str]:
    """The same from the self-test's document."""
    result = said["results"][0]
    runs, covered = int(result["runs"]), int(result["covered"])
    seen: dict[str, object] = {"self_test_runs": runs, "self_test_covered": covered, "width": result["median_width"]}
    off = f"its A/A self-test held 1.00 in {covered} of {runs} intervals, {LEAST} at the least are wanted"
    return seen, off if covered * RUNS < LEAST * runs else ""

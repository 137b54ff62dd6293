"""What keeps the device busy: NVIDIA's counters through ncu where they can be read, else bytes over time."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernelgen.analysis import Work
from kernelgen.devices import DeviceFacts
from kernelgen.evaluate import kernels
from kernelgen.outcomes import Counters, StaticFacts

METRICS = {
    "dram_utilisation": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "l1_hit": "l1tex__t_sector_hit_rate.pct",
    "achieved_occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm_utilisation": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "matrix_utilisation": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
}
"""Fields of Counters, each with ncu's name of a percentage."""
COMPUTED = "computed from bytes and time"

_refusals: list[str] = []
"""Why ncu did not work in this process; it is not asked again."""


@cache
def ncu() -> str | None:
    """The profiler's path; None where it is not installed."""
    return shutil.which("ncu") or next((p for p in ("/usr/local/cuda/bin/ncu",) if os.access(p, os.X_OK)), None)


def with_ncu(
    request: dict[str, object], launches: Sequence[StaticFacts], env: dict[str, str], limit_s: float
) -> Counters | None:
    """Counters of the candidate's costliest launch; None where ncu is missing, refuses or takes too long."""
    program = ncu()
    if program is None or _refusals:
        return None
    kernel = max(launches, key=lambda one: one.waves).kernel
    of_it = sum(1 for one in launches if one.kernel == kernel)
    command = [
        program, "--csv", "--metrics", ",".join(METRICS.values()), "--clock-control", "none",
        "-k", f"regex:^{re.escape(kernel)}$", "--launch-skip", str(of_it), "--launch-count", "1",
        *once(request),
    ]  # fmt: skip
    text = output_of(command, env, limit_s)
    counters = parse(text) if text is not None else None
    if counters is None:
        _refusals.append(reason(text))
    return counters


def once(request: dict[str, object]) -> list[str]:
    """The program that makes one call, for a profiler to watch."""
    return [sys.executable, "-P", "-m", "kernelgen.worker.once", json.dumps(request)]


def whole_call(
    request: dict[str, object], launches: Sequence[StaticFacts], env: dict[str, str], limit_s: float, keep: Path | None
) -> tuple[str, str]:
    """ncu's CSV of every kernel of a call, and why there is none; it is not asked again where it refused."""
    program = ncu()
    if program is None or _refusals or not launches:
        return "", _refusals[0] if _refusals else "no ncu" if program is None else "no kernel of its own"
    names = [one.kernel for one in launches]
    text = output_of([*kernels.command(program, names, len(launches), keep), *once(request)], env, limit_s)
    if keep is not None and text is not None and keep.is_file():
        text = output_of(kernels.imported(program, keep), env, limit_s)
    if text is not None and kernels.parse(text):
        return text, ""
    _refusals.append(reason(text))
    return "", _refusals[0]


def last_line(text: str | None) -> str:
    """The end of what a program said."""
    lines = (text or "it took too long").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def output_of(command: list[str], env: dict[str, str], limit_s: float) -> str | None:
    """Output of a program that is killed, with its children, when its time is over; None then."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def parse(text: str) -> Counters | None:
    """Counters from ncu's CSV; None where it holds none of the metrics."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    values: dict[str, float] = {}
    for row in csv.DictReader(lines):
        for field, metric in METRICS.items():
            if row.get("Metric Name") == metric:
                with contextlib.suppress(ValueError):
                    values[field] = float(row["Metric Value"].replace(",", "")) / 100
    return Counters.from_json({"source": "ncu", **values}) if values else None


def reason(text: str | None) -> str:
    """Why ncu gave no counters, in a few words."""
    if text is None:
        return "ncu took too long"
    if "ERR_NVGPUCTRPERM" in text:
        return "ncu may not read the counters (ERR_NVGPUCTRPERM)"
    return "ncu printed no counters"


def from_time(work: Work, seconds: float, facts: DeviceFacts) -> Counters:
    """Utilisation from what had to be moved and computed, and the time it took."""
    why = _refusals[0] if _refusals else "no ncu"
    return Counters(
        source=f"{COMPUTED} ({why})",
        dram_utilisation=(work.bytes_read + work.bytes_written) / (seconds * facts.dram_bytes_per_s),
        sm_utilisation=work.arithmetic_seconds(facts) / seconds,
    )

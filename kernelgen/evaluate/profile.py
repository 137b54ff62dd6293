"""What keeps the device busy: NVIDIA's counters through ncu where they can be read, else bytes over time."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernelgen.analysis import Work
from kernelgen.devices import DeviceFacts
from kernelgen.evaluate import kernels
from kernelgen.files import write_atomic
from kernelgen.outcomes import Counters, StaticFacts
from kernelgen.worker.once import POLL_S, ready

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
NO_KERNEL = "no kernel of its own"
TOO_LONG = "ncu took too long"
FORBIDDEN = "ncu may not read the counters (ERR_NVGPUCTRPERM)"
ONCE = (sys.executable, "-P", "-m", "kernelgen.worker.once")

_refusals: list[str] = []
"""Why ncu did not work in this process; it is not asked again."""
_answered: set[str] = set()
"""The profilers that have counted something in this process: what says nothing of one call may of the next."""
_numbers = itertools.count()


@cache
def ncu() -> str | None:
    """The profiler's path; None where it is not installed."""
    return shutil.which("ncu") or next((p for p in ("/usr/local/cuda/bin/ncu",) if os.access(p, os.X_OK)), None)


class Standby:
    """ncu and a program that waits to be told of a call. They take seconds to start, which other work can hide."""

    def __init__(self, program: str, folder: Path, env: dict[str, str]) -> None:
        self._request = folder / f"call-{next(_numbers)}.json"
        command = [
            program, "--csv", "--metrics", ",".join(METRICS.values()), *kernels.ONE_CALL, *ONCE,
            f"@{self._request}", str(os.getpid()),
        ]  # fmt: skip
        self._process = _started(command, env)

    def wait(self, limit_s: float) -> None:
        """Until it is at rest: with a context, or at its end."""
        end = time.monotonic() + limit_s
        while not ready(self._request).exists() and self._process.poll() is None and time.monotonic() < end:
            time.sleep(POLL_S)

    def counters(self, request: dict[str, object], launches: Sequence[StaticFacts], limit_s: float) -> Counters | None:
        """Of the call's costliest launch; None where ncu refuses or takes too long. For one call, which ends it."""
        kernel = max(launches, key=lambda one: one.waves).kernel
        write_atomic(self._request, json.dumps(request))
        text = _said(self._process, limit_s)
        counters = parse(text, kernel) if text is not None else None
        if counters is None:
            _refusals.append(reason(text))
        return counters

    def close(self) -> None:
        """End it, asked or not."""
        _end(self._process)


def standby(folder: Path, env: dict[str, str]) -> Standby | None:
    """A profiler for a later call, whose request is handed over in `folder`; None where ncu is missing or refused."""
    program = ncu()
    return None if program is None or _refusals else Standby(program, folder, env)


def once(*requests: dict[str, object]) -> list[str]:
    """The program that makes these calls, for a profiler to watch."""
    return [*ONCE, json.dumps(requests)]


def whole_calls(
    calls: Sequence[tuple[dict[str, object], Sequence[StaticFacts]]],
    env: dict[str, str],
    limit_s: float,
    keep: Path | None,
) -> tuple[list[kernels.Launches], str]:
    """What ncu counted of every kernel of the calls, from the first on as far as it could be told whose it is, and why
    there is nothing; it is not asked again where it refused. `calls`: each a request and the launches that it makes.
    `keep`: where its report of a call by itself goes."""
    program = ncu()
    names = [one.kernel for _, launches in calls for one in launches]
    if program is None or _refusals or not names:
        return [], _refusals[0] if _refusals else "no ncu" if program is None else NO_KERNEL
    requests = [request for request, _ in calls]
    text = output_of([*kernels.command(program, names, keep), *once(*requests)], env, limit_s)
    if keep is not None and text is not None and keep.is_file():
        text = output_of(kernels.imported(program, keep), env, limit_s)
    said = kernels.parse(text or "")
    if said:
        _answered.add(program)
        alone = len(calls) == 1  # whatever it launched
        return [said] if alone else kernels.of_calls(said, [[one.kernel for one in own] for _, own in calls]), ""
    why = reason(text)
    if why == FORBIDDEN or (len(calls) == 1 and program not in _answered):
        _refusals.append(why)
    return [], why


def last_line(text: str | None) -> str:
    """The end of what a program said."""
    lines = (text or "it took too long").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def output_of(command: list[str], env: dict[str, str], limit_s: float) -> str | None:
    """Output of a program that is killed, with its children, when its time is over; None then."""
    return _said(_started(command, env), limit_s)


def _started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        start_new_session=True,
    )


def _said(process: subprocess.Popen[str], limit_s: float) -> str | None:
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def parse(text: str, kernel: str) -> Counters | None:
    """Counters of a kernel's first launch from ncu's CSV; None where it holds none of the metrics."""
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    own = [row for row in rows if (row.get("Kernel Name") or "").partition("(")[0] == kernel]
    values: dict[str, float] = {}
    for row in own:
        for field, metric in METRICS.items():
            if row["ID"] == own[0]["ID"] and row.get("Metric Name") == metric:
                with contextlib.suppress(ValueError):
                    values[field] = float(row["Metric Value"].replace(",", "")) / 100
    return Counters.from_json({"source": "ncu", **values}) if values else None


def reason(text: str | None) -> str:
    """Why ncu gave no counters, in a few words."""
    if text is None:
        return TOO_LONG
    if "ERR_NVGPUCTRPERM" in text:
        return FORBIDDEN
    return "ncu printed no counters"


def from_time(work: Work, seconds: float, facts: DeviceFacts) -> Counters:
    """Utilisation from what had to be moved and computed, and the time it took."""
    why = _refusals[0] if _refusals else "no ncu"
    return Counters(
        source=f"{COMPUTED} ({why})",
        dram_utilisation=(work.bytes_read + work.bytes_written) / (seconds * facts.dram_bytes_per_s),
        sm_utilisation=work.arithmetic_seconds(facts) / seconds,
    )

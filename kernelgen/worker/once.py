"""Calls of candidates for a profiler: `python -m kernelgen.worker.once REQUEST [PID]`.

The request is JSON, an object for one call or a list of them, or @ and the path of a file that holds it. With the
number of a process it is started ahead: it makes its context and waits for the file while that process lives.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelgen.worker import private

POLL_S = 0.01


def main() -> None:
    """Of each request: warm up with a call, make another, which the profiler is told to watch. What fails ends all."""
    import torch

    from kernelgen.judge import device

    said, waits_for = sys.argv[1], sys.argv[2:]
    if waits_for:
        torch.zeros(1, device=device.find())
        ready(Path(said[1:])).touch()
        wait(Path(said[1:]), int(waits_for[0]))
    told = json.loads(Path(said[1:]).read_text(encoding="utf-8") if said.startswith("@") else said)
    for request in told if isinstance(told, list) else [told]:
        watched(request)


def watched(request: dict[str, Any]) -> None:
    """Warm up with one call, and make another for the profiler, or for a trace where the request names its file."""
    import torch

    from kernelgen import judge
    from kernelgen.judge import device
    from kernelgen.worker import load

    case = judge.Case.from_json(request["case"])
    operator = load.quartet(request["folder"], request["name"], "accuracy").OPERATOR.at(case)
    wrapper = operator.taking(load.candidate(request["path"], request["name"]))
    where = request.get("device", "cuda")
    inputs = judge.make_inputs(operator, case, device=where, seed=0)()

    def call() -> None:
        wrapper(*inputs)
        device.synchronize(where)

    call()
    if request.get("trace"):
        traced(call, request["trace"])
        return
    if where == "cuda":
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    call()
    if where == "cuda":
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def ready(request: Path) -> Path:
    """The file that says that the program which waits for a request has its context."""
    return request.with_suffix(".ready")


def wait(path: Path, process: int) -> None:
    """Until the file is there; exits where the process that would write it is gone."""
    while not path.exists():
        if not private.alive(process):
            sys.exit("nobody is left to say what to call")
        time.sleep(POLL_S)


def traced(call: Callable[[], object], path: str) -> None:
    """Write what a call does, on the host and on a GPU, as a trace that chrome://tracing and Perfetto show."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as seen:
        call()
    seen.export_chrome_trace(path)


if __name__ == "__main__":
    main()

"""One call of a candidate for a profiler: `python -m kernelgen.worker.once REQUEST`.

The request is JSON, or @ and the path of a file that holds it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    """Warm up with one call, make another, and end; the profiler skips the launches of the first."""
    from kernelgen import judge
    from kernelgen.judge import device
    from kernelgen.worker import load

    said = sys.argv[1]
    request = json.loads(Path(said[1:]).read_text(encoding="utf-8") if said.startswith("@") else said)
    case = judge.Case.from_json(request["case"])
    operator = load.quartet(request["folder"], request["name"], "accuracy").OPERATOR.at(case)
    wrapper = operator.taking(load.candidate(request["path"], request["name"]))
    where = request.get("device", "cuda")
    inputs = judge.make_inputs(operator, case, device=where, seed=0)()

    def call() -> None:
        wrapper(*inputs)
        device.synchronize(where)

    call()
    traced(call, request["trace"]) if request.get("trace") else call()


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

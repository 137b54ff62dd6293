"""What only a GPU can show, for a person to run: `python tests/trust_on_gpu.py [--runs 100] [--only NAME ...] [--json]`.

Faults: a hang, an illegal access, an out-of-memory, an `os._exit` and a flood of output in the worker, each so many times;
after each the next candidate must be judged rightly within 10 s. Reach: host code in the worker tries for a file outside
its folders, a key of its parent's environment and a loopback socket. Clock: a planted slowdown of 3 % must be called slower
in 95 of 100 runs, the same function against itself called different in 1 of 100 at most. Exit code 1 where anything falls
short. `--only` takes one part or one fault: with CUDA_VISIBLE_DEVICES they can run side by side, a GPU each. `--json` prints
one document, which says as well what the worker is held to and why not to more; the lines then go to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from test_evaluate import CURRENT, FAULTY, SMALL, candidate, make

from kernelgen.evaluate import Evaluator, Limits
from kernelgen.outcomes import Status

HANG_S = 3.0
WITHIN_S = 10.0
FAULTS = {
    "hang": FAULTY["hang"],
    "illegal access": FAULTY["illegal"],
    "os._exit": FAULTY["exit"],
    "out of memory": (
        {"    size = x.numel()": "    if x.is_cuda: torch.empty(1 << 50, device='cuda')\n    size = x.numel()",
         "num_warps=4": "num_warps=1"},
        Status.OUT_OF_MEMORY,
    ),
    "flood of output": (
        {"    size = x.numel()": "    if x.is_cuda: print('x' * (1 << 26), flush=True)\n    size = x.numel()", "x * 2,": "x * 3,"},
        Status.INCORRECT,
    ),
}  # fmt: skip
SHARES = {"planted 3 %": (1.03, 0.95, "slower"), "A/A": (1.0, 0.99, "undecided")}
"""What the second function does more, and in what share of runs the verdict must be."""
CANARY = "canary-7f3a"

Document = dict[str, Any]
Say = Callable[[str], None]


def faults(names: list[str], runs: int, say: Say) -> Document:
    """Of every fault, how it was typed and whether the next candidate was judged rightly, and in what time."""
    found: Document = {}
    with tempfile.TemporaryDirectory() as folder, make("cuda", Path(folder), limits=Limits(race_s=HANG_S)) as gpu:
        judged(gpu, 0)
        isolation = list(gpu.isolation())
        say("\n  ".join(["held to:", *isolation]))
        for name in names:
            changes, status = FAULTS[name]
            right, seconds, said = 0, [], set()
            for run in range(runs):
                bad = candidate(SMALL, what=name, **{**changes, "written by hand": f"written by hand, {run}"})
                ((_, one),) = gpu.search([bad], CURRENT)
                began = time.monotonic()
                well = judged(gpu, run + 1)
                seconds.append(round(time.monotonic() - began, 2))
                right += one.status == status and well
                said.add(str(one.status))
            slowest, typical = max(seconds), sorted(seconds)[len(seconds) // 2]
            times = f"{typical:.1f} s, {slowest:.1f} s at most"
            say(f"{name}: typed {', '.join(sorted(said))}; next one right in {right} of {runs}, {times}")
            found[name] = {
                "runs": runs, "typed": sorted(said), "next_right": right, "median_s": typical, "slowest_s": slowest,
                "good": right == runs and slowest <= WITHIN_S,
            }  # fmt: skip
    return {"isolation": isolation, "faults": found, "good": all(one["good"] for one in found.values())}


def judged(gpu: Evaluator, number: int) -> bool:
    """Whether a right candidate is measured and a wrong one is found out."""
    good = candidate(
        SMALL, what="good", **{"num_warps=4": "num_warps=8", "written by hand": f"typed by hand, {number}"}
    )
    ((_, found),) = gpu.search([good], CURRENT)
    return found.status == Status.OK and [t.source for t in found.timings] == ["measured"]


def reach(device: str, say: Say) -> Document:
    """What host code in the process that runs candidates gets at."""
    os.environ["OPENAI_API_KEY"] = CANARY
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        (Path(folder) / "canary").write_text(CANARY)
        code = f"""
    if x.device.type != "meta":
        import os, socket
        reached = []
        for name, attempt in {{
            "file": lambda: open({str(Path(folder) / "canary")!r}).read(),
            "key": lambda: os.environ["OPENAI_API_KEY"],
            "key of the parent": lambda: open("/proc/{os.getpid()}/environ").read(),
            "socket": lambda: socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), 2),
        }}.items():
            try:
                attempt()
            except Exception:
                continue
            reached.append(name)
        raise ValueError("reached: " + (", ".join(reached) or "nothing"))
    size = x.numel()"""
        bad = candidate(SMALL, what="reach", **{"    size = x.numel()": code.strip("\n")})
        with make(device, Path(folder) / "candidates") as run:
            said, isolation = run.verify(bad).message, list(run.isolation())
    reached = said.partition("reached: ")[2].partition(" (")[0]
    say("\n  ".join(["held to:", *isolation]))
    say(f"reached: {reached or said}")
    return {"isolation": isolation, "reached": reached or said, "good": reached == "nothing"}


def cloned(count: int, x: torch.Tensor) -> torch.Tensor:
    return torch.clone(x[:count])


def numbers(count: int) -> tuple[torch.Tensor]:
    return (torch.rand(count, device="cuda"),)


def clock(runs: int, say: Say) -> Document:
    """Of every duration and plant, how often the verdict was the wanted one."""
    from kernelgen.judge import compare
    from kernelgen.judge.cuda import bandwidths

    found: Document = {}
    for microseconds in (20.0, 200.0):
        size = int(0.6 * (microseconds - 1.5) * 1e-6 * bandwidths()[0] / 2) // 4
        for name, (factor, share, wanted) in SHARES.items():
            more = int(size * factor)
            small, large = partial(cloned, size), partial(cloned, more)
            make_inputs = partial(numbers, more)
            verdicts = [compare(small, large, make_inputs).verdict for _ in range(runs)]
            count = verdicts.count(wanted)
            say(f"{name} at {microseconds:.0f} µs: {wanted} in {count} of {runs}")
            found[f"{name} at {microseconds:.0f} µs"] = {
                "runs": runs, "wanted": wanted, "count": count, "good": count >= share * runs
            }  # fmt: skip
    return {"clock": found, "good": all(one["good"] for one in found.values())}


def machine() -> Document:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", action="append", choices=("faults", "reach", "clock", *FAULTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: reach alone")
    parser.add_argument("--json", action="store_true", help="one document on stdout, lines on stderr")
    options = parser.parse_args()
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    wanted = options.only or ["faults", "reach", "clock"]
    names = [name for name in FAULTS if "faults" in wanted or name in wanted]
    parts: list[Document] = []
    if names:
        parts.append(faults(names, options.runs, say))
    if "reach" in wanted:
        parts.append(reach(options.device, say))
    if "clock" in wanted:
        parts.append(clock(options.runs, say))
    good = all(part.pop("good") for part in parts)
    document = {**machine(), **{key: value for part in parts for key, value in part.items()}, "good": good}
    if options.json:
        print(json.dumps(document, indent=1, ensure_ascii=False))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

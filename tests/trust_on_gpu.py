"""What only a GPU can show, for a person to run: `python tests/trust_on_gpu.py [--runs 100] [--only faults|clock]`.

Faults: a hang, an illegal access, an out-of-memory, an `os._exit` and a flood of output in the worker, each so many times;
after each the next candidate must be judged rightly within 10 s. Clock: a planted slowdown of 3 % must be called slower in
95 of 100 runs, the same function against itself called different in 1 of 100 at most. Exit code 1 where anything falls short.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
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
        {"    size = x.numel()": "    import torch\n    if x.is_cuda: torch.empty(1 << 50, device='cuda')\n    size = x.numel()",
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


def faults(runs: int) -> bool:
    """A line a fault; whether the next candidate was always judged rightly in time."""
    fine = True
    with tempfile.TemporaryDirectory() as folder, make("cuda", Path(folder), limits=Limits(race_s=HANG_S)) as gpu:
        judged(gpu, 0)
        print("held to:", *gpu.isolation(), sep="\n  ")
        for name, (changes, status) in FAULTS.items():
            right, slowest, said = 0, 0.0, set()
            for run in range(runs):
                bad = candidate(SMALL, what=name, **{**changes, "written by hand": f"written by hand, {run}"})
                ((_, found),) = gpu.search([bad], CURRENT)
                began = time.monotonic()
                well = judged(gpu, run + 1)
                slowest = max(slowest, time.monotonic() - began)
                right += found.status == status and well
                said.add(str(found.status))
            print(
                f"{name}: typed {', '.join(sorted(said))}; next one right in {right} of {runs}, {slowest:.1f} s at most"
            )
            fine &= right == runs and slowest <= WITHIN_S
    return fine


def judged(gpu: Evaluator, number: int) -> bool:
    """Whether a right candidate is measured and a wrong one is found out."""
    good = candidate(
        SMALL, what="good", **{"num_warps=4": "num_warps=8", "written by hand": f"typed by hand, {number}"}
    )
    ((_, found),) = gpu.search([good], CURRENT)
    return found.status == Status.OK and [t.source for t in found.timings] == ["measured"]


def cloned(count: int, x: torch.Tensor) -> torch.Tensor:
    return torch.clone(x[:count])


def numbers(count: int) -> tuple[torch.Tensor]:
    return (torch.rand(count, device="cuda"),)


def clock(runs: int) -> bool:
    """A line a duration and plant; whether each share is reached."""
    from kernelgen.judge import compare
    from kernelgen.judge.cuda import bandwidths

    fine = True
    for microseconds in (20.0, 200.0):
        size = int(0.6 * (microseconds - 1.5) * 1e-6 * bandwidths()[0] / 2) // 4
        for name, (factor, share, wanted) in SHARES.items():
            more = int(size * factor)
            small, large = partial(cloned, size), partial(cloned, more)
            make_inputs = partial(numbers, more)
            verdicts = [compare(small, large, make_inputs).verdict for _ in range(runs)]
            count = verdicts.count(wanted)
            print(f"{name} at {microseconds:.0f} µs: {wanted} in {count} of {runs}")
            fine &= count >= share * runs
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", choices=("faults", "clock"))
    options = parser.parse_args()
    parts = [part for part in (faults, clock) if options.only in (None, part.__name__)]
    return 0 if False not in [part(options.runs) for part in parts] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Play rounds on shipped operators on the GPU that is here, and keep their journals.

    python docs/benchmarks/rounds.py --minutes 8                # operators that no journal is kept of yet
    python docs/benchmarks/rounds.py softmax matmul --into OUT  # these; what changed comes as OUT/rounds.tar.gz too

A run is `kernelgen optimize NAME` in the checkout: it leaves the kernel and its log in operators/, and its packed
journal in docs/benchmarks/journals, as [tool.kernelgen] in pyproject.toml says. An operator that is at work when the
minutes are over is interrupted; what it measured until then is kept. In another checkout `tar xzf rounds.tar.gz` brings
all of it (`tar xzf rounds.tar.gz docs`: the journals alone). Then

    kernelgen knowledge rebuild docs/benchmarks/small.json docs/benchmarks/journals

makes the rows that kernelgen ships anew.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tuner import round_seconds

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
JOURNALS = Path("docs/benchmarks/journals")
MAIN = "import sys; from kernelgen.cli.app import main; sys.exit(main())"
ENDING_S, LEAST_S = 30.0, 45.0
"""For an interrupted run to leave what it has; and what a run needs to come to a baseline at all."""
FIRST = (
    "softmax", "matmul", "attention", "layer_norm", "gelu_tanh", "sum_dim0", "transpose", "cumsum", "conv2d_bias_relu",
    "sum_all", "cross_entropy", "index_add", "topk", "max_pool2d", "quantize_int8_rows", "linear_gelu", "rotary_half",
    "broadcast",
)  # fmt: skip
"""A few of every family, which come first."""


def unplayed(root: Path) -> list[str]:
    """Shipped operators without a kept journal: a few of every family, then the others."""
    shipped = sorted(path.stem for path in (root / "specs").glob("*.yaml"))
    kept = {path.name for path in (root / JOURNALS).glob("*")}
    return [name for name in dict.fromkeys((*FIRST, *shipped)) if name in shipped and name not in kept]


def play(name: str, rounds: int, seconds: float) -> int:
    """The exit code of a run of so many seconds at most."""
    command = [sys.executable, "-c", MAIN, "optimize", name, "--rounds", str(rounds), "--fresh"]
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": search})
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
    try:
        return run.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        run.kill()
        return run.wait()


def came_to(name: str) -> str:
    """What the newest run left: how long its rounds took, and how long the log is."""
    runs = sorted((ROOT / "logs" / name).glob("*/journal.jsonl"))
    took = ", ".join(f"{seconds:.0f}" for seconds in round_seconds(runs[-1].parent)) if runs else "none"
    log, kept = ROOT / "operators" / name / "optimization_log.md", list((ROOT / JOURNALS / name).glob("*.jsonl.gz"))
    lines = len(log.read_text("utf-8").splitlines()) if log.is_file() else 0
    return f"; seconds of the baseline and each round: {took}; log of {lines} lines, {len(kept)} journals kept"


def pack(into: Path, names: list[str]) -> Path:
    """Kernels, logs and journals of operators, as they lie in the checkout."""
    into.mkdir(parents=True, exist_ok=True)
    path = into / "rounds.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for folder in [place / name for name in names for place in (Path("operators"), JOURNALS)]:
            if (ROOT / folder).is_dir():
                tar.add(ROOT / folder, folder, filter=lambda one: None if "__pycache__" in one.name else one)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--minutes", type=float, default=8.0, help="in all")
    parser.add_argument("--each", type=float, default=600.0, metavar="SECONDS", help="at most, for one operator")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path, help="a folder for rounds.tar.gz")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes - ENDING_S
    played: list[str] = []
    for name in given.names or unplayed(ROOT):
        if end - time.monotonic() < LEAST_S:
            print(f"{name} and what follows is left out: no time is left", flush=True)
            break
        began = time.monotonic()
        code = play(name, given.rounds, min(given.each, end - began))
        played.append(name)
        print(f"{name}: exit {code}, {time.monotonic() - began:.0f} s{came_to(name)}", flush=True)
        if given.into is not None:  # after each: whatever ends this process leaves what there is
            print(f"{len(played)} operators in {pack(given.into, played)}", flush=True)


if __name__ == "__main__":
    main()

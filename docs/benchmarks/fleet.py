"""Operators on all GPUs of a machine against one of them:
`python docs/benchmarks/fleet.py [--operators 24] [--rounds 2]`.

Needs two GPUs of one kind or more; has not been run on any. It optimises the same operators anew on GPU 0 and then on
all GPUs, and asks three things: how much sooner all of them are done (1.8 times with two GPUs is the aim), whether the
figures of the kernels that both began with agree, and whether the judge's A/A intervals hold 1.00 while the neighbour
works. What it found is printed and left in fleet.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KERNELGEN = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main())"]
AIM = 1.8


def run(arguments: list[str], folder: Path, **variables: str) -> tuple[Any, float]:
    """A command's document, and its seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [*KERNELGEN, *arguments, "--json"], cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    if not done.stdout.strip():
        sys.exit(f"{' '.join(arguments[:1])} ended with exit code {done.returncode}")
    return json.loads(done.stdout), time.monotonic() - began


def agree(one: dict[str, float] | None, other: dict[str, float] | None) -> bool | None:
    """Whether two intervals have a point in common; None where one was not measured."""
    return None if one is None or other is None else one["low"] <= other["high"] and other["low"] <= one["high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    specs = sorted(path.stem for path in (HERE.parent.parent / "specs").glob("*.yaml"))
    names = specs[:: max(1, len(specs) // options.operators)][: options.operators]
    found: dict[str, Any] = {
        "command": " ".join(["python docs/benchmarks/fleet.py", *sys.argv[1:]]),
        "operators": names,
    }
    documents, seconds = {}, {}
    with tempfile.TemporaryDirectory() as name:
        for gpus in ("0", "all"):
            folder = Path(name) / gpus
            folder.mkdir()
            given = ["optimize", *names, "--gpus", gpus, "--rounds", str(options.rounds)]
            documents[gpus], seconds[gpus] = run(given, folder)
        starts = {gpus: [said[n].get("start_speedup") for n in names] for gpus, said in documents.items()}
        judged = [agree(one, other) for one, other in zip(starts["0"], starts["all"], strict=True)]
        alone, _ = run(["bench", "--self-test", "--runs", "50"], Path(name), CUDA_VISIBLE_DEVICES="0")
        neighbour = subprocess.Popen(
            [*KERNELGEN, "optimize", *names[:4], "--gpus", "1", "--rounds", "5", "--fresh"], cwd=name,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        beside, _ = run(["bench", "--self-test", "--runs", "50"], Path(name), CUDA_VISIBLE_DEVICES="0")
        still = neighbour.poll() is None
        neighbour.terminate()
        neighbour.wait()
    ratio = seconds["0"] / seconds["all"]
    found |= {
        "seconds": seconds, "ratio": ratio, "agree": sum(one is True for one in judged),
        "disagree": [n for n, one in zip(names, judged, strict=True) if one is False],
        "not_measured": [n for n, one in zip(names, judged, strict=True) if one is None],
        "self_test": {"alone": alone, "beside a neighbour": beside, "the neighbour worked to the end": still},
    }  # fmt: skip
    (HERE / "fleet.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(names)} operators: {seconds['0']:.0f} s on GPU 0, {seconds['all']:.0f} s on all")
    print(f"{ratio:.2f} times as fast; the aim of two GPUs is {AIM}")
    print(f"{found['agree']} of {len(names)} speedups agree; disagree: {found['disagree']}")
    print(f"not measured: {found['not_measured']}")
    for when, said in (("alone", alone), ("beside a neighbour", beside)):
        for one in said["results"]:
            print(f"A/A {when}, {one['actual_us']:.1f} µs: {one['covered']} of {one['runs']} intervals hold 1.00")


if __name__ == "__main__":
    main()

"""Operators on two GPUs of a machine against one of them:
`python docs/benchmarks/fleet.py [--operators 24] [--rounds 2] [--together]`.

Needs two GPUs of one kind, with --together three. It optimises the same operators anew on GPU 0 and on two GPUs, and
asks three things: how much sooner two are done (1.8 times is the aim), whether the figures of the kernels that both
began with agree, and whether the judge's A/A intervals hold 1.00 while a neighbour works. With --together both runs are
under way at once, each on GPUs and cores of its own. What it found is printed and left in fleet.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELGEN = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main())"]
AIM = 1.8


def begun(arguments: list[str], folder: Path, cores: set[int], **variables: str) -> subprocess.Popen[str]:
    """A command at work in a folder and with caches of its own, on these cores."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton"), "PYTHONPATH": path}
    bound = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]
    return subprocess.Popen(
        [*bound, *KERNELGEN, *arguments], cwd=folder, env={**os.environ, **own, **variables}, stdout=subprocess.PIPE,
        stderr=(folder / "err").open("a"), text=True,
    )  # fmt: skip


def run(arguments: list[str], folder: Path, cores: set[int], **variables: str) -> tuple[Any, float]:
    """A command's document, and its seconds."""
    began = time.monotonic()
    with begun([*arguments, "--json"], folder, cores, **variables) as running:
        said = running.communicate()[0]
    if not said.strip():
        complaint = (folder / "err").read_text()[-2000:]
        sys.exit(f"{arguments[0]} ended with exit code {running.returncode}: {complaint}")
    return json.loads(said), time.monotonic() - began


def agree(one: dict[str, float] | None, other: dict[str, float] | None) -> bool | None:
    """Whether two intervals have a point in common; None where one was not measured."""
    return None if one is None or other is None else one["low"] <= other["high"] and other["low"] <= one["high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, default=16, help="of every GPU")
    parser.add_argument(
        "--together", action="store_true", help="GPU 0 beside GPUs 1 and 2, on a machine of three or more"
    )
    parser.add_argument("--into", type=Path, default=HERE)
    options = parser.parse_args()
    specs = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
    names = specs[:: max(1, len(specs) // options.operators)][: options.operators]
    found: dict[str, Any] = {
        "command": " ".join(["python docs/benchmarks/fleet.py", *sys.argv[1:]]),
        "machine": machine(),
        "cores": options.cores,
        "operators": names,
    }
    first = 1 if options.together else 0  # of the two
    one, two = (0,), (first, first + 1)
    on = {gpus: {gpu * options.cores + n for gpu in gpus for n in range(options.cores)} for gpus in (one, two)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:

        def optimised(gpus: tuple[int, ...]) -> tuple[Any, float]:
            folder = Path(name) / "-".join(map(str, gpus))
            folder.mkdir()
            given = ["optimize", *names, "--gpus", ",".join(map(str, gpus)), "--rounds", str(options.rounds)]
            return run(given, folder, on[gpus])

        with ThreadPoolExecutor(2 if options.together else 1) as pool:
            (alone, alone_s), (both, both_s) = pool.map(optimised, (one, two))
        starts = [[said.get(n, {}).get("start_speedup") for n in names] for said in (alone, both)]
        judged = [agree(*pair) for pair in zip(*starts, strict=True)]
        here, there = ({gpu * options.cores + n for n in range(options.cores)} for gpu in two)

        def tested() -> Any:
            given = ["bench", "--self-test", "--runs", "50"]
            return run(given, Path(name), here, CUDA_VISIBLE_DEVICES=str(first))[0]

        tests = {"alone": tested()}
        again = ["optimize", *names[:4], "--gpus", str(first + 1), "--rounds", "5", "--fresh"]
        neighbour = begun(again, Path(name) / "0", there)
        tests["beside a neighbour"] = tested()
        still = neighbour.poll() is None
        neighbour.terminate()
        neighbour.communicate()
    ratio = alone_s / both_s
    found |= {
        "seconds": {"one": alone_s, "two": both_s},
        "ratio": ratio,
        "agree": sum(same is True for same in judged),
        "starts": {n: pair for n, *pair in zip(names, *starts, strict=True)},
        "disagree": [n for n, same in zip(names, judged, strict=True) if same is False],
        "not_measured": [n for n, same in zip(names, judged, strict=True) if same is None],
        "self_test": {**tests, "the neighbour worked to the end": still},
    }
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "fleet.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(names)} operators: {alone_s:.0f} s on one GPU, {both_s:.0f} s on two")
    print(f"{ratio:.2f} times as fast; the aim of two GPUs is {AIM}")
    print(f"{found['agree']} of {len(names)} speedups agree; disagree: {found['disagree']}")
    print(f"not measured: {found['not_measured']}")
    for when, said in tests.items():
        for result in said["results"]:
            print(
                f"A/A {when}, {result['actual_us']:.1f} µs: {result['covered']} of {result['runs']} intervals hold 1.00"
            )


if __name__ == "__main__":
    main()

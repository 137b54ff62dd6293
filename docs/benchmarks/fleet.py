"""Operators on two GPUs of a machine against one of them:
`python docs/benchmarks/fleet.py [--operators 24] [--rounds 2] [--minutes M] [--together]`.

Needs two GPUs of one kind, with --together three. It optimises the same operators anew on GPU 0 and on two GPUs, and
asks three things: how much sooner two are done (1.8 times is the aim), whether the figures of the kernels that both
began with agree, and whether the judge's A/A intervals hold 1.00 while a neighbour works. With --together both runs are
under way at once, each on GPUs and cores of its own. A run that is not done after the minutes is ended: what both did
until then is compared. What it found is printed and left in fleet.json; `--only-self-test` asks the third alone,
`--journals ONE TWO` the first two of runs that were kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from measure import machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELGEN = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main())"]
AIM, ENDING_S = 1.8, 60.0


def begun(arguments: list[str], folder: Path, cores: set[int], **variables: str) -> subprocess.Popen[str]:
    """A command at work in a folder and with caches of its own, on these cores."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton"), "PYTHONPATH": path}
    bound = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]
    return subprocess.Popen(
        [*bound, *KERNELGEN, *arguments], cwd=folder, env={**os.environ, **own, **variables}, stdout=subprocess.PIPE,
        stderr=(folder / "err").open("a"), text=True,
    )  # fmt: skip


def ended(running: subprocess.Popen[str], seconds: float | None = None) -> str:
    """What a command printed, which is interrupted after so many seconds."""
    with running:
        try:
            return running.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            return running.communicate(timeout=ENDING_S)[0]


def done(journal: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The kind of the workers of a run; and by operator the seconds from the run's begin to its end, its own, and the
    speedup over eager of the kernel that it began with."""
    with gzip.open(journal, "rt") if journal.suffix == ".gz" else journal.open() as file:
        records = [json.loads(line) for line in file]
    began = datetime.fromisoformat(records[0]["time"])
    kinds = [r["data"]["kind"] for r in records if r["kind"] == "worker"]
    found = {}
    for record in (r for r in records if r["kind"] == "outcome" and r["data"]["code"] == 0):
        at = (datetime.fromisoformat(record["time"]) - began).total_seconds()
        data = record["data"]
        start = json.loads(data["stdout"]).get("start_speedup")
        found[data["operator"]] = {"done_s": round(at, 1), "seconds": round(data["seconds"], 1), "start": start}
    return kinds[0], found


def agree(one: dict[str, float] | None, other: dict[str, float] | None, apart: float) -> bool | None:
    """Whether two intervals have a point in common, or are no more than `apart` from it, relative to the first; None
    where one was not measured."""
    if one is None or other is None:
        return None
    return max(one["low"], other["low"]) <= min(one["high"], other["high"]) + apart * one["estimate"]


def compared(one: Path, two: Path) -> dict[str, Any]:
    """What the journals of the two runs say of the operators that both did."""
    (kind, alone), (_, both) = done(one), done(two)
    names = [name for name in alone if name in both]
    seconds = {"one": max(alone[n]["done_s"] for n in names), "two": max(both[n]["done_s"] for n in names)}
    starts = {n: (alone[n]["start"], both[n]["start"]) for n in names}
    return {
        "kind": kind,
        "operators": {n: {"one": alone[n], "two": both[n]} for n in names},
        "seconds": seconds,
        "ratio": round(seconds["one"] / seconds["two"], 3),
        "agree": [n for n in names if agree(*starts[n], 0.0)],
        "agree within 1 %": [n for n in names if agree(*starts[n], 0.01)],
        "disagree": [n for n in names if agree(*starts[n], 0.01) is False],
        "not_measured": [n for n in names if agree(*starts[n], 0.0) is None],
        "more on two": {n: row for n, row in both.items() if n not in alone},
    }


def fleets(names: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both runs, and what they come to."""
    first = 1 if options.together else 0
    own = {gpus: folder / "-".join(map(str, gpus)) for gpus in ((0,), (first, first + 1))}

    def optimised(gpus: tuple[int, ...]) -> None:
        cores = {gpu * options.cores + n for gpu in gpus for n in range(options.cores)}
        given = ["optimize", *names, "--gpus", ",".join(map(str, gpus)), "--rounds", str(options.rounds)]
        ended(begun(given, own[gpus], cores), options.minutes and 60 * options.minutes)

    with ThreadPoolExecutor(2 if options.together else 1) as pool:
        list(pool.map(optimised, own))
    return compared(*(next(place.glob("logs/.fleet/*/journal.jsonl")) for place in own.values()))


def self_tests(names: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The judge's A/A test on one GPU, alone and while its neighbour optimises operators."""
    gpu = 1 if options.together else 0
    here, there = ({g * options.cores + n for n in range(options.cores)} for g in (gpu, gpu + 1))

    def tested() -> Any:
        given = ["bench", "--self-test", "--runs", "50", "--json"]
        return json.loads(ended(begun(given, folder / "test", here, CUDA_VISIBLE_DEVICES=str(gpu))))

    alone = tested()
    again = ["optimize", *names[:4], "--gpus", str(gpu + 1), "--rounds", "5"]
    neighbour = begun(again, folder / "neighbour", there)
    beside = tested()
    still = neighbour.poll() is None
    neighbour.terminate()
    neighbour.communicate()
    return {"alone": alone, "beside a neighbour": beside, "the neighbour worked to the end": still}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="of each of the two runs")
    parser.add_argument("--cores", type=int, default=16, help="of every GPU")
    parser.add_argument(
        "--together", action="store_true", help="GPU 0 beside GPUs 1 and 2, on a machine of three or more"
    )
    parser.add_argument("--only-self-test", action="store_true")
    parser.add_argument("--journals", nargs=2, type=Path, metavar=("ONE", "TWO"))
    parser.add_argument("--into", type=Path, default=HERE)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    path = options.into / "fleet.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    specs = sorted(spec.stem for spec in (ROOT / "specs").glob("*.yaml"))
    names = specs[:: max(1, len(specs) // options.operators)][: options.operators]
    ran = {"command": " ".join(["python docs/benchmarks/fleet.py", *sys.argv[1:]]), "cores": options.cores}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        if options.journals:
            found["fleets"] = compared(*options.journals)
        elif not options.only_self_test:
            found["fleets"] = {**ran, "machine": machine(), "asked": names, **fleets(names, options, Path(name))}
            path.write_text(json.dumps(found, indent=1) + "\n")
        if not options.journals:
            found["self_test"] = {**ran, "machine": machine(), **self_tests(names, options, Path(name))}
    path.write_text(json.dumps(found, indent=1) + "\n")
    told(found)


def told(found: dict[str, Any]) -> None:
    """Print what is known."""
    if "fleets" in found:
        fleets, count = found["fleets"], len(found["fleets"]["operators"])
        one, two = fleets["seconds"].values()
        print(f"{count} operators: {one:.0f} s on one GPU, {two:.0f} s on two; {fleets['ratio']:.2f} times as fast")
        print(f"the aim of two GPUs is {AIM}")
        print(f"{len(fleets['agree'])} of {count} speedups agree, {len(fleets['agree within 1 %'])} within 1 %")
        print(f"disagree: {fleets['disagree']}; not measured: {fleets['not_measured']}")
    for when in ("alone", "beside a neighbour"):
        for one in found.get("self_test", {}).get(when, {}).get("results", ()):
            print(f"A/A {when}, {one['actual_us']:.1f} µs: {one['covered']} of {one['runs']} intervals hold 1.00")


if __name__ == "__main__":
    main()

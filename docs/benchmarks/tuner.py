"""Measure the tuner on a GPU: seconds from nothing and warm, rounds, tables of kernels, ceilings, recorded spaces.

    python docs/benchmarks/tuner.py                        # everything but recorded spaces, into tuner.json beside it
    python docs/benchmarks/tuner.py --only tune hardware   # some parts
    python docs/benchmarks/tuner.py --record softmax matmul --into FOLDER   # spaces measured exhaustively, as CSV

Works in a folder of its own with caches of its own, so that "from nothing" means it. `--configs` restricts what is
recorded, such as `variant=looped`: a space of ten thousand configurations takes the better part of an hour.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAIN = "import sys; from kernelgen.cli.app import main; sys.exit(main())"
MEMORY_BOUND, PRODUCTS = ("softmax", "rms_norm", "layer_norm"), ("matmul", "attention")


def run(folder: Path, *arguments: str) -> tuple[float, Any]:
    """Seconds of a command of kernelgen's, and the document that it printed."""
    began = time.monotonic()
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton")}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments, "--json"], cwd=folder, env=environment, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    seconds = round(time.monotonic() - began, 1)
    print(f"{seconds:7.1f} s  exit {done.returncode}  kernelgen {' '.join(arguments)}", flush=True)
    if done.returncode:
        print(done.stderr.strip()[-2000:])
    return seconds, json.loads(done.stdout) if done.stdout.strip() else None


def tuned(name: str) -> dict[str, Any]:
    """An operator tuned from nothing, then again with what the first run left in memory and caches."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(folder, "new", name)
        row: dict[str, Any] = {"operator": name}
        for which in ("cold", "warm"):
            seconds, found = run(folder, "tune", name, "--fresh", "--force")
            row[which] = {
                "seconds": seconds,
                "speedup": found and found["speedup"],
                "reason": found and found["reason"],
            }
        return row


def optimised(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        run(Path(made), "new", name)
        seconds, found = run(Path(made), "optimize", name, "--rounds", "5")
        rounds = len(found["rounds"]) - 1 if found else 0
        return {"operator": name, "seconds": seconds, "rounds": rounds, "speedup": found and found["speedup"]}


def profiled(name: str, into: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        run(Path(made), "new", name)
        file = into / f"profile_{name}.csv"
        seconds, rows = run(Path(made), "profile", name, "--configs", "prog", "--csv", str(file.resolve()))
        return {
            "operator": name,
            "seconds": seconds,
            "rows": len(rows or []),
            "from": sorted({r["source"] for r in rows or []}),
        }


def record(name: str, configs: str, into: Path) -> None:
    """Every configuration measured: a file a case, in the form that `kernelgen tune --replay` reads."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(folder, "new", name)
        run(folder, "tune", name, "--configs", configs)
        for journal in folder.rglob("journal.jsonl"):
            write_spaces(name, journal.parent, into)


def write_spaces(name: str, journal: Path, into: Path) -> None:
    """What a run measured, a file a case; what did not work has an infinite time."""
    from kernelgen.knowledge.rows import of_run

    cases: dict[str, dict[tuple[str, str], float]] = {}
    for row in of_run(journal):
        time_ms = float("inf") if row.time_us is None else row.time_us / 1e3
        cases.setdefault(row.case, {}).setdefault((row.variant, row.schedule), time_ms)
    for number, (case, times) in enumerate(cases.items()):
        path = into / f"{name}-{number}.csv.gz"
        path.write_bytes(gzip.compress(_space(times).encode(), mtime=0))
        print(f"{len(times)} configurations of {case} in {path}")


def _space(times: dict[tuple[str, str], float]) -> str:
    rows = [({"variant": variant, **json.loads(values)}, time) for (variant, values), time in times.items()]
    names = list(dict.fromkeys(name for values, _ in rows for name in values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "time_ms"])
    writer.writerows([*(values.get(name, "-") for name in names), time] for values, time in rows)
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("hardware", "tune", "optimize", "profile"))
    parser.add_argument("--record", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--configs", default="all")
    parser.add_argument("--into", type=Path, default=HERE)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    for name in given.record:
        record(name, given.configs, given.into.resolve())
    if given.record:
        return
    parts = given.only or ("hardware", "tune", "optimize", "profile")
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "command": "python docs/benchmarks/tuner.py"}
    with tempfile.TemporaryDirectory() as made:
        if "hardware" in parts:
            svg = given.into.resolve() / "roofline.svg"
            found["hardware_s"], found["hardware"] = run(Path(made), "hardware", "--measure", "--svg", str(svg))
    names = (*MEMORY_BOUND, *PRODUCTS)
    found["tune"] = [tuned(name) for name in names if "tune" in parts]
    found["optimize"] = [optimised(name) for name in names if "optimize" in parts]
    found["profile"] = [profiled(name, given.into) for name in PRODUCTS if "profile" in parts]
    path = given.into / "tuner.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()

"""Measure the tuner on a GPU: against triton.autotune, spaces recorded whole, seconds from nothing and warm, rounds,
tables of kernels, ceilings.

    python docs/benchmarks/tuner.py                                   # every part, into tuner.json beside it
    python docs/benchmarks/tuner.py --only compare record --seconds 460 --into OUT
    python docs/benchmarks/tuner.py --only record/matmul tune/softmax # single parts, in this order
    python docs/benchmarks/tuner.py --dry                             # the spaces and what would run; needs no GPU

A part takes LIMIT_S at most and is then ended, all of them after --seconds. tuner.json is written whenever something
is known, and keeps what earlier calls found; a line says what a part came to. One that is at work when the process is
interrupted or ended leaves what it has. Each works in a folder of its own with caches of its own, so that "from
nothing" means it. Helion is asked where it is installed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MAIN = [sys.executable, "-c", "import sys; from kernelgen.cli.app import main; sys.exit(main())"]
LIMIT_S, LONG_S, SETTLE_S, ENDING_S = 150.0, 300.0, 40.0, 10.0
"""Of a part; of one that compiles hundreds of products; of it what a search leaves for its end; and what an interrupted
command has to leave what it knows."""
LEAST_S = 30.0
"""A part that has less is not begun."""
MEMORY_BOUND, PRODUCTS = ("softmax", "rms_norm", "layer_norm"), ("matmul", "attention")

ROWS = "NUM_STAGES=1,loads=default,stores=default,backwards=False,num_warps=4,num_warps=8,num_warps=16"
ONE_KERNEL = f"variant=looped_rows,keep_row=True,specialize=False,{ROWS}"
COMPARED = {
    "softmax": ("[16384] D=4096 float16", ONE_KERNEL),
    "rms_norm": ("[16384] D=4096 float16", ONE_KERNEL),
    "matmul": (
        "M=4096 K=4096 N=4096 float16",
        "variant=tiles,swap=False,GROUP_M=8,BLOCK_M=64,BLOCK_M=128,BLOCK_N=64,BLOCK_N=128,BLOCK_N=256,"
        "BLOCK_K=32,BLOCK_K=64,num_warps=4,num_warps=8,num_stages=3,num_stages=4",
    ),
}
"""A case and the part of its space that is one kernel, which is what Triton's autotuner can search."""
TILES = "variant=boxes,BLOCK_M=64,BLOCK_M=128,BLOCK_N=32,BLOCK_N=64,BLOCK_N=128,num_warps=4,num_warps=8"
PRODUCT_TILES = (
    "variant=boxes,swap=False,GROUP_M=8,BLOCK_M=64,BLOCK_M=128,BLOCK_M=256,BLOCK_N=64,BLOCK_N=128,BLOCK_N=256,"
    "BLOCK_K=64,num_warps=4,num_warps=8,num_stages=2,num_stages=3,num_stages=4"
)
RECORDED = {
    "matmul": ("matmul", ("M=4096 K=4096 N=4096 float16",), PRODUCT_TILES),
    "matmul_2048": ("matmul", ("M=2048 K=2048 N=2048 float16",), PRODUCT_TILES),
    "attention_64": ("attention", ("B=4 H=32 S=4096 D=64 L=4096 E=64 float16",), TILES),
    "attention_128": ("attention", ("B=4 H=32 S=4096 D=128 L=4096 E=128 float16",), TILES),
    "softmax": ("softmax", ("[16384] D=4096 float16", "[512] D=131072 float16"), f"{ROWS},keep_row=True"),
    "layer_norm": ("layer_norm", ("[16384] D=4096 float16", "[65536] D=1024 float16"), f"{ROWS},keep_row=True"),
}
"""By part: an operator, cases, and the part of their space that is measured whole. Cases that share a row of the table
are parts of their own: what is slow on one is not timed on the next."""


Keep = Callable[[dict[str, Any]], None]
"""Takes what a part knows so far."""


@dataclass(frozen=True)
class Call:
    """A command that ran."""

    seconds: float
    document: Any
    """What it printed as JSON; None where nothing is whole."""
    error: str


def call(folder: Path, command: list[str], end: float, cache: str = "triton") -> Call:
    """Run a command until `end`, by time.monotonic(); one that is not done ENDING_S before is interrupted, so that it
    leaves what it knows, then killed."""
    began = time.monotonic()
    limit = max(end - ENDING_S - began, 1.0)
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / cache), "PYTHONPATH": search}
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        running = subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, stdout=out, stderr=err)
        try:
            for patience, then in ((limit, signal.SIGINT), (ENDING_S, signal.SIGKILL), (None, signal.SIGKILL)):
                try:
                    running.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    running.send_signal(then)
        finally:
            running.kill()  # where this process was interrupted
        out.seek(0)
        err.seek(0)
        said, complaint = out.read().strip(), err.read().strip()
    seconds = round(time.monotonic() - began, 1)
    shown = " ".join(argument for argument in command[1:] if "import sys" not in argument and argument != "-c")
    print(f"{seconds:7.1f} s  exit {running.returncode}  {shown}", flush=True)
    failed = f"exit {running.returncode}: {complaint[-1500:]}" if running.returncode else ""
    for text in (said, said.rpartition("\n")[2]):
        try:
            return Call(seconds, json.loads(text), failed)
        except ValueError:
            continue
    return Call(seconds, None, failed or "printed nothing")


def kernelgen(folder: Path, end: float, *arguments: str) -> Call:
    return call(folder, [*MAIN, *arguments, "--json"], end)


def share(end: float, part: float) -> float:
    """When a part of the time until `end` is over."""
    return end - (1 - part) * (end - time.monotonic())


def searching(end: float) -> tuple[str, str]:
    """How long a search may take that has to end by then."""
    return "--max-minutes", f"{max(end - time.monotonic() - SETTLE_S, 5) / 60:.2f}"


def compared(name: str, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    """kernelgen's tuner and Triton's over one space: seconds, and how fast the choices are against each other."""
    case, configs = COMPARED[name]
    keep({"case": case, "space": configs})
    kernelgen(folder, end, "new", name, "--no-verify")
    mine: list[str] = []
    if not dry:
        midway = share(end, 0.5)
        tuned = kernelgen(folder, midway, "tune", name, "--only", case, "--configs", configs, *searching(midway))
        keep({"kernelgen_s": tuned.seconds, "kernelgen_error": tuned.error})
        for journal in folder.rglob("journal.jsonl"):
            found = chosen(journal.parent, case)
            keep(found)
            mine = [found["kernelgen"]] if found else []
    script = [sys.executable, str(HERE / "autotuned.py"), name, case, configs, *mine, *["--dry"][: int(dry)]]
    helion = bool(importlib.util.find_spec("helion") and mine)
    theirs = call(folder, script, share(end, 0.5) if helion else end, cache="triton-autotune")
    keep({**(theirs.document or {}), "autotune_process_s": theirs.seconds, "autotune_error": theirs.error})
    if helion:
        other = call(folder, [*script, "--helion"], end, cache="triton-helion")
        keep({"helion": other.document, "helion_process_s": other.seconds, "helion_error": other.error})


def chosen(journal: Path, case: str) -> dict[str, Any]:
    """What a run found fastest on a case, and the seconds from its first candidate to its last."""
    from kernelgen.journal import read
    from kernelgen.outcomes import evaluation_from_json

    records = [r for r in read(journal) if r.kind in ("choice", "candidate")]
    best: dict[tuple[bool, float], str] = {}
    for record in records:
        if record.kind == "candidate":
            for one in evaluation_from_json(record.data["evaluation"]).speedups("current"):
                if one.case == case:
                    best[one.interval is not None, one.speedup] = record.data["what"]
    if not best:
        return {}
    began, ended = (datetime.fromisoformat(r.time) for r in (records[0], records[-1]))
    evaluations = len({r.data["hash"] for r in records if r.kind == "candidate"})
    return {
        "kernelgen": best[max(best)], "search_s": round((ended - began).total_seconds(), 1), "evaluations": evaluations,
    }  # fmt: skip


def recorded(part: str, into: Path, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    """Every configuration measured: a file a case, in the form that `kernelgen tune --replay` reads."""
    name, cases, configs = RECORDED[part]
    only = [argument for case in cases for argument in ("--only", case)]
    asked = ("tune", name, *only, "--configs", f"all,{configs}")
    if dry:
        rows = kernelgen(folder, end, *asked, "--dry-run").document["rows"]
        keep({"space": configs, "legal": {" and ".join(row["cases"]): row["legal"] for row in rows}})
        return
    kernelgen(folder, end, "new", name, "--no-verify")
    done = kernelgen(folder, end, *asked, *searching(end))
    keep({"space": configs, "seconds": done.seconds, "error": done.error})
    for journal in folder.rglob("journal.jsonl"):
        keep({"files": write_spaces(name, journal.parent, configs, into)})


def write_spaces(name: str, journal: Path, configs: str, into: Path) -> list[dict[str, Any]]:
    """What a run measured, a file a case; what did not work has an infinite time."""
    from kernelgen.journal import read

    device = next(r for r in read(journal) if r.kind == "run").data["device"]["device"]
    into.mkdir(parents=True, exist_ok=True)
    files = []
    for case, (times, legal) in times_of(journal, configs).items():
        slug = re.sub(r"[^\w.]+", "_", f"{case}-{device}").strip("_")
        path = into / f"{name}-{slug}.csv.gz"
        path.write_bytes(gzip.compress(_space(times).encode(), mtime=0))
        files.append({"file": path.name, "case": case, "configurations": len(times), "of": legal})
        print(f"{len(times)} of {legal} configurations of {case} in {path}", flush=True)
    return files


Times = dict[tuple[str, str], float]
"""Milliseconds by variant and the JSON of its values."""


def times_of(journal: Path, configs: str) -> dict[str, tuple[Times, int]]:
    """By case what a run measured, and how many configurations there are. The current kernel is one of them, and so is
    what compiles to its code: their time is the median of what it took beside the others."""
    from kernelgen.evaluate.base import SAME_CODE
    from kernelgen.journal import read
    from kernelgen.knowledge.rows import of_run

    records = read(journal)
    begun = next(r.data for r in records if r.kind == "run")
    legal = {one["row"]: one["legal"] for r in records if r.kind == "space" for one in r.data["rows"]}
    rows = {one["hash"]: one["row"] for r in records if r.kind == "choice" for one in r.data["candidates"]}
    found: dict[str, Times] = {}
    for row in of_run(journal):
        time_ms = float("inf") if row.time_us is None else row.time_us / 1e3
        found.setdefault(row.case, {}).setdefault((row.variant, row.schedule), time_ms)
    beside: dict[str, list[float]] = {}
    places: dict[str, int] = {}
    equals: dict[int, list[Any]] = {row: [begun["table"][row]["schedule"]] for row in legal}
    for data in (r.data for r in records if r.kind == "candidate" and rows.get(r.data["hash"]) is not None):
        row = rows[data["hash"]]
        for timing in data["evaluation"]["timings"]:
            if timing["against"] == "current":
                places[timing["case"]] = row
                beside.setdefault(timing["case"], []).append(timing["against_us"] / 1e3)
        if data["evaluation"]["message"] == SAME_CODE + begun["hash"]:
            equals[row].append(data["table"][row]["schedule"])
    for case, times in beside.items():
        for schedule in equals[places[case]]:
            if _is_asked(schedule, configs):
                key = schedule["variant"], json.dumps(schedule["values"], sort_keys=True)
                found[case].setdefault(key, statistics.median(times))
    return {case: (times, legal[places[case]]) for case, times in found.items() if case in places}


def _is_asked(schedule: dict[str, Any], configs: str) -> bool:
    """Whether a configuration belongs to AXIS=VALUE,…"""
    wanted: dict[str, set[str]] = {}
    for name, _, value in (part.partition("=") for part in configs.split(",")):
        wanted.setdefault(name, set()).add(value)
    values = {"variant": schedule["variant"], **schedule["values"]}
    return all(name in values and str(values[name]) in among for name, among in wanted.items())


def _space(times: Times) -> str:
    rows = [({"variant": variant, **json.loads(values)}, time) for (variant, values), time in times.items()]
    names = list(dict.fromkeys(name for values, _ in rows for name in values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "time_ms"])
    writer.writerows([*(values.get(name, "-") for name in names), time] for values, time in rows)
    return text.getvalue()


def round_seconds(journal: Path) -> list[float]:
    """How long each round took; the first is the baseline."""
    from kernelgen.journal import read

    records = read(journal)
    times = [datetime.fromisoformat(r.time) for r in (*records[:1], *(r for r in records if r.kind == "round"))]
    return [round((after - before).total_seconds(), 1) for before, after in pairwise(times)]


def tuned(name: str, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    """An operator tuned from nothing, then again with what the first run left in memory and caches."""
    kernelgen(folder, end, "new", name, "--no-verify")
    for which, part in (("cold", 0.6), ("warm", 1.0)):
        done = kernelgen(folder, share(end, part), "tune", name, "--fresh", "--force", *_dry(dry))
        found = done.document or {}
        keep({which: {"seconds": done.seconds, "speedup": found.get("speedup"), "reason": found.get("reason"),
                      "error": done.error}})  # fmt: skip


def optimised(name: str, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    kernelgen(folder, end, "new", name, "--no-verify")
    done = kernelgen(folder, end, "optimize", name, "--rounds", "5", *_dry(dry))
    keep({"seconds": done.seconds, "speedup": (done.document or {}).get("speedup"), "error": done.error})
    for journal in folder.rglob("journal.jsonl"):
        keep({"round_s": round_seconds(journal.parent)})


def profiled(name: str, into: Path, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    kernelgen(folder, end, "new", name, "--no-verify")
    if dry:
        return
    file = into / f"profile_{name}.csv"
    case = COMPARED[name][0] if name in COMPARED else RECORDED[f"{name}_128"][1][0]
    done = kernelgen(folder, end, "profile", name, "--only", case, "--configs", "prog", "--csv", str(file))
    rows = done.document or []
    sources = sorted({r["source"] for r in rows})
    keep({"seconds": done.seconds, "rows": len(rows), "from": sources, "error": done.error})


def ceilings(into: Path, folder: Path, end: float, dry: bool, keep: Keep) -> None:
    measure = [] if dry else ["--measure", "--svg", str(into / "roofline.svg")]
    done = kernelgen(folder, end, "hardware", *measure)
    keep({"seconds": done.seconds, "measured": done.document, "error": done.error})


def _dry(dry: bool) -> list[str]:
    return ["--dry-run"] if dry else []


Part = Callable[[Path, float, bool, Keep], None]


def parts(into: Path) -> dict[str, Part]:
    """By name, what is asked first at the head."""
    return {
        **{f"compare/{name}": partial(compared, name) for name in COMPARED},
        **{f"record/{name}": partial(recorded, name, into / "spaces") for name in RECORDED},
        "hardware/ceilings": partial(ceilings, into),
        **{f"tune/{name}": partial(tuned, name) for name in (*MEMORY_BOUND, *PRODUCTS)},
        **{f"optimize/{name}": partial(optimised, name) for name in (*MEMORY_BOUND, *PRODUCTS)},
        **{f"profile/{name}": partial(profiled, name, into) for name in PRODUCTS},
    }


def limit_s(part: str) -> float:
    group, _, name = part.partition("/")
    return LONG_S if group in ("compare", "tune") and name in PRODUCTS else LIMIT_S


class Kept:
    """What is known, in tuner.json from the moment on that it is."""

    def __init__(self, path: Path, dry: bool) -> None:
        self.path, self.dry = path, dry
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def begin(self, part: str) -> None:
        """Forget what an earlier call found of a part."""
        group, _, name = part.partition("/")
        self.row: dict[str, Any] = {"date": time.strftime("%Y-%m-%d")}
        self.found.setdefault(group, {})[name] = self.row

    def keep(self, more: dict[str, Any]) -> None:
        self.row |= more
        if not self.dry:
            self.path.write_text(json.dumps(self.found, indent=1) + "\n")


def line(part: str, row: dict[str, Any]) -> str:
    """What a part came to, in short."""
    shown = {k: v for k, v in row.items() if k not in ("date", "space", "case") and v not in ("", None)}
    return f"== {part}: {json.dumps(shown)[:600]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PART", help="such as record or record/matmul")
    parser.add_argument("--seconds", type=float, default=1e9, help="in all")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--dry", action="store_true", help="without a GPU: nothing is measured or written")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    known = parts(given.into.resolve())
    wanted: list[str] = []
    for one in given.only or known:
        meant = [part for part in known if one in (part, part.partition("/")[0])]
        if not meant:
            parser.error(f"--only {one}: no such part; there are {', '.join(known)}")
        wanted += meant
    wanted = list(dict.fromkeys(wanted))
    given.into.mkdir(parents=True, exist_ok=True)
    kept, end = Kept(given.into / "tuner.json", given.dry), time.monotonic() + given.seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not given.dry:
        kept.found["machine"] = machine()
    for part in wanted:
        left = end - time.monotonic()
        if left < LEAST_S:
            print(f"left out, {left:.0f} s were left: {', '.join(wanted[wanted.index(part) :])}")
            break
        print(f"{part}:", flush=True)
        kept.begin(part)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            try:
                known[part](Path(made), min(time.monotonic() + limit_s(part), end), given.dry, kept.keep)
            except Exception as error:  # the parts after it are worth their seconds
                kept.keep({"error": f"{type(error).__name__}: {error}"})
            except KeyboardInterrupt:
                kept.keep({"error": "interrupted"})
                raise SystemExit(f"{line(part, kept.row)}\ninterrupted") from None
        print(line(part, kept.row), flush=True)


if __name__ == "__main__":
    main()

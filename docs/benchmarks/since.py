"""Measure the shipped kernels against those of an earlier commit: their speed in one run, and their text.

    python docs/benchmarks/since.py 62b5ed4a                  # against a commit; one GPU, 6 minutes with 16 cores
    python docs/benchmarks/since.py FOLDER --called 62b5ed4a --only softmax    # against the operators/ of that commit
    python docs/benchmarks/since.py --merge FILE              # the rows of FILE, measured beside; anywhere
    python docs/benchmarks/since.py --table                   # since.md from since.json, anywhere

Both files of an operator are loaded in one process with the schedule tables that they were committed with, called once,
compared, and timed in interleaved pairs at every shape of today's performance test, in its first dtype.

Processes prepare operators at once, then measure one at a time: while a clock runs nobody else uses the GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import small
from measure import HERE, ROOT, operators, performance_test, write

COMMIT = "62b5ed4a"
"""The last one whose kernels are lists of text over rows and columns."""
SLOWER = 0.99
"""Below which a kernel is called slower, where its whole interval is."""
OLD = "SINCE_OPERATORS"
"""The environment variable by which the processes find the earlier folder."""


def operators_of(reference: str) -> Path:
    """The operators/ folder of a commit, taken out of git into a folder of its own; a folder stands for itself."""
    if Path(reference).is_dir():
        return Path(reference).resolve()
    into = Path(tempfile.mkdtemp(prefix="since_"))
    command = ["git", "-C", str(ROOT), "archive", reference, "operators"]
    packed = subprocess.run(command, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"{reference} is neither a folder nor a commit that holds operators/")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into / "operators"


def text_of(folder: Path, name: str) -> str:
    """The kernel file of an operator, empty where there is none."""
    path = folder / name / f"{name}_triton.py"
    return path.read_text("utf-8") if path.exists() else ""


class Worker(small.Worker):
    """Operators whose two kernels were loaded and called in this process."""

    def prepare(self, name: str, wanted: list[str], until: float) -> list[tuple[str, str]]:
        """Call both kernels of an operator at every shape; those that are ready, by their keys."""
        from kernelgen.spec import load_spec

        spec = load_spec(ROOT / "specs" / f"{name}.yaml")
        operator = performance_test(name).OPERATOR
        dtypes = spec.performance[0].dtypes
        ready = []
        for case in (case for case in spec.performance if case.dtypes == dtypes):
            if time.time() > until:
                break
            key = f"{name} {case.label}"
            try:
                self.items[key] = self._pair(operator, case)
                ready.append(("all", key))
            except Exception:
                print(f"{key}: {traceback.format_exc(limit=4)}", file=sys.stderr, flush=True)
        return ready

    def _pair(self, operator: Any, case: Any) -> small.Item:
        import torch

        from kernelgen import judge
        from kernelgen.judge import performance

        make_inputs = performance.make_inputs(operator, judge.Case.from_json(case.to_json()), seed=1)
        inputs = make_inputs()
        expected = operator.reference(*inputs)
        functions, failed = {}, {}
        for name, folder in (("old", Path(os.environ[OLD])), ("new", ROOT / "operators")):
            try:
                function = _loaded(folder / operator.name / f"{operator.name}_triton.py", operator.name, name)
                wrong = small._difference(function(*inputs), expected)
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            if wrong:
                failed[name] = wrong
            else:
                functions[name] = function
        torch.cuda.synchronize()
        del inputs, expected
        torch.cuda.empty_cache()
        row = {"operator": operator.name, "case": case.label}
        return small.Item("all", case, make_inputs, functions, {}, failed, row)

    def measure(self, key: str) -> dict[str, Any]:
        """One row: how many times as fast today's kernel is, with its 95 % interval."""
        import torch

        from kernelgen import judge
        from kernelgen.judge import timing

        item = self.items.pop(key)
        row = {**item.row, "failed": item.failed}
        if not item.failed:
            old, new = item.functions["old"], item.functions["new"]
            race = timing.quick([old, new], item.make_inputs, repetitions=5, seed=1)
            row["us"] = {name: round(one.median_us, 3) for name, one in zip(("old", "new"), race, strict=True)}
            found = judge.compare(old, new, item.make_inputs, blocks=5, pairs=8, time_cap_s=5, half_width=0.004, seed=1)
            row["over old"] = [round(n, 4) for n in (found.speedup, found.low, found.high)]
        torch.cuda.empty_cache()
        return row


def _loaded(path: Path, name: str, when: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"since_{when}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def texts(folder: Path, names: list[str]) -> dict[str, dict[str, list[int]]]:
    """Lines and kernels of the file as it was and as it is, by operator."""

    def told(text: str) -> list[int]:
        return [len(text.splitlines()), text.count("@triton.jit")]

    pairs = {name: (text_of(folder, name), text_of(ROOT / "operators", name)) for name in names}
    return {name: {"old": told(old), "new": told(new)} for name, (old, new) in pairs.items() if old}


def merged(data: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both runs' rows, of the same device and versions; of the same case the later ones."""
    told = ("device", "torch", "triton", "against")
    if any(data[key] != other[key] for key in told):
        raise SystemExit(f"not merged: {[other[key] for key in told]} is not {[data[key] for key in told]}")
    rows = {(row["operator"], row["case"]): row for row in (*data["rows"], *other["rows"]) if "operator" in row}
    both = {**data["texts"], **other["texts"]}
    return {**data, "rows": [rows[key] for key in sorted(rows)], "texts": {name: both[name] for name in sorted(both)}}


def table(data: dict[str, Any]) -> str:
    """The page: what became of speed and text, then every row, the slowest first."""
    rows = sorted((row for row in data["rows"] if "over old" in row), key=lambda row: float(row["over old"][0]))
    ratios = [row["over old"][0] for row in rows]
    slower = [row for row in rows if row["over old"][2] < SLOWER]
    told = list(data["texts"].values())
    (old_lines, old_kernels), (lines, kernels) = (
        [sum(one[when][i] for one in told) for i in (0, 1)] for when in ("old", "new")
    )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    out = [
        f"# Shipped kernels against those of commit {data['against']}, measured on {data['device']}",
        "",
        f"torch {data['torch']}, triton {data['triton']}, Python {data['python']}, {data['date']}.",
        f"Remade by `{data['command']} {data['against']}`, and this page from the data by",
        "`python docs/benchmarks/since.py --table`.",
        "",
        "That commit is the last before kernels were lowered to tiles, and before tables had rows for small problems.",
        f"{len(told)} of its operators are still shipped. Their files had {old_lines} lines and {old_kernels} Triton",
        f"functions; they have {lines} and {kernels}: variants for small problems are kernels of their own.",
        f"{sum(one['new'][0] < one['old'][0] for one in told)} files are shorter.",
        "",
        f"{len(rows)} shapes, timed in interleaved pairs: geometric mean {mean:.3f}; {len(slower)} are slower than"
        f" {SLOWER} with their whole interval, {sum(row['over old'][1] > 1.01 for row in rows)} faster than 1.01.",
        "",
        "| operator | case | old µs | new µs | old over new | lines | functions |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        (ratio, low, high), text, us = row["over old"], data["texts"][row["operator"]], row["us"]
        counts = [f"{text['old'][i]} → {text['new'][i]}" for i in (0, 1)]
        out.append(
            f"| {row['operator']} | {row['case']} | {us['old']:.1f} | {us['new']:.1f} | {ratio:.3f} [{low:.3f},"
            f" {high:.3f}] | {counts[0]} | {counts[1]} |"
        )
    timed = {row["operator"] for row in rows}
    untimed = [f"- {row['operator']} {row['case']}: {row['failed']}" for row in data["rows"] if row.get("failed")]
    untimed += [f"- {name}: not ready in time" for name in data["texts"] if name not in timed]
    out += ["", "Not timed:", *untimed] if untimed else []
    return "\n".join([*out, *(["", *data["since"]] if "since" in data else [])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("against", nargs="?", default=COMMIT, help="a commit, or an operators/ folder of that time")
    parser.add_argument("--called", metavar="COMMIT", help="of which commit a folder is")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE)) / "since.json")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=420.0, help="for the whole run, half of it for preparing")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", default=[])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        small.work(Worker)
    elif options.table or options.merge:
        path = HERE / "since.json"
        found = [json.loads(one.read_text("utf-8")) for one in ([path] if path.exists() else []) + options.merge]
        data = found[0]
        for other in found[1:]:
            data = merged(data, other)
        write(path, json.dumps(data, indent=1) + "\n")
        write(HERE / "since.md", table(data))
    else:
        if Path(options.against).is_dir() and not options.called:
            parser.error(f"{options.against} is a folder: --called says of which commit")
        folder = operators_of(options.against)
        os.environ[OLD] = str(folder)
        names = [name for name in options.only or operators() if text_of(folder, name)]
        until = (options.seconds / 2, options.seconds)
        data = small.run(names, ["all"], options.out, options.workers, Path(__file__), until)
        against = options.called or options.against
        write(options.out, json.dumps({**data, "against": against, "texts": texts(folder, names)}, indent=1) + "\n")


if __name__ == "__main__":
    main()

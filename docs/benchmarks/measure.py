"""Measure the shipped operators against eager, torch.compile and max-autotune in one run on one GPU.

    python docs/benchmarks/measure.py             # writes docs/benchmarks/DEVICE.json
    python docs/benchmarks/measure.py --anchors   # only the operators of the rows that summary.py names
    python docs/benchmarks/measure.py --missing --out FILE && python docs/benchmarks/measure.py --merge FILE
    python docs/benchmarks/measure.py --table     # writes README.md and h200.svg beside it from the committed data,
                                                  # and marks the operators whose kernel has changed since

Shapes are those of the operators' performance tests, in float16 but for rows that summary.py names in another dtype.
Every ratio is paired and has its interval.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chart import chart
from summary import ANCHORS, ASKED, anchored, summary

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COMMAND = "python docs/benchmarks/measure.py"
OPPONENTS = ["eager", "compile", "max-autotune"]
LOCK = threading.Lock()


def operators() -> list[str]:
    """The shipped operators, in the order of their names; not the parts that gradients are made of."""
    found, parts = (ROOT / "operators").rglob("*_performance.py"), ("backward", "forward")
    return sorted(p.name.removesuffix("_performance.py") for p in found if not p.parent.name.startswith(parts))


def measure(names: list[str], against: list[str], out: Path) -> None:
    """One run over all rows, one operator at a time on every GPU that is visible; `out` is written after each."""
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    gpus = visible.split(",") if visible else subprocess.check_output(numbers, text=True).split()
    waiting = queue.SimpleQueue[str]()
    for name in names:
        waiting.put(name)
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(len(gpus)) as pool:
        threads = [pool.submit(_serve, gpu, waiting, found, against, out, began) for gpu in gpus]
    for thread in threads:
        thread.result()


def _serve(
    gpu: str,
    waiting: queue.SimpleQueue[str],
    found: dict[str, dict[str, Any]],
    against: list[str],
    out: Path,
    began: str,
) -> None:
    """Operators until none waits, in a process that holds this GPU alone; one that dies is replaced."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, __file__, "--worker", "--against", *against]
    worker = None
    while not waiting.empty():
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            break
        if worker is None or worker.poll() is not None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            worker = subprocess.Popen(command, env=environment, text=True, **pipes)
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            print(f"{name}: the process ended with code {worker.wait()}", file=sys.stderr, flush=True)
            continue
        found[name] = json.loads(line)
        rows = [{**row, "run": began} for name in sorted(found) for row in found[name]["rows"]]
        write(out, json.dumps({**found[name]["machine"], "command": COMMAND, "rows": rows}, indent=1) + "\n")
    if worker is not None and worker.stdin:
        worker.stdin.close()
        worker.wait()


def merged(data: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The data with all rows of the operators that another run on the same device and versions measured."""
    told = ("device", "torch", "triton")
    if any(data[key] != other[key] for key in told):
        raise SystemExit(f"not merged: {[other[key] for key in told]} is not {[data[key] for key in told]}")
    anew = {row["operator"] for row in other["rows"]}
    rows = [row for row in data["rows"] if row["operator"] not in anew] + other["rows"]
    return {**data, "rows": sorted(rows, key=lambda row: str(row["operator"]))}


def write(path: Path, text: str) -> None:
    """The whole file or none of it, whatever ends this process."""
    with LOCK:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)


def work(against: list[str]) -> None:
    """Names of operators on stdin, a line of JSON for each on stdout. Needs a GPU."""
    sys.path[:0] = [str(ROOT)]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a compiler prints is no answer
    from kernelgen import judge

    judge.prepare()
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps({"machine": machine(), "rows": measured(name, against)}), file=answers, flush=True)


def machine() -> dict[str, Any]:
    """The device and the versions that a row was measured with."""
    import torch
    import triton

    driver = Path("/proc/driver/nvidia/version")
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver.read_text().split("\n")[0] if driver.exists() else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def measured(name: str, against: list[str]) -> list[dict[str, Any]]:
    """A row for every float16 case of an operator's performance test, or of the first dtype where it has no float16;
    and for cases of other dtypes that the summary has."""
    from kernelgen import judge

    module = performance_test(name)
    rows, dtypes = [], [case.dtypes.get("T", "float16") for case in module.CASES]
    wanted = "float16" if "float16" in dtypes else dtypes[0]
    arithmetic = product_us(name)
    for case, dtype in zip(module.CASES, dtypes, strict=True):
        if dtype != wanted and (name, case.label) not in ANCHORS.values():
            continue
        report = judge.performance_case(module.OPERATOR, case, against=against)
        row = {
            "operator": name,
            "kernel": fingerprint(name),
            "case": case.label,
            "floor_us": max(report.floor_us, arithmetic.get(case.label, 0.0)),
            "bytes": report.bytes,
            "comparisons": {k: {**judge.to_json(c), "samples": None} for k, c in report.comparisons.items()},
            "message": report.message or report.left_out,
            "notes": report.notes,
        }
        rows.append(row)
        shown = {k: round(c.speedup, 3) for k, c in report.comparisons.items()}
        times = [c.b_us for c in report.comparisons.values()][:1]
        share = f"{100 * row['floor_us'] / times[0]:.0f} %" if times and row["floor_us"] else ""
        print(f"{name:14s} {case.label:34s} {shown} {share} {row['message']}", file=sys.stderr, flush=True)
    return rows


def product_us(name: str, arch: str | None = None) -> dict[str, float]:
    """Case -> the least time of an operator's products and convolutions by the peaks of the data sheet, in µs; no case
    whose lengths decide how much of it is computed."""
    from kernelgen import devices
    from kernelgen.analysis import floor_seconds, work
    from kernelgen.generation import plan_of
    from kernelgen.spec import load_spec

    path = ROOT / "specs" / f"{name}.yaml"
    if not path.exists():  # a gradient, which is generated with its operator
        return {}
    spec, peaks = load_spec(path), devices.find(arch=arch).facts
    plan = plan_of(spec, ROOT / "operators")
    works = {case.label: work(plan, case) for case in spec.performance}
    return {
        label: floor_seconds(w, peaks) * 1e6 for label, w in works.items() if (w.products or w.calls) and not w.at_most
    }


def performance_test(name: str) -> Any:
    """The module of an operator's performance test."""
    sys.path[:0] = [str(_folder(name))]
    module = importlib.import_module(f"{name}_performance")
    sys.path.pop(0)
    return module


def fingerprint(name: str) -> str:
    """Which text of the kernel was timed."""
    return hashlib.sha256((_folder(name) / f"{name}_triton.py").read_bytes()).hexdigest()[:16]


def table(data: dict[str, Any]) -> str:
    """The measured rows as Markdown."""
    left_out = [row for row in data["rows"] if not row["comparisons"]]
    lines = [
        f"# Measured on {data['device']}",
        "",
        f"torch {data['torch']}, triton {data['triton']}, Python {data['python']}, {data['date']}.",
        f"Remade by `{data['command']}`, and this page from the data by `{data['command']} --table`.",
        "",
        "Ratios are PyTorch's device time over the generated kernel's, above 1 is faster, each with its 95 % interval",
        "(paired, interleaved, buffers swapped: see [measuring](../measuring.md)). The floor is the least bytes over",
        "the rate of a plain copy, or of a fill where nothing large is read, measured in the same run; for products",
        "and convolutions, their operations over the peak of the data sheet where that takes longer. More than 100 %",
        "says that the kernel writes faster than torch's fill. Operators may come from several calls on one machine;",
        "a row's ratios and floor are of one process. – was not compared (`--against eager compile`).",
        "Of a table that is looked up the floor counts every row; as many places drawn at random have 63 % of them.",
        "",
        "![Share of the floor, kernel and best of torch](h200.svg)",
        "",
        "| operator | case | kernel µs | over eager | over compile | over max-autotune | over the best | asked "
        "| floor |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        found = row["comparisons"]
        if not found:
            continue
        best = min(found.values(), key=lambda c: c["speedup"])
        cells = [_ratio(found[name]) if name in found else "–" for name in OPPONENTS]
        wanted = ASKED.get(f"{row['operator']} {row['case']}")
        cells += [f"**{best['speedup']:.3f}**", f"{wanted:.2f}" if wanted else ""]
        share = f"{100 * row['floor_us'] / best['b_us']:.0f} %"
        older = "" if row["kernel"] == fingerprint(row["operator"]) else " †"
        lines.append(
            f"| {row['operator']}{older} | {row['case']} | {best['b_us']:.1f} | {' | '.join(cells)} | {share} |"
        )
    plain = dict.fromkeys(r["operator"] for r in data["rows"] if not _log(r["operator"]).exists())
    lines += (
        [f"\nTimed with their first schedules, no rounds were run on this device: {', '.join(plain)}."] if plain else []
    )
    lines += _said(data)
    lines += [f"\nNot measured: {row['operator']} {row['case']}: {row['message']}" for row in left_out]
    return "\n".join(lines + summary(data) + self_test()) + "\n"


def _said(data: dict[str, Any]) -> list[str]:
    """What stands in the way of rows that are slower than the best of PyTorch."""
    found = [f"- {operator}: {text}" for operator, text in sorted(data.get("said", {}).items())]
    return ["", "## What stands in the way", "", *found] if found else []


def self_test() -> list[str]:
    """The judge timed against itself, from its own data."""
    path = HERE / "selftest.json"
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    lines = [
        "",
        "## The judge against itself",
        "",
        "The same function as both sides, by `kernelgen bench --self-test`:",
        "",
    ]
    lines += [
        "| device time | runs | interval covered 1.00 | median width | called faster or slower |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in data["results"]:
        width = f"{100 * row['median_width']:.2f} %"
        lines.append(f"| {row['actual_us']:.1f} µs | {row['runs']} | {row['covered']} | {width} | {row['called']} |")
    return lines


def _folder(name: str) -> Path:
    return next((ROOT / "operators").rglob(f"{name}_performance.py")).parent


def _log(name: str) -> Path:
    return _folder(name) / "optimization_log.md"


def _ratio(comparison: dict[str, Any]) -> str:
    return f"{comparison['speedup']:.3f} [{comparison['low']:.3f}, {comparison['high']:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--table", action="store_true", help="only write README.md and h200.svg from the data")
    parser.add_argument("--out", type=Path, default=HERE / "h200.json")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--missing", action="store_true", help="only shipped operators without a row")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="take the rows of FILE, measured elsewhere")
    parser.add_argument("--anchors", action="store_true", help="only the operators of the rows that summary.py names")
    parser.add_argument("--against", nargs="*", default=OPPONENTS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.against)
        return
    data = json.loads((HERE / "h200.json").read_text())
    if options.merge:
        data = merged(data, json.loads(options.merge.read_text()))
        write(HERE / "h200.json", json.dumps(data, indent=1) + "\n")
    elif not options.table:
        known = {row["operator"] for row in data["rows"]}
        chosen = [name for name in operators() if name not in known] if options.missing else options.only
        if options.anchors:
            chosen = sorted({operator for operator, _ in ANCHORS.values()})
        measure(chosen or operators(), options.against, options.out)
        data = json.loads((HERE / "h200.json").read_text())
    (HERE / "README.md").write_text(table(data))
    (HERE / "h200.svg").write_text(chart(data))
    (HERE / "anchors.svg").write_text(chart(anchored(data)))


if __name__ == "__main__":
    main()

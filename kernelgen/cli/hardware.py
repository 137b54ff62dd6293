"""`kernelgen hardware`: the device, the table of peaks, what the device reaches, and how far predictions are off."""

from __future__ import annotations

import json as text_json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli.picture import picture
from kernelgen.cli.terminal import Arch, DeviceName, Json, Only, emit, note, table
from kernelgen.errors import KernelgenError, NoDeviceError, UsageError
from kernelgen.files import write_atomic
from kernelgen.settings import resolve

if TYPE_CHECKING:
    from kernelgen.devices import Device, DeviceFacts, NpuFacts, Peaks
    from kernelgen.devices.ceilings import Ceilings

Measure = Annotated[
    bool,
    typer.Option("--measure", help="Measure and cache what the device reaches; --device cpu measures this CPU."),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a roofline chart to this file.")]
Predictions = Annotated[
    Path | None,
    typer.Option(
        "--predictions", metavar="FILE",
        help="Compare predictions with measured times, such as docs/benchmarks/h200.json.",
    ),
]  # fmt: skip

LIMIT_S = 300


def hardware(
    device: DeviceName = None,
    arch: Arch = None,
    measure: Measure = False,
    svg: Svg = None,
    predictions: Predictions = None,
    only: Only = None,
    json: Json = False,
) -> None:
    """Show the device here, and limits and peaks of all known ones.

    --measure measures bandwidths, matrix rates and latencies. --only selects the operators of --predictions.
    """
    from kernelgen import devices
    from kernelgen.devices import ceilings

    if predictions is not None:
        _predicted(predictions, only or [], json)
        return
    settings = resolve({"device": device, "arch": arch})
    here = devices.find(settings.device, settings.arch)
    if measure:
        reached = measured(here, small=settings.device == "cpu")
        note(f"kept in {ceilings.save(reached)}")
    found = reached if measure else ceilings.known(here.facts.name)
    if svg is not None:
        write_atomic(svg, picture(here.facts, found))
    family: tuple[Peaks, ...] = devices.facts.TABLE
    if isinstance(here.facts, devices.NpuFacts):
        family = devices.facts.NPU_TABLE
    shown = [here.facts] if settings.arch else [f for f in family if f != here.facts] + [here.facts]
    if json:
        document = {"here": here.describe(), "facts": [asdict(facts) for facts in shown]}
        emit({**document, "measured": asdict(found) if found else None})
        return
    if measure and found:
        print(_reached(found, here.facts))
        return
    for name, value in here.describe().items():
        print(f"{name:8}{value}")
    print()
    print(table([("", *(facts.key for facts in shown)), *_rows(shown)]))
    print("\nsources")
    for facts in shown:
        print(f"  {facts.key}: {facts.source}")
    if found:
        print(f"\nmeasured\n{_reached(found, here.facts)}")


def measured(here: Device, *, small: bool) -> Ceilings:
    """What the device reaches, measured in a process of its own. Raises NoDeviceError without a GPU, unless the CPU's
    own rates are asked for, at small sizes."""
    if not small and (not here.measures or here.name != "cuda"):
        raise NoDeviceError(
            "hardware --measure needs an NVIDIA GPU, and none was found; --device cpu measures this CPU"
        )
    from kernelgen.devices.ceilings import Ceilings, Rate

    command = [sys.executable, "-m", "kernelgen.worker.ceilings", *(("cpu", "--small") if small else ("cuda",))]
    environment = {**os.environ, **dict(here.environment)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--measure: took longer than {LIMIT_S} s") from None
    if done.returncode:
        raise UsageError(f"--measure: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    said = text_json.loads(done.stdout.splitlines()[-1])
    return Ceilings(
        said["device"], said["torch"], time.strftime("%Y-%m-%d"), said["l2_bytes"],
        tuple(Rate(**rate) for rate in said["rates"]), tuple((what, why) for what, why in said["left_out"]),
    )  # fmt: skip


def _reached(found: Ceilings, facts: Peaks) -> str:
    """The measured rates as tables: by size, then the others beside the data sheet's peaks where it has one."""
    sizes = sorted({rate.size for rate in found.rates if rate.what in MOVES})
    by_size = {(rate.what, rate.size): rate.per_s for rate in found.rates}
    head = ("bytes", *MOVES)
    lines = [
        (str(size), *(f"{by_size[what, size] / 1e9:.0f} GB/s" if (what, size) in by_size else "-" for what in MOVES))
        for size in sizes
    ]
    same = facts.name == found.device
    rest: list[tuple[str, str, str]] = [("", "reached", "data sheet")]
    for what, rate, unit, scale, peak in (
        ("DRAM, copy", found.dram, "TB/s", 1e12, facts.dram_bytes_per_s),
        ("L2, read", found.l2, "TB/s", 1e12, None),
        *((f"products, {dtype}", found.best(f"matrix {dtype}"), "TFLOP/s", 1e12, facts.product_flops(dtype))
          for dtype in dict.fromkeys(r.what.removeprefix("matrix ") for r in found.rates if r.what[:6] == "matrix")),
        ("atomic additions", found.best("atomics"), "G/s", 1e9, None),
        ("atomic additions on one address", found.best("atomics on one address"), "G/s", 1e9, None),
    ):  # fmt: skip
        if rate is not None:
            of_peak = f"{peak / scale:.4g} {unit}, {rate / peak:.0%}" if peak and same else ""
            rest.append((what, f"{rate / scale:.4g} {unit}", of_peak))
    for what in ("launch", "host call"):
        if rate := found.best(what):
            rest.append((what, f"{1e6 / rate:.2f} µs", ""))
    title = f"{found.device}, torch {found.torch}, {found.date}"
    left = [f"left out  {what}: {why}" for what, why in found.left_out]
    return "\n".join([title, "", table([head, *lines]), "", table(rest), *left])


MOVES = ("copy", "read", "write", "fill")


def _predicted(file: Path, only: list[str], json: bool) -> None:
    """Print predicted and measured times of an operators' file, and the median error."""
    rows = list(prediction_errors(file, only))
    if not rows:
        raise UsageError(f"{file}: has no case of {', '.join(only) or 'any operator in operators/'}")
    errors = [abs(row["error"]) for row in rows]
    if json:
        emit({"rows": rows, "median_error": statistics.median(errors)})
        return
    lines = [
        (row["operator"], row["case"], f"{row['measured_us']:.2f}", f"{row['predicted_us']:.2f}",
         f"{row['error']:+.0%}", "" if row["same_kernel"] else "changed since")
        for row in rows
    ]  # fmt: skip
    print(table([("operator", "case", "measured µs", "predicted µs", "error", "kernel"), *lines]))
    print(f"median error {statistics.median(errors):.0%} over {len(rows)} cases; {rows[0]['from']}")


def prediction_errors(file: Path, only: list[str]) -> Iterator[dict[str, Any]]:
    """Every measured case of an operator that is here, compiled for the file's device and predicted."""
    from kernelgen import devices

    data = _measured_file(file)
    facts = next((facts for facts in devices.facts.TABLE if facts.name == data["device"]), None)
    if facts is None:
        raise UsageError(f"{file}: is of {data['device']}, which is not in the table of `kernelgen hardware`")
    here = devices.find("cpu", facts.arch)
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for row in data["rows"]:
        if row["comparisons"] and (not only or any(fnmatchcase(row["operator"], glob) for glob in only)):
            by_operator.setdefault(row["operator"], []).append(row)
    for operator, rows in by_operator.items():
        try:
            yield from _errors_of(operator, rows, here)
        except KernelgenError as error:
            note(f"{operator}: {str(error).splitlines()[0]}")


def _errors_of(operator: str, rows: list[dict[str, Any]], here: Device) -> Iterator[dict[str, Any]]:
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.cli.names import ROOT
    from kernelgen.cli.new import load
    from kernelgen.evaluate import evaluator
    from kernelgen.evaluate.cpu import CpuEvaluator
    from kernelgen.optimization.bench import families_compiler
    from kernelgen.optimization.search import current
    from kernelgen.outcomes import Status

    spec = load(operator)
    plan = generation.plan_of(spec, ROOT)
    cases = {case.label: case for case in spec.performance}
    with (
        TemporaryDirectory(prefix="kernelgen-") as store,
        evaluator(here, plan, ROOT / spec.folder, Path(store), partial(work, plan)) as run,
    ):
        assert isinstance(run, CpuEvaluator)
        for row in rows:
            if row["case"] not in cases:
                continue
            candidate = current(plan, families_compiler(), (cases[row["case"]],))
            found = run.final(candidate, candidate, candidate.cases)
            if found.status is not Status.OK or not found.timings:
                note(f"{operator}, {row['case']}: {found.status}: {found.message}")
                continue
            time_us, measured_us = found.timings[0].time_us, next(iter(row["comparisons"].values()))["b_us"]
            yield {
                "operator": operator, "case": row["case"], "measured_us": measured_us, "predicted_us": time_us,
                "error": time_us / measured_us - 1, "same_kernel": candidate.source_hash == row["kernel"],
                "from": run.predicts_from,
            }  # fmt: skip


def _measured_file(file: Path) -> dict[str, Any]:
    try:
        data = text_json.loads(file.read_text("utf-8"))
        for row in data["rows"]:
            operator, case, kernel = row["operator"], row["case"], row["kernel"]
            times = [one["b_us"] for one in row["comparisons"].values()]
            if not all(isinstance(x, str) for x in (operator, case, kernel)) or not all(map(math.isfinite, times)):
                raise ValueError
        return {"device": str(data["device"]), "rows": data["rows"]}
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{file}: was not written by docs/benchmarks/measure.py") from None


def _rows(shown: list[Peaks]) -> list[tuple[str, ...]]:
    """The lines of the table, a column for each device; all are of one kind."""
    from kernelgen import devices

    gpus = [facts for facts in shown if isinstance(facts, devices.DeviceFacts)]
    npus = [facts for facts in shown if isinstance(facts, devices.NpuFacts)]
    rows = [(label, *map(show, shown)) for label, show in _SHARED.items()]
    rows += [(label, *map(show_gpu, gpus)) for label, show_gpu in _GPU.items() if gpus]
    rows += [(label, *map(show_npu, npus)) for label, show_npu in _NPU.items() if npus]
    return rows


_SHARED: dict[str, Callable[[Peaks], str]] = {
    "name": lambda f: f.name,
    "architecture": lambda f: f.arch,
    "memory": lambda f: f"{f.memory_bytes / 1e9:.0f} GB",
    "bandwidth": lambda f: f"{f.dram_bytes_per_s / 1e12:.2f} TB/s",
    "of which a plain copy reaches": lambda f: f"{f.achievable_fraction:.0%}",
    "L2": lambda f: f"{f.l2_bytes / 2**20:.0f} MiB",
    "L2 bandwidth (estimate)": lambda f: f"{f.l2_bytes_per_s / 1e12:.1f} TB/s",
    "fp32": lambda f: f"{f.fp32_flops / 1e12:.0f} TFLOP/s",
    "fp16 matrix units, dense": lambda f: f"{f.fp16_tensor_flops / 1e12:.0f} TFLOP/s",
    "tf32 matrix units, dense": lambda f: f"{f.tf32_tensor_flops / 1e12:.0f} TFLOP/s",
    "fp8 matrix units, dense": lambda f: f"{f.fp8_tensor_flops / 1e12:.0f} TFLOP/s",
    "memory latency (estimate)": lambda f: f"{f.dram_latency_s * 1e6:.2f} µs",
    "launch (estimate)": lambda f: f"{f.launch_latency_s * 1e6:.1f} µs",
}
_GPU: dict[str, Callable[[DeviceFacts], str]] = {
    "SMs": lambda f: str(f.sms),
    "registers an SM": lambda f: str(f.registers_per_sm),
    "registers a thread, at most": lambda f: str(f.registers_per_thread_max),
    "shared memory an SM": lambda f: f"{f.shared_per_sm // 1024} KiB",
    "shared memory a program, at most": lambda f: f"{f.shared_per_block_max // 1024} KiB",
    "warps an SM, at most": lambda f: str(f.max_warps_per_sm),
    "programs an SM, at most": lambda f: str(f.max_programs_per_sm),
    "threads a program, at most": lambda f: str(f.max_threads_per_block),
}
_NPU: dict[str, Callable[[NpuFacts], str]] = {
    "cube cores": lambda f: str(f.cube_cores),
    "vector cores": lambda f: str(f.vector_cores),
    "clock": lambda f: f"{f.clock_hz / 1e6:.0f} MHz",
    "unified buffer a vector core": lambda f: f"{f.ub_bytes // 1024} KiB, rows of {f.ub_alignment} B",
    "L1 a cube core": lambda f: f"{f.l1_bytes // 1024} KiB",
    "L0A, L0B, L0C": lambda f: f"{f.l0a_bytes // 1024}, {f.l0b_bytes // 1024}, {f.l0c_bytes // 1024} KiB",
    "programs, at most": lambda f: str(f.max_grid),
}

"""First schedules of convolutions beside torch's ways and beside other schedules: what the first tables are chosen by.

    python docs/benchmarks/convolutions.py [--seconds 240] [--workers 15] [--into OUT]  # on a GPU
    python docs/benchmarks/convolutions.py --table      # convolutions.md from convolutions.json, anywhere

Each form is a spec of its own. Kernels are compiled side by side; then one process at a time times all of a form, with
nothing else on the GPU: the 5 %, 50 % and 95 % quantiles of `triton.testing.do_bench` over 20 ms. NCHW in and out.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelgen.plan import KernelPlan, Schedule

HERE = Path(__file__).resolve().parent
DATA, PAGE = HERE / "convolutions.json", HERE / "convolutions.md"
ELEMENTS = 64e6
"""Of the larger of the input and the result, about."""
TORCHS = ("eager", "compile")


@dataclass(frozen=True)
class Form:
    """A convolution with what follows it, at one size."""

    rank: int
    transposed: bool
    window: int
    stride: int
    padding: int
    output_padding: int
    channels: int
    columns: int
    """Output channels."""
    space: tuple[int, ...]
    dtype: str
    after: str
    """`relu`: bias, relu and a factor; `bias`: torch's own bias; `alone`: nothing."""

    @property
    def images(self) -> int:
        extra = self.window - 2 * self.padding
        result = math.prod(
            (d - 1) * self.stride + extra + self.output_padding if self.transposed else (d - extra) // self.stride + 1
            for d in self.space
        )
        return max(1, min(256, int(ELEMENTS / (result * max(self.columns, self.channels)))))

    def __str__(self) -> str:
        kind = f"conv{'_transpose' if self.transposed else ''}{self.rank}d {'x'.join([str(self.window)] * self.rank)}"
        strides = f" stride {self.stride}" if self.stride > 1 else ""
        size = f"{self.images}x{self.channels}x{'x'.join(map(str, self.space))} to {self.columns}"
        return f"{kind}{strides}, {size}, {self.dtype}, {self.after}"


def forms() -> list[Form]:
    """What is measured."""
    single, both, flat = ("float32",), ("float32", "float16"), (128, 128)
    found: list[Form] = []

    def add(
        kind: tuple[Any, ...], sizes: Any, space: tuple[int, ...], dtypes: Any = single, after: Any = ("relu",)
    ) -> None:
        found.extend(Form(*kind, c, j, space, dtype, a) for c, j in sizes for dtype in dtypes for a in after)

    plain, doubled = (2, False, 3, 1, 0, 0), (2, True, 3, 2, 1, 1)
    add(plain, ((8, 64), (16, 64), (16, 128), (32, 64), (64, 64), (64, 128), (128, 128)), flat, both)
    add(plain, ((3, 96), (4, 64)), flat)
    add(plain, ((16, 128), (64, 64), (64, 128)), flat, single, ("alone", "bias"))
    add((2, False, 1, 1, 0, 0), ((64, 128),), (256, 256), both)
    add((2, False, 1, 1, 0, 0), ((64, 128),), (256, 256), single, ("alone",))
    add(doubled, ((64, 64), (64, 128)), (64, 64), both)
    add((2, True, 4, 2, 1, 0), ((64, 64),), (64, 64))
    add((2, True, 3, 1, 0, 0), ((32, 32), (64, 64)), (256, 256), single, ("relu", "alone"))
    add((3, False, 3, 1, 0, 0), ((3, 16), (8, 64), (16, 32)), (16, 64, 64))
    add((3, False, 3, 1, 0, 0), ((32, 64),), (16, 64, 64), both)
    add((3, False, 3, 1, 0, 0), ((32, 64),), (16, 64, 64), single, ("alone",))
    add((3, True, 3, 2, 1, 1), ((16, 32), (32, 64)), (16, 32, 32))
    add((3, True, 3, 1, 0, 0), ((32, 64),), (32, 32, 32), single, ("alone",))
    add((1, False, 3, 1, 1, 0), ((64, 128),), (65536,), both)
    add((1, False, 3, 1, 1, 0), ((64, 128), (128, 128)), (65536,), single, ("alone",))
    add((1, True, 3, 1, 0, 0), ((32, 64), (128, 128)), (65536,), single, ("alone",))
    return found


def spec_text(form: Form) -> str:
    """The form as a spec."""
    names = "DHW"[-form.rank :]
    more = form.window - 2 * form.padding
    more = more - form.stride + form.output_padding if form.transposed else 1 - more
    scale = f"{form.stride} * " if form.stride > 1 else ""
    result = [f"{scale}{d}" + (f" {'+' if more > 0 else '-'} {abs(more)}" if more else "") for d in names]
    bias = "" if form.after == "alone" else ", bias"
    padding = f", output_padding={form.output_padding}" if form.output_padding else ""
    kind = f"conv{'_transpose' if form.transposed else ''}{form.rank}d"
    call = f"F.{kind}(x, weight{bias}, stride={form.stride}, padding={form.padding}{padding})"
    weight = ["C, J" if form.transposed else "J, C", *[str(form.window)] * form.rank]
    sizes = {"B": form.images, "C": form.channels, **dict(zip(names, form.space, strict=True)), "J": form.columns}
    small = {"B": 2, "C": 3, **dict.fromkeys(names, form.window + 4), "J": 5}
    given = [("x", f"B, C, {', '.join(names)}"), ("weight", ", ".join(weight)), *([("bias", "J")] if bias else [])]
    at_least = ", ".join(f'"x.shape[{2 + d}] >= {form.window}"' for d in range(form.rank))
    return f"""\
name: convolve
summary: A convolution and what follows it.
inputs:
{"".join(f"  - {{name: {name}, shape: [{shape}], dtype: T}}{chr(10)}" for name, shape in given)}\
outputs:
  - {{name: out, shape: [B, J, {", ".join(result)}], dtype: T}}
dtypes: {{T: [float16, bfloat16, float32]}}
constraints: [{at_least}]
reference: |
  def convolve(x, weight{bias}):
      y = {call}
      return {"torch.relu(y) * 0.5" if form.after == "relu" else "y"}
accuracy:
  shapes: [{{{", ".join(f"{n}: {v}" for n, v in small.items())}}}]
performance:
  shapes: [{{{", ".join(f"{n}: {v}" for n, v in sizes.items())}}}]
"""


def first(plan: KernelPlan, dtype: str) -> Schedule:
    """The first schedule of the form."""
    from kernelgen import families

    case = next(c for c in plan.spec.performance if c.dtype("T") == dtype)
    return plan.table[families.row_of(plan, case)].schedule


def planned(form: Form, folder: Path) -> KernelPlan:
    from kernelgen.generation import lowered
    from kernelgen.plan import KernelPlan
    from kernelgen.spec import load_spec

    (folder / "convolve.yaml").write_text(spec_text(form))
    plan = lowered(load_spec(folder / "convolve.yaml"))
    assert isinstance(plan, KernelPlan)
    return plan


def candidates(plan: KernelPlan, form: Form) -> list[Schedule]:
    """The first schedule, what a search starts from, and these with tiles as narrow as there are channels."""
    from kernelgen import families

    case = next(c for c in plan.spec.performance if c.dtype("T") == form.dtype)
    begun = first(plan, form.dtype)
    found = [begun, *families.variants(plan, (case,))]
    if begun.variant == "boxes":
        tile = {name: begun.int(name) for name in ("BLOCK_N", "BLOCK_K")}
        found += [s.replace(**tile) for s in found if s.variant == "boxes"]
    return [s for s in dict.fromkeys(found) if families.legal(plan, s, case) is None]


def prepared(form: Form, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that is timed of a form, compiled and run once."""
    import torch

    from kernelgen import render
    from kernelgen.plan import TableRow

    plan = planned(form, folder)
    generator = torch.Generator("cuda").manual_seed(0)
    case = next(c for c in plan.spec.performance if c.dtype("T") == form.dtype)
    tensors = [
        torch.randn(case.shape(t.shape), device="cuda", generator=generator).to(getattr(torch, form.dtype))
        for t in plan.spec.inputs
    ]
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(plan.spec.reference, scope)
    eager = scope["convolve"]
    compiled = torch.compile(eager)
    compiled(*tensors)
    yield "eager", lambda: eager(*tensors)
    yield "compile", lambda: compiled(*tensors)
    for number, schedule in enumerate(candidates(plan, form)):
        path = folder / f"schedule_{number}.py"
        path.write_text(render.triton_source(plan.with_table((TableRow((), schedule),))))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            module.convolve(*tensors)
        except Exception as error:  # of registers or shared memory there is not enough
            print(f"{form}: {schedule}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        yield str(schedule), lambda call=module.convolve: call(*tensors)


def work(numbers: list[int], folder: Path, workers: int) -> None:
    """Prepare the forms, wait for the other workers, and time them alone."""
    import torch
    from triton.testing import do_bench

    from kernelgen import judge

    judge.prepare()
    ready = []
    with torch.no_grad():
        for number in numbers:
            own = folder / str(number)
            own.mkdir()
            ready.append((number, list(prepared(forms()[number], own))))
        (folder / f"ready {numbers[0]}").touch()
        while len(list(folder.glob("ready *"))) < workers:
            time.sleep(0.2)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for number, calls in ready:
                us = {
                    name: [round(1e3 * q, 1) for q in do_bench(call, warmup=5, rep=20, quantiles=[0.05, 0.5, 0.95])]
                    for name, call in calls
                }
                (folder / f"{number}.json").write_text(json.dumps(us))


def measure(seconds: float, workers: int, into: Path) -> None:
    from kernelgen.devices import find

    numbers = range(len(forms()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--workers", str(workers), "--folder", name, "--forms"]
        running = [subprocess.Popen([*command, *map(str, numbers[i::workers])]) for i in range(workers)]
        deadline = time.monotonic() + seconds
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
        rows = [
            {"form": astuple(form), "us": json.loads(path.read_text())}
            for number, form in enumerate(forms())
            if (path := folder / f"{number}.json").is_file()
        ]
    data = {"device": find().describe(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
    (into / DATA.name).write_text(json.dumps(data, indent=1) + "\n")


def page(data: dict[str, Any]) -> str:
    """The page: the first schedule of every form as it is today, beside what was measured."""
    device = data["device"]
    lines = [
        "# Convolutions: first schedules",
        "",
        f"Measured on {device['device']}, torch {device['torch']}, triton {device['triton']}, {data['date']}, by",
        "`python docs/benchmarks/convolutions.py`: NCHW in and out, float32 by TF32 as torch's default has it.",
        *data.get("notes", []),
        "",
        "| | first schedule | µs | eager | torch.compile | over the better | of the fastest measured |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for row in data["rows"]:
            *sizes, space, dtype, after = row["form"]
            form = Form(*sizes, tuple(space), dtype, after)
            us = {name: q[1] for name, q in row["us"].items()}
            chosen = str(first(planned(form, Path(folder)), form.dtype))
            torchs, ours = min(us[name] for name in TORCHS), us.get(chosen)
            fastest = min(t for name, t in us.items() if name not in TORCHS)
            cells = [str(form), short(chosen), "not measured", *(f"{us[name]:.0f}" for name in TORCHS), "", ""]
            if ours is not None:
                ratios.append(torchs / ours)
                cells[2], cells[5:] = f"{ours:.0f}", [f"{torchs / ours:.2f}", f"{fastest / ours:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    said = f"Geometric mean over the better of eager and torch.compile: {mean:.2f} of {len(ratios)}"
    lines += ["", f"{said}; the least {min(ratios):.2f}."]
    return "\n".join(lines) + "\n"


def short(schedule: str) -> str:
    """`boxes 1x4x64, 64 channels, 16 deep`."""
    variant, *rest = schedule.split()
    values = dict(entry.split("=") for entry in rest)
    if variant == "library":
        return "torch's call" + (", channels-last" if values["channels_last"] == "True" else "")
    box = "x".join(values[f"BLOCK_{d}"] for d in "DHW") if variant == "boxes" else f"{values['BLOCK_M']} pixels"
    return f"{variant} {box}, {values['BLOCK_N']} channels, {values['BLOCK_K']} deep"


def main() -> None:
    parser = argparse.ArgumentParser(description="First schedules of convolutions beside torch and other schedules.")
    parser.add_argument("--seconds", type=float, default=240, help="in all")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--table", action="store_true", help="only write convolutions.md from convolutions.json")
    parser.add_argument("--forms", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.forms:
        work(asked.forms, asked.folder, asked.workers)
    elif asked.table:
        PAGE.write_text(page(json.loads(DATA.read_text("utf-8"))), "utf-8")
    else:
        measure(asked.seconds, asked.workers, asked.into)


if __name__ == "__main__":
    main()

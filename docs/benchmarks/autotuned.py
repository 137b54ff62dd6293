"""triton.autotune over a part of kernelgen's space, against what kernelgen's tuner chose there.

    python docs/benchmarks/autotuned.py OPERATOR CASE CONFIGS [SHORT] [--dry|--helion]

run where `kernelgen new OPERATOR` has written its quartet, by tuner.py. CONFIGS is AXIS=VALUE,… that leaves one kernel
and the values of its launch: what Triton's autotuner can search. SHORT is the configuration that kernelgen chose, as
its short form. Prints a line of JSON: the seconds that autotune takes (it compiles one after the other), what it
chose, and how many times as fast as that SHORT is, with its interval. --dry needs no GPU and launches nothing.
--helion asks Helion's quick effort for a kernel of its own instead.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Launch:
    """What a wrapper launched."""

    kernel: Any
    grid: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """What wrappers launch meanwhile, none of which runs."""
    found: list[Launch] = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(Launch(kernel, grid, arguments, options))

    real, triton.JITFunction.run = triton.JITFunction.run, run
    try:
        yield found
    finally:
        triton.JITFunction.run = real


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Triton looks up what a kernel names there
    spec.loader.exec_module(module)
    return module


class Space:
    """The configurations of one kernel, and for each the file that kernelgen makes of it."""

    def __init__(self, name: str, case: str, configs: str, folder: Path) -> None:
        from kernelgen import generation
        from kernelgen.optimization.bench import families_compiler
        from kernelgen.spec import find_spec, load_spec
        from kernelgen.strategies.short import parse, restriction, short
        from kernelgen.strategies.space import axes_of, space_of

        self.name, self.folder, self.compiler = name, folder, families_compiler()
        spec = load_spec(find_spec(name)[0])
        self.plan = generation.plan_of(spec, Path("operators"))
        self.case = next(one for one in spec.performance if one.label == case)
        row = self.compiler.row_of(self.plan, self.case)
        self.axes = axes_of(self.compiler, self.plan, row, (self.case,))
        wanted = restriction(configs, self.axes)
        self.schedules = space_of(self.compiler, self.plan, row, (self.case,), wanted).schedules
        self.short = {s: short(s, self.axes[s.variant].parameters) for s in self.schedules}
        self.parse = lambda text: parse(text, self.axes)

    def function(self, schedule: Any) -> Callable[..., Any]:
        from kernelgen.plan import TableRow

        path = self.folder / f"{self.name}_{abs(hash(schedule)):x}.py"
        path.write_text(self.compiler.source(self.plan.with_table((TableRow((), schedule),))))
        return getattr(module_of(path), self.name)  # type: ignore[no-any-return]


def autotuned(space: Space, inputs: Sequence[torch.Tensor], dry: bool) -> dict[str, Any]:
    """What triton.autotune chooses of a space for these inputs, and the seconds that it takes."""
    seen: dict[Any, Launch] = {}
    for schedule in space.schedules:
        with launches() as found:
            space.function(schedule)(*inputs)
        (seen[schedule],) = found
    first = seen[space.schedules[0]]
    if {one.kernel.src for one in seen.values()} != {first.kernel.src}:
        raise SystemExit("these configurations are several kernels, of which Triton's autotuner searches one")
    configs, grids, of = [], {}, {}
    for schedule, launch in seen.items():
        own = {name: value for name, value in launch.options.items() if name in dict(schedule.values)}
        rest = {name: own.pop(name) for name in ("num_warps", "num_stages") if name in own}
        configs.append(triton.Config(own, **rest))
        grids[tuple(sorted(own.items()))] = launch.grid
        of[str(configs[-1])] = schedule
    names = [name for name, _ in next(iter(grids))]
    fixed = {k: v for k, v in first.options.items() if k not in dict(space.schedules[0].values)}
    more = {"do_bench": lambda call, quantiles: [1.0] * 3} if dry else {}
    tuner = triton.autotune(configs, key=[], **more)(first.kernel)
    began = time.monotonic()
    with launches() if dry else nothing():
        tuner[lambda meta: grids[tuple(sorted((n, meta[n]) for n in names))]](*first.arguments, **fixed)
    if not dry:
        torch.cuda.synchronize()
    seconds = time.monotonic() - began
    chosen = of[str(tuner.best_config)]
    return {"configurations": len(configs), "autotune_s": round(seconds, 2), "autotune": space.short[chosen]}


@contextmanager
def nothing() -> Iterator[None]:
    yield


def helions(name: str, inputs: Sequence[torch.Tensor]) -> tuple[Callable[..., Any], float]:
    """Helion's kernel for these inputs, and the seconds that it took to find it."""
    kernels = module_of(Path(__file__).parent / "helion_kernels.py")
    began = time.monotonic()
    getattr(kernels, name)(*inputs)
    torch.cuda.synchronize()
    return getattr(kernels, name), time.monotonic() - began


def main(name: str, case: str, configs: str, mine: str | None, how: str) -> None:
    from kernelgen import judge

    with tempfile.TemporaryDirectory() as made:
        space = Space(name, case, configs, Path(made))
        if how == "--dry":
            shapes = [(one.shape, one.dtype) for one in space.plan.spec.inputs]
            inputs = [torch.empty(space.case.shape(s), dtype=getattr(torch, space.case.dtype(d))) for s, d in shapes]
            print(json.dumps(autotuned(space, inputs, dry=True)))
            return
        sys.path.insert(0, str(Path("operators").resolve() / name))
        operator = importlib.import_module(f"{name}_accuracy").OPERATOR
        one = judge.Case.from_json(space.case.to_json())
        judge.prepare()
        make = judge.make_inputs(operator, one)
        found: dict[str, Any]
        if how == "--helion":
            theirs, seconds = helions(name, make())
            found = {"seconds": round(seconds, 2)}
        else:
            found = autotuned(space, make(), dry=False)
            theirs = space.function(space.parse(found["autotune"]))
        print(json.dumps(found), flush=True)
        if mine is not None:
            said = judge.compare(theirs, space.function(space.parse(mine)), make, time_cap_s=10.0)
            found |= {"speedup": said.speedup, "low": said.low, "high": said.high}
            found |= {"theirs_us": said.a_us, "kernelgen_us": said.b_us}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    flags = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    main(*given[:3], given[3] if len(given) > 3 else None, flags[0] if flags else "")

"""What a call of a wrapper costs the host beside Triton's own launch, part by part; no GPU is needed.

    python docs/benchmarks/host.py                      # softmax, layer_norm, relu, silu_mul
    python docs/benchmarks/host.py matmul topk --rows 64

Kernels are replaced by something that takes a launch and does nothing. The wrapper is cut after every statement; what a
part costs is what the longer function takes more than the shorter one, both timed in turns: the median over rounds, and
the spread between quartiles. Tensors are on the CPU: an allocation on a GPU goes through another allocator, and the
guard of the device exchanges two numbers there.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton

from kernelgen.spec import load_spec

ROOT = Path(__file__).parents[2]
CALLS, ROUNDS = 2000, 41
CALL = "the call itself"


LAUNCH = "an empty launch, Triton's"


class Unlaunched:
    """Stands in for a kernel: takes any launch, and keeps what the last one was given."""

    last: tuple[tuple[object, ...], dict[str, object]] = (), {}

    def __init__(self, function: Any) -> None:
        self.__name__ = function.__name__

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return _nothing


def _nothing(*args: object, **options: object) -> None:
    Unlaunched.last = args, options


def part(statement: ast.stmt) -> str:
    """What a statement of a wrapper is for."""
    text = ast.unparse(statement)
    if "check_inputs(" in text:
        return "checks"
    if "pick_schedule(" in text:
        return "schedule"
    if isinstance(statement, ast.With):
        return "guard, grid, arguments"
    if "torch.empty" in text or "torch.zeros" in text:
        return "allocation"
    return "sizes and views"


def cut(path: Path, name: str) -> list[tuple[str, Callable[..., Any]]]:
    """The wrapper short of all but its first statements, for every number of them, with the part that is added last."""
    with mock.patch.object(triton, "jit", Unlaunched):
        scope = SimpleNamespace(__name__=name).__dict__
        exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
    tree = ast.parse(path.read_text("utf-8"))
    (wrapper,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    statements = wrapper.body[1:]  # below its docstring
    found = []
    for length in range(len(statements) + 1):
        wrapper.body = statements[:length] or [ast.Pass()]
        exec(compile(ast.fix_missing_locations(ast.Module([wrapper], [])), str(path), "exec"), scope)
        found.append((part(statements[length - 1]) if length else CALL, scope[name]))
    return found


def measure(name: str, rows: int) -> dict[str, list[float]]:
    """Microseconds a call by part, one figure a round."""
    spec = load_spec(ROOT / "specs" / f"{name}.yaml")
    case = spec.performance[0]
    sizes = tuple((n, (rows, *v[1:]) if isinstance(v, tuple) else min(v, 1024)) for n, v in case.sizes)
    case = type(case)(sizes, case.dtypes)
    tensors = [torch.empty(case.shape(t.shape), dtype=getattr(torch, case.dtype(t.dtype))) for t in spec.inputs]
    wrappers = cut(ROOT / "operators" / name / f"{name}_triton.py", name)
    timers = [timeit.Timer(lambda f=f: f(*tensors)) for _, f in wrappers]
    wrappers[-1][1](*tensors)
    (args, launch), kernel = Unlaunched.last, Unlaunched(measure)
    empty = timeit.Timer(lambda: kernel[(1,)](*args, **launch))
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        before = 0.0
        this: dict[str, float] = {}
        for (what, _), timer in zip(wrappers, timers, strict=True):
            now = min(timer.repeat(3, CALLS // 10)) / (CALLS // 10) * 1e6
            this[what] = this.get(what, 0.0) + now - before
            before = now
        this[LAUNCH] = min(empty.repeat(3, CALLS // 10)) / (CALLS // 10) * 1e6
        this["all but these two"] = before - this[CALL] - this[LAUNCH]
        for what, us in this.items():
            found.setdefault(what, []).append(us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["softmax", "layer_norm", "relu", "silu_mul"])
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    for name in options.names:
        print(name)
        for what, us in measure(name, options.rows).items():
            low, _, high = statistics.quantiles(us, n=4)
            print(f"  {what:24} {statistics.median(us):6.2f} us  [{low:.2f} {high:.2f}]")


if __name__ == "__main__":
    main()

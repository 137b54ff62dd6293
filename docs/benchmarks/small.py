"""Measure first schedules at three sizes, with no round of optimisation, and what other schedules would give.

    python docs/benchmarks/small.py --out small.json     # everything; needs a GPU, about 8 minutes with 16 cores
    python docs/benchmarks/small.py --only softmax relu --sizes decode few_mb
    python docs/benchmarks/small.py --report small.json  # the summary of what was measured, anywhere
    python docs/benchmarks/small.py --table              # small.md from small.json, anywhere
    python docs/benchmarks/small.py --merge FILE         # the rows of FILE, others stay with their date, anywhere

`large` is the first shape of an operator's performance test, `few_mb` the same with its batch cut to 4 MiB, `decode`
with eight rows; `other` are the shapes of OTHER. Every kernel is what `kernelgen new` writes for a spec with that one
shape. It is timed against torch.compile in pairs, with an interval, and races eager and other schedules of its own.

Processes prepare operators at once, then measure one at a time: while a clock runs nobody else uses the GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from measure import HERE, ROOT, machine, operators, performance_test, write

SIZES = ("decode", "few_mb", "other", "large")
FEW_MB, DECODE_BYTES, DECODE_ROWS, DECODE_RUN = 4 << 20, 512 << 10, 8, 4096
ALTERNATIVES = 12
"""Schedules that race beside the first one."""
PREPARED_BY_S, MEASURED_BY_S = 230.0, 540.0
"""Of the whole run: by when preparing ends, and by when measuring does."""
STUCK_S = 40.0
"""A measurement that takes longer is given up with its process."""
OTHER: dict[str, list[dict[str, Any]]] = {
    "argmax": [{"...": (64,), "D": 1000}, {"...": (8192,), "D": 64}, {"...": (1,), "D": 128256}],
    "batch_norm_train": [
        {"N": 8, "C": 64, "H": 14, "W": 14}, {"N": 32, "C": 128, "H": 28, "W": 28},
        {"N": 128, "C": 64, "H": 32, "W": 32},
    ],
    "bias_add": [{"...": (4096,), "D": 64}, {"...": (1,), "D": 4096}],
    "cross_entropy": [{"B": 8, "V": 128256}, {"B": 1024, "V": 1000}, {"B": 65536, "V": 64}],
    "cumsum": [{"...": (1,), "D": 1000}, {"...": (64,), "D": 1000}, {"...": (1,), "D": 131072}],
    "gelu_tanh": [{"...": (16384,)}, {"...": (1048576,)}],
    "group_norm": [{"N": 1, "K": 8, "H": 16, "W": 16}, {"N": 4, "K": 4, "H": 32, "W": 32}],
    "layer_norm": [{"...": (1024,), "D": 96}, {"...": (32,), "D": 1024}, {"...": (1,), "D": 8192}],
    "logsumexp": [{"...": (8,), "D": 128256}, {"...": (8192,), "D": 64}],
    "mse_loss": [{"...": (8, 4096)}, {"...": (1000,)}, {"...": (1024, 1024)}],
    "relu": [{"...": (4096,)}, {"...": (65536,)}, {"...": (1048576,)}],
    "rms_norm": [{"...": (8192,), "D": 64}, {"...": (1,), "D": 4096}, {"...": (32,), "D": 8192}],
    "rms_norm_channels": [{"B": 1, "C": 64, "H": 56, "W": 56}, {"B": 8, "C": 256, "H": 7, "W": 7}],
    "row_sum": [
        {"...": (4,), "D": 1048576}, {"...": (16384,), "D": 64}, {"...": (64,), "D": 65536}, {"...": (1,), "D": 4096},
    ],
    "row_var": [{"...": (4,), "D": 1048576}, {"...": (16384,), "D": 64}],
    "silu_mul": [{"...": (11008,)}, {"...": (8, 14336)}, {"...": (128, 14336)}],
    "softmax": [
        {"...": (65536,), "D": 64}, {"...": (64,), "D": 64}, {"...": (1,), "D": 131072}, {"...": (4,), "D": 1048576},
        {"...": (1024,), "D": 1024},
    ],
    "sum_all": [{"...": (4096,)}, {"...": (65536,)}, {"...": (1048576,)}],
    "sum_dim0": [{"R": 512, "C": 1024}, {"R": 64, "C": 4096}, {"R": 4096, "C": 64}, {"R": 131072, "C": 8}],
    "topk": [{"...": (8,), "D": 256}, {"...": (1,), "D": 32768}],
}  # fmt: skip
"""Kinds of small problems that no shipped shape becomes when it is cut: flat tensors of some thousand elements, rows of
less than a hundred, few long rows, the other dimension reduced, statistics of few channels, scans of a thousand."""


# What is measured ----------------------------------------------------------------------------------------------------


def shrunk(spec: Any, case: Any, size: str) -> Any:
    """The case with its outer sizes cut: to eight rows and half a MiB, or to 4 MiB."""
    if spec.name in CUT:
        return _case(case, CUT[spec.name][size])
    target = DECODE_BYTES if size == "decode" else FEW_MB
    sizes = dict(case.sizes)
    # channels and rows keep their length until all others are cut
    order = sorted(sizes, key=lambda name: (name in ("C", "K"), list(sizes).index(name)))
    if size == "decode":
        first = order[0]
        if isinstance(sizes[first], tuple):
            dims = sizes[first]
            alone = len(sizes) == 1 and len(dims) == 1
            sizes[first] = (min(dims[0], DECODE_RUN if alone else DECODE_ROWS), *(_inner(dims, len(sizes))))
        else:
            sizes[first] = min(sizes[first], DECODE_RUN if len(sizes) == 1 else DECODE_ROWS)
    made = _case(case, sizes)
    while _bytes(spec, made) > target:
        name = next((n for n in order if _largest(sizes[n]) > (1 if n == order[0] else 4)), None)
        if name is None:
            break
        if {"H", "W"} <= sizes.keys() and name in ("H", "W"):
            name = max("H", "W", key=sizes.__getitem__)
        sizes[name] = _halved(sizes[name])
        made = _case(case, sizes)
    return made


def _inner(dims: tuple[int, ...], named: int) -> tuple[int, ...]:
    """The dimensions after the first of a batch: the last of a tensor that is nothing but one is its row."""
    return dims[1:] if named == 1 else (1,) * (len(dims) - 1)


def _largest(size: int | tuple[int, ...]) -> int:
    return max(size, default=1) if isinstance(size, tuple) else size


def _halved(size: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """The first dimension that can be halved is."""
    if isinstance(size, int):
        return size // 2
    place = next(i for i, n in enumerate(size) if n > 1)
    return (*size[:place], size[place] // 2, *size[place + 1 :])


def _case(case: Any, sizes: dict[str, Any]) -> Any:
    label = " ".join(str(list(v)) if isinstance(v, tuple) else f"{k}={v}" for k, v in sizes.items())
    return replace(case, sizes=tuple(sizes.items()), label=f"{label} {' '.join(v for _, v in case.dtypes)}".strip())


def _bytes(spec: Any, case: Any) -> int:
    from kernelgen.families.dtypes import ITEMSIZE

    tensors = [t for t in (*spec.inputs, *spec.outputs) if t.role != "like"]
    return sum(math.prod(case.shape(t.shape)) * ITEMSIZE[case.dtype(t.dtype)] for t in tensors)


def cases_of(spec: Any, name: str, wanted: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The cases of an operator, with their kind of size."""
    halves = [c for c in spec.performance if dict(c.dtypes).get("T") == "float16"]
    large = (halves or list(spec.performance))[0]
    for size in wanted:
        if size == "other":
            yield from (("other", _case(large, sizes)) for sizes in OTHER.get(name, ()))
        else:
            yield size, large if size == "large" else shrunk(spec, large, size)


def alternatives(families: Any, plan: Any, case: Any) -> list[Any]:
    """Other schedules that can serve a case: where a search would set out, and steps from the first schedule."""
    first = plan.table[families.row_of(plan, case)].schedule
    found = dict.fromkeys([first, *families.variants(plan, (case,))][: 1 + ALTERNATIVES // 2])
    for changes in STEPS:
        values = dict(first.values)
        moved = {name: int(values[name] * factor) for name, factor in changes if name in values}
        if len(moved) == len(changes) and all(1 <= n <= 65536 for n in moved.values()):
            found.setdefault(first.replace(**moved))
    legal = [s for s in found if s != first and families.legal(plan, s, case) is None]
    return [s for s in legal if families.unknown(s, (families.family_of(plan),)) is None][:ALTERNATIVES]


_INDEXED = {"decode": {"V": 1024, "L": 8, "D": 1024}, "few_mb": {"V": 1024, "L": 512, "D": 1024}}
CUT: dict[str, dict[str, dict[str, Any]]] = {
    "embedding": {
        "decode": {"...": (8,), "V": 32000, "D": 4096}, "few_mb": {"...": (256,), "V": 32000, "D": 4096},
    },
    "index_add": _INDEXED, "index_add_atomic": _INDEXED,
    "take_along_dim": {"decode": {"L": 64, "B": 1024, "K": 8}, "few_mb": {"L": 512, "B": 1024, "K": 256}},
}  # fmt: skip
"""What the rule would cut in the wrong place."""
STEPS: tuple[tuple[tuple[str, float], ...], ...] = (
    (("BLOCK_SIZE", 0.25), ("num_warps", 0.25)), (("BLOCK_SIZE", 0.5), ("num_warps", 0.5)), (("BLOCK_SIZE", 0.25),),
    (("BLOCK_SIZE", 0.5),), (("BLOCK_SIZE", 2),), (("num_warps", 2),), (("num_warps", 0.5),), (("num_warps", 4),),
    (("num_warps", 0.25),), (("BLOCK_SIZE_M", 0.25),), (("BLOCK_SIZE_M", 4),), (("BLOCK_SIZE_N", 0.5),),
    (("BLOCK_SIZE_N", 0.25),), (("BLOCK_SIZE_M", 0.5),), (("SPLITS", 2),), (("SPLITS", 0.5),), (("SPLITS", 0.25),),
    (("BLOCK_SIZE_M", 2),), (("BLOCK_SIZE_M", 0.25), ("num_warps", 0.25)), (("BLOCK_SIZE_N", 2),),
    (("BLOCK_SIZE_M", 0.5), ("num_warps", 0.5)), (("BLOCK_SIZE_N", 0.5), ("num_warps", 0.5)),
)  # fmt: skip


# A process that prepares and measures --------------------------------------------------------------------------------


@dataclass
class Item:
    """One operator at one size, compiled and called once."""

    size: str
    case: Any
    make_inputs: Any
    functions: dict[str, Any]
    schedules: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)


class Worker:
    """Operators prepared in this process."""

    def __init__(self) -> None:
        sys.path[:0] = [str(ROOT)]
        from kernelgen import judge

        judge.prepare()
        self.items: dict[str, Item] = {}
        self.folder = Path(tempfile.mkdtemp())

    def prepare(self, name: str, wanted: list[str], until: float) -> list[tuple[str, str]]:
        """Compile what races at every size of an operator; the sizes that are ready, by their keys."""
        from kernelgen import families, frontend
        from kernelgen.spec import load_spec

        spec = load_spec(ROOT / "specs" / f"{name}.yaml")
        operator = performance_test(name).OPERATOR
        graph, notes = frontend.trace(spec)
        shared = families.lower(spec, graph, notes)
        ready = []
        for size, case in cases_of(spec, name, wanted):
            if time.time() > until:
                break
            key = f"{name} {size} {case.label}"
            plan = families.lower(replace(spec, performance=(case,)), graph, notes)
            try:
                self.items[key] = self._item(operator, size, case, plan, shared)
                ready.append((size, key))
            except Exception:
                print(f"{key}: {traceback.format_exc(limit=4)}", file=sys.stderr, flush=True)
        return ready

    def _item(self, operator: Any, size: str, case: Any, plan: Any, shared: Any) -> Item:
        import torch

        from kernelgen import families, judge
        from kernelgen.judge import performance
        from kernelgen.plan import TableRow

        judged = judge.Case.from_json(case.to_json())
        make_inputs = performance.make_inputs(operator, judged, seed=1)
        first = plan.table[families.row_of(plan, case)].schedule
        of_all = shared.table[families.row_of(shared, case)].schedule
        schedules = {"first": first, "first of large": of_all}
        if size != "large":
            schedules |= {f"other {i}": s for i, s in enumerate(alternatives(families, plan, case))}
        functions = {name: performance.opponent(operator, name, judged) for name in ("eager", "compile")}
        texts = {name: plan.with_table((TableRow((), schedule),)) for name, schedule in schedules.items()}
        functions |= {name: self._load(operator.name, text) for name, text in _distinct(texts).items()}
        inputs = make_inputs()
        expected = operator.reference(*inputs)
        failed: dict[str, str] = {}
        for name in list(functions):
            try:
                wrong = _difference(functions[name](*inputs), expected)
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            if wrong:
                failed[name] = wrong
                del functions[name]
        torch.cuda.synchronize()
        del inputs, expected
        torch.cuda.empty_cache()
        problem = dict(families.problem_of(plan, case).sizes)
        row = {"operator": operator.name, "size": size, "case": case.label, "family": plan.family, "problem": problem}
        return Item(size, case, make_inputs, functions, {n: str(s) for n, s in schedules.items()}, failed, row)

    def _load(self, name: str, plan: Any) -> Any:
        from kernelgen import render

        path = self.folder / f"m{len(list(self.folder.iterdir()))}.py"
        path.write_text(render.triton_source(plan), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"small_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    def measure(self, key: str) -> dict[str, Any]:
        """One row: medians of a race, and the first schedule against torch.compile in pairs."""
        import torch

        from kernelgen import judge
        from kernelgen.judge import cuda, timing

        cuda.GRAPH_US = 60.0  # half a percent of what a sample takes: the clock's own grain
        item = self.items.pop(key)
        names, functions = list(item.functions), list(item.functions.values())
        race = timing.quick(functions, item.make_inputs, repetitions=5, seed=1)
        medians = {name: round(one.median_us, 3) for name, one in zip(names, race, strict=True)}
        row = {**item.row, "us": medians, "schedules": item.schedules, "failed": item.failed}
        for other in ("compile", "eager"):
            pair = [item.functions.get(other), item.functions.get("first")]
            if all(pair) and (other == "compile" or "compile" not in item.functions):
                found = judge.compare(*pair, item.make_inputs, blocks=4, pairs=5, time_cap_s=4, half_width=1.0, seed=1)
                row[f"over {other}"] = [round(n, 4) for n in (found.speedup, found.low, found.high)]
        torch.cuda.empty_cache()
        return row


def _distinct(plans: dict[str, Any]) -> dict[str, Any]:
    """Without plans of the same table as one before."""
    found: dict[Any, str] = {}
    for name, plan in plans.items():
        found.setdefault(plan.table, name)
    return {name: plans[name] for name in found.values()}


def _difference(got: Any, expected: Any) -> str:
    """Why results are wrong, roughly: races are not judged, they must only not be won by nonsense."""
    import torch

    results, right = ((x if isinstance(x, tuple) else (x,)) for x in (got, expected))
    for one, other in zip(results, right, strict=True):
        if other.dtype.is_floating_point and other.dtype.itemsize > 1 and other.numel():
            apart = (one.float() - other.float()).abs().nan_to_num(0).max().item()
            if apart > 0.05 * max(1.0, other.float().nan_to_num(0, 0, 0).abs().max().item()):
                return f"differs by {apart:g}"
        elif one.shape != other.shape or one.dtype != other.dtype:
            return f"is {one.dtype} {tuple(one.shape)}"
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return ""


def work(make: Callable[[], Worker]) -> None:
    """A request a line on stdin, an answer a line on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = make()
    print(json.dumps({"ready": machine()}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "prepare" in asked:
                answer: Any = worker.prepare(asked["prepare"], asked["sizes"], asked["until"])
            else:
                answer = worker.measure(asked["measure"])
        except Exception as error:
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


# The run -------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Process:
    """A worker, and what it was asked last."""

    popen: subprocess.Popen[str]
    asked: str | None = None
    ready: list[tuple[str, str]] = field(default_factory=list)

    def ask(self, request: dict[str, Any], name: str) -> None:
        self.asked = name
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(request) + "\n")
        self.popen.stdin.flush()


def run(
    names: list[str], sizes: list[str], out: Path, workers: int, script: Path, until: tuple[float, float]
) -> dict[str, Any]:
    """Names prepared and measured by processes of a script; what was measured, which `out` has after every row.
    `until`: seconds of the whole run by which preparing ends, and by which measuring does."""
    began = time.time()
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "--worker"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    processes = [Process(subprocess.Popen(command, env=environment, **pipes)) for _ in range(workers)]
    head: dict[str, Any] = {"command": f"python docs/benchmarks/{script.name}", "rows": []}
    waiting, preparing_ends = list(names), began + until[0]
    with selectors.DefaultSelector() as selector:
        for process in processes:
            process.asked = "start"
            selector.register(process.popen.stdout, selectors.EVENT_READ, process)  # type: ignore[arg-type]
        while selector.get_map() and time.time() < preparing_ends + STUCK_S:
            for found, _ in selector.select(1.0):
                process = found.data
                line = process.popen.stdout.readline()
                if not line:
                    print(f"{process.asked}: its process ended", file=sys.stderr, flush=True)
                    selector.unregister(process.popen.stdout)
                    continue
                answer = json.loads(line)
                if process.asked == "start":
                    head |= answer["ready"]
                elif isinstance(answer, list):
                    process.ready += [tuple(pair) for pair in answer]
                if waiting and time.time() < preparing_ends:
                    name = waiting.pop(0)
                    process.ask({"prepare": name, "sizes": sizes, "until": preparing_ends}, name)
                else:
                    process.asked = None
                    selector.unregister(process.popen.stdout)
        late = [key.data for key in selector.get_map().values()]
    head["prepared_s"], head["not_prepared"] = round(time.time() - began), waiting
    for process in late:
        process.popen.kill()
    print(f"prepared in {head['prepared_s']} s, {len(waiting)} operators were not", file=sys.stderr, flush=True)
    items = [(sizes.index(size), key, process) for process in processes for size, key in process.ready]
    for _, key, process in sorted(items, key=lambda item: item[:2]):
        if time.time() - began > until[1]:
            break
        if process.popen.poll() is not None:
            continue
        process.ask({"measure": key}, key)
        row = _answer(process) or {"error": "no answer"}
        head["rows"].append(row if "error" not in row else {"key": key, **row})
        head["seconds"] = round(time.time() - began)
        write(out, json.dumps(head, indent=1) + "\n")
    for process in processes:
        process.popen.kill()
    return head


def _answer(process: Process) -> dict[str, Any] | None:
    """The answer of a process that measures; None, and its end, where there is none in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.popen.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        line = process.popen.stdout.readline() if selector.select(STUCK_S) else ""  # type: ignore[union-attr]
    if not line:
        process.popen.kill()
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def report(data: dict[str, Any]) -> str:
    """Geometric means by size, then every row: the first schedule over compile, and the best that raced."""
    rows = [row for row in data["rows"] if "over compile" in row]
    lines = [f"{data.get('device')}, torch {data.get('torch')}, {len(rows)} rows in {data.get('seconds')} s"]
    for size in SIZES:
        ratios = [row["over compile"][0] for row in rows if row["size"] == size]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            below = sum(r < 0.95 for r in ratios)
            lines.append(f"{size:8s} {len(ratios):4d} rows: {mean:.3f} over compile, {below} below 0.95")
    for row in sorted(rows, key=lambda row: (SIZES.index(row["size"]), row["over compile"][0])):
        us, (ratio, low, high) = row["us"], row["over compile"]
        best = min((n for n in us if n not in ("eager", "compile")), key=us.__getitem__)
        gain, schedules = us["first"] / us[best], row["schedules"]
        lines.append(
            f"{row['size']:7s} {row['operator']:18s} {row['case']:34s} {ratio:.2f} [{low:.2f}, {high:.2f}] "
            f"eager {us.get('eager', 0):.1f} compile {us['compile']:.1f} first {us['first']:.1f} ({schedules['first']})"
            + (f" best {us[best]:.1f} x{gain:.2f} ({schedules[best]})" if gain > 1.02 else "")
        )
    lines += [f"error: {row}" for row in data["rows"] if "error" in row]
    return "\n".join(lines)


def merged(data: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What another run on the same device and versions measured, with the rows of `data` that it has not."""
    told = ("device", "torch", "triton")
    if any(data[key] != other[key] for key in told):
        raise SystemExit(f"not merged: {[other[key] for key in told]} is not {[data[key] for key in told]}")

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row.get("operator"), row.get("size"), row.get("case")

    known = {key(row) for row in other["rows"]}
    then = {"date": data["date"]} if data["date"] != other["date"] else {}
    before = [{**then, **row} for row in data["rows"] if key(row) not in known and "operator" in row]
    return other | {"command": data["command"], "rows": [*other["rows"], *before]}


def table(data: dict[str, Any]) -> str:
    """The page: geometric means by size, then every row, the slowest first."""
    rows = [row for row in data["rows"] if "over compile" in row]
    lines = [
        f"# First schedules at small sizes, measured on {data['device']}",
        "",
        f"torch {data['torch']}, triton {data['triton']}, Python {data['python']}, {data['date']}.",
        f"Remade by `{data['command']}`, and this page from the data by `python docs/benchmarks/small.py --table`.",
        "",
        "What `kernelgen new` writes, with no round of optimisation, against `torch.compile`: its device time over the",
        "kernel's, above 1 is faster, with the 95 % interval of the pairs. `decode`: eight rows; `few_mb`: the batch",
        "cut to 4 MiB; `other`: shapes of their own.",
        *_dates(rows),
        *data.get("since", ()),
        "",
        "| size | rows | geometric mean over compile | below 0.95 |",
        "|---|---:|---:|---:|",
    ]
    for size in SIZES:
        ratios = [row["over compile"][0] for row in rows if row["size"] == size]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"| {size} | {len(ratios)} | {mean:.3f} | {sum(r < 0.95 for r in ratios)} |")
    lines += ["", "| size | operator | case | kernel µs | eager µs | over compile |", "|---|---|---|---:|---:|---:|"]
    for row in sorted(rows, key=lambda row: (SIZES.index(row["size"]), row["over compile"][0])):
        us, (ratio, low, high) = row["us"], row["over compile"]
        eager, older = f"{us['eager']:.1f}" if "eager" in us else "–", " †" if "date" in row else ""
        lines.append(
            f"| {row['size']} | {row['operator']}{older} | {row['case']} | {us['first']:.1f} | {eager} | "
            f"{ratio:.2f} [{low:.2f}, {high:.2f}] |"
        )
    untimed = sorted({f"{row['operator']} {row['case']}" for row in data["rows"] if "case" in row} - {
        f"{row['operator']} {row['case']}" for row in rows
    })  # fmt: skip
    if untimed:
        lines += ["", f"Not timed against compile: {', '.join(untimed)}."]
    return "\n".join(lines) + "\n"


def _dates(rows: list[dict[str, Any]]) -> list[str]:
    dates = sorted({row["date"] for row in rows if "date" in row})
    return [f"† of an earlier run ({', '.join(dates)}), with the first schedules of that day."] if dates else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE)) / "small.json")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--report", type=Path, help="only print the summary of a file")
    parser.add_argument("--table", action="store_true", help="only write small.md from small.json")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="take the rows of FILE, measured elsewhere")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(Worker)
    elif options.table or options.merge:
        if options.merge:
            path = HERE / "small.json"
            found = merged(json.loads(path.read_text("utf-8")), json.loads(options.merge.read_text("utf-8")))
            write(path, json.dumps(found, indent=1) + "\n")
        write(HERE / "small.md", table(json.loads((HERE / "small.json").read_text("utf-8"))))
    elif options.report:
        print(report(json.loads(options.report.read_text())))
    else:
        names, until = options.only or operators(), (PREPARED_BY_S, MEASURED_BY_S)
        print(report(run(names, options.sizes, options.out, options.workers, Path(__file__), until)))


if __name__ == "__main__":
    main()

"""Measure products, convolutions and attention against everything of PyTorch's that computes the same, in one run.

    python docs/benchmarks/contractions.py                    # all of them; one GPU, about 8 minutes with 16 cores
    python docs/benchmarks/contractions.py --only matmul linear_gelu --prepare-s 400
    python docs/benchmarks/contractions.py --merge FILE...    # the rows of other runs, anywhere
    python docs/benchmarks/contractions.py --table            # the pages from the data, anywhere

Beside eager, torch.compile and max-autotune stand other calls of torch's, where they compute the same: every backend of
scaled_dot_product_attention, flex_attention compiled, attention of packed sequences, convolutions in channels-last.
cuDNN may search (`torch.backends.cudnn.benchmark`). Operators are the committed ones with their committed tables; a few
other schedules of theirs race beside, which says what a search would find.

Processes prepare operators at once, then measure one at a time: while a clock runs nobody else uses the GPU. Inductor
chooses for max-autotune while others prepare; what it chose is timed alone.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import gc
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import small
from measure import HERE, OPPONENTS, ROOT, fingerprint, performance_test, product_us, write

COMMAND = "python docs/benchmarks/contractions.py"
NAMES = (
    *("matmul", "matvec", "batched_matmul", "linear", "linear_gelu", "linear_residual", "linear_softmax", "gated_mlp"),
    *("linear_int8", "linear_int4_groups", "matmul_fp32_exact", "matmul_lower_triangular", "grouped_matmul"),
    *("linear_cross_entropy", "attention", "attention_causal", "attention_gqa", "attention_gqa_decode"),
    *("attention_paged_decode", "attention_decode_fp8", "attention_alibi", "attention_softcap", "attention_window"),
    *("attention_sinks", "attention_rope", "attention_varlen", "attention_varlen_causal", "conv2d_bias_relu"),
    *("conv2d_bn_relu", "conv1d_gelu", "conv3d_bias", "conv_transpose2d_bias", "depthwise_separable", "patch_embed"),
)
PREPARE_S, MEASURING_S = 300.0, 240.0
"""How long preparing may take, unless --prepare-s says otherwise, and measuring."""
SLOW = 4.0
"""What takes so many times as long as the kernel, called once, is timed no better,"""
SHORT_US = 1000.0
"""unless it is short, where a call is mostly launches."""
RACING = 6
"""Other schedules that race beside the table's."""
TOLERANCE = 0.05
"""What a peer's result may differ by, relative to the largest element: it must compute the same, no more is judged."""

Function = Callable[..., Any]
Builder = Callable[..., Function]


# What torch has beside ------------------------------------------------------------------------------------------------


def _sdpa(backend: str, **options: Any) -> Builder:
    """scaled_dot_product_attention held to one backend."""

    def build(*_: Any) -> Function:
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return F.scaled_dot_product_attention(q, k, v, **options)

        return call

    return build


def _backends(**options: Any) -> dict[str, Builder]:
    names = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    if options.get("enable_gqa"):
        del names["efficient"]  # takes equal head counts alone
    return {label: _sdpa(backend, **options) for label, backend in names.items()}


def _flex(score: str = "", window: int = 0, sinks: bool = False, causal: bool = True, gqa: bool = False) -> Builder:
    """flex_attention compiled, its block mask made before the clock runs."""

    def build(q: Any, k: Any, *_: Any) -> Function:
        import torch
        from torch.nn.attention import flex_attention as flex

        def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (i - j < window) if window else j <= i

        lengths = (q.shape[2], k.shape[2])
        mask = flex.create_block_mask(seen, None, None, *lengths, device=q.device) if causal or window else None

        def call(q: Any, k: Any, v: Any, *rest: Any) -> Any:
            def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                if score == "alibi":
                    return s + rest[0][h] * (j - i)
                return 50.0 * torch.tanh(s / 50.0) if score == "softcap" else s

            attend: Any = flex.flex_attention
            found = attend(
                q, k, v, score_mod=changed if score else None, block_mask=mask, enable_gqa=gqa, return_lse=sinks
            )
            if not sinks:
                return found
            out, lse = found
            kept = torch.sigmoid(lse - rest[0][:, None].float())  # of all weights, what the sink does not take
            return (out * kept[..., None]).to(out.dtype)

        return torch.compile(call, dynamic=False)

    return build


def _packed(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any) -> Function:
    """FlashAttention of packed sequences, as torch calls it. Where sequences end is drawn anew for every set of inputs:
    none of them is six times as long as the mean."""
    from torch.nn.attention.varlen import varlen_attn

    longest = [min(len(x), 6 * len(x) // (len(ends) - 1)) for x, ends in ((q, ends_q), (k, ends_k))]
    return lambda q, k, v, ends_q, ends_k: varlen_attn(q, k, v, ends_q, ends_k, *longest)


def _channels_last(reference: Function) -> Builder:
    """The reference on inputs turned to channels-last, the turn included, as the interface asks for."""

    def build(*_: Any) -> Function:
        import torch

        def call(*inputs: Any) -> Any:
            last = [
                x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.shape[1] > 1 else x
                for x in inputs
            ]
            return reference(*last).contiguous()

        return call

    return build


def peers(name: str, operator: Any) -> dict[str, Builder]:
    """The calls that stand beside an operator; each gets its inputs once to be built."""
    found: dict[str, dict[str, Builder]] = {
        "attention": {**_backends(), "flex": _flex(causal=False)},
        "attention_causal": {**_backends(is_causal=True), "flex": _flex()},
        "attention_gqa": {**_backends(is_causal=True, enable_gqa=True), "flex": _flex(gqa=True)},
        "attention_gqa_decode": {**_backends(enable_gqa=True), "flex": _flex(causal=False, gqa=True)},
        "attention_alibi": {"flex": _flex("alibi")},
        "attention_softcap": {"flex": _flex("softcap")},
        "attention_window": {"flex": _flex(window=128)},
        "attention_sinks": {"flex": _flex(sinks=True)},
        "attention_varlen": {"varlen_attn": _packed},
    }
    if name.startswith("conv") and name not in ("conv1d_gelu", "conv3d_bias"):
        return {"channels-last": _channels_last(operator.reference)}
    return found.get(name, {})


# A process that prepares and measures ---------------------------------------------------------------------------------


@dataclass
class Item:
    """One case of an operator: what is timed, compiled and called once."""

    make_inputs: Any
    functions: dict[str, Function]
    row: dict[str, Any]
    schedules: dict[str, str] = field(default_factory=dict)


class Worker(small.Worker):
    """Operators prepared in this process."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        torch.backends.cudnn.benchmark = True
        self.items: dict[str, Any] = {}

    def prepare(self, name: str, wanted: list[str], until: float) -> list[tuple[str, str]]:
        """Compile what stands beside every case of an operator; the cases that are ready, by their keys."""
        from kernelgen.generation import plan_of
        from kernelgen.spec import load_spec

        operator, cases = performance_test(name).OPERATOR, performance_test(name).CASES
        spec = load_spec(ROOT / "specs" / f"{name}.yaml")
        plan, floors = plan_of(spec, ROOT / "operators"), product_us(name)
        by_label = {case.label: case for case in spec.performance}
        dtypes = [case.dtypes.get("T", "float16") for case in cases]
        first = "float16" if "float16" in dtypes else dtypes[0]
        ready = []
        for case, dtype in zip(cases, dtypes, strict=True):
            if dtype != first or time.time() > until:
                continue
            key = f"{name} {case.label}"
            try:
                item = self._item_of(name, operator, case, until, ("eager", "compile"))
                self._race(item, operator, plan, by_label.get(case.label), until)
                self._add(item, operator, {"max-autotune": _opponent(operator, "max-autotune", case)}, until)
            except Exception:
                print(f"{key}: {traceback.format_exc(limit=4)}", file=sys.stderr, flush=True)
                continue
            item.row |= {"floor_us": floors.get(case.label, 0.0), "kernel": fingerprint(name)}
            self.items[key] = item
            ready.append(("case", key))
        return ready

    def _item_of(self, name: str, operator: Any, case: Any, until: float, opponents: tuple[str, ...]) -> Item:
        from kernelgen.judge import performance

        row: dict[str, Any] = {"operator": name, "case": case.label, "failed": {}}
        item = Item(performance.make_inputs(operator, case, seed=1), {"kernel": operator.kernel}, row)
        beside = {label: _opponent(operator, label, case) for label in opponents}
        self._add(item, operator, {**peers(name, operator), **beside}, until)
        return item

    def _add(self, item: Item, operator: Any, builders: dict[str, Builder], until: float) -> None:
        """Functions that are built, called once and right; what is not is named in the row."""
        inputs = item.make_inputs()
        expected = operator.kernel(*inputs)
        for label, build in builders.items():
            try:
                if time.time() > until:
                    raise TimeoutError("no time was left to prepare it")
                item.functions[label] = _called(build(*inputs), inputs, expected)
            except Exception as error:
                item.row["failed"][label] = f"{type(error).__name__}: {str(error)[:200]}"
        del inputs, expected
        _free()

    def _race(self, item: Item, operator: Any, plan: Any, case: Any, until: float) -> None:
        """Other schedules of an operator of one kernel, where a search would set out."""
        from kernelgen import families
        from kernelgen.plan import KernelPlan, TableRow

        if case is None or not isinstance(plan, KernelPlan):
            return
        item.schedules["kernel"] = str(plan.table[families.row_of(plan, case)].schedule)
        calls = [s for s in families.variants(plan, (case,)) if s.variant == "library"]
        racing = dict.fromkeys([*calls, *small.alternatives(families, plan, case)])
        for i, schedule in enumerate(list(racing)[:RACING]):
            load = functools.partial(self._load, operator.name, plan.with_table((TableRow((), schedule),)))
            item.schedules[f"other {i}"] = str(schedule)
            self._add(item, operator, {f"other {i}": lambda *_, load=load: load()}, until)

    def measure(self, key: str) -> dict[str, Any]:
        """One row; nothing of it stays in the device's memory, whatever comes of it."""
        try:
            return self._measured(key)
        finally:
            _free()

    def _measured(self, key: str) -> dict[str, Any]:
        """Medians of a race, and every opponent against the kernel in pairs; what is SLOW is called a few times alone,
        for a captured graph would keep all that an attention written out needs."""
        from kernelgen import judge
        from kernelgen.judge import timing

        item = self.items.pop(key)
        us = _roughly(item)
        near = {name: f for name, f in item.functions.items() if us[name] <= max(SLOW * us["kernel"], SHORT_US)}
        race = timing.quick(list(near.values()), item.make_inputs, repetitions=5, seed=1)
        us |= {name: round(one.median_us, 3) for name, one in zip(near, race, strict=True)}
        found: dict[str, Any] = {}
        for name in near:
            if name == "kernel" or name.startswith("other"):
                continue
            pair = judge.compare(
                item.functions[name], item.functions["kernel"], item.make_inputs, blocks=4, pairs=5, time_cap_s=2,
                half_width=1.0, seed=1,
            )  # fmt: skip
            found[name] = [round(n, 4) for n in (pair.speedup, pair.low, pair.high)]
        return {**item.row, "us": us, "over": found, "schedules": item.schedules}


def _opponent(operator: Any, name: str, case: Any) -> Builder:
    from kernelgen.judge import performance

    return lambda *_: performance.opponent(operator, name, case)


def _called(function: Function, inputs: Any, expected: Any) -> Function:
    """The function, called once and right within TOLERANCE; alone on the GPU where there is no room beside others."""
    import torch

    try:
        got = function(*inputs)
    except torch.OutOfMemoryError:
        _free()
        with _alone():
            got = function(*inputs)
            _free()
    wrong = small._difference(got, expected)
    if wrong:
        raise ValueError(wrong)
    return function


def _roughly(item: Item) -> dict[str, float]:
    """Microseconds of a single call, launches included: the least of three."""
    import torch

    event: Any = torch.cuda.Event
    inputs = item.make_inputs()
    found = {}
    for name, function in item.functions.items():
        times = []
        for _ in range(3):
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            function(*inputs)
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end))
        found[name] = round(min(times), 3)
    return found


def _free() -> None:
    """Give back all that is not held, captured graphs that refer to themselves included."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time, for what takes most of the memory."""
    with (Path(tempfile.gettempdir()) / "contractions.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The page -------------------------------------------------------------------------------------------------------------


def table(data: dict[str, Any]) -> str:
    """The measured rows as Markdown."""
    lines = [
        f"# Products, convolutions and attention on {data['device']}",
        "",
        f"torch {data['torch']}, triton {data['triton']}, Python {data['python']}, {data['date']}.",
        f"Remade by `{COMMAND}`, and this page from the data by `{COMMAND} --table`.",
        "",
        "Ratios are PyTorch's device time over the generated kernel's, above 1 is faster, each with its 95 % interval",
        "(paired, interleaved). The best is the fastest of eager, compile, max-autotune and the peers: backends of",
        "scaled_dot_product_attention, flex_attention compiled, packed attention, convolutions in channels-last. What",
        "takes four times as long is not timed in pairs. The roofline is the larger of operations over the data",
        "sheet's peak, without scores that a mask hides by their places, and bytes over its bandwidth. A search would",
        "reach: the fastest of the few other schedules that raced, where it is more than 2 % faster. † the kernel has",
        "changed since: first schedules follow this page.",
        "",
        "| operator | case | kernel µs | roofline | over the best | which | over eager | over compile "
        "| over max-autotune | a search would reach |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for row in data["rows"]:
        lines += [_line(row)] if row.get("over") else []
    lines += ["", *_failures(data), *_earlier(data), *data.get("since", ())]
    return "\n".join(lines) + "\n"


def data_of(device: str) -> Path:
    """Where the rows of a device are: those of the H200 beside this file, others by their name."""
    other = "" if "H200" in device else "_" + device.split()[1].lower()
    return HERE / f"contractions{other}.json"


def merged(data: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The data with all rows of the operators that a later run on the same device and versions measured; others keep
    their date."""
    told = ("device", "torch", "triton")
    if any(data[key] != other[key] for key in told):
        raise SystemExit(f"not merged: {[other[key] for key in told]} is not {[data[key] for key in told]}")
    anew = {row["operator"] for row in other["rows"] if row.get("over")}
    then = {"date": data["date"]} if data["date"] != other["date"] else {}
    rows = [{**then, **row} for row in data["rows"] if row.get("operator") not in anew]
    rows += [row for row in other["rows"] if row.get("operator") in anew]
    return {**data, "date": other["date"], "rows": sorted(rows, key=lambda row: str(row.get("operator")))}


def _line(row: dict[str, Any]) -> str:
    us, over = row["us"], row["over"]
    name, (best, low, high) = min(over.items(), key=lambda pair: pair[1][0])
    cells = [f"{over[n][0]:.2f}" if n in over else ("> 4" if n in us else "–") for n in OPPONENTS]
    other = min((n for n in us if n.startswith("other")), key=us.__getitem__, default="kernel")
    gain = us["kernel"] / us[other]
    reach = f"{gain:.2f}x: `{row['schedules'][other]}`" if gain > 1.02 else ""
    older = "" if row["kernel"] == fingerprint(row["operator"]) else " †"
    floor = f"{100 * row['floor_us'] / us['kernel']:.0f} %" if row["floor_us"] else ""
    return (
        f"| {row['operator']}{older} | {row['case']} | {us['kernel']:.1f} | {floor} | **{best:.3f}** [{low:.3f}, "
        f"{high:.3f}] | {name} | {' | '.join(cells)} | {reach} |"
    )


def _failures(data: dict[str, Any]) -> Iterator[str]:
    missing = [name for name in NAMES if not any(row.get("operator") == name for row in data["rows"])]
    if missing:
        yield f"Not ready in time in this run: {', '.join(missing)}."
    for row in data["rows"]:
        if "error" in row:
            yield f"Not measured: {row}"
        for name, reason in row.get("failed", {}).items():
            if not name.startswith("other"):
                yield f"- {row['operator']} {row['case']}: {name} was not timed: {reason.splitlines()[0]}"


def _earlier(data: dict[str, Any]) -> Iterator[str]:
    for date in sorted({row["date"] for row in data["rows"] if "date" in row}):
        names = sorted({row["operator"] for row in data["rows"] if row.get("date") == date})
        yield f"- Of {date}, on the same device and versions: {', '.join(names)}."


def report(data: dict[str, Any]) -> str:
    """The lines of the page that a terminal shows at the end of a run."""
    rows = [row for row in data["rows"] if row.get("over")]
    best = [min(r[0] for r in row["over"].values()) for row in rows]
    mean = math.exp(sum(map(math.log, best)) / len(best)) if best else 0.0
    return "\n".join([*map(_line, rows), *_failures(data), f"{len(rows)} rows, {mean:.3f} of the best"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE)) / "contractions.json")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--prepare-s", type=float, default=PREPARE_S, help="how long preparing may take")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", default=[], help="take what was measured elsewhere"
    )
    parser.add_argument("--table", action="store_true", help="only write the pages from the data")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        small.work(Worker)
    elif options.table or options.merge:
        for one in options.merge:
            new = json.loads(one.read_text("utf-8"))
            path = data_of(new["device"])
            data = merged(json.loads(path.read_text("utf-8")), new) if path.exists() else new
            write(path, json.dumps(data, indent=1) + "\n")
        for path in sorted(HERE.glob("contractions*.json")):
            write(path.with_suffix(".md"), table(json.loads(path.read_text("utf-8"))))
    else:
        until = (options.prepare_s, options.prepare_s + MEASURING_S)
        names = options.only or list(NAMES)
        print(report(small.run(names, ["case"], options.out, options.workers, Path(__file__), until)))


if __name__ == "__main__":
    main()

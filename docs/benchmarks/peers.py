"""Measure the shipped kernels against Liger, FlagGems and Helion in one process on one GPU.

    python docs/benchmarks/peers.py             # writes peers.json and peers.md
    python docs/benchmarks/peers.py --table     # writes peers.md from the committed data

Each peer that can be imported is called on each row that it has a function for, checked, and timed against the shipped
kernel as the judge times PyTorch. One that cannot be imported, is wrong or fails is named with its error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import operator
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measure import HERE, ROOT, fingerprint, machine, performance_test, write

COMMAND = "python docs/benchmarks/peers.py"
PEERS = {"Liger": "liger_kernel", "FlagGems": "flag_gems", "Helion": "helion"}
"""The package of each peer."""
MISSING = "cannot be imported"
LARGEST_ERROR = 1e-2
"""What a peer's result may differ from the reference in float32, relative to its largest element."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A library's function, `module:name`, and how it is called on an operator's inputs."""

    function: str
    call: Function = lambda function, *inputs: function(*inputs)

    def found(self) -> Function:
        """The call as a function of the inputs; raises what importing raises."""
        module, _, name = self.function.partition(":")
        return partial(self.call, operator.attrgetter(name)(importlib.import_module(module)))


@dataclass(frozen=True)
class Row:
    """One case of a shipped operator in float16, and the calls that stand beside it."""

    operator: str
    sizes: Mapping[str, int | tuple[int, ...]]
    peers: Mapping[str, Call]


def along_rows(function: Function, x: Any) -> Any:
    return function(x, -1)


LIGER = "liger_kernel.ops"
ROWS = (
    Row(
        "softmax",
        {"...": (16384,), "D": 4096},
        {
            "Liger": Call(f"{LIGER}.softmax:LigerSoftmaxFunction.apply"),
            "FlagGems": Call("flag_gems:softmax", along_rows),
            "Helion": Call("helion_kernels:softmax"),
        },
    ),
    Row(
        "rms_norm",
        {"...": (16384,), "D": 4096},
        {
            "Liger": Call(
                f"{LIGER}.rms_norm:LigerRMSNormFunction.apply",
                lambda f, x, weight: f(x, weight, 1e-6, 0.0, "llama", False),
            ),
            "FlagGems": Call("flag_gems:rms_norm", lambda f, x, weight: f(x, weight.shape, weight, 1e-6)),
            "Helion": Call("helion_kernels:rms_norm"),
        },
    ),
    Row(
        "layer_norm",
        {"...": (16384,), "D": 4096},
        {
            "Liger": Call(
                f"{LIGER}.layer_norm:LigerLayerNormFunction.apply",
                lambda f, x, weight, bias: f(x, weight, bias, 1e-5),
            ),
            "FlagGems": Call(
                "flag_gems:layer_norm", lambda f, x, weight, bias: f(x, weight.shape, weight, bias, 1e-5)[0]
            ),
        },
    ),
    Row(
        "silu_mul",
        {"...": (8192, 14336)},
        {
            "Liger": Call(f"{LIGER}.swiglu:LigerSiLUMulFunction.apply"),
            "FlagGems": Call("flag_gems:silu_and_mul"),
        },
    ),
    Row("argmax", {"...": (4096,), "D": 32768}, {"FlagGems": Call("flag_gems:argmax", along_rows)}),
    Row("cumsum", {"...": (4096,), "D": 16384}, {"FlagGems": Call("flag_gems:cumsum", along_rows)}),
    Row(
        "gelu_tanh",
        {"...": (8192, 14336)},
        {"FlagGems": Call("flag_gems:gelu", lambda f, x: f(x, approximate="tanh"))},
    ),
    Row("sum_all", {"...": (4096, 16384)}, {"FlagGems": Call("flag_gems:sum")}),
    Row(
        "cross_entropy",
        {"B": 4096, "V": 32768},
        {
            "FlagGems": Call("flag_gems:cross_entropy_loss"),
            "Liger": Call(
                f"{LIGER}.cross_entropy:LigerCrossEntropyFunction.apply",
                lambda f, logits, target: f(logits, target, None)[0],
            ),
        },
    ),
)
"""What these libraries have for the rows. FlagGems' functions are called themselves, not by way of torch with FlagGems
enabled, so that both sides run in turns; where it has one for the whole row, that one."""


def measure(rows: list[Row], out: Path) -> None:
    """All rows; `out` is written after each."""
    sys.path[:0] = [str(ROOT)]
    from kernelgen import judge

    judge.prepare()
    head = {**machine(), "command": COMMAND, "peers": {name: version(package) for name, package in PEERS.items()}}
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(measured(row, judge.compare))
        write(out, json.dumps({**head, "rows": found}, indent=1) + "\n")


def measured(row: Row, compare: Function) -> dict[str, Any]:
    """One row: the shipped kernel is checked by the judge, every peer against the reference; then they are timed."""
    from kernelgen import judge

    ours = performance_test(row.operator).OPERATOR
    case = judge.Case(row.sizes, {"T": "float16"})
    report = judge.performance_case(ours, case, against=())
    peers: dict[str, Any] = {}
    for name, call in row.peers.items():
        peers[name] = {"function": call.function}
        try:
            peers[name] |= against(call, ours, case, compare)
        except Exception as error:
            peers[name]["error"] = in_short(error)
        print(f"{row.operator:14s} {name:9s} {shown(peers[name])}", file=sys.stderr, flush=True)
    return {
        "operator": row.operator,
        "kernel": fingerprint(row.operator),
        "case": case.label,
        "floor_us": report.floor_us,
        "message": report.message,
        "peers": peers,
    }


def against(call: Call, ours: Any, case: Any, compare: Function) -> dict[str, Any]:
    """A peer's comparison with the shipped kernel, how far its result is off, and what its first call took.

    Raises whatever importing or calling it raises, and ValueError where its result is wrong.
    """
    import torch

    from kernelgen import judge

    peer = call.found()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = judge.make_inputs(ours, case, seed=0, device=device)()
    begin = time.perf_counter()
    off = off_by(peer(*inputs), ours.reference, inputs)
    first_s = time.perf_counter() - begin
    if not off <= LARGEST_ERROR:
        raise ValueError(f"wrong by {off:.3g} of the largest element")
    comparison = compare(peer, ours.kernel, judge.make_inputs(ours, case, seed=0, device=device))
    found = {**judge.to_json(comparison), "samples": None}
    return {"comparison": found, "off_by": off, "first_call_s": round(first_s, 1)}


def off_by(result: Any, reference: Function, inputs: tuple[Any, ...]) -> float:
    """The largest difference from the reference in float32, relative to its largest element. Of indices, equally good
    ones are the same: what they point at is compared."""
    expected = reference(*(x.float() if x.is_floating_point() else x for x in inputs))
    if result.shape != expected.shape:
        raise ValueError(f"has the shape {list(result.shape)}, not {list(expected.shape)}")
    if not expected.is_floating_point():
        result, expected = (inputs[0].gather(-1, indices.unsqueeze(-1)) for indices in (result, expected))
    expected = expected.float()
    return float((result.float() - expected).abs().max() / expected.abs().max())


def in_short(error: Exception) -> str:
    """Its type and first line, files without their folders."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return re.sub(r"(/[^/\s]+)+/", "", line)[:200]


def version(package: str) -> str:
    """Its version, or why there is none."""
    try:
        importlib.import_module(package)
        return importlib.metadata.version(package)
    except Exception as error:
        return f"{MISSING} ({in_short(error)})"


def shown(peer: Mapping[str, Any]) -> str:
    if "error" in peer:
        return str(peer["error"])
    found = peer["comparison"]
    return f"{found['speedup']:.3f} [{found['low']:.3f}, {found['high']:.3f}]{'' if found['graphed'] else ' ‡'}"


def table(data: dict[str, Any]) -> str:
    """The measured rows as Markdown."""
    lines = [
        f"# Against other libraries on {data['device']}",
        "",
        f"{', '.join(f'{name} {version}' for name, version in data['peers'].items())};",
        f"torch {data['torch']}, triton {data['triton']}, Python {data['python']}, {data['date']}.",
        f"Remade by `{data['command']}`, and this page from the data by `{data['command']} --table`.",
        "",
        "Ratios are the library's device time over the generated kernel's, above 1 is faster, each with its 95 %",
        "interval (paired, interleaved, buffers swapped, in one process: see [measuring](../measuring.md)). – has no",
        "function for the row that was called. ‡ waits for the device in its call and cannot be captured in a graph:",
        "launches were timed one by one. † the kernel has changed since. Helion tuned its kernels itself (effort",
        "`quick`); FlagGems tuned those that it does.",
        "",
        f"| operator | case | kernel µs | {' | '.join(f'over {name}' for name in PEERS)} | over the best | floor |",
        f"|---|---|---:|{'---:|' * len(PEERS)}---:|---:|",
    ]
    lows = []
    for row in data["rows"]:
        timed = [peer["comparison"] for peer in row["peers"].values() if "comparison" in peer]
        if not timed:
            continue
        best = min(timed, key=lambda c: float(c["speedup"]))
        lows.append(best["low"])
        cells = [shown(row["peers"][name]) if "comparison" in row["peers"].get(name, {}) else "–" for name in PEERS]
        older = "" if row["kernel"] == fingerprint(row["operator"]) else " †"
        share = f"{100 * row['floor_us'] / best['b_us']:.0f} %" if row["floor_us"] else ""
        lines.append(
            f"| {row['operator']}{older} | {row['case']} | {best['b_us']:.1f} | {' | '.join(cells)} "
            f"| **{best['speedup']:.3f}** | {share} |"
        )
    reached = sum(low >= 0.99 for low in lows)
    lines += ["", f"The interval over the best of them begins at 0.99 or above in {reached} of {len(lows)} rows."]
    lines += [f"\n{row['operator']} {row['case']}: {row['message']}" for row in data["rows"] if row["message"]]
    failed = [
        f"\nNot timed on {row['operator']} {row['case']}: `{peer['function']}`, {peer['error']}"
        for row in data["rows"]
        for name, peer in row["peers"].items()
        if "error" in peer and MISSING not in data["peers"][name]
    ]
    return "\n".join(lines + failed) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--table", action="store_true", help="only write peers.md from the data")
    parser.add_argument("--out", type=Path, default=HERE / "peers.json")
    parser.add_argument("--only", nargs="*", default=[], help="operators")
    options = parser.parse_args()
    if not options.table:
        measure([row for row in ROWS if not options.only or row.operator in options.only], options.out)
    data = json.loads((HERE / "peers.json" if options.table else options.out).read_text())
    (HERE / "peers.md").write_text(table(data))


if __name__ == "__main__":
    main()

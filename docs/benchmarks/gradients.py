"""Gradients of attention beside those of torch's fastest attention, alone and with the forward.

    python docs/benchmarks/gradients.py [NAME...] [--into OUT]   # on a GPU, half a minute
    python docs/benchmarks/gradients.py --table                  # gradients.md from gradients.json, anywhere

The shipped operator with its gradients, and the backend of scaled_dot_product_attention that is fastest at both:
float16, 4 by 32 heads of 4096 queries and keys. The two take turns; a ratio is of one pair, and its interval that of
all pairs but the lowest and the highest tenth.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA, PAGE = HERE / "gradients.json", HERE / "gradients.md"
COMMAND = "python docs/benchmarks/gradients.py"
NAMES = {"attention_causal": True, "attention": False}
"""Whether an operator's queries see only keys up to their own."""
HEADS = (128, 64)
BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION")
BATCH, HEADS_OF_ONE, LENGTH = 4, 32, 4096
PAIRS = 15

Call = Callable[[], Any]


def paired(theirs: Call, ours: Call) -> dict[str, Any]:
    """Torch's time over ours, pair by pair, each first in half of them."""
    import torch

    def timed(function: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        return begin, end

    theirs(), ours()
    pairs = []
    for number in range(PAIRS):
        order = (theirs, ours) if number % 2 else (ours, theirs)
        first, second = timed(order[0]), timed(order[1])
        pairs.append((first, second) if number % 2 else (second, first))
    torch.cuda.synchronize()
    us = [tuple(1e3 * begin.elapsed_time(end) for begin, end in pair) for pair in pairs]
    ratios = sorted(a / b for a, b in us)
    return {
        "theirs_us": round(statistics.median(a for a, _ in us), 1),
        "ours_us": round(statistics.median(b for _, b in us), 1),
        "ratio": round(statistics.median(ratios), 3),
        "low": round(ratios[PAIRS // 10], 3),
        "high": round(ratios[-1 - PAIRS // 10], 3),
    }


def measured(name: str, head: int) -> dict[str, Any]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sys.path.insert(0, str(ROOT / "operators" / name))
    operator = getattr(importlib.import_module(f"{name}_autograd"), name)
    sys.path.pop(0)
    torch.manual_seed(0)
    shape = (BATCH, HEADS_OF_ONE, LENGTH, head)
    leaves = [torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    incoming = torch.randn_like(leaves[0])

    def of(backend: str) -> Call:
        def attended() -> Any:
            with sdpa_kernel([getattr(SDPBackend, backend)]):
                return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=NAMES[name])

        return attended

    def ours() -> Any:
        return operator(*leaves)

    def both(forward: Call) -> Call:
        return lambda: torch.autograd.grad(forward(), leaves, incoming)

    def backward(forward: Call) -> Call:
        out = forward()
        return lambda: torch.autograd.grad(out, leaves, incoming, retain_graph=True)

    found = {b: (paired(both(of(b)), both(ours)), paired(backward(of(b)), backward(ours))) for b in BACKENDS}
    best = min(found, key=lambda b: float(found[b][0]["theirs_us"]))
    own = [backward(f)() for f in (of(best), ours)]
    off = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*own, strict=True))
    return {
        "operator": name,
        "head": head,
        "best": best,
        "differ_by": off,
        "forward and backward": found[best][0],
        "backward": found[best][1],
    }


def page(data: dict[str, Any]) -> str:
    lines = [
        f"# Gradients of attention on {data['device']}",
        "",
        f"torch {data['torch']}, triton {data['triton']}, {data['date']}. Remade by `{COMMAND}`, and this page",
        f"from the data by `{COMMAND} --table`: float16, {BATCH} by {HEADS_OF_ONE} heads, {LENGTH} queries and keys.",
        f"Ratios are the time of torch's fastest backend over ours, with the interval of {PAIRS} interleaved pairs.",
        *data.get("notes", []),
        "",
        "| operator | heads of | torch's | backward µs | torch's over ours | with forward µs | torch's over ours |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        cells = []
        for what in ("backward", "forward and backward"):
            one = row[what]
            cells += [f"{one['ours_us']:.0f}", f"**{one['ratio']:.3f}** [{one['low']:.3f}, {one['high']:.3f}]"]
        lines.append(f"| {row['operator']} | {row['head']} | {row['best'].lower()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Gradients of attention beside torch's.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--table", action="store_true", help="only write gradients.md from gradients.json")
    asked = parser.parse_args()
    if asked.table:
        PAGE.write_text(page(json.loads(DATA.read_text("utf-8"))), "utf-8")
        return
    import torch
    import triton

    rows = [measured(name, head) for name in asked.names or NAMES for head in HEADS]
    data = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d"), "rows": rows,
    }  # fmt: skip
    (asked.into / DATA.name).write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(page(data))


if __name__ == "__main__":
    main()

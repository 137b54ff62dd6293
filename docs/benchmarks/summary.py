"""The section of README.md on the memory-bound rows that the operators as a whole are judged by, and what is asked of
single rows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

ANCHORS = {
    "broadcast_512^3_fp16": ("broadcast", "[512, 512] D=512 float16"),
    "broadcast_1024^3_fp16": ("broadcast", "[1024, 1024] D=1024 float16"),
    "broadcast_1024^3_fp32": ("broadcast", "[1024, 1024] D=1024 float32"),
    "bias_add_512^3": ("bias_add", "[512, 512] D=512 float16"),
    "chan_scale_shift": ("scale_shift", "N=64 C=256 H=56 W=56 float16"),
    "gelu_tanh": ("gelu_tanh", "[8192, 16384] float16"),
    "silu_mul": ("silu_mul", "[8192, 14336] float16"),
    "softmax_4096": ("softmax", "[16384] D=4096 float16"),
    "softmax_128k": ("softmax", "[512] D=131072 float16"),
    "log_softmax_32k": ("log_softmax", "[2048] D=32768 float16"),
    "rms_norm_4096": ("rms_norm", "[16384] D=4096 float16"),
    "F.rms_norm_4096": ("rms_norm_torch", "[16384] D=4096 float16"),
    "layer_norm_4096": ("layer_norm", "[16384] D=4096 float16"),
    "layer_norm_1024x": ("layer_norm", "[65536] D=1024 float16"),
    "add_rms_norm": ("add_rms_norm", "[16384] D=4096 float16"),
    "batch_norm_eval": ("batch_norm_eval", "N=64 C=256 H=56 W=56 float16"),
    "sum_rows": ("row_sum", "[16384] D=8192 float16"),
    "sum_cols": ("sum_dim0", "R=16384 C=8192 float16"),
    "sum_all": ("sum_all", "[16384, 8192] float16"),
    "argmax_rows": ("argmax", "[4096] D=32768 float16"),
    "cumsum_rows": ("cumsum", "[4096] D=16384 float16"),
    "mse_loss": ("mse_loss", "[8192, 8192] float16"),
    "cross_entropy_32k": ("cross_entropy", "B=4096 V=32768 float16"),
    "rope": ("rotary_half", "B=4 H=32 S=4096 D=64 float16"),
    "transpose_2d": ("transpose", "A=16384 B=8192 float16"),
    "permute_bhsd": ("permute_heads", "B=8 S=4096 H=32 D=128 float16"),
    "embedding": ("embedding", "V=32000 D=4096 [16384] float16"),
    "max_pool2d": ("max_pool2d", "B=64 C=64 H=224 W=224 float16"),
    "quant_int8_rows": ("quantize_int8_rows", "[16384] D=4096 float16"),
    "depthwise_3x3": ("depthwise_conv3x3", "B=64 C=256 H=56 W=56 float16"),
}
"""Operator and case of each of these rows."""
LEAST_BYTES = {"embedding": 2 * 16384 * 4096 * 2 + 16384 * 8}
"""Where it is not every input once: of a table only the rows that are looked up are read."""

ASKED = {
    "broadcast [1024, 1024] D=1024 float16": 0.99,
    "bias_add [512, 512] D=512 float16": 1.0,
    "gelu_tanh [8192, 16384] float16": 1.10,
    "silu_mul [8192, 14336] float16": 0.99,
    "softmax [16384] D=4096 float16": 1.7,
    "softmax [512] D=131072 float16": 1.5,
    "log_softmax [2048] D=32768 float16": 1.3,
    "rms_norm [16384] D=4096 float16": 1.0,
    "add_rms_norm [16384] D=4096 float16": 0.99,
    "layer_norm [16384] D=4096 float16": 1.0,
    "layer_norm [65536] D=1024 float16": 1.0,
    "argmax [4096] D=32768 float16": 1.7,
    "quantize_int8_rows [16384] D=4096 float16": 1.7,
    "cross_entropy B=4096 V=32768 float16": 1.8,
    "cumsum [4096] D=16384 float16": 1.7,
    "max_pool2d B=64 C=64 H=224 W=224 float16": 1.2,
    "depthwise_conv3x3 B=64 C=256 H=56 W=56 float16": 2.0,
    "transpose A=16384 B=8192 float16": 1.12,
    "sum_all [16384, 8192] float16": 1.1,
}
"""The least ratio over the best of the three that is asked for, by operator and case, where one is."""


TUNED = ("softmax", "norm")
"""Rows whose name has one of these are often tuned by hand, and torch.compile's max-autotune is tried for them."""


@dataclass(frozen=True)
class Measured:
    """One of these rows as it was measured."""

    name: str
    kernel_us: float
    best: str
    """The fastest of PyTorch's three; all below is against it."""
    ratio: float
    low: float
    high: float
    share: float
    """Of the floor: the floor's time over the kernel's."""
    untuned: float
    """The ratio without max-autotune, but for the rows that are `TUNED`."""
    run: str
    """When the command began that measured it."""

    @property
    def at_the_floor(self) -> float:
        """What the ratio would be if the kernel took the floor's time; as it is where it takes less already."""
        return self.ratio / min(self.share, 1.0)


def measured(data: dict[str, Any]) -> list[Measured]:
    """Those of the rows that the data has."""
    known = {(row["operator"], row["case"]): row for row in data["rows"] if row["comparisons"]}
    rows = []
    for name, key in ANCHORS.items():
        if key in known:
            row = known[key]
            best, c = min(row["comparisons"].items(), key=lambda item: float(item[1]["speedup"]))
            floor_us = row["floor_us"] * LEAST_BYTES.get(name, row["bytes"]) / row["bytes"]
            tuned = any(part in name for part in TUNED)
            left = [float(r["speedup"]) for k, r in row["comparisons"].items() if tuned or k != "max-autotune"]
            share = floor_us / c["b_us"]
            rows.append(
                Measured(name, c["b_us"], best, c["speedup"], c["low"], c["high"], share, min(left), row.get("run", ""))
            )
    return rows


def anchored(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the float16 rows alone that the summary names."""
    known = set(ANCHORS.values())
    rows = [r for r in data["rows"] if (r["operator"], r["case"]) in known and r["case"].endswith("float16")]
    return {**data, "rows": rows}


def summary(data: dict[str, Any]) -> list[str]:
    """The section as lines of Markdown."""
    rows = measured(data)
    if not rows:
        return []
    worst, below = min(rows, key=lambda r: r.share), [r.name for r in rows if r.ratio < 0.97]
    runs = {r.run for r in rows}
    missing = [name for name in ANCHORS if name not in {r.name for r in rows}]
    figures = {
        "rows measured": f"{len(rows)} of {len(ANCHORS)}" + (f"; not {', '.join(missing)}" if missing else ""),
        "measured by": "one run of one command" if len(runs) == 1 and "" not in runs else "several runs",
        "over the best of the three, geometric mean": f"{statistics.geometric_mean(r.ratio for r in rows):.3f}",
        "the same, max-autotune for softmaxes and norms alone": (
            f"{statistics.geometric_mean(r.untuned for r in rows):.3f}"
        ),
        "rows below 0.97": f"{len(below)}" + (f": {', '.join(below)}" if below else ""),
        "share of the floor, median": f"{100 * statistics.median(r.share for r in rows):.0f} %",
        "share of the floor, worst": f"{100 * worst.share:.0f} % ({worst.name})",
        "geometric mean at the floor": f"{statistics.geometric_mean(r.at_the_floor for r in rows):.3f}",
    }
    return [
        "",
        f"## {len(ANCHORS)} rows in short",
        "",
        "Against the fastest of eager, torch.compile and max-autotune. *At the floor* is what the ratio would be if",
        "the kernel took exactly the floor's time: the fastest of PyTorch's over the floor; where the kernel takes",
        "less, the ratio as it is. Kernels that are bound by the rate of a copy cannot bring the geometric mean above",
        "that of *at the floor*. Of an embedding's table only the rows that are looked up count as read here.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {title} | {figure} |" for title, figure in figures.items()),
        "",
        "| row | operator and case | kernel µs | fastest of PyTorch | over it | share of the floor | at the floor |",
        "|---|---|---:|---|---:|---:|---:|",
        *map(_line, rows),
    ]


def _line(row: Measured) -> str:
    operator, case = ANCHORS[row.name]
    return (
        f"| {row.name} | {operator} {case} | {row.kernel_us:.1f} | {row.best} "
        f"| {row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}] | {100 * row.share:.0f} % | {row.at_the_floor:.3f} |"
    )

"""The page of KernelBench's level 1, from the journals of `kernelgen kernelbench`.

    kernelgen kernelbench KernelBench --level 1 --jobs 13 --out DIR     # on a GPU
    python docs/benchmarks/kernelbench.py DIR...                       # writes kernelbench.json and kernelbench.md
    python docs/benchmarks/kernelbench.py                              # writes kernelbench.md from the committed data

Problems that need a dense or transposed convolution, a matmul or attention are not taken up.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMAND = "kernelgen kernelbench KernelBench --level 1 --jobs 13"
APART = re.compile(
    r"atmul|atrix_mult|matrix_multiplication|conv_standard|conv_transposed|conv_pointwise|separable|Attention"
)
"""Names of the problems that are left to a library."""
MEMORY = {"5_Matrix_scalar_multiplication"}
"""What has such a name, but only moves memory."""


def collect(folders: list[Path]) -> list[dict[str, Any]]:
    """The last record of every problem, by number."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for line in (folder / "journal.jsonl").read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "problem":
                found[record["data"]["problem"]] = record["data"] | {"time": record["time"]}
    taken = [r for name, r in found.items() if name in MEMORY or not APART.search(name)]
    return sorted((_kept(r) for r in taken), key=lambda r: int(r["problem"].split("_")[0]))


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a problem, without the paths in its reasons."""
    keys = ("problem", "state", "seconds", "stage", "time", "accuracy", "kernelbench", "accuracy_at_its_shapes")
    kept = {key: record[key] for key in keys if key in record}
    return kept | {
        "reason": str(record.get("reason", "")).rpartition("/")[2],
        "performance": record.get("performance", []),
    }


def page(data: dict[str, Any]) -> str:
    """The page."""
    rows = data["problems"]
    against = {name: [_ratio(r, name) for r in rows if _ratio(r, name)] for name in ("eager", "compile")}
    counts = {
        "right at small shapes, in float16, bfloat16 and float32": sum(_right(r.get("accuracy")) for r in rows),
        "right at its own shapes by KernelBench's tolerance, in float32": sum(map(_tolerated, rows)),
        "right at its own shapes by the judge's bound, in float32": sum(
            _right(r.get("accuracy_at_its_shapes")) for r in rows
        ),
        "within 60 s": sum(r["seconds"] <= 60 for r in rows),
        "refused": sum(r["state"] == "refused" for r in rows),
    }
    lines = [
        "# KernelBench, level 1",
        "",
        f"{len(rows)} problems: all that need no dense or transposed convolution, no matmul and no attention. Each",
        "file is imported, generated and judged as it is, with the first schedules: no round has been run on any of",
        "them. Made from [kernelbench.json](kernelbench.json) by `python docs/benchmarks/kernelbench.py`; measured on",
        f"{data['device']}, torch {data['torch']}, triton {data['triton']}, by `{data['command']}`.",
        *data["notes"],
        "",
        "| | problems |",
        "|---|---:|",
        *(f"| {title} | {count} |" for title, count in counts.items()),
        *(_faster(name, found) for name, found in against.items()),
        "",
        "Speedups are paired medians at KernelBench's own shapes with their 95 % intervals; the share is that of the",
        "time that a copy of the same bytes takes. Seconds: all that was done for the problem, with others preparing",
        "beside it.",
        "",
        "| problem | small shapes | own shapes | over eager | over torch.compile | of the floor | s | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
        *map(_row, rows),
    ]
    return "\n".join(lines) + "\n"


def _faster(name: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"| faster than {name} | not timed |"
    geomean = statistics.geometric_mean(r["speedup"] for r in found)
    certain, level = sum(r["low"] > 1 for r in found), sum(r["low"] <= 1 and r["high"] >= 0.99 for r in found)
    title = "torch.compile" if name == "compile" else name
    return (
        f"| faster than {title}, the whole interval | {certain} of {len(found)} timed; {level} more within 1 %; "
        f"geometric mean {geomean:.2f} |"
    )


def _row(record: dict[str, Any]) -> str:
    ratios = [_ratio(record, name) for name in ("eager", "compile")]
    shown = [f"{r['speedup']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if r else "" for r in ratios]
    timed = [p for p in record["performance"] if p.get("kernel_us") and p.get("floor_us")]
    share = f"{100 * timed[0]['floor_us'] / timed[0]['kernel_us']:.0f} %" if timed else ""
    cells = [_count(record.get(key)) for key in ("accuracy", "accuracy_at_its_shapes")]
    why = record["reason"] if record["state"] != "right" else ""
    seconds = f"{record['seconds']:.0f}"
    return "| " + " | ".join([record["problem"], *cells, *shown, share, seconds, why]) + " |"


def _count(found: dict[str, Any] | None) -> str:
    return f"{found['passed']} of {found['cases'] - found['left_out']}" if found else ""


def _right(found: dict[str, Any] | None) -> bool:
    return bool(found) and found["passed"] > 0 and found["passed"] + found["left_out"] == found["cases"]  # type: ignore[index]


def _tolerated(record: dict[str, Any]) -> bool:
    found = record.get("kernelbench", {})
    return bool(found.get("float32", {}).get("right"))


def _ratio(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next((p["against"][name] for p in record["performance"] if name in p["against"]), {})


def main() -> None:
    path = HERE / "kernelbench.json"
    if sys.argv[1:]:
        known = json.loads(path.read_text()) if path.exists() else {}
        data = {**known, "command": COMMAND, "problems": collect([Path(name) for name in sys.argv[1:]])}
        path.write_text(json.dumps(data, indent=1) + "\n")
    (HERE / "kernelbench.md").write_text(page(json.loads(path.read_text())))


if __name__ == "__main__":
    main()

"""The pages of KernelBench's levels, from the journals of `kernelgen kernelbench`.

    kernelgen kernelbench KernelBench --level 2 --jobs 13 --optimize 3 --out DIR   # on a GPU
    python docs/benchmarks/kernelbench.py --level 2 DIR...    # writes kernelbench_level2.json and kernelbench_level2.md
    python docs/benchmarks/kernelbench.py --keep DIR...       # other problems, and rounds, stay as the data has them
    python docs/benchmarks/kernelbench.py                     # writes the pages from the committed data

Level 1's files are kernelbench.json and kernelbench.md. What KernelBench itself says of the exported files is
kernelbench_evaluate.py's: `--evaluated FILE` adds it to the page, beside our own verdicts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelgen.kernelbench import differing, figures, refusals
from kernelgen.kernelbench.tolerance import AS_WRONG

HERE = Path(__file__).parent


def collect(folders: list[Path]) -> list[dict[str, Any]]:
    """The last record of every problem, by number."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for line in (folder / "journal.jsonl").read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "problem":
                found[record["data"]["problem"]] = record["data"] | {"time": record["time"]}
    return _in_order(map(_kept, found.values()))


def _in_order(problems: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(problems, key=lambda r: int(r["problem"].split("_")[0]))


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a problem, without the paths in its reasons."""
    keys = (
        "problem",
        "state",
        "seconds",
        "stage",
        "time",
        "accuracy",
        "kernelbench",
        "accuracy_at_its_shapes",
        "optimized",
        "dtypes",
    )
    kept = {key: record[key] for key in keys if key in record}
    left_out = any(note.startswith("left out: precision") for note in record.get("notes", ()))
    if (precision := record.get("precision")) and not left_out:
        kept["precision"] = precision
    if rounds_s := record.get("stage_s", {}).get("optimize"):
        kept["rounds_s"] = rounds_s
    return kept | {
        "reason": str(record.get("reason", "")).rpartition("/")[2],
        "performance": record.get("performance", []),
    }


def _over(before: dict[str, Any] | None, record: dict[str, Any]) -> dict[str, Any]:
    """A record in the place of another: one with rounds keeps what the problem took without, if that is known; one
    without keeps what the rounds of before found."""
    if before is None or ("optimized" not in record and "optimized" not in before):
        return record
    if "optimized" not in record:
        kept = {key: before[key] for key in ("optimized", "rounds_s") if key in before}
        return record | kept | {"without_rounds_s": record["seconds"]}
    known = before.get("without_rounds_s", None if "optimized" in before else before["seconds"])
    return record if known is None else record | {"without_rounds_s": known}


def _without_rounds(record: dict[str, Any]) -> float:
    """The seconds of a problem: of a run without rounds, or those of its rounds taken off."""
    return float(record.get("without_rounds_s", record["seconds"] - record.get("rounds_s", 0.0)))


_OTHERS = ("wrong", "refused", "untested", "timed out", "fault")


def _introduced(data: dict[str, Any]) -> list[str]:
    """What was taken, and how it was measured."""
    suffix = _suffix(data.get("level", 1))
    words = (
        f"{len(data['problems'])} problems: {data['taken']}. Each file is imported, generated and judged as it is, "
        f"with the first schedules{data['rounds']}. Made from [kernelbench{suffix}.json](kernelbench{suffix}.json) by "
        f"`python docs/benchmarks/kernelbench.py`; measured on {data['device']}, torch {data['torch']}, triton "
        f"{data['triton']}, by `{data['command']}`."
    )
    return textwrap.wrap(words, 110, break_on_hyphens=False, break_long_words=False)


def _fast(rows: list[dict[str, Any]]) -> list[str]:
    """KernelBench's own measure: of all problems, the share that is right and more than p times as fast."""
    found = figures(rows)
    lines = []
    for opponent in ("eager", "compile"):
        for when in ("", " after rounds"):
            shares = {
                n.split(" ")[0]: f for n, f in found.items() if n.endswith(f"over {opponent}{when}") and n[:4] == "fast"
            }
            if shares:
                title = "torch.compile" if opponent == "compile" else opponent
                cells = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
                lines.append(f"| fast_p over {title}{when} | {cells} |")
        if (mean := found.get(f"geometric mean over {opponent} after rounds")) is not None:
            lines.append(f"| geometric mean over {title} after rounds | {mean:.2f} |")
    return lines


def _refused(rows: list[dict[str, Any]]) -> list[str]:
    found = refusals(rows)
    lines = [f"| {count} | {reason} |" for reason, count in found.items()]
    return ["", "| refused | because |", "|---:|---|", *lines] if lines else []


def _verdicts(rows: list[dict[str, Any]], evaluated: dict[str, Any]) -> list[str]:
    """KernelBench's own verdicts on the exported files beside ours."""
    if not evaluated:
        return []
    pairs = [(r["problem"], r["state"], evaluated[r["problem"]]) for r in rows if r["problem"] in evaluated]
    both = sum((state == "right") == bool(theirs["correct"]) for _, state, theirs in pairs)
    lines = [f"| {n} | {s} | {'right' if t['correct'] else t['message']} |" for n, s, t in pairs]
    head = f"KernelBench's own evaluation of {len(pairs)} exported files agrees with ours on {both}."
    return ["", head, "", "| problem | ours | KernelBench's |", "|---|---|---|", *lines]


def _differing(rows: list[dict[str, Any]]) -> list[str]:
    """What KernelBench's tolerance calls different, and who is off."""
    found = [(r["problem"], r["state"], one) for r in rows for one in differing(r).values()]
    if not found:
        return []
    said = (
        f"By KernelBench's tolerance {len(found)} results differ from the original's: torch multiplies float32 in "
        "convolutions as TF32, and so do these kernels. Both are measured against float64, in terms of the tolerance; "
        f"ours is called wrong where it is off by over {AS_WRONG:g} times what the original is off by, and by more "
        "than the tolerance."
    )
    cells = [
        (problem, f"{one['max_difference']:.2g}", _times(one, "error"), _times(one, "original_error"), state)
        for problem, state, one in found
    ]
    head = ("problem", "differs by", "ours is off by", "the original is off by", "ours is called")
    lines = [f"| {' | '.join(row)} |" for row in (head, *cells)]
    return ["", *textwrap.wrap(said, 110, break_on_hyphens=False), "", lines[0], "|---|---:|---:|---:|---|", *lines[1:]]


def _times(one: dict[str, Any], key: str) -> str:
    return f"{one[key]:.2f} tolerances" if key in one else "not known"


def page(data: dict[str, Any]) -> str:
    """The page."""
    rows = data["problems"]
    against = {name: [_ratio(r, name) for r in rows if _ratio(r, name)] for name in ("eager", "compile")}
    counts = {
        "right at small shapes, in float32": sum(_right(r.get("accuracy")) for r in rows),
        **_also_in_all_dtypes(rows),
        "right at its own shapes by KernelBench's tolerance, in float32": sum(map(_tolerated, rows)),
        "right at its own shapes by the judge's bound, in float32": sum(
            _right(r.get("accuracy_at_its_shapes")) for r in rows
        ),
        **_precise(rows),
        "within 60 s, rounds left out": sum(_without_rounds(r) <= 60 for r in rows),
        **{
            state: count for state in _OTHERS if (count := sum(r["state"] == state for r in rows)) or state == "refused"
        },
    }
    lines = [
        f"# KernelBench, level {data.get('level', 1)}",
        "",
        *_introduced(data),
        *data["notes"],
        "",
        "| | problems |",
        "|---|---:|",
        *(f"| {title} | {count} |" for title, count in counts.items()),
        *(_faster(name, found) for name, found in against.items()),
        *_fast(rows),
        *_refused(rows),
        *_differing(rows),
        *_verdicts(rows, data.get("evaluated", {})),
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


def _precise(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The problems that ask for a precision of their matrices, where there are some."""
    found = Counter(r["precision"] for r in rows if "precision" in r)
    return {f"of these with `--precision {precision}`": count for precision, count in found.items()}


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
    why = record["reason"] if record["state"] != "right" else record.get("precision", "")
    seconds = f"{record['seconds']:.0f}"
    return "| " + " | ".join([record["problem"], *cells, *shown, share, seconds, why]) + " |"


def _count(found: dict[str, Any] | None) -> str:
    return f"{found['passed']} of {found['cases'] - found['left_out']}" if found else ""


def _right(found: dict[str, Any] | None) -> bool:
    return bool(found) and found["passed"] > 0 and found["passed"] + found["left_out"] == found["cases"]  # type: ignore[index]


def _also_in_all_dtypes(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Nothing where float32 alone was asked for."""
    asked = [r for r in rows if not r.get("dtypes")]
    return {"of these also in float16 and bfloat16": sum(_right(r.get("accuracy")) for r in asked)} if asked else {}


def _tolerated(record: dict[str, Any]) -> bool:
    found = record.get("kernelbench", {})
    return bool(found.get("float32", {}).get("right"))


def _ratio(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next((p["against"][name] for p in record["performance"] if name in p["against"]), {})


def _suffix(level: int) -> str:
    return "" if level == 1 else f"_level{level}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The pages of KernelBench's levels.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="what `kernelgen kernelbench --out` wrote")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--evaluated", type=Path, metavar="FILE", help="what kernelbench_evaluate.py wrote")
    parser.add_argument("--keep", action="store_true", help="keep the problems that the folders do not have")
    asked = parser.parse_args()
    if asked.folders or asked.evaluated:
        path = HERE / f"kernelbench{_suffix(asked.level)}.json"
        data = json.loads(path.read_text("utf-8")) if path.exists() else _empty(asked.level)
        if asked.folders:
            before = {r["problem"]: r for r in data["problems"]} if asked.keep else {}
            found = before | {r["problem"]: _over(before.get(r["problem"]), r) for r in collect(asked.folders)}
            data |= {"problems": _in_order(found.values()), "taken": "all of the level"}
        if asked.evaluated:
            data["evaluated"] = json.loads(asked.evaluated.read_text("utf-8"))
        path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    for level in range(1, 5):
        path = HERE / f"kernelbench{_suffix(level)}.json"
        if path.exists():
            path.with_suffix(".md").write_text(page(json.loads(path.read_text("utf-8"))), "utf-8")


def _empty(level: int) -> dict[str, Any]:
    """What a level's data says of the machine, to be filled in by who measured."""
    command = f"kernelgen kernelbench KernelBench --level {level} --jobs 13"
    told = dict.fromkeys(("device", "torch", "triton"), "?")
    return {**told, "level": level, "command": command, "rounds": ": no round has been run on any of them", "notes": []}


if __name__ == "__main__":
    main()

"""What `kernelgen import` and `kernelgen new` make of every file of a level of KernelBench, on a CPU.

    python docs/benchmarks/kernelbench_imports.py KernelBench --level 3     # writes the data and its page
    python docs/benchmarks/kernelbench_imports.py KernelBench --stages small --only 9 43 --again
    python docs/benchmarks/kernelbench_imports.py                           # writes the page from the committed data

Three stages of every file. `whole`: the two commands at the file's own sizes. `small`: both at the sizes of
`kernelbench_small.json`, and what ModelNew computes in Triton's interpreter against what Model does, with the same
weights. `blocks`: `import --blocks`, and `new` of every block. A stage that the data has is not run again without
`--again`: what was cut short goes on. `new` runs with `--no-verify`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelgen.export import export_kernelbench
from kernelgen.kernelbench import problems
from kernelgen.spec import load_spec

HERE = Path(__file__).parent
DATA = HERE / "kernelbench_imports.json"
SMALL = HERE / "kernelbench_small.json"
"""By problem what stands in its file, and what stands there instead: a name is what the file assigns to it."""
OF_INPUTS = frozenset(
    [
        *("batch_size", "seq_len", "seq_length", "sequence_length", "height", "width", "height, width", "224, 224"),
        *("image_height, image_width", "input_shape"),
    ]
)
"""What of SMALL leaves a module's weights as they are."""
LIMIT_S = 600
TOLERANCE = 1e-4
"""Absolute and relative, KernelBench's own of float32. What misses it may be off by as much as twice the module."""
WRONG = 1e-2
"""A module that is itself off by more of its largest element says nothing."""


def whole(file: Path, folder: Path) -> dict[str, Any]:
    """The two commands over a file."""
    found = {"import": _imported(file, folder)}
    if found["import"]["code"] == 0:
        found["new"] = _new(folder / "op.yaml", folder)
    return found


def small(file: Path, folder: Path) -> dict[str, Any]:
    """A file with small sizes: what it is made of, and whether that computes what the module does."""
    path = folder / "problem.py"
    path.write_text(shrunk(file.read_text("utf-8"), json.loads(SMALL.read_text("utf-8"))[file.stem]), "utf-8")
    made = whole(path, folder)
    last = made.get("new") or made["import"]
    if last["code"]:
        return {"small": last}
    words = [__file__, "--compared", str(path), str(folder / "op.yaml")]
    found, said = _run(words, folder, {"OMP_NUM_THREADS": "1"})
    found |= {name: made["new"][name] for name in ("kernels", "calls")}
    return {"small": found if found["code"] else found | json.loads(said.splitlines()[-1])}


def compared(original: Path, spec: Path) -> dict[str, Any]:
    """Whether what was made of a file computes what its Model does, with the same weights: largest differences, and
    of the truth in float64, in parts of the largest element."""
    from kernelgen.judge import prepare

    prepare()
    import torch

    torch.backends.cudnn.allow_tf32 = False  # the module's convolutions have all bits on a CPU
    new = spec.parent / "new.py"
    export_kernelbench(load_spec(spec), spec.parent / spec.stem, new)
    scopes = [runpy.run_path(str(path)) for path in (original, original, new)]
    results: list[Any] = []
    for i, (scope, name) in enumerate(zip(scopes, ("Model", "Model", "ModelNew"), strict=True)):
        dtype = torch.float32 if i else torch.float64
        torch.manual_seed(0)
        model = scope[name](*scope["get_init_inputs"]()).to(dtype)
        inputs = [x.to(dtype) if x.is_floating_point() else x for x in scopes[0]["get_inputs"]()]
        torch.manual_seed(1)
        with torch.no_grad(), contextlib.nullcontext() if i else contextlib.suppress(RuntimeError):
            results.append(model(*inputs))
    *exact, wanted, got = results  # of a module that makes a float32 of its own there is no other truth
    true = exact[0] if exact else wanted.double()
    if wanted.shape != got.shape:
        return {"right": False, "message": f"shape {tuple(got.shape)} where {tuple(wanted.shape)} is right"}
    largest = true.abs().max().item()
    theirs, ours = ((value.double() - true).abs().max().item() / largest for value in (wanted, got))
    right = torch.allclose(wanted, got, atol=TOLERANCE, rtol=TOLERANCE) or (theirs < WRONG and ours <= 2 * theirs)
    differs = (wanted - got).abs().max().item()
    found = {"right": right, "difference": differs, "largest": largest, "error": ours, "error_of_module": theirs}
    return found if right else found | {"message": f"differs by {differs:.3g} where the largest is {largest:.3g}"}


def blocks(file: Path, folder: Path) -> dict[str, Any]:
    """A file's blocks: how many operators they are, and how many of these are made."""
    found, _ = _command(["import", str(file), "--blocks", "--out", str(folder), "--limit-s", str(LIMIT_S)], folder)
    specs = sorted(folder.glob("*.yaml"))
    if found["code"] == 0:
        made = [_new(spec, folder) for spec in specs]
        failed = next((m for m in made if m["code"]), None)
        found |= {"operators": len(made), "made": sum(m["code"] == 0 for m in made)}
        found |= {"new_s": round(sum(m["s"] for m in made), 1), "said": failed["said"] if failed else ""}
    return {"blocks": found}


STAGES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {"whole": whole, "small": small, "blocks": blocks}
KEY = {"whole": "new", "small": "small", "blocks": "blocks"}
"""What the data has of a stage that was run."""


def shrunk(text: str, sizes: dict[str, str]) -> str:
    """A problem's text with other sizes. ValueError where it does not have what is to be replaced."""
    for old, new in sizes.items():
        is_name = re.fullmatch(r"\w+(, \w+)?", old) and not old[0].isdigit()
        pattern, with_ = (rf"(?m)^{old} *=.*$", f"{old} = {new}") if is_name else (re.escape(old), new)
        text, count = re.subn(pattern, lambda _, said=with_: said, text)
        if not count:
            raise ValueError(f"there is no {old} to be replaced")
    return text


def _imported(file: Path, folder: Path) -> dict[str, Any]:
    words = ["import", str(file), "--name", "op", "--out", str(folder), "--limit-s", str(LIMIT_S)]
    return _command(words, folder)[0]


def _new(spec: Path, folder: Path) -> dict[str, Any]:
    """`new`, and how many kernels and calls of torch's it came to."""
    found, said = _command(["new", str(spec), "--no-verify", "--out", str(folder)], folder)
    if found["code"] == 0:
        text = (folder / spec.stem / f"{spec.stem}_triton.py").read_text("utf-8")
        found["kernels"] = max(1, text.count("\ndef compute_"))
        found["calls"] = said.count(", which no family takes: ")
    return found


def _command(words: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    return _run(["-c", "from kernelgen.cli import main; raise SystemExit(main())", *words], folder, {})


def _run(words: list[str], folder: Path, variables: dict[str, str]) -> tuple[dict[str, Any], str]:
    """A Python process: exit code, seconds of wall and of CPU, and the last line of a refusal; and all that it said."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=os.environ | variables, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        code, said = done.returncode, done.stderr + done.stdout
        last = (done.stderr.strip().splitlines() or [""])[-1].rpartition(f"{folder}/")[2]
    except subprocess.TimeoutExpired:
        code, said, last = 124, "", f"not done after {LIMIT_S} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {"s": round(time.monotonic() - start, 1), "cpu_s": round(cpu, 1)}
    return {"code": code, **seconds, "said": last if code else ""}, said


def page(data: dict[str, Any]) -> str:
    """The page."""
    rows, sizes = data["problems"], json.loads(SMALL.read_text("utf-8"))
    made = {name: sum(r.get(name, {}).get("code") == 0 for r in rows) for name in ("import", "new")}
    equal = [_equal(r.get("small")) for r in rows]
    counts = {said: sum(e == said for e in equal) for said in dict.fromkeys(equal)}
    operators = [sum(r.get("blocks", {}).get(name, 0) for r in rows) for name in ("operators", "made")]
    lines = [
        f"# KernelBench, level {data['level']}, on a CPU",
        "",
        "Made by `python docs/benchmarks/kernelbench_imports.py`, which says what it runs. No GPU was used.",
        *data["notes"],
        "",
        f"`import` takes {made['import']} of {len(rows)}, and `new` makes {made['new']} of these at their own sizes.",
        f"At small sizes the result equals the module's for {counts.get('yes', 0)}, differs for {counts.get('no', 0)},",
        f"and for {len(rows) - counts.get('yes', 0) - counts.get('no', 0)} there is none.",
        *([f"Of {operators[0]} blocks `new` makes {operators[1]}."] if operators[0] else []),
        "",
        "| problem | import, s | new, s | kernels | torch's calls | equal | weights | blocks made | |",
        "|---|---:|---:|---:|---:|---|---|---:|---|",
    ]
    for row, said in zip(rows, equal, strict=True):
        one, own = row.get("small", {}), row.get("blocks", {})
        counted = one if "kernels" in one else row.get("new", {})
        cells = [row["problem"], *(_seconds(row.get(name)) for name in ("import", "new"))]
        cells += [str(counted.get(name, "")) for name in ("kernels", "calls")]
        cells += [said, "smaller" if said and sizes[row["problem"]].keys() - OF_INPUTS else ""]
        cells += [f"{own['made']} of {own['operators']}" if "made" in own else ""]
        lines.append("| " + " | ".join([*cells, _why(row).replace("|", "\\|")]) + " |")
    return "\n".join(lines) + "\n"


def _equal(found: dict[str, Any] | None) -> str:
    """yes, no, or nothing where no result came."""
    return {True: "yes", False: "no", None: ""}[(found or {}).get("right")]


def _why(row: dict[str, Any]) -> str:
    """What the last stage that did not do all that was asked said."""
    for name in ("import", "new", "small", "blocks"):
        found = row.get(name, {})
        if found.get("said") or found.get("message"):
            return f"{name}: {found.get('said') or found['message']}"
    return ""


def _seconds(found: dict[str, Any] | None) -> str:
    return "" if not found else f"{found['s']:.0f}" if found["code"] == 0 else {2: "refused"}.get(found["code"], "-")


def main() -> None:
    parser = argparse.ArgumentParser(description="What import and new make of a level of KernelBench, on a CPU.")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="numbers or names of problems")
    parser.add_argument("--stages", nargs="*", default=[*STAGES], choices=STAGES)
    parser.add_argument("--again", action="store_true", help="what the data has as well")
    parser.add_argument("--compared", nargs=2, type=Path, metavar=("FILE", "SPEC"), help="print how these compare")
    asked = parser.parse_args()
    if asked.compared:
        print(json.dumps(compared(*asked.compared)))
        return
    data = json.loads(DATA.read_text("utf-8")) if DATA.exists() else {"level": asked.level, "notes": [], "problems": []}
    known = {r["problem"]: r for r in data["problems"]}
    for file in problems(asked.folder, asked.level, asked.only) if asked.folder else []:
        row = known.setdefault(file.stem, {"problem": file.stem})
        for stage in asked.stages:
            if asked.again or KEY[stage] not in row:
                with tempfile.TemporaryDirectory() as folder:
                    found = STAGES[stage](file, Path(folder))
                row |= found
                print(json.dumps({"problem": file.stem, **found}), flush=True)
                data["problems"] = sorted(known.values(), key=lambda r: int(r["problem"].split("_")[0]))
                DATA.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    DATA.with_suffix(".md").write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()

"""What `kernelgen import` and `kernelgen new` make of every file of a level of KernelBench, on a CPU.

    python docs/benchmarks/kernelbench_imports.py KernelBench --level 3   # writes kernelbench_imports.json and its page
    python docs/benchmarks/kernelbench_imports.py                         # writes the page from the committed data

A file that the data has is not run again: what was cut short goes on. Without a run of the kernels: `new --no-verify`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE / "kernelbench_imports.json"
LIMIT_S = 300


def tried(file: Path) -> dict[str, Any]:
    """The two commands over a file: exit codes, seconds of wall and of CPU, and the last line of a refusal."""
    found: dict[str, Any] = {"problem": file.stem}
    with tempfile.TemporaryDirectory() as folder:
        spec = str(Path(folder, "op.yaml"))
        for name, words in (
            ("import", ["import", str(file), "--name", "op", "--out", folder, "--limit-s", str(LIMIT_S)]),
            ("new", ["new", spec, "--no-verify", "--out", folder]),
        ):
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            code, said = _run(words, folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found[name] = {"code": code, "s": round(time.monotonic() - start, 1), "cpu_s": round(cpu, 1), "said": said}
            if code:
                break
    return found


def _run(words: list[str], folder: str) -> tuple[int, str]:
    command = [sys.executable, "-c", "from kernelgen.cli import main; main()", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"not done after {LIMIT_S} s"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return done.returncode, last.rpartition(f"{folder}/")[2] if done.returncode else ""


def page(data: dict[str, Any]) -> str:
    """The page."""
    rows = data["problems"]
    counts = {name: sum(r.get(name, {}).get("code") == 0 for r in rows) for name in ("import", "new")}
    unknown = sum(r["import"]["code"] == 0 and "new" not in r for r in rows)
    lines = [
        f"# KernelBench, level {data['level']}, on a CPU",
        "",
        "Made by `python docs/benchmarks/kernelbench_imports.py`, which says what it runs. No GPU was used.",
        *data["notes"],
        "",
        f"`import` takes {counts['import']} of {len(rows)}; `new` makes {counts['new']} of those that it was tried on"
        + (f", {unknown} are yet to be tried." if unknown else "."),
        "",
        "| problem | import | s | new | s | |",
        "|---|---|---:|---|---:|---|",
    ]
    for row in rows:
        cells = [row["problem"]]
        for name in ("import", "new"):
            one = row.get(name)
            cells += [_said(one["code"]), f"{one['s']:.0f}"] if one else ["", ""]
        why = next((row[n]["said"] for n in ("import", "new") if row.get(n, {}).get("code")), "")
        lines.append("| " + " | ".join([*cells, why.replace("|", "\\|")]) + " |")
    return "\n".join(lines) + "\n"


def _said(code: int) -> str:
    return {0: "yes", 2: "refused", 124: "not done"}.get(code, f"exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What import and new make of a level of KernelBench, on a CPU.")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--level", type=int, default=3)
    asked = parser.parse_args()
    data = json.loads(DATA.read_text("utf-8")) if DATA.exists() else {"level": asked.level, "notes": [], "problems": []}
    if asked.folder:
        known = {r["problem"]: r for r in data["problems"] if r["import"]["code"] or "new" in r}
        files = sorted((asked.folder / f"level{asked.level}").glob("*.py"), key=lambda f: int(f.stem.split("_")[0]))
        for file in files:
            known[file.stem] = known.get(file.stem) or tried(file)
            print(json.dumps(known[file.stem]), flush=True)
            others = [r for r in data["problems"] if r["problem"] not in known]
            data["problems"] = sorted([*known.values(), *others], key=lambda r: int(r["problem"].split("_")[0]))
            DATA.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    DATA.with_suffix(".md").write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()

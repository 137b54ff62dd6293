"""KernelBench's own evaluation of the files that `kernelgen kernelbench` exports.

    python docs/benchmarks/kernelbench_evaluate.py KERNELBENCH DIR --level 2 --out evaluated.json
    python docs/benchmarks/kernelbench.py --level 2 --evaluated evaluated.json      # both verdicts on the level's page

KERNELBENCH is a checkout of the benchmark, whose requirements are installed; DIR is what `kernelgen kernelbench --out`
wrote. Needs a GPU. Each problem has a process of its own; a problem that the file has already is not run again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernelgen.journal import Journal
from kernelgen.kernelbench import KIND, problems

TRIALS = 5
"""Of correctness and of time, as many as KernelBench's scripts ask for at least."""
ON_GPU = """

_inputs_of_the_problem = get_inputs


def get_inputs():
    with torch.device("cuda"):
        return _inputs_of_the_problem()
"""
"""Behind a problem's text: its inputs are drawn where they are used, which takes no 50 s a problem."""


def evaluate(repository: Path, original: Path, exported: Path) -> dict[str, Any]:
    """What KernelBench says of one exported file."""
    import torch

    sys.path[:0] = [str(repository / "src"), str(repository)]
    name = "kernelbench.eval" if (repository / "src" / "kernelbench").is_dir() else "src.eval"
    found = importlib.import_module(name).eval_kernel_against_ref(
        original.read_text("utf-8") + ON_GPU, exported.read_text("utf-8"), num_correct_trials=TRIALS,
        num_perf_trials=TRIALS, measure_performance=True, device=torch.device("cuda:0"), backend="triton",
    )  # fmt: skip
    if found is None:
        return {"compiled": False, "correct": False, "message": "no answer: evaluate it again"}
    said = {str(key): str(value) for key, value in found.metadata.items()}
    wrong = next((text for key, text in said.items() if "error" in key or "issue" in key or "mismatch" in key), "wrong")
    message = "" if found.correctness else wrong.splitlines()[0]
    return {"compiled": found.compiled, "correct": found.correctness, "message": message, "ms": found.runtime}


def exported_files(folder: Path) -> dict[str, Path]:
    """The files of ModelNew by problem, of those that were generated."""
    records = (record.data for record in Journal.open(folder).records(KIND))
    return {r["problem"]: folder / "kernelbench" / f"{r['operator']}.py" for r in records if r.get("generated")}


def main() -> None:
    parser = argparse.ArgumentParser(description="KernelBench's own evaluation of exported files.")
    parser.add_argument("repository", type=Path, metavar="KERNELBENCH")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("evaluated.json"))
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    originals = {path.stem: path for path in problems(asked.repository, asked.level)}
    files = {name: path for name, path in exported_files(asked.folder).items() if name in originals}
    if asked.one:
        found = evaluate(asked.repository, originals[asked.one], files[asked.one])
        asked.out.write_text(json.dumps(found), "utf-8")
        return
    done = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    for name in (name for name in files if name not in done):
        done[name] = _apart(asked, name)
        print(f"{name}: {'right' if done[name]['correct'] else done[name]['message']}", flush=True)
        asked.out.write_text(json.dumps(done, indent=1) + "\n", "utf-8")


def _apart(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """One problem in a process of its own, which may end with the GPU's context."""
    answer = asked.out.with_suffix(".one")
    answer.unlink(missing_ok=True)
    command = [sys.executable, __file__, str(asked.repository), str(asked.folder), "--level", str(asked.level)]
    try:
        subprocess.run([*command, "--out", str(answer), "--one", name], timeout=asked.limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"compiled": False, "correct": False, "message": f"still running after {asked.limit_s:g} s"}
    if not answer.exists():
        return {"compiled": False, "correct": False, "message": "its process ended without an answer"}
    found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    answer.unlink()
    return found


if __name__ == "__main__":
    main()

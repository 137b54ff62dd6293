"""Draw many random references over the cores and say how many were right, refused or wrong.

    python tests/compiler/draw_many.py                        # 4 times as many as in a whole run of the tests: 1,088
    python tests/compiler/draw_many.py --limit-s 500 --jobs 12 --seed 7

Where there is a GPU the kernels run on it, else in Triton's interpreter. The exit code is 1 if one is wrong. The same
seed draws the same references, whatever the number of jobs; a limit leaves out the last of them.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
CHUNK = 12
"""References drawn by one task; Hypothesis begins every one with the simplest there is."""


def draw(task: tuple[str, int, int, float]) -> tuple[str, list[tuple[str, str]]]:
    """A family, how many of it, the seed and the time after which none begins: the family and what came of each
    reference, as ("right" | "refused" | "wrong", text)."""
    family, count, seed, until = task
    if time.time() > until:
        return family, []
    from kernelgen import judge

    judge.prepare()  # before Triton is imported
    import hypothesis
    from references import Sample, failures
    from test_compiler_random import FAMILIES, MAY_REFUSE, RANDOM

    from kernelgen.errors import UnsupportedError

    found: list[tuple[str, str]] = []
    phases = [hypothesis.Phase.generate]

    @hypothesis.seed(seed)
    @hypothesis.settings(RANDOM, derandomize=False, max_examples=count, phases=phases)
    @hypothesis.given(FAMILIES[family][0]())
    def one(sample: Sample) -> None:
        if len(found) >= count or time.time() > until:
            return
        try:
            wrong = failures(sample, thorough=False, most=4)
            found.append(("wrong", "\n\n".join([sample.source(), *wrong])) if wrong else ("right", ""))
        except UnsupportedError as error:
            kind = "refused" if family in MAY_REFUSE else "wrong"
            found.append((kind, f"{sample.source()}\n{error}"))
        except Exception:
            found.append(("wrong", f"{sample.source()}\n{traceback.format_exc()}"))

    one()
    return family, found


def main() -> int:
    from test_compiler_random import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=4, help="how many times as many as in a whole run of the tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="no reference begins later than this")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began = time.time()
    until = began + asked.limit_s
    tasks = [
        (family, min(CHUNK, count * asked.times - first), asked.seed * 1_000_000 + first, until)
        for family, (_, count) in FAMILIES.items()
        for first in range(0, count * asked.times, CHUNK)
    ]
    tasks.sort(key=lambda task: task[2])  # families in turn: a limit cuts all of them alike
    counts: dict[str, Counter[str]] = {family: Counter() for family in FAMILIES}
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for family, found in pool.imap_unordered(draw, tasks):
            for kind, text in found:
                counts[family][kind] += 1
                if kind != "right":
                    print(f"--- {family}: {kind}\n{text}", flush=True)
    for family, each in counts.items():
        print(f"{family:40s} " + "  ".join(f"{kind} {each[kind]:4d}" for kind in ("right", "refused", "wrong")))
    total = sum(counts.values(), Counter[str]())
    print(f"{total.total()} of {sum(task[1] for task in tasks)} drawn in {time.time() - began:.0f} s: {dict(total)}")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

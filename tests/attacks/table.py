"""Writes docs/trust.md from the collection of attacks and what a GPU showed: `python tests/attacks/table.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from collection import ATTACKS
from honest import honest

DOCUMENT = Path(__file__).parents[2] / "docs" / "trust.md"
MEASURED = DOCUMENT.parent / "benchmarks" / "trust.json"

HEAD = """\
# Trust

The author of a kernel cannot influence whether it is judged right or fast. A candidate from a language model is data: the text of
`@triton.jit` functions, a schedule and a declarative launch. Its text is checked against an allow-list, its expressions have a
restricted grammar, and kernelgen always writes the wrapper. What remains is device code, which is compared with a
float64 reference on secret inputs ([measuring.md](measuring.md)) in a confined process.

What only a GPU can show is tested by `pytest -m gpu tests` and `python tests/trust_on_gpu.py`: offsets beyond 2**31, races,
and 100 each of hangs, illegal accesses, exits, exhausted memory and floods of output, with a correct candidate judged after
each. There a worker is first started with namespaces, landlock and seccomp together. If it does not start with all of
them, each is tried alone (landlock also with unrestricted reading), and the worker uses those that work. The journal and
`kernelgen doctor` say which, and the errors of the others. CUDA workers have one permission that no other worker has:
to write below /proc/self, because CUDA names its threads there.

This page is generated from `tests/attacks/` and `docs/benchmarks/trust.json` by `python tests/attacks/table.py`; a test fails
if it is out of date.

## Attacks

{count} ways to pass without doing the work, each tried plainly and in disguise (`tests/attacks/collection.py`). *refused*: before
anything runs; *rejected*: by the accuracy test. In addition, {honest} honest kernels that look odd are accepted
(`tests/attacks/honest.py`).

| class | what it is | how it is stopped | refused or rejected | where it is tested |
|---|---|---|---|---|
"""

ELSEWHERE = (
    ("seeds and references", "a reference that is constant, insensitive, an identity or random", "remarks of the accuracy test", "`tests/judge/test_judge_mutants.py`"),
    ("tests that cannot fail", "accuracy cases that accept a wrong result", "mutants: `weak case`", "`tests/judge/test_judge_mutants.py`"),
    ("hangs", "a kernel that does not end", "a time limit; the process group is killed, the worker replaced", "`tests/test_worker.py`, `tests/test_evaluate.py`"),
    ("crashes", "faults, `os._exit`, signals", "a typed outcome; a canary before the next candidate", "`tests/test_worker.py`, `tests/test_evaluate.py`"),
    ("forged results", "answers written to the worker's pipes", "replies on a private descriptor, bounded, checked field by field", "`tests/test_worker.py`"),
    ("secrets", "keys in the environment, files, the parent's memory", "a scrubbed environment, landlock, seccomp", "`tests/test_confine.py`"),
    ("the network", "loopback and other sockets", "an empty namespace, seccomp", "`tests/test_confine.py`"),
    ("tampered files", "candidates changed in the manifest or the journal", "checked again whenever they are read; checksums", "`tests/test_custom.py`, `tests/test_journal.py`"),
    ("lost work", "a kill at any moment, a torn record, a full disk", "each step on the disk before the next; replies of a model before they are used", "`tests/kill_runs.py`, `tests/test_full_disk.py`"),
    ("impossible times", "faster than the memory can be", "no time below half of the floor is believed", "`tests/test_optimize.py`"),
    ("cached results in L2", "data that survives the flush", "before each sample twice the L2 is read, with the priority of kept lines, which is then released; persisting lines are given back", "`tests/judge/test_judge_gpu.py`, on a GPU"),
)  # fmt: skip
"""What is not device code, each with its test."""


def document() -> str:
    """The whole text."""
    rows = [_row(attack) for attack in ATTACKS]
    more = [f"| {name} | {what} | {how} | {where} |" for name, what, how, where in ELSEWHERE]
    head = HEAD.format(count=len(ATTACKS), honest=sum(1 for _ in honest()))
    tail = [
        "",
        "## Beside device code",
        "",
        "| class | what it is | how it is stopped | where it is tested |",
        "|---|---|---|---|",
        *more,
    ]
    return "\n".join([head.rstrip("\n"), *rows, *tail, "", *_shown_by_a_gpu(), ""])


def _shown_by_a_gpu() -> list[str]:
    """What a GPU showed, as it was measured."""
    found = json.loads(MEASURED.read_text("utf-8"))
    lines = [
        f"## On an {found['gpu'].removeprefix('NVIDIA ')}",
        "",
        f"torch {found['torch']}, triton {found['triton']}, {found['date']}: `{found['command']}`.",
        "",
        f"The worker was held to: {'; '.join(found['isolation'])}.",
        f"Host code in it tried for a file outside its folders, a key of its parent's environment and a loopback socket, and"
        f" reached {found['reached']}.",
        "",
        "| fault in a candidate | runs | typed as | next candidate judged rightly | median of a part at most (slowest) |",
        "|---|---:|---|---:|---:|",
    ]
    lines += [
        f"| {name} | {f['runs']} | {', '.join(f['typed'])} | {f['next_right']} | {f['largest_median_of_a_part_s']:.1f} s ({f['slowest_s']:.1f} s) |"
        for name, f in found["faults"].items()
    ]
    lines += ["", "| planted difference | runs | wanted verdict | had it |", "|---|---:|---|---:|"]
    lines += [f"| {name} | {c['runs']} | {c['wanted']} | {c['count']} |" for name, c in found["clock"].items()]
    return lines


def _row(attack: object) -> str:
    a = attack
    stops = list(dict.fromkeys(stop.partition(":")[0] for _, stop in (a.plain, a.disguised)))  # type: ignore[attr-defined]
    where = "on a GPU" if a.gpu else "everywhere"  # type: ignore[attr-defined]
    return f"| {a.name} | {a.what} | {a.stopped} | {', '.join(stops)} | `test_attacks.py`, {where} |"  # type: ignore[attr-defined]


if __name__ == "__main__":
    DOCUMENT.write_text(document(), "utf-8")

"""How often `kernelgen gate` calls a slowdown of 3 % that was planted, and how often a kernel that is the same.

    python docs/benchmarks/gate.py                         # 100 of each on the GPU that is here, into gate.json
    python docs/benchmarks/gate.py --seconds 60 --into OUT
    python docs/benchmarks/gate.py --table                 # the line in docs/ci.md from gate.json, anywhere

Softmax's kernel, one row a program. The slowed one launches more programs, which do the first rows once more; how many
is found first: those that cost nearest to 3 %, since the last wave may take less or more than its share. The same one
differs by a comment. Both are judged by what the gate calls: slower or faster is a verdict of `kernelgen.gate.timed`.
Planted and same take turns, and gate.json is written after each pair.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelgen.evaluate import Evaluator
    from kernelgen.gate import Finding
    from kernelgen.spec.model import Case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

OPERATOR, CASE, SLOWER = "softmax", "[16384] D=4096 float16", 1.03
"""SLOWER: times as long is what the slowed kernel should take."""
MORE = (0, 5, 10, 15, 20, 25, 30, 35, 40, 50)
"""Programs added to a thousand, of which one is chosen."""
SCHEDULE: dict[str, Any] = {
    "BLOCK_SIZE_M": 1, "BLOCK_SIZE_N": 4096, "NUM_STAGES": 1, "backwards": False, "keep_row": True, "loads": "default",
    "num_warps": 8, "specialize": True, "stores": "default",
}  # fmt: skip
PLANTED = (
    (
        "pid_m = tl.program_id(0).to(tl.int64)",
        "pid_m = tl.where(tl.program_id(0) < M, tl.program_id(0), tl.program_id(0) - M).to(tl.int64)",
    ),
    ('grid = (cdiv(M, options["BLOCK_SIZE_M"]),)', "grid = (M + M * {more} // 1000,)"),
)
"""What is written instead of what in the slowed kernel."""


def texts(more: int) -> tuple[str, str, str]:
    """The kernel as it is, slowed by so many programs to a thousand, and the same with another text."""
    from kernelgen import families, frontend, render
    from kernelgen.plan import Schedule, TableRow
    from kernelgen.spec import find_spec, load_spec

    spec = load_spec(find_spec(OPERATOR)[0])
    plan = families.lower(spec, *frontend.trace(spec))
    row = TableRow((), Schedule.make("looped_rows", **SCHEDULE))
    source = slowed = render.triton_source(plan.with_table((row,)))
    for written, instead in PLANTED:
        if slowed.count(written) != 1:
            raise SystemExit(f"{OPERATOR}'s kernel has {slowed.count(written)} times, not once: {written}")
        slowed = slowed.replace(written, instead.format(more=more))
    return source, slowed, source + "# the same\n"


@dataclass
class Called:
    """What became of the comparisons of one kind."""

    verdicts: list[str] = field(default_factory=list)
    speedups: list[float] = field(default_factory=list)
    """What the verdict was based on."""
    widths: list[float] = field(default_factory=list)

    def take(self, finding: Finding) -> None:
        if not finding.timings:
            raise SystemExit(f"{finding.verdict}: {finding.why}")
        (timing,) = finding.timings
        assert timing.interval is not None
        self.verdicts.append(finding.verdict)
        self.speedups.append(timing.speedup)
        self.widths.append(timing.interval.high - timing.interval.low)

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": len(self.verdicts),
            **{verdict: self.verdicts.count(verdict) for verdict in ("slower", "faster", "unchanged")},
            "median_speedup": statistics.median(self.speedups), "least": min(self.speedups), "most": max(self.speedups),
            "median_width": statistics.median(self.widths),
        }  # fmt: skip


def measure(runs: int, seconds: float, into: Path) -> None:
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.cli.names import ROOT as OPERATORS
    from kernelgen.cli.names import find_quartet
    from kernelgen.devices import find
    from kernelgen.evaluate import evaluator
    from kernelgen.spec import find_spec, load_spec

    device = find()
    if not device.measures:
        raise SystemExit("there is no GPU here")
    plan = generation.plan_of(load_spec(find_spec(OPERATOR)[0]), OPERATORS)
    with (
        tempfile.TemporaryDirectory(prefix="gate-") as store,
        evaluator(device, plan, find_quartet(OPERATOR).folder, Path(store), partial(work, plan)) as run,
    ):
        case = next(one for one in plan.spec.performance if one.label == CASE)
        print(compare(run, case, device.describe(), runs, seconds, into))


def compare(run: Evaluator, case: Case, machine: dict[str, Any], runs: int, seconds: float, into: Path) -> str:
    """Judge both kinds in turns, and say what came of it."""
    from kernelgen import gate
    from kernelgen.evaluate import Candidate
    from kernelgen.journal import source_hash
    from kernelgen.outcomes import Status
    from kernelgen.plan import Schedule

    began = time.monotonic()
    schedule = Schedule.make("looped_rows", **SCHEDULE)

    def candidate(text: str) -> Candidate:
        return Candidate(text, source_hash(text), 0, schedule, (case,), OPERATOR)

    into.mkdir(parents=True, exist_ok=True)
    slowdowns = {}
    for more in MORE:
        source, slowed, _ = texts(more)
        timed = run.final(candidate(slowed), candidate(source), (case,))
        if not timed.timings:
            raise SystemExit(f"the slowed kernel is not timed: {timed.status}: {timed.message}")
        slowdowns[more] = 1 / timed.timings[0].speedup
    more = min(MORE, key=lambda one: abs(slowdowns[one] - SLOWER))
    source, slowed, same = texts(more)
    verified = run.verify(candidate(slowed))
    if verified.status is not Status.OK:
        raise SystemExit(f"the slowed kernel is {verified.status}: {verified.message}")
    found_by = ", ".join(f"{one / 10:g} %: {took:.4f}" for one, took in slowdowns.items())
    print(f"times as long by programs added: {found_by}; {more / 10:g} % is right, {time.monotonic() - began:.0f} s")
    found = {"planted": Called(), "same": Called()}
    said = ""
    for number in range(1, runs + 1):
        for kind, text in (("planted", slowed), ("same", same)):
            change = gate.Change(OPERATOR, source, text, True, (case,), schedule)
            found[kind].take(gate.timed(change, run))
        row = {
            **{kind: called.to_json() for kind, called in found.items()},
            "operator": OPERATOR, "case": case.label, "more_programs": more / 1000, "margin": gate.MARGIN,
            "device": machine, "date": time.strftime("%Y-%m-%d"), "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        (into / "gate.json").write_text(json.dumps(row, indent=1) + "\n")
        said = f"{line(row)} {row['seconds']:.0f} s"
        if number % 10 == 0:
            print(said, flush=True)
        if time.monotonic() - began > seconds:
            break
    return said


def line(row: dict[str, Any]) -> str:
    """What docs/ci.md says of the data."""
    planted, same = row["planted"], row["same"]
    wrong, slowdown = same["slower"] + same["faster"], 100 * (1 / planted["median_speedup"] - 1)
    return (
        f"On {row['device']['device']} a slowdown of {slowdown:.1f} % planted in {row['operator']} was called "
        f"slower in {planted['slower']} of {planted['runs']} comparisons; the same kernel was called slower or "
        f"faster in {wrong} of {same['runs']} (`python docs/benchmarks/gate.py`)."
    )


MARKED = re.compile(r"<!-- gate\.json -->\n.*?<!-- end of gate\.json -->\n", re.DOTALL)


def page(text: str, row: dict[str, Any]) -> str:
    """docs/ci.md with the line of the data."""
    said = "\n".join(textwrap.wrap(line(row), 120, break_long_words=False, break_on_hyphens=False))
    return MARKED.sub(lambda _: f"<!-- gate.json -->\n{said}\n<!-- end of gate.json -->\n", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="of each kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="in all; no pair begins after them")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--table", action="store_true", help="write the line in docs/ci.md")
    given = parser.parse_args()
    if given.table:
        path = HERE.parent / "ci.md"
        path.write_text(page(path.read_text("utf-8"), json.loads((given.into / "gate.json").read_text())), "utf-8")
    else:
        measure(given.runs, given.seconds, given.into)


if __name__ == "__main__":
    main()

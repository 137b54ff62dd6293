"""How much sooner a search finds the best where it begins with what other operators taught, on spaces measured whole.

    python docs/benchmarks/warm.py SPACES            # files that docs/benchmarks/tuner.py --only record wrote
    python docs/benchmarks/warm.py SPACES --rows docs/benchmarks/journals

A search is replayed twice from every seed: cold, from the family's own first configurations, and warm, with those that
were fastest on the nearest problems besides. None of the operator's own rows is known. What counts is the evaluations
until a configuration is within 1 % of the best one. Needs no device.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from kernelgen import generation  # noqa: E402
from kernelgen.cli.knowledge import remembered  # noqa: E402
from kernelgen.knowledge import shipped  # noqa: E402
from kernelgen.knowledge.rows import Row  # noqa: E402
from kernelgen.optimization.bench import families_compiler  # noqa: E402
from kernelgen.plan import Plan, Schedule  # noqa: E402
from kernelgen.search.explore import START, WARM, Explorer  # noqa: E402
from kernelgen.search.points import most_like  # noqa: E402
from kernelgen.search.recorded import Recorded, read  # noqa: E402
from kernelgen.spec import find_spec, load_spec  # noqa: E402
from kernelgen.spec.model import Case  # noqa: E402
from kernelgen.strategies.space import ALIKE, KEPT, VARIANT, space_of  # noqa: E402

WITHIN, SHARE = 0.01, 0.4
"""How near the best one is near enough, and the share of the cold evaluations that is aimed at."""


@dataclass(frozen=True)
class Found:
    """Median evaluations over the seeds."""

    space: str
    configurations: int
    remembered: int
    """Configurations of other operators that this space has."""
    cold: float
    warm: float


def slug(text: str) -> str:
    """A case and a device as a file's name has them."""
    return re.sub(r"[^\w.]+", "_", text).strip("_")


def problem(path: Path, devices: Sequence[str]) -> tuple[Plan, Case, str]:
    """The plan, case and device that a file is of."""
    name, _, rest = path.name.removesuffix(".gz").removesuffix(".csv").partition("-")
    spec = load_spec(find_spec(name)[0])
    for case in spec.performance:
        for device in devices:
            if rest == slug(f"{case.label}-{device}"):
                return generation.plan_of(replace(spec, performance=(case,)), Path("nowhere")), case, device
    raise SystemExit(f"{path}: is of no case of {name} on {', '.join(devices)}")


def places(space: Recorded, schedules: Sequence[Schedule], within: float = 0.0) -> list[int]:
    """Where schedules are among the points, or what is most like them."""
    cells = [{VARIANT: one.variant, **dict(one.values)} for one in schedules]
    found = (most_like(space.points, cell, within) for cell in cells)
    return list(dict.fromkeys(point for point in found if point is not None))


def evaluations(space: Recorded, seed: int, first: Sequence[int], least: int) -> int:
    """Until a configuration is near enough."""
    explorer, count = Explorer(space.points, seed, tuple(dict.fromkeys(first)), least), 0
    while asked := explorer.ask():
        for point in asked:
            count += 1
            explorer.tell(point, space.time(point))
            if space.times[point] <= (1 + WITHIN) * space.best:
                return count
    raise AssertionError("the best one is among the points")


def measured(path: Path, rows: Sequence[Row], seeds: int) -> Found:
    space = read(path)
    plan, case, device = problem(path, sorted({row.device for row in rows}))
    others = remembered([row for row in rows if row.operator != plan.spec.name], plan, device)
    compiler = families_compiler()
    whole = space_of(compiler, plan, compiler.row_of(plan, case), (case,))
    starts = places(space, [whole.schedules[i] for i in whole.starts])
    known = places(space, others, ALIKE)[:KEPT]
    both = [one for pair in zip_longest(starts, known) for one in pair if one is not None]
    cold = statistics.median(evaluations(space, seed, starts, START) for seed in range(seeds))
    warm = statistics.median(evaluations(space, seed, both, WARM if known else START) for seed in range(seeds))
    return Found(space.name, len(space.points), len(known), cold, warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path, metavar="FILE|FOLDER")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", type=Path, default=[], help="known beside the rows that kernelgen ships")
    given = parser.parse_args()
    rows = [*shipped.rows(), *(row for path in given.rows for row in shipped.of_path(path))]
    files = [file for path in given.spaces for file in (sorted(path.glob("*.csv.gz")) if path.is_dir() else [path])]
    found = []
    for file in files:
        found.append(one := measured(file, rows, given.seeds))
        print(
            f"{one.space}: {one.configurations} configurations, {one.remembered} remembered; "
            f"cold {one.cold:g} evaluations, warm {one.warm:g}: {one.warm / one.cold:.0%}",
            flush=True,
        )
    share = sum(one.warm for one in found) / sum(one.cold for one in found)
    print(f"in all {share:.0%} of the cold evaluations; aimed at: {SHARE:.0%}")


if __name__ == "__main__":
    main()

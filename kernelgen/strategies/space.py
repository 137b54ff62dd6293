"""The space of one row's schedules as data: every variant with every value of its axes, as far as that is legal."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod

from kernelgen.plan import Parameter, Plan, Scalar, Schedule, TableRow
from kernelgen.search.points import ABSENT, Points, most_like
from kernelgen.spec.model import Case
from kernelgen.strategies.context import Compiler

MOST = 50_000
"""Legal schedules that are enumerated; of more a sample is drawn."""
VARIANT = "variant"
ONE_OF_EQUALS = "prints the same kernel as another value"

Wanted = Mapping[str, frozenset[Scalar]]
"""The values that a person asked for, by axis; `variant` is one."""


NOTHING_WANTED: Wanted = {}


@dataclass(frozen=True)
class Axes:
    """A variant: where a search sets out in it, and what may be changed."""

    start: Schedule
    parameters: tuple[Parameter, ...]

    @property
    def choices(self) -> dict[str, tuple[Scalar, ...]]:
        """The values of every axis; what the start has belongs to them."""
        return {p.name: tuple(dict.fromkeys([*p.choices, self.start[p.name]])) for p in self.parameters}


@dataclass(frozen=True)
class Space:
    """Schedules of one row, and the same as points of a search."""

    axes: Mapping[str, Axes]
    """By variant."""
    schedules: tuple[Schedule, ...]
    starts: tuple[int, ...]
    """The places of the current schedule and of those that the family sets out from."""
    pruned: tuple[tuple[str, int], ...]
    """How many were left out, by reason; the most first."""
    sampled: bool
    """Whether there are more than these."""

    def points(self) -> Points:
        names = tuple(dict.fromkeys(name for one in self.axes.values() for name, _ in one.start.values))
        rows = [
            [s.variant, *(values.get(n, ABSENT) for n in names)] for s in self.schedules for values in [dict(s.values)]
        ]
        return Points.of_rows([VARIANT, *names], rows)


ALIKE, KEPT = 2.0, 4
"""How far from a remembered schedule a legal one may be, and how many a search begins with: on the recorded spaces more
of them cost more than they brought."""


def alike(space: Space, remembered: Iterable[Schedule]) -> list[Schedule]:
    """The legal schedules most like what was fastest elsewhere: other sizes make other schedules legal."""
    points, found = space.points(), dict[Schedule, None]()
    for one in remembered:
        if (
            len(found) < KEPT
            and (i := most_like(points, {VARIANT: one.variant, **dict(one.values)}, ALIKE)) is not None
        ):
            found[space.schedules[i]] = None
    return list(found)


def axes_of(compiler: Compiler, plan: Plan, row: int, cases: tuple[Case, ...]) -> dict[str, Axes]:
    """The variants that can serve a row, that of the current schedule first."""
    current = plan.table[row].schedule
    found: dict[str, Axes] = {}
    for start in (current, *compiler.variants(plan, cases)):
        if start.variant not in found:
            space = compiler.space(plan.with_schedule(row, start), row, cases)
            found[start.variant] = Axes(start, tuple(p for p in space if start.get(p.name) is not None))
    return found


_known: dict[Hashable, Space] = {}
"""The last spaces: one takes seconds where it is large, and a round asks more than once."""


def meets(schedule: Schedule, wanted: Wanted) -> bool:
    """Whether a schedule has one of the values that were asked for on every axis."""
    values = {VARIANT: schedule.variant, **dict(schedule.values)}
    return all(name in values and values[name] in among for name, among in wanted.items())


def space_of(
    compiler: Compiler, plan: Plan, row: int, cases: tuple[Case, ...], wanted: Wanted = NOTHING_WANTED
) -> Space:
    """Every legal schedule for the cases of a row, each once: a value that changes nothing is the start's. Of these,
    what has one of the values that are wanted on every axis."""
    asked = frozenset(wanted.items())
    key = (compiler, MOST, plan.spec.name, plan.spec.sha256, plan.chip, plan.table[row], cases, asked)
    if key not in _known:
        while len(_known) > 15:
            del _known[next(iter(_known))]
        _known[key] = _whole(compiler, plan, row, cases, wanted, seed=0)
    return _known[key]


def _whole(compiler: Compiler, plan: Plan, row: int, cases: tuple[Case, ...], wanted: Wanted, seed: int) -> Space:
    axes, rng = axes_of(compiler, plan, row, cases), random.Random(seed)
    having = [one for one in axes.values() if wanted.keys() <= {VARIANT, *dict(one.start.values)}]
    drawn = [_combinations(one, wanted, rng) for one in having if one.start.variant in wanted.get(VARIANT, axes)]
    starts = [s for s in (plan.table[row].schedule, *compiler.variants(plan, cases)) if meets(s, wanted)]
    space = enumerated(compiler, plan, cases, axes, starts, chain.from_iterable(found for found, _ in drawn))
    sampled, first = any(share for _, share in drawn), len(space.starts)
    if len(space.schedules) > MOST:
        sampled, found = True, space.schedules
        space = replace(space, schedules=(*found[:first], *rng.sample(found[first:], MOST - first)))
    return replace(space, sampled=sampled)


def enumerated(
    compiler: Compiler,
    plan: Plan,
    cases: tuple[Case, ...],
    axes: Mapping[str, Axes],
    starts: Iterable[Schedule],
    drawn: Iterable[Schedule],
) -> Space:
    """What is legal of the schedules that are drawn, after the starts that are, in their order and each once."""
    refuse, canonical = compiler.refusals(plan, cases), _canonical(compiler, plan)
    found = dict.fromkeys(canonical(s, axes[s.variant]) for s in starts if refuse(s) is None)
    first, pruned = len(found), Counter[str]()
    for schedule in drawn:
        if reason := refuse(schedule):
            pruned[reason] += 1
        elif (kept := canonical(schedule, axes[schedule.variant])) in found:
            pruned[ONE_OF_EQUALS] += kept != schedule
        else:
            found[kept] = None
    return Space(axes, tuple(found), tuple(range(first)), tuple((+pruned).most_common()), False)


def _combinations(axes: Axes, wanted: Wanted, rng: random.Random) -> tuple[Iterator[Schedule], bool]:
    """All of a variant that are wanted; of more than are kept, as many drawn."""
    whole: dict[str, tuple[Scalar, ...]] = {name: (value,) for name, value in axes.start.values} | axes.choices
    whole |= {name: tuple(v for v in whole[name] if v in among) for name, among in wanted.items() if name in whole}
    names, values = tuple(sorted(whole)), [whole[name] for name in sorted(whole)]
    few = prod(map(len, values)) <= MOST
    drawn = product(*values) if few else (tuple(map(rng.choice, values)) for _ in range(MOST))
    return (Schedule(axes.start.variant, tuple(zip(names, v, strict=True))) for v in drawn), not few


def _canonical(compiler: Compiler, plan: Plan) -> Callable[[Schedule, Axes], Schedule]:
    """The schedule with every value that no kernel of its variant looks at as the variant's start has it."""
    known: dict[str, frozenset[str]] = {}

    def printed(schedule: Schedule, axes: Axes) -> frozenset[str]:
        return unread(compiler.source(plan.with_table((TableRow((), schedule),))), axes.parameters)

    def of_variant(axes: Axes) -> frozenset[str]:
        found = printed(axes.start, axes)
        for name in (p.name for p in axes.parameters if p.kind == "structure"):
            for value in axes.choices[name] if found else ():
                found &= printed(axes.start.replace(**{name: value}), axes)
        return found

    def canonical(schedule: Schedule, axes: Axes) -> Schedule:
        variant = schedule.variant
        if variant not in known:
            known[variant] = of_variant(axes)
        dead = known[variant]
        return schedule.replace(**{name: axes.start[name] for name in dead}) if dead else schedule

    return canonical


def unread(source: str, parameters: Iterable[Parameter]) -> frozenset[str]:
    """The parameters that change nothing in a file of kernels: a constant that no kernel reads, and stages where no
    kernel has a loop to overlap."""
    kernels = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and _is_kernel(n)]
    if not kernels:
        return frozenset()
    inside = [node for kernel in kernels for statement in kernel.body for node in ast.walk(statement)]
    names = {node.id for node in inside if isinstance(node, ast.Name)}
    loops = any(isinstance(node, ast.For | ast.While) for node in inside)
    return frozenset(
        p.name
        for p in parameters
        if (p.kind == "constexpr" and p.name not in names) or (p.name == "num_stages" and not loops)
    )


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)

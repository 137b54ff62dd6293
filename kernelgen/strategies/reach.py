"""What one strategy may make of the current schedule: its part of the whole space, searched as all of it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, product, zip_longest

from kernelgen.plan import Parameter, Scalar, Schedule
from kernelgen.search.explore import BATCH, START
from kernelgen.spec.model import Case
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.searching import Row, Search, bound_rows
from kernelgen.strategies.space import Axes, Space, axes_of, enumerated

AT_ONCE = 3
"""Axes that a strategy changes at once; what changes more of them is the strategy `tune`'s."""
VARIANT_WHY = "another variant of the kernel distributes the work differently"


@dataclass(frozen=True)
class Reach:
    """Which schedules are a strategy's."""

    own: str
    """It moves the parameters of this strategy."""
    along: str = ""
    """Those of another may go along, at most as many choices as the own ones go."""
    elsewhere: bool = False
    """Whether what the family sets out from belongs to it, with what is one choice away in block size or warps."""


def reached(context: Context, reach: Reach) -> Search:
    """The search of what is legal and within reach of the current schedules, the nearest first."""
    distances: dict[tuple[int, Schedule], int] = {}
    rows = []
    for row in bound_rows(context):
        cases, current = context.bound(row), context.plan.table[row].schedule
        axes = axes_of(context.compiler, context.plan, row, cases)
        steps: dict[Schedule, int] = {}
        found = chain(
            _remembered(context, axes, current, reach),
            _own(axes[current.variant], current, reach),
            _elsewhere(context, axes, current, cases, reach),
        )
        for schedule, (_, distance) in sorted(found, key=lambda step: step[1]):
            steps.setdefault(schedule, distance)
        space = enumerated(context.compiler, context.plan, cases, axes, (current,), steps)
        if any(schedule != current for schedule in space.schedules):
            distances |= {(row, schedule): steps.get(schedule, 1) for schedule in space.schedules}
            rows.append(Row(context, row, space, space.schedules[: START + 1]))

    def propose(here: Context, row: Row, schedule: Schedule) -> Proposal:
        """A far step is a guess, a near one is not: the expectation shrinks with the distance."""
        current = here.plan.table[row.row].schedule
        gain = 1 + (here.diagnosis.gain(reach.own) - 1) / distances[row.row, schedule]
        table = here.plan.with_schedule(row.row, schedule).table
        return Proposal(table, row.row, changes(current, schedule), _why(row.space, current, schedule, reach), gain)

    count = max(len(rows), 1)
    return Search(rows, propose, max(START // count, BATCH), -(-BATCH // count))


def moves(current: Schedule, parameter: Parameter) -> list[tuple[int, Scalar]]:
    """The other values of a parameter with their distance in choices from the current one."""
    here = current.get(parameter.name)
    if here is None:
        return []
    choices = parameter.choices
    if here in choices:
        at = choices.index(here)
        return [(abs(i - at), v) for i, v in enumerate(choices) if i != at]
    # A current value outside the choices (a family's own default) is equally far from all of them.
    return [(1, v) for v in choices]


Step = tuple[Schedule, tuple[int, int]]
"""A schedule with how early it is looked at, and how many choices away it is."""


def _own(axes: Axes, current: Schedule, reach: Reach) -> Iterator[Step]:
    """Single changes, then pairs, then three axes at once."""
    own = [p for p in axes.parameters if p.strategy == reach.own]
    along = [p for p in axes.parameters if p.strategy == reach.along]
    for count in range(1, AT_ONCE + 1):
        for several in combinations([*own, *along], count):
            for taken in product(*(moves(current, p) for p in several)):
                steps = {p.name: step for p, (step, _) in zip(several, taken, strict=True)}
                leading = sum(steps.get(p.name, 0) for p in own)
                if leading and sum(steps.values()) <= 2 * leading:
                    values = {p.name: value for p, (_, value) in zip(several, taken, strict=True)}
                    yield current.replace(**values), (LATER + count, sum(steps.values()))


def _elsewhere(
    context: Context, axes: Mapping[str, Axes], current: Schedule, cases: tuple[Case, ...], reach: Reach
) -> Iterator[Step]:
    """Where the family's variants set out, what is around there, and there the values of the current schedule."""
    found = context.compiler.variants(context.plan, cases) if reach.elsewhere else ()
    starts = [start for start in found if start != current]
    yield from ((start, (1, 1)) for start in starts)
    # a variant is judged unfairly by one schedule that was chosen for other rows
    for turn in zip_longest(*(_around(axes[start.variant], start) for start in starts)):
        yield from ((schedule, (2, 2)) for schedule in turn if schedule is not None)
    for start in starts:
        yield start.replace(**{n: v for n, v in current.values if start.get(n) is not None}), (LATER, 2)


LATER = 3
"""What is elsewhere comes before what is here: it changes more."""


def _around(axes: Axes, start: Schedule) -> Iterator[Schedule]:
    """The neighbours of a schedule in block size, warps and stages, the smaller and the larger of each."""
    for parameter in axes.parameters:
        if parameter.strategy in ("block_size", "warp_stage") and parameter.kind != "structure":
            yield from (start.replace(**{parameter.name: v}) for d, v in moves(start, parameter) if d == 1)


def _remembered(context: Context, axes: Mapping[str, Axes], current: Schedule, reach: Reach) -> Iterator[Step]:
    """What was fastest on problems like this one, as far as it is within reach: its values of the moved axes."""
    moved = [p.name for p in axes[current.variant].parameters if p.strategy in (reach.own, reach.along)]
    for seed in context.tuning.remembered:
        if seed.variant == current.variant:
            schedule = current.replace(**{name: seed[name] for name in moved if seed.get(name) is not None})
        elif reach.elsewhere and seed.variant in axes:
            schedule = seed
        else:
            continue
        choices = axes[schedule.variant].choices
        if all(schedule.get(name) in values for name, values in choices.items()):
            yield schedule, (0, 1)


def _why(space: Space, current: Schedule, schedule: Schedule, reach: Reach) -> str:
    if schedule.variant != current.variant:
        return VARIANT_WHY
    own = [p for p in space.axes[current.variant].parameters if p.strategy == reach.own]
    moved = [p for p in own if schedule[p.name] != current[p.name]] or own
    return "; ".join(f"{p.name}: {p.meaning}" for p in moved) or VARIANT_WHY

"""Which kernel texts a schedule table needs, and what each of its lines passes at the launch."""

from __future__ import annotations

from kernelgen.families import family_of
from kernelgen.plan import KernelPlan, Parameter, Schedule

_LONGEST = 68
"""Characters of a kernel's name that says how it differs: `elif kernel is NAME:` then fits a line."""
_COUNTS = ("ROW_TILES", "NUM_STAGES", "LINES_AHEAD")
"""Constexprs that a text has where they are more than one."""


def _structure(plan: KernelPlan, schedule: Schedule) -> dict[str, Parameter]:
    return {p.name: p for p in family_of(plan).of(schedule.variant).space if p.kind == "structure"}


def flavour(plan: KernelPlan, schedule: Schedule) -> tuple[object, ...]:
    """What two schedules share if one kernel text serves both."""
    structure = _structure(plan, schedule)
    values = []
    for name, value in schedule.values:
        if name in structure:
            values.append((name, bool(value != 1) if name in _COUNTS else value))
    return (schedule.variant, *values)


def flavours(plan: KernelPlan) -> dict[tuple[object, ...], tuple[Schedule, str]]:
    """Every kernel text that the table needs, named after what tells it from the others."""
    found: dict[tuple[object, ...], Schedule] = {}
    for row in plan.table:
        found.setdefault(flavour(plan, row.schedule), row.schedule)
    kinds = [s.variant for s in found.values()]
    names: dict[tuple[object, ...], tuple[Schedule, str]] = {}
    used: set[str] = set()
    main = next(iter(found), None)
    for key, schedule in found.items():
        parts = [plan.spec.name]
        if key != main and (kinds.count(schedule.variant) == 1 or schedule.variant != kinds[0]):
            parts.append(schedule.variant)
        name = "_".join([*parts, "kernel"])
        differences = _differences(plan, schedule)
        if len("_".join([*parts, *differences, "kernel"])) > _LONGEST:
            differences = []
        if name in used:
            name = "_".join([*parts, *differences, "kernel"])
        number = 2
        while name in used:
            name, number = "_".join([*parts, *differences, str(number), "kernel"]), number + 1
        used.add(name)
        names[key] = schedule, name
    return names


def _differences(plan: KernelPlan, schedule: Schedule) -> list[str]:
    """How a kernel differs from its variant's default: `swap` where only it swaps, `no_swap` where only it does not."""
    default = family_of(plan).default(schedule.variant)
    changed = [(n.lower(), v) for n, v in schedule.values if n in _structure(plan, schedule) and default[n] != v]
    return [_difference(name, value) for name, value in changed] or ["plain"]


def _difference(name: str, value: object) -> str:
    if isinstance(value, str):
        return f"{value}_{name}"
    return f"no_{name}" if value is False else name


def options(plan: KernelPlan, schedule: Schedule) -> tuple[tuple[str, int | bool], ...]:
    """The values of a schedule that are passed at the launch: constexprs first, then launch options."""
    structure = _structure(plan, schedule)
    passed = [(n, v) for n, v in schedule.values if n not in structure or (n in _COUNTS and v != 1)]
    ordered = sorted(passed, key=lambda item: (item[0].islower(), item[0]))
    return tuple((n, v if isinstance(v, bool) else int(v)) for n, v in ordered)

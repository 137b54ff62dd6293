"""Which schedules a family can have made, whatever the operator: tables come back from files that anyone may change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelgen.families.family import Family
from kernelgen.plan import Parameter, Scalar, Schedule


def refusal(schedule: Schedule, families: Iterable[Family]) -> str | None:
    """Why none of the families makes such a schedule; None where one does."""
    found = []
    for family in families:
        default = _default(family, schedule.variant)
        if default is not None:
            parameters = {p.name: p for p in family.space(schedule.variant)}
            found.append(_wrong_value(schedule, dict(default.values), parameters))
    if None in found:
        return None
    # where several families have the variant, one that has its parameters as well is meant
    reasons = sorted(filter(None, found), key=lambda why: "no parameter" in why)
    return reasons[0] if reasons else f"there is no variant {schedule.variant!r}"


def _default(family: Family, variant: str) -> Schedule | None:
    """A family's schedule of a variant; None where it has no such variant."""
    try:
        found = family.default(variant)
    except KeyError:
        return None
    return found if found.variant == variant else None


def _wrong_value(schedule: Schedule, usual: dict[str, Scalar], parameters: dict[str, Parameter]) -> str | None:
    """The first value that a parameter cannot have; None where all are possible.

    A schedule that was made before a parameter was added lacks its value.
    """
    for name, value in schedule.values:
        if name not in usual:
            return f"{schedule.variant} has no parameter {name!r}"
        choices = (*(parameters[name].choices if name in parameters else ()), usual[name])
        if not any(type(c) is type(value) and c == value for c in choices) and not _is_between(value, choices):
            return f"{name} cannot be {str(value)[:60]!r}"
    return None


def _is_between(value: Scalar, choices: Sequence[Scalar]) -> bool:
    """Whether it is a power of two up to the largest choice, as block sizes are that were fitted to an operator."""
    if not all(type(c) is int and c > 0 and c & (c - 1) == 0 for c in (value, *choices)):
        return False
    return int(value) <= max(map(int, choices))

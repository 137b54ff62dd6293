"""Schedules as people type them: `tiles(128, 128, 64): GROUP_M=8+num_warps=8+num_stages=3+swap`.

In parentheses the block sizes in the order of the space, after the colon the other values; a flag that is on is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from kernelgen.errors import UsageError
from kernelgen.plan import Parameter, Scalar, Schedule
from kernelgen.strategies.space import VARIANT, Axes

_FORM = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*(?::(.*))?\s*", re.DOTALL)


def short(schedule: Schedule, parameters: Sequence[Parameter]) -> str:
    """The short form of a schedule; values that are no axis are left to the variant."""
    blocks = [str(schedule[p.name]) for p in parameters if _is_block(p)]
    rest = []
    for p in parameters:
        value = schedule[p.name]
        if not _is_block(p) and value is not False:
            rest.append(p.name if value is True else f"{p.name}={value}")
    head = f"{schedule.variant}({', '.join(blocks)})" if blocks else schedule.variant
    return f"{head}: {'+'.join(rest)}" if rest else head


def parse(text: str, axes: Mapping[str, Axes]) -> Schedule:
    """The schedule of a short form. What is not said is as the variant begins, and flags are off. Raises UsageError."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r}: not a configuration; a short form looks like {_example(axes)}")
    variant, blocks, rest = match.groups()
    if variant not in axes:
        raise UsageError(f"{text!r}: no variant {variant!r}{_near(variant, axes)}")
    own = axes[variant]
    names = [p.name for p in own.parameters if _is_block(p)]
    sizes = [size.strip() for size in (blocks or "").split(",") if size.strip()]
    if blocks is not None and len(sizes) != len(names):
        raise UsageError(f"{text!r}: {variant} has {len(names)} block sizes ({', '.join(names)}), not {len(sizes)}")
    changes: dict[str, Scalar] = {p.name: False for p in own.parameters if type(own.start[p.name]) is bool}
    changes |= {name: value_of(text, own, name, size) for name, size in zip(names, sizes, strict=False)}
    for part in filter(None, (part.strip() for part in (rest or "").split("+"))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        changes[name] = value_of(text, own, name, value if sign else "True")
    return own.start.replace(**changes)


def value_of(text: str, axes: Axes, name: str, value: str) -> Scalar:
    """A value of an axis from its text. Raises UsageError for an axis or a value that does not exist."""
    choices = axes.choices
    if name not in choices:
        raise UsageError(f"{text!r}: {axes.start.variant} has no axis {name!r}{_near(name, choices)}")
    for choice in choices[name]:
        if str(choice).lower() == value.lower():
            return choice
    raise UsageError(f"{text!r}: {name} cannot be {value!r}; it can be {', '.join(map(str, choices[name]))}")


def restriction(text: str, axes: Mapping[str, Axes]) -> dict[str, frozenset[Scalar]]:
    """`AXIS=VALUE,…`, an axis twice for either of two values. Raises UsageError for what no variant has."""
    found: dict[str, frozenset[Scalar]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise UsageError(f"{text!r}: {part!r} is no AXIS=VALUE")
        if name == VARIANT:
            if value not in axes:
                raise UsageError(f"{text!r}: no variant {value!r}{_near(value, axes)}")
            found[name] = found.get(name, frozenset()) | {value}
            continue
        having = [one for one in axes.values() if name in one.choices]
        if not having:
            known = dict.fromkeys([VARIANT, *(n for one in axes.values() for n in one.choices)])
            raise UsageError(f"{text!r}: no axis {name!r}{_near(name, known)}")
        values = {str(c).lower(): c for one in having for c in one.choices[name]}
        if value.lower() not in values:
            raise UsageError(f"{text!r}: {name} cannot be {value!r}; it can be {', '.join(map(str, values.values()))}")
        found[name] = found.get(name, frozenset()) | {values[value.lower()]}
    return found


def ladder(axes: Axes, best: Schedule) -> tuple[Schedule, ...]:
    """From the plainest schedule of a variant, every axis at its first value, to the best one: an axis a rung."""
    plain = best.replace(**{name: min(values, key=_plainness) for name, values in axes.choices.items()})
    rungs, now = [plain], plain
    for parameter in axes.parameters:
        now = now.replace(**{parameter.name: best[parameter.name]})
        if now != rungs[-1]:
            rungs.append(now)
    return tuple(rungs)


def _plainness(value: Scalar) -> tuple[bool, Scalar]:
    return isinstance(value, str) and value != "", value


def _is_block(parameter: Parameter) -> bool:
    return parameter.strategy == "block_size"


def _near(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _example(axes: Mapping[str, Axes]) -> str:
    one = next(iter(axes.values()))
    return short(one.start, one.parameters)

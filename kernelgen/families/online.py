"""Which sums of exp(x - max) a walk may carry along with their maximum.

The running maximum starts at the least finite number instead of -inf, so in a row of nothing but -inf the sum is 0
where torch has NaN. Softmax, log_softmax and logsumexp come out right nevertheless (0 * inf and -inf + inf are NaN,
log(0) is -inf); so a sum is carried only where it, its maximum and its exponentials serve those three alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.families.padding import finite
from kernelgen.families.values import Lowered, Use, Value, axes_of


@dataclass(frozen=True)
class Online:
    """A sum of exp(x - max) that is carried along with its maximum."""

    total: int
    maximum: int
    source: int
    finite: bool
    """Whether infinite maxima count as zero, as in logsumexp."""


def online_sums(lowered: Lowered) -> list[Online]:
    """Every sum that may be carried."""
    found = []
    for i, value in enumerate(lowered.values):
        if value.op == "max" and isinstance(value.args[0], Use) and value.dtype == "float":
            source = value.args[0]
            clipped = finite(lowered, i)
            shift = i if clipped is None else clipped
            for total in _totals(lowered, source, Use(shift)):
                if _serves(lowered, i, shift, source, total):
                    found.append(Online(total, i, source.value, clipped is not None))
    return found


def _totals(lowered: Lowered, source: Use, shift: Use) -> list[int]:
    values = lowered.values
    return [
        i
        for i, value in enumerate(values)
        if value.op == "sum"
        and (exponential := _operand(values, value)) is not None
        and exponential.op == "exp"
        and (shifted := _operand(values, exponential)) is not None
        and shifted.op == "sub"
        and shifted.args == (source, shift)
    ]


def _operand(values: tuple[Value, ...], value: Value) -> Value | None:
    return values[value.args[0].value] if isinstance(value.args[0], Use) else None


def _serves(lowered: Lowered, maximum: int, shift: int, source: Use, total: int) -> bool:
    """Whether everything made on the way is used for softmax, log_softmax or logsumexp alone."""
    values = lowered.values
    exponential = values[total].args[0]
    assert isinstance(exponential, Use)
    shifted = values[exponential.value].args[0]
    assert isinstance(shifted, Use)

    def users(i: int, *allowed: tuple[str, tuple[object, ...]]) -> list[int] | None:
        """The users of a value if they all have one of these forms and it is no output, else None."""
        found = [j for j, v in enumerate(values) if Use(i) in v.args]
        right = all((values[j].op, values[j].args) in allowed for j in found)
        return found if right and all(o.value != i for o in lowered.outputs) else None

    t, e = Use(total), exponential
    plain = shift == maximum
    logs = [Use(j) for j, v in enumerate(values) if v.op == "log" and v.args == (t,)]
    inverses = [Use(j) for j, v in enumerate(values) if v.op == "div" and v.args == (1.0, t)]
    difference = ("sub", (source, Use(shift)))
    ends = [("sub", (shifted, log)) for log in logs] if plain else [("add", (Use(shift), log)) for log in logs]
    quotients = [("div", (e, t)), *(("mul", (e, inverse)) for inverse in inverses)] if plain else []
    rows = _less_maximum(lowered, source, shift)
    ends += [("sub", pair) for log in logs for row in rows for pair in ((log, Use(row)), (Use(row), log))]
    checked = [
        *(users(row, *ends) for row in rows),
        users(shift, *(("sub", values[row].args) for row in rows), difference, *([] if plain else ends)),
        users(shifted.value, ("exp", (shifted,)), *(ends if plain else [])),
        users(e.value, ("sum", (e,)), *quotients),
        users(total, ("log", (t,)), *([("div", (e, t)), ("div", (1.0, t))] if plain else [])),
        *(users(log.value, *ends) for log in logs),
        *(users(inverse.value, *quotients) for inverse in inverses),
    ]
    if not plain:
        tests = [Use(j) for j, v in enumerate(values) if v.op == "isinf" and v.args == (Use(maximum),)]
        checked.append(users(maximum, ("isinf", (Use(maximum),)), ("where", (tests[0], 0.0, Use(maximum)))))
    return None not in checked


def _less_maximum(lowered: Lowered, source: Use, shift: int) -> list[int]:
    """Row values less the maximum, where the row value is a sum of the row's own elements, or one of them, or their
    mean: as in cross entropy and in the log-probability of one element. In a row of nothing but -inf these are -inf
    too, so log(0) makes NaN of them as well."""
    values = lowered.values
    row = values[source.value]

    def of_row(i: int) -> bool:
        value = values[i]
        if value.op == "load" and value.tensor == row.tensor:
            return row.op == "load" and _is_of_row(lowered, value, row)
        if value.op == "div" and isinstance(value.args[0], Use):
            return of_row(value.args[0].value)
        if value.op != "sum" or not isinstance(value.args[0], Use):
            return False
        chosen = values[value.args[0].value]
        return value.args[0] == source or (chosen.op == "where" and chosen.args[1:] == (source, 0.0))

    return [
        i
        for i, v in enumerate(values)
        if v.op == "sub" and v.args[1] == Use(shift) and isinstance(v.args[0], Use) and of_row(v.args[0].value)
    ]


def _is_of_row(lowered: Lowered, one: Value, row: Value) -> bool:
    """Whether a load reads one element of the row that another load reads."""
    inner = lowered.space.inner_axes()
    return one.axes.isdisjoint(inner) and all(
        a == b or not set(axes_of(b)).isdisjoint(inner) for a, b in zip(one.index, row.index, strict=True)
    )

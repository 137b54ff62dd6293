"""Which sums of squared deviations a walk may carry along with their mean.

Block by block, as Chan, Golub and LeVeque combine partial variances (Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances, Stanford STAN-CS-79-773, 1979): no cancellation, and one walk less than the mean first.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.families.padding import ancestors
from kernelgen.families.values import Length, Lowered, Use


@dataclass(frozen=True)
class Moments:
    """A mean and the sum of squared deviations from it, both over whole rows."""

    total: int
    """The sum that the mean is taken of; nothing else may use it."""
    mean: int
    squares: int
    source: int


def carried_moments(lowered: Lowered) -> list[Moments]:
    """Every pair that may be carried."""
    values = lowered.values
    found = []
    for mean, value in enumerate(values):
        if value.op != "div" or not isinstance(value.args[0], Use) or not isinstance(value.args[1], Length):
            continue
        total = value.args[0].value
        source = values[total].args[0] if values[total].op == "sum" else None
        users = [i for i, v in enumerate(values) if Use(total) in v.args]
        if not isinstance(source, Use) or users != [mean] or any(o.value == total for o in lowered.outputs):
            continue
        centered = [Use(i) for i, v in enumerate(values) if v.op == "sub" and v.args == (source, Use(mean))]
        products = [Use(i) for i, v in enumerate(values) if v.op == "mul" and v.args in [(c, c) for c in centered]]
        squares = [i for i, v in enumerate(values) if v.op == "sum" and v.args[0] in products]
        # a row that holds an infinity has an infinite mean and NaN squares; carried along, both are NaN
        dependent = [o.value for o in lowered.outputs if mean in ancestors(lowered, o.value)]
        if len(squares) == 1 and all(squares[0] in ancestors(lowered, o, nan=True) for o in dependent):
            found.append(Moments(total, mean, squares[0], source.value))
    return found

"""Which sums of squared deviations a walk may carry along with their mean.

Block by block, as Chan, Golub and LeVeque combine partial variances (Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances, Stanford STAN-CS-79-773, 1979): no cancellation, and one walk less than the mean first.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.families.padding import ancestors
from kernelgen.families.values import Length, Lowered, Use
from kernelgen.frontend.graph import REDUCTIONS


@dataclass(frozen=True)
class Moments:
    """A mean and the sum of squared deviations from it, both over whole rows."""

    total: int
    """The sum that the mean is taken of; nothing else may use it."""
    mean: int
    squares: int
    source: int
    is_left: bool = False
    """Whether a result depends on the mean and not on the squares: where a row holds an infinity the mean is infinite
    and the squares are NaN."""


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
        dependent = [o.value for o in lowered.outputs if mean in ancestors(lowered, o.value)]
        if len(squares) == 1:
            is_left = any(squares[0] not in ancestors(lowered, o, nan=True) for o in dependent)
            # where another reduction takes a walk with the mean known, the squares are summed there
            others = (ancestors(lowered, i) for i, v in enumerate(values) if v.op in REDUCTIONS and i != squares[0])
            if not is_left or all(squares[0] in before for before in others if mean in before):
                found.append(Moments(total, mean, squares[0], source.value, is_left))
    return found

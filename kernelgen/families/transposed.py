"""Inputs that lie in memory along another dimension than the result does.

A tile of rows and columns reads such an input whole cache lines at a time where the dimension along which it lies is
the innermost of the rows; the rows are put in that order, whatever the order of the result's dimensions.
"""

from __future__ import annotations

from kernelgen.families.access import collapse
from kernelgen.families.values import Lowered, Space, Value, axes_of, expressions


def lies_along(value: Value) -> int | None:
    """The axis along which a load's elements are neighbours in memory, if the tensor is contiguous."""
    last = next((entry for entry in reversed(value.index) if entry != ()), ())
    return last[-1] if isinstance(last, tuple) and last else None


def turned(lowered: Lowered) -> Space | None:
    """The space with its rows in the order in which an input lies, where that is another one."""
    space = lowered.space
    count = len(space.axes)
    loads = [v for v in lowered.values if v.op == "load"]
    whole = all(len({a for entry in o.index for a in axes_of(entry)}) == count for o in lowered.outputs)
    if space.inner_axes() or not whole or any(expressions(v) for v in lowered.values):
        return None
    groups = collapse(count, space.outer, [v.index for v in loads], set())
    for load in loads:
        axis = lies_along(load)
        group = next((g for g in groups[:-2] if axis in g), None)
        if group is not None and set(groups[-1]) <= load.axes:
            rest = [g for g in groups[:-1] if g != group]
            axes = [a for g in (*rest, group, groups[-1]) for a in g]
            order = tuple(axes.index(a) for a in range(count))
            return Space(tuple(space.axes[a] for a in axes), count, order)
    return None

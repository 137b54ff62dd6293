"""Windows whose lines are kept: what one row of a result reads and the next one reads again is loaded once.

The rows of a result that a window of a few lines makes one after the other share all of these but the last: a program
that walks down the rows moves them up by one, and loads the line that is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelgen.families.kernel import Body
from kernelgen.families.line import LINE
from kernelgen.families.naming import FULL
from kernelgen.families.ranges import known, polynomial
from kernelgen.families.values import Value, axes_of
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Condition, Expr

Chain = tuple[int, ...]
"""Loads of which each, one row further down, finds what the next one found: all but the last are kept."""


def chains(body: Body) -> tuple[Chain, ...]:
    """What rows of the innermost dimension of the rows share, from the first column to the last."""
    if not body.layout.rows or len(body.layout.rows[-1].axes) != 1:
        return ()
    (axis,) = body.layout.rows[-1].axes
    values = body.lowered.values
    found: dict[tuple[int, object], list[tuple[int, int]]] = {}
    """By the dimension that moves with the rows and all that stays: the row that every load reads, and the load."""
    for access in body.layout.accesses:
        load = values[access.load]
        dim = _dim(load, axis)
        if body.names.levels[access.load] != FULL or load.args or dim is None:
            continue
        place, rest = _place(load, dim), tuple(e for d, e in enumerate(load.index) if d != dim)
        line = _line(place, axis)
        aside = frozenset(c for c in load.conditions if axis not in axes_of(ix.minus(c.left, c.right)))
        if line is None or any(c.left != place for c in load.conditions if c not in aside):
            continue
        step, row = line
        key = (dim, (load.tensor, rest, aside, load.fill, step, row % step))
        found.setdefault(key, []).append((row // step, access.load))
    return tuple(chain for (dim, _), loads in found.items() for chain in _unbroken(body, loads, dim))


def _dim(load: Value, axis: int) -> int | None:
    """The dimension along which a load moves with the rows, where it is one."""
    dims = [d for d, entry in enumerate(load.index) if axis in axes_of(entry)]
    return dims[0] if len(dims) == 1 and axes_of(load.index[dims[0]]) == (axis,) else None


def _place(load: Value, dim: int) -> Expr:
    entry = load.index[dim]
    return entry if isinstance(entry, Expr) else ix.axis(entry[0])


def _line(place: Expr, axis: int) -> tuple[int, int] | None:
    """How many rows further a place is one row further down, and where it begins; both must be numbers."""
    terms = polynomial(place)
    if terms is None or set(terms) - {(axis,), ()} or terms.get((axis,), 0) < 1:
        return None
    return terms[(axis,)], terms.get((), 0)


def _unbroken(body: Body, loads: list[tuple[int, int]], dim: int) -> Iterator[Chain]:
    """The runs of loads one step apart that read under conditions that say the same of the same place."""
    run: list[tuple[int, int]] = []
    for line, load in sorted(loads):
        if run and line != run[-1][0] + 1:
            yield from _checked(body, tuple(i for _, i in run), dim)
            run = []
        run.append((line, load))
    yield from _checked(body, tuple(i for _, i in run), dim)


def _checked(body: Body, chain: Chain, dim: int) -> Iterator[Chain]:
    """The chain, where every load reads exactly where the others would: what is no condition of its own is known."""
    values, axes = body.lowered.values, body.lowered.space.axes
    places = {i: _place(values[i], dim) for i in chain}
    asked = {(c.op, c.right) for i in chain for c in values[i].conditions if c.left == places[i]}
    wanted = [(i, Condition(places[i], op, right)) for i in chain for op, right in asked]
    if len(chain) > 1 and all(c in values[i].conditions or known(c, axes) for i, c in wanted):
        yield chain


def kept(found: Sequence[Chain]) -> tuple[int, ...]:
    """The loads whose lines are there already, but for the first row of a walk."""
    return tuple(sorted(load for chain in found for load in chain[:-1]))


def moved_up(found: Sequence[Chain], names: dict[int, str]) -> list[str]:
    """The statements that make of the lines of one row those of the next, the first line first."""
    steps = max((len(chain) for chain in found), default=1) - 1
    lines = []
    for step in range(steps):
        pairs = [(names[c[step]], names[c[step + 1]]) for c in found if step + 1 < len(c)]
        line = f"{', '.join(to for to, _ in pairs)} = {', '.join(of for _, of in pairs)}"
        lines += [line] if len(line) <= LINE - 8 else [f"{to} = {of}" for to, of in pairs]
    return lines

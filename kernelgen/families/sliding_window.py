"""Windows whose lines are kept: what one row of a result reads and the next one reads again is loaded once.

The rows of a result that a window of a few lines makes one after the other share all of these but the last: a program
that walks down the rows moves them up by one, and loads the line that is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernelgen.families.access import layout
from kernelgen.families.kernel import Body, make_body
from kernelgen.families.line import LINE
from kernelgen.families.naming import FULL
from kernelgen.families.ranges import known, polynomial
from kernelgen.families.values import Value, axes_of
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Atom
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.spec.model import ELLIPSIS, OperatorSpec
from kernelgen.tile import ir

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
        dim = dim_of(load, axis)
        if body.names.levels[access.load] != FULL or load.args or dim is None:
            continue
        place, rest = place_of(load, dim), tuple(e for d, e in enumerate(load.index) if d != dim)
        line = step_of(place, axis)
        aside = frozenset(c for c in load.conditions if axis not in axes_of(ix.minus(c.left, c.right)))
        if line is None or any(c.left != place for c in load.conditions if c not in aside):
            continue
        step, row = line
        key = (dim, (load.tensor, rest, aside, load.fill, step, row % step))
        found.setdefault(key, []).append((row // step, access.load))
    return tuple(chain for (dim, _), loads in found.items() for chain in _unbroken(body, loads, dim))


def dim_of(load: Value, axis: int) -> int | None:
    """The dimension along which a load moves with an axis, where it is one and moves with no other."""
    dims = [d for d, entry in enumerate(load.index) if axis in axes_of(entry)]
    return dims[0] if len(dims) == 1 and axes_of(load.index[dims[0]]) == (axis,) else None


def place_of(load: Value, dim: int) -> Expr:
    entry = load.index[dim]
    return entry if isinstance(entry, Expr) else ix.axis(entry[0])


def step_of(place: Expr, axis: int) -> tuple[int, int] | None:
    """How much further a place is one further along the axis, and where it begins; both must be numbers."""
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
    if len(chain) > 1 and asked_of(body, chain, dim) is not None:
        yield chain


def asked_of(body: Body, loads: Sequence[int], dim: int) -> frozenset[tuple[str, Expr]] | None:
    """What loads ask of the places along a dimension where they read at all (operator and right side), if each reads
    exactly where the others would: what is no condition of its own is known. None if not."""
    values, axes = body.lowered.values, body.lowered.space.axes
    places = {i: place_of(values[i], dim) for i in loads}
    asked = frozenset((c.op, c.right) for i in loads for c in values[i].conditions if c.left == places[i])
    wanted = [(i, Condition(places[i], op, right)) for i in loads for op, right in asked]
    agree = all(c in values[i].conditions or known(c, axes) for i, c in wanted)
    return asked if agree else None


def ahead(spec: OperatorSpec, body: Body, fixed: frozenset[int]) -> tuple[Body, tuple[Chain, ...], tuple[int, ...]]:
    """The body with the lines that the next row needs, asked for while this one is computed: its chains, and the loads
    that no row needs itself. As it is where the size of a dimension has no name."""
    found = chains(body)
    values = list(body.lowered.values)
    (axis,) = body.layout.rows[-1].axes
    for chain in found:
        last = values[chain[-1]]
        dim = dim_of(last, axis)
        assert dim is not None
        shape = next(t.shape for t in spec.inputs if t.name == last.tensor)
        if ELLIPSIS in shape[: dim + 1]:
            return body, found, ()
        values.append(_further(last, dim, axis, shape[dim]))
    lowered = replace(body.lowered, values=tuple(values))
    more = make_body(spec, lowered, body.statements, layout(spec, lowered), fixed)
    extended = chains(more)
    return more, extended, tuple(range(len(body.lowered.values), len(values)))


def stated(
    spec: OperatorSpec, body: Body, found: Sequence[Chain], fixed: frozenset[int]
) -> tuple[Body, tuple[Condition, ...]]:
    """The body for a walk that reads its newest lines for rows above its first too, where what is known of a row's own
    place is not known: they say all that they ask of it. What they ask alike is taken from them, and is beside it."""
    (axis,) = body.layout.rows[-1].axes
    asked = {chain[-1]: _of_line(body, chain, axis, len(chain) < steps_of(found)) for chain in found}
    alike = next(iter(asked.values())) if len(set(asked.values())) == 1 else ()
    values = list(body.lowered.values)
    for load, conditions in asked.items():
        others = [c for c in values[load].conditions if c not in conditions]
        values[load] = replace(values[load], conditions=(*others, *(c for c in conditions if c not in alike)))
    lowered = replace(body.lowered, values=tuple(values))
    return make_body(spec, lowered, body.statements, body.layout, fixed), alike


def _of_line(body: Body, chain: Chain, axis: int, is_short: bool) -> tuple[Condition, ...]:
    """What the last load of a chain asks of its line's place. `is_short`: others begin further up, and its first line
    need not lie inside where theirs does."""
    last = body.lowered.values[chain[-1]]
    dim = dim_of(last, axis)
    assert dim is not None
    place = place_of(last, dim)
    asked = {Condition(place, op, right) for op, right in asked_of(body, chain, dim) or () if op == ">="}
    asked |= {c for c in last.conditions if c.left == place}
    if is_short and not any(c.op == ">=" for c in asked):
        asked.add(Condition(place, ">=", ix.number(0)))
    return tuple(sorted(asked, key=lambda c: (c.op != ">=", str(c))))


def steps_of(found: Sequence[Chain]) -> int:
    """How many rows of a walk a line serves, at most."""
    return max((len(chain) for chain in found), default=1)


def _further(load: Value, dim: int, axis: int, size: Atom) -> Value:
    """The same load one row further down, which may lie below the last line."""
    step, _ = step_of(place_of(load, dim), axis) or (0, 0)
    here, there = place_of(load, dim), ix.plus(place_of(load, dim), ix.number(step))
    conditions = [Condition(there, c.op, c.right) if c.left == here else c for c in load.conditions]
    inside = Condition(there, "<", ix.size((size,)))
    if inside not in conditions:
        conditions.append(inside)
    index = tuple(there if d == dim else entry for d, entry in enumerate(load.index))
    return replace(load, index=index, conditions=tuple(conditions))


def kept(found: Sequence[Chain]) -> tuple[int, ...]:
    """The loads whose lines are there already, but for the first row of a walk."""
    return tuple(sorted(load for chain in found for load in chain[:-1]))


def moved_up(found: Sequence[Chain], names: Mapping[int, ir.Name]) -> list[ir.Let]:
    """The statements that make of the lines of one row those of the next, the first line first."""
    made = []
    for step in range(steps_of(found) - 1):
        pairs = [(names[c[step]], names[c[step + 1]]) for c in found if step + 1 < len(c)]
        length = sum(len(name.text) + 2 for pair in pairs for name in pair)
        together = [pairs] if length < LINE - 8 else [[pair] for pair in pairs]
        for moved in together:
            last = tuple(of for _, of in moved)
            made.append(ir.Let(tuple(to.text for to, _ in moved), ir.Tuple(last) if last[1:] else last[0]))
    return made


def newest(found: Sequence[Chain]) -> tuple[int, ...]:
    """The loads of the lines that are new to a row."""
    return tuple(sorted(chain[-1] for chain in found))


def remembered(found: Sequence[Chain], names: Mapping[int, ir.Name]) -> ir.Update:
    """The statement that appends the newest lines to those that a walk has read."""
    made = tuple(names[chain[-1]] for chain in found)
    return ir.Update("lines", "add", ir.Tuple((made[0] if len(made) == 1 else ir.Tuple(made),)))


def recalled(found: Sequence[Chain], names: Mapping[int, ir.Name]) -> list[ir.Let]:
    """The statements that find the lines of a row among those that its walk has read, the first line first."""
    most, row = steps_of(found), ir.Name("row")
    made = []
    for step in range(most):
        # a chain that ends with the newest line begins below the first one of a longer chain
        taken = [names[chain[at]].text if (at := step - most + len(chain)) >= 0 else "_" for chain in found]
        place = ir.Apply("add", (row, ir.Number(step)), ()) if step else row
        made.append(ir.Let(tuple(taken), ir.Item(ir.Name("lines"), place)))
    return made

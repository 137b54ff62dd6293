"""The looped variants of row reductions: rows of any length, one or several a program, walked in blocks.

A row is walked once for every reduction that needs an earlier one's result; a sum of exp(x - max) is carried along
with its maximum (Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867), which
saves a walk.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families.forms import COLUMNS, LOOPED_ROWS, WALKED
from kernelgen.families.kernel import Body, at_levels
from kernelgen.families.moments import Moments, carried_moments
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.online import Online, online_sums
from kernelgen.families.padding import ancestors
from kernelgen.families.values import Lowered, Stored, Use, axes_of
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import carries, grid, ir
from kernelgen.tile.carries import Carry
from kernelgen.tile.nest import M, Nest
from kernelgen.tile.walk import trimmed, used_names


def passes(lowered: Lowered) -> tuple[tuple[int, ...], tuple[Online, ...], tuple[tuple[int, ...], ...]]:
    """For every value the walk that can compute it, the sums computed online, and the reductions of every walk."""
    online = {o.total: o for o in online_sums(lowered)}
    beside = {m.squares: m.total for m in carried_moments(lowered)}
    depth: list[int] = []
    for i, value in enumerate(lowered.values):
        below = max((depth[a.value] for a in value.args if isinstance(a, Use)), default=0)
        if i in online:
            depth.append(depth[online[i].maximum])
        elif i in beside:
            depth.append(depth[beside[i]])
        else:
            depth.append(below + (value.op in REDUCTIONS))
    count = max((depth[i] for i, v in enumerate(lowered.values) if v.op in REDUCTIONS), default=0)
    walks = tuple(
        tuple(i for i, v in enumerate(lowered.values) if v.op in REDUCTIONS and depth[i] == p)
        for p in range(1, count + 1)
    )
    return tuple(depth), tuple(online.values()), walks


def looped(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    """The kernel of a program that walks its rows."""
    nest = Nest(spec, body, WALKED[schedule.variant], schedule)
    text = walked_rows(nest)
    parts = {g.size for g in body.layout.parts}  # divided by as by constants
    constexprs = ("BLOCK_SIZE_N", *(("NUM_STAGES",) if schedule.int("NUM_STAGES") > 1 else ()))
    if nest.form.two_d:
        frame = grid.several_rows(M, *_SAID[schedule.variant])
        return nest.kernel(name, (*frame, *text), ("M", "N"), ("BLOCK_SIZE_M", *constexprs), parts)
    has_row = "row" in used_names(trimmed(text))
    said = "the row does" if has_row else "the elements do"
    said += f" not fit in registers: loop over {'it' if has_row else 'them'} in blocks"
    said = "one program reduces the per-row results of the previous kernel" if body.of_rows else said
    return nest.kernel(name, (ir.Remark((said,), apart=False), *grid.lone_row(), *text), ("N",), constexprs, parts)


_SAID = {
    LOOPED_ROWS.name: (
        "BLOCK_SIZE_M rows per program, in blocks that are read again instead of kept", grid.WIDE,
    ),
    COLUMNS.name: (
        "lanes run along the kept dimensions; a program loops over the reduced ones in blocks",
        "int64: offsets may pass 2**31",
    ),
}  # fmt: skip


def walked_rows(nest: Nest) -> tuple[ir.Stmt, ...]:
    """What is done with rows that are walked in blocks."""
    body, builder = nest.body, nest.builder
    moments = {m.total: m for m in carried_moments(body.lowered)}
    reductions = {i for i, v in enumerate(body.lowered.values) if v.op in REDUCTIONS}
    builder.more = frozenset(reductions | {m.mean for m in moments.values()})  # accumulators need a name
    _, online, walks = passes(body.lowered)
    # what is read at a place that a reduction says has to wait for it
    early = [i for i in at_levels(body, (ROW, SCALAR)) if reductions.isdisjoint(ancestors(body.lowered, i))]
    found: list[ir.Stmt] = [*nest.row_indices(), *nest.lets(early)]
    full = [o for o in body.lowered.outputs if stored_late(body, o)]
    for number, walk in enumerate(walks):
        last = not full and number == len(walks) - 1
        # a row that no other walk reads is not worth keeping
        _policies(nest, "evict_last" if not last else "default" if number == 0 else "evict_first")
        carry = reduced(nest, walk, online, moments)
        after = [*carry.after, *nest.lets(_ready_rows(nest))]
        remark = ir.Remark(() if number == 0 else ("next pass over the row",))
        found += [remark, *carry.before, _walk(nest, carry.inside), *after]
        found += nest.stores() if last else ()
    if full:
        found += _again(nest, full)
    return tuple(found)


def _again(nest: Nest, full: Sequence[Stored]) -> tuple[ir.Stmt, ...]:
    """The last walk, which writes what has every element."""
    body, schedule, known = nest.body, nest.schedule, dict(nest.builder.known)
    _policies(nest, "evict_first")
    nest.padded = frozenset()
    if schedule["keep_row"]:  # what every row needs again stays, what is read for the last time goes
        nest.policies.update(dict.fromkeys(at_levels(body, (COLUMN,)), "evict_last"))
    inside = (*nest.lets([o.value for o in full], late=False), *nest.stores(full))
    nest.builder.known = known
    rest = [o for o in body.lowered.outputs if o not in full]
    said = ["final pass over the row, with its reduced values"]
    if schedule["backwards"]:
        said.append("backwards: the end of the row was read last and may still be cached")
    backwards = bool(schedule["backwards"])
    return ir.Remark(tuple(said)), _walk(nest, inside, backwards=backwards), *nest.stores(rest)


def _walk(nest: Nest, inside: Sequence[ir.Stmt], *, backwards: bool = False) -> ir.For:
    stages = "NUM_STAGES" if nest.schedule.int("NUM_STAGES") > 1 else ""
    span = ir.Number(0), ir.Name("N")
    return grid.walk(
        nest.tile.shape, (*nest.column_indices(), *inside), span, stages=stages, backwards=backwards
    )  # fmt: skip


def stored_late(body: Body, stored: Stored) -> bool:
    """Whether an output is written element by element, for which the row is walked once more."""
    every = len({a for d in stored.index for a in axes_of(d)}) == len(body.lowered.space.axes)
    return every or body.names.levels[stored.value] in (FULL, COLUMN)


def _policies(nest: Nest, policy: str) -> None:
    kept = nest.schedule["keep_row"] and policy != "default"
    nest.policies = dict.fromkeys(at_levels(nest.body, (FULL,)), policy) if kept else {}


def _ready_rows(nest: Nest) -> list[int]:
    """The row's numbers that outputs need and that follow from what is known, without another walk."""
    body, done = nest.body, set(nest.builder.known)
    live = set[int]().union(*(ancestors(body.lowered, o.value, short_of=done) for o in body.lowered.outputs))
    later = [j for j in sorted(live) if body.names.levels[j] in (ROW, SCALAR) and nest.builder.is_assigned(j)]
    return [j for j in later if j not in done and _ready(body, j, done)]


def reduced(
    nest: Nest,
    walk: tuple[int, ...],
    online: Sequence[Online],
    moments: dict[int, Moments],
    begins: ir.Expr | None = None,
) -> Carry:
    """The reductions of one walk, whose results are known then. `begins`: where a program's part of the row does."""
    builder, names = nest.builder, nest.body.names.of
    carried = {o.total: o for o in online if o.total in walk}
    beside = {o.maximum for o in carried.values()} | {m.squares for m in moments.values()}
    known = dict(builder.known)
    sources = walked_values(nest.body, walk, online, moments)
    nest.padded = nest.sources_of(sources)
    found = [Carry(inside=nest.lets(sources, late=False))]
    made: dict[int, int] = {}
    for i in walk:
        if i in carried:
            found.append(carries.online_softmax(nest, carried[i]))
            made |= {i: i, carried[i].maximum: i}
        elif i in moments:
            found.append(carries.welford(nest, moments[i], begins))
            made |= {i: i, moments[i].mean: i, moments[i].squares: i}
        elif i not in beside:
            found.append(carries.accumulated(nest, i))
            made[i] = i
    builder.known = known | {i: carries.rows_of(nest, of).number(names[i]) for i, of in made.items() if i in names}
    return carries.together(found)


def walked_values(
    body: Body, walk: tuple[int, ...], online: Sequence[Online], moments: dict[int, Moments]
) -> list[int]:
    """What the reductions of a walk run over; that of a reduction which is carried along follows from the other's."""
    carried = {o.total for o in online} | {m.squares for m in moments.values()}
    return [a.value for i in walk if i not in carried for a in body.lowered.values[i].args if isinstance(a, Use)]


def _ready(body: Body, i: int, done: set[int]) -> bool:
    """Whether a row value follows from values that are done, without another walk."""
    value = body.lowered.values[i]
    if i in done or value.op == "const":
        return True
    if value.op in REDUCTIONS or (value.op == "load" and not value.args):
        return False
    return all(_ready(body, a.value, done) for a in value.args if isinstance(a, Use))

"""Tiles within planes: rows and columns of one plane, whose place among the planes is a scalar of the program.

Where rows have to be taken apart (an image's row has its image and its channel), only the innermost row dimension runs
along a tile. The outer ones are taken from the program's number once, so that what depends on them alone - base
pointers, the weights of a channel - is scalar, and no row is divided.

What a window reads lies a constant number of rows and columns from a place that all its loads share: that place is one
pointer, from which the loads count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernelgen.families.access import Access, output_groups
from kernelgen.families.forms import PLANES, Form
from kernelgen.families.kernel import Body, at_levels, make_body, output_values
from kernelgen.families.naming import COLUMN, FULL, RESERVED, SCALAR, unique
from kernelgen.families.pairs import PairNest, paired_loads
from kernelgen.families.short_places import short_places
from kernelgen.families.sliding_window import (
    Chain,
    ahead,
    chains,
    kept,
    moved_up,
    newest,
    recalled,
    remembered,
    stated,
    steps_of,
)
from kernelgen.families.values import Value, axes_of
from kernelgen.frontend.indices import Condition, Expr, leaves
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.nest import M, N, Tile
from kernelgen.tile.places import taken_apart, whole, wide
from kernelgen.tile.walk import used_names

FEWEST_ROWS = 8
"""A plane with fewer rows than that, where the reference says how many, leaves most of a tile empty."""


def applies(body: Body) -> bool:
    """Whether rows are taken apart into planes and the rows of each."""
    layout = body.layout
    if layout.columns is None or len(layout.rows) < 2 or not layout.split or body.lowered.space.inner_axes():
        return False
    size = layout.rows[-1].size
    if not size.isidentifier() and int(size) < FEWEST_ROWS:
        return False
    return all(output_groups(o, layout.columns) for o in body.lowered.outputs)


def keeps_lines(schedule: Schedule) -> bool:
    """Whether rows follow one another in a program's walk, which keeps what they share."""
    return schedule.get("lines", "read") != "read" and schedule.int("ROW_TILES") > 1


def asks_early(schedule: Schedule) -> bool:
    """Whether a walk asks for its lines several rows before the one that needs them."""
    return keeps_lines(schedule) and schedule.get("LINES_AHEAD", 1) != 1


def is_window(body: Body) -> bool:
    """Whether neighbouring columns of a result read overlapping or widened places."""
    return any(
        core is not None and (core.op == "*" or _is_numbered(shifts))
        for core, shifts in map(shifted, along_columns(body))
    )


def is_shifted(body: Body) -> bool:
    """Whether columns are read from places that no alignment helps: a few aside, backwards or around an end."""
    return any(not _is_aligned(place) for place in along_columns(body))


def _is_aligned(place: Expr) -> bool:
    """Whether a place is a column, or sizes away from one."""
    if place.op in ("+", "-") and not axes_of(place.args[1]):
        amounts = leaves(place.args[1])
        return _is_aligned(place.args[0]) and any(leaf.op == "size" for leaf in amounts)
    return place.op == "axis"


def along_columns(body: Body) -> list[Expr]:
    """The places that columns are read from, where these are computed."""
    columns = set(body.layout.columns.axes if body.layout.columns else ())
    levels = body.names.levels
    together = paired_loads(body)
    alone = [a for a in body.layout.accesses if levels[a.load] == FULL and a.load not in together]
    found = [index for a in alone for index, _ in a.terms if isinstance(index, Expr)]
    counted = {e for e in found if any(leaf.op == "value" and levels[leaf.number] == COLUMN for leaf in leaves(e))}
    return [e for e in found if e in counted or columns & set(axes_of(e))]


def _is_numbered(shifts: tuple[tuple[str, Expr], ...]) -> bool:
    return any(amount.op == "number" for _, amount in shifts)


def shifted(expr: Expr) -> tuple[Expr | None, tuple[tuple[str, Expr], ...]]:
    """An index as what varies and the numbers and sizes added to it, each with its sign; None where nothing varies."""
    if expr.op in ("number", "size"):
        return None, () if expr.op == "number" and expr.number == 0 else (("+", expr),)
    if expr.op in ("+", "-") and expr.args[1].op in ("number", "size"):
        core, shifts = shifted(expr.args[0])
        return core, (*shifts, (expr.op, expr.args[1]))
    return expr, ()


class PlaneNest(PairNest):
    """Tiles within a plane, whose loads count from pointers they share."""

    lane = 1
    """The neighbouring columns of a lane."""

    def __init__(self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule) -> None:
        self.outer, self.inner = body.layout.rows[:-1], body.layout.rows[-1]
        super().__init__(spec, body, form, schedule, self.tile_of())
        self.builder.narrow = short_places(body.lowered)
        self.builder.together = self.read_together
        keys = Counter(self.core(a) for a in body.layout.accesses if self.is_shared(a.load))
        used = {*RESERVED, *body.names.of.values(), *(t.name for t in (*spec.inputs, *spec.outputs))}
        used |= {g.size for g in body.layout.rows} | {g.index for g in body.layout.rows}
        self.shared = {key: unique(f"{key[0].tensor}_at", used) for key, n in keys.items() if n > 1}
        fixed = dict.fromkeys(self._fixed(a) for a in body.layout.accesses if self.level(a.load) != SCALAR)
        self.bases = {key: ir.Name(unique(f"{key.tensor}_plane", used)) for key in fixed if key.terms}
        self.made: set[str] = set()

    @property
    def rows(self) -> ir.Axis:
        """The rows of a plane."""
        return ir.Axis("m", self.inner.index, M.mask, M.block, self.inner.size)

    def tile_of(self) -> Tile:
        return Tile(self.rows, N)

    def row_axes(self) -> tuple[int, ...]:
        return self.inner.axes

    def index(self, name: str) -> ir.Name:
        return ir.Name(name) if name in {g.index for g in self.outer} else super().index(name)

    def read_places(self, value: Value) -> tuple[Expr, ...]:
        """Short of what a place that is read is away from one that others share."""
        places = [shifted(e)[0] if value.op == "load" else e for e in value.index if isinstance(e, Expr)]
        sides = [side for c in value.conditions for side in (c.left, c.right)]
        return (*(e for e in places if e is not None), *sides)

    # What is read

    def read_together(self, i: int) -> tuple[ir.Let, ...] | None:
        """A load, behind the pointer that it is the first to count from."""
        if i in self.read or i not in self.access:
            return super().read_together(i)
        key = self.core(self.access[i])
        name = self.shared.get(key)
        if name is None or name in self.made:
            return None
        self.made.add(name)
        start = ir.Let((name,), self.within_plane(key[0], self._moving(key[0])))
        return start, ir.Let((self.body.names.of[i],), self.load(i, self.shape(i)))

    def is_shared(self, load: int) -> bool:
        """Whether a load counts from a pointer that others may count from too."""
        return load not in self.read

    def core(self, access: Access) -> tuple[Access, str]:
        """What an access has in common with those a constant number of rows and columns away."""
        terms: list[tuple[str | Expr, str | None]] = []
        for index, stride in access.terms:
            core = shifted(index)[0] if isinstance(index, Expr) else index
            if isinstance(core, Expr) and core.op == "axis":
                core = self.places.variables[core.number].text
            if core is not None:
                terms.append((core, stride))
        return Access(0, access.tensor, tuple(terms), (), None), self.level(access.load)

    def _fixed(self, access: Access) -> Access:
        """What of an access does not move with the elements of a tile."""
        return Access(0, access.tensor, tuple(term for term in access.terms if self._is_fixed(term[0])), (), None)

    def _is_fixed(self, index: str | Expr) -> bool:
        """Whether it is known of a plane before anything is read: an index that was loaded is not."""
        if isinstance(index, Expr):
            loaded = any(leaf.op == "value" for leaf in leaves(index))
            return self.place_level(index) == SCALAR and not loaded and index.op not in ("number", "size")
        return index in {g.index for g in self.outer}

    def _moving(self, access: Access) -> ir.Shape:
        """The axes of a tile along which an access moves."""
        axes = {axis for index, _ in access.terms for axis in self._term(index).shape}
        return tuple(axis for axis in self.places.tile if axis in axes)

    def within_plane(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        """A pointer to a tile's elements, from the one to the plane."""
        base = self.bases.get(self._fixed(access)) if shape else None
        if base is None:
            return super().pointer(access, shape)
        moving = replace(access, terms=tuple(t for t in access.terms if not self._is_fixed(t[0])))
        return replace(super().pointer(moving, shape), base=base)

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        key = self.core(access)
        name = self.shared.get(key)
        if name is None:
            return self.within_plane(access, shape)
        terms = tuple(shift for index, stride in access.terms for shift in self.shifts(index, stride))
        return ir.Pointer(access.tensor, terms, shape, ir.Name(name, self._moving(key[0])))

    def shifts(self, index: str | Expr, stride: str | None) -> Iterator[tuple[ir.Expr, str | None]]:
        """What is added to a shared pointer for one term of an access."""
        for sign, amount in shifted(index)[1] if isinstance(index, Expr) else ():
            size = self.places.place(amount)
            if sign == "-":
                size = ir.Number(-amount.number) if amount.op == "number" else ir.Apply("neg", (size,), ())
            yield size, stride

    # Where a program is

    def once(self) -> tuple[ir.Let, ...]:
        """What does not change with the rows, beside what is read and named."""
        return ()

    def column_numbers(self) -> tuple[ir.Let, ...]:
        return grid.numbered(N, grid.block(ir.Name("pid_n"), N))

    def masks(self, asked: Sequence[Condition] = ()) -> tuple[ir.Let, ...]:
        """Which elements of a tile exist, once its rows have their numbers. `asked`: what is asked of these beside."""
        exist = grid.numbered(self.rows, ir.Number(0))[1].value
        for condition in asked:
            exist = ir.Apply("and", (exist, self.places.spelled(condition)), (self.rows,))
        return ir.Let((self.rows.mask,), exist), self.inside()

    def inside(self) -> ir.Let:
        return grid.inside(self.rows, N)

    def plane_numbers(self) -> tuple[ir.Let, ...]:
        """The indices of the plane, from the outermost, then pointers to it."""
        numbers = [taken_apart(self.outer, position, ir.Name("plane")) for position in range(len(self.outer))]
        indices = [ir.Let((g.index,), wide(number)) for g, number in zip(self.outer, numbers, strict=True)]
        bases = [ir.Let((name.text,), super(PlaneNest, self).pointer(key, ())) for key, name in self.bases.items()]
        return (*indices, *bases)

    def number(self, statements: Sequence[ir.Stmt]) -> ir.Expr:
        """The plane's number in int64: its index, where it has one that statements mention."""
        (first, *others) = [ir.Name(g.index) for g in self.outer]
        used = used_names(tuple(statements)) | used_names(self.plane_numbers()[len(self.outer) :])
        return first if not others and first.text in used else wide(ir.Name("plane"))

    def wide_strides(self) -> tuple[ir.Stmt, ...]:
        """All of them: rows and columns of a plane are counted in int32."""
        strides = dict.fromkeys(stride for a in self.body.layout.all() for stride, _ in a.strides)
        why = ["offsets may pass 2**31", *[""] * len(strides)]
        return tuple(
            ir.Let((s,), ir.Cast(ir.Name(s), "int64"), aside=aside) for s, aside in zip(strides, why, strict=False)
        )


def kernel(spec: OperatorSpec, body: Body, schedule: Schedule, name: str, make: type[PlaneNest]) -> ir.Kernel:
    """The kernel for one schedule's structure."""
    outer, inner = body.layout.rows[:-1], body.layout.rows[-1]
    fixed = frozenset(a for group in outer for a in group.axes)
    walk = _walk(spec, make_body(spec, body.lowered, body.statements, body.layout, fixed), schedule, fixed)
    body, nest = walk.body, make(spec, walk.body, PLANES, schedule)
    once = nest.lets(at_levels(body, (COLUMN, SCALAR)))
    still = [let for let in nest.places.lets() if nest.rows not in let.value.shape]
    inside = _walked(nest, walk, (*still, *once))
    tiles = ("ROW_TILES",) if schedule.int("ROW_TILES") > 1 else ()
    whole = (
        *grid.planes(nest.rows, walks=bool(tiles)), *nest.plane_numbers(), *nest.column_numbers(), *still, *once,
        *nest.once(), *inside,
    )  # fmt: skip
    own = (inner.size,) if inner.size.isidentifier() else ()
    strides = {s: e for a in body.layout.all() for s, e in a.strides}
    # a block of elements is one access where it is known that a row ends with one
    ends = {size for _, size in body.layout.sizes} if nest.lane > 1 else set()
    constexprs: tuple[str, ...] = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", *tiles)
    constexprs += ("LINES_AHEAD",) if walk.remembers else ()
    also = {*own, *ends, *_moving(body)}
    made = nest.kernel(name, whole, ("N", *own), constexprs, also, strides=strides)
    single = schedule["accesses"] == "single"
    return replace(
        made, grid=_grid(schedule, inner.size), named_sizes=body.layout.sizes,
        unaligned=tuple(a.name for a in made.arguments if a.kind == "pointer") if single else (),
    )  # fmt: skip


@dataclass(frozen=True)
class _Walk:
    """How a program that walks down rows comes by their lines."""

    body: Body
    chains: tuple[Chain, ...] = ()
    """None where every row reads its own."""
    more: tuple[int, ...] = ()
    """Loads that a row makes for the next one alone."""
    remembers: bool = False
    """Whether all lines that were read are at hand, and not just those of a row."""
    of_line: tuple[Condition, ...] = ()
    """What is then asked of a line's place."""


def _walk(spec: OperatorSpec, body: Body, schedule: Schedule, fixed: frozenset[int]) -> _Walk:
    found = chains(body) if keeps_lines(schedule) else ()
    if found and asks_early(schedule):
        stated_body, of_line = stated(spec, body, found, fixed)
        return _Walk(stated_body, found, remembers=True, of_line=of_line)
    if found and schedule["lines"] == "ahead":
        return _Walk(*ahead(spec, body, fixed))
    return _Walk(body, found)


def _walked(nest: PlaneNest, walk: _Walk, once: Sequence[ir.Stmt]) -> tuple[ir.Stmt, ...]:
    """The rows of a program, one tile after the other, behind what is done `once`."""
    rows, tiles = nest.rows, ir.Name("ROW_TILES")
    start, steps = grid.block(ir.Name("pid_m"), rows), ir.Range(rows, ir.Number(0))
    before, text = _of_rows(nest, walk)
    unroll = bool(nest.schedule.get("unroll"))
    number = ir.Apply("mul", (nest.number([*once, *before, *text]), ir.Name(rows.size)), ())
    along = ir.Name(rows.index, (rows,))

    def of_rows(
        first: ir.Expr | None, statements: tuple[ir.Stmt, ...], asked: Sequence[Condition] = (), named: bool = True
    ) -> tuple[ir.Stmt, ...]:
        """What is done with rows that begin somewhere. `named`: whether they are among those of the result."""
        begun = (ir.Let((rows.index,), first),) if first else ()
        among = whole("add", number, first if walk.remembers and first else along)
        every = (ir.Let(("rows",), among, aside=grid.WIDE),) if named else ()
        places = [let for let in nest.places_in(statements) if rows in let.value.shape]
        return (*begun, *every, *nest.masks(asked), *nest.pair_numbers(), *places, *statements)

    said = "lanes move down ROW_TILES rows: an input line that several of them read is loaded once"
    top = ir.Apply("mul", (ir.Apply("add", (start, steps), (rows,)), tiles), (rows,))
    if walk.remembers:
        row, ahead_of, above = ir.Name("row"), ir.Name("LINES_AHEAD"), ir.Number(1 - steps_of(walk.chains))
        later = ir.Apply("add", (row, ahead_of), ())
        place = ir.Name("top", (rows,))
        body: tuple[ir.Stmt, ...] = (
            ir.If(ir.Apply("lt", (later, tiles), ()), of_rows(_plus(place, later), before, walk.of_line, named=False)),
            ir.If(ir.Apply("ge", (row, ir.Number(0)), ()), of_rows(_plus(place, row), text)),
        )
        first = ir.Apply("sub", (above, ahead_of), ())
        return (
            ir.Remark((f"{said},", "LINES_AHEAD rows ahead"), apart=False),
            ir.Let(("top",), top), ir.Let(("lines",), ir.Tuple(())),
            ir.For("row", first, tiles, ir.Number(1), body, unroll=unroll),
        )  # fmt: skip
    if before:
        body = (*of_rows(None, text), ir.Update(rows.index, "add", ir.Number(1)))
        loop = ir.For("_", ir.Number(0), tiles, ir.Number(1), body, unroll=unroll)
        return ir.Remark((said,), apart=False), *of_rows(top, before, named=False), loop
    if nest.schedule.int("ROW_TILES") == 1:
        return of_rows(ir.Range(rows, start), text)
    start = grid.block(whole("add", whole("mul", ir.Name("pid_m"), tiles), ir.Name("tile")), rows)
    return (ir.For("tile", ir.Number(0), tiles, ir.Number(1), of_rows(ir.Range(rows, start), text), unroll=unroll),)


def _plus(rows: ir.Name, number: ir.Expr) -> ir.Expr:
    return ir.Apply("add", (rows, number), rows.shape)


def _of_rows(nest: PlaneNest, walk: _Walk) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Stmt, ...]]:
    """What is read before a row or for a later one, and what a row computes."""
    found, names = walk.chains, walk.body.names.of
    nest.filled = frozenset(newest(found)) if walk.of_line else frozenset()
    before = nest.lets(newest(found) if walk.remembers else kept(found), late=False)
    nest.made.clear()  # what a walk's first row is read from has moved on by the next one
    lines = {load: ir.Name(names[load], nest.shape(load)) for chain in found for load in chain}
    nest.builder.known |= {load: lines[load] for chain in found for load in chain[:-1]}
    text = (*nest.lets([*walk.more, *output_values(walk.body)], late=False), *nest.stores())
    if walk.remembers:
        return (*before, remembered(found, lines)), (*recalled(found, lines), *text)
    return before, (*text, *moved_up(found, lines))


def _moving(body: Body) -> set[str]:
    """The strides by which the elements of a tile differ."""
    scalar = {g.index for g in body.layout.rows[:-1]}
    return {
        stride
        for a in body.layout.all() if body.names.levels[a.load] != SCALAR
        for index, stride in a.terms if stride is not None and stride != "N" and index not in scalar
    }  # fmt: skip


def _grid(schedule: Schedule, rows: str) -> tuple[str, ...]:
    walked = ' * options["ROW_TILES"]' if schedule.int("ROW_TILES") > 1 else ""
    tiles = f'cdiv({rows}, options["BLOCK_SIZE_M"]{walked})'
    return f"M // {rows} * {tiles}", 'cdiv(N, options["BLOCK_SIZE_N"])'

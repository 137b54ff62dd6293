"""Tiles within planes: rows and columns of one plane, whose place among the planes is a scalar of the program.

Where rows have to be taken apart (an image's row has its image and its channel), only the innermost row dimension runs
along a tile. The outer ones are taken from the program's number once, so that what depends on them alone - base
pointers, the weights of a channel - is scalar, and no row is divided.

What a window reads lies a constant number of rows and columns from a place that all its loads share: that place is one
pointer, from which the loads count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelgen.families.access import Access, Layout, output_groups
from kernelgen.families.forms import PLANES, Form
from kernelgen.families.index_text import IndexText, taken_apart
from kernelgen.families.kernel import (
    Body,
    KernelText,
    PlaneText,
    at_levels,
    make_body,
    output_values,
)
from kernelgen.families.naming import COLUMN, FULL, RESERVED, SCALAR, mentions, unique
from kernelgen.families.pairs import PairLines, paired_loads
from kernelgen.families.rolling import (
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
from kernelgen.families.short_places import short_places
from kernelgen.families.specialize import specialized
from kernelgen.families.triton_text import PRODUCT
from kernelgen.families.values import Value, axes_of
from kernelgen.frontend.indices import Condition, Expr, leaves
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

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


class PlaneIndexText(IndexText):
    """Indices of planes are scalars; a place that is only read from a shared pointer needs no name."""

    def variables_of(self, layout: Layout) -> dict[int, tuple[str, str]]:
        outer = {g.axes[0]: (g.index, SCALAR) for g in layout.rows[:-1] if len(g.axes) == 1}
        return super().variables_of(layout) | outer

    def written(self, value: Value) -> tuple[Expr, ...]:
        places = [shifted(e)[0] if value.op == "load" else e for e in value.index if isinstance(e, Expr)]
        sides = [side for c in value.conditions for side in (c.left, c.right)]
        return (*(e for e in places if e is not None), *sides)


class PlaneLines(PairLines):
    """Loads that count from pointers they share."""

    index_type = PlaneIndexText
    lane = 1
    """The neighbouring columns of a lane."""

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, helpers: dict[str, None]
    ) -> None:
        super().__init__(spec, body, form, schedule, helpers)
        self.writer.short = short_places(body.lowered)
        self.outer = body.layout.rows[:-1]
        self.inner = body.layout.rows[-1]
        keys = Counter(self.core(a) for a in body.layout.accesses if self.is_shared(a.load))
        used = {*RESERVED, *body.names.of.values(), *(t.name for t in (*spec.inputs, *spec.outputs))}
        used |= {g.size for g in body.layout.rows} | {g.index for g in body.layout.rows}
        self.shared = {key: unique(f"{key[0].tensor}_at", used) for key, n in keys.items() if n > 1}
        fixed = dict.fromkeys(self._fixed(a) for a in body.layout.accesses if self.level(a.load) != SCALAR)
        self.bases = {key: unique(f"{key.tensor}_plane", used) for key in fixed if key.terms}
        self.made: set[str] = set()

    def once_lines(self) -> list[str]:
        """What the lines need that does not change with the rows, beside what is read."""
        return []

    def is_shared(self, load: int) -> bool:
        """Whether a load counts from a pointer that others may count from too."""
        return load not in self.read

    def core(self, access: Access) -> tuple[Access, str]:
        """What an access has in common with those a constant number of rows and columns away."""
        terms: list[tuple[str | Expr, str | None]] = []
        for index, stride in access.terms:
            core = shifted(index)[0] if isinstance(index, Expr) else index
            if isinstance(core, Expr) and core.op == "axis":
                core = self.index_text.variables[core.number][0]
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
            return self.index_text.level(index) == SCALAR and not loaded and index.op not in ("number", "size")
        return index in {g.index for g in self.outer}

    def load(self, i: int, other: float) -> str:
        access, level = self.access[i], self.level(i)
        key = self.core(access)
        name = self.shared.get(key)
        line = super().load(i, other)
        if name is None or name in self.made or i in self.read:
            return line
        self.made.add(name)
        return f"{name} = {self.within_plane(key[0], level)}\n{line}"

    def within_plane(self, access: Access, level: str) -> str:
        """A pointer to a tile's elements, from the one to the plane."""
        base = self.bases.get(self._fixed(access)) if level != SCALAR else None
        if base is None:
            return super().pointer(access, level)
        offset = self.offset(replace(access, terms=tuple(t for t in access.terms if not self._is_fixed(t[0]))), level)
        return f"{base} + {offset}" if offset else base

    def pointer(self, access: Access, level: str) -> str:
        name = self.shared.get(self.core(access))
        if name is None:
            return self.within_plane(access, level)
        return name + "".join(self.shifts(index, stride) for index, stride in access.terms)

    def shifts(self, index: str | Expr, stride: str | None) -> str:
        """What is added to a shared pointer for one term of an access."""
        found = shifted(index)[1] if isinstance(index, Expr) else ()
        return "".join(f" {sign} {self._amount(amount, stride)}" for sign, amount in found)

    def _amount(self, amount: Expr, stride: str | None) -> str:
        text = self.index_text.text(amount, SCALAR)
        if stride is None:
            return text.within(PRODUCT)
        return stride if text.text == "1" else f"{text.within(PRODUCT)} * {stride}"

    def broadcast(self, index: str) -> str:
        return "" if index in {g.index for g in self.outer} else super().broadcast(index)

    def places(self, text: Sequence[str]) -> tuple[str, ...]:
        """The indices of the planes that lines of the kernel mention, from the outermost, then pointers to planes."""
        bases = [f"{name} = {super(PlaneLines, self).pointer(key, SCALAR)}" for key, name in self.bases.items()]
        written = "\n".join([*bases, *text])
        indices = [
            f"{group.index} = {self._of_plane(position)}.to(tl.int64)"
            for position, group in enumerate(self.outer)
            if mentions(written, group.index)
        ]
        return (*indices, *bases)

    def number(self, places: Sequence[str]) -> str:
        """The plane's number in int64: its index, where it has one that is written."""
        whole = f"{self.outer[0].index} = plane.to(tl.int64)"
        return self.outer[0].index if whole in places else "plane.to(tl.int64)"

    def _of_plane(self, position: int) -> str:
        text = taken_apart(self.outer, position, "plane")
        return text if text == "plane" else f"({text})"

    def divisors(self) -> tuple[str, ...]:
        return tuple(g.size for g in self.outer if g.size.isidentifier())

    def wide_strides(self) -> tuple[str, ...]:
        """All of them: rows and columns of a plane are counted in int32."""
        return tuple(dict.fromkeys(stride for a in self.body.layout.all() for stride, _ in a.strides))


def kernel(
    spec: OperatorSpec,
    body: Body,
    schedule: Schedule,
    name: str,
    helpers: dict[str, None],
    make: type[PlaneLines],
) -> KernelText:
    """The kernel for one schedule's structure."""
    outer, inner = body.layout.rows[:-1], body.layout.rows[-1]
    fixed = frozenset(a for group in outer for a in group.axes)
    body = make_body(spec, body.lowered, body.statements, body.layout, fixed)
    walk = _walk(spec, body, schedule, fixed)
    body, rolled = walk.body, walk.chains
    lines = make(spec, body, PLANES, schedule, helpers)
    done: set[int] = set()
    once = lines.writer.lines(at_levels(body, (COLUMN, SCALAR)), done)
    first = lines.index_text.lines(once)
    once = first + once
    before, text = _of_rows(lines, walk, done)
    if rolled:
        still = [p for p in lines.index_text.lines([*before, *text]) if not mentions(p, inner.index)]
        once += [line for line in still if line not in first]
        first += still
    named = [line for line in lines.index_text.lines(text) if line not in first]
    before = [*(line for line in lines.index_text.lines(before) if line not in first), *before]
    text = [*lines.pair_lines(), *named, *text]
    once += lines.once_lines()
    places = lines.places([*once, *before, *text])
    own = (inner.size,) if inner.size.isidentifier() else ()
    strides = {s: e for a in body.layout.all() for s, e in a.strides}
    asked = tuple(lines.index_text.spelled(c) for c in walk.of_line)
    written = "\n".join([*places, *once, *asked, *before, *text])
    arguments = [a for a in lines.arguments("N", *own) if a in own or a in ("N", *strides) or mentions(written, a)]
    # a block of elements is one access where it is known that a row ends with one
    ends = {size for _, size in body.layout.sizes} if lines.lane > 1 else set()
    tiles = ("ROW_TILES",) if schedule.int("ROW_TILES") > 1 else ()
    constexprs: tuple[str, ...] = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", *tiles)
    constexprs += ("LINES_AHEAD",) if walk.remembers else ()
    also = {*own, *ends, *_moving(body)}
    ordered, constexprs, passed = specialized(schedule, arguments, constexprs, also, strides)
    return KernelText(
        name, PLANES, schedule, ordered, constexprs, tuple(once), tuple(text),
        wide_strides=lines.wide_strides(), grid=_grid(schedule, inner.size), passed=passed,
        named_sizes=body.layout.sizes,
        plane=PlaneText(
            inner.index, inner.size, places, lines.number(places), tuple(before),
            above=steps_of(rolled) - 1 if walk.remembers else 0, of_line=asked,
        ),
        unaligned=tuple(a for a in ordered if a.endswith("_ptr")) if schedule["accesses"] == "single" else (),
        lane=lines.lane,
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


def _of_rows(lines: PlaneLines, walk: _Walk, done: set[int]) -> tuple[list[str], list[str]]:
    """What is read before a row or for a later one, and what a row computes."""
    found, names = walk.chains, walk.body.names.of
    before = lines.writer.lines(newest(found) if walk.remembers else kept(found), done, late=False)
    lines.made.clear()  # what a walk's first row is read from has moved on by the next one
    done |= {load for chain in found for load in chain[:-1]}
    text = [*lines.writer.lines([*walk.more, *output_values(walk.body)], done, late=False), *lines.stores()]
    if walk.remembers:
        return [*before, remembered(found, names)], [*recalled(found, names), *text]
    return before, [*text, *moved_up(found, names)]


def _moving(body: Body) -> set[str]:
    """The strides by which the elements of a tile differ."""
    scalar = {g.index for g in body.layout.rows[:-1]}
    return {
        stride
        for a in body.layout.all() if body.names.levels[a.load] != SCALAR
        for index, stride in a.terms if stride is not None and stride != "N" and index not in scalar
    }  # fmt: skip


def _grid(schedule: Schedule, rows: str) -> str:
    walked = ' * options["ROW_TILES"]' if schedule.int("ROW_TILES") > 1 else ""
    tiles = f'cdiv({rows}, options["BLOCK_SIZE_M"]{walked})'
    return f'(M // {rows} * {tiles}, cdiv(N, options["BLOCK_SIZE_N"]))'

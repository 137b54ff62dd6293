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
from dataclasses import replace

from kernelgen.families.access import Access, Group, Layout, output_groups
from kernelgen.families.index_text import IndexText
from kernelgen.families.kernel import (
    LOADS,
    STORES,
    Body,
    KernelText,
    PlaneText,
    at_levels,
    make_body,
    mentions,
    output_values,
    taken_apart,
)
from kernelgen.families.naming import COLUMN, FULL, RESERVED, SCALAR, unique
from kernelgen.families.pairs import PairLines, is_paired, paired_loads, paired_stores
from kernelgen.families.rolling import chains, kept, moved_up
from kernelgen.families.triton_text import PRODUCT
from kernelgen.families.values import Value, axes_of
from kernelgen.frontend.indices import Expr, leaves
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

VARIANT = "planes"
FEWEST_ROWS = 8
"""A plane with fewer rows than that, where the reference says how many, leaves most of a tile empty."""
WIDTHS = (64, 128, 256, 512)
"""Columns of a tile; half precision rows of at most as many columns take the narrowest that holds them."""
LONGEST = 1024
"""Columns of a tile of longer rows."""
TILE = 2048
"""Elements of a tile in four warps: two accesses of 16 bytes a thread."""
SHIFTED = 256
"""Elements of a tile in one warp where columns are read from places that no alignment helps (images of 112 columns
reflected, H200: 68 us, tiles of 2048 in four warps 86)."""
WINDOW_WIDTHS = (64, 128, 256, 512)
WINDOW_ROWS = {64: 8, 128: 2}
"""Rows of a tile of so many columns, else one. A line is read for every place of a window, each time for the whole
tile; of more rows the L1 has lost it by then (max_pool2d, 224 by 224, H200: 16 rows 1004 us, 8 rows 491, 4 rows 285).
"""
WALK = 14
"""Rows that a lane walks down where lines are kept: the images of networks often have a multiple of seven, and few of
so many are read twice."""
WALKED = 256
"""Elements of a tile in four warps that walks down: two a thread, whose lines 32 to 42 registers hold."""


def applies(body: Body) -> bool:
    """Whether rows are taken apart into planes and the rows of each."""
    layout = body.layout
    if layout.columns is None or len(layout.rows) < 2 or not layout.split or body.lowered.space.inner_axes():
        return False
    size = layout.rows[-1].size
    if not size.isidentifier() and int(size) < FEWEST_ROWS:
        return False
    return all(output_groups(o, layout.columns) for o in body.lowered.outputs)


def default() -> Schedule:
    return Schedule.make(
        VARIANT, BLOCK_SIZE_M=8, BLOCK_SIZE_N=128, num_warps=4, ROW_TILES=1, specialize=False, accesses="wide",
        lines="read", loads="default", stores="default",
    )  # fmt: skip


def first_table(body: Body, long: Schedule) -> tuple[tuple[int | None, Schedule], ...]:
    """Tiles as wide as a row, and rows of them until every thread has eight elements; `long`: rows of which one alone
    fills a program, where columns are read as they are written."""
    widths = WINDOW_WIDTHS[:-1] if is_window(body) else WIDTHS
    computed = _along_columns(body) or is_paired(body)
    last = _fitting(body, LONGEST) if computed else long
    return (*((2 * width, _fitting(body, width)) for width in widths), (None, last))


def _fitting(body: Body, width: int) -> Schedule:
    """A tile as wide as rows are. Constants save most where the places that columns read are computed."""
    if is_window(body):
        width = min(width, WINDOW_WIDTHS[-1])
        if chains(body):
            return default().replace(
                BLOCK_SIZE_N=width, BLOCK_SIZE_M=max(1, WALKED // width), ROW_TILES=WALK, lines="kept",
                accesses="single", specialize=True,
            )  # fmt: skip
        return default().replace(
            BLOCK_SIZE_N=width, BLOCK_SIZE_M=WINDOW_ROWS.get(width, 1), ROW_TILES=8, num_warps=2,
            accesses="single", specialize=True,
        )  # fmt: skip
    if is_shifted(body) and not is_paired(body):
        # neighbours come from places of their own: a few elements a lane, and its next ones asked for meanwhile
        return default().replace(
            BLOCK_SIZE_N=width, BLOCK_SIZE_M=max(1, SHIFTED // width), ROW_TILES=4, num_warps=1, specialize=True
        )
    computed = bool(_along_columns(body))
    # what is read once and written in pairs has twice as many elements as columns
    columns = TILE // 2 if paired_stores(body) and not paired_loads(body) else TILE
    return default().replace(BLOCK_SIZE_N=width, BLOCK_SIZE_M=columns // width, specialize=computed)


def starts(body: Body, columns: int) -> tuple[Schedule, ...]:
    """The first table's schedule for rows of that length, narrow and wide."""
    fitting = _fitting(body, next((w for w in WIDTHS if columns <= w), LONGEST))
    return fitting, fitting.replace(specialize=not fitting["specialize"])


def space() -> tuple[Parameter, ...]:
    return (
        Parameter(
            "specialize", (False, True), "grid_config", "structure",
            "a kernel compiled for every size of a plane and its strides",
        ),
        Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64), "block_size", "constexpr", "rows of a tile"),
        Parameter("BLOCK_SIZE_N", (64, 128, 256, 512, 1024, 2048, 4096), "block_size", "constexpr", "its columns"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program"),
        Parameter(
            "accesses", ("wide", "single"), "memory_access", "structure",
            "as many columns an access as alignment allows, or one, so that loads of neighbours run over whole lines",
        ),
        LOADS, STORES,
        Parameter(
            "ROW_TILES", (1, 2, 4, 7, 8, 14, 28), "data_reuse", "structure",
            "row tiles a program walks with what varies along the columns kept",
        ),
        Parameter(
            "lines", ("read", "kept"), "data_reuse", "structure",
            "the lines of a window read for every row, or kept from one row to the next, which follows it in the walk",
        ),
    )  # fmt: skip


def keeps_lines(schedule: Schedule) -> bool:
    """Whether rows follow one another in a program's walk, which keeps what they share."""
    return schedule.get("lines") == "kept" and schedule.int("ROW_TILES") > 1


def refusal(schedule: Schedule) -> str | None:
    """Why a schedule makes no sense; None if it does."""
    alone = schedule.get("lines") == "kept" and not keeps_lines(schedule)
    return "lines kept from one row to the next in a walk of one row (ROW_TILES=1)" if alone else None


def is_window(body: Body) -> bool:
    """Whether neighbouring columns of a result read overlapping or widened places."""
    return any(
        core is not None and (core.op == "*" or _is_numbered(shifts))
        for core, shifts in map(_shifted, _along_columns(body))
    )


def is_shifted(body: Body) -> bool:
    """Whether columns are read from places that no alignment helps: a few aside, backwards or around an end."""
    return any(not _is_aligned(place) for place in _along_columns(body))


def _is_aligned(place: Expr) -> bool:
    """Whether a place is a column, or sizes away from one."""
    if place.op in ("+", "-") and not axes_of(place.args[1]):
        amounts = leaves(place.args[1])
        return _is_aligned(place.args[0]) and any(leaf.op == "size" for leaf in amounts)
    return place.op == "axis"


def _along_columns(body: Body) -> list[Expr]:
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


def _shifted(expr: Expr) -> tuple[Expr | None, tuple[tuple[str, Expr], ...]]:
    """An index as what varies and the numbers and sizes added to it, each with its sign; None where nothing varies."""
    if expr.op in ("number", "size"):
        return None, () if expr.op == "number" and expr.number == 0 else (("+", expr),)
    if expr.op in ("+", "-") and expr.args[1].op in ("number", "size"):
        core, shifts = _shifted(expr.args[0])
        return core, (*shifts, (expr.op, expr.args[1]))
    return expr, ()


class PlaneIndexText(IndexText):
    """Indices of planes are scalars; a place that is only read from a shared pointer needs no name."""

    def variables_of(self, layout: Layout) -> dict[int, tuple[str, str]]:
        outer = {g.axes[0]: (g.index, SCALAR) for g in layout.rows[:-1] if len(g.axes) == 1}
        return super().variables_of(layout) | outer

    def written(self, value: Value) -> tuple[Expr, ...]:
        places = [_shifted(e)[0] if value.op == "load" else e for e in value.index if isinstance(e, Expr)]
        sides = [side for c in value.conditions for side in (c.left, c.right)]
        return (*(e for e in places if e is not None), *sides)


class PlaneLines(PairLines):
    """Loads that count from pointers they share."""

    index_type = PlaneIndexText

    def __init__(
        self, spec: OperatorSpec, body: Body, variant: str, schedule: Schedule, helpers: dict[str, None]
    ) -> None:
        super().__init__(spec, body, variant, schedule, helpers)
        self.outer = body.layout.rows[:-1]
        self.inner = body.layout.rows[-1]
        keys = Counter(self._core(a) for a in body.layout.accesses if a.load not in self.read)
        used = {*RESERVED, *body.names.of.values(), *(t.name for t in (*spec.inputs, *spec.outputs))}
        used |= {g.size for g in body.layout.rows} | {g.index for g in body.layout.rows}
        self.shared = {key: unique(f"{key[0].tensor}_at", used) for key, n in keys.items() if n > 1}
        fixed = dict.fromkeys(self._fixed(a) for a in body.layout.accesses if self.level(a.load) != SCALAR)
        self.bases = {key: unique(f"{key.tensor}_plane", used) for key in fixed if key.terms}
        self.made: set[str] = set()

    def _core(self, access: Access) -> tuple[Access, str]:
        """What an access has in common with those a constant number of rows and columns away."""
        terms: list[tuple[str | Expr, str | None]] = []
        for index, stride in access.terms:
            core = _shifted(index)[0] if isinstance(index, Expr) else index
            if isinstance(core, Expr) and core.op == "axis":
                core = self.index_text.variables[core.number][0]
            if core is not None:
                terms.append((core, stride))
        return Access(0, access.tensor, tuple(terms), (), None), self.level(access.load)

    def _fixed(self, access: Access) -> Access:
        """What of an access does not move with the elements of a tile."""
        return Access(0, access.tensor, tuple(term for term in access.terms if self._is_fixed(term[0])), (), None)

    def _is_fixed(self, index: str | Expr) -> bool:
        if isinstance(index, Expr):
            return self.index_text.level(index) == SCALAR and index.op not in ("number", "size")
        return index in {g.index for g in self.outer}

    def load(self, i: int, other: float) -> str:
        access, level = self.access[i], self.level(i)
        key = self._core(access)
        name = self.shared.get(key)
        line = super().load(i, other)
        if name is None or name in self.made or i in self.read:
            return line
        self.made.add(name)
        return f"{name} = {self._within_plane(key[0], level)}\n{line}"

    def _within_plane(self, access: Access, level: str) -> str:
        """A pointer to a tile's elements, from the one to the plane."""
        base = self.bases.get(self._fixed(access)) if level != SCALAR else None
        if base is None:
            return super().pointer(access, level)
        offset = self.offset(replace(access, terms=tuple(t for t in access.terms if not self._is_fixed(t[0]))), level)
        return f"{base} + {offset}" if offset else base

    def pointer(self, access: Access, level: str) -> str:
        name = self.shared.get(self._core(access))
        if name is None:
            return self._within_plane(access, level)
        shifts = [
            f" {sign} {self._amount(amount, stride)}"
            for index, stride in access.terms if isinstance(index, Expr)
            for sign, amount in _shifted(index)[1]
        ]  # fmt: skip
        return name + "".join(shifts)

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


def kernel(spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]) -> KernelText:
    """The kernel for one schedule's structure."""
    outer, inner = body.layout.rows[:-1], body.layout.rows[-1]
    body = make_body(
        spec, body.lowered, body.statements, body.layout, frozenset(a for group in outer for a in group.axes)
    )
    lines = PlaneLines(spec, body, VARIANT, schedule, helpers)
    done: set[int] = set()
    rolled = chains(body) if keeps_lines(schedule) else ()
    once = lines.writer.lines(at_levels(body, (COLUMN, SCALAR)), done)
    first = lines.index_text.lines(once)
    once = first + once
    before = lines.writer.lines(kept(rolled), done, late=False)
    lines.made.clear()  # what a walk's first row is read from has moved on by the next one
    text = [*lines.writer.lines(output_values(body), done, late=False), *lines.stores()]
    text += moved_up(rolled, body.names.of)
    if rolled:
        fixed = [p for p in lines.index_text.lines([*before, *text]) if not mentions(p, inner.index)]
        once += [line for line in fixed if line not in first]
        first += fixed
    named = [line for line in lines.index_text.lines(text) if line not in first]
    before = [*(line for line in lines.index_text.lines(before) if line not in first), *before]
    text = [*lines.pair_lines(), *named, *text]
    places = lines.places([*once, *before, *text])
    own = (inner.size,) if inner.size.isidentifier() else ()
    strides = {s: e for a in body.layout.all() for s, e in a.strides}
    written = "\n".join([*places, *once, *before, *text])
    arguments = [a for a in lines.arguments("N", *own) if a in own or a in ("N", *strides) or mentions(written, a)]
    moving = _moving(body, inner)
    tiles = ("ROW_TILES",) if schedule.int("ROW_TILES") > 1 else ()
    constexprs: tuple[str, ...] = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", *tiles)
    passed: tuple[str, ...] = ()
    if schedule["specialize"]:
        arguments = [a for a in arguments if a not in ("N", *own, *moving)]
        constexprs = ("N", *own, *moving, *constexprs)
        passed = tuple(f"{n}={strides.get(n, n)}" for n in (*own, *moving))
    return KernelText(
        name, VARIANT, schedule, tuple(arguments), constexprs, tuple(once), tuple(text),
        wide_strides=lines.wide_strides(), grid=_grid(schedule, inner.size), passed=passed,
        plane=PlaneText(inner.index, inner.size, places, lines.number(places), tuple(before)),
        unaligned=tuple(a for a in arguments if a.endswith("_ptr")) if schedule["accesses"] == "single" else (),
    )  # fmt: skip


def _moving(body: Body, inner: Group) -> tuple[str, ...]:
    """The strides by which the elements of a tile differ."""
    scalar = {g.index for g in body.layout.rows[:-1]}
    return tuple(
        dict.fromkeys(
            stride
            for a in body.layout.all() if body.names.levels[a.load] != SCALAR
            for index, stride in a.terms if stride is not None and stride != "N" and index not in scalar
        )
    )  # fmt: skip


def _grid(schedule: Schedule, rows: str) -> str:
    walked = ' * options["ROW_TILES"]' if schedule.int("ROW_TILES") > 1 else ""
    tiles = f'triton.cdiv({rows}, options["BLOCK_SIZE_M"]{walked})'
    return f'(M // {rows} * {tiles}, triton.cdiv(N, options["BLOCK_SIZE_N"]))'

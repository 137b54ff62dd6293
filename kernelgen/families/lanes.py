"""Several neighbouring columns a lane: what their windows share of a line is read once.

A tile then has three dimensions, [rows, lanes, columns of a lane]. The columns of a lane need a run of neighbouring
elements of a line. It is read in blocks, each in one access, and element by element where only one of a block is
needed; what one place of the window reads of every column is put together from these in registers.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kernelgen.families import planes
from kernelgen.families.access import COLS, Access
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.families.naming import COLUMN, FULL, RESERVED, level, unique
from kernelgen.families.pairs import is_paired
from kernelgen.families.planes import PlaneNest
from kernelgen.families.ranges import covers, known
from kernelgen.families.sliding_window import asked_of, dim_of, place_of, step_of
from kernelgen.families.values import Index, axes_of
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.nest import N, Tile

LONGEST_BLOCK = 8
"""Elements of a block: 16 bytes of half precision, the widest access of a thread."""
MOST_ELEMENTS = 32
"""Of a line, for a lane; each takes a register."""
FIRST = "first"
"""The kernel variable that holds the first column of every lane."""
LANE_MASK = "lane_mask"
"""The kernel variable that says which lanes have a column at all."""
BLOCKS = {2: "pair", 4: "quad", 8: "octet"}
"""What the elements of a block are numbered by."""


@dataclass(frozen=True)
class Line:
    """Loads of one line, which differ by their places along the columns alone."""

    step: int
    """How many elements two neighbouring columns are apart."""
    taps: tuple[tuple[int, int], ...]
    """Which element every load reads for the first column, and the load, in order."""
    asked: frozenset[tuple[str, Expr]]
    """What is asked of a place for it to be read."""
    aside: tuple[Condition, ...]
    """What else is asked, of the row."""

    def elements(self, lane: int) -> tuple[int, ...]:
        """What the columns of a lane need, counted from what the first column's window is counted from."""
        return tuple(sorted({self.step * i + tap for i in range(lane) for tap, _ in self.taps}))

    def blocks(self, lane: int) -> dict[int, list[int]]:
        """The elements by the block that they lie in."""
        found: dict[int, list[int]] = {}
        for element in self.elements(lane):
            found.setdefault(element // (self.step * lane), []).append(element)
        return found


def applies(body: Body) -> bool:
    """Whether a lane of several columns reads less than as many lanes of one."""
    return planes.is_window(body) and not is_paired(body) and any(lines_of(body, lane) for lane in (2, 4))


def refusal(body: Body, schedule: Schedule) -> str | None:
    """Why lanes of several columns would read no less; None if they do, or if a lane has one column."""
    lane = schedule.get("lane_columns", 1)
    if lane == 1 or (not is_paired(body) and lines_of(body, schedule.int("lane_columns"))):
        return None
    return f"{lane} columns a lane (lane_columns), which share nothing that is read"


def lines_of(body: Body, lane: int) -> tuple[Line, ...]:
    """The lines of which several loads read neighbouring elements that a few accesses hold."""
    assert body.layout.columns is not None
    (axis,) = body.layout.columns.axes
    outer = frozenset(a for group in body.layout.rows[:-1] for a in group.axes)  # scalars of a program
    values = body.lowered.values
    found: dict[_Key, list[tuple[int, int]]] = {}
    for access in body.layout.accesses:
        load = values[access.load]
        dim = dim_of(load, axis)
        if level(load, frozenset([axis]), outer) != FULL or load.args or dim is None:
            continue
        place, rest = place_of(load, dim), tuple(e for d, e in enumerate(load.index) if d != dim)
        step = step_of(place, axis)
        aside = tuple(c for c in load.conditions if c.left != place)
        if step is None or any(axis in axes_of(ix.minus(c.left, c.right)) for c in aside):
            continue
        found.setdefault(_Key(load.tensor, dim, rest, aside, load.fill, step[0]), []).append((step[1], access.load))
    lines = []
    for key, taps in found.items():
        asked = asked_of(body, [load for _, load in taps], key.dim)
        if asked is not None and _gains(line := Line(key.step, tuple(sorted(taps)), asked, key.aside), lane):
            lines.append(line)
    return tuple(lines)


def _gains(line: Line, lane: int) -> bool:
    """Whether fewer accesses do: a block is a power of two of elements, and some hold several of those needed."""
    block = line.step * lane
    if len(line.taps) < 2 or block & (block - 1) or block > LONGEST_BLOCK:
        return False
    few = len(line.elements(lane)) <= MOST_ELEMENTS
    return few and any(len(elements) > 1 for elements in line.blocks(lane).values())


@dataclass(frozen=True)
class _Key:
    """What the loads of a line have in common."""

    tensor: str | None
    dim: int
    rest: Index
    aside: tuple[Condition, ...]
    fill: float | int | bool | None
    step: int


def _letters() -> list[str]:
    """What elements are called: a to z, then aa to az; some of them may stand for places."""
    letters = string.ascii_lowercase
    return [*letters, *(f"a{letter}" for letter in letters)]


@dataclass(frozen=True)
class LaneTile(Tile):
    """Rows, lanes, and the columns of a lane."""

    lane: ir.Axis

    @property
    def shape(self) -> ir.Shape:
        assert self.rows is not None
        return (self.rows, self.columns, self.lane)


class LaneNest(PlaneNest):
    """Loads of lines that lanes share among their columns."""

    def __init__(self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule) -> None:
        assert not is_paired(body), "columns that are paired are no window's"
        self.lane = schedule.int("lane_columns")
        self.lanes = ir.Axis(N.name, FIRST, N.mask, f"{N.block} // {self.lane}", N.size)
        self.lines = {load: line for line in lines_of(body, self.lane) for _, load in line.taps}
        self.known: dict[ir.Expr, ir.Name] = {}
        """The names of what does not change with the rows, by what they stand for."""
        super().__init__(spec, body, form, schedule)
        (self.axis,) = body.layout.columns.axes if body.layout.columns else (0,)
        self.used = used = {*RESERVED, *body.names.of.values(), *self.shared.values()}
        used |= {name.text for name in (*self.bases.values(), *self.places.named.values())}
        used |= {t.name for t in (*spec.inputs, *spec.outputs)} | {g.index for g in body.layout.rows}
        first = [self.access[line.taps[0][1]] for line in dict.fromkeys(self.lines.values())]
        self.starts = {key: unique(f"{key[0].tensor}_at", used) for key in dict.fromkeys(map(self.core, first))}
        tensors = dict.fromkeys(a.tensor for a in first)
        lettered = {tensor: [f"{tensor}_{letters}" for letters in _letters()] for tensor in tensors}
        self.elements = {tensor: [n for n in names if n not in used] for tensor, names in lettered.items()}
        used |= {name for names in lettered.values() for name in names}
        self.blocks = {
            (tensor, n): unique(f"{tensor}_{block}", used) for tensor in tensors for n, block in BLOCKS.items()
        }

    # Where a program is

    def tile_of(self) -> Tile:
        return LaneTile(self.rows, self.lanes, _of_numbers(self.lane))

    @property
    def of_lanes(self) -> ir.Shape:
        """The axes of what every lane has one of."""
        return (self.rows, self.lanes)

    def index(self, name: str) -> ir.Name:
        if name == COLS:
            return ir.Name(name, self.tile.shape[1:])
        return ir.Name(name, (self.lanes,)) if name in self.of_firsts() else super().index(name)

    def of_firsts(self) -> set[str]:
        """The variables that count the first columns of lanes."""
        return {FIRST, *(name.text for name in self.known.values() if name.shape == (self.lanes,))}

    def column_numbers(self) -> tuple[ir.Let, ...]:
        said = f"a lane has {self.lane} adjacent columns: elements that they share are loaded once"
        lanes, columns = (self.lanes,), self.tile.shape[1:]
        steps = ir.Apply("mul", (ir.Number(self.lane), ir.Range(self.lanes, ir.Number(0))), lanes)
        start = ir.Apply("mul", (ir.Name("pid_n"), ir.Name(N.block)), ())
        own = ir.Range(columns[1], ir.Number(0))
        return (
            ir.Let((FIRST,), ir.Apply("add", (start, steps), lanes), said),
            ir.Let((COLS,), ir.Apply("add", (ir.Name(FIRST, lanes), own), columns)),
            ir.Let((N.mask,), ir.Apply("lt", (ir.Name(COLS, columns), ir.Name(N.size)), columns)),
        )

    def masks(self, asked: Sequence[Condition] = ()) -> tuple[ir.Let, ...]:
        exist, inside = super().masks(asked)
        among = ir.Apply("lt", (ir.Name(FIRST, (self.lanes,)), ir.Name(N.size)), (self.lanes,))
        mask = ir.Apply("and", (ir.Name(self.rows.mask, (self.rows,)), among), self.of_lanes)
        return exist, ir.Let((LANE_MASK,), mask), inside

    def inside(self) -> ir.Let:
        masks = ir.Name(self.rows.mask, (self.rows,)), ir.Name(N.mask, self.tile.shape[1:])
        return ir.Let(("mask",), ir.Apply("and", masks, self.tile.shape))

    def once(self) -> tuple[ir.Let, ...]:
        """The numbers of a block's elements, and their places."""
        return tuple(ir.Let((name.text,), made) for made, name in self.known.items())

    # What is read

    def is_shared(self, load: int) -> bool:
        return load not in self.lines and super().is_shared(load)

    def read_together(self, i: int) -> tuple[ir.Let, ...] | None:
        line = self.lines.get(i)
        if line is None:
            return super().read_together(i)
        key = f"line of {line.taps[0][1]}"
        if key in self.made:
            return ()
        self.made.add(key)
        return tuple(self._read(line))

    def _read(self, line: Line) -> Iterator[ir.Let]:
        """The elements that the columns of a lane need, then those of every place of the window."""
        access = self.access[line.taps[0][1]]
        start = self.starts[self.core(access)]
        if start not in self.made:
            self.made.add(start)
            yield ir.Let((start,), self._start(access, line))
        at = ir.Name(start, self.of_lanes)
        names = dict(zip(line.elements(self.lane), self.elements[access.tensor], strict=False))
        whole = {}
        for block, elements in line.blocks(self.lane).items():
            if len(elements) == 1:
                yield self._single(line, at, elements[0], names[elements[0]])
                continue
            loaded, split = self._block(line, at, block, names)
            whole[line.step * self.lane * block] = loaded.names[0]
            yield from (loaded, split)
        for tap, load in line.taps:
            if line.step > 1 or whole.get(tap) != self.body.names.of[load]:
                parts = tuple(ir.Name(names[line.step * i + tap], self.of_lanes) for i in range(self.lane))
                yield ir.Let((self.body.names.of[load],), ir.Join(parts, self.tile.shape))

    def _start(self, access: Access, line: Line) -> ir.Pointer:
        """A pointer to what the window of a lane's first column is counted from."""
        first = self._first(line).text
        terms = self.core(access)[0].terms
        terms = tuple((first if self._is_along_columns(index) else index, stride) for index, stride in terms)
        with self._of_firsts(line):
            return self.within_plane(replace(access, terms=terms), self.of_lanes)

    def _is_along_columns(self, index: str | Expr) -> bool:
        return index in self.of_firsts() or super()._is_along_columns(index)

    def _first(self, line: Line) -> ir.Name:
        """What the window of a lane's first column is counted from."""
        first = ir.Name(FIRST, (self.lanes,))
        return first if line.step == 1 else self._named(_of("mul", first, ir.Number(line.step)), "starts")

    @contextmanager
    def _of_firsts(self, line: Line) -> Iterator[None]:
        """What is written within is of the first columns of lanes."""
        places, first = self.places, self._first(line)
        saved = places.tile, places.variables, places.named
        named = {e: name for e, name in places.named.items() if self.place_level(e) != COLUMN}
        named |= {ix.times(ix.axis(self.axis), ix.number(line.step)): first} if line.step > 1 else {}
        of_axis = {self.axis: ir.Name(FIRST, (self.lanes,))}
        places.tile, places.variables, places.named = self.of_lanes, {**places.variables, **of_axis}, named
        yield
        places.tile, places.variables, places.named = saved

    def _at(self, access: Access, start: ir.Name, element: ir.Expr, shape: ir.Shape) -> ir.Pointer:
        """A place away from a start, in the row of a line and by an element along the columns."""
        terms = [
            shift for i, stride in access.terms if not self._is_along_columns(i) for shift in self.shifts(i, stride)
        ]
        (stride,) = (stride for i, stride in access.terms if self._is_along_columns(i))
        terms += [] if element == ir.Number(0) else [(element, stride)]
        return ir.Pointer(access.tensor, tuple(terms), shape, start)

    def _single(self, line: Line, start: ir.Name, element: int, name: str) -> ir.Let:
        load = line.taps[0][1]
        with self._of_firsts(line):
            place = ix.plus(ix.times(ix.axis(self.axis), ix.number(line.step)), ix.number(element))
            asked = [Condition(place, op, right) for op, right in sorted(line.asked, key=str)]
            wanted = [c for c in asked if not known(c, self.body.lowered.space.axes)]
            aside = tuple(self.places.condition(c) for c in line.aside)
            inside = [self.places.condition(c) for c in wanted]
            if element > line.taps[-1][0] and "<" not in dict(line.asked):  # of columns that a row may not have
                inside.append(_of("lt", self.places.place(place), _end(line)))
        if inside:
            aside = (*aside, self._named(_every(inside), f"{name}_mask"))
        at = self._at(self.access[load], start, ir.Number(element), self.of_lanes)
        return ir.Let((name,), self._loaded(load, at, ir.Name(LANE_MASK, self.of_lanes), aside))

    def _block(self, line: Line, start: ir.Name, block: int, names: dict[int, str]) -> tuple[ir.Let, ir.Let]:
        """The load of a block of elements, and what takes it apart."""
        load, length = line.taps[0][1], line.step * self.lane
        access, offset, axis = self.access[load], block * length, _of_numbers(length)
        numbers = self.known[ir.Range(axis, ir.Number(0))] = ir.Name(axis.index, (axis,))
        own = [of for tap, of in line.taps if line.step == 1 and tap == offset]
        name = self.body.names.of[own[0]] if own else self.blocks[access.tensor, length]
        whole = ir.Name(name, (*self.of_lanes, axis))
        at = self._at(access, start, _away(numbers, offset), whole.shape)
        mask, within = self._mask(line, block, numbers)
        parts = tuple(names.get(offset + i, "_") for i in range(length))
        return ir.Let((name,), self._loaded(load, at, mask, within)), ir.Let(parts, ir.Split(whole))

    def _mask(self, line: Line, block: int, numbers: ir.Name) -> tuple[ir.Name, tuple[ir.Expr, ...]]:
        """Where the elements of a block are read."""
        places, offset = self.places, block * line.step * self.lane
        aside = tuple(places.condition(c) for c in line.aside)
        if line.step == 1 and not offset and self._reads_within_columns(line):
            place = ix.axis(self.axis)
            asked = [Condition(place, op, right) for op, right in sorted(line.asked, key=str)]
            wanted = [c for c in asked if not known(c, self.body.lowered.space.axes)]
            return ir.Name("mask", self.tile.shape), (*aside, *map(places.condition, wanted))
        read = self._places(line, offset, numbers)
        sides = {op: places.place(right) for op, right in sorted(line.asked, key=str)}
        if "<" not in sides:  # every column's window lies inside
            sides["<"] = _end(line)
        if offset >= 0 and sides.get(">=") == ir.Number(0):
            del sides[">="]
        inside = [_of({">=": "ge", "<": "lt"}[op], read, side) for op, side in sorted(sides.items(), reverse=True)]
        rows = ir.Name(self.rows.mask, (self.rows,))
        return rows, (*aside, self._named(_every(inside), f"{numbers.text}_mask"))

    def _reads_within_columns(self, line: Line) -> bool:
        """Whether nothing is read at places beyond the columns that a row has."""
        beyond = [right for op, right in line.asked if op == "<"]
        axes = self.body.lowered.space.axes
        return line.taps[-1][0] <= 0 or any(covers(axes[self.axis], right) for right in beyond)

    def _places(self, line: Line, offset: int, numbers: ir.Name) -> ir.Expr:
        """The places of a block's elements."""
        places = self.index(COLS)
        if line.step > 1:
            shape = (self.lanes, *numbers.shape)
            places = self._named(ir.Apply("add", (self._first(line), numbers), shape), f"{numbers.text}s")
        return self._named(_away(places, offset), f"{numbers.text}s") if offset else places

    def _named(self, made: ir.Expr, wanted: str) -> ir.Name:
        """The name of what does not change with the rows."""
        if made not in self.known:
            self.known[made] = ir.Name(unique(wanted, self.used), made.shape)
        return self.known[made]

    def _loaded(self, load: int, at: ir.Pointer, mask: ir.Name, within: tuple[ir.Expr, ...]) -> ir.Expr:
        return self.widened(load, ir.Load(at, mask, None, self.policy(load), within, self.fill(load)))


def _of_numbers(length: int) -> ir.Axis:
    """The elements of a block, or the columns of a lane."""
    return ir.Axis(N.name, BLOCKS[length], "", str(length), "")


def _of(op: str, left: ir.Expr, right: ir.Expr) -> ir.Apply:
    """An operation with a number."""
    return ir.Apply(op, (left, right), left.shape)


def _away(number: ir.Expr, offset: int) -> ir.Expr:
    return _of("sub" if offset < 0 else "add", number, ir.Number(abs(offset))) if offset else number


def _every(conditions: Sequence[ir.Expr]) -> ir.Expr:
    """All of some conditions of the same elements."""
    found = conditions[0]
    for condition in conditions[1:]:
        found = ir.Apply("and", (found, condition), found.shape)
    return found


def _end(line: Line) -> ir.Expr:
    """Where the window of a row's last column ends."""
    more, last = line.taps[-1][0] + 1 - line.step, ir.Name(N.size)
    return _away(last if line.step == 1 else _of("mul", ir.Number(line.step), last), more)

"""Several neighbouring columns a lane: what their windows share of a line is read once.

A tile then has three dimensions, [rows, lanes, columns of a lane]. The columns of a lane need a run of neighbouring
elements of a line. It is read in blocks, each in one access, and element by element where only one of a block is
needed; what one place of the window reads of every column is put together from these in registers.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kernelgen.families import planes
from kernelgen.families.access import Access
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.families.line import call
from kernelgen.families.naming import COLUMN, FULL, RESERVED, SCALAR, level, unique
from kernelgen.families.pairs import is_paired
from kernelgen.families.planes import PlaneLines
from kernelgen.families.ranges import covers, known
from kernelgen.families.rolling import asked_of, dim_of, place_of, step_of
from kernelgen.families.triton_text import COMPARE, number
from kernelgen.families.values import Index, axes_of
from kernelgen.families.writing import Mode
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

LONGEST_BLOCK = 8
"""Elements of a block: 16 bytes of half precision, the widest access of a thread."""
MOST_ELEMENTS = 32
"""Of a line, for a lane; each takes a register."""
FIRST = "first"
"""The kernel variable that holds the first column of every lane."""
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


def _end(line: Line) -> str:
    """Where the window of a row's last column ends."""
    more = line.taps[-1][0] + 1 - line.step
    last = "N" if line.step == 1 else f"{line.step} * N"
    return last if not more else f"{last} {'+' if more > 0 else '-'} {abs(more)}"


def _letters() -> list[str]:
    """What elements are called: a to z, then aa to az; some of them may stand for places."""
    letters = string.ascii_lowercase
    return [*letters, *(f"a{letter}" for letter in letters)]


class LaneLines(PlaneLines):
    """Loads of lines that lanes share among their columns."""

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, helpers: dict[str, None]
    ) -> None:
        assert not is_paired(body), "columns that are paired are no window's"
        lane = schedule.int("lane_columns")
        self.lane, self.helpers = lane, helpers
        self.lines = {load: line for line in lines_of(body, lane) for _, load in line.taps}
        super().__init__(spec, body, form, schedule, helpers)
        (self.axis,) = body.layout.columns.axes if body.layout.columns else (0,)
        self.once: dict[str, str] = {}
        """The names of what does not change with the rows, by what they stand for."""
        self.used = used = {*RESERVED, *body.names.of.values(), *self.shared.values(), *self.bases.values()}
        used |= {t.name for t in (*spec.inputs, *spec.outputs)} | {g.index for g in body.layout.rows}
        used |= set(self.index_text.named.values())
        first = [self.access[line.taps[0][1]] for line in dict.fromkeys(self.lines.values())]
        self.starts = {key: unique(f"{key[0].tensor}_at", used) for key in dict.fromkeys(map(self.core, first))}
        tensors = dict.fromkeys(a.tensor for a in first)
        lettered = {tensor: [f"{tensor}_{letters}" for letters in _letters()] for tensor in tensors}
        self.elements = {tensor: [n for n in names if n not in used] for tensor, names in lettered.items()}
        used |= {name for names in lettered.values() for name in names}
        self.blocks = {
            (tensor, n): unique(f"{tensor}_{block}", used) for tensor in tensors for n, block in BLOCKS.items()
        }
        self.index_text.dims = 3
        self.writer.mode = Mode(True, 1, 3)

    def is_shared(self, load: int) -> bool:
        return load not in self.lines and super().is_shared(load)

    def load(self, i: int, other: float) -> str:
        line = self.lines.get(i)
        if line is None:
            return super().load(i, other)
        key = f"line of {line.taps[0][1]}"
        if key in self.made:
            return ""
        self.made.add(key)
        return "\n".join(self._read(line))

    def _read(self, line: Line) -> list[str]:
        """The elements that the columns of a lane need, then those of every place of the window."""
        access = self.access[line.taps[0][1]]
        start = self.starts[self.core(access)]
        text = []
        if start not in self.made:
            self.made.add(start)
            text.append(f"{start} = {self._start(access, line)}")
        names = dict(zip(line.elements(self.lane), self.elements[access.tensor], strict=False))
        whole = {}
        for block, elements in line.blocks(self.lane).items():
            if len(elements) == 1:
                text.append(self._single(line, start, elements[0], names[elements[0]]))
                continue
            name, lines = self._block(line, start, block, names)
            whole[line.step * self.lane * block] = name
            text += lines
        for tap, load in line.taps:
            if line.step > 1 or whole.get(tap) != self.body.names.of[load]:
                parts = [names[line.step * i + tap] for i in range(self.lane)]
                text.append(f"{self.body.names.of[load]} = {self._joined(parts)}")
        return text

    def _start(self, access: Access, line: Line) -> str:
        """A pointer to what the window of a lane's first column is counted from."""
        first = self._first(line)
        terms = self.core(access)[0].terms
        terms = tuple((first if self._along_columns(index) else index, stride) for index, stride in terms)
        with self._of_firsts(line):
            return self.within_plane(replace(access, terms=terms), FULL)

    def _along_columns(self, index: str | Expr) -> bool:
        return index in (FIRST, *self.once.values()) or super()._along_columns(index)

    def _first(self, line: Line) -> str:
        """The name of what the window of a lane's first column is counted from."""
        return FIRST if line.step == 1 else self._named(f"{FIRST} * {line.step}", "starts")

    @contextmanager
    def _of_firsts(self, line: Line) -> Iterator[None]:
        """What is written within is of two dimensions, of the first columns of lanes."""
        text, mode = self.index_text, self.writer.mode
        saved = text.dims, text.variables, text.named
        named = {e: name for e, name in text.named.items() if text.level(e) != COLUMN}
        named |= {ix.times(ix.axis(self.axis), ix.number(line.step)): self._first(line)} if line.step > 1 else {}
        text.dims, text.variables, text.named = 2, {**text.variables, self.axis: (FIRST, COLUMN)}, named
        self.writer.mode = Mode(True, 1)
        yield
        text.dims, text.variables, text.named = saved
        self.writer.mode = mode

    def _shift(self, access: Access, element: str) -> str:
        """What is added to a start for the row of a line and an element along the columns."""
        rows = "".join(self.shifts(i, stride) for i, stride in access.terms if not self._along_columns(i))
        (stride,) = (stride for i, stride in access.terms if self._along_columns(i))
        sign, amount = ("-", element[1:]) if element.startswith("-") else ("+", element)
        if amount == "0":
            return rows
        along = amount if stride is None else stride if amount == "1" else f"{amount} * {stride}"
        return f"{rows} {sign} {along}"

    def _single(self, line: Line, start: str, element: int, name: str) -> str:
        load = line.taps[0][1]
        with self._of_firsts(line):
            place = ix.plus(ix.times(ix.axis(self.axis), ix.number(line.step)), ix.number(element))
            asked = [Condition(place, op, right) for op, right in sorted(line.asked, key=str)]
            wanted = [c for c in asked if not known(c, self.body.lowered.space.axes)]
            mask = str(self.index_text.mask("lane_mask", line.aside, FULL))
            inside = " & ".join(self.index_text.condition(c, FULL) for c in wanted)
            if element > line.taps[-1][0] and "<" not in dict(line.asked):  # of columns that a row may not have
                within = self.index_text.text(place, COLUMN).within(COMPARE + 1)
                inside = " & ".join([*([inside] if inside else []), f"({within} < {_end(line)})[None, :]"])
        mask += f" & {self._named(inside, f'{name}_mask')}" if inside else ""
        return self._loaded(load, name, start + self._shift(self.access[load], str(element)), mask)

    def _block(self, line: Line, start: str, block: int, names: dict[int, str]) -> tuple[str, list[str]]:
        """The load of a block of elements, and what takes it apart; the name of the block, first."""
        load, length = line.taps[0][1], line.step * self.lane
        access, numbers, offset = self.access[load], BLOCKS[length], block * length
        self.once[f"tl.arange(0, {length})"] = numbers
        own = [of for tap, of in line.taps if line.step == 1 and tap == offset]
        name = self.body.names.of[own[0]] if own else self.blocks[access.tensor, length]
        along = numbers if not offset else f"({numbers} {'-' if offset < 0 else '+'} {abs(offset)})"
        at = f"{start}[:, :, None]{self._shift(access, along)}"
        parts = [names.get(offset + i, "_") for i in range(length)]
        loaded = self._loaded(load, name, at, self._mask(line, block, numbers))
        return name, [loaded, f"{', '.join(parts)} = {self._split(name, length)}"]

    def _mask(self, line: Line, block: int, numbers: str) -> str:
        """Where the elements of a block are read."""
        text, offset = self.index_text, block * line.step * self.lane
        aside = tuple(line.aside)
        if line.step == 1 and not offset and self._reads_within_columns(line):
            place = ix.axis(self.axis)
            asked = [Condition(place, op, right) for op, right in sorted(line.asked, key=str)]
            wanted = [c for c in asked if not known(c, self.body.lowered.space.axes)]
            return str(text.mask("mask", (*aside, *wanted), FULL))
        places = self._places(line, offset, numbers)
        sides = {op: text.text(right, SCALAR).within(COMPARE + 1) for op, right in sorted(line.asked, key=str)}
        if "<" not in sides:  # every column's window lies inside
            sides["<"] = _end(line)
        if offset >= 0 and sides.get(">=") == "0":
            del sides[">="]
        inside = " & ".join(f"({places} {op} {side})" for op, side in sorted(sides.items(), reverse=True))
        inside = f"({inside})" if len(sides) > 1 else inside
        within = self._named(f"{inside}[None, :, :]", f"{numbers}_mask")
        return f"{text.mask('row_mask[:, None, None]', aside, FULL)} & {within}"

    def _reads_within_columns(self, line: Line) -> bool:
        """Whether nothing is read at places beyond the columns that a row has."""
        beyond = [right for op, right in line.asked if op == "<"]
        axes = self.body.lowered.space.axes
        return line.taps[-1][0] <= 0 or any(covers(axes[self.axis], right) for right in beyond)

    def _places(self, line: Line, offset: int, numbers: str) -> str:
        """The name of the places of a block's elements."""
        made = f"{self._first(line)}[:, None] + {numbers}[None, :]"
        places = "cols" if line.step == 1 else self._named(made, f"{numbers}s")
        return self._named(f"{places} {'-' if offset < 0 else '+'} {abs(offset)}", f"{numbers}s") if offset else places

    def _named(self, text: str, wanted: str) -> str:
        """The name of what does not change with the rows."""
        if text not in self.once:
            self.once[text] = unique(wanted, self.used)
        return self.once[text]

    def _loaded(self, load: int, name: str, at: str, mask: str) -> str:
        fill = self.body.lowered.values[load].fill
        other = [] if fill is None else [f"other={number(fill).text}"]
        return call(name, "tl.load", [at, f"mask={mask}", *other, *self.policy(load, FULL)], self.widened(load))

    def _split(self, name: str, length: int) -> str:
        if length == 2:
            return f"tl.split({name})"
        self.helpers.update(dict.fromkeys(f"split_{n}" for n in BLOCKS if 2 < n <= length))
        return f"_split_{length}({name})"

    def _joined(self, parts: list[str]) -> str:
        if len(parts) == 2:
            return f"tl.join({', '.join(parts)})"
        self.helpers.update(dict.fromkeys(f"join_{n}" for n in BLOCKS if 2 < n <= len(parts)))
        return f"_join_{len(parts)}({', '.join(parts)})"

    def once_lines(self) -> list[str]:
        """What does not change with the rows: the numbers of a block's elements, and their places."""
        return [f"{name} = {text}" for text, name in self.once.items()]

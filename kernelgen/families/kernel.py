"""The text of one kernel, variant by variant: what a template prints, already decided."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from kernelgen.families.access import COLS, ROWS, Access, Layout, output_groups
from kernelgen.families.forms import Form
from kernelgen.families.index_text import IndexText, taken_apart
from kernelgen.families.line import call
from kernelgen.families.naming import COLUMN, FULL, RESERVED, ROW, SCALAR, Names, mentions, name_values, spread
from kernelgen.families.padding import choose_others, nan_safe
from kernelgen.families.triton_text import PRODUCT, is_scaled, number
from kernelgen.families.values import REVERSE, Lowered, Stored, only_moves
from kernelgen.families.writing import Mode, Writer
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import SCANS, Statement
from kernelgen.frontend.indices import Expr
from kernelgen.plan import LoweredPlan, Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import used_names

LOADS = Parameter(
    "loads", ("default", "evict_first", "evict_last"), "memory_access", "structure",
    "how the caches treat what is read once",
)  # fmt: skip
STORES = Parameter(
    "stores", ("default", "streaming"), "memory_access", "structure", "how the caches treat what is written"
)


@dataclass(frozen=True)
class Body:
    """An operator in the form its family's template takes: values, their names, and where inputs are read."""

    lowered: Lowered
    statements: tuple[Statement, ...]
    layout: Layout
    names: Names
    others: tuple[tuple[int, float], ...]
    keeps_nan: frozenset[int]
    exact: bool
    """Moves elements without arithmetic, so results are bit-identical and nothing is converted."""
    any_order: bool = False
    """Floats are added by atomics, in whatever order these come."""
    of_rows: bool = False
    """Whether its elements are what the rows of another kernel left."""
    starts_itself: bool = False
    """The programs of a scatter give its result what is added to, which the wrapper does otherwise."""

    def columns(self) -> frozenset[int]:
        return frozenset(self.layout.columns.axes if self.layout.columns else range(len(self.lowered.space.axes)))


def has_products(body: Body) -> bool:
    """Whether a body has running products of floats."""
    return any(is_scaled(v.op, v.dtype) for v in body.lowered.values)


def body_of(plan: LoweredPlan) -> Body:
    """What the kernels of a plan are printed from; of several steps, the one that is tuned."""
    body = plan.main.body
    assert isinstance(body, Body)
    return body


@dataclass(frozen=True)
class Loop:
    """One walk over a row in blocks."""

    comment: tuple[str, ...]
    before: tuple[str, ...]
    inside: tuple[str, ...]
    after: tuple[str, ...]
    backwards: bool = False
    when: str = ""
    """The condition of a walk that few rows need."""


@dataclass(frozen=True)
class Scratch:
    """A number for every part of every row, of torch's `dtype`, which one kernel leaves for the next."""

    name: str
    dtype: str
    shape: str = ""
    """The wrapper's expression for its shape, where it is no number for every part of every row."""
    zeros: bool = False
    """Whether it is zero when the kernel begins."""


@dataclass(frozen=True)
class Passed:
    """A keyword argument of a launch."""

    name: str
    value: str | None = None
    """A number or the wrapper's expression; None: what the table's line says, be it passed alone or with all others."""


WARPS = Passed("num_warps")
"""For a launch that is not passed all that the table says."""


@dataclass(frozen=True)
class KernelText:
    """One kernel: its signature and the lines of its parts, without indentation."""

    name: str
    form: Form
    schedule: Schedule
    """A schedule of this flavour; only its structure matters here."""
    arguments: tuple[str, ...]
    """Pointers, sizes and strides, in order."""
    constexprs: tuple[str, ...]
    once: tuple[str, ...] = ()
    """Before the tile or the loops: what does not change from one to the next."""
    lines: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()
    wide_strides: tuple[str, ...] = ()
    """The strides of columns, which are widened to int64: column times stride may pass 2**31."""
    grid: str = ""
    """The wrapper's expression for the grid, where the form does not say it."""
    passed: tuple[Passed, ...] = ()
    """Keyword arguments of the launch beside the constexprs that the table has."""
    once_a_row: tuple[str, ...] = ()
    """What only the first of the programs that share a row does."""
    sizes: tuple[tuple[str, str], ...] = ()
    """Numbers that its scratch memory and the launches need, with the wrapper's expressions for them."""
    scratch: tuple[Scratch, ...] = ()
    """What it leaves for the kernel that is launched after it."""
    unaligned: tuple[str, ...] = ()
    """The pointers of which Triton does not ask whether 16 divides them."""
    named_sizes: tuple[tuple[str, str], ...] = ()
    """The size names that it mentions and others need not, each with its parameter."""
    fits: str = ""
    """The wrapper's condition for launching it; where that does not hold, the next kernel is launched instead."""
    body: tuple[ir.Stmt, ...] = ()
    """All that it does, where it is in the IR."""
    between: str = ""
    """The size of what a row has side by side in memory, where the next row follows before the rest of its columns."""

    @property
    def variant(self) -> str:
        """The macro that prints it."""
        return self.form.name

    def launch_grid(self) -> str:
        """The wrapper's expression for its grid."""
        return self.grid or self.form.grid(self.schedule, self.uses("row"))

    def uses(self, name: str) -> bool:
        """Whether its statements mention a name, or its lines, their comments aside."""
        if self.body:
            return name in used_names(self.body)
        loops = [line for loop in self.loops for line in (*loop.before, *loop.inside, *loop.after)]
        lines = (*self.once, *self.lines, *loops, *self.once_a_row)
        return mentions("\n".join(line.partition("#")[0] for line in lines), name)


def make_body(
    spec: OperatorSpec,
    lowered: Lowered,
    statements: tuple[Statement, ...],
    layout: Layout,
    fixed: frozenset[int] = frozenset(),
    reserved: Set[str] = RESERVED,
) -> Body:
    """`fixed`: axes along which a program does not move, so that what varies along them alone is scalar. `reserved`:
    what the kernels call values of their own."""
    columns = frozenset(layout.columns.axes if layout.columns else range(len(lowered.space.axes)))
    taken = {f"{t.name}_ptr" for t in (*spec.inputs, *spec.outputs)} | {spec.name, f"{spec.name}_kernel", "reference"}
    taken |= {g.size for g in layout.rows} | {g.index for g in layout.rows}
    taken |= {stride for access in layout.all() for stride, _ in access.strides}
    names = name_values(lowered, statements, columns, taken, fixed, reserved)
    others = choose_others(lowered, names.levels) if lowered.space.inner_axes() else {}
    exact = only_moves(lowered)
    return Body(lowered, statements, layout, names, tuple(sorted(others.items())), nan_safe(lowered), exact)


class Lines:
    """Writes loads and stores of one kernel, and hands out the writer of its arithmetic."""

    index_type = IndexText

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, helpers: dict[str, None]
    ) -> None:
        self.spec = spec
        self.body = body
        self.form = form
        self.schedule = schedule
        self.two_d = form.two_d
        self.several = form.several
        self.access = {a.load: a for a in body.layout.accesses}
        self.moved = dict(body.layout.stores)
        self.policies: dict[int, str] = {}
        self.index_text = self.index_type(body.lowered, body.names, body.layout, two_d=self.two_d)
        self.writer = Writer(
            body.lowered, body.names, Mode(self.two_d, 1 if self.two_d else 0), body.statements,
            self.load, dict(body.others), helpers, body.keeps_nan, index_text=self.index_text,
        )  # fmt: skip
        scans = [v for v in body.lowered.values if v.op in SCANS]
        turned = {v.attr for v in scans} == {REVERSE} and not any(is_scaled(v.op, v.dtype) for v in scans)
        self.writer.turned = turned and form.turns

    def level(self, i: int) -> str:
        return self.body.names.levels[i]

    def offset(self, access: Access, level: str) -> str:
        """The offset of a load or store, in elements."""
        parts = []
        for index, stride in access.terms:
            if index == ix.number(0):
                continue
            if isinstance(index, Expr):
                place = self.index_text.text(index, level)
                whole = place.text if stride is None else f"{place.within(PRODUCT)} * {stride}"
                parts.append(stride if stride is not None and place.text == "1" else whole)
                continue
            if self.two_d and level == FULL:
                variable = index + self.broadcast(index)
            else:
                variable = "row" if index == ROWS and not self.several else index
            parts.append(variable if stride is None else f"{variable} * {stride}")
        return " + ".join(parts)

    def broadcast(self, index: str) -> str:
        """What makes an index one of a tile's elements."""
        return spread(COLUMN if self._along_columns(index) else ROW)

    def pointer(self, access: Access, level: str) -> str:
        """Where a load reads."""
        offset = self.offset(access, level)
        return f"{access.tensor}_ptr + {offset}" if offset else f"{access.tensor}_ptr"

    def mask(self, level: str) -> str | None:
        if self.form.is_run:
            return "mask" if level != SCALAR else None
        if level in (FULL, COLUMN):
            return "col_mask" if level == COLUMN and self.two_d else "mask"
        return "row_mask" if level == ROW and self.two_d else None

    def load(self, i: int, other: float) -> str:
        access, level = self.access[i], self.level(i)
        value = self.body.lowered.values[i]
        mask = self.index_text.mask(self.mask(level), value.conditions, level)
        pointer = self.pointer(access, level if self.form.has_rows else FULL)
        args = [self.spread_pointer(pointer, access, level) if value.conditions else pointer]
        if mask:
            args.append(f"mask={mask}")
            if value.fill is not None:
                args.append(f"other={number(value.fill).text}")
            elif self.body.lowered.space.inner_axes() and level in (FULL, COLUMN):
                args.append(f"other={number(other).text}" if value.dtype == "float" else "other=0")
        return call(self.body.names.of[i], "tl.load", [*args, *self.policy(i, level)], self.widened(i))

    def spread_pointer(self, pointer: str, access: Access, level: str) -> str:
        """A pointer in the shape of a mask that asks for conditions, along which it may not move itself."""
        moving = {self._term_level(index) for index, _ in access.terms} - {SCALAR}
        shape = self.mask(level)
        if shape is None or FULL in moving or moving >= {ROW, COLUMN} or moving == {level}:
            return pointer
        return pointer if moving and not self.two_d else f"tl.broadcast_to({pointer}, {shape}.shape)"

    def _term_level(self, index: str | Expr) -> str:
        if isinstance(index, Expr):
            return self.index_text.level(index)
        return COLUMN if self._along_columns(index) else ROW if self.several and self.broadcast(index) else SCALAR

    def policy(self, i: int, level: str) -> list[str]:
        """How the caches treat what a load reads."""
        every = len(self.body.lowered.values[i].axes) == len(self.body.lowered.space.axes)
        streamed = level == FULL if self.body.layout.rows else every
        policy = self.policies.get(i) or (self.schedule.get("loads") if streamed else None)
        return [f'eviction_policy="{policy}"'] if policy and policy != "default" else []

    def widened(self, i: int) -> str:
        """What makes a float32 of what a load reads."""
        value = self.body.lowered.values[i]
        tensor = next(t for t in self.spec.inputs if t.name == value.tensor)
        widen = value.dtype == "float" and not self.body.exact and tensor.dtype != "float32"
        return ".to(tl.float32)" if widen else ""

    def store(self, stored: Stored) -> str:
        level = FULL if output_groups(stored, self.body.layout.columns) else ROW
        if self.form.is_run and not (self.form.has_rows and stored in self.moved):
            offset = "offsets"
        elif stored in self.moved:
            offset = "" if self.body.layout.rows else "rows[:, None] * N + "
            offset += self.offset(self.moved[stored], FULL)
        elif self.two_d:
            offset = f"rows{self.broadcast(ROWS)} * N + cols{self.broadcast(COLS)}" if level == FULL else "rows"
        elif self.body.layout.rows:
            offset = "row * N + cols" if level == FULL else "row"
        else:
            offset = "cols" if level == FULL else ""
        value = self.stored_value(stored, level)
        args = [f"{stored.name}_ptr + {offset}" if offset else f"{stored.name}_ptr", value]
        mask = self.mask(level)
        if mask:
            args.append(f"mask={mask}")
        return call("", "tl.store", [*args, *self.stored_as(level)])

    def stored_as(self, level: str) -> list[str]:
        """How the caches treat what a store writes."""
        return ['cache_modifier=".cs"'] if self.schedule.get("stores") == "streaming" and level == FULL else []

    def stored_value(self, stored: Stored, level: str) -> str:
        """The value of an output in the shape in which it is stored."""
        value = self.body.lowered.values[stored.value]
        own = self.level(stored.value)
        if value.op == "const":
            name = self.writer.operand(value.args[0], own).text
            return f"tl.full(mask.shape, {name}, {stored.name}_ptr.dtype.element_ty)"
        name = self.body.names.of.get(stored.value) or self.writer.operand(value.args[0], own).text
        if self.two_d and level == FULL and own != FULL:
            name += spread(own) if own != SCALAR else ""
            return f"tl.broadcast_to({name}, (BLOCK_SIZE_M, BLOCK_SIZE_N))"
        return name

    def stores(self) -> list[str]:
        return [self.store(stored) for stored in self.body.lowered.outputs]

    def row_indices(self, used: Sequence[str] | None = None) -> list[str]:
        """The indices of single row groups, taken from the row number from the innermost outwards.

        `used`: lines of a kernel that need not load everything; what they do not mention is left out.
        """
        groups, lines = self.body.layout.rows, []
        wanted = [g for g in self.body.layout.split if used is None or mentions("\n".join(used), g.index)]
        if not wanted:
            return []
        rest = "short_rows" if self.several else "short_row"
        # a single row's number is a program's, which never passes 2**31; M is int64 where it does
        made = "rows.to((tl.program_id(0) + M).dtype)" if self.several else "row.to(tl.int32)"
        typed = "in the dtype of M, int32 where that is enough" if self.several else "int32 where that is enough"
        lines += [f"# {typed}: it divides faster", f"{rest} = {made}"]
        for position in range(len(groups) - 1, -1, -1):
            if groups[position] in wanted:
                lines.append(f"{groups[position].index} = ({taken_apart(groups, position, rest)}).to(tl.int64)")
        return lines

    def at_columns(self, lines: list[str]) -> list[str]:
        """Lines behind the indices of those parts of the columns that they mention."""
        parts, text = self.body.layout.parts, "\n".join(lines)
        found = []
        for position, part in enumerate(parts):
            if mentions(text, part.index):
                found.append(f"{part.index} = {taken_apart(parts, position, 'cols')}")
        return [*found, *lines]

    def wide_strides(self) -> tuple[str, ...]:
        """The strides that columns are multiplied by; widening them leaves the columns themselves in int32."""
        terms = [term for a in self.body.layout.all() for term in a.terms]
        return tuple(dict.fromkeys(s for index, s in terms if self._along_columns(index) and s is not None))

    def _along_columns(self, index: str | Expr) -> bool:
        """Whether an index is one of columns, in int32."""
        if isinstance(index, Expr):
            return self.index_text.level(index) == COLUMN
        return index == COLS or index in {g.index for g in self.body.layout.parts}

    def arguments(self, *sizes: str) -> tuple[str, ...]:
        """Pointers, sizes, then strides. An input that is not read has no pointer."""
        read = {a.tensor for a in self.body.layout.accesses}
        pointers = [f"{t.name}_ptr" for t in self.spec.inputs if t.name in read]
        pointers += dict.fromkeys(f"{o.name}_ptr" for o in self.body.lowered.outputs)
        strides = dict.fromkeys(s for a in self.body.layout.all() for s, _ in a.strides)
        counted = [parameter for _, parameter in self.body.layout.sizes if parameter != "N"]  # which may be compiled in
        return (*pointers, *dict.fromkeys([*sizes, *self.divisors(), *counted]), *strides)

    def divisors(self) -> tuple[str, ...]:
        """The sizes that taking rows and columns apart divides by."""
        named = [g.index for a in self.body.layout.all() for g in self.body.layout.parts if g.index in dict(a.terms)]
        text = " ".join([*self.row_indices(), *self.at_columns(named)])
        groups = (*self.body.layout.rows, *self.body.layout.parts)
        return tuple(g.size for g in groups if g.size.isidentifier() and f" {g.size}" in text.replace("(", " "))


def at_levels(body: Body, levels: tuple[str, ...]) -> list[int]:
    """The loads at some levels, in the order of the inputs."""
    order = {a.load: i for i, a in enumerate(body.layout.accesses)}
    return sorted((a.load for a in body.layout.accesses if body.names.levels[a.load] in levels), key=order.__getitem__)


def output_values(body: Body) -> list[int]:
    return [o.value for o in body.lowered.outputs]

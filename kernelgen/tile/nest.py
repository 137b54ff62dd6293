"""Kernels over rows and columns: what they load and store, and their arguments.

A form says how the tiles of a kernel lie over rows and columns: which of them are axes of a tile, and which numbers of
the program. Values are written on these axes by the builder.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kernelgen.families.access import COLS, ROWS, Access, output_groups
from kernelgen.families.dtypes import typed
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body, passed
from kernelgen.families.naming import COLUMN, FULL, INFINITY, ROW, SCALAR
from kernelgen.families.padding import ancestors
from kernelgen.families.specialize import specialized
from kernelgen.families.values import REVERSE, Stored, Use, Value, axes_of, is_scaled
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import REDUCTIONS, SCANS
from kernelgen.frontend.indices import Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.builder import Builder
from kernelgen.tile.places import Places, products, read_places, taken_apart
from kernelgen.tile.walk import trimmed, used_names

RUN = ir.Axis("elements", "offsets", "mask", "BLOCK_SIZE", "n_elements")
M = ir.Axis("m", "rows", "row_mask", "BLOCK_SIZE_M", "M")
N = ir.Axis("n", "cols", "col_mask", "BLOCK_SIZE_N", "N")
LONE_N = ir.Axis("n", "cols", "mask", "BLOCK_SIZE_N", "N")
"""The columns of a program that has one row."""


@dataclass(frozen=True)
class Tile:
    """The axes of a form's tiles."""

    rows: ir.Axis | None
    """None: a program has one row, or knows none."""
    columns: ir.Axis

    @property
    def shape(self) -> ir.Shape:
        return (self.columns,) if self.rows in (None, self.columns) else (self.rows, self.columns)


def tile_of(form: Form) -> Tile:
    if form.is_run:
        return Tile(RUN, RUN)
    return Tile(M, N) if form.two_d else Tile(None, LONE_N)


class Nest:
    """Writes the loads and stores of one kernel, and hands out the builder of its arithmetic."""

    places_type = Places
    may_turn = True
    """Whether columns may be numbered from their end."""

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, tile: Tile | None = None
    ) -> None:
        """`tile`: instead of that of the form."""
        self.spec = spec
        self.body = body
        self.form = form
        self.schedule = schedule
        self.tile = tile or tile_of(form)
        self.access = {a.load: a for a in body.layout.accesses}
        self.moved = dict(body.layout.stores)
        self.policies: dict[int, str] = {}
        """How the caches treat what a load reads, where its schedule does not say."""
        self.filled: frozenset[int] = frozenset()
        """Loads of which something is looked at where the mask does not hold, as it has conditions of theirs."""
        self.memory: list[str] = []
        """What the kernels of a sequence leave for one another."""
        across = (*REDUCTIONS, *SCANS)
        sources = [a for v in body.lowered.values if v.op in across for a in v.args if isinstance(a, Use)]
        self.padded = self.sources_of(a.value for a in sources)
        """The values of which a reduction or a scan sees what lies beyond the end of a row."""
        self.columns = body.columns()
        axes = dict.fromkeys(self.columns, self.tile.columns)
        if self.tile.rows:
            axes |= dict.fromkeys(self.row_axes(), self.tile.rows)
        self.places = self.places_type(
            body.lowered, body.names, dict(body.layout.sizes), self._variables(), self.shape, self.shape_of_tile,
            run=body.lowered.space.axes if body.layout.columns is None else (),
        )  # fmt: skip
        if not body.lowered.space.inner_axes():
            self.places.name(self.read_places, lambda expr: self.place_level(expr) in (ROW, COLUMN))
        self.builder = Builder(
            body.lowered, body.names, body.statements, axes, self.load, dict(body.layout.sizes),
            others=dict(body.others), drops_nan=body.keeps_nan, places=self.places, mask=self.mask, by_rows=True,
            tile=self.tile.shape, is_turned=self.may_turn and form.turns and _is_turned(body),
        )  # fmt: skip

    @property
    def shape_of_tile(self) -> ir.Shape:
        return self.tile.shape

    def sources_of(self, values: Iterable[int]) -> frozenset[int]:
        """Values, and all that they are made of."""
        return frozenset().union(*(ancestors(self.body.lowered, i) for i in values))

    # Where elements are

    def row_axes(self) -> Collection[int]:
        """The axes of the space that rows run over."""
        return [a for a in range(len(self.body.lowered.space.axes)) if a not in self.columns]

    def read_places(self, value: Value) -> tuple[Expr, ...]:
        """The expressions that the statements of a value write out."""
        return read_places(value)

    def shape(self, i: int) -> ir.Shape:
        """Along which axes of the tile a value varies."""
        return self.builder.shape(i, self.tile.shape)

    def level(self, i: int) -> str:
        return self.body.names.levels[i]

    def _variables(self) -> dict[int, ir.Name]:
        """What counts along every axis of the space that stands alone."""
        layout = self.body.layout
        if layout.columns is None:  # one run of elements, whose only axis is the whole of it
            return {0: ir.Name(RUN.index, (RUN,))}
        rows = {g.axes[0]: self.index(g.index) for g in layout.rows if len(g.axes) == 1}
        return dict.fromkeys(layout.columns.axes, self.index(COLS)) | rows

    def index(self, name: str) -> ir.Name:
        """What counts along rows, columns, or a group of axes of either."""
        if name == "offsets":
            return ir.Name(name, (RUN,))
        if name == COLS or name in {g.index for g in self.body.layout.parts}:
            return ir.Name(name, (self.tile.columns,))
        if self.tile.rows is None:
            return ir.Name("row" if name == ROWS else name)
        return ir.Name(name, (self.tile.rows,))

    def place_level(self, expr: Expr) -> str:
        """Whether a place moves along rows, columns, both or neither."""
        found = {self._leaf_level(leaf) for leaf in ix.leaves(expr)} - {SCALAR}
        return FULL if len(found) > 1 else next(iter(found), SCALAR)

    def _leaf_level(self, leaf: Expr) -> str:
        if leaf.op == "axis":
            return COLUMN if leaf.number in self.columns else ROW if leaf.number in self.row_axes() else SCALAR
        return self.level(leaf.number) if leaf.op == "value" else SCALAR

    def mask(self, shape: ir.Shape) -> ir.Expr | None:
        """Which elements of a tile exist."""
        if not shape:
            return None
        return ir.Name("mask" if shape == self.tile.shape else shape[0].mask, shape)

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        terms = ((self._term(index), stride) for index, stride in access.terms if index != ix.number(0))
        return ir.Pointer(access.tensor, tuple(terms), shape)

    def _term(self, index: str | Expr) -> ir.Expr:
        return self.places.place(index) if isinstance(index, Expr) else self.index(index)

    # What is loaded and stored

    def load(self, i: int, shape: ir.Shape) -> ir.Expr:
        """A load as it is computed with: floats in float32."""
        access, value, other = self.access[i], self.body.lowered.values[i], self.beyond(i)
        within = tuple(self.places.condition(c) for c in value.conditions)
        counted = [e for e in value.index if isinstance(e, Expr) and self.place_level(e) == COLUMN]
        loaded = ir.Load(
            self.pointer(access, shape), self.mask(shape), other, self.policy(i), within,
            self.fill(i) if within or i in self.filled else None, steps=any(any(products(e)) for e in counted),
        )  # fmt: skip
        return self.widened(i, loaded)

    def beyond(self, i: int) -> float | int | None:
        """What a load has beyond the end of a row; None where nobody looks at it."""
        if i not in self.padded or self.level(i) not in (FULL, COLUMN):
            return None
        return dict(self.body.others).get(i, 0.0) if self.body.lowered.values[i].dtype == "float" else 0

    def fill(self, i: int) -> ir.Expr | float | int | bool | None:
        """What a load has where its conditions do not hold. Where sizes are compiled in, some of them hold nowhere: an
        infinity is then no constant, which a maximum of two halves of a word, each an element in float16, takes for the
        other infinity where the second half is none (ptxas 12.8 to 13.1)."""
        fill = self.body.lowered.values[i].fill
        if not (isinstance(fill, float) and math.isinf(fill) and self.schedule.get("specialize")) or self.body.exact:
            return fill
        infinity = ir.Name(INFINITY)
        return infinity if fill > 0 else ir.Apply("neg", (infinity,), ())

    def widened(self, i: int, loaded: ir.Expr) -> ir.Expr:
        """What is loaded in float32, if it is a float and computed with."""
        value = self.body.lowered.values[i]
        narrow = next(t for t in self.spec.inputs if t.name == value.tensor).dtype != "float32"
        widen = value.dtype == "float" and not self.body.exact and narrow
        return ir.Cast(loaded, "float32", is_tensor=True) if widen else loaded

    def policy(self, i: int) -> str:
        """How the caches treat what a load reads."""
        every = len(self.body.lowered.values[i].axes) == len(self.body.lowered.space.axes)
        streamed = self.level(i) == FULL if self.body.layout.rows else every
        policy = self.policies.get(i) or (self.schedule.get("loads") if streamed else None)
        return "" if policy in (None, "default") else str(policy)

    def lets(self, wanted: Iterable[int], *, late: bool = True) -> tuple[ir.Stmt, ...]:
        return self.builder.lets(wanted, self.tile.shape, late=late)

    def places_in(self, statements: Sequence[ir.Stmt]) -> tuple[ir.Let, ...]:
        """The places with names that statements mention."""
        used = used_names(tuple(statements))
        return tuple(let for let in self.places.lets() if let.names[0] in used)

    def stores(self, outputs: Sequence[Stored] | None = None) -> tuple[ir.Stmt, ...]:
        return tuple(self._store(o) for o in (self.body.lowered.outputs if outputs is None else outputs))

    def _store(self, stored: Stored) -> ir.Store:
        full = output_groups(stored, self.body.layout.columns)
        shape = self.tile.shape if full else self.tile.shape[:-1]
        rows, cols = (self.index(ROWS), "N"), (self.index(COLS), None)
        if stored in self.moved and not (self.form.is_run and not self.form.has_rows):
            pointer = self.pointer(self.moved[stored], shape)
            if not self.body.layout.rows and self.form.two_d:
                pointer = ir.Pointer(stored.name, (rows, *pointer.terms), shape)
        elif self.form.is_run:
            pointer = ir.Pointer(stored.name, ((self.index("offsets"), None),), shape)
        elif full:
            terms = (rows, cols) if self.body.layout.rows or self.form.two_d else (cols,)
            pointer = ir.Pointer(stored.name, terms, shape)
        else:
            one = self.form.two_d or self.body.layout.rows
            pointer = ir.Pointer(stored.name, ((rows[0], None),) if one else (), shape)
        streams = full and self.schedule.get("stores") == "streaming"
        return ir.Store(pointer, self.stored_value(stored, shape), self.mask(shape), streams)

    def stored_value(self, stored: Stored, shape: ir.Shape) -> ir.Expr:
        value = self.builder.value(stored.value, self.tile.shape)
        if self.body.lowered.values[stored.value].op == "const":
            return ir.Full(value, ir.ElementOf(stored.name), shape)
        return value

    # Rows and columns that are taken apart

    def row_indices(self) -> tuple[ir.Stmt, ...]:
        """The indices of single row groups, taken from the row number from the innermost outwards."""
        groups, whole = self.body.layout.rows, self.index(ROWS)
        several = bool(whole.shape)
        # a single row's number is a program's, which never passes 2**31; M is int64 where it does
        widest = ir.DtypeOf(ir.Apply("add", (ir.Program(0), ir.Name("M")), ()))
        typed = "the dtype of M, int32 if it suffices" if several else "int32 suffices"
        rest = ir.Name("short_rows" if several else "short_row", whole.shape)
        found: list[ir.Stmt] = [
            ir.Let((rest.text,), ir.Cast(whole, widest if several else "int32", True), f"{typed}: faster division")
        ]
        for position in range(len(groups) - 1, -1, -1):
            if groups[position] in self.body.layout.split:
                index = ir.Cast(taken_apart(groups, position, rest), "int64", is_tensor=True)
                found.append(ir.Let((groups[position].index,), index))
        return tuple(found)

    def column_indices(self) -> tuple[ir.Stmt, ...]:
        """The indices of those parts that the columns are made of."""
        parts, whole = self.body.layout.parts, self.index(COLS)
        return tuple(ir.Let((part.index,), taken_apart(parts, i, whole)) for i, part in enumerate(parts))

    def wide_strides(self) -> tuple[ir.Stmt, ...]:
        """The strides that columns are multiplied by in int64, which leaves the columns themselves in int32."""
        terms = [term for a in self.body.layout.all() for term in a.terms]
        strides = dict.fromkeys(s for index, s in terms if s is not None and self._is_along_columns(index))
        why = ["cols * stride may pass 2**31", *[""] * len(strides)]
        return tuple(
            ir.Let((s,), ir.Cast(ir.Name(s), "int64"), aside=aside) for s, aside in zip(strides, why, strict=False)
        )

    def _is_along_columns(self, index: str | Expr) -> bool:
        if isinstance(index, Expr):
            return self.place_level(index) == COLUMN
        return index == COLS or index in {g.index for g in self.body.layout.parts}

    # The signature

    def arguments(self, *sizes: str) -> tuple[str, ...]:
        """Pointers, sizes, then strides. An input that is not read has none, unless its dtype is what values become."""
        layout = self.body.layout
        read = {*(a.tensor for a in layout.accesses), *typed(self.body.lowered.values)}
        pointers = [f"{t.name}_ptr" for t in self.spec.inputs if t.name in read]
        pointers += dict.fromkeys(f"{o.name}_ptr" for o in self.body.lowered.outputs)
        counted = [parameter for _, parameter in layout.sizes if parameter != "N"]  # which may be compiled in
        divisors = [g.size for g in (*layout.rows, *layout.parts) if g.size.isidentifier()]
        strides = dict.fromkeys(s for a in layout.all() for s, _ in a.strides)
        return (*pointers, *dict.fromkeys([*sizes, *divisors, *counted]), *strides, INFINITY)

    def kernel(
        self,
        name: str,
        inside: tuple[ir.Stmt, ...],
        sizes: tuple[str, ...],
        constexprs: Sequence[str | ir.Given],
        also: Collection[str] = (),
        left: Collection[str] = (),
        strides: Mapping[str, str] = MappingProxyType({}),
    ) -> ir.Kernel:
        """The kernel of some statements, with the arguments that they mention, and `sizes`. `also`: what is compiled in
        beside the length of a row, where that is; `left`: the memory that it leaves for the next kernel; `strides`: the
        wrapper's expressions for these."""
        inside = trimmed((*self.wide_strides(), *inside))
        used = used_names(inside)
        known = [a for a in self.arguments(*sizes, "M", "N") if a in used or a in sizes or f"{a[:-4]}:type" in used]
        memory = dict.fromkeys(self.memory)  # what kernels leave for one another, this one and those before
        found = [f"{m}_ptr" for m in memory if f"{m}_ptr" in used]
        inputs = {f"{t.name}_ptr" for t in self.spec.inputs}
        outputs = [a for a in known if a.endswith("_ptr") and a not in inputs]
        arguments = [
            *(a for a in known if a in inputs), *(a for a in found if a.removesuffix("_ptr") not in left), *outputs,
            *(a for a in found if a.removesuffix("_ptr") in left), *(a for a in known if not a.endswith("_ptr")),
        ]  # fmt: skip
        ordered, given = specialized(self.schedule, arguments, constexprs, also, strides)
        if self.form.whole:
            given = tuple((n, self._whole_row() if n == "BLOCK_SIZE_N" else host) for n, host in given)
        launch = self.form.grid(self.schedule, "row" in used)
        return ir.Kernel(name, self.schedule, passed(self.body, ordered), given, inside, launch)

    def _whole_row(self) -> str:
        """The wrapper's expression for the lanes that hold a row; one of no element may have results all the same."""
        lowered = self.body.lowered
        axes = [{a for d in o.index for a in axes_of(d)} for o in lowered.outputs]
        full = all(len(a) == len(lowered.space.axes) for a in axes)
        return f"next_power_of_2({'N' if full else 'max(N, 1)'})"


def _is_turned(body: Body) -> bool:
    """Whether all scans begin at the end of the rows, and are no pairs."""
    scans = [v for v in body.lowered.values if v.op in SCANS]
    return {v.attr for v in scans} == {REVERSE} and not any(is_scaled(v.op, v.dtype) for v in scans)

"""Rows divided among programs, for operators with few long rows: reductions to one number, norms of large groups.

Every walk over the rows is a kernel of its own: its programs reduce one part of a row each and store what they found,
and the next kernel begins by joining the parts. Where a program has one row, the one that writes them has a program for
every tile. Nothing is added atomically, and the parts are joined in the same order every time, so the same inputs give
the same bits whenever they are reduced again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernelgen.families.access import ROWS
from kernelgen.families.forms import SPLIT, SPLIT_COLUMNS
from kernelgen.families.kernel import Body, at_levels, output_values
from kernelgen.families.looped import passes, reduced, stored_late, walked_values
from kernelgen.families.moments import carried_moments
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import carries, grid, ir
from kernelgen.tile.carries import PARTS
from kernelgen.tile.nest import M, Nest
from kernelgen.tile.places import whole, wide
from kernelgen.tile.walk import trimmed, used_names

APPLIED = "evict_last"
"""How the caches treat what is read once more to be written anew (H200, 7.5 GB divided by their norm and written past
the caches: 3516 us, with evict_first 3700, by default 3698; torch copies them in 3516)."""

_FORMS = {form.name: form for form in (SPLIT, SPLIT_COLUMNS)}
_SPLIT, _TILE, _PART = ir.Name("split"), ir.Name("tile"), ir.Name("part")
_SPAN = ir.Name("first"), ir.Name("end")


class Split:
    """Writes the kernels of the sequence, which leave numbers in memory for one another."""

    def __init__(self, spec: OperatorSpec, body: Body, schedule: Schedule) -> None:
        self.spec = spec
        self.body = body
        self.schedule = schedule
        self.form = _FORMS[schedule.variant]
        _, self.online, self.walks = passes(body.lowered)
        self.moments = {m.total: m for m in carried_moments(body.lowered)}
        self.memory: list[str] = []
        self.has_row = bool(body.layout.rows)

    def nest(self) -> Nest:
        """What writes the next kernel."""
        nest = Nest(self.spec, self.body, self.form, self.schedule)
        reductions = {i for i, v in enumerate(self.body.lowered.values) if v.op in REDUCTIONS}
        nest.builder.more = frozenset(reductions | {m.mean for m in self.moments.values()})
        nest.memory = self.memory
        return nest

    # The kernels

    def walk(self, name: str, walk: tuple[int, ...]) -> ir.Kernel:
        """The kernel of one walk."""
        nest = self.nest()
        once = self.begin(nest, walked_values(self.body, walk, self.online, self.moments))
        carry = reduced(nest, walk, self.online, self.moments, _SPAN[0])
        stores, scratch = self._left(nest, walk)
        self.memory += [s.name for s in scratch]
        return replace(self.divided(nest, name, once, carry, stores, scratch=scratch), scratch=scratch)

    def last(self, base: str) -> ir.Kernel:
        """The kernel that writes the outputs, over the rows again where an output has every element."""
        nest, outputs = self.nest(), self.body.lowered.outputs
        once = self.begin(nest, output_values(self.body))
        full = [o for o in outputs if stored_late(self.body, o)]
        if not full:
            text = (*once, *nest.lets(output_values(self.body)), *nest.stores())
            return self._joining(nest, f"{base}_join_kernel", text)
        rest = [o for o in outputs if o not in full]
        once = (*once, *nest.lets([o.value for o in rest]))
        after, name = nest.stores(rest), f"{base}_apply_kernel"
        nest.padded = frozenset()
        if not nest.tile.rows:
            every = len(self.body.lowered.space.axes)
            loads = at_levels(self.body, (FULL, COLUMN))
            nest.policies = {i: APPLIED for i in loads if len(self.body.lowered.values[i].axes) == every}
        inside = (*nest.lets([o.value for o in full], late=False), *nest.stores(full))
        if nest.tile.rows:
            return self.divided(nest, name, once, carries.Carry(inside=inside), grid.first_only(_SPLIT, after))
        return self._applying(nest, name, once, inside, after)

    def divided(
        self,
        nest: Nest,
        name: str,
        once: Sequence[ir.Stmt],
        carry: carries.Carry,
        after: Sequence[ir.Stmt],
        scratch: Sequence[ir.Scratch] = (),
        *,
        backwards: bool = False,
        is_turned: bool = False,
    ) -> ir.Kernel:
        """The kernel of programs that walk a part of a row each."""
        stages = "NUM_STAGES" if self.schedule.int("NUM_STAGES") > 1 else ""
        loop = grid.walk(
            nest.tile.shape, (*nest.column_indices(), *carry.inside), _SPAN, stages=stages, backwards=backwards,
            is_turned=is_turned,
        )  # fmt: skip
        if nest.tile.rows:
            said = "lanes run along the kept dimensions; the reduced ones are divided among SPLITS programs"
            rows = grid.several_rows(M, said, "int64: offsets may pass 2**31")
            frame: tuple[ir.Stmt, ...] = (*rows, ir.Let(("split",), ir.Program(1)))
        else:
            said = "a row is" if self.has_row else "the elements are"
            said += " divided among SPLITS programs, each of which loops over its part in blocks"
            frame = grid.row_among(said, has_row=self.has_row)
        apart = ir.Remark((), apart=self.has_row or bool(once))
        walked = (*nest.row_indices(), *once, apart, *carry.before, loop, *carry.after, *after)
        return self._kernel(nest, name, (*frame, *grid.part(nest.tile.columns), *walked), scratch)

    def _joining(self, nest: Nest, name: str, text: Sequence[ir.Stmt]) -> ir.Kernel:
        """The kernel that only joins what the programs of a row found."""
        text = (_part(nest, ""), *nest.row_indices(), *text)
        if nest.tile.rows:
            said = "combines the partial results of the previous kernel for BLOCK_SIZE_M rows"
            number = wide(ir.Program(0))
            frame: tuple[ir.Stmt, ...] = grid.numbered(M, grid.block(number, M), said)
        else:
            said = f"combines the partial results {'of a row' if self.has_row else 'of all programs'}"
            row = (ir.Let(("row",), wide(ir.Program(0))),) if self.has_row else ()
            frame = (ir.Remark((said,), apart=False), *row)
        launch = 'cdiv(M, options["BLOCK_SIZE_M"])' if nest.tile.rows else "M" if self.has_row else "1"
        return replace(self._kernel(nest, name, (*frame, *text)), grid=(launch,))

    def _applying(
        self, nest: Nest, name: str, once: Sequence[ir.Stmt], inside: Sequence[ir.Stmt], after: tuple[ir.Stmt, ...]
    ) -> ir.Kernel:
        """The kernel that writes the elements of a row, of which a program has one tile."""
        text = (
            *grid.numbered(nest.tile.columns, grid.block(_TILE, nest.tile.columns)),
            _part(nest, "elements per partial result"), *nest.row_indices(), *once, *nest.column_indices(), *inside,
            *grid.first_only(_TILE, after),
        )  # fmt: skip
        # rows of no element have results all the same
        length = "max(N, 1)" if after else "N"
        sizes = [("num_tiles", ("M * " if self.has_row else "") + f'cdiv({length}, options["BLOCK_SIZE_N"])')]
        between = rows_between(self.body)
        frame: tuple[ir.Stmt, ...]
        if _is_shared(self.body):
            frame = grid.tiles_across()
        elif between:
            frame = grid.tiles_between(nest.tile.columns, between)
            every = f'M * tiles * cdiv({length}, options["BLOCK_SIZE_N"] * tiles)'
            sizes = [("tiles", f'max({between} // options["BLOCK_SIZE_N"], 1)'), ("num_tiles", every)]
        else:
            frame = grid.tiles_of_row(nest.tile.columns, has_row=self.has_row, may_be_empty=bool(after))
        made = self._kernel(nest, name, (*frame, *text))
        return replace(made, grid=("num_tiles",), counts=tuple(sizes), options=(("num_warps", None),))

    def _kernel(self, nest: Nest, name: str, text: Sequence[ir.Stmt], scratch: Sequence[ir.Scratch] = ()) -> ir.Kernel:
        used = used_names(trimmed(tuple(text)))
        known = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "SPLITS", "NUM_STAGES")
        constexprs = tuple(name for name in known if name in used)
        parts = {g.size for g in self.body.layout.parts}
        return nest.kernel(name, tuple(text), (), constexprs, parts, [s.name for s in scratch])

    # What the kernels leave for one another

    def begin(self, nest: Nest, targets: Iterable[int]) -> tuple[ir.Stmt, ...]:
        """What a kernel does before it reduces its part: the reductions of earlier walks joined, as far as it needs
        them."""
        near, wanted = _near(self.body.lowered, targets), set(targets)
        found: list[ir.Stmt] = []
        for i in itertools.chain(*self.walks):
            if i in near and i not in nest.builder.known:
                moments = tuple(self.moments.values())
                found += carries.joined(nest, i, self.online, moments, _PART, lambda name: self._read(nest, name))
        values, levels = self.body.lowered.values, self.body.names.levels
        rows = [i for i in sorted(near - wanted) if levels[i] in (ROW, SCALAR) and values[i].op not in REDUCTIONS]
        return (*((self.parts(nest), *found) if found else ()), *nest.lets(filter(nest.builder.is_assigned, rows)))

    def parts(self, nest: Nest) -> ir.Let:
        """Where the parts of a row lie."""
        shape = (*nest.tile.shape[:-1], PARTS)
        number: ir.Expr = ir.Range(PARTS, ir.Number(0))
        if self.body.layout.rows:
            number = ir.Apply("mul", (ir.Cast(number, "int64", is_tensor=True), ir.Name("M")), shape)
            number = whole("add", number, nest.index(ROWS), shape)
        return ir.Let(("parts",), number)

    def _read(self, nest: Nest, name: str) -> ir.Load:
        """What the programs of a row left."""
        shape = (*nest.tile.shape[:-1], PARTS)
        mask = ir.Name(M.mask, (M,)) if nest.tile.rows else None
        return ir.Load(ir.Pointer(f"{name}_parts", ((ir.Name("parts", shape), None),), shape), mask, None)

    def _left(self, nest: Nest, walk: tuple[int, ...]) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Scratch, ...]]:
        """How the programs of a walk leave what they found."""
        found: list[tuple[str, str, ir.Expr]] = []
        for i in walk:
            source, name = self.body.lowered.values[nest.builder.source(i)], self.body.names.of[i]
            op, kind = self.body.lowered.values[i].op, dtype_of_memory(source.dtype)
            if i in self.moments:
                name = self.body.names.of[self.moments[i].mean]
            rows = carries.rows_of(nest, i)
            if op in ARG_REDUCTIONS:  # NaN where the part holds one, as torch has it
                acc, axis = rows.element(f"{name}_acc"), nest.tile.columns
                extreme = ir.Reduce(op.removeprefix("arg"), acc, axis, keeps_nan=kind == "float32")
                found += [(f"{name}_extreme", kind, extreme), (name, "int64", rows.number(name))]
            else:
                found.append((name, kind, rows.number(name)))
        return stored_parts(nest, [(f"{name}_parts", kind, value) for name, kind, value in found])


def split_kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernels in the order of their launches; the last one writes the outputs."""
    split = Split(spec, body, schedule)
    base = name.removesuffix("_kernel").removesuffix(f"_{SPLIT.name}")
    names = [name, *(f"{base}_walk_{number + 2}_kernel" for number in range(len(split.walks) - 1))]
    made = [split.walk(own, walk) for own, walk in zip(names, split.walks, strict=True)]
    return (*made, split.last(base))


def stored_parts(
    nest: Nest, found: Sequence[tuple[str, str, ir.Expr]]
) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Scratch, ...]]:
    """How the programs of a row leave numbers of their parts: the memory of each, its dtype, and the number."""
    slot: ir.Expr = _SPLIT
    shape = nest.tile.shape[:-1]
    lets: tuple[ir.Stmt, ...] = ()
    if nest.body.layout.rows:
        row = nest.index(ROWS)
        slot = whole("add", whole("mul", wide(_SPLIT), ir.Name("M")), row, shape)
        if len(found) > 1:
            lets, slot = (ir.Let(("slot",), slot),), ir.Name("slot", shape)
    mask = ir.Name(M.mask, shape) if shape else None
    stores = [ir.Store(ir.Pointer(name, ((slot, None),), shape), value, mask) for name, _, value in found]
    shape_of_memory = """(options["SPLITS"], M)""" if nest.body.layout.rows else """options["SPLITS"]"""
    return (*lets, *stores), tuple(ir.Scratch(name, shape_of_memory, kind) for name, kind, _ in found)


def dtype_of_memory(dtype: str) -> str:
    """What torch calls the dtype that a value has in memory between kernels."""
    return "float32" if dtype == "float" else dtype


def _part(nest: Nest, aside: str) -> ir.Let:
    """How many elements a program that reduced had."""
    return ir.Let(("part",), grid.part_size(nest.tile.columns), aside=aside)


def _near(lowered: Lowered, targets: Iterable[int]) -> set[int]:
    """Values that others are made of, themselves included, as far as the nearest reductions."""
    found, todo = set[int](), list(targets)
    while todo:
        i = todo.pop()
        found.add(i)
        if lowered.values[i].op not in REDUCTIONS:
            todo += [a.value for a in lowered.values[i].args if isinstance(a, Use)]
    return found


def _is_shared(body: Body) -> bool:
    """Whether something varies along the columns alone, which the same tiles of all rows read."""
    return bool(body.layout.rows) and bool(at_levels(body, (COLUMN,)))


def rows_between(body: Body) -> str:
    """The size of the innermost part of the columns, where the next row lies behind it in memory and not the rest of
    the columns: what batches of channels are reduced over."""
    space, parts = body.lowered.space, body.layout.parts
    places = {axis: place for place, axis in enumerate(space.natural())}
    if len(parts) < 2 or not body.layout.rows:
        return ""
    rows, first = [places[a] for a in range(space.outer)], [places[a] for a in parts[0].axes]
    last = [places[a] for a in parts[-1].axes]
    return parts[-1].size if max(first) < min(rows) and max(rows) < min(last) else ""

"""Writes the statements of a product's kernels: where elements are, tiles of factors, the walk over what is summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from kernelgen.families.access import WHOLE, Access, Extent, Group
from kernelgen.families.masks import Term
from kernelgen.families.matmul.lowering import FEW, ProductBody, converted_load
from kernelgen.families.padding import ancestors
from kernelgen.families.values import Stored, Use, axes_of
from kernelgen.frontend.indices import Expr
from kernelgen.plan import Scalar
from kernelgen.spec.model import ELLIPSIS, OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.builder import Builder, dtype_of
from kernelgen.tile.walk import used_names

PRECISION = "PRECISION"
"""The constexpr that says how float32 is multiplied."""

_REST = "rest"
"""The products of what TF32 does not hold of factors."""
PROMOTED = "PROMOTED"
"""The constexpr that says how many products of float8 matrix units may sum by themselves."""


def axis_of(extent: Extent, block: str) -> ir.Axis:
    mask = {"m": "row_mask", "n": "col_mask", "k": "k_mask"}[extent.name]
    return ir.Axis(extent.name, WHOLE[extent.name], mask, block, extent.size)


@dataclass(frozen=True)
class Tiled:
    """A product's extents as axes of tiles. Of few rows a program may take one, which is then no axis."""

    m: ir.Axis | None
    n: ir.Axis
    k: ir.Axis

    @property
    def result(self) -> ir.Shape:
        return tuple(a for a in (self.m, self.n) if a)

    @property
    def all(self) -> ir.Shape:
        return tuple(a for a in (self.m, self.n, self.k) if a)


class Writer:
    """Writes one kernel of a product: `boxed` says which tensors are copied by descriptors."""

    def __init__(
        self,
        spec: OperatorSpec,
        body: ProductBody,
        tiled: Tiled,
        boxed: frozenset[str] = frozenset(),
        blocks: Mapping[str, Scalar] = MappingProxyType({}),
    ) -> None:
        """`blocks`: the extents of tiles, by constexpr, where the schedule says them."""
        self.spec = spec
        self.body = body
        self.tiled = tiled
        self.boxed = boxed
        self.narrow_batch = all(a.tensor in boxed for a in (*body.layout.accesses, *(a for _, a in body.layout.stores)))
        """Whether the number of a batch is an int32, as descriptors take it, since no address is computed from it."""
        self.reads = {a.load: a for a in body.layout.accesses}
        self.types = {t.name: t.dtype for t in (*spec.inputs, *spec.outputs)}
        of_space = {a: axis for axis in tiled.all for a in body.extent(axis.name).axes}
        self.builder = Builder(
            body.lowered, body.names, body.statements, of_space, self._load, dict(body.layout.sizes)
        )  # fmt: skip
        self.builder.counted = self.counted
        self.builder.together = self._together
        self.tile: ir.Shape = tiled.result
        """Of which axes values are written now."""
        self.numbered: set[str] = set()
        """What counts elements of which a tile has several."""
        self.blocks = blocks
        self.raw: set[int] = set()
        """Loads whose elements are multiplied as memory holds them."""
        self.chosen = dict(body.triangles.chosen) if body.triangles else {}
        """What masked factors are where their masks hold."""
        self.is_masked = True
        """Whether a walk is over blocks that masks may cut."""
        self.is_inside = False
        """Whether a walk is over blocks that end where what is summed does, or before."""

    # Where elements are

    def axes(self, names: Iterable[str]) -> ir.Shape:
        wanted = set(names)
        return tuple(a for a in self.tiled.all if a.name in wanted)

    def index(self, run: str) -> ir.Expr:
        """The numbers along one run of an extent."""
        extent = next(e for e in self.body.layout.extents if e.counted(run))
        axis = next((a for a in self.tiled.all if a.name == extent.name), None)
        whole = ir.Name(_scalar(extent) if axis is None else axis.index, (axis,) if axis else ())
        return _taken_apart(whole, extent, run)

    def counted(self, number: int, dtype: str) -> ir.Expr:
        """The numbers along one axis of the space; within the tile where every tile begins with the first of them."""
        extent = next(e for e in self.body.layout.extents if number in e.axes)
        run = next(g for g in extent.runs if number in g.axes)
        axis = next((a for a in self.tiled.all if a.name == extent.name), None)
        if axis is None or dtype != "int32":
            return ir.Cast(self.index(run.index), dtype) if dtype == "int32" else self.index(run.index)
        if run != extent.runs[-1] or not self._divides(int(run.size) if run.size.isdigit() else 0, axis):
            return ir.Cast(self.index(run.index), dtype)
        return ir.Apply("int_mod", (ir.Range(axis, ir.Number(0)), ir.Number(int(run.size))), (axis,))

    def _divides(self, count: int, axis: ir.Axis) -> bool:
        """Whether tiles along an axis are multiples of a number, so that each begins with the first of as many."""
        block = self.blocks.get(axis.block, 0)
        return isinstance(block, int) and block > 0 and count > 0 and block % count == 0

    def coarse(self, access: Access, axis: ir.Axis) -> int:
        """How many elements of a tile along an axis, one after the other, read one element of a tensor: a number that
        divides a tile or is a multiple of it. 1: each its own, or that is not known."""
        count, block = shared_elements(self.body, access, axis.name), self.blocks.get(axis.block, 0)
        if not isinstance(block, int) or block < 1 or (count > FEW and axis.name == "n"):
            return 1
        return count if block % count == 0 or (count % block == 0 and axis.name == "k") else 1

    @property
    def is_even(self) -> bool:
        """Whether blocks of what is summed end where it does: it consists of equal groups that tiles divide."""
        extent, block = self.body.extent("k"), self.blocks.get(self.tiled.k.block, 0)
        inner = [int(g.size) for g in extent.runs[1:] if g.size.isdigit()]
        count = prod(inner) if len(inner) == len(extent.runs) - 1 else 0
        return len(extent.runs) > 1 and isinstance(block, int) and block > 0 and count % block == 0 and count > 0

    def term(self, term: Term) -> ir.Expr:
        """What a mask's bound adds, without its sign."""
        assert isinstance(term.of, Expr)
        return ir.Cast(self.builder.place(term.of), "int32")

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        terms = tuple((self.index(str(index)), stride) for index, stride in access.terms)
        return ir.Pointer(access.tensor, terms, shape)

    def mask(self, shape: ir.Shape) -> ir.Expr | None:
        """Which elements of a tile exist."""
        whole = self.is_even or self.is_inside
        parts = [ir.Name(axis.mask, (axis,)) for axis in shape if axis.name != "k" or not whole]
        if not parts:
            return None
        found: ir.Expr = parts[0]
        for part in parts[1:]:
            found = ir.Apply("and", (found, part), (*found.shape, *part.shape))
        return found

    def box(self, access: Access) -> ir.Box:
        """The tile of a tensor by its descriptor, in the order of memory."""
        offsets: list[ir.Expr] = []
        shape: list[ir.Axis] = []
        for index, _ in access.terms:
            extent = next(e for e in self.body.layout.extents if e.counted(index))
            axis = next((a for a in self.tiled.all if a.name == extent.name), None)
            if axis is None:
                whole = self.index(str(index))
                offsets.append(whole if self.narrow_batch else ir.Cast(whole, "int32"))
            else:
                offsets.append(ir.Name(_start(extent)))
                shape.append(axis)
        return ir.Box(f"{access.tensor}_desc", tuple(offsets), tuple(shape))

    # What is loaded and stored

    def _load(self, i: int, shape: ir.Shape) -> ir.Expr:
        """A load in float32, unless it is multiplied as it is."""
        access, value = self.reads[i], self.body.lowered.values[i]
        loaded = self._loaded(access, shape)
        widen = value.dtype == "float" and i not in self.raw and self.types[access.tensor] != "float32"
        return ir.Cast(loaded, "float32") if widen else loaded

    def _loaded(self, access: Access, shape: ir.Shape) -> ir.Expr:
        if access.tensor in self.boxed:
            box = self.box(access)
            return box if box.shape == shape else ir.Transposed(box)
        return self._masked(access, self.pointer(access, shape), shape)

    def _together(self, i: int) -> tuple[ir.Let, ...] | None:
        """The statements of a load of which several elements of a tile read the same: it is read once, and repeated in
        registers."""
        if i not in self.reads:
            return None
        access, shape = self.reads[i], self.builder.shape(i, self.tile)
        counts = {axis: count for axis in shape if (count := self.coarse(access, axis)) > 1}
        if not counts:
            return None
        numbers: dict[str, ir.Expr] = {}
        lets: list[ir.Let] = []
        axes: list[ir.Axis] = []
        for axis in shape:
            count = counts.get(axis, 1)
            if count == 1:
                axes.append(axis)
                continue
            extent, block = self.body.extent(axis.name), self.blocks[axis.block]
            assert isinstance(block, int)
            first = ir.Apply("int_div", (ir.Name(_start(extent)), ir.Number(count)), ())
            number: ir.Expr = ir.Cast(first, "int64")
            if block > count:
                name, mask = f"{axis.index}_by_{count}", f"{axis.mask}_by_{count}"
                few = ir.Axis(axis.name, name, mask, f"{axis.block} // {count}", axis.size)
                number = ir.Name(name, (few,))
                size = ir.Apply("int_div", (ir.Name(axis.size), ir.Number(count)), ())
                lets.append(ir.Let((name,), ir.Cast(ir.Range(few, first), "int64")))
                lets.append(ir.Let((mask,), ir.Apply("lt", (number, size), (few,))))
                axes.append(few)
            for index, _ in access.terms:
                if extent.counted(index):
                    numbers[str(index)] = _taken_apart(number, extent, str(index), fewer=count)
        small = tuple(axes)
        terms = tuple((numbers.get(str(index)) or self.index(str(index)), stride) for index, stride in access.terms)
        loaded: ir.Expr = self._masked(access, ir.Pointer(access.tensor, terms, small), small)
        name = self.body.names.of[i]
        widen = self.body.lowered.values[i].dtype == "float" and self.types[access.tensor] != "float32"
        loaded = ir.Cast(loaded, "float32") if widen else loaded
        lets = [let for let in lets if let.names[0] not in self.numbered]
        self.numbered |= {let.names[0] for let in lets}
        whole: list[ir.Axis] = list(small)
        for dimension, axis in enumerate(small):
            own = next((a for a in counts if a.name == axis.name), None)
            if own is not None:
                lets.append(ir.Let((name,), loaded))
                whole[dimension] = own
                times = ir.Number(counts[own])
                more = ("", ir.Number(dimension)) if len(small) > 1 else ("_row",)
                loaded = ir.Call(f"repeated{more[0]}", (ir.Name(name, small), times, *more[1:]), tuple(whole))
        self.builder.known[i] = ir.Name(name, tuple(whole))
        return (*lets, ir.Let((name,), loaded))

    def _masked(self, access: Access, pointer: ir.Pointer, shape: ir.Shape) -> ir.Load:
        mask = self.mask(shape)
        other = 0.0 if self.body.lowered.values[access.load].dtype == "float" else 0
        return ir.Load(pointer, mask, other if mask else None)

    def stores(self) -> tuple[ir.Stmt, ...]:
        """The outputs, after what they need."""
        found: list[ir.Stmt] = [*self.builder.lets((s.value for s, _ in self.body.layout.stores), self.tiled.result)]
        return (*found, *(self._store(stored, access) for stored, access in self.body.layout.stores))

    def _store(self, stored: Stored, access: Access) -> ir.Stmt:
        value = self.builder.value(stored.value, self.tiled.result)
        if access.tensor in self.boxed:
            box = self.box(access)
            narrowed = ir.Cast(value, ir.ElementOf(access.tensor))
            return ir.StoreBox(box, narrowed if box.shape == value.shape else ir.Transposed(narrowed))
        shape = self.builder.shape(stored.value, self.tiled.result)
        if any(axis not in shape for axis in self._stored_axes(stored)):
            raise AssertionError("an output varies along its own axes")
        return ir.Store(self.pointer(access, shape), value, self.mask(shape))

    def _stored_axes(self, stored: Stored) -> ir.Shape:
        own = {a for dim in stored.index for a in axes_of(dim)}
        return tuple(x for x in self.tiled.result if own & set(self.body.extent(x.name).axes))

    # The product

    def factors(self) -> tuple[int, int]:
        """Those of the first product."""
        return self.body.factors_of(self.body.dot)

    def side(self, i: int) -> str:
        """What a factor is called that is computed from what memory holds."""
        firsts, seconds = self.body.firsts, self.body.seconds
        name, number = ("left", firsts.index(i)) if i in firsts else ("right", seconds.index(i))
        return f"{name}_{number + 1}" if number else name

    def factor(self, i: int, shape: ir.Shape) -> tuple[tuple[ir.Let | ir.Update, ...], ir.Expr]:
        """A factor's tile as it is multiplied: in the dtype that the reference multiplies."""
        self.tile = shape
        value = self.body.lowered.values[i]
        if value.op == "load" and self._is_computed_with(i):  # which is in float32, and holds it whole
            lets = self.builder.lets([i], shape)
            return lets, ir.Cast(self.builder.value(i, shape), ir.ElementOf(str(value.tensor)))
        if value.op == "load":
            self.raw.add(i)
            lets = self.builder.lets([i], shape)
            return lets, self.builder.value(i, shape)
        source = value.args[0] if value.op == "round" else Use(i)
        assert isinstance(source, Use)
        side = ir.Name(self.side(i), shape)
        whole = converted_load(self.body, source.value)
        if whole is not None:  # a zero beyond the end stays one
            self.raw.add(whole)
            lets = self.builder.lets([whole], shape)
            converted = self._narrowed(i, self.builder.value(whole, shape))
            return (*lets, ir.Let((side.text,), converted)), side
        chosen = self.chosen.get(source.value)
        at = source.value if chosen is None or self.is_masked else chosen
        if chosen is not None and self._is_factor(i, chosen):  # choosing rounds nothing, and a zero stays one
            self.raw.add(chosen)
            lets = self.builder.lets([at], shape)
            made = self.builder.value(at, shape)
            return (lets, made) if isinstance(made, ir.Name) else ((*lets, ir.Let((side.text,), made)), side)
        lets = self.builder.lets([at], shape)
        # what the reference makes of a zero beyond the end may be none
        k = self.tiled.k
        made = self.builder.value(at, shape)
        if self.is_even or self.is_inside:
            return lets, self._narrowed(i, made)
        inside = ir.Apply("where", (ir.Name(k.mask, (k,)), made, ir.Number(0.0)), shape)
        return (*lets, ir.Let((side.text,), inside)), self._narrowed(i, side)

    def _is_computed_with(self, load: int) -> bool:
        """Whether another factor of the kernel is computed from a load that is a factor too."""
        lowered, factors = self.body.lowered, (*self.body.firsts, *self.body.seconds)
        return any(load in ancestors(lowered, i) for i in factors if i != load)

    def _is_factor(self, i: int, load: int) -> bool:
        """Whether a load has the dtype that a factor is multiplied in."""
        value, loaded = self.body.lowered.values[i], self.body.lowered.values[load]
        if loaded.op != "load":
            return False
        wanted = dtype_of(value) if value.op == "round" else "float32"
        dtype = self.types[wanted.tensor] if isinstance(wanted, ir.ElementOf) else wanted
        return self.types[str(loaded.tensor)] == dtype

    def _narrowed(self, i: int, computed: ir.Expr) -> ir.Expr:
        """A factor in the dtype that the reference rounds it to, if it does."""
        value = self.body.lowered.values[i]
        return ir.Cast(computed, dtype_of(value) if value.op == "round" else "float32")

    def carry(self, dot: int | None = None) -> ir.Name:
        """The sums of a product, or of the first."""
        name = self.body.names.of[self.body.dot if dot is None else dot]
        return ir.Name(name, self.tiled.result)

    def of_product(self, dot: int, what: str) -> str:
        """What something of a product is called: what it is, and whose where there are several."""
        name, taken = f"{self.carry(dot).text}_{what}", self.body.names.of.values()
        while name in taken:
            name = f"{name}_"
        return what if len(self.body.dots) == 1 else name

    def carries(self) -> tuple[ir.Name, ...]:
        return tuple(map(self.carry, self.body.dots))

    def begun(self, shape: ir.Shape) -> tuple[ir.Let, ...]:
        """The sums, before anything is added."""
        names = [carry.text for carry in self.carries()] + ([_REST] if self.body.lows else [])
        return tuple(ir.Let((name,), ir.Zeros(shape)) for name in names)

    def with_rest(self, shape: ir.Shape) -> tuple[ir.Update, ...]:
        """The sums with the products of what TF32 does not hold of the factors, which are apart."""
        if not self.body.lows:
            return ()
        rest = ir.Name(_REST, shape)
        known = ir.Apply("where", (ir.Apply("eq", (rest, rest), shape), rest, ir.Number(0.0)), shape)
        return (ir.Update(self.carry().text, "add", known, "NaN where an operand is infinite"),)

    def unswapped(self, *, swap: bool) -> tuple[ir.Let, ...]:
        """The sums as rows and columns, of those that were added up as columns and rows."""
        found = ((carry.text, ir.Name(carry.text, carry.shape[::-1])) for carry in self.carries())
        said = "back to rows by columns: the product above is transposed"
        return tuple(ir.Let((name,), ir.Transposed(carry), aside=said) for name, carry in found) if swap else ()

    def finished(self, product: ir.Expr, number: int) -> None:
        """A product is known from here on, or a value that is computed from it."""
        self.builder.known[number] = product
        value = self.body.lowered.values[number]
        if value.statement is not None:
            self.builder.quoted.add(value.statement)

    def all_finished(self) -> None:
        """The products are known from here on."""
        for dot, carry in zip(self.body.dots, self.carries(), strict=True):
            self.finished(carry, dot)

    def said(self) -> str:
        """The statements of the products."""
        found = dict.fromkeys(self.body.lowered.values[dot].statement for dot in self.body.dots)
        return "; ".join(self.body.statements[i].text for i in found if i is not None)

    def loop(
        self, start: ir.Expr, stop: ir.Expr, *, precision: bool, swap: bool, masked: bool = True, inside: bool = False
    ) -> ir.For:
        """The walk over what is summed, one block after the other. `masked`: masks may cut its blocks; `inside`: all of
        their elements exist."""
        self.is_masked, self.is_inside = masked, inside
        assert self.tiled.m is not None
        m, n, k = self.tiled.m, self.tiled.n, self.tiled.k
        wanted = dict.fromkeys(self.body.firsts, (m, k)) | dict.fromkeys(self.body.seconds, (k, n))
        lows = dict(self.body.lows)
        lets, of_factor = self.sides(wanted | {low: wanted[whole] for whole, low in lows.items()})
        added: list[ir.Let | ir.Update] = []
        for number in self.body.dots:
            a, b = (of_factor[i] for i in self.body.factors_of(number))
            carry = self.carry(number)
            carry = replace(carry, shape=(n, m)) if swap else carry
            sides = (ir.Transposed(b), ir.Transposed(a)) if swap else (a, b)
            multiplied = PRECISION if precision else None
            if lows:
                low_a, low_b = (of_factor[lows[i]] for i in self.body.factors_of(number))
                low_sides = (ir.Transposed(low_b), ir.Transposed(low_a)) if swap else (low_a, low_b)
                added += self._in_three(carry, sides, low_sides, multiplied)
                continue
            if self.body.in_three and not self.boxed:
                added.append(self._outside(carry, sides, multiplied))
                continue
            if not self.body.scales_of(number):
                promoted = PROMOTED if multiplies_float8(self.body) else None
                added.append(ir.Let((carry.text,), ir.Dot(*sides, carry, multiplied, promoted)))
                continue
            group = ir.Name(self.of_product(number, "group_sum"), carry.shape)
            added.append(ir.Let((group.text,), ir.Dot(*sides, None, multiplied)))
            scale_lets, scaled = self.scaled(number, group)
            added += [*scale_lets, ir.Update(carry.text, "add", scaled)]
        numbers = (
            ir.Let((k.index,), ir.Cast(ir.Range(k, ir.Name("start")), "int64")),
            ir.Let((k.mask,), ir.Apply("lt", (ir.Name(k.index, (k,)), stop), (k,))),
        )
        body = (*numbers, *lets, *added)
        self.is_masked, self.is_inside = True, False
        return ir.For("start", start, stop, ir.Name(k.block), body, comment=self.said())

    def _in_three(
        self, carry: ir.Name, high: tuple[ir.Expr, ir.Expr], low: tuple[ir.Expr, ir.Expr], precision: str | None
    ) -> tuple[ir.Let | ir.Update, ...]:
        """The products of float32 in two parts each, but that of both rests, which is less than float32 holds. Matrix
        units cut sums off instead of rounding them: a block's are added in float32, and those of rests apart. Rests
        first: an H200 took 1390 us of 4096 cubed instead of 1450."""
        (a, b), (low_a, low_b), rest = high, low, replace(carry, text=_REST)
        return (
            *(ir.Let((_REST,), ir.Dot(*sides, rest, precision)) for sides in ((low_a, b), (a, low_b))),
            self._outside(carry, high, precision),
        )

    def _outside(self, carry: ir.Name, sides: tuple[ir.Expr, ir.Expr], precision: str | None) -> ir.Update:
        """The sum and a block's, which matrix units would cut off to what a large sum has room for."""
        block = ir.Dot(*sides, None, precision, self.tiled.k.block)
        said = "added outside of the dot: matrix units truncate low bits when the accumulator is large"
        return ir.Update(carry.text, "add", block, said)

    def scaled(self, dot: int, group: ir.Expr) -> tuple[tuple[ir.Let | ir.Update, ...], ir.Expr]:
        """The sum of a group's products times the scales of the group, and the statements that they take."""
        known = dict(self.builder.known)
        lets: list[ir.Let | ir.Update] = []
        for i in self.body.scales_of(dot):
            self.tile = self.tiled.all
            lets += self.builder.lets([i], self.tile)
            group = ir.Apply("mul", (group, self.builder.value(i, self.tile)), group.shape)
        self.builder.known = known
        self.tile = self.tiled.result
        return tuple(lets), group

    def sides(self, shapes: Mapping[int, ir.Shape]) -> tuple[tuple[ir.Let | ir.Update, ...], dict[int, ir.Expr]]:
        """The tiles of factors, each with the axes that it has, and the statements that they take."""
        known = dict(self.builder.known)
        lets: list[ir.Let | ir.Update] = []
        found: dict[int, ir.Expr] = {}
        for i, shape in shapes.items():
            own, found[i] = self.factor(i, shape)
            lets += own
        self.builder.known = known
        self.tile = self.tiled.result
        return tuple(lets), found

    def numbers(self, extent: Extent, axis: ir.Axis, tile: str) -> tuple[ir.Let, ...]:
        """The numbers of a tile's elements along an axis; int64, because an offset may pass 2**31."""
        start = ir.Apply("mul", (ir.Name(tile), ir.Name(axis.block)), ())
        return (
            ir.Let((_start(extent),), start),
            ir.Let((axis.index,), ir.Cast(ir.Range(axis, ir.Name(_start(extent))), "int64")),
            ir.Let((axis.mask,), ir.Apply("lt", (ir.Name(axis.index, (axis,)), ir.Name(axis.size)), (axis,))),
        )

    def arguments(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Argument, ...]:
        """What the statements mention of tensors, strides and sizes, in that order."""
        used = used_names(body)
        read = (a.tensor for a in self.body.layout.accesses)  # others may say a dtype
        tensors = [*dict.fromkeys((*read, *(t.name for t in self.spec.inputs))), *(o.name for o in self.spec.outputs)]
        views = self.views()
        found = []
        for name in tensors:
            if f"{name}_desc" in used:
                found.append(self._descriptor(name))
            if f"{name}_ptr" in used or (f"{name}_desc" not in used and f"{name}:type" in used):
                found.append(ir.Argument(f"{name}_ptr", "pointer", views.get(name, name)))
        sizes = [(e.size, e.size) for e in self.body.layout.extents]
        sizes += [
            (g.size, g.size) for e in self.body.layout.extents for g in (*e.runs, *e.spans) if g.size.isidentifier()
        ]
        sizes += [(parameter, parameter) for _, parameter in self.body.layout.sizes]
        found += [ir.Argument(n, "number", host) for n, host in dict(sizes).items() if n in used]
        strides = dict(s for a in self.body.layout.all() for s in a.strides)
        return (*found, *(ir.Argument(n, "number", host) for n, host in strides.items() if n in used))

    def views(self) -> dict[str, str]:
        return {a.tensor: a.view[0] for a in self.body.layout.accesses if a.view}

    def host(self, name: str) -> str:
        """What the wrapper calls a tensor, without its dimensions of one element."""
        shape = next((t.shape for t in self.spec.inputs if t.name == name), ())
        if name in self.views() or 1 not in shape:
            return self.views().get(name, name)
        ones = [d - len(shape) if ELLIPSIS in shape[:d] else d for d, size in enumerate(shape) if size == 1]
        return f"{name}.squeeze({ones[0] if len(ones) == 1 else tuple(ones)})"

    def _descriptor(self, name: str) -> ir.Argument:
        access = next(
            a for a in (*self.body.layout.accesses, *(a for _, a in self.body.layout.stores)) if a.tensor == name
        )
        box = self.box(access)
        ones = len(box.offsets) - len(box.shape)
        return ir.Argument(
            f"{name}_desc", "descriptor", self.shaped(access), (*["1"] * ones, *(a.block for a in box.shape))
        )

    def shaped(self, access: Access) -> str:
        """What the wrapper calls a tensor with the dimensions of its boxes."""
        tensor = next(t for t in (*self.spec.inputs, *self.spec.outputs) if t.name == access.tensor)
        own = [size for size in tensor.shape if size != 1 or tensor in self.spec.outputs]
        if access.tensor in self.views() or (ELLIPSIS not in own and len(own) == len(access.terms)):
            return self.host(access.tensor)
        return f"{access.tensor}.view({', '.join(self.run_size(str(index)) for index, _ in access.terms)})"

    def run_size(self, index: str) -> str:
        return next(run.size for e in self.body.layout.extents if (run := e.counted(index)))


def _scalar(extent: Extent) -> str:
    return {"batch": "batch", "m": "row", "n": "column", "k": "k"}[extent.name]


def _start(extent: Extent) -> str:
    return {"m": "first_row", "n": "first_col", "k": "start"}[extent.name]


def _taken_apart(whole: ir.Expr, extent: Extent, index: str, *, fewer: int = 1) -> ir.Expr:
    """The index of one run from the number of an element of them all; `fewer`: of so many of the last that count as
    one."""
    own = extent.counted(index)
    assert own is not None
    before, behind = extent.around(own)
    found = whole
    for run in reversed(behind):
        if fewer > 1 and run.size.isdigit() and fewer % int(run.size) == 0:
            fewer //= int(run.size)
        else:
            found = ir.Apply("int_div", (found, _size(run)), whole.shape)
    return ir.Apply("int_mod", (found, _size(own)), whole.shape) if before else found


def _size(run: Group) -> ir.Expr:
    return ir.Number(int(run.size)) if run.size.isdigit() else ir.Name(run.size)


def shared_elements(body: ProductBody, access: Access, name: str) -> int:
    """How many elements along an extent, one after the other, read one element of a tensor: a power of two. 1: each
    its own, or that is not known."""
    extent = body.extent(name)
    axes = [a for index, _ in access.terms for g in [extent.counted(index)] if g for a in g.axes]
    rest = [run for run in extent.runs if not set(run.axes) <= set(axes)]
    if not axes or not rest or tuple(axes) != extent.axes[: len(axes)] or not all(g.size.isdigit() for g in rest):
        return 1
    count = prod(int(g.size) for g in rest)
    return 1 if count & (count - 1) else count


def group_size(body: ProductBody) -> int:
    """The elements of what is summed that share a scale; 0 where each has its own or a few have."""
    found = (shared_elements(body, access, "k") for access in body.layout.accesses)
    return min((count for count in found if count > FEW), default=0)


def multiplies_float32(spec: OperatorSpec, body: ProductBody) -> bool:
    """Whether the factors may be float32, of which torch's setting says how they are multiplied."""
    return "float32" in dict(spec.dtypes).get(body.factor.dtype, (body.factor.dtype,))


def multiplies_float8(body: ProductBody) -> bool:
    return "float8" in body.factor.dtype


def tiled_by_blocks(body: ProductBody) -> Tiled:
    return Tiled(
        axis_of(body.extent("m"), "BLOCK_M"), axis_of(body.extent("n"), "BLOCK_N"), axis_of(body.extent("k"), "BLOCK_K")
    )


def extents_of(body: ProductBody, access: Access) -> list[str]:
    """The extents that a tensor's dimensions are of, in the order of memory."""
    return [e.name for index, _ in access.terms for e in body.layout.extents if e.counted(index)]

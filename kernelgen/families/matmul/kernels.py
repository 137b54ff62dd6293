"""The kernels of a product in the IR, variant by variant.

All of them load tiles of the factors, compute on these what the reference computes before the product, add up the
product in float32, and compute on its tiles what comes after it. They differ in how tiles are copied (`tiles` by
pointers, `boxes` by descriptors, which the copy engine of sm_90 executes), and in how few rows are spread over the
device (`split`, `vector`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelgen.families.access import Access, Extent, Group
from kernelgen.families.matmul.lowering import ProductBody, converted_load
from kernelgen.families.values import Stored, Use, axes_of
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import ELLIPSIS, OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.builder import Builder, dtype_of
from kernelgen.tile.walk import trimmed, used_names

PRECISION = "PRECISION"
"""The constexpr that says how float32 is multiplied."""


def axis_of(extent: Extent, block: str) -> ir.Axis:
    index = {"m": "rows", "n": "cols", "k": "ks"}[extent.name]
    mask = {"m": "row_mask", "n": "col_mask", "k": "k_mask"}[extent.name]
    return ir.Axis(extent.name, index, mask, block, extent.size)


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
        self, spec: OperatorSpec, body: ProductBody, tiled: Tiled, boxed: frozenset[str] = frozenset()
    ) -> None:
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
        self.raw: set[int] = set()
        """Loads whose elements are multiplied as memory holds them."""

    # Where elements are

    def axes(self, names: Iterable[str]) -> ir.Shape:
        wanted = set(names)
        return tuple(a for a in self.tiled.all if a.name in wanted)

    def index(self, run: str) -> ir.Expr:
        """The numbers along one run of an extent."""
        extent = next(e for e in self.body.layout.extents if any(g.index == run for g in e.runs))
        axis = next((a for a in self.tiled.all if a.name == extent.name), None)
        whole = ir.Name(_scalar(extent) if axis is None else axis.index, (axis,) if axis else ())
        return _taken_apart(whole, extent.runs, run)

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        terms = tuple((self.index(str(index)), stride) for index, stride in access.terms)
        return ir.Pointer(access.tensor, terms, shape)

    def mask(self, shape: ir.Shape) -> ir.Expr | None:
        """Which elements of a tile exist."""
        parts = [ir.Name(axis.mask, (axis,)) for axis in shape]
        if not parts:
            return None
        whole: ir.Expr = parts[0]
        for i, part in enumerate(parts[1:], 2):
            whole = ir.Apply("and", (whole, part), shape[:i])
        return whole

    def box(self, access: Access) -> ir.Box:
        """The tile of a tensor by its descriptor, in the order of memory."""
        offsets: list[ir.Expr] = []
        shape: list[ir.Axis] = []
        for index, _ in access.terms:
            extent = next(e for e in self.body.layout.extents if any(g.index == index for g in e.runs))
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
        other = 0.0 if self.body.lowered.values[access.load].dtype == "float" else 0
        return ir.Load(self.pointer(access, shape), self.mask(shape), other)

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

    def _side(self, i: int) -> str:
        """What a factor is called that is computed from what memory holds."""
        firsts, seconds = self.body.firsts, self.body.seconds
        name, number = ("left", firsts.index(i)) if i in firsts else ("right", seconds.index(i))
        return f"{name}_{number + 1}" if number else name

    def factor(self, i: int, shape: ir.Shape) -> tuple[tuple[ir.Let | ir.Update, ...], ir.Expr]:
        """A factor's tile as it is multiplied: in the dtype that the reference multiplies."""
        value = self.body.lowered.values[i]
        if value.op == "load":
            self.raw.add(i)
            lets = self.builder.lets([i], shape)
            return lets, self.builder.value(i, shape)
        assert value.op == "round"
        (source,) = value.args
        assert isinstance(source, Use)
        side = ir.Name(self._side(i), shape)
        whole = converted_load(self.body, source.value)
        if whole is not None:  # a zero beyond the end stays one
            self.raw.add(whole)
            lets = self.builder.lets([whole], shape)
            converted = ir.Cast(self.builder.value(whole, shape), dtype_of(value))
            return (*lets, ir.Let((side.text,), converted)), side
        lets = self.builder.lets([source.value], shape)
        # what the reference makes of a zero beyond the end may be none
        k = self.tiled.k
        inside = ir.Apply(
            "where", (ir.Name(k.mask, (k,)), self.builder.value(source.value, shape), ir.Number(0.0)), shape
        )
        return (*lets, ir.Let((side.text,), inside)), ir.Cast(side, dtype_of(value))

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
        return tuple(ir.Let((carry.text,), ir.Zeros(shape)) for carry in self.carries())

    def unswapped(self, *, swap: bool) -> tuple[ir.Let, ...]:
        """The sums as rows and columns, of those that were added up as columns and rows."""
        found = ((carry.text, ir.Name(carry.text, carry.shape[::-1])) for carry in self.carries())
        return tuple(ir.Let((name,), ir.Transposed(carry)) for name, carry in found) if swap else ()

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

    def loop(self, start: ir.Expr, stop: ir.Expr, *, precision: bool, swap: bool) -> ir.For:
        """The walk over what is summed, one block after the other."""
        assert self.tiled.m is not None
        m, n, k = self.tiled.m, self.tiled.n, self.tiled.k
        lets, of_factor = self.sides(dict.fromkeys(self.body.firsts, (m, k)) | dict.fromkeys(self.body.seconds, (k, n)))
        added: list[ir.Let] = []
        for number in self.body.dots:
            a, b = (of_factor[i] for i in self.body.factors_of(number))
            carry = self.carry(number)
            carry = replace(carry, shape=(n, m)) if swap else carry
            sides = (ir.Transposed(b), ir.Transposed(a)) if swap else (a, b)
            added.append(ir.Let((carry.text,), ir.Dot(*sides, carry, PRECISION if precision else None)))
        numbers = (
            ir.Let((k.index,), ir.Cast(ir.Range(k, ir.Name("start")), "int64")),
            ir.Let((k.mask,), ir.Apply("lt", (ir.Name(k.index, (k,)), stop), (k,))),
        )
        body = (*numbers, *lets, *added)
        return ir.For("start", start, stop, ir.Name(k.block), body, comment=self.said())

    def sides(self, shapes: Mapping[int, ir.Shape]) -> tuple[tuple[ir.Let | ir.Update, ...], dict[int, ir.Expr]]:
        """The tiles of factors, each with the axes that it has, and the statements that they take."""
        known = dict(self.builder.known)
        lets: list[ir.Let | ir.Update] = []
        found: dict[int, ir.Expr] = {}
        for i, shape in shapes.items():
            own, found[i] = self.factor(i, shape)
            lets += own
        self.builder.known = known
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
        tensors = [*dict.fromkeys(a.tensor for a in self.body.layout.accesses), *(o.name for o in self.spec.outputs)]
        views = self.views()
        found = []
        for name in tensors:
            if f"{name}_desc" in used:
                found.append(self._descriptor(name, self.host(name)))
            if f"{name}_ptr" in used or (f"{name}_desc" not in used and f"{name}:type" in used):
                found.append(ir.Argument(f"{name}_ptr", "pointer", views.get(name, name)))
        sizes = [(e.size, e.size) for e in self.body.layout.extents]
        sizes += [(g.size, g.size) for e in self.body.layout.extents for g in e.runs if g.size.isidentifier()]
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

    def _descriptor(self, name: str, host: str) -> ir.Argument:
        access = next(
            a for a in (*self.body.layout.accesses, *(a for _, a in self.body.layout.stores)) if a.tensor == name
        )
        box = self.box(access)
        ones = len(box.offsets) - len(box.shape)
        if self.is_merged(name, access):
            host = f"{host}.view({', '.join(self.run_size(str(index)) for index, _ in access.terms)})"
        return ir.Argument(f"{name}_desc", "descriptor", host, (*["1"] * ones, *(a.block for a in box.shape)))

    def is_merged(self, name: str, access: Access) -> bool:
        """Whether an output has other dimensions than its box."""
        output = next((o for o in self.spec.outputs if o.name == name), None)
        return output is not None and (ELLIPSIS in output.shape or len(output.shape) != len(access.terms))

    def run_size(self, index: str) -> str:
        return next(g.size for e in self.body.layout.extents for g in e.runs if g.index == index)


def _scalar(extent: Extent) -> str:
    return {"batch": "batch", "m": "row", "n": "column", "k": "k"}[extent.name]


def _start(extent: Extent) -> str:
    return {"m": "first_row", "n": "first_col", "k": "start"}[extent.name]


def _taken_apart(whole: ir.Name, runs: tuple[Group, ...], run: str) -> ir.Expr:
    """The index of one run from the number of an element of them all."""
    position = next(i for i, g in enumerate(runs) if g.index == run)
    sizes = [ir.Number(int(g.size)) if g.size.isdigit() else ir.Name(g.size) for g in runs]
    found: ir.Expr = whole
    for size in reversed(sizes[position + 1 :]):
        found = ir.Apply("int_div", (found, size), whole.shape)
    return ir.Apply("int_mod", (found, sizes[position]), whole.shape) if position else found


def reduces(body: ProductBody) -> bool:
    """Whether rows of the product are reduced, so that a tile holds whole rows."""
    return any(v.op in REDUCTIONS for v in body.lowered.values)


def has_batch(body: ProductBody) -> bool:
    return bool(body.extent("batch").runs)


def multiplies_float32(spec: OperatorSpec, body: ProductBody) -> bool:
    """Whether the factors may be float32, of which torch's setting says how they are multiplied."""
    return "float32" in dict(spec.dtypes).get(body.factor.dtype, (body.factor.dtype,))


def _constexprs(spec: OperatorSpec, body: ProductBody, *names: str) -> tuple[tuple[str, str | None], ...]:
    found: list[tuple[str, str | None]] = [(name, None) for name in names]
    return (*found, (PRECISION, "precision()")) if multiplies_float32(spec, body) else tuple(found)


def tiled_by_blocks(body: ProductBody) -> Tiled:
    return Tiled(
        axis_of(body.extent("m"), "BLOCK_M"), axis_of(body.extent("n"), "BLOCK_N"), axis_of(body.extent("k"), "BLOCK_K")
    )


def cdiv(size: str, block: str) -> ir.Expr:
    return ir.Apply("cdiv", (ir.Name(size), ir.Name(block)), ())


def _grouped(tile: ir.Expr) -> ir.Let:
    return ir.Let(
        ("tile_m", "tile_n"),
        ir.Call("tile_of", (tile, ir.Name("tiles_m"), ir.Name("tiles_n"), ir.Name("GROUP_M"))),
    )


_COUNTED = (ir.Let(("tiles_m",), cdiv("M", "BLOCK_M")), ir.Let(("tiles_n",), cdiv("N", "BLOCK_N")))
_TILES = ir.Apply("mul", (ir.Name("tiles_m"), ir.Name("tiles_n")), ())


def own_tile(
    body: ProductBody, tiles: ir.Expr, program: ir.Expr, *, narrow: bool = False
) -> tuple[tuple[ir.Let, ...], ir.Expr]:
    """What finds a program's batch, and the number of its tile within that. All are counted along one dimension of the
    grid, for the others end at 65535."""
    if not has_batch(body):
        return (), program
    count = ir.Let(("tiles",), tiles)
    batch: ir.Expr = ir.Apply("int_div", (program, ir.Name("tiles")), ())
    return (
        (count, ir.Let(("batch",), batch if narrow else ir.Cast(batch, "int64"))),
        ir.Apply("int_mod", (program, ir.Name("tiles")), ()),
    )


def grid_of(body: ProductBody, tiles: str) -> str:
    return f"{tiles} * BATCH" if has_batch(body) else tiles


def _of_tile(writer: Writer, schedule: Schedule, precision: bool) -> tuple[ir.Stmt, ...]:
    """One tile of the result, from the numbers of its elements to its stores."""
    body, tiled = writer.body, writer.tiled
    assert tiled.m is not None
    swap = bool(schedule.get("swap"))
    shape = (tiled.n, tiled.m) if swap else (tiled.m, tiled.n)
    loop = writer.loop(ir.Number(0), ir.Name("K"), precision=precision, swap=swap)
    writer.all_finished()
    return (
        *writer.numbers(body.extent("m"), tiled.m, "tile_m"),
        *writer.numbers(body.extent("n"), tiled.n, "tile_n"),
        *writer.begun(shape), loop, *writer.unswapped(swap=swap), *writer.stores(),
    )  # fmt: skip


_GRID_TILES = "tiles_m * tiles_n"


def _counts(rows: str = 'options["BLOCK_M"]', columns: str = 'options["BLOCK_N"]') -> tuple[tuple[str, str], ...]:
    """The wrapper's numbers of tiles."""
    return ("tiles_m", f"cdiv(M, {rows})"), ("tiles_n", f"cdiv(N, {columns})")


def by_pointers(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """A program computes a tile, whose factors it loads by pointers."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    precision = multiplies_float32(spec, body)
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((*_COUNTED, *own, _grouped(tile), *_of_tile(writer, schedule, precision)))
    constexprs = _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
    grid = (grid_of(body, _GRID_TILES),)
    return ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, grid, counts=_counts())


def boxable(spec: OperatorSpec, body: ProductBody) -> frozenset[str]:
    """The tensors whose tiles descriptors can copy: those of all factors, and outputs that are tiles of rows and
    columns; empty where a factor is none."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    found = set()
    loads = [a for a in body.layout.accesses if len(writer.axes(extents_of(body, a))) == 2]
    factors = [a for a in loads if "k" in extents_of(body, a)]
    count = len(body.firsts) + len(body.seconds)
    if len(factors) != count or any(not _is_boxable(body, a) for a in factors):
        return frozenset()
    if len({a.tensor for a in factors}) < count or any(
        sum(b.tensor == a.tensor for b in body.layout.accesses) > 1 for a in factors
    ):
        return frozenset()
    found |= {a.tensor for a in factors}
    kinds = dict(spec.dtypes)
    for _, access in body.layout.stores:
        dtype = next(o.dtype for o in spec.outputs if o.name == access.tensor)
        if len(writer.axes(extents_of(body, access))) == 2 and _is_boxable(body, access) and dtype in kinds:
            found.add(access.tensor)
    return frozenset(found)


def extents_of(body: ProductBody, access: Access) -> list[str]:
    """The extents that a tensor's dimensions are of, in the order of memory."""
    return [e.name for index, _ in access.terms for e in body.layout.extents if any(g.index == index for g in e.runs)]


def _is_boxable(body: ProductBody, access: Access) -> bool:
    """Whether a tensor's tiles are boxes: its two tiled extents whole, and its last two dimensions."""
    names = extents_of(body, access)
    tiled = [n for n in names if n != "batch"]
    whole = all(len(body.extent(n).runs) == 1 for n in tiled)
    return len(tiled) == 2 and whole and names[-2:] == tiled and len(names) <= 5


def by_boxes(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """A program computes a tile, or one after the other, whose factors it loads by descriptors."""
    writer = Writer(spec, body, tiled_by_blocks(body), body.boxed)
    precision = multiplies_float32(spec, body)
    persistent = bool(schedule.get("persistent"))
    program: ir.Expr = ir.Name("tile") if persistent else ir.Program(0)
    own, tile = own_tile(body, _TILES, program, narrow=writer.narrow_batch)
    inside = (*own, _grouped(tile), *_of_tile(writer, schedule, precision))
    constexprs = _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
    grid = grid_of(body, _GRID_TILES)
    if persistent:
        total = ir.Apply("mul", (_TILES, ir.Name("BATCH")), ()) if has_batch(body) else _TILES
        comment = "as many programs as run at once, each with one tile after the other"
        inside = (
            ir.Let(("num_tiles",), total),
            ir.For(
                "tile", ir.Program(0), ir.Name("num_tiles"), ir.Name("NUM_PROGRAMS"), inside, flatten=True,
                comment=comment,
            ),
        )  # fmt: skip
        programs = f"num_programs({spec.inputs[0].name}.device)"
        constexprs = (*constexprs, ("NUM_PROGRAMS", programs))
        grid = f"min({programs}, {grid})"
    inside = trimmed((*_COUNTED, *inside))
    return ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, (grid,), counts=_counts())


def _parts(writer: Writer, dot: int, *, several: bool = True) -> ir.Pointer:
    """Where the sums of a part lie, or those of the only one."""
    m, n = writer.tiled.result
    slot: ir.Expr | None = ir.Cast(ir.Name("part"), "int64") if several else None
    if has_batch(writer.body):
        batch = ir.Name("batch")
        slot = ir.Apply("add", (ir.Apply("mul", (slot, ir.Name("BATCH")), ()), batch), ()) if slot else batch
    terms: list[tuple[ir.Expr, str | None]] = [(ir.Name(m.index, (m,)), "N"), (ir.Name(n.index, (n,)), None)]
    if slot:
        terms.insert(0, (ir.Apply("mul", (ir.Apply("mul", (slot, ir.Name("M")), ()), ir.Name("N")), ()), None))
    return ir.Pointer(_memory(writer, dot), tuple(terms), (m, n))


def _memory(writer: Writer, dot: int) -> str:
    """What the sums of a product are called that one kernel leaves for the next."""
    return memory_of(writer.spec, writer.of_product(dot, "parts"))


def memory_of(spec: OperatorSpec, name: str = "parts") -> str:
    """What the sums that one kernel leaves for the next are called."""
    while name in {t.name for t in (*spec.inputs, *spec.outputs)}:
        name = f"launch_{name}"
    return name


def split(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Kernel, ir.Kernel]:
    """Every program sums a part; the second kernel adds the parts in their order, so that results repeat."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    m, n = writer.tiled.result
    swap = bool(schedule.get("swap"))
    shape = (n, m) if swap else (m, n)
    blocks = ir.Apply("cdiv", (cdiv("K", "BLOCK_K"), ir.Name("SPLITS")), ())
    first = ir.Apply("mul", (ir.Name("part"), ir.Name("length")), ())
    end = ir.Apply("whole_min", (ir.Apply("add", (first, ir.Name("length")), ()), ir.Name("K")), ())
    loop = writer.loop(first, ir.Name("end"), precision=multiplies_float32(spec, body), swap=swap)
    left = (ir.Store(_parts(writer, dot), writer.carry(dot), writer.mask((m, n))) for dot in body.dots)
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((
        *_COUNTED, *own, _grouped(tile), ir.Let(("part",), ir.Program(1)),
        *writer.numbers(body.extent("m"), m, "tile_m"), *writer.numbers(body.extent("n"), n, "tile_n"),
        ir.Let(("length",), ir.Apply("mul", (blocks, ir.Name("BLOCK_K")), ())), ir.Let(("end",), end),
        *writer.begun(shape), loop, *writer.unswapped(swap=swap), *left,
    ))  # fmt: skip
    batches = ["BATCH"] if has_batch(body) else []
    splits = 'options["SPLITS"]'
    shape_of = ", ".join([splits, *batches, "M", "N"])
    product = ir.Kernel(
        name, schedule, (*writer.arguments(inside), *_passed(writer)),
        _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLITS"), inside,
        (grid_of(body, _GRID_TILES), splits),
        tuple(ir.Scratch(_memory(writer, dot), f"({shape_of})") for dot in body.dots), _counts(),
    )  # fmt: skip
    return product, joined(spec, body, schedule, name.replace("_kernel", "_join_kernel"))


def _passed(writer: Writer) -> tuple[ir.Argument, ...]:
    names = [_memory(writer, dot) for dot in writer.body.dots]
    return tuple(ir.Argument(f"{name}_ptr", "pointer", name) for name in names)


def joined(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """What follows the product, from the sum of its parts."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    m, n = writer.tiled.result
    added: list[ir.Let] = []
    for dot, carry in zip(body.dots, writer.carries(), strict=True):
        part = ir.Cast(ir.Load(_parts(writer, dot), writer.mask((m, n))), "float32")
        added.append(ir.Let(("part_sum",), part))
        added.append(ir.Let((carry.text,), ir.Apply("add", (carry, ir.Name("part_sum", (m, n))), (m, n))))
    loop = ir.For("part", ir.Number(0), ir.Name("SPLITS"), ir.Number(1), tuple(added))
    writer.all_finished()
    summed: tuple[ir.Stmt, ...] = (*writer.begun((m, n)), loop)
    return _of_sums(writer, schedule, name, summed, (("SPLITS", 'options["SPLITS"]'),))


def after(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """What follows what torch's function computed."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    m, n = writer.tiled.result
    computed = ir.Name(body.names.of.get(body.called, writer.carry().text), (m, n))
    loaded = ir.Cast(ir.Load(_parts(writer, body.dot, several=False), writer.mask((m, n))), "float32")
    writer.finished(computed, body.called)
    return _of_sums(writer, schedule, name, (ir.Let((computed.text,), loaded),))


def _of_sums(
    writer: Writer, schedule: Schedule, name: str, summed: tuple[ir.Stmt, ...],
    more: tuple[tuple[str, str], ...] = (),
) -> ir.Kernel:  # fmt: skip
    """A kernel over tiles of a product that others have left in memory."""
    body = writer.body
    m, n = writer.tiled.result
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((
        *_COUNTED, *own, _grouped(tile), *writer.numbers(body.extent("m"), m, "tile_m"),
        *writer.numbers(body.extent("n"), n, "tile_n"), *summed, *writer.stores(),
    ))  # fmt: skip
    rows, columns = ('options["BLOCK_M"]', 'options["BLOCK_N"]') if reduces(body) else (_JOIN_ROWS, _JOIN_COLUMNS)
    constexprs = (("BLOCK_M", rows), ("BLOCK_N", columns), ("GROUP_M", "1"), *more)
    tiles = f"cdiv(M, {rows}) * cdiv(N, {columns})"
    arguments = (*_passed(writer), *writer.arguments(inside))
    return ir.Kernel(name, schedule, arguments, constexprs, inside, (grid_of(body, tiles),))


_JOIN_ROWS, _JOIN_COLUMNS = "4", "256"
"""The tile of the kernel that adds parts: a few rows, for there are few."""

"""What the kernels of attention have in common: where elements are, what is loaded, and what is stored."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from kernelgen.families.access import Access, Extent
from kernelgen.families.attention.lowering import SCALARS, TilesBody
from kernelgen.families.bounds import plus
from kernelgen.families.dtypes import SAID_OF_PRECISION
from kernelgen.families.family import Table
from kernelgen.families.masks import Term, counted
from kernelgen.families.values import Stored, Use, axes_of
from kernelgen.frontend.graph import SEARCH, Atom
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.builder import Builder, dtype_of
from kernelgen.tile.places import Places, taken_apart
from kernelgen.tile.walk import used_names

PRECISION = "PRECISION"
"""The constexpr that says how float32 is multiplied."""
_MASKS = {"rows": "row_mask", "keys": "key_mask", "dims": "dim_mask", "cols": "col_mask"}
_BLOCKS = {"M": "BLOCK_M", "N": "BLOCK_N", "D": "BLOCK_D", "E": "BLOCK_E"}
_INDICES = {"M": "rows", "N": "keys", "D": "dims", "E": "cols"}
SMALLEST = 16
"""The least extent of what the matrix units multiply."""


def axis_of(extent: Extent) -> ir.Axis:
    index = _INDICES[extent.size]
    return ir.Axis(extent.size.lower(), index, _MASKS[index], _BLOCKS[extent.size], extent.size)


def length(body: TilesBody, name: str) -> int | None:
    """The length of an extent, where the spec gives it as a number."""
    total = 1
    for a in body.extent(name).axes:
        size: Atom = body.lowered.space.axes[a]
        if not isinstance(size, int):
            return None
        total *= size
    return total


def power(body: TilesBody, name: str) -> int | None:
    """The power of two that holds an extent which the spec gives as a number."""
    known = length(body, name)
    return None if known is None else max(SMALLEST, 1 << (known - 1).bit_length())


class Writer:
    """Writes one kernel of attention: `boxed` says which tensors are copied by descriptors."""

    def __init__(self, spec: OperatorSpec, body: TilesBody, boxed: frozenset[str] = frozenset()) -> None:
        self.spec = spec
        self.body = body
        self.boxed = boxed
        self.m, self.n, self.d, self.e = (axis_of(body.extent(name)) for name in "mnde")
        self.reads = {a.load: a for a in body.layout.accesses}
        self.types = {t.name: t.dtype for t in (*spec.inputs, *spec.outputs)}
        self.extents = {a: extent for extent in body.layout.extents for a in extent.axes}
        of_space = {a: axis_of(extent) for a, extent in self.extents.items() if extent.name not in SCALARS}
        sizes = dict(body.layout.sizes)
        self.builder = Builder(body.lowered, body.names, body.statements, of_space, self._load, sizes)
        tile = tuple(dict.fromkeys((self.m, self.n, self.d, self.e)))
        self.places = Places(
            body.lowered, body.names, sizes, self._variables(), lambda i: self.builder.shape(i, tile), tile
        )
        self.builder.places = self.places
        for name, axis in (("m", self.m), ("n", self.n)):
            axes = body.extent(name).axes
            if len(axes) > 1:
                self.places.named[counted(body.lowered.space, axes)] = ir.Name(axis.index, (axis,))
        for i, value in enumerate(body.lowered.values):  # a number along an axis is the variable that counts it
            if (
                value.op == "place"
                and isinstance(value.index[0], Expr)
                and (value.index[0].op == "axis" or value.index[0] in self.places.named)
            ):
                self.builder.known[i] = self.places.place(value.index[0])
        sides = (("d", self.d), ("e", self.e))
        self.whole = {axis for name, axis in sides if power(body, name) == (length(body, name) or 0)}
        """The axes of which every element of a tile exists."""
        self.first: dict[str, ir.Expr] = {"m": ir.Name("first_row"), "n": ir.Name("start")}
        """Where the rows and keys begin that descriptors copy."""
        self.raw: set[int] = set()
        """Loads whose elements are multiplied as memory holds them."""

    # Where elements are

    def _variables(self) -> dict[int, ir.Name]:
        """What counts along every axis that stands alone."""
        found = {}
        for extent in self.body.layout.extents:
            for run in extent.runs:
                shape = () if extent.name in SCALARS else (axis_of(extent),)
                if len(run.axes) == 1:
                    found[run.axes[0]] = ir.Name(run.index, shape)
        return found

    def index(self, run: str) -> ir.Expr:
        """The numbers along one run of an extent."""
        extent = next(e for e in self.body.layout.extents if any(g.index == run for g in e.runs))
        if extent.name in SCALARS:
            return ir.Name(run)
        return ir.Name(run, (axis_of(extent),))

    def batches(self) -> tuple[ir.Let, ...]:
        """The numbers of the runs of a batch, from that of the whole."""
        extent = self.body.extent("batch")
        if len(extent.runs) < 2:
            return ()
        whole = ir.Name("batch")
        return tuple(ir.Let((run.index,), taken_apart(extent.runs, i, whole)) for i, run in enumerate(extent.runs))

    def parts(self, name: str, axis: ir.Axis) -> tuple[ir.Let, ...]:
        """The numbers of the runs of rows or keys, where these have several."""
        runs = self.body.extent(name).runs
        whole = ir.Name(axis.index, (axis,))
        return tuple(ir.Let((g.index,), taken_apart(runs, i, whole)) for i, g in enumerate(runs) if len(runs) > 1)

    def term(self, term: Term) -> ir.Expr:
        """What a mask's bound adds, without its sign."""
        return (
            self.places.place(term.of) if isinstance(term.of, Expr) else self.builder.value(term.of, (self.m, self.n))
        )

    def rows(self, axis: ir.Axis) -> tuple[ir.Name, ir.Name | None]:
        """The numbers of a tile's elements along an axis, and which exist, if that is not all."""
        exist = None if axis in self.whole else ir.Name(axis.mask, (axis,))
        return ir.Name(axis.index, (axis,)), exist

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        terms = []
        for index, stride in access.terms:
            place = self.places.place(index) if isinstance(index, Expr) else self.index(index)
            terms.append((place, stride))
        return ir.Pointer(access.tensor, tuple(terms), shape)

    def box(self, access: Access) -> ir.Box:
        """A tile of a tensor by its descriptor, in the order of memory."""
        offsets: list[ir.Expr] = []
        shape: list[ir.Axis] = []
        for index, _ in access.terms:
            extent = next(e for e in self.body.layout.extents if any(g.index == index for g in e.runs))
            if extent.name in SCALARS:
                offsets.append(ir.Cast(ir.Name(str(index)), "int32"))
            else:
                offsets.append(self.first.get(extent.name, ir.Number(0)))
                shape.append(axis_of(extent))
        return ir.Box(f"{access.tensor}_desc", tuple(offsets), tuple(shape))

    def mask(self, shape: ir.Shape, conditions: Iterable[Condition] = ()) -> ir.Expr | None:
        """Which elements of a tile exist, and meet some conditions."""
        parts: list[ir.Expr] = [ir.Name(axis.mask, (axis,)) for axis in shape if axis not in self.whole]
        for c in conditions:
            sides = tuple(self.places.place(side) for side in (c.left, c.right))
            along = tuple(a for a in shape if any(a in side.shape for side in sides))
            parts.append(ir.Apply("lt" if c.op == "<" else "ge", sides, along))
        if not parts:
            return None
        joined = parts[0]
        for part in parts[1:]:
            both = tuple(a for a in shape if a in (*joined.shape, *part.shape))
            joined = ir.Apply("and", (joined, part), both)
        return joined

    def numbers(self, axis: ir.Axis, start: ir.Expr) -> tuple[ir.Let, ...]:
        """The numbers of a tile's elements along an axis, in int64 because an offset may pass 2**31; which exist."""
        exists = ir.Apply("lt", (ir.Name(axis.index, (axis,)), ir.Name(axis.size)), (axis,))
        return (
            ir.Let((axis.index,), ir.Cast(ir.Range(axis, start), "int64")),
            *(() if axis in self.whole else (ir.Let((axis.mask,), exists),)),
        )

    # What is loaded and stored

    def _load(self, i: int, shape: ir.Shape) -> ir.Expr:
        """A load in float32, unless it is multiplied as it is; or a search."""
        access, value = self.reads[i], self.body.lowered.values[i]
        if value.op == SEARCH:
            return self._search(i, shape)
        if access.tensor in self.boxed:
            return self.box(access)
        other = value.fill if value.fill is not None else 0.0 if value.dtype == "float" else 0
        loaded = ir.Load(self.pointer(access, shape), self.mask(shape, value.conditions), other)
        widen = value.dtype == "float" and i not in self.raw and self.types[access.tensor] != "float32"
        return ir.Cast(loaded, "float32") if widen else loaded

    def _search(self, i: int, shape: ir.Shape) -> ir.Expr:
        """How many ends are less than a place, or no more than it, in as many steps as their number has bits."""
        value, ((_, stride),) = self.body.lowered.values[i], self.reads[i].terms
        place, count = (self.builder.value(a.value, shape) for a in value.args if isinstance(a, Use))
        ends = (ir.Name(f"{value.tensor}_ptr"), ir.Name(stride) if stride else ir.Number(1))
        place = place if value.attr == "le" else plus(place, -1, shape)
        return ir.Call("ends_until", (place, *ends, count, ir.Name(self._bits(i)[0])), shape)

    def _bits(self, i: int) -> tuple[str, str]:
        """The constexpr that says how many bits the number of ends has that are searched, and the wrapper's expression
        for it."""
        value = self.body.lowered.values[i]
        (size,) = next(t.shape for t in self.spec.inputs if t.name == value.tensor)
        return f"{str(value.tensor).upper()}_BITS", f"{size}.bit_length()" if isinstance(size, str) else str(
            size.bit_length()
        )

    def stores(self) -> tuple[ir.Stmt, ...]:
        """The outputs, after what they need."""
        tile = (self.m, self.e)
        found: list[ir.Stmt] = [*self.builder.lets((s.value for s, _ in self.body.layout.stores), tile)]
        return (*found, *(self.store(stored, access, tile) for stored, access in self.body.layout.stores))

    def store(self, stored: Stored, access: Access, tile: ir.Shape) -> ir.Stmt:
        value = self.builder.value(stored.value, tile)
        own = {a for dim in stored.index for a in axes_of(dim)}
        shape = tuple(x for x in tile if own & self._axes(x))
        return ir.Store(self.pointer(access, shape), value, self.mask(shape))

    def _axes(self, axis: ir.Axis) -> set[int]:
        names = [name for name, own in zip("mnde", (self.m, self.n, self.d, self.e), strict=True) if own == axis]
        return {a for name in names for a in self.body.extent(name).axes}

    # Factors

    def factor(self, i: int, shape: ir.Shape, summed: ir.Axis) -> tuple[tuple[ir.Stmt, ...], ir.Expr]:
        """A tile as it is multiplied: in the dtype that the reference multiplies, zero beyond what is summed."""
        value = self.body.lowered.values[i]
        if value.op == "load":
            self.raw.add(i)
            lets = self.builder.lets([i], shape)
            return lets, self.builder.value(i, shape)
        source = i
        if value.op == "round":
            (arg,) = value.args
            assert isinstance(arg, Use)
            source = arg.value
        if source != i and self._is_multiplied_alone(source):
            self.raw.add(source)
            lets = self.builder.lets([source], shape)
            return lets, ir.Cast(self.builder.value(source, shape), dtype_of(value))
        lets = self.builder.lets([source], shape)
        inside = self.builder.value(source, shape)
        if summed not in self.whole:  # what the reference makes of a zero beyond the end may be none
            inside = ir.Apply("where", (ir.Name(summed.mask, (summed,)), inside, ir.Number(0.0)), shape)
        side = ir.Name(f"{self.body.sides()[i]}_tile", shape)
        whole = ir.Cast(inside, dtype_of(value)) if value.op == "round" else inside
        return (*lets, ir.Let((side.text,), whole)), side

    def _is_multiplied_alone(self, i: int) -> bool:
        """Whether nothing else is computed from a load, which need not be widened before it is rounded then."""
        values = self.body.lowered.values
        return values[i].op == "load" and not values[i].fill and sum(Use(i) in v.args for v in values) == 1

    # What the host passes

    def arguments(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Argument, ...]:
        """What the statements mention of tensors, strides and sizes, in that order."""
        used = used_names(body)
        read = (a.tensor for a in self.body.layout.accesses)  # others may say a dtype
        tensors = [*dict.fromkeys((*read, *(t.name for t in self.spec.inputs))), *(o.name for o in self.spec.outputs)]
        views = {a.tensor: a.view[0] for a in self.body.layout.accesses if a.view}
        found = []
        for name in tensors:
            if f"{name}_desc" in used:
                box = self.box(next(a for a in self.body.layout.accesses if a.tensor == name))
                blocks = (*["1"] * (len(box.offsets) - len(box.shape)), *(axis.block for axis in box.shape))
                found.append(ir.Argument(f"{name}_desc", "descriptor", views.get(name, name), blocks))
            elif f"{name}_ptr" in used or f"{name}:type" in used:
                found.append(ir.Argument(f"{name}_ptr", "pointer", views.get(name, name)))
        sizes = [(e.size, e.size) for e in self.body.layout.extents]
        sizes += [(g.size, g.size) for e in self.body.layout.extents for g in e.runs if g.size.isidentifier()]
        sizes += [(parameter, parameter) for _, parameter in self.body.layout.sizes]
        found += [ir.Argument(n, "number", host) for n, host in dict(sizes).items() if n in used]
        strides = dict(s for a in self.body.layout.accesses for s in a.strides)
        return (*found, *(ir.Argument(n, "number", host) for n, host in strides.items() if n in used))

    def product(self, a: ir.Expr, b: ir.Expr, total: ir.Name | None = None) -> ir.Expr:
        """`total + a @ b`, or the product alone."""
        if not multiplies_float32(self.spec, self.body):
            return ir.Dot(a, b, total)
        if total is None or not self.splits():
            return ir.Dot(a, b, total, PRECISION)
        return ir.Call("sum_and_dot", (total, a, b, ir.Name(PRECISION)), total.shape)

    def splits(self) -> bool:
        """Whether factors may be float32 that is multiplied in TF32 parts."""
        return multiplies_float32(self.spec, self.body) and self.spec.precision not in ("ieee", "tf32")

    def constexprs(self, *names: str) -> tuple[tuple[str, str | None], ...]:
        """Those that the table's line says, the sizes of heads, and how float32 is multiplied."""
        found: dict[str, str | None] = dict.fromkeys(names)
        for name, axis in (("d", self.d), ("e", self.e)):
            known = power(self.body, name)
            host = f"max({SMALLEST}, next_power_of_2({axis.size}))"
            found[axis.block] = str(known) if known is not None else host
        searches = (i for i, value in enumerate(self.body.lowered.values) if value.op == SEARCH)
        found |= dict(map(self._bits, searches))
        if multiplies_float32(self.spec, self.body):
            found[PRECISION] = f'"{self.spec.precision}"' if self.spec.precision else self._precision()
        return tuple(found.items())

    def _precision(self) -> str:
        """The wrapper's expression for how float32 is multiplied."""
        heads = dict.fromkeys(str(length(self.body, name) or self.body.extent(name).size) for name in "de")
        longest = f"max({', '.join(heads)})" if len(heads) > 1 else next(iter(heads))
        return f"attention_precision({longest})"


def boxable(spec: OperatorSpec, body: TilesBody, factors: Iterable[int]) -> frozenset[str]:
    """The tensors of the factors of products, where descriptors can copy the tiles of all of them; empty where they
    cannot."""
    tensors: list[str] = []
    for i in factors:
        access = next((a for a in body.layout.accesses if a.load == i), None)
        if access is None or body.lowered.values[i].conditions or any(isinstance(t, Expr) for t, _ in access.terms):
            return frozenset()
        names = extents_of(body, access)
        rank = len(next(t.shape for t in spec.inputs if t.name == access.tensor))
        whole = all(len(body.extent(name).runs) == 1 for name in "mnde")
        if "".join(names[-2:]) not in ("MD", "ME", "ND", "NE") or set(names[:-2]) - {"BATCH", "SHARED"} or not whole:
            return frozenset()
        if len(names) > 5 or (access.view is None and rank != len(names)):
            return frozenset()
        tensors.append(access.tensor)
    alone = all(sum(a.tensor == t for a in body.layout.accesses) == 1 for t in tensors)
    return frozenset(tensors) if alone and len(set(tensors)) == len(tensors) else frozenset()


def extents_of(body: TilesBody, access: Access) -> list[str]:
    """The lengths that a tensor's dimensions have, in the order of memory: `BATCH`, `SHARED`, `M`, `N`, `D` or `E`."""
    sizes = {g.index: e.size for e in body.layout.extents for g in e.runs}
    return [sizes.get(str(index), "") for index, _ in access.terms]


def multiplies_float32(spec: OperatorSpec, body: TilesBody) -> bool:
    """Whether a product's factors may be float32, of which torch's setting or the spec says how they are multiplied."""
    kinds = dict(spec.dtypes).get(body.factor.dtype, (body.factor.dtype,))
    return "float32" in kinds or not body.rounds()


SPLIT_FLOAT32, LONGEST_SPLIT = "tf32x3", 256
"""How float32 is multiplied unless torch is set to TF32, and of heads of how many elements at most: as torch's own
attention does from sm_80 on (PyTorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h:
OpMultiplyAddFastF32)."""
_AS_TORCHS = (
    "float32 products of attention are three TF32 products, which keep float32 precision, as in torch's, and full "
    "precision beyond heads of 256 elements; one where torch.backends.cuda.matmul.fp32_precision is tf32"
)


def longest_head(spec: OperatorSpec, body: TilesBody) -> int:
    """The elements of the longest heads that are timed in float32; 0 where none are."""
    timed = [case for case in spec.performance if case.dtype(multiplied_dtype(body)) == "float32"]
    shapes = [tuple(str(body.lowered.space.axes[a]) for a in body.extent(name).axes) for name in "de"]
    lengths = [[int(n) if n.isdigit() else dict(case.sizes)[n] for n in one] for case in timed for one in shapes]
    return max((prod(n for n in one if isinstance(n, int)) for one in lengths), default=0)


def said_of_products(spec: OperatorSpec, body: TilesBody) -> list[str]:
    """A note on how float32 is multiplied, where it may be."""
    said = SAID_OF_PRECISION[spec.precision] if spec.precision else _AS_TORCHS
    return [said] if multiplies_float32(spec, body) else []


def reached(body: TilesBody, table: Table) -> Table:
    """The lines of a table that float32 alone, where a spec gives no other, can reach."""
    return tuple(row for row in table if body.factor.dtype != "float32" or row.limit("itemsize") is None)


def multiplied_dtype(body: TilesBody) -> str:
    """The dtype in which factors are multiplied: that of a tensor, or float32 of what is made of it."""
    return body.factor.dtype if body.rounds() else "float32"


def multiplied_as(spec: OperatorSpec, body: TilesBody) -> str:
    """How products of float32 are, as an operator's Product says it."""
    longest = max(length(body, name) or 0 for name in "de")
    return spec.precision or (SPLIT_FLOAT32 if longest <= LONGEST_SPLIT else "ieee")

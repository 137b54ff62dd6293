"""A product and what is around it as values over batch, rows, columns and what is summed.

The space has the axes of the product's result, then those that it is summed over. What is computed from the product
keeps the result's axes; what its operands are computed from is pulled back to the inputs, as everywhere. Several
products share a space where they have one operand in common and all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from kernelgen.families.access import (
    WHOLE,
    Access,
    Extent,
    Group,
    Layout,
    collapse,
    distinct_strides,
    flat_axes,
    group_name,
    size_parameters,
    strided_access,
)
from kernelgen.families.dtypes import element_types
from kernelgen.families.kernel import Body, make_body
from kernelgen.families.lowering import Lowering
from kernelgen.families.masks import counted
from kernelgen.families.matmul.triangles import Triangles, triangles
from kernelgen.families.naming import RESERVED
from kernelgen.families.regrouped import in_common_parts, with_repeats
from kernelgen.families.space import split
from kernelgen.families.stages import in_memory_order, reshaped
from kernelgen.families.values import (
    Entry,
    Index,
    Lowered,
    Space,
    Stored,
    Unlowerable,
    Use,
    Value,
    axes_of,
    expressions,
)
from kernelgen.frontend.graph import (
    ARG_REDUCTIONS,
    DOT,
    INDEXED,
    REDUCTIONS,
    SCANS,
    SCATTERS,
    SELECTIONS,
    Atom,
    Dim,
    Graph,
    Node,
    Ref,
    canonical,
)
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.intervals import narrowed
from kernelgen.frontend.masks import OPERATION
from kernelgen.frontend.operations import of_kind
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import OperatorSpec, TensorSpec

_REDUCED = of_kind("reduction")
"""Reductions of the columns that a tile holds whole."""


MOST_PRODUCTS = 4
"""Products of one kernel, whose sums are all in registers at once."""
_RESERVED = RESERVED | {
    *(f"{side}_{number}" for side in ("left", "right") for number in range(2, MOST_PRODUCTS + 1)),
    "ks", "k_mask", "left", "right", "tile_m", "tile_n", "tiles_m", "tiles_n", "num_tiles",
    "first_row", "first_col", "batch", "products", "part_sum",
    "length", "number", "group", "rest", "end_row", "first", "full_start", "full_end", "end",
    "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_PROGRAMS", "NUM_GROUPS", "PROMOTED", "PRECISION",
    "K", "BATCH", "parts_ptr", "width", "tiles", "tile_k", "tiles_k",
    *(f"{side}_{part}" for side in ("left", "right") for part in ("high", "low")),
}  # fmt: skip
"""What kernels of products call values of their own."""
FEW = 16
"""Elements that every tile is a multiple of."""
NARROW = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
"""Dtypes whose products float32 holds exactly."""
IN_GROUPS = "in groups"
"""The attribute of a product whose rows have a matrix of their group each; its third operand says where groups end."""
UNSCALED = "unscaled"
"""The attribute of a product whose factors the reference scales, and rounds to no more than float32."""


@dataclass(frozen=True, kw_only=True)
class ProductBody(Body):
    """What the kernels of a product are printed from."""

    dots: tuple[int, ...]
    """The values that are products; the operands of each are its two factors."""
    factor: TensorSpec
    """A tensor of the dtype that is multiplied."""
    boxed: frozenset[str] = frozenset()
    """The tensors whose tiles descriptors can copy."""
    library: str = ""
    """Torch's function for the product; empty where it would have to copy the factors first."""
    called: int = -1
    """The value that this function computes: the product, or its sum with a bias or a residual, rounded once."""
    is_library: bool = False
    """Whether that function computes all there is."""
    triangles: Triangles | None = None
    """What masks leave out."""
    in_parts: bool = False
    """Whether rows are reduced tile by tile, and the tiles of a row joined by a second kernel."""
    written: Written | None = None
    """The same of factors that lie in memory, where these may be written there first."""
    may_be_wide: bool = True
    """Whether the factors may be float32."""
    in_three: bool = False
    """Whether float32 is multiplied as three products of TF32, where deeper blocks were 1.07 times as fast."""
    lows: tuple[tuple[int, int], ...] = ()
    """Of factors in memory that TF32 holds most of, each with what is left of it: float32 that is multiplied so."""

    @property
    def dot(self) -> int:
        """The first product."""
        return self.dots[0]

    def extent(self, name: str) -> Extent:
        return next(e for e in self.layout.extents if e.name == name)

    def factors_of(self, dot: int) -> tuple[int, int]:
        """The values that a product multiplies."""
        first, second, *_ = (a.value for a in self.lowered.values[dot].args if isinstance(a, Use))
        return first, second

    def scales_of(self, dot: int) -> tuple[int, ...]:
        """What multiplies the sum of every group of a product: loads that vary from group to group."""
        rest = () if self.ends is not None else self.lowered.values[dot].args[2:]
        return tuple(a.value for a in rest if isinstance(a, Use))

    @property
    def ends(self) -> int | None:
        """Where groups of rows end that have a matrix of their own each, a load; None: all rows have one."""
        value = self.lowered.values[self.dot]
        return value.args[2].value if value.attr == IN_GROUPS and isinstance(value.args[2], Use) else None

    @property
    def width(self) -> int:
        """The power of two that holds a row, where its columns are a number."""
        sizes = [self.lowered.space.axes[a] for a in self.extent("n").axes]
        return max(16, 1 << (prod(size for size in sizes if isinstance(size, int)) - 1).bit_length())

    @property
    def firsts(self) -> tuple[int, ...]:
        """The factors with rows, each once."""
        return tuple(dict.fromkeys(self.factors_of(dot)[0] for dot in self.dots))

    @property
    def seconds(self) -> tuple[int, ...]:
        """The factors with columns, each once."""
        return tuple(dict.fromkeys(self.factors_of(dot)[1] for dot in self.dots))


@dataclass(frozen=True)
class Written:
    """A product of factors that are computed, once these are in memory."""

    spec: OperatorSpec
    """The operator with these factors as inputs."""
    body: ProductBody
    factors: tuple[tuple[int, tuple[Access, ...]], ...]
    """The values that are written, each with where it lies; of float32 in two parts, where both do."""


def converted_load(body: ProductBody, number: int) -> int | None:
    """The load of whole numbers that a value converts to floats, and does no more."""
    value = body.lowered.values[number]
    if value.op != "convert" or value.dtype != "float" or not isinstance(value.args[0], Use):
        return None
    source = body.lowered.values[value.args[0].value]
    return value.args[0].value if source.op == "load" and source.dtype not in ("bool", "float") else None


def body(spec: OperatorSpec, graph: Graph) -> ProductBody:
    """Raises Unlowerable where one kernel cannot compute the graph."""
    graph, lowered, roles = lower(spec, graph, ProductLowering)
    return _laid_out(spec, graph, lowered, roles.extents)


def lower(
    spec: OperatorSpec, graph: Graph, make: Callable[[Graph, Mapping[int, Roles]], ProductLowering]
) -> tuple[Graph, Lowered, Roles]:
    """A graph of products as values, and what the first product's axes count. Raises Unlowerable."""
    graph = narrowed(in_common_parts(in_memory_order(with_repeats(graph))))
    each = {i: _roles(graph, node) for i, node in enumerate(graph.nodes) if node.op == DOT}
    roles = next(iter(each.values()))
    unlike = next((i for i, other in each.items() if not roles.is_like(other)), None)
    if unlike is not None:
        raise Unlowerable("products of different sizes in one kernel", graph.nodes[unlike].statement)
    lowering = make(graph, each)
    lowering.dtypes = {t.name: t.dtype for t in spec.inputs}
    lowering.scales = frozenset(t.name for t in spec.inputs if t.role == "scale")
    stored = []
    for output in graph.outputs:
        index = lowering.natural.get(output.node)
        if index is None:
            raise Unlowerable("an output that is not computed from the product")
        stored.append(Stored(output.name, lowering.unrounded(output, index), output.dtype, index))
    variables = element_types(spec, lowering.values)
    values = tuple(replace(v, attr=variables.get(v.attr or "", v.attr)) for v in lowering.values)
    return graph, Lowered(roles.space, values, tuple(stored), has_reciprocals=lowering.has_reciprocals), roles


@dataclass(frozen=True)
class Roles:
    """The letters of a product's equation by what they count."""

    space: Space
    extents: dict[str, tuple[int, ...]]
    """The axes of batch, rows, columns and what is summed over."""
    entries: dict[str, tuple[int, ...]]
    """The axes of every letter."""
    swapped: bool
    """Whether the second operand has the rows."""

    def is_like(self, other: Roles) -> bool:
        """Whether another product's result has the same elements, sums of as many."""
        return self.space == other.space and self.extents == other.extents


def _roles(graph: Graph, node: Node) -> Roles:
    first, second, result = _labels(node)
    dims: dict[str, Dim] = {}
    for labels, arg in zip((first, second), node.args[:2], strict=True):
        assert isinstance(arg, Ref)
        for label, dim in zip(labels, graph.nodes[arg.node].shape, strict=True):
            dims[label] = dim or dims.get(label, ())
    apart = reshaped(graph)  # such as columns into heads, afterwards
    dims = {label: apart.get(canonical(dim), dim) for label, dim in dims.items()}
    # a matrix by a vector is the vector by the transposed matrix
    swapped = not any(dims[c] for c in result if c in second and c not in first)
    rows, columns = (second, first) if swapped else (first, second)
    letters = {
        "batch": [c for c in result if c in first and c in second] or [c for c in second if c not in first + result],
        "m": [c for c in result if c in rows and c not in columns],
        "n": [c for c in result if c in columns and c not in rows],
        "k": [c for c in first if c in second and c not in result],
    }
    for kind, said in (("n", "a product of two vectors"), ("k", "a product that sums a single element")):
        if not any(dims[c] for c in letters[kind]):
            raise Unlowerable(said, node.statement)
    entries: dict[str, tuple[int, ...]] = {}
    axes: list[Atom] = []
    for c in (c for own in letters.values() for c in own):
        entries[c] = tuple(range(len(axes), len(axes) + len(dims[c])))
        axes += dims[c]
    extents = {kind: tuple(a for c in own for a in entries[c]) for kind, own in letters.items()}
    return Roles(Space(tuple(axes), len(axes) - len(extents["k"])), extents, entries, swapped)


def _labels(node: Node) -> tuple[str, str, str]:
    operands, _, result = node.equation.partition("->")
    first, _, second = operands.partition(",")
    return first, second, result


class ProductLowering(Lowering):
    """Pulls indices back to the inputs, through the products of a graph."""

    def __init__(self, graph: Graph, products: Mapping[int, Roles]) -> None:
        """`products`: what the axes of each count, by its node."""
        first = next(iter(products.values()))
        super().__init__(graph, first.space, apart=False)
        self.products = products
        self.dtypes: dict[str, str] = {}
        """The dtypes of the tensors, which may be variables."""
        self.scales: frozenset[str] = frozenset()
        """The tensors that may multiply a sum and not each of its summands."""
        self.columns = frozenset(first.extents["n"])
        self.natural: dict[int, Index] = {}
        """Every value that is computed from a product, by the axes of its dimensions."""
        for i, node in enumerate(graph.nodes):
            index = self._result(node, products[i]) if i in products else self._follow(node)
            if index is not None:
                self.natural[i] = index

    def _result(self, node: Node, roles: Roles) -> Index:
        if any(isinstance(a, Ref) and a.node in self.natural for a in node.args):
            raise Unlowerable("a product of what another product is used for", node.statement)
        return tuple(roles.entries[c] if d else () for c, d in zip(_labels(node)[2], node.shape, strict=True))

    def _follow(self, node: Node) -> Index | None:
        """The axes of a value that is computed from the product; None where it is not."""
        read = [a.node for a in node.args if isinstance(a, Ref) and a.node in self.natural]
        if not read:
            if node.op in REDUCTIONS:
                raise Unlowerable("a reduction before a product", node.statement)
            return None
        if node.op in (*INDEXED, *SCANS, *SCATTERS, *SELECTIONS, DOT):
            raise Unlowerable("a part of a product that is moved within its kernel", node.statement)
        index, shape = self.natural[read[0]], self.graph.nodes[read[0]].shape
        if node.op == "permute":
            return tuple(index[int(d)] for d in node.attrs)
        if node.op == "reshape":
            return split(node.shape, tuple(a for dim in index for a in axes_of(dim)), self.space, node.statement)
        if node.op in REDUCTIONS:
            reduced = {int(d) + len(shape) for d in node.attrs}
            is_of_columns = {a for d in reduced for a in axes_of(index[d])} == self.columns
            if node.op not in (*_REDUCED, *ARG_REDUCTIONS) or not is_of_columns:
                raise Unlowerable(f"{node.op} of a product over other dimensions than its columns", node.statement)
            return tuple(() if d in reduced else dim for d, dim in enumerate(index))
        found: list[tuple[int, ...]] = [()] * len(node.shape)
        for i in read:
            for d, dim in enumerate(reversed(self.natural[i]), 1):
                if dim and found[-d] not in ((), dim):
                    raise Unlowerable("a product that is used in two ways in one kernel", node.statement)
                found[-d] = found[-d] or axes_of(dim)
        if any(dim and not axes for dim, axes in zip(node.shape, found, strict=True)):
            raise Unlowerable("a product that is broadcast within its kernel", node.statement)
        return tuple(found)

    def value(self, number: int, index: Index) -> int:
        node = self.graph.nodes[number]
        if number in self.natural and self.natural[number] != index:
            raise Unlowerable("a product that is read in two ways in one kernel", node.statement)
        if node.op == OPERATION:
            raise Unlowerable("random numbers in a product kernel", node.statement)
        return self.dot(number) if number in self.products else super().value(number, index)

    def dot(self, number: int) -> int:
        node, roles = self.graph.nodes[number], self.products[number]
        first, second, _ = _labels(node)
        uses = []
        for labels, arg in zip((first, second), node.args[:2], strict=True):
            assert isinstance(arg, Ref)
            shape = self.graph.nodes[arg.node].shape
            index = tuple(roles.entries[c] if dim else () for c, dim in zip(labels, shape, strict=True))
            uses.append(Use(self.value(arg.node, index)))
        axes = frozenset(a for dim in self.natural[number] for a in axes_of(dim))
        left, right = uses[::-1] if roles.swapped else uses
        if node.args[2:]:
            (ends,) = (self.value(a.node, (roles.extents["batch"],)) for a in node.args[2:] if isinstance(a, Ref))
            if self.values[ends].op != "load":
                raise Unlowerable("groups of a product that end where no input says", node.statement)
            args = (left, right, Use(ends))
            return self.add(Value("dot", args, "float", axes, node.name, node.statement, attr=IN_GROUPS))
        a, b = self._unscaled(left, roles), self._unscaled(right, roles)
        if (a[1] or b[1]) and a[2] == b[2] != "":
            summed = set(roles.extents["k"])
            scales = [*a[1], *b[1]]
            inner = tuple(scale for scale in scales if self.values[scale.value].axes & summed)
            outer = [scale for scale in scales if scale not in inner]
            name = "unscaled" if outer else node.name
            made = self.add(Value("dot", (a[0], b[0], *inner), "float", axes, name, node.statement, attr=UNSCALED))
            for i, scale in enumerate(outer, 1):
                name = node.name if i == len(outer) else None
                made = self.add(Value("mul", (Use(made), scale), "float", axes, name, node.statement))
            return made
        if self._held(left) != self._held(right):
            left, right = self._widened(left), self._widened(right)
        return self.add(Value("dot", (left, right), "float", axes, node.name, node.statement))

    def _held(self, factor: Use) -> str:
        """The dtype that has all of a factor's values."""
        value = self.values[factor.value]
        if value.op == "load":
            return self.dtypes[str(value.tensor)]
        return str(value.attr) if value.op == "round" else "float32"

    def _widened(self, factor: Use) -> Use:
        """A factor in float32, in which one of another dtype is multiplied with it."""
        if self._held(factor) == "float32":
            return factor
        value = self.values[factor.value]
        return Use(self.add(Value("round", (factor,), "float", value.axes, statement=value.statement, attr="float32")))

    def _unscaled(self, factor: Use, roles: Roles) -> tuple[Use, tuple[Use, ...], str]:
        """A factor as memory holds it, in fewer bits than float32, what scales it in float32, and its dtype, empty if
        it has more. A scale is the same for all that is summed, or is loaded for equal groups of it."""
        value = self.values[factor.value]
        if value.op == "load":
            dtype = self.dtypes[str(value.tensor)]
            return factor, (), dtype if dtype in NARROW else ""
        if value.op == "mul":
            pairs = [value.args, value.args[::-1]]
            for one, scale in ((a, b) for a, b in pairs if isinstance(a, Use) and isinstance(b, Use)):
                load, scales, dtype = self._unscaled(one, roles)
                if dtype and self._is_scale(scale, roles):
                    return load, (*scales, scale), dtype
        return factor, (), ""

    def _is_scale(self, scale: Use, roles: Roles) -> bool:
        summed, value = roles.extents["k"], self.values[scale.value]
        if value.op != "load" or value.tensor not in self.scales:
            return False
        own = tuple(a for a in summed if a in value.axes)
        sizes = [self.space.axes[a] for a in summed[len(own) :]]
        if not own:
            return True
        group = prod(size for size in sizes if isinstance(size, int))
        whole = all(isinstance(size, int) for size in sizes) and own == summed[: len(own)]
        return whole and group > FEW and not group & (group - 1)

    def reduction(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        value = self.value(source.node, self.natural[source.node])
        axes = self.values[value].axes - self.columns
        return self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement))

    def iota(self, node: Node, axes: Entry) -> int:
        return self.counted(counted(self.space, axes_of(axes)))

    def rows(self) -> tuple[Atom, ...]:
        return ()


def _laid_out(
    spec: OperatorSpec, graph: Graph, lowered: Lowered, extents: Mapping[str, tuple[int, ...]]
) -> ProductBody:
    values = lowered.values
    loads = [(i, v) for i, v in enumerate(values) if v.op == "load"]
    moved = next((v for _, v in loads if v.conditions or any(isinstance(e, Expr) for e in v.index)), None)
    if moved is not None:
        raise Unlowerable(f"elements of {moved.tensor} that are moved before a product reads them", moved.statement)
    counted = {a for v in values if v.op == "place" for e in v.index for a in axes_of(e)}
    if not counted <= {a for kind in ("m", "n", "k") for a in extents[kind]}:
        raise Unlowerable("the places of elements in the kernel of a product")
    reserved = _RESERVED | {f"{t.name}_desc" for t in (*spec.inputs, *spec.outputs)}
    taken = {t.name for t in (*spec.inputs, *spec.outputs)} | reserved
    each: list[Index] = [(axes,) for axes in extents.values() if axes]
    runs = collapse(
        len(lowered.space.axes), lowered.space.outer,
        [*(v.index for _, v in loads), *(o.index for o in lowered.outputs), *each], counted,
    )  # fmt: skip
    found = tuple(
        _extent(kind, [run for run in runs if set(run) <= set(axes)], lowered, taken) for kind, axes in extents.items()
    )
    indices = [*(v.index for _, v in loads), *(o.index for o in lowered.outputs)]
    found = tuple(_with_spans(extent, indices, lowered, taken) for extent in found)
    written = [
        (o.value, Value("store", (), o.dtype, frozenset(), tensor=o.name, index=o.index)) for o in lowered.outputs
    ]
    accesses = distinct_strides([_access(spec, i, v, found) for i, v in (*loads, *written)])
    reads = accesses[: len(loads)]
    wholes = Group(found[2].axes, "N", "cols")
    outer = tuple(run for extent in found[:2] for run in extent.runs)
    stores = tuple(zip(lowered.outputs, accesses[len(loads) :], strict=True))
    single = tuple(Group(e.axes, e.size, e.name) for e in found if len(e.runs) == 1)
    found_sizes = [e for v in values for e in expressions(v)]
    sizes = size_parameters(found_sizes, lowered.space.axes, single, taken)
    plain = make_body(
        spec, lowered, graph.statements, Layout(outer, wholes, (), reads, (), stores, sizes, found), reserved=reserved
    )  # fmt: skip
    dots = tuple(i for i, v in enumerate(values) if v.op == "dot")
    factors = [factor_of(spec, lowered, dot) for dot in dots]
    if len({factor.dtype for factor in factors}) > 1:
        raise Unlowerable("products of several dtypes in one kernel", values[dots[1]].statement)
    in_groups = any(values[dot].attr == IN_GROUPS for dot in dots)
    if in_groups and (len(dots) > 1 or len(extents["batch"]) != 1 or not extents["m"]):
        raise Unlowerable("several grouped products in one kernel", values[dots[0]].statement)
    masks = None if in_groups else triangles(lowered, dots, extents)
    body = ProductBody(**vars(plain), dots=dots, factor=factors[0], triangles=masks)
    if min(len(body.firsts), len(body.seconds)) > 1 or len(dots) > MOST_PRODUCTS:
        raise Unlowerable("products without a common operand in one kernel", values[dots[1]].statement)
    return body


def factor_of(spec: OperatorSpec, lowered: Lowered, dot: int) -> TensorSpec:
    """A tensor of the dtype in which the factors are multiplied."""
    first = lowered.values[dot].args[0]
    assert isinstance(first, Use)
    value = lowered.values[first.value]
    tensors = (*spec.inputs, *spec.outputs)
    name = value.tensor
    if value.op != "load":
        name = str(value.attr).partition("_ptr.dtype")[0] if value.op == "round" else "float32"
        name = next((t.name for t in tensors if t.dtype == name), name)
    found = next((t for t in tensors if t.name == name), None)
    if found is None:
        raise Unlowerable("operands in a dtype that no input has", value.statement)
    return found


def _extent(kind: str, runs: Iterable[tuple[int, ...]], lowered: Lowered, taken: set[str]) -> Extent:
    size = {"batch": "BATCH", "m": "M", "n": "N", "k": "K"}[kind]
    index = WHOLE[kind]
    own = list(runs)
    if len(own) < 2:
        return Extent(kind, size, tuple(Group(axes, size, index) for axes in own))
    named = [group_name(lowered.space.axes, axes, taken) for axes in own]
    indices = [f"{index}_{name.lower()}" if name.isidentifier() else f"{index}_{i}" for i, name in enumerate(named)]
    return Extent(kind, size, tuple(map(Group, own, named, indices)))


def _access(spec: OperatorSpec, number: int, value: Value, extents: tuple[Extent, ...]) -> Access:
    """Where a tensor is read or written, in terms of the runs."""
    tensor = next(t for t in (*spec.inputs, *spec.outputs) if t.name == value.tensor)
    flat = flat_axes(value.index)
    held = [(e, run) for e in extents for run in _runs_of(e, value.index)]
    suffixes = {run.index: e.name[0] if run.index == WHOLE[e.name] else run.index.rpartition("_")[2] for e, run in held}
    runs: list[tuple[str | Expr, str, tuple[int, ...]]]
    runs = [(run.index, suffixes[run.index], run.axes) for _, run in held]
    if not runs:
        return Access(number, tensor.name, (), (), None)
    order = {run.axes: run for _, run in held}
    if value.op == "store" or tensor.name in facts_of(spec).contiguous:
        laid = [order[axes] for axes in sorted(order, key=lambda axes: flat.index(axes[0]))]
        sizes = [" * ".join(run.size for run in laid[i + 1 :]) for i in range(len(laid))]
        terms = tuple((run.index, size or None) for run, size in zip(laid, sizes, strict=True))
        return Access(number, tensor.name, terms, (), None)
    groups = tuple(run for _, run in held)
    view = f"{tensor.name}_view"
    return strided_access(tensor, value.index, number, runs, flat, groups, view, in_parts=False)


def _with_spans(extent: Extent, indices: Iterable[Index], lowered: Lowered, taken: set[str]) -> Extent:
    """An extent with what dimensions of tensors hold together of its runs."""
    starts = [sum(len(run.axes) for run in extent.runs[:i]) for i in range(len(extent.runs) + 1)]
    parts = {extent.axes[a:b]: extent.runs[starts.index(a) : starts.index(b)] for a, b in combinations(starts, 2)}
    dims = (dim for index in indices for dim in index if isinstance(dim, tuple))
    held = dict.fromkeys(dim for dim in dims if len(parts.get(dim, ())) > 1)
    found = []
    for axes in held:
        if axes == extent.axes:
            found.append(Group(axes, extent.size, WHOLE[extent.name]))
        else:
            numbered = "_".join(run.index.removeprefix(f"{WHOLE[extent.name]}_") for run in parts[axes])
            size = group_name(lowered.space.axes, axes, taken)
            found.append(Group(axes, size, f"{WHOLE[extent.name]}_{numbered}"))
    return replace(extent, spans=tuple(found))


def _runs_of(extent: Extent, index: Index) -> tuple[Group, ...]:
    """The runs of an extent that a tensor has, and what it holds together of them as one."""
    spans = [span for span in extent.spans if span.axes in index]
    within = {a for span in spans for a in span.axes}
    runs = [run for run in extent.runs if set(run.axes) <= set(flat_axes(index)) - within]
    return tuple(sorted((*spans, *runs), key=lambda run: run.axes))

"""Attention and what is around it as values over batch, queries, keys, and the sizes of heads.

The space has the axes of the result, a batch, rows of queries and the columns of values, then the keys, which the
second product is summed over, and the size of a head, which the first is. What queries, keys and values are computed
from is pulled back to the inputs; scores and what follows from them keep their axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelgen.families.access import (
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
from kernelgen.families.attention.pattern import Softmax, softmax_of
from kernelgen.families.dtypes import element_types
from kernelgen.families.kernel import Body, make_body
from kernelgen.families.lowering import Lowering
from kernelgen.families.masks import Mask, mask_of
from kernelgen.families.naming import RESERVED
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
from kernelgen.frontend import indices as ix
from kernelgen.frontend.attention import repeats_as_views
from kernelgen.frontend.graph import (
    DOT,
    INDEXED,
    REDUCTIONS,
    SCANS,
    SCATTERS,
    SEARCH,
    SELECTIONS,
    Atom,
    Dim,
    Graph,
    Node,
    Ref,
    canonical,
)
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.masks import OPERATION
from kernelgen.frontend.parted import without_joins
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import OperatorSpec, TensorSpec

SIZES = {"batch": "BATCH", "m": "M", "n": "N", "d": "D", "e": "E", "shared": "SHARED"}
INDICES = {"batch": "batch", "m": "rows", "n": "keys", "d": "dims", "e": "cols", "shared": "shared"}
"""The kernel's names for the lengths and the numbers of every extent: queries are rows, `d` counts the elements of a
query or a key, `e` those of a value, `shared` the heads of queries that share one of keys and values."""
_LOADS = 2
"""A key, or its scale beside it, is loaded in the loop over keys. Keys that are rotated, from five elements, are
computed before: 4096 queries that each rotated all of them took 4.2 times as long as torch.compile on an H200."""
SCALARS = ("batch", "shared")
"""The extents that a tile does not run over: a program or a loop has one of them at a time."""
_RESERVED = RESERVED | {
    *SIZES.values(), *INDICES.values(), "row_mask", "key_mask", "dim_mask", "col_mask", "tiles", "tile_m",
    "first_row", "start", "first", "last", "full_end", "end", "new_max", "correction", "scale_log2",
    "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_E", "SPLITS", "PRECISION", "part", "parts_ptr", "stats_ptr",
    "part_max", "part_sum", "part_out", "shares", "exponentials", "num_tiles",
    "tile_n", "first_key", "full_start", "lse_log2",
}  # fmt: skip
"""What kernels of attention call values of their own."""


@dataclass(frozen=True, kw_only=True)
class TilesBody(Body, ABC):
    """What kernels over tiles of queries and keys are printed from."""

    factor: TensorSpec
    """A tensor of the dtype in which queries and keys are multiplied."""

    def extent(self, name: str) -> Extent:
        return next(e for e in self.layout.extents if e.name == name)

    @abstractmethod
    def sides(self) -> Mapping[int, str]:
        """The factors of products, by what a tile of them is called."""

    @abstractmethod
    def rounds(self) -> bool:
        """Whether what is computed of the scores is rounded before it is multiplied."""


@dataclass(frozen=True, kw_only=True)
class AttentionBody(TilesBody):
    """What the kernels of attention are printed from."""

    softmax: Softmax
    boxed: frozenset[str] = frozenset()
    """The tensors whose tiles descriptors can copy."""
    precision: str = ""
    """How float32 is multiplied, where torch is not set to TF32."""
    library: str = ""
    """The call of torch's that computes all there is; empty where there is none."""

    def mask(self) -> Mask:
        """What the conditions of scores come to."""
        space, rows, keys = self.lowered.space, self.extent("m").axes, self.extent("n").axes
        return mask_of(self.lowered.values, self.softmax.conditions, space, rows, keys, by_row=True)

    def sides(self) -> Mapping[int, str]:
        return {self.softmax.query: "query", self.softmax.key: "key", self.softmax.value: "value"}

    def rounds(self) -> bool:
        return self.softmax.weights is not None


def body(spec: OperatorSpec, graph: Graph) -> AttentionBody:
    """Raises Unlowerable where one kernel cannot compute the graph."""
    graph = in_memory_order(repeats_as_views(without_joins(graph)))
    roles = _roles(graph)
    lowering = AttentionLowering(spec, graph, roles)
    stored = []
    for output in graph.outputs:
        index = lowering.natural.get(output.node)
        if index is None:
            raise Unlowerable("an output that is not computed from the attention")
        if any(not axes for dim, axes in zip(graph.nodes[output.node].shape, index, strict=True) if dim):
            raise Unlowerable("an output beside attention that is broadcast")
        if set(roles.extents["n"]) & {a for dim in index for a in axes_of(dim)}:
            raise Unlowerable("attention that returns its weights")
        stored.append(Stored(output.name, lowering.unrounded(output, index), output.dtype, index))
    values, softmax, numbers = softmax_of(lowering.values, [o.value for o in stored])
    stored = [replace(o, value=i) for o, i in zip(stored, numbers, strict=True)]
    if _many(roles) and max(_loads(values, i, roles.extents["n"]) for i in (softmax.key, softmax.value)) > _LOADS:
        raise Unlowerable("keys or values that every block of queries would compute anew, from several tensors")
    variables = element_types(spec, values)
    values = tuple(replace(v, attr=variables.get(v.attr or "", v.attr)) for v in values)
    if softmax.weights is not None:
        softmax = replace(softmax, weights=variables.get(softmax.weights, softmax.weights))
    lowered = Lowered(roles.space, values, tuple(stored), has_reciprocals=lowering.has_reciprocals)
    plain = laid_out(spec, graph, lowered, _grouped(roles.extents, values, softmax))
    return AttentionBody(**vars(plain), softmax=softmax, factor=factor_of(spec, lowered, softmax.query))


def _many(roles: Roles) -> bool:
    """Whether queries may take many blocks: not where a spec says how few there are, as in decoding."""
    return any(isinstance(roles.space.axes[a], str) for a in roles.extents["m"])


def _loads(values: Sequence[Value], number: int, keys: tuple[int, ...]) -> int:
    """The tensors' elements that a value of one key is computed from, those that all keys share apart."""
    seen, todo = set[int](), [number]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += [a.value for a in values[i].args if isinstance(a, Use)]
    return sum(values[i].op == "load" and not values[i].axes.isdisjoint(keys) for i in seen)


@dataclass(frozen=True)
class Roles:
    """The letters of both products by what they count."""

    first: int
    second: int
    space: Space
    extents: dict[str, tuple[int, ...]]
    entries: dict[int, dict[str, tuple[int, ...]]]
    """Of each product the axes of every letter."""
    swapped: frozenset[int]
    """The products whose second operand comes first here: queries by keys, weights by values."""


def _roles(graph: Graph) -> Roles:
    first, second = (i for i, node in enumerate(graph.nodes) if node.op == DOT)
    after = _following(graph, first)
    weights = [a.node in after for a in graph.nodes[second].args if isinstance(a, Ref)]
    if sum(weights) != 1:
        raise Unlowerable("two products, of which the second does not have exactly one operand from the first")
    apart = reshaped(graph)
    letters = {i: letters_of(graph, i, apart) for i in (first, second)}
    (one, two, scored), (weighted, valued, result) = (labels(graph.nodes[i]) for i in (first, second))
    if not weights[0]:
        weighted, valued = valued, weighted
    if len(weighted) != len(scored):
        raise Unlowerable("scores whose dimensions are permuted before they multiply the values")
    renamed = dict(zip(weighted, scored, strict=True))
    summed = [renamed[c] for c in weighted if c not in result]
    heads = [c for c in one if c in two and c not in scored]
    columns = [c for c in valued if c not in weighted]
    is_key = [c for c in summed if (c in one) != (c in two)]
    if len(summed) != 1 or is_key != summed or len(columns) != 1 or len(heads) != 1:
        raise Unlowerable("two products that are not an attention")
    keys = summed[0]
    queries, keyed = (two, one) if keys in one else (one, two)
    rows = [c for c in scored if c in queries and c not in keyed]
    batch = [c for c in scored if c != keys and c not in rows]
    dims = letters[first]
    # all heads that share keys are a batch, unless there is one query alone
    long = [c for c in rows if dims[c]]
    batch += long[:-1]
    axes: list[Atom] = []

    def numbered(sizes: Dim) -> tuple[int, ...]:
        axes.extend(sizes)
        return tuple(range(len(axes) - len(sizes), len(axes)))

    entries = {c: numbered(dims[c]) for c in sorted(batch, key=scored.index)}
    entries |= {c: numbered(dims[c]) for c in rows if c not in batch}
    of_columns = numbered(letters[second][columns[0]])
    entries |= {keys: numbered(dims[keys]), heads[0]: numbered(dims[heads[0]])}
    extents = {
        "batch": tuple(a for c in sorted(batch, key=scored.index) for a in entries[c]),
        "m": tuple(a for c in rows if c not in batch for a in entries[c]),
        "n": entries[keys], "d": entries[heads[0]], "e": of_columns,
    }  # fmt: skip
    for kind in "nde":
        if not extents[kind]:
            raise Unlowerable("attention over a single key, or of heads of one element")
    of_second = {c: entries[renamed[c]] for c in weighted} | {columns[0]: of_columns}
    swapped = {first} if keys in one else set[int]()
    swapped |= set[int]() if weights[0] else {second}
    space = Space(tuple(axes), len(axes) - len(extents["d"]))
    return Roles(first, second, space, extents, {first: entries, second: of_second}, frozenset(swapped))


def _following(graph: Graph, first: int) -> set[int]:
    found = {first}
    for i, node in enumerate(graph.nodes):
        if any(isinstance(a, Ref) and a.node in found for a in node.args):
            found.add(i)
    return found


def letters_of(graph: Graph, number: int, apart: Mapping[object, Dim]) -> dict[str, Dim]:
    """The sizes of a product's letters."""
    node = graph.nodes[number]
    dims: dict[str, Dim] = {}
    for operand, arg in zip(labels(node), node.args, strict=False):
        assert isinstance(arg, Ref)
        for label, dim in zip(operand, graph.nodes[arg.node].shape, strict=True):
            dims[label] = dim or dims.get(label, ())
    return {label: apart.get(canonical(dim), dim) for label, dim in dims.items()}


def labels(node: Node) -> tuple[str, str, str]:
    operands, _, result = node.equation.partition("->")
    first, _, second = operands.partition(",")
    return first, second, result


class AttentionLowering(Lowering):
    """Pulls indices back to the inputs, through two products."""

    def __init__(self, spec: OperatorSpec, graph: Graph, roles: Roles) -> None:
        super().__init__(graph, roles.space, apart=False)
        self.roles = roles
        self.keys = frozenset(roles.extents["n"])
        self.dtypes = {t.name: t.dtype for t in spec.inputs}
        self.scales = frozenset(t.name for t in spec.inputs if t.role == "scale")
        self.natural: dict[int, Index] = {}
        """Every value that is computed from the scores, by the axes of its dimensions."""
        for i in range(roles.first, len(graph.nodes)):
            index = self._follow(i, graph.nodes[i])
            if index is not None:
                self.natural[i] = index

    def _follow(self, number: int, node: Node) -> Index | None:
        """The axes of a value that is computed from the scores; None where it is not."""
        if node.op == DOT:
            entries = self.roles.entries[number]
            return tuple(entries[c] if d else () for c, d in zip(labels(node)[2], node.shape, strict=True))
        read = [a.node for a in node.args if isinstance(a, Ref) and a.node in self.natural]
        if not read:
            return None
        if node.op in (*INDEXED, *SCANS, *SCATTERS, *SELECTIONS):
            raise Unlowerable("a part of scores that is moved within their kernel", node.statement)
        index, shape = self.natural[read[0]], self.graph.nodes[read[0]].shape
        if node.op == "permute":
            return tuple(index[int(d)] for d in node.attrs)
        if node.op == "reshape":
            return split(node.shape, tuple(a for dim in index for a in axes_of(dim)), self.space, node.statement)
        if node.op in REDUCTIONS:
            reduced = {int(d) + len(shape) for d in node.attrs}
            return tuple(() if d in reduced else dim for d, dim in enumerate(index))
        found: list[tuple[int, ...]] = [()] * len(node.shape)
        for i in read:
            for d, dim in enumerate(reversed(self.natural[i]), 1):
                if dim and found[-d] not in ((), dim):
                    raise Unlowerable("scores that are used in two ways in one kernel", node.statement)
                found[-d] = found[-d] or axes_of(dim)
        if any(dim and not axes for dim, axes in zip(node.shape, found, strict=True)):
            raise Unlowerable("scores that are broadcast within their kernel", node.statement)
        return tuple(found)

    def value(self, number: int, index: Index) -> int:
        node = self.graph.nodes[number]
        if number in self.natural and self.natural[number] != index:
            raise Unlowerable("scores that are read in two ways in one kernel", node.statement)
        if node.op == OPERATION:
            raise Unlowerable("random numbers in an attention kernel", node.statement)
        return self.dot(number, node) if node.op == DOT else super().value(number, index)

    def map(self, node: Node, index: Index, *, exact: bool) -> int:
        made = super().map(node, index, exact=exact)
        value = self.values[made]
        if value.op == "round" and isinstance(value.args[0], Use):  # to the dtype that memory holds it in
            source = self.values[value.args[0].value]
            if source.op == "load" and self.dtypes.get(str(source.tensor)) == value.attr:
                return value.args[0].value
        return made

    def dot(self, number: int, node: Node) -> int:
        entries, uses = self.roles.entries[number], []
        for operand, arg in zip(labels(node), node.args, strict=False):
            assert isinstance(arg, Ref)
            shape = self.graph.nodes[arg.node].shape
            index = tuple(entries[c] if dim else () for c, dim in zip(operand, shape, strict=True))
            uses.append(Use(self.value(arg.node, index)))
        axes = frozenset(a for dim in self.natural[number] for a in axes_of(dim))
        factors = tuple(uses[::-1] if number in self.roles.swapped else uses)
        summed = frozenset(a for use in factors for a in self.values[use.value].axes) - axes
        apart = [self._unscaled(use, summed) for use in factors]
        scales = [scale for _, scale in apart if scale is not None]
        name = None if scales else node.name
        made = self.add(Value("dot", tuple(use for use, _ in apart), "float", axes, name, node.statement))
        for i, scale in enumerate(scales, 1):
            name = node.name if i == len(scales) else None
            made = self.add(Value("mul", (Use(made), scale), "float", axes, name, node.statement))
        return made

    def _unscaled(self, factor: Use, summed: frozenset[int]) -> tuple[Use, Use | None]:
        """A factor of float8 as it is multiplied, and what it is scaled by alike in every sum, which the sum may be
        multiplied by as well."""
        value = self.values[factor.value]
        product = self.values[value.args[0].value] if value.op == "round" and isinstance(value.args[0], Use) else value
        if product.op == "mul":
            for one, scale in (product.args, product.args[::-1]):
                if isinstance(one, Use) and isinstance(scale, Use) and self._scales(one, scale, summed):
                    if value.op != "round":
                        return one, scale
                    axes = self.values[one.value].axes
                    return Use(self.add(replace(value, args=(one,), axes=axes, name=None))), scale
        return factor, None

    def _scales(self, one: Use, scale: Use, summed: frozenset[int]) -> bool:
        held, by = self.values[one.value], self.values[scale.value]
        is_float8 = held.op == "load" and "float8" in self.dtypes[str(held.tensor)]
        return is_float8 and by.op == "load" and by.tensor in self.scales and not by.axes & summed

    def reduction(self, node: Node, index: Index) -> int:
        source = node.args[0]
        assert isinstance(source, Ref)
        inside = self.natural.get(source.node)
        if inside is None:
            raise Unlowerable("a reduction before attention", node.statement)
        reduced = {int(d) + len(inside) for d in node.attrs}
        if node.op not in ("max", "sum") or {a for d in reduced for a in axes_of(inside[d])} != self.keys:
            raise Unlowerable(f"{node.op} of scores over other dimensions than the keys", node.statement)
        value = self.value(source.node, inside)
        axes = self.values[value].axes - self.keys
        return self.add(Value(node.op, (Use(value),), node.dtype, axes, node.name, node.statement))

    def read(self, node: Node, source: int, places: Index, made: ix.Indexing, *, padded: bool) -> int:
        """A value at its places: what the load gives elsewhere is what the reference has there."""
        return super().read(node, source, places, made, padded=False)

    def search(self, node: Node, index: Index) -> int:
        """How many ends are less than a place, or no more than it, which is counted anew for every row."""
        places, ends = (a.node for a in node.args if isinstance(a, Ref))
        found = self.value(places, self.aligned(places, index))
        (size,) = self.graph.nodes[ends].shape
        if len(size) != 1:
            raise Unlowerable("a search among as many ends as several sizes come to", node.statement)
        args = (Use(found), Use(self.counted(ix.size(size))))
        return self.add(
            Value(
                node.op, args, node.dtype, self.values[found].axes, node.name, node.statement,
                str(self.graph.nodes[ends].attrs[0]), (ix.number(0),), attr=str(node.attrs[0]),
            )
        )  # fmt: skip

    def iota(self, node: Node, axes: Entry) -> int:
        """The numbers along a dimension: those of an axis, wherever it is."""
        counted = self.position(axes)
        return self.add(Value("place", (), node.dtype, frozenset(axes_of(counted)), index=(counted,)))

    def rows(self) -> tuple[Atom, ...]:
        return ()


def _grouped(
    extents: dict[str, tuple[int, ...]], values: tuple[Value, ...], softmax: Softmax
) -> dict[str, tuple[int, ...]]:
    """The extents, where there is one query alone with the heads that share keys and values as rows of one tile."""
    if extents["m"]:
        return extents
    moving = values[softmax.key].axes | values[softmax.value].axes
    shared = tuple(a for a in extents["batch"] if a not in moving)
    if not shared:
        raise Unlowerable("attention of a single query to keys of its own")
    return extents | {"batch": tuple(a for a in extents["batch"] if a in moving), "m": shared}


def laid_out(spec: OperatorSpec, graph: Graph, lowered: Lowered, extents: Mapping[str, tuple[int, ...]]) -> Body:
    """Where the elements of a tile lie. `extents`: the axes of the space by what they count."""
    values = lowered.values
    loads = [(i, v) for i, v in enumerate(values) if v.op in ("load", SEARCH)]
    likes = {t.name for t in spec.inputs if t.role == "like"}
    for _, value in loads:
        if value.tensor in likes:
            raise Unlowerable(f"{value.tensor} is declared `like`, but its elements are read")
    reserved = _RESERVED | {f"{t.name}_desc" for t in (*spec.inputs, *spec.outputs)}
    taken = {t.name for t in (*spec.inputs, *spec.outputs)} | reserved
    batch = {
        *extents["batch"],
        *extents.get("shared", ()),
    }  # of a batch every size is a dimension: tensors need not hold them together
    alone = {a for v in values for e in expressions(v) for a in axes_of(e)} | (batch if len(batch) > 1 else set())
    each: list[Index] = [(axes,) for axes in extents.values() if axes]
    runs = collapse(
        len(lowered.space.axes), lowered.space.outer,
        [*(v.index for _, v in loads), *(o.index for o in lowered.outputs), *each],
        alone,
    )  # fmt: skip
    same = [lowered.space.axes[a] for a in extents["d"]] == [lowered.space.axes[a] for a in extents["e"]]
    found = tuple(
        _extent("d" if kind == "e" and same else kind, kind, [r for r in runs if set(r) <= set(axes)], lowered, taken)
        for kind, axes in extents.items()
    )
    written = [
        (o.value, Value("store", (), o.dtype, frozenset(), tensor=o.name, index=o.index)) for o in lowered.outputs
    ]
    accesses = distinct_strides([_access(spec, i, v, found) for i, v in (*loads, *written)])
    reads = accesses[: len(loads)]
    keys = next(e for e in found if e.name == "n")
    wholes = Group(keys.axes, "N", "keys")
    outer = tuple(run for extent in found[:2] for run in extent.runs)
    stores = tuple(zip(lowered.outputs, accesses[len(loads) :], strict=True))
    single = tuple(Group(e.axes, e.size, e.name) for e in found if len(e.runs) == 1)
    single += tuple(run for e in found if len(e.runs) > 1 for run in e.runs)
    counted = [e for v in values for e in expressions(v)]
    sizes = size_parameters(counted, lowered.space.axes, single, taken)
    return make_body(
        spec, lowered, graph.statements, Layout(outer, wholes, (), reads, (), stores, sizes, found), reserved=reserved
    )  # fmt: skip


def factor_of(spec: OperatorSpec, lowered: Lowered, number: int) -> TensorSpec:
    """A tensor of the dtype in which a factor is multiplied."""
    value = lowered.values[number]
    tensors = (*spec.inputs, *spec.outputs)
    name = value.tensor
    if value.op == "round":
        name = str(value.attr).partition("_ptr.dtype")[0]
        name = next((t.name for t in tensors if t.dtype == name), name)
    found = next((t for t in tensors if t.name == name), None)
    if found is None:
        raise Unlowerable("queries and keys in a dtype that no input has", value.statement)
    return found


def _extent(shown: str, kind: str, runs: Iterable[tuple[int, ...]], lowered: Lowered, taken: set[str]) -> Extent:
    """`shown`: the extent whose names it has."""
    size, index = SIZES[shown], INDICES[shown]
    own = list(runs)
    if len(own) < 2:
        return Extent(kind, size, tuple(Group(axes, size, index) for axes in own))
    named = [group_name(lowered.space.axes, axes, taken) for axes in own]
    indices = [f"{index}_{name.lower()}" if name.isidentifier() else f"{index}_{i}" for i, name in enumerate(named)]
    return Extent(kind, size, tuple(map(Group, own, named, indices)))


def _suffix(extent: Extent, run: Group) -> str:
    """What the stride of a run is called after."""
    if len(extent.runs) > 1:
        return run.index.rpartition("_")[2]
    return run.size.lower() if extent.name in "de" else extent.name[0]


def _access(spec: OperatorSpec, number: int, value: Value, extents: tuple[Extent, ...]) -> Access:
    """Where a tensor is read or written, in terms of the runs."""
    tensor = next(t for t in (*spec.inputs, *spec.outputs) if t.name == value.tensor)
    flat = flat_axes(value.index)
    named = {run.axes: (e, run) for e in extents for run in e.runs if set(run.axes) <= set(flat)}
    held = list(named.values())
    runs: list[tuple[str | Expr, str, tuple[int, ...]]] = [(run.index, _suffix(e, run), run.axes) for e, run in held]
    runs += [(dim, str(d), (-1 - d,)) for d, dim in enumerate(value.index) if isinstance(dim, Expr)]
    if not runs:
        return Access(number, tensor.name, (), (), None)
    moved = any(isinstance(index, Expr) for index, _, _ in runs)
    if not moved and (value.op == "store" or tensor.name in facts_of(spec).contiguous):
        order = {run.axes: run for _, run in held}
        laid = [order[axes] for axes in sorted(order, key=lambda axes: flat.index(axes[0]))]
        sizes = [" * ".join(run.size for run in laid[i + 1 :]) for i in range(len(laid))]
        terms = tuple((run.index, size or None) for run, size in zip(laid, sizes, strict=True))
        return Access(number, tensor.name, terms, (), None)
    groups = tuple(run for e in extents for run in e.runs)
    return strided_access(
        tensor, value.index, number, runs, flat, None if moved else groups, f"{tensor.name}_view", in_parts=False
    )

"""Scatters: what is added to where integers say, the same sum at every call.

Variants, of which a reference has those that serve its operation:
`histogram`: few bins; a program counts its part in registers and adds the counts to the bins with integer atomics.
`atomics`: many bins; every element is one integer atomic. Integers come to the same sum in whatever order.
`buckets` (index_add): a row is added up by the bucket of places that name it (`scatter_buckets.py`), in the order of
the index, in float32, what rounding takes from the sum kept beside it.
`lists` (index_add): the same sums, made from lists of the places that name a part of the result (`scatter_lists.py`):
for thousands of rows that are named very often.
`owners` (index_add): the same sums in a single launch; a program owns a tile of the result, walks the whole index and
adds what names its rows. Every owner reads the index, which the L2 holds: for a short index, or few rows.
`blocks` (scatter_add): a program owns rows that scatter on their own and takes their elements block by block
(`scatter_blocks.py`).
`places` (scatter_add): a program owns a few places of a row and looks at all elements of that (`scatter_places.py`).
`atomic_tiles` and `atomics` (scatter_max, last_place, times_named): the same of integers in whatever order, by atomics.
Where a spec says `deterministic: false`, scatter_add adds floats by atomics (`scatter_atomics.py`) beyond few places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelgen.families import scatter_atomics, scatter_blocks, scatter_buckets, scatter_lists, scatter_places
from kernelgen.families.access import COLS, Access, Group, Layout
from kernelgen.families.family import Family, Table, Variant, always, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.keys import rows_and_bytes
from kernelgen.families.naming import FULL, ROW, Names
from kernelgen.families.scatter_facts import FROM_END, OF_INTEGERS, PLACES_ALONE, at_most, one_kernel
from kernelgen.families.scatter_names import LOCAL, beside_tensors
from kernelgen.families.space import split
from kernelgen.families.values import Index, Lowered, Space, Stored, Unlowerable, Use, Value, axes_of
from kernelgen.frontend.graph import SCATTERS, Atom, Dim, Graph, Node, Ref, SizeOf
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.sizes import names_in
from kernelgen.tile import ir

OWNERS = "owners"
NAME = "scatter"
FEW_NAMED = 64
"""Rows to add that an owner of a part of the result looks through at once (H200, 8 rows of 1024: 4.0 us, by buckets
7.7; of 512 rows 8.1 and 8.4)."""
FEW_BINS = 1024
"""Up to so many a warp counts in registers; the work for an element grows with the bins."""
IN_ORDER = "floats are summed in a fixed order: results are bit-identical from call to call"
ORDERED_ANYWAY = "floats are summed in a fixed order, although the spec allows any (`deterministic: false`)"


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one that adds to where integers say."""
    return graph.kind == "scatter"


def variants(body: Body) -> tuple[str, ...]:
    scatter = body.lowered.values[-1]
    by_places = (scatter_places.NAME,) if scatter_places.takes(body) else ()
    if body.any_order or scatter.op in OF_INTEGERS:
        return (*scatter_atomics.variants(body), *by_places)
    if scatter.op == "bincount":
        bins = scatter.args[1]
        return ("histogram", "atomics") if isinstance(bins, int) and bins <= FEW_BINS else ("atomics",)
    if scatter.op == "index_add":
        return scatter_buckets.NAME, scatter_lists.NAME, OWNERS
    return (scatter_blocks.NAME, *by_places)


def default(variant: str) -> Schedule:
    return _VARIANTS[variant].default


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """One schedule for everything, fitted to the longest rows that are timed; of a few rows the owners look the index
    through, and what scatters by rows takes larger blocks of the few."""
    usual = starts(body, 1, max((columns for _, columns in shapes), default=1))[0]
    if OWNERS in variants(body):
        return (table_row(default(OWNERS), rows=FEW_NAMED), table_row(usual))
    few: Table = (table_row(scatter_blocks.FEW_ROWS, rows=scatter_blocks.FEW),)
    few = few if scatter_blocks.NAME in variants(body) else ()
    if scatter_places.NAME in variants(body):
        few = (table_row(default(scatter_places.NAME), **{scatter_places.SIZE: scatter_places.FEW}), *few)
    return (*few, table_row(usual))


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: every variant as it is by default, with rows that are neighbours in memory together."""
    if (body.any_order or body.lowered.values[-1].op in OF_INTEGERS) and body.layout.rows:
        others = [default(variant) for variant in variants(body)[1:]]
        return (scatter_atomics.start(body), *others)
    fitted = {module.NAME: module.fitted for module in (scatter_buckets, scatter_lists)}
    found = tuple(fitted[v](columns) if v in fitted else default(v) for v in variants(body))
    if body.lowered.values[-1].op == "scatter_add" and body.lowered.values[-1].attr == "0":
        return tuple(schedule.replace(BLOCK_SIZE_M=8, num_warps=4) for schedule in found)
    return found


def _sums_and_errors(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    return at_most(2 * schedule.int("BLOCK_SIZE_V") * schedule.int("BLOCK_SIZE_N"), schedule)


_RUN = 'cdiv(N, options["BLOCK_SIZE"])'
_COUNTED = one_kernel("count_by_atomics", ("BLOCK_SIZE",), _RUN, ("N",))


def _an_atomic_each(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    is_counted = body.lowered.values[-1].op == "bincount"
    return (_COUNTED if is_counted else scatter_atomics.line)(spec, body, schedule, name)


def _variants() -> tuple[Variant, ...]:
    warps = Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program")
    elements = block("BLOCK_SIZE", (512, 1024, 2048, 4096, 8192), "elements of a block")
    return (
        Variant(
            PRINTED,
            "TILES blocks of elements per program, counted in registers; integer atomics add the counts to the bins",
            Schedule.make("histogram", BLOCK_SIZE=2048, TILES=8, num_warps=4),
            (elements, block("TILES", (1, 2, 4, 8, 16, 32), "blocks per program"), warps),
            always,
            one_kernel(
                "histogram", ("BLOCK_SIZE", "TILES"), 'cdiv(N, options["BLOCK_SIZE"] * options["TILES"])', ("N",)
            ),
        ),
        Variant(
            PRINTED, "one block of elements per program, one atomic per element",
            Schedule.make("atomics", BLOCK_SIZE=1024, num_warps=4),
            (elements, warps), always, _an_atomic_each,
        ),
        scatter_buckets.VARIANT,
        scatter_lists.VARIANT,
        Variant(
            PRINTED, "BLOCK_SIZE_V rows by BLOCK_SIZE_N columns of the result per program, in a loop over the index",
            Schedule.make(OWNERS, BLOCK_SIZE_M=1024, BLOCK_SIZE_N=512, BLOCK_SIZE_V=4, num_warps=4),
            (
                block("BLOCK_SIZE_M", (256, 512, 1024, 2048, 4096), "indices that are looked at together"),
                block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024), "columns per program"),
                block("BLOCK_SIZE_V", (1, 2, 4, 8, 16, 32), "rows of the result per program"),
                warps,
            ),
            _sums_and_errors,
            one_kernel(
                "owners", ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_V"),
                'cdiv({size}, options["BLOCK_SIZE_V"]) * cdiv(N, options["BLOCK_SIZE_N"])',
            ),
        ),
        scatter_blocks.VARIANT,
        scatter_places.VARIANT,
        *scatter_atomics.OF_ROWS,
    )  # fmt: skip


_VARIANTS = {
    variant.name: replace(variant, kernels=beside_tensors(variant.kernels))
    for variant in _variants()
    if variant.kernels
}


def begin(body: Body) -> str | None:
    """What the result holds before the kernel: zeros, a copy of an input by its name, or nothing in particular."""
    scatter = body.lowered.values[-1]
    if scatter.op == "index_add" or body.starts_itself:
        return None
    added = scatter.op not in PLACES_ALONE and isinstance(scatter.args[0], Use)
    return body.lowered.values[0].tensor if added else "zeros"


def too_large(spec: OperatorSpec, body: Body) -> tuple[str, str] | None:
    """Where indices that a kernel keeps in int32 would overflow, and what the wrapper says of it."""
    if body.lowered.values[-1].op == "bincount":
        return None
    sizes = [parameter for _, parameter in body.layout.sizes]
    in_int32 = not body.any_order or scatter_places.takes(body)
    if sizes and body.lowered.values[-1].op == "scatter_add" and in_int32:
        (size,), most = sizes, "2**30 rows, columns and places"
        return f"max(M, N, {size}) > 2**30", f"{spec.name}: at most {most}, got {{M}}, {{N}} and {{{size}}}"
    if not body.layout.rows:
        return "N > 2**30", f"{spec.name}: at most 2**30 elements, got {{N}}"
    return "max(M, N) > 2**30", f"{spec.name}: at most 2**30 rows and columns, got {{M}} and {{N}}"


def body(spec: OperatorSpec, graph: Graph) -> Body:
    """The values of a scatter of inputs. Raises Unlowerable for one of anything else."""
    number = next(i for i, node in enumerate(graph.nodes) if node.op in SCATTERS)
    node, output = graph.nodes[number], graph.outputs[0]
    stored = graph.nodes[output.node]
    kinds = (output.dtype, *(("float32",) if dict(spec.dtypes).get(output.dtype) == ("float32",) else ()))
    is_cast = stored.op == "round" and stored.args == (Ref(number),) and stored.attrs[0] in kinds
    if len(graph.outputs) > 1 or (output.node != number and not is_cast):
        raise Unlowerable("what is computed from a scatter, or returned beside it", node.statement)
    _check_dtypes(spec, node, output.dtype)
    operands = [_input(spec, graph, node, arg) for arg in node.args]
    seen = [graph.nodes[_ref(arg)].shape for arg in node.args]
    spread = _spread(_in_order(operands[-1].shape, seen[-1], node), node)
    counted = range(len(node.shape))[int(node.attrs[0])]
    kept: Index = tuple(() if d == counted else e for d, e in enumerate(spread.index))
    places = {
        **dict.fromkeys(PLACES_ALONE, (spread.index,)),
        "index_add": (kept, spread.index[:1], spread.index),
    }
    indices = places.get(node.op, (kept, spread.index, spread.index))
    values = [
        _load(n, shape, index, spread, node)
        for n, shape, index in zip(operands, seen, indices, strict=True)
        if n.op == "input"
    ]
    args = (*((0,) if operands[0].op != "input" else ()), *(Use(i) for i in range(len(values))), *_bins(node))
    everywhere, dim = frozenset(range(len(spread.axes))), str(node.attrs[0] if len(node.shape) > 1 else -1)
    values.append(Value(node.op, args, node.dtype, everywhere, output.name, node.statement, attr=dim))
    result = Stored(output.name, len(values) - 1, output.dtype, () if node.op == "bincount" else kept)
    lowered = Lowered(Space(spread.axes, spread.outer), tuple(values), (result,))
    return _laid_out(spec, graph, lowered, spread)


def _bins(node: Node) -> tuple[int, ...]:
    """How many bins a bincount has."""
    if node.op != "bincount":
        return ()
    (count,) = node.shape[0] or (1,)
    assert isinstance(count, int)
    return (count,)


def _check_dtypes(spec: OperatorSpec, node: Node, dtype: str) -> None:
    for one in dict(spec.dtypes).get(dtype, (dtype,)):
        if one in ("bool", "uint8", "int8", "int16"):
            raise Unlowerable(f"{node.op} of {one}", node.statement)


def _ref(arg: object) -> int:
    assert isinstance(arg, Ref)
    return arg.node


def _input(spec: OperatorSpec, graph: Graph, node: Node, arg: object) -> Node:
    """An operand, which has to be an input, in whatever shape and in no less precision; what is added to may also be
    zeros."""
    operand = graph.nodes[_ref(arg)]
    zeros = operand.op == "full" and operand.args == (0,) and node.args[0] == arg and node.op not in PLACES_ALONE
    views = () if node.args[0] == arg and node.op not in PLACES_ALONE else ("reshape",)
    while operand.op in views or (operand.op == "round" and _keeps(spec, graph, operand)):
        operand = graph.nodes[_ref(operand.args[0])]
    if node.op in ("scatter_add", *OF_INTEGERS) and _is_from_end(graph, node, operand):
        index = graph.nodes[_ref(operand.args[2])]
        operand = replace(index, attrs=(*index.attrs, FROM_END)) if index.op == "input" else index
    if operand.op != "input" and not zeros:
        raise Unlowerable(f"{node.op} of what is computed (supported: of inputs, to an input or zeros)", node.statement)
    return operand


def _is_from_end(graph: Graph, node: Node, index: Node) -> bool:
    """Whether negative numbers of an index count from the end: where(index < 0, index + size, index)."""
    if index.op != "where" or not all(isinstance(a, Ref) for a in index.args):
        return False
    is_negative, moved = (graph.nodes[_ref(a)] for a in index.args[:2])
    own, length = index.args[2], SizeOf(node.shape[int(node.attrs[0])])
    return is_negative.op == "lt" and is_negative.args == (own, 0) and moved.op == "add" and moved.args == (own, length)


def _keeps(spec: OperatorSpec, graph: Graph, rounding: Node) -> bool:
    """Whether a cast changes no value: to float32, or to the dtype that an input has already."""
    source = graph.nodes[_ref(rounding.args[0])]
    own = [t.dtype for t in spec.inputs if source.op == "input" and t.name == source.attrs[0]]
    return rounding.attrs[0] in ("float32", *own)


@dataclass(frozen=True)
class _Spread:
    """The iteration space of what is added: rows that are independent, then the elements that scatter, or the reverse
    where whole rows do."""

    axes: tuple[Atom, ...]
    outer: int
    """How many of the axes, from the first, scatter on their own."""
    index: Index
    counted: tuple[int, ...]
    """The axes that scatter."""


def _spread(shape: tuple[Dim, ...], node: Node) -> _Spread:
    counted = range(len(shape))[int(node.attrs[0])]
    kept = [d for d, dim in enumerate(shape) if d != counted and dim != ()]
    if shape[counted] == () or (node.op == "index_add" and not kept):
        raise Unlowerable(f"{node.op} of one element", node.statement)
    order = [counted, *kept] if node.op == "index_add" else [*kept, counted]
    axes = tuple(atom for d in order for atom in shape[d])
    numbers = iter(range(len(axes)))
    place = {d: tuple(next(numbers) for _ in shape[d]) for d in order}
    index: Index = tuple(place.get(d, ()) for d in range(len(shape)))
    return _Spread(axes, 0 if node.op == "index_add" else place[counted][0], index, place[counted])


def _in_order(shape: tuple[Dim, ...], seen: tuple[Dim, ...], node: Node) -> tuple[Dim, ...]:
    """A shape in which an input of another shape is seen, the sizes that one of its dimensions is a product of in the
    order in which they lie in memory."""
    if shape == seen:
        return seen
    atoms = tuple(atom for dim in shape for atom in dim)
    index = split(seen, tuple(range(len(atoms))), Space(atoms, 0), node.statement)
    return tuple(tuple(atoms[a] for a in axes_of(dim)) for dim in index)


def _load(source: Node, shape: tuple[Dim, ...], index: Index, spread: _Spread, node: Node) -> Value:
    """An input as it lies in memory, of which the scatter sees the dimensions merged or taken apart, as `shape`."""
    found = [a for entry in index for a in axes_of(entry)]
    if source.shape != shape:
        index = split(source.shape, tuple(found), Space(spread.axes, spread.outer), node.statement)
    attr = FROM_END if FROM_END in source.attrs else None
    return Value("load", (), source.dtype, frozenset(found), source.name, None, str(source.attrs[0]), index, attr=attr)


def _laid_out(spec: OperatorSpec, graph: Graph, lowered: Lowered, spread: _Spread) -> Body:
    by_rows, others = lowered.values[-1].op == "index_add", tuple(set(range(len(spread.axes))) - set(spread.counted))
    rows, columns = (spread.counted, others) if by_rows else (others, spread.counted)
    loads = [(i, v) for i, v in enumerate(lowered.values) if v.op == "load"]
    layout = Layout(
        (Group(rows, "M", "row"),) if rows else (),
        Group(columns, "N", COLS),
        (),
        tuple(Access(i, str(v.tensor), (), (), None) for i, v in loads),
        (),
        (),
        _length(spec, lowered),
    )
    levels = tuple(ROW if v.axes == set(spread.counted) and by_rows else FULL for v in lowered.values)
    names = Names({i: str(v.name) for i, v in enumerate(lowered.values)}, levels, frozenset())
    scatter = lowered.values[-1]
    any_order = scatter.dtype == "float" and not spec.deterministic and not by_rows
    starts_itself = scatter.op == "scatter_add" and not (any_order and scatter.attr == "0")
    return Body(
        lowered, graph.statements, layout, names, (), frozenset(), exact=False, any_order=any_order,
        starts_itself=starts_itself and scatter_blocks.starts_itself(spec, layout, str(loads[-1][1].tensor)),
    )  # fmt: skip


def notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    """What a reviewer should know of the order of sums."""
    if body.lowered.values[-1].op in ("bincount", *OF_INTEGERS):
        return ()
    if body.any_order:
        return (scatter_atomics.NOTE,)
    return (IN_ORDER if spec.deterministic or body.lowered.values[-1].dtype != "float" else ORDERED_ANYWAY,)


def widened(spec: OperatorSpec, body: Body) -> bool:
    """Whether the result is made in float32 memory of its own, which the wrapper casts at the end."""
    kinds = dict(spec.dtypes).get(spec.outputs[0].dtype, (spec.outputs[0].dtype,))
    stored = any("float" in kind for kind in kinds) and kinds != ("float32",)
    return stored and (body.any_order or body.lowered.values[-1].op == "scatter_add")


def _sizes(spec: OperatorSpec, body: Body) -> tuple[NamedSize, ...]:
    """Rows and bytes, and the places of all rows where a variant depends on these."""
    own = (scatter_places.size_of(spec, body),) if scatter_places.takes(body) else ()
    return (*rows_and_bytes(spec, body, None, widened(spec, body)), *own)


def _length(spec: OperatorSpec, lowered: Lowered) -> tuple[tuple[str, str], ...]:
    """The size name that indices stay below, with the kernel's parameter for it; nothing where it is a number."""
    length = spec.outputs[0].shape[int(lowered.values[-1].attr or 0)]
    if isinstance(length, int) or not names_in(length):
        return ()
    taken = {t.name for t in (*spec.inputs, *spec.outputs)} | LOCAL
    parameter = length if length.isidentifier() else "V"
    while parameter in taken:
        parameter += "_SIZE"
    return ((length, parameter),)


FAMILY = Family(
    NAME, takes, tuple(_VARIANTS.values()), variants, first_table, starts,
    body=body, notes=notes, begin=begin, widened=widened, too_large=too_large, sizes=_sizes,
    packed=True,  # what is named lies anywhere, and strides would add a product to each place
)  # fmt: skip

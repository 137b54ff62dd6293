"""A convolution and what follows it as values over pixels, output channels, and the taps and channels of a window.

It is the product of `families/matmul` whose rows are pixels of the result; its first factor is read where the windows
say, which nothing but a tensor in memory can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

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
from kernelgen.families.convolution.pools import REDUCED, pools_of, windows_of
from kernelgen.families.kernel import make_body
from kernelgen.families.matmul.lowering import ProductBody, ProductLowering, Roles, factor_of, lower
from kernelgen.families.naming import RESERVED
from kernelgen.families.values import Index, Lowered, Unlowerable, Use, Value, axes_of, expressions
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Atom, Convolution, Graph, Node
from kernelgen.frontend.indices import Expr
from kernelgen.spec.model import OperatorSpec

SPACE = {1: "l", 2: "hw", 3: "dhw"}
"""What the dimensions of space are called, by how many there are."""
_RESERVED = RESERVED | {
    "k_mask", "tile_m", "tile_n", "first_row", "first_col", "group", "blocks", "step", "tap", "images", "channels",
    "ks", "inside", "pixels", "BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCK_B", "BLOCK_D", "BLOCK_H", "BLOCK_W", "GROUP_M",
    "PRECISION", "M", "N", "K", "TURNED_C", "GROUPS", "first_image", "first_channel",
    "windows", "within", "places", "place_mask", "pooled_images", *(f"pooled_{d}" for d in "dhwl"),
    "tiles_m", "tiles_b", "phase", "program", "first_weight",
    *(
        f"{kind}_{d}"
        for kind in ("out", "in", "tap", "first", "tiles", "phase", "places", "place", "first_tap", "taps")
        for d in "dhwl"
    ),
}  # fmt: skip
"""What kernels of convolutions call values of their own."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionBody(ProductBody):
    """What the kernels of a convolution are printed from."""

    windows: Convolution
    window: tuple[int, ...]
    """The taps along every dimension of space."""
    call: str
    """Torch's call, with `{0}` for the input and `{1}` for the weight."""
    pixels: tuple[str, ...]
    """The variables of the rows' runs: of the image, then of each dimension of space; empty where there is one."""
    taps: tuple[str, ...]
    """The same of the places of a window."""
    result: Index
    """The axes of the dimensions of torch's result."""
    contiguous: bool
    """Whether the reference makes something contiguous, which a trace does not show where it is."""
    pooled: int | None = None
    """The value that windows of pixels leave, of which all outputs are computed; None: pixels are stored."""
    pool: tuple[int, ...] = ()
    """The pixels of such a window along every dimension of space."""

    @property
    def factors(self) -> tuple[int, int]:
        """The loads of the input and of the weight."""
        return self.factors_of(self.dot)

    @property
    def rank(self) -> int:
        """The dimensions of space."""
        return len(self.windows.stride)

    def space_of(self, pixel: str) -> int:
        """The dimension of space that a run of pixels is of."""
        return SPACE[self.rank].index(pixel.removeprefix("out_")[0])

    def run(self, index: str) -> Group:
        """The run that a variable counts."""
        return next(g for e in self.layout.extents for g in e.runs if g.index == index)


PART_CHANNELS = 8
"""Channels at the most that are multiplied in three TF32 parts, as `tf32_parts` of host.py.jinja says: torch's call
multiplies most of them in float32 though TF32 is allowed (see `schedules.multiplies_as_torch`). Transposed
convolutions it multiplies mostly in TF32; three parts are no slower there (0.95 of the time of one, H200, 3 channels,
KernelBench level 2's 50, 58, 89 and 96)."""

NARROW, NARROW_PART_CHANNELS = 32, 3
"""In three dimensions of space the same for at most so many output channels: of 4 to 8 channels torch's call multiplies
these in TF32 (H200, 8 to 16, KernelBench level 2's 8: torch is off by 1.36 of its tolerance, three parts by 0.01, in
1.45 times the time of one)."""


def may_have_parts(body: ConvolutionBody) -> bool:
    """Whether there may be so few channels."""
    known = [body.lowered.space.axes[a] for run in body.extent("k").runs if run.index == "channels" for a in run.axes]
    channels = prod(size for size in known if isinstance(size, int))
    return body.windows.groups == 1 and channels <= PART_CHANNELS


def are_parted(body: ConvolutionBody, channels: int, columns: int) -> bool:
    """Whether float32 of so many input channels is multiplied in three TF32 parts, by so many output channels."""
    narrow = body.rank == 3 and not body.windows.transposed and columns <= NARROW
    return body.windows.groups == 1 and channels <= (NARROW_PART_CHANNELS if narrow else PART_CHANNELS)


def body(spec: OperatorSpec, graph: Graph) -> ConvolutionBody:
    """Raises Unlowerable where one kernel cannot compute the graph."""
    graph, lowered, roles = lower(spec, graph, _WindowLowering)
    node = next(n for n in graph.nodes if n.convolution is not None and n.op == "dot")
    assert node.convolution is not None
    dot = next(i for i, v in enumerate(lowered.values) if v.op == "dot")
    factors = [a.value for a in lowered.values[dot].args if isinstance(a, Use)]
    if any(lowered.values[i].op != "load" for i in factors):
        raise Unlowerable("a convolution of a computed input or weight", node.statement)
    of_weight = "cj" if node.convolution.transposed else "jc"
    sizes = lowered.space.axes
    if not all(
        _is_whole(lowered.values[i], own, roles, sizes) for i, own in zip(factors, ("bc", of_weight), strict=True)
    ):
        raise Unlowerable("a convolution of a tensor in another memory layout", node.statement)
    for i, value in enumerate(lowered.values):
        if value.op == "load" and i not in factors and any(isinstance(e, Expr) for e in value.index):
            raise Unlowerable("a tensor that is moved in the kernel of a convolution", node.statement)
    return _laid_out(spec, graph, lowered, roles, dot, node)


def _is_whole(value: Value, own: str, roles: Roles, sizes: Sequence[Atom]) -> bool:
    """Whether a factor is a tensor as torch's convolution takes it: images or output channels, input channels, places,
    none of which stands for several. `own`: the letters of the first two dimensions."""
    found = [set(axes_of(entry)) for entry in value.index]
    group = set(roles.entries.get("g", ()))
    wanted = [set(roles.entries[letter]) for letter in own]
    needed = {a for letter in (*own, *"rst") for a in roles.entries.get(letter, ()) if sizes[a] != 1}
    if not needed <= set().union(*found):
        return False
    space = [set(roles.entries.get(c, ())) for letters in ("xyz", "rst") for c in letters]
    return all(axes - group <= want for axes, want in zip(found, wanted, strict=False)) and all(
        any(axes <= one | other for one, other in zip(space[:3], space[3:], strict=True)) for axes in found[2:]
    )


class _WindowLowering(ProductLowering):
    """Windows are read where they are inside, and are zero elsewhere, whatever pads a sum."""

    def __init__(self, graph: Graph, products: Mapping[int, Roles]) -> None:
        (dot,) = products
        convolution = graph.nodes[dot].convolution
        assert convolution is not None
        self.pools = pools_of(graph, len(convolution.stride))
        self.inner = {i: pool for pool in self.pools.values() for i in pool.inner}
        self.numbers = {id(node): i for i, node in enumerate(graph.nodes)}
        super().__init__(graph, products)

    def _follow(self, node: Node) -> Index | None:
        """A pool leaves pixels along the axes that it found them on."""
        number = self.numbers[id(node)]
        pool = self.inner.get(number) or self.pools.get(number)
        if pool is None or pool.source not in self.natural:
            return super()._follow(node)
        return self.natural[pool.source] if number in self.pools else None

    def lower(self, number: int, index: Index) -> int:
        pool = self.pools.get(number)
        if pool is None or pool.source not in self.natural:
            return super().lower(number, index)
        node, source = self.graph.nodes[number], self.value(pool.source, index)
        axes = frozenset(a for entry in index for a in axes_of(entry))
        window = " ".join(map(str, pool.window))
        return self.add(
            Value(pool.op, (Use(source),), "float", axes, node.name or "pooled", node.statement, attr=window)
        )

    def read(self, node: Node, source: int, places: Index, made: ix.Indexing, *, padded: bool) -> int:
        return super().read(node, source, places, made, padded=False)


def _laid_out(
    spec: OperatorSpec, graph: Graph, lowered: Lowered, roles: Roles, dot: int, node: Node
) -> ConvolutionBody:
    values = lowered.values
    assert node.convolution is not None
    loads = [(i, v) for i, v in enumerate(values) if v.op == "load"]
    tensors = (*spec.inputs, *spec.outputs)
    reserved = _RESERVED | {f"{t.name}_desc" for t in tensors}
    taken = {t.name for t in tensors} | reserved
    counted = [e for v in values for e in expressions(v)]
    windows = node.convolution
    # pixels are counted along whole dimensions, whatever their sizes are products of
    phased = [roles.entries[c] for s, c in zip(windows.stride, "xyz", strict=False) if windows.transposed and s > 1]
    whole = [*phased, *(axes for c in "xyz" if len(axes := roles.entries.get(c, ())) > 1)]
    is_pooled = any(v.op in REDUCED.values() for v in values)
    apart = {a for c in "xyz" for a in roles.entries.get(c, ()) if is_pooled}
    letters: list[Index] = [(axes,) for axes in roles.entries.values() if axes]
    runs = collapse(
        len(lowered.space.axes), lowered.space.outer,
        [*(v.index for _, v in loads), *(o.index for o in lowered.outputs), *letters],
        ({a for e in counted for a in axes_of(e)} | apart) - {a for axes in whole for a in axes},
    )  # fmt: skip
    if any(axes not in runs for axes in whole):
        raise Unlowerable("a convolution whose pixels are taken apart in its kernel", node.statement)
    named = _variables(len(node.convolution.stride), roles, runs)
    extents = tuple(
        _extent(kind, [(run, named[run]) for run in runs if set(run) <= set(axes)], lowered, taken)
        for kind, axes in roles.extents.items()
    )
    each = tuple(run for e in extents for run in e.runs)
    written = [
        (o.value, Value("store", (), o.dtype, frozenset(), tensor=o.name, index=o.index)) for o in lowered.outputs
    ]
    accesses = distinct_strides([_access(spec, lowered, i, v, each) for i, v in (*loads, *written)])
    outer = tuple(run for extent in extents[:2] for run in extent.runs)
    stores = tuple(zip(lowered.outputs, accesses[len(loads) :], strict=True))
    counted += [e for a in accesses for e, _ in a.terms if isinstance(e, Expr)]
    sizes = size_parameters(counted, lowered.space.axes, each, taken)
    columns = Group(extents[2].axes, "N", "cols")
    laid = Layout(outer, columns, (), accesses[: len(loads)], (), stores, sizes, extents)
    plain = make_body(spec, lowered, graph.statements, laid, reserved=reserved)
    rank = len(windows.stride)
    window = tuple(prod(int(lowered.space.axes[a]) for a in roles.entries[c]) for c in "rst"[:rank])
    taps = tuple(variable for variable in _of(named, extents[3]) if variable.startswith("tap"))
    space = (roles.entries[letter] for letter in "xyz"[:rank])
    result = (roles.entries["b"], (*roles.entries.get("g", ()), *roles.entries["j"]), *space)
    pooled = _pooled(lowered, dot, node)
    return ConvolutionBody(
        pooled=pooled, pool=() if pooled is None else windows_of(lowered.values[pooled]),
        **vars(plain), dots=(dot,), factor=factor_of(spec, lowered, dot), windows=windows,
        window=window, call=str(node.attrs[1]), pixels=_of(named, extents[1]), taps=taps, result=result,
        contiguous=any(".contiguous(" in statement.text for statement in graph.statements),
    )  # fmt: skip


def _pooled(lowered: Lowered, dot: int, node: Node) -> int | None:
    """The pool of all outputs. Unlowerable where an output is of pixels too, or there are two."""
    values = lowered.values
    found = [i for i, v in enumerate(values) if v.op in REDUCED.values()]
    todo = [o.value for o in lowered.outputs] if found else []
    while todo:
        i = todo.pop()
        if i == dot:
            raise Unlowerable("pixels and what a pool leaves of them in one kernel", node.statement)
        todo += [a.value for a in values[i].args if isinstance(a, Use) and i != found[0]]
    convolution = node.convolution
    if found and convolution and convolution.transposed and set(convolution.stride) != {1}:
        raise Unlowerable("a pool over the phases of a transposed convolution in one kernel", node.statement)
    if len(found) > 1:
        raise Unlowerable("a pool of what another pool leaves in one kernel", node.statement)
    return found[0] if found else None


def _of(named: dict[tuple[int, ...], str], extent: Extent) -> tuple[str, ...]:
    return tuple(named[run.axes] for run in extent.runs)


def _variables(rank: int, roles: Roles, runs: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], str]:
    """What counts every run: `images`, `out_h`, `cols`, `tap_h`, `channels`, `group`."""
    of_letter = {"b": "images", "j": "cols", "c": "channels", "g": "group"}
    of_letter |= {letter: f"out_{d}" for letter, d in zip("xyz", SPACE[rank], strict=False)}
    of_letter |= {letter: f"tap_{d}" for letter, d in zip("rst", SPACE[rank], strict=False)}
    found: dict[tuple[int, ...], str] = {}
    for letter, axes in roles.entries.items():
        own = [run for run in runs if run and set(run) <= set(axes)]
        names = [of_letter[letter], *(f"{of_letter[letter]}_{n}" for n in range(2, len(own) + 1))]
        found |= dict(zip(own, names, strict=False))
    return found


def _extent(kind: str, runs: list[tuple[tuple[int, ...], str]], lowered: Lowered, taken: set[str]) -> Extent:
    size = {"batch": "GROUPS", "m": "M", "n": "N", "k": "K"}[kind]
    if kind == "n" and len(runs) == 1:
        return Extent(kind, size, (Group(runs[0][0], size, runs[0][1]),))
    named = [_size_name(lowered, axes, index, taken) for axes, index in runs]
    return Extent(kind, size, tuple(Group(axes, name, index) for (axes, index), name in zip(runs, named, strict=True)))


def _size_name(lowered: Lowered, axes: tuple[int, ...], index: str, taken: set[str]) -> str:
    """What the size of a run is called; of several axes after the dimension of the result that they are."""
    name = index.upper()
    if len(axes) == 1 or name in taken or not name.startswith("OUT_"):
        return group_name(lowered.space.axes, axes, taken)
    taken.add(name)
    return name


def _access(spec: OperatorSpec, lowered: Lowered, number: int, value: Value, runs: tuple[Group, ...]) -> Access:
    """Where a tensor is read or written, by its strides; a dimension that several runs share is counted as a place."""
    tensor = next(t for t in (*spec.inputs, *spec.outputs) if t.name == value.tensor)
    held = [run for run in runs if set(run.axes) <= {a for entry in value.index for a in axes_of(entry)}]
    index = tuple(e if isinstance(e, Expr) else place_of(e, held, lowered.space.axes) or e for e in value.index)
    flat = flat_axes(index)
    found: list[tuple[str | Expr, str, tuple[int, ...]]]
    found = [(entry, str(d), (-1 - d,)) for d, entry in enumerate(index) if isinstance(entry, Expr)]
    found += [(run.index, run.index, run.axes) for run in held if set(run.axes) <= set(flat)]
    if not found:
        return Access(number, tensor.name, (), (), None)
    view = f"{tensor.name}_view"
    return strided_access(tensor, index, number, found, flat, None, view, in_parts=False)


def place_of(entry: tuple[int, ...], runs: Iterable[Group], axes: tuple[Atom, ...]) -> Expr | None:
    """The place along a dimension that several runs share, each of them by its first axis; None where one has it."""
    own = sorted((run for run in runs if set(run.axes) <= set(entry)), key=lambda run: entry.index(run.axes[0]))
    if len(own) < 2:
        return None
    return ix.linear(tuple(ix.axis(run.axes[0]) for run in own), tuple(tuple(axes[a] for a in run.axes) for run in own))

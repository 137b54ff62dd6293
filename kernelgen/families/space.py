"""The iteration space of a graph, and how its axes make up dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families.values import Index, NotWhole, Space, Unlowerable
from kernelgen.frontend.graph import INDEXED, REDUCTIONS, SCANS, Atom, Dim, Graph, Node, Ref, same_size
from kernelgen.spec.sizes import size_text


def space_of(graph: Graph, *, apart: bool) -> Space:
    reductions = [n for n in graph.nodes if n.op in REDUCTIONS]
    scans = [n for n in graph.nodes if n.op in SCANS]
    if scans:
        return _scanned_space(graph, scans, reductions)
    if not reductions:
        shapes = [(sizes_of if apart else atoms_of)(_before_joined(graph, o.node, apart=apart)) for o in graph.outputs]
        axes = max(shapes, key=len)
        if not axes and any(n.op in INDEXED for n in graph.nodes):
            axes = (1,)  # what is read at an index is read in rows and columns
        return Space(axes, len(axes))
    best: Space | None = None
    for node in reductions:
        source = node.args[0]
        assert isinstance(source, Ref)
        shape = graph.nodes[source.node].shape
        space = _kept_first(shape, {int(d) for d in node.attrs})
        if best is None or len(space.axes) > len(best.axes):
            best = space
    assert best is not None
    return best


def _before_joined(graph: Graph, i: int, *, apart: bool) -> tuple[Dim, ...]:
    """The shape of an output before a last reshape joined dimensions: it says in which order their sizes are axes."""
    shape = graph.nodes[i].shape
    if apart or any(n.op == "permute" for n in graph.nodes):
        return shape
    while graph.nodes[i].op in ("reshape", "round", "convert"):
        source = graph.nodes[i].args[0]
        assert isinstance(source, Ref)
        i, before = source.node, graph.nodes[source.node].shape
        if len(before) > len(shape) and sorted(map(str, atoms_of(before))) == sorted(map(str, atoms_of(shape))):
            shape = before
    return shape


def _kept_first(shape: tuple[Dim, ...], reduced: set[int]) -> Space:
    """The space of a reduction: the atoms of the kept dimensions, then those of the reduced ones."""
    flags = [i - len(shape) in reduced for i, dim in enumerate(shape) for _ in dim]
    places = sorted(range(len(flags)), key=lambda place: flags[place])
    order = tuple(places.index(place) for place in range(len(flags)))
    atoms = atoms_of(shape)
    axes = tuple(atoms[place] for place in places)
    return Space(axes, len(flags) - sum(flags), () if order == tuple(range(len(order))) else order)


def _scanned_space(graph: Graph, scans: list[Node], reductions: list[Node]) -> Space:
    """Rows along the scanned dimension, of the largest shape that is returned or scanned."""
    if reductions:
        raise Unlowerable("a reduction and a scan in one operator", reductions[0].statement)
    dim = int(scans[0].attrs[0])
    for node in scans:
        if node.attrs != (dim,) or len(node.shape) != len(scans[0].shape):
            raise Unlowerable("scans over different dimensions in one operator", node.statement)
        if node.shape[dim] == ():
            raise Unlowerable("a scan over a dimension of one element", node.statement)
    shapes = [graph.nodes[o.node].shape for o in graph.outputs] + [node.shape for node in scans]
    if dim != -1:
        alike = [shape for shape in shapes if len(shape) == len(scans[0].shape)]
        return _kept_first(max(alike, key=lambda shape: len(atoms_of(shape))), {dim})
    axes = max(map(atoms_of, shapes), key=len)
    return Space(axes, len(axes) - len(scans[0].shape[-1]))


def atoms_of(shape: tuple[Dim, ...]) -> tuple[Atom, ...]:
    return tuple(atom for dim in shape for atom in dim)


def sizes_of(shape: tuple[Dim, ...]) -> tuple[Atom, ...]:
    """One axis for every dimension, of which the size may be a product."""
    return tuple(dim[0] if len(dim) == 1 else size_text(dim) for dim in shape if dim)


def exact_sizes(graph: Graph) -> tuple[tuple[Atom, int], ...]:
    """`Graph.rounded`, with sizes as shapes have them."""
    return tuple((size, most) for dim, most in graph.rounded for size in sizes_of((dim,)))


def product(factors: Sequence[str]) -> str:
    """A product of Python expressions; a quotient needs no parentheses where nothing is before it."""
    shown = [f"({f})" if " " in f else f for f in factors[1:]]
    first = f"({factors[0]})" if " + " in factors[0] or " - " in factors[0] else factors[0]
    return " * ".join([first, *shown])


def not_of_rows(shape: tuple[Dim, ...], space: Space) -> str:
    """Why an output of this shape is refused."""

    def shown(atoms: Sequence[Atom]) -> str:
        return f"[{', '.join(map(str, atoms))}]"

    rows = shown(space.axes) + (f" or {shown(space.axes[: space.outer])}" if space.inner_axes() else "")
    own = f"[{', '.join(size_text(d) if d else '1' for d in shape)}]"
    return (
        f"an output of shape {own} in one operator with rows of shape {shown(space.axes)} "
        f"(supported: outputs of shape {rows}; write a spec for each of the others)"
    )


def split(shape: tuple[Dim, ...], axes: tuple[int, ...], space: Space, statement: int | None = None) -> Index:
    """Cut a row of axes into dimensions of the given sizes."""
    index: list[tuple[int, ...]] = []
    rest = list(axes)
    for dim in shape:
        # a number of channels may have been divided into groups, which are several axes
        counts = range(len(rest) + 1)
        count = next((n for n in counts if same_size(dim, tuple(space.axes[a] for a in rest[:n]))), None)
        if count is None:
            raise NotWhole("a reshape that does not keep dimensions whole", statement)
        index.append(tuple(rest[:count]))
        rest = rest[count:]
    if any(space.axes[a] != 1 for a in rest):
        raise Unlowerable("a reshape of a broadcast value", statement)
    return tuple(index)

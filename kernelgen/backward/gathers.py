"""The gradient of what indices read: what came of every place is added up there."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.backward.tape import Tape
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Node, Ref


@dataclass(frozen=True)
class Read:
    """An `index` node that reads where one integer tensor says, in whole dimensions beside it."""

    source: Ref
    index: Ref
    """Of one dimension or more, each of which stands for the first of the source; or of the result's shape."""
    dim: int | None
    """The dimension, 0 or -1, along which every element has an index of its own; None: whole rows have."""


def read(tape: Tape, node: Node) -> Read:
    """What an `index` node reads. Raises Refused where that is something else, as elements that are moved."""
    source, *values = node.args
    assert node.indexing is not None
    places = node.indexing.places
    counted = [d for d, place in enumerate(places) if place.op == "value"]
    if len(counted) != 1 or len(values) != 1 or any(p.op not in ("axis", "value") for p in places):
        raise Refused("the gradient of moved elements")
    (dim,), (index,) = counted, values
    assert isinstance(source, Ref)
    assert isinstance(index, Ref)
    own, rank = tape.node(index).shape, len(places)
    if own == node.shape and len(own) == rank and dim in (0, rank - 1):
        return Read(source, index, 0 if dim == 0 < rank - 1 else -1)
    lead = len(own) - (rank - 1)
    if dim or any(d != () for d in own[lead:]):
        raise Refused("the gradient of an index along another dimension than the first")
    inner = tape.node(index).args[0] if tape.node(index).op == "reshape" else index
    whole = isinstance(inner, Ref) and tape.node(inner).shape == own[:lead]
    return Read(source, inner if whole and isinstance(inner, Ref) else tape.view("reshape", index, own[:lead]), None)


def through_index(tape: Tape, node: Node, g: Ref) -> Ref:
    """The gradient of the tensor that an `index` node reads: an index_add or a scatter_add of the node's own gradient
    into zeros; of one element a row the gradient where the column is that element's."""
    found = read(tape, node)
    if found.dim == -1 and node.shape[-1] == ():
        is_chosen = tape.map("eq", tape.iota(found.source, -1), found.index)
        chosen = tape.map("where", is_chosen, g, 0.0)
        tape.call(chosen, "chosen")
        tape.pieces.add(chosen)
        return chosen
    shape, zeros = tape.node(found.source).shape, tape.full(0.0, tape.node(found.source).shape, "float")
    tape.keep(zeros, "zeros")
    g = tape.view("expand", g, node.shape)
    if found.dim is not None:
        return tape.scatter("scatter_add", (zeros, found.index, g), shape, "float", found.dim)
    count = tuple(atom for d in tape.node(found.index).shape for atom in d)
    rows, g = tape.view("reshape", found.index, (count,)), tape.view("reshape", g, (count, *shape[1:]))
    return tape.scatter("index_add", (zeros, rows, g), shape, "float", 0)

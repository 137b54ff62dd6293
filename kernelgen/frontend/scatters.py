"""Operations that add to where an integer tensor says."""

from __future__ import annotations

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Call, Refused, Rule


def bincount(b: Builder, c: Call) -> Ref:
    x, weights, length = c.args
    if weights is not None:
        raise Refused("bincount with weights")
    if not isinstance(length, int) or length < 1:
        raise Refused("bincount without minlength (its result has no fixed size)")
    _check_index(b, x)
    b.note(f"a number outside 0 to {length - 1} is not counted, where torch raises or returns more")
    return b.scatter("bincount", (x,), c.shape, "int64", 0)


def index_add(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    if c.get(4, "alpha", 1) != 1:
        raise Refused("index_add with alpha")
    if dim % max(len(c.shape), 1) != 0 or not c.shape:
        raise Refused("index_add along another dimension than the first")
    _check(b, index)
    if len(c.shape) == 1:  # every element by its own index
        return b.scatter("scatter_add", (x, index, source), c.shape, c.dtype, -1)
    return b.scatter("index_add", (x, index, source), c.shape, c.dtype, 0)


def scatter_add(b: Builder, c: Call) -> Ref:
    x, dim, index, source = c.args[:4]
    rank = len(c.shape)
    if not rank or dim % rank not in (0, rank - 1):
        raise Refused("scatter_add along another dimension than the first or the last")
    dim = -1 if dim % rank == rank - 1 else 0
    own, shape = b.node(index).shape, b.node(source).shape
    kept = [d for d in range(rank) if d != dim % rank]
    if own != shape or [own[d] for d in kept] != [c.shape[d] for d in kept]:
        raise Refused("scatter_add with an index that is smaller than what it adds, or than where")
    _check(b, index)
    return b.scatter("scatter_add", (x, index, source), c.shape, c.dtype, dim)


def _check(b: Builder, index: Ref) -> None:
    _check_index(b, index)
    b.note("an index outside its range adds nothing, where torch raises")


def _check_index(b: Builder, index: Ref) -> None:
    if b.node(index).dtype in ("uint8", "bool", "float"):
        raise Refused(f"{b.node(index).dtype} as an index")


RULES: dict[str, Rule] = {
    "kernelgen_reference.bincount.default": bincount,
    "aten.index_add.default": index_add,
    "aten.scatter_add.default": scatter_add,
}

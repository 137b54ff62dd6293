"""Scans whose result is read some places later: exclusive scans, written with a cat or a pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelgen.families.padding import identity
from kernelgen.families.values import Entry, Operand, Space, Unlowerable, Use, Value, axes_of, constant_of
from kernelgen.frontend.graph import Graph, Node, Ref, same_size
from kernelgen.frontend.indices import Condition, Expr, Indexing, number, size


def places_later(place: Entry, inner: tuple[int, ...]) -> int | None:
    """How many elements before its own place a row is read; None where it is not read one after the other."""
    if place == inner or not isinstance(place, Expr) or len(inner) != 1:
        return 0 if place == inner else None
    first, *rest = place.args or (place,)
    along = first.op == "axis" and first.number == inner[0]
    if not rest:
        return 0 if along else None
    return rest[0].number if along and place.op == "-" and rest[0].op == "number" else None


def visible(conditions: Sequence[Condition], scan: Node, space: Space, *, flipped: bool) -> tuple[Condition, ...]:
    """The conditions on what is looked at of a scan that hold for what it runs over as well: not those that would keep
    it from elements that it has passed by then. `flipped`: it comes from the end."""
    return tuple(c for c in conditions if not _hides(c, scan, space, flipped=flipped))


def _hides(condition: Condition, scan: Node, space: Space, *, flipped: bool) -> bool:
    """Raises Unlowerable where without the condition there would be elements to pass that are not the operand's."""
    inner, dim = space.inner_axes(), scan.shape[int(scan.attrs[0])]
    if not set(inner) & {*axes_of(condition.left), *axes_of(condition.right)}:
        return False
    if not flipped:
        return condition.op == ">="
    found = condition.op == "<" and condition.right != size(dim)
    if found and not same_size(dim, tuple(space.axes[a] for a in inner)):
        raise Unlowerable("a part of a scan from the end among other elements", scan.statement)
    return found


def is_load(graph: Graph, number: int) -> bool:
    """Whether a node is an input, or one that is read as a whole elsewhere: nothing is computed in between."""
    node = graph.nodes[number]
    while node.op == "index" and len(node.args) == 1 and node.indexing is not None and node.indexing.fill is None:
        [source] = node.args
        assert isinstance(source, Ref)
        node = graph.nodes[source.node]
    return node.op == "input"


def settled_scan(values: Sequence[Value], later: Mapping[int, Expr], args: Sequence[Operand]) -> int | None:
    """The scan that `where(place < k, what it starts from, the scan read k places later)` is anyway, if it is one."""
    test, before, scan = args
    if not isinstance(test, Use) or not isinstance(scan, Use) or scan.value not in later:
        return None
    less, value, place = values[test.value], values[scan.value], later[scan.value]
    if less.op != "lt" or constant_of(values, before) != identity(value.op, value.dtype):
        return None
    sides = [values[side.value].index for side in less.args if isinstance(side, Use)]
    return scan.value if sides == [(place.args[0],), (place.args[1],)] else None


def begins_so(values: Sequence[Value], later: Mapping[int, Expr], scan: int, made: Indexing) -> bool:
    """Whether a scan that is read later begins with what is to stand where the conditions do not hold anyway."""
    if scan not in later or made.fill != identity(values[scan].op, values[scan].dtype):
        return False
    place = later[scan]
    same = (Condition(place, ">=", number(0)), Condition(place.args[0], ">=", place.args[1]))
    return all(condition in same for condition in made.conditions)

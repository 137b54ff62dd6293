"""Scans whose result is read some places later: exclusive scans, written with a cat or a pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelgen.families.padding import identity
from kernelgen.families.values import Entry, Index, Operand, Space, Unlowerable, Use, Value, axes_of, constant_of
from kernelgen.frontend.graph import Graph, Node, Ref, same_size
from kernelgen.frontend.indices import Condition, Expr, Indexing, axis, minus, number, plus, size


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


def mirror(flip: Node, index: Index, space: Space) -> Index:
    """How the operand of a flip is read. From a row's end, k places before a place are k places after it."""
    inner, at = space.inner_axes(), int(flip.attrs[0]) % len(index)
    place, alone = index[at], len(flip.attrs) == 1
    if alone and inner and place == inner:
        return index
    if alone and len(inner) == 1 and same_size(flip.shape[at], (space.axes[inner[0]],)):
        match place:
            case Expr("+" | "-", (Expr("axis", _, along) as first, Expr("number") as k)) if along == inner[0]:
                return (*index[:at], minus(first, k) if place.op == "+" else plus(first, k), *index[at + 1 :])
    raise Unlowerable("a flip of a dimension that is not scanned", flip.statement)


def begun(later: int, space: Space, *, flipped: bool) -> Condition:
    """Where a scan that is read so many places later has begun; `flipped`: it comes from the end."""
    (along,) = space.inner_axes()
    length = space.axes[along]
    if not flipped:
        return Condition(axis(along), ">=", number(later))
    left = size((f"{length} - {later}",)) if isinstance(length, str) else number(length - later)
    return Condition(axis(along), "<", left)


def _only_moves(node: Node) -> bool:
    return node.op == "reshape" or (
        node.op == "index" and len(node.args) == 1 and node.indexing is not None and node.indexing.fill is None
    )


def is_load(graph: Graph, number: int) -> bool:
    """Whether a node is an input, or one that is read as a whole elsewhere: nothing is computed in between."""
    node = graph.nodes[number]
    while _only_moves(node) or (node.op == "round" and node.attrs == ("float32",)):
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
    if value.attr is not None or less.op != "lt" or constant_of(values, before) != identity(value.op, value.dtype):
        return None
    sides = [values[side.value].index for side in less.args if isinstance(side, Use)]
    return scan.value if sides == [(place.args[0],), (place.args[1],)] else None


def begins_so(values: Sequence[Value], later: Mapping[int, Expr], scan: int, made: Indexing) -> bool:
    """Whether a scan that is read later begins with what is to stand where the conditions do not hold anyway."""
    if scan not in later or made.fill != identity(values[scan].op, values[scan].dtype):
        return False
    place = later[scan]
    if values[scan].attr is not None:  # from the end
        k = place.args[1].number
        return all(c.left == place.args[0] and c.op == "<" and _is_shorter(c.right, k) for c in made.conditions)
    same = (Condition(place, ">=", number(0)), Condition(place.args[0], ">=", place.args[1]))
    return all(condition in same for condition in made.conditions)


def _is_shorter(length: Expr, by: int) -> bool:
    return length.op == "size" and str(length.size[0]).endswith(f" - {by}")

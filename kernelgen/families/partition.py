"""Where a graph that no family takes as a whole is cut into several kernels.

It is cut at its reductions, scans, selections, scatters and products, which are most of what one kernel cannot hold
together: a kernel computes those that come first in the reference, and leaves what the others need in memory. Either
that is what the others read, or, where it is larger, what the first came to, from which the others compute it once
more. There are as few kernels as families take, and of all cuts into so many the one that moves the fewest bytes is
made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.graph import DOT, REDUCTIONS, SCANS, SCATTERS, VIEWS, Graph, Node, Ref

_ANCHORS = (*REDUCTIONS, *SCANS, *SCATTERS, DOT)
_MOST_KERNELS = 6
"""More launches than that are no operator."""
_MOST_TRIED = 200
"""Groups that are lowered in search of a cut. Of the references in the tests half took fewer than ten, none thirty."""


@dataclass(frozen=True)
class Group:
    """What one kernel writes, by the nodes that compute it."""

    outputs: tuple[int, ...]
    left: tuple[int, ...] = ()
    """What kernels after it read, as it was computed and not as an output rounds it."""

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.outputs, *self.left}))


Cost = Callable[[Group, frozenset[int]], int]
"""The bytes that a group's kernel moves, with what lies in memory before it. Raises UnsupportedError where no family
takes it."""
_Found = tuple[int, tuple[Group, ...]]
"""Bytes moved, and the kernels in their order."""


def groups(graph: Graph, outputs: tuple[int, ...], stored: frozenset[int], cost: Cost) -> tuple[Group, ...]:
    """The kernels that compute some nodes from those that are stored, in their order.

    Raises the UnsupportedError of the smallest part that no family takes where no cut helps.
    """
    search = _Search(graph, cost)
    found = search.best(Group(outputs), stored, _MOST_KERNELS)
    if found is None:
        raise search.refused[min(search.refused)]
    return found[1]


class _Search:
    def __init__(self, graph: Graph, cost: Cost) -> None:
        self.graph = graph
        self.cost = cost
        self.costs: dict[tuple[Group, frozenset[int]], int | None] = {}
        self.known: dict[tuple[Group, frozenset[int], int], _Found | None] = {}
        self.refused: dict[int, UnsupportedError] = {}
        """By the number of nodes that a kernel would have had."""

    def best(self, group: Group, stored: frozenset[int], most: int) -> _Found | None:
        """A group by as few kernels as it takes, at most so many, and of these ways the one that moves the least."""
        key = group, stored, most
        if key not in self.known:
            self.known[key] = self._alone(group, stored)
            for count in range(2, most + 1):
                self.known[key] = self.known[key] or self._cut(group, stored, count)
        return self.known[key]

    def _alone(self, group: Group, stored: frozenset[int]) -> _Found | None:
        key = group, stored
        if key not in self.costs:
            self.costs[key] = self._cost(group, stored) if len(self.costs) < _MOST_TRIED else None
        cost = self.costs[key]
        return None if cost is None else (cost, (group,))

    def _cost(self, group: Group, stored: frozenset[int]) -> int | None:
        try:
            return self.cost(group, stored)
        except UnsupportedError as error:
            self.refused.setdefault(len(needed_for(self.graph, group.nodes, stored)), error)
            return None

    def _cut(self, group: Group, stored: frozenset[int], count: int) -> _Found | None:
        found: _Found | None = None
        for first, then in _cuts(self.graph, group, stored):
            before = self.best(first, stored, count - 1)
            if before is None or (found is not None and before[0] >= found[0]):
                continue
            after = self.best(then, stored | frozenset(first.left), count - len(before[1]))
            if after is not None and (found is None or before[0] + after[0] < found[0]):
                found = before[0] + after[0], (*before[1], *after[1])
        return found


def _cuts(graph: Graph, group: Group, stored: frozenset[int]) -> Iterator[tuple[Group, Group]]:
    """The ways to compute a group in two parts; the first leaves what the second needs beside what is stored."""
    needed = needed_for(graph, group.nodes, stored)
    anchors = [i for i in needed if graph.nodes[i].op in _ANCHORS and i not in stored]
    given: set[tuple[Group, Group]] = set()
    for k in range(len(anchors), -1, -1):
        late = _following(graph, needed, anchors[k:] or _after(graph, needed, anchors))
        for left in dict.fromkeys(_left(graph, needed, late, stored, anchors[:k])):
            first, then = _divided(group, {*group.nodes} - late, left)
            if (left or first.outputs) and then.nodes and (first, then) not in given:
                given.add((first, then))
                yield first, then
    read = {j for i in needed if i not in stored and graph.nodes[i].op in SCATTERS for j in _lying(graph, i)} - stored
    computed = tuple(sorted(j for j in read if not set(needed_for(graph, (j,), stored)) & set(anchors)))
    if computed:
        yield _divided(group, set(), computed)
    for shape in dict.fromkeys(graph.nodes[i].shape for i in group.nodes):
        first, then = _divided(group, {i for i in group.nodes if graph.nodes[i].shape == shape}, ())
        if then.nodes:
            yield first, then
    if len(group.nodes) > 1:
        yield _divided(group, {group.nodes[0]}, ())


def _after(graph: Graph, needed: list[int], anchors: list[int]) -> list[int]:
    """What is computed from some anchors, and no anchor from it."""
    before = set(needed_for(graph, tuple(anchors), frozenset()))
    return [i for i in needed if i not in before and before.intersection(operands(graph.nodes[i]))]


def needed_for(graph: Graph, wanted: tuple[int, ...], stored: frozenset[int]) -> list[int]:
    """The nodes on the way from what is stored to some others, in their order."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            todo += [] if i in stored else operands(graph.nodes[i])
    return sorted(found)


def _divided(group: Group, first: set[int], left: tuple[int, ...]) -> tuple[Group, Group]:
    """What of a group is written by the first part, which leaves something more, and what after it."""
    parts = [
        Group(
            tuple(i for i in group.outputs if (i in first) is early),
            tuple(i for i in group.left if (i in first) is early),
        )
        for early in (True, False)
    ]
    return replace(parts[0], left=tuple(sorted({*parts[0].left, *left}))), parts[1]


def _left(
    graph: Graph, needed: list[int], late: set[int], stored: frozenset[int], anchors: list[int]
) -> Iterator[tuple[int, ...]]:
    """What the first of two parts may leave: all that the second reads of what its anchors came to; the anchors'
    results alone; or those for what is larger than they are; and what the second reads that has to lie in memory."""
    computed = _following(graph, needed, anchors) - late - stored
    read = {_base(graph, j) for i in late for j in operands(graph.nodes[i]) if j in computed}
    read = _roots(graph, needed, {i for i in read if i in computed}, anchors)
    results = {i: _ends(graph, needed, i, anchors) for i in read}
    small = {graph.nodes[j].shape for ends in results.values() for j in ends}
    lying = {j for i in late for j in _lying(graph, i)} - late - stored
    mixed = {j for i in read for j in ([i] if graph.nodes[i].shape in small else results[i])}
    for left in (read, mixed, {j for ends in results.values() for j in ends}):
        yield tuple(sorted(left))
        yield tuple(sorted(left | lying))


def _lying(graph: Graph, i: int) -> Iterator[int]:
    """What has to lie in memory for a kernel that computes none of what it reads, a scatter's or a convolution's, and
    is no input: all of it, but for zeros that are added to."""
    node = graph.nodes[i]
    if node.op == DOT and node.convolution is not None:
        yield from (j for j in (_base(graph, k) for k in operands(node)) if graph.nodes[j].op not in ("input", "full"))
    for j in operands(node) if node.op in SCATTERS else ():
        is_base = Ref(j) == node.args[0] and len(node.args) > 1
        while graph.nodes[j].op == "reshape" and not is_base:
            (j,) = operands(graph.nodes[j])
        if graph.nodes[j].op != "input" and not (is_base and graph.nodes[j].op == "full"):
            yield j


def _roots(graph: Graph, needed: list[int], read: set[int], anchors: list[int]) -> set[int]:
    """Some values short of those that follow from the others."""
    for i in sorted(read, reverse=True):
        if not _ends(graph, needed, i, anchors, read - {i}):
            read = read - {i}
    return read


def _ends(
    graph: Graph, needed: list[int], i: int, anchors: list[int], known: Collection[int] = frozenset()
) -> set[int]:
    """The anchors that a node is computed from, and that no other and nothing that is known stands before."""
    found: set[int] = set()
    todo = [i]
    while todo:
        j = todo.pop()
        if j in anchors and j not in known:
            found.add(_mean(graph, j))
        elif j not in known:
            todo += [k for k in operands(graph.nodes[j]) if k in needed]
    return found


def _mean(graph: Graph, i: int) -> int:
    """A sum over its count, where nothing else is made of the sum."""
    users = [j for j, node in enumerate(graph.nodes) if i in operands(node)]
    if len(users) == 1 and graph.nodes[i].op == "sum":
        user = graph.nodes[users[0]]
        if user.op == "div" and user.args[0] == Ref(i) and not isinstance(user.args[1], Ref):
            return users[0]
    return i


def _following(graph: Graph, needed: list[int], first: list[int]) -> set[int]:
    """Some nodes and those that are computed from them."""
    found = set(first)
    for i in needed:
        if found & set(operands(graph.nodes[i])):
            found.add(i)
    return found


def _base(graph: Graph, i: int) -> int:
    """What a value is a view of, if it is one; of windows, what they are read of."""
    while graph.nodes[i].op in VIEWS or (graph.nodes[i].op == "index" and graph.nodes[i].convolution):
        i = operands(graph.nodes[i])[0]
    return i


def operands(node: Node) -> list[int]:
    """The nodes that one reads."""
    return [a.node for a in node.args if isinstance(a, Ref)]

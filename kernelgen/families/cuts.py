"""Where a graph that no family takes as a whole is cut into several kernels.

It is cut at its reductions, scans, selections and scatters, which are most of what one kernel cannot hold together: a
kernel computes those that come first in the reference, and leaves what the others need in memory. Either that is what
the others read, or, where it is larger, what the first came to, from which the others compute it once more. Of all the
cuts that families take the one that moves the fewest bytes is made, and of equal ones that with the fewest kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.graph import REDUCTIONS, SCANS, SCATTERS, VIEWS, Graph, Node, Ref

_ANCHORS = (*REDUCTIONS, *SCANS, *SCATTERS)
_MOST_TRIED = 60
"""Groups that are lowered in search of a cut; few references have more than one or two that families take."""


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


def groups(graph: Graph, outputs: tuple[int, ...], stored: frozenset[int], cost: Cost) -> tuple[Group, ...]:
    """The kernels that compute some nodes from those that are stored, in their order.

    Raises the UnsupportedError of the one kernel that no family takes where no cut helps either.
    """
    return _Search(graph, cost).best(Group(outputs), stored)[1]


class _Search:
    def __init__(self, graph: Graph, cost: Cost) -> None:
        self.graph = graph
        self.cost = cost
        self.known: dict[tuple[Group, frozenset[int]], _Found | UnsupportedError] = {}

    def best(self, group: Group, stored: frozenset[int]) -> _Found:
        """The best way to compute a group, with the bytes that it moves."""
        key = group, stored
        if key not in self.known:
            if len(self.known) >= _MOST_TRIED:
                raise UnsupportedError([])
            self.known[key] = self._searched(group, stored)
        found = self.known[key]
        if isinstance(found, UnsupportedError):
            raise found
        return found

    def _searched(self, group: Group, stored: frozenset[int]) -> _Found | UnsupportedError:
        try:
            return self.cost(group, stored), (group,)
        except UnsupportedError as error:
            # the error of the whole says most where no cut helps
            self.known[group, stored] = error
            tried = [self._in_two(first, then, stored) for first, then in _cuts(self.graph, group, stored)]
            found = [one for one in tried if one is not None]
            return min(found, key=lambda one: (one[0], len(one[1])), default=error)

    def _in_two(self, first: Group, then: Group, stored: frozenset[int]) -> _Found | None:
        try:
            before, kernels = self.best(first, stored)
            after, others = self.best(then, stored | frozenset(first.left))
        except UnsupportedError:
            return None
        return before + after, (*kernels, *others)


def _cuts(graph: Graph, group: Group, stored: frozenset[int]) -> Iterator[tuple[Group, Group]]:
    """The ways to compute a group in two parts; the first leaves what the second needs beside what is stored."""
    needed = needed_for(graph, group.nodes, stored)
    anchors = [i for i in needed if graph.nodes[i].op in _ANCHORS and i not in stored]
    given: set[tuple[Group, Group]] = set()
    for k in range(len(anchors) - 1, -1, -1):
        late = _following(graph, needed, anchors[k:])
        for left in dict.fromkeys(_left(graph, needed, late, stored, anchors[:k])):
            first, then = _divided(group, {*group.nodes} - late, left)
            if (left or first.outputs) and then.nodes and (first, then) not in given:
                given.add((first, then))
                yield first, then
    for shape in dict.fromkeys(graph.nodes[i].shape for i in group.nodes):
        first, then = _divided(group, {i for i in group.nodes if graph.nodes[i].shape == shape}, ())
        if then.nodes:
            yield first, then
    if len(group.nodes) > 1:
        yield _divided(group, {group.nodes[0]}, ())


def needed_for(graph: Graph, wanted: tuple[int, ...], stored: frozenset[int]) -> list[int]:
    """The nodes on the way from what is stored to some others, in their order."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            todo += [] if i in stored else _read(graph.nodes[i])
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
    results alone; or those for what is larger than they are; and what the second's scatters read, which read memory."""
    computed = _following(graph, needed, anchors) - late - stored
    read = {_base(graph, j) for i in late for j in _read(graph.nodes[i]) if j in computed}
    read = _roots(graph, needed, {i for i in read if i in computed}, anchors)
    results = {i: _ends(graph, needed, i, anchors) for i in read}
    small = {graph.nodes[j].shape for ends in results.values() for j in ends}
    scattered = {_base(graph, j) for i in late if graph.nodes[i].op in SCATTERS for j in _read(graph.nodes[i])}
    scattered = {j for j in scattered - late - stored if graph.nodes[j].op not in ("input", "full")}
    mixed = {j for i in read for j in ([i] if graph.nodes[i].shape in small else results[i])}
    for left in (read, mixed, {j for ends in results.values() for j in ends}):
        yield tuple(sorted(left))
        yield tuple(sorted(left | scattered))


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
            todo += [k for k in _read(graph.nodes[j]) if k in needed]
    return found


def _mean(graph: Graph, i: int) -> int:
    """A sum over its count, where nothing else is made of the sum."""
    users = [j for j, node in enumerate(graph.nodes) if i in _read(node)]
    if len(users) == 1 and graph.nodes[i].op == "sum":
        user = graph.nodes[users[0]]
        if user.op == "div" and user.args[0] == Ref(i) and not isinstance(user.args[1], Ref):
            return users[0]
    return i


def _following(graph: Graph, needed: list[int], first: list[int]) -> set[int]:
    """Some nodes and those that are computed from them."""
    found = set(first)
    for i in needed:
        if found & set(_read(graph.nodes[i])):
            found.add(i)
    return found


def _base(graph: Graph, i: int) -> int:
    """What a value is a view of, if it is one."""
    while graph.nodes[i].op in VIEWS:
        i = _read(graph.nodes[i])[0]
    return i


def _read(node: Node) -> list[int]:
    return [a.node for a in node.args if isinstance(a, Ref)]

"""Where a graph that no family takes as a whole is cut into several kernels.

It is cut at its reductions, scans, selections, scatters and products, which are most of what one kernel cannot hold
together: a kernel computes those that come first in the reference, and leaves what the others need in memory. Either
that is what the others read, or, where it is larger, what the first came to, from which the others compute it once
more; or what products multiply is computed by a kernel of its own. Of all sequences of kernels that families take the
cheapest is made (`costs.py`), by branch and bound: what costs more than a sequence that is known, by the bytes that it
reads and writes at least, is not lowered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.graph import DOT, INDEXED, REDUCTIONS, SCANS, SCATTERS, VIEWS, Graph, Ref

_ANCHORS = (*REDUCTIONS, *SCANS, *SCATTERS, DOT)
_MOST_TRIED = 2000
"""Groups that are lowered in search of the cut of a part, at 1 to 3 ms each. Of the references in the tests half took
fewer than ten; a layer of a model, of fourteen anchors, takes a few hundred."""

_LONG = 24
"""More anchors than this are not searched as a whole."""

_PART = 8
"""The anchors that are searched at once of such a graph: at most so many, and half as many or more."""

_WORTH = 1000
"""A way that is found later is cheaper by more than this part, which is nobody's guess of a kernel's time."""


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
"""What a group's kernel costs, with what lies in memory before it. Raises UnsupportedError where no family takes it."""
_Ways = Callable[[Graph, Group, frozenset[int]], Iterator[tuple[Group, Group]]]
Costs = dict[tuple[Group, frozenset[int]], int | None]
"""What groups cost with what lies in memory of what they need; None where no family takes one."""
_Found = tuple[int, tuple[Group, ...]]
"""What the kernels cost, and the kernels in their order."""


def groups(
    graph: Graph,
    outputs: tuple[int, ...],
    stored: frozenset[int],
    cost: Cost,
    least: Cost,
    limit: int,
    *,
    materialize: bool,
    costs: Costs,
) -> tuple[Group, ...]:
    """The kernels that compute some nodes from those that are stored, in their order; `materialize` allows kernels that
    only write what a reduction or a convolution reads. `least`: what a group costs at least, known without lowering it.
    `costs`: what an earlier search found, to which this one adds.

    Raises the UnsupportedError of the smallest part that no family takes where no cut helps, and one that says nothing
    where all ways cost `limit` or more.
    """
    found: list[Group] = []
    rest = Group(outputs)
    search = _Search(graph, cost, least, (_cuts, _by_itself) if materialize else (_cuts,), costs)
    while rest.nodes:
        part = _beginning(graph, rest, stored)
        search.left_to_try = _MOST_TRIED
        best = search.best(part or rest, stored, limit)
        if best is None:
            raise search.refused[min(search.refused)] if search.refused else UnsupportedError([])
        # the last kernel of a part may be one with what comes after it
        made = best[1] if part is None or len(best[1]) == 1 else best[1][:-1]
        limit -= best[0] if made == best[1] else 0
        written = {i for group in made for i in group.outputs}
        rest = Group(tuple(i for i in rest.outputs if i not in written)) if part else Group(())
        stored |= {i for group in made for i in group.left}
        found += made
    return tuple(found)


def _beginning(graph: Graph, group: Group, stored: frozenset[int]) -> Group | None:
    """The first few anchors of a group that has many, up to where the fewest values are left: kernels of a model's
    later layers do not depend on how its first ones are cut. None where all of it is searched at once."""
    anchors = _pending(graph, group, stored)
    if len(anchors) <= _LONG:
        return None
    needed = needed_for(graph, group.nodes, stored)
    found: list[tuple[tuple[int, int], Group]] = []
    for k in range(_PART // 2, _PART + 1):
        late = _following(graph, needed, anchors[k:])
        for left in _left(graph, needed, late, stored, anchors[:k]):
            first, then = _divided(group, {*group.nodes} - late, left)
            if left and then.nodes and len(_pending(graph, then, stored | set(left))) < len(anchors):
                found.append(((len(left), -k), first))
    return min(found, key=lambda way: way[0])[1] if found else None


def _pending(graph: Graph, group: Group, stored: frozenset[int]) -> list[int]:
    """The anchors that a group is yet to compute."""
    return [i for i in needed_for(graph, group.nodes, stored) if graph.nodes[i].op in _ANCHORS and i not in stored]


class _Search:
    def __init__(self, graph: Graph, cost: Cost, least: Cost, ways: tuple[_Ways, ...], costs: Costs) -> None:
        self.graph = graph
        self.cost = cost
        self.least = functools.cache(least)
        self.ways = ways
        """To divide a group: one is tried where those before it are refused."""
        self.left_to_try = 0
        self.costs = costs
        self.known: dict[tuple[Group, frozenset[int]], tuple[_Found | None, int]] = {}
        """The cheapest way, and below which costs there is none where that is None."""
        self.refused: dict[int, UnsupportedError] = {}
        """By the number of nodes that a kernel would have had."""

    def best(self, group: Group, stored: frozenset[int], limit: int) -> _Found | None:
        """A group by one kernel if a family takes it, else by the cheapest one and what is best for the rest; None
        where that costs `limit` or more."""
        needed = needed_for(self.graph, group.nodes, stored)
        key = group, stored.intersection(needed)
        found, tried = self.known.get(key, (None, 0))
        if found is None and limit > tried:
            alone = self._alone(*key)
            found = (alone, (group,)) if alone is not None else self._cut(group, key[1], limit)
            self.known[key] = found, limit
        return found if found and found[0] < limit else None

    def _alone(self, group: Group, stored: frozenset[int]) -> int | None:
        """What a group by one kernel costs; None where no family takes it."""
        key = group, stored.intersection(needed_for(self.graph, group.nodes, stored))
        if key not in self.costs:
            if not self.left_to_try:
                return None
            self.left_to_try -= 1
            self.costs[key] = self._cost(*key)
        return self.costs[key]

    def _cost(self, group: Group, stored: frozenset[int]) -> int | None:
        try:
            return self.cost(group, stored)
        except UnsupportedError as error:
            self.refused.setdefault(len(needed_for(self.graph, group.nodes, stored)), error)
            return None

    def _cut(self, group: Group, stored: frozenset[int], limit: int) -> _Found | None:
        ways = (cuts(self.graph, group, stored) for cuts in self.ways)
        return next(filter(None, (self._cheapest(way, stored, limit) for way in ways)), None)

    def _cheapest(self, cuts: Iterator[tuple[Group, Group]], stored: frozenset[int], limit: int) -> _Found | None:
        found: _Found | None = None
        for first, then in cuts:
            later = stored | frozenset(first.left)
            rest = self.least(then, later)
            if self.least(first, stored) + rest >= limit:
                continue
            before = self._alone(first, stored)
            after = self.best(then, later, limit - before) if before is not None and before + rest < limit else None
            if before is not None and after is not None:
                found = before + after[0], (first, *after[1])
                limit = found[0] - found[0] // _WORTH
        return found


def _cuts(graph: Graph, group: Group, stored: frozenset[int]) -> Iterator[tuple[Group, Group]]:
    """The ways to compute a group in two parts; the first leaves what the second needs beside what is stored."""
    needed = needed_for(graph, group.nodes, stored)
    anchors = _pending(graph, group, stored)
    given: set[tuple[Group, Group]] = set()
    for k in range(len(anchors), -1, -1):
        late = _following(graph, needed, anchors[k:] or _after(graph, needed, anchors))
        for left in dict.fromkeys(_left(graph, needed, late, stored, anchors[:k])):
            first, then = _divided(group, {*group.nodes} - late, left)
            if (left or first.outputs) and then.nodes and (first, then) not in given:
                given.add((first, then))
                yield first, then
    read = {j for i in anchors for j in (*_lying(graph, i), *_factors(graph, i))}.intersection(needed) - stored
    computed = [j for j in sorted(read) if not set(needed_for(graph, (j,), stored)) & set(anchors)]
    for shape in dict.fromkeys(graph.nodes[j].shape for j in computed):
        left = tuple(j for j in computed if graph.nodes[j].shape == shape)
        yield _divided(group, {*left}, left)
    for shape in dict.fromkeys(graph.nodes[i].shape for i in group.nodes):
        first, then = _divided(group, {i for i in group.nodes if graph.nodes[i].shape == shape}, ())
        if then.nodes:
            yield first, then
    if len(group.nodes) > 1:
        yield _divided(group, {group.nodes[0]}, ())
    yield from _late_cuts(graph, group, stored)


def _late_cuts(graph: Graph, group: Group, stored: frozenset[int]) -> Iterator[tuple[Group, Group]]:
    """The ways in which the first part has anchors alone, and the second what is computed from them element by element
    too, as the rows that a place names beside the loss of these."""
    needed = needed_for(graph, group.nodes, stored)
    anchors = _pending(graph, group, stored)
    for k in range(len(anchors) - 1, 0, -1):
        late = _following(graph, needed, [*anchors[k:], *_after(graph, needed, anchors[:k])])
        for left in dict.fromkeys(_left(graph, needed, late, stored, anchors[:k])):
            first, then = _divided(group, {*group.nodes} - late, left)
            if (left or first.outputs) and then.nodes and set(left) - set(group.left):
                yield first, then


def _by_itself(graph: Graph, group: Group, stored: frozenset[int]) -> Iterator[tuple[Group, Group]]:
    """Where nothing else helps: what the first reductions and scans read, or a view that they or a convolution read, is
    computed by a kernel of its own."""
    computed = set(needed_for(graph, group.nodes, stored)) - stored  # and nothing of which a view is stored
    anchors = _pending(graph, group, stored)
    rows = {j for i in anchors if graph.nodes[i].op in (*REDUCTIONS, *SCANS) for j in graph.nodes[i].operands}
    windows = [j for i in anchors if graph.nodes[i].convolution for j in graph.nodes[i].operands]
    viewed = {k for j in windows for k in (graph.nodes[j].operands if graph.nodes[j].convolution else (j,))}
    for j in (*sorted(({_base(graph, j) for j in rows} | viewed) & computed), *sorted(rows & computed)):
        needed = needed_for(graph, (j,), stored)
        is_moved = j in viewed or any(graph.nodes[i].op in (*INDEXED, "reshape") for i in needed)
        if is_moved and graph.nodes[j].op != "input" and not set(needed) & set(anchors):
            yield Group((), (j,)), group


def _after(graph: Graph, needed: list[int], anchors: list[int]) -> list[int]:
    """What is computed from some anchors, and no anchor from it."""
    before = set(needed_for(graph, tuple(anchors), frozenset()))
    return [i for i in needed if i not in before and before.intersection(graph.nodes[i].operands)]


def needed_for(graph: Graph, wanted: tuple[int, ...], stored: frozenset[int]) -> list[int]:
    """The nodes on the way from what is stored to some others, in their order."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            todo += [] if i in stored else graph.nodes[i].operands
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
    results alone, products with their bias or without; or those for what is larger than they are; and what the second
    reads that has to lie in memory."""
    computed = _following(graph, needed, anchors) - late - stored
    read = {_base(graph, j) for i in late for j in graph.nodes[i].operands if j in computed}
    read = _roots(graph, needed, {i for i in read if i in computed | late}, anchors)  # late: what another is shown as
    results = {i: _ends(graph, needed, i, anchors) for i in read}
    small = {graph.nodes[j].shape for found in results.values() for j in found}
    lying = {j for i in late for j in _lying(graph, i)}.intersection(needed) - late - stored
    mixed = {j for i in read for j in ([i] if graph.nodes[i].shape in small else results[i])}
    ends = {j for found in results.values() for j in found}
    for left in (read, mixed, {_biased(graph, j) for j in ends}, ends):
        yield tuple(sorted(left))
        yield tuple(sorted(left | lying))


def _lying(graph: Graph, i: int) -> Iterator[int]:
    """What has to lie in memory for a kernel that computes none of what it reads, a scatter's or a convolution's, and
    is no input: all of it, but for zeros that are added to."""
    node = graph.nodes[i]
    if node.convolution is not None:
        yield from _factors(graph, i)
    for j in node.operands if node.op in SCATTERS else ():
        is_base = Ref(j) == node.args[0] and len(node.args) > 1
        while graph.nodes[j].op == "reshape" and not is_base:
            (j,) = graph.nodes[j].operands
        if graph.nodes[j].op != "input" and not (is_base and graph.nodes[j].op == "full"):
            yield j


def _factors(graph: Graph, i: int) -> Iterator[int]:
    """What a product multiplies, and is no input."""
    bases = (_base(graph, j) for j in graph.nodes[i].operands) if graph.nodes[i].op == DOT else ()
    yield from (j for j in bases if graph.nodes[j].op not in ("input", "full"))


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
    seen = {*known}
    todo = [i]
    while todo:
        j = todo.pop()
        if j in seen:
            continue
        seen.add(j)
        if j in anchors:
            found.add(_shown(graph, _mean(graph, j)))
        else:
            todo += [k for k in graph.nodes[j].operands if k in needed]
    return found


def _mean(graph: Graph, i: int) -> int:
    """A sum over its count, where nothing else is made of the sum."""
    users = graph.readers[i]
    if len(users) == 1 and graph.nodes[i].op == "sum":
        user = graph.nodes[users[0]]
        if user.op == "div" and user.args[0] == Ref(i) and not isinstance(user.args[1], Ref):
            return users[0]
    return i


def _biased(graph: Graph, i: int) -> int:
    """The sum of a product with a parameter, where nothing else is made of the product: without it results may be
    infinite that are not, and are rounded once more."""
    users = graph.readers[i]
    if graph.nodes[i].op != DOT or len(users) != 1 or graph.nodes[users[0]].op != "add":
        return i
    others = [j for j in graph.nodes[users[0]].operands if j != i]
    while others and graph.nodes[others[0]].op in (*VIEWS, "round"):
        others = [*graph.nodes[others[0]].operands]
    return users[0] if others and graph.nodes[others[0]].op == "input" else i


def _following(graph: Graph, needed: list[int], first: list[int]) -> set[int]:
    """Some nodes and those that are computed from them."""
    found = set(first)
    for i in needed:
        if found & set(graph.nodes[i].operands):
            found.add(i)
    return found


def _base(graph: Graph, i: int) -> int:
    """What a value is a view of, if it is one; of windows, what they are read of."""
    while graph.nodes[i].op in VIEWS or (graph.nodes[i].op == "index" and graph.nodes[i].convolution):
        i = graph.nodes[i].operands[0]
    return _shown(graph, i)


def _shown(graph: Graph, i: int) -> int:
    """What follows from a product is left as the last view that all who read it see it through, if its rows are rows
    of memory as well; what is convolved without the dimensions that were reduced, which images do not have."""
    while _is_of_product(graph, i) or _is_convolved(graph, i):
        users = graph.readers[i]
        is_read_once = len(users) == 1 and all(o.node != i for o in graph.outputs)
        shown = graph.nodes[users[0]] if is_read_once else None
        if shown is None or not (
            (shown.op == "reshape" and shown.shape.count(()) <= graph.nodes[i].shape.count(()))
            or (shown.op == "permute" and shown.attrs[-1] == len(shown.shape) - 1)
        ):
            break
        i = users[0]
    return i


def _is_convolved(graph: Graph, i: int) -> bool:
    """Whether a convolution sees a value through a view with fewer dimensions."""
    rank = len(graph.nodes[i].shape)
    views = (j for j in graph.readers[i] if graph.nodes[j].op == "reshape" and len(graph.nodes[j].shape) < rank)
    return any(graph.nodes[k].convolution is not None for j in views for k in graph.readers[j])


def _is_of_product(graph: Graph, i: int) -> bool:
    """Whether a value is one of matrices' products or of a convolution by groups, or computed from one element by
    element."""
    found: set[int] = set()
    todo = [i]
    while todo:
        j = todo.pop()
        node = graph.nodes[j]
        if node.op == DOT and (node.convolution is None or node.convolution.groups > 1):
            return True
        if j not in found and node.op not in _ANCHORS:
            found.add(j)
            todo += node.operands
    return False

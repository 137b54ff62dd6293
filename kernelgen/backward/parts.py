"""Which gradients one kernel computes together, and what a kernel hands on to another.

A kernel has one iteration space: all its reductions run over the same dimensions. A gradient that is summed over other
dimensions than the rows' own is a part for itself, and gets from the rows' part what every row was reduced to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelgen.backward.attention import LSE
from kernelgen.backward.convolution import convolves
from kernelgen.backward.moves import MOVES
from kernelgen.backward.tape import Tape, needed
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import DOT, REDUCTIONS, SCANS, SCATTERS, VIEWS, Atom, Dim, Ref

Key = tuple[Atom, ...]
"""The sizes that reductions and scans run over; empty where there are none."""


@dataclass(frozen=True)
class Part:
    """Nodes that one kernel computes."""

    gradients: tuple[tuple[str, int], ...]
    """The inputs of the forward, each with the node of its gradient."""
    saved: tuple[int, ...]
    """Nodes that it computes for other parts as well."""
    given: tuple[int, ...]
    """Nodes that it gets from another part."""
    results: tuple[tuple[str, int], ...] = ()
    """Of a forward that saves something: its outputs, each with its node."""


def partition(tape: Tape, found: Mapping[str, Ref]) -> tuple[Part, ...]:
    """The parts in the order in which they run. A gradient that is an output's gradient itself is in none.

    What is scattered is a part for itself and the last; what it is computed from, it gets from a part before.
    """
    if tape.delta is not None:
        return _of_attention(tape, found)
    below = needed(tape, [ref.node for ref in found.values()], {})
    if any(convolves(tape.nodes[i]) for i in below):  # calls of torch's, with kernels around them
        kept = tuple(i for i in tape.saved if i in below)
        return (Part(tuple((name, ref.node) for name, ref in found.items()), (), kept),)
    if any(tape.nodes[i].op == DOT for i in below):
        return _of_products(tape, found)
    scattered = {name: ref.node for name, ref in found.items() if tape.node(ref).op in SCATTERS}
    given = {name: _scattered(tape, node) for name, node in scattered.items()}
    handed = dict.fromkeys(node for nodes in given.values() for node in nodes)
    parts = _of_rows(tape, {name: ref for name, ref in found.items() if name not in scattered}, handed)
    return (*parts, *(Part(((name, node),), (), given[name]) for name, node in scattered.items()))


def _scattered(tape: Tape, scatter: int) -> tuple[int, ...]:
    """What a scatter adds, if that is no input."""
    i, views = tape.nodes[scatter].args[-1], ("reshape",)
    while isinstance(i, Ref) and tape.node(i).op in views:
        (i,) = tape.node(i).args
    return () if not isinstance(i, Ref) or tape.node(i).op == "input" else (i.node,)


def _of_rows(tape: Tape, found: Mapping[str, Ref], handed: Iterable[int]) -> tuple[Part, ...]:
    """The parts of gradients that no scatter makes, which also compute what is `handed` on to scatters."""
    keys = {name: _final(tape, ref.node) for name, ref in found.items() if tape.node(ref).op != "input"}
    wanted: dict[str, tuple[int, ...]] = {name: _cut(tape, found[name].node, keys[name]) for name in keys}
    saved = dict.fromkeys([*(node for nodes in wanted.values() for node in nodes), *handed])
    groups: dict[Key, list[str]] = {}
    for name, key in keys.items():
        groups.setdefault(key, []).append(name)
    for name in groups.get((), [])[1:]:  # of other shapes: no one space serves both
        shape = tape.node(found[name]).shape
        if shape != tape.node(found[groups[()][0]]).shape:
            groups[()].remove(name)
            groups.setdefault(("elements of", *(atom for dim in shape for atom in dim)), []).append(name)
    if () in groups:  # what has no reductions joins the rows whose elements it runs over
        shape = tape.node(found[groups[()][0]]).shape
        host = next((k for k, g in groups.items() if k and any(tape.node(found[n]).shape == shape for n in g)), None)
        if host is not None:
            groups[host] += groups.pop(())
    sources = {node: _only(_keys(tape, [node], ())) for node in saved}
    for key in sources.values():
        groups.setdefault(key, [])
    order = sorted(groups, key=lambda k: (k not in sources.values(), list(groups).index(k)))
    parts = []
    for key in order:
        names = [n for n in found if n in groups[key]]
        given = tuple(dict.fromkeys(node for n in names for node in wanted[n]))
        made = tuple(node for node, source in sources.items() if source == key)
        if any(sources[node] == key for node in given):
            raise Refused("gradients that need one another's sums")
        parts.append(Part(tuple((n, found[n].node) for n in names), made, given))
    return tuple(parts)


def _keys(tape: Tape, targets: Iterable[int], given: Iterable[int]) -> set[Key]:
    """What the reductions below some nodes run over."""
    found = set()
    for i in needed(tape, targets, dict.fromkeys(given)):
        node = tape.nodes[i]
        if node.op in (*REDUCTIONS, *SCANS):
            source = node.args[0]
            assert isinstance(source, Ref)
            shape = tape.node(source).shape
            found.add(tuple(atom for d in node.attrs for atom in shape[int(d)]))
    return found


def _only(keys: set[Key]) -> Key:
    if len(keys) > 1:
        raise Refused("a gradient with sums over more than two sets of dimensions")
    return next(iter(keys), ())


def _final(tape: Tape, target: int) -> Key:
    """What the last reductions above a gradient run over: those that no other reduction follows."""
    keys = _keys(tape, [target], ())
    if len(keys) < 2:
        return _only(keys)
    last = {
        k
        for i in _last(tape, target)
        for k in _keys(tape, [i], [a.node for a in tape.nodes[i].args if isinstance(a, Ref)])
    }
    if len(last) > 1:  # rows; what is reduced over anything else comes from a part of its own
        inner = tape.nodes[target].shape[-1:]
        last = {k for k in last if k == tuple(atom for dim in inner for atom in dim)} or last
    return _only(last)


def _last(tape: Tape, target: int) -> list[int]:
    """The reductions and scans that a node depends on through no other."""
    found, todo, seen = [], [target], set()
    while todo:
        i = todo.pop()
        if i in seen:
            continue
        seen.add(i)
        if tape.nodes[i].op in (*REDUCTIONS, *SCANS):
            found.append(i)
        else:
            todo += [a.node for a in tape.nodes[i].args if isinstance(a, Ref)]
    return found


def _cut(tape: Tape, target: int, key: Key) -> tuple[int, ...]:
    """The values of whole rows, made by reductions over something else, that a gradient needs."""
    inside = needed(tape, [target], {})
    foreign = {i for i in inside if _keys(tape, [i], ()) - {key}}
    if not foreign:
        return ()
    rows = {i for i in foreign if key not in _keys(tape, [i], ()) and _is_row(tape, i)}
    found = []
    for i in inside:
        users = [j for j in inside if Ref(i) in tape.nodes[j].args]
        if i in rows and any(j not in rows for j in users):
            found.append(i)
    if _keys(tape, [target], found) - {key}:
        raise Refused("a gradient with sums over several dimensions in turn")
    return tuple(found)


def _is_row(tape: Tape, i: int) -> bool:
    """Whether a value is the same along what the reductions below it ran over."""
    reduced = {atom for key in _keys(tape, [i], ()) for atom in key}
    return not reduced & {atom for dim in tape.nodes[i].shape for atom in dim}


def _of_products(tape: Tape, found: Mapping[str, Ref]) -> tuple[Part, ...]:
    """Every gradient by a part of its own; what products get is computed once, by a part before them."""
    wanted = {name: needed(tape, [ref.node], {}) for name, ref in found.items()}
    handed = tuple(i for i in dict.fromkeys(tape.handed) if any(i in inside for inside in wanted.values()))
    parts = [Part((), handed, ())] if handed else []
    for name, ref in found.items():
        parts.append(Part(((name, ref.node),), (), tuple(i for i in handed if i in wanted[name])))
    return tuple(parts)


def _of_attention(tape: Tape, found: Mapping[str, Ref]) -> tuple[Part, ...]:
    """The gradients by what their last products are summed over: over keys first, with delta for the others. Where
    elements of these products move, or several make one gradient, they are handed on to a part for that."""
    assert tape.delta is not None
    moved = {name: cores for name, ref in found.items() if (cores := _moved(tape, ref.node))}
    groups: dict[tuple[int | str, ...], dict[int, str]] = {}
    for name, ref in found.items():
        for node in moved.get(name, (ref.node,)):
            groups.setdefault(_summed(tape, node) or (name,), {})[node] = name
            if name in moved:
                tape.call(Ref(node), f"product_{name}")
    below = {key: needed(tape, nodes, {}) for key, nodes in groups.items()}
    needing = [key for key, inside in below.items() if tape.delta in inside]
    over_keys = (-1,)
    handed = (tape.delta,) if set(needing) - {over_keys} else ()
    first = [over_keys] if over_keys in groups else []
    parts = [] if first or not handed else [Part((), handed, ())]
    for key in (*first, *(key for key in groups if key not in first)):
        gradients = tuple((name, node) for node, name in groups[key].items() if name not in moved)
        made = tuple(node for node, name in groups[key].items() if name in moved)
        given = tuple(i for i in tape.saved if i in below[key])
        given += handed if key in needing and key not in first else ()
        parts.append(Part(gradients, (*made, *(handed if key in first else ())), given))
    shapes: dict[tuple[Dim, ...], list[str]] = {}
    for name in moved:
        shapes.setdefault(tape.node(found[name]).shape, []).append(name)
    for names in shapes.values():
        given = tuple(dict.fromkeys(core for n in names for core in moved[n]))
        parts.append(Part(tuple((n, found[n].node) for n in names), (), given))
    return tuple(parts)


def _moved(tape: Tape, i: int) -> tuple[int, ...]:
    """The last products that a gradient is computed from, where elements of them move or they are several; none of
    other gradients."""
    found, seen, todo = set[int](), set[int](), [i]
    while todo:
        at = todo.pop()
        if tape.nodes[at].op == DOT:
            found.add(at)
        elif at not in seen:
            seen.add(at)
            todo += [a.node for a in tape.nodes[at].args if isinstance(a, Ref)]
    moves = len(found) > 1 or any(tape.nodes[j].op in MOVES for j in seen)
    return tuple(sorted(found)) if moves and all(_weighs(tape, j) for j in found) else ()


def _weighs(tape: Tape, product: int) -> bool:
    """Whether a product is one of weights, or of what scores get, and not one that these are computed from."""
    return any(tape.nodes[i].attrs == (LSE,) for i in needed(tape, [product], {}))


def _summed(tape: Tape, i: int) -> tuple[int, ...]:
    """The dimensions of the scores that the last product of a gradient is summed over, counted from the end; none of
    what is added to the scores, or stands beside them."""
    while tape.nodes[i].op != DOT:
        node = tape.nodes[i]
        refs = [r for r in [a for a in node.args if isinstance(a, Ref)] if tape.node(r).shape]
        if node.op not in (*VIEWS, "mul", "round") or len(refs) != 1:
            return ()
        i = refs[0].node
    node = tape.nodes[i]
    operands, _, result = node.equation.partition("->")
    for labels, ref in zip(operands.split(","), [a for a in node.args if isinstance(a, Ref)], strict=True):
        if any(tape.nodes[j].attrs == (LSE,) for j in needed(tape, [ref.node], {})):
            return tuple(d - len(labels) for d, c in enumerate(labels) if c not in result)
    raise Refused("the gradient of what is computed beside attention")

"""The kernels of an operator's ways of calling as one kernel, with `if` on constexprs where they differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from kernelgen.tile import ir

Flags = Mapping[str, bool]
"""What conditions may ask, each a constexpr or a comparison of one, with what it is in one way of calling."""

_MOST_LITERALS = 3
_JOINED: dict[str, Callable[[Iterable[bool]], bool]] = {"and": all, "or": any}
_WORTH_IT = 0.7
"""Of the statements of all kernels one may have this share at most: with less in common, it is harder to read."""


class Apart(Exception):
    """The kernels have too little in common, or differ in what no `if` can say."""


def merged(kernels: Sequence[ir.Kernel], flags: Sequence[Flags], passed: Mapping[str, str]) -> ir.Kernel:
    """One kernel for all ways. `flags`: of each way; `passed`: the constexprs of flags, with the wrapper's expressions.
    Raises Apart."""
    first = kernels[0]
    ways = frozenset(range(len(kernels)))
    nodes: list[_Node] = []
    for way, kernel in enumerate(kernels):
        if _launch(kernel) != _launch(first):
            raise Apart
        own = _nodes(kernel.body, way)
        nodes = _aligned(nodes, own) if way else own
    if _count(nodes) > _WORTH_IT * sum(_count(_nodes(k.body, 0)) for k in kernels):
        raise Apart
    body = _Writer(flags).statements(nodes, ways)
    arguments = _union([k.arguments for k in kernels])
    asked = " ".join(condition for condition, _ in _choices(body))
    chosen = tuple((name, host) for name, host in passed.items() if name in asked.replace("(", " ").split())
    names = [*(a.name for a in arguments), *(name for name, _ in first.constexprs)]
    if len({*names, *passed}) < len(names) + len(passed):
        raise Apart
    return replace(
        first,
        arguments=arguments,
        constexprs=(*chosen, *first.constexprs),
        body=body,
        named_sizes=tuple(dict.fromkeys(size for k in kernels for size in k.named_sizes)),
        unaligned=tuple(dict.fromkeys(name for k in kernels for name in k.unaligned)),
    )


def _launch(kernel: ir.Kernel) -> ir.Kernel:
    """What kernels that are one have in common."""
    return replace(kernel, arguments=(), body=(), named_sizes=(), unaligned=())


def _union(every: Sequence[tuple[ir.Argument, ...]]) -> tuple[ir.Argument, ...]:
    """The arguments of all, each once, in an order that keeps that of each."""
    found = list(every[0])
    for arguments in every[1:]:
        names = [a.name for a in found], [a.name for a in arguments]
        joined: list[ir.Argument] = []
        for tag, i, j, k, m in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
            joined += found[i:j] if tag == "equal" else [*found[i:j], *arguments[k:m]]
        found = joined
    if len({a.name for a in found}) < len(found) or {a for one in every for a in one} != {*found}:
        raise Apart
    return tuple(found)


@dataclass(frozen=True)
class _Node:
    """A statement, without what stands in it, and the ways that have it."""

    statement: ir.Stmt
    ways: frozenset[int]
    body: tuple[_Node, ...] = ()


def _nodes(statements: Iterable[ir.Stmt], way: int) -> list[_Node]:
    found = []
    for statement in statements:
        if isinstance(statement, ir.For | ir.While | ir.If):
            body = tuple(_nodes(statement.body, way))
            found.append(_Node(replace(statement, body=()), frozenset([way]), body))
        else:
            found.append(_Node(statement, frozenset([way])))
    return found


def _aligned(nodes: Sequence[_Node], others: Sequence[_Node]) -> list[_Node]:
    """Both, with what they have in common once."""
    found: list[_Node] = []
    keys = [n.statement for n in nodes], [n.statement for n in others]
    for tag, i, j, k, m in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag != "equal":
            found += [*nodes[i:j], *others[k:m]]
            continue
        for one, other in zip(nodes[i:j], others[k:m], strict=True):
            body = tuple(_aligned(one.body, other.body))
            found.append(_Node(one.statement, one.ways | other.ways, body))
    return found


def _count(nodes: Iterable[_Node]) -> int:
    return sum(1 + _count(node.body) for node in nodes)


class _Writer:
    """Turns nodes back into statements."""

    def __init__(self, flags: Sequence[Flags]) -> None:
        self.flags = flags

    def statements(self, nodes: Sequence[_Node], ways: frozenset[int]) -> tuple[ir.Stmt, ...]:
        """What all of some ways run; the others are not here."""
        found: list[ir.Stmt] = []
        for shared, group in itertools.groupby(nodes, key=lambda node: node.ways == ways):
            run = list(group)
            found += [self._whole(node) for node in run] if shared else self._differing(run, ways)
        return tuple(found)

    def _whole(self, node: _Node) -> ir.Stmt:
        statement = node.statement
        if isinstance(statement, ir.For | ir.While | ir.If):
            return replace(statement, body=self.statements(node.body, node.ways))
        return statement

    def _differing(self, nodes: Sequence[_Node], ways: frozenset[int]) -> list[ir.Stmt]:
        """What some ways have alone: a chain as long as no way has statements of two of its branches."""
        chains: list[dict[frozenset[int], list[_Node]]] = []
        for own, run in itertools.groupby(nodes, key=lambda node: node.ways):
            last = chains[-1] if chains else {}
            if not last or (own not in last and any(own & other for other in last)):
                chains.append({})
            chains[-1].setdefault(own, []).extend(run)
        return [self._chain(chain, ways) for chain in chains]

    def _chain(self, of: Mapping[frozenset[int], Sequence[_Node]], ways: frozenset[int]) -> ir.When:
        left, choices = ways, list[tuple[str, tuple[ir.Stmt, ...]]]()
        for own, nodes in of.items():
            condition = "" if own == left and choices else self._condition(own, left)
            choices.append((condition, tuple(self._whole(node) for node in nodes)))
            left -= own
        return ir.When(tuple(choices))

    def _condition(self, wanted: frozenset[int], among: frozenset[int]) -> str:
        """The shortest condition that holds in these ways alone, of some."""
        literals = [(name, value) for name in self.flags[0] for value in (True, False)]
        for number in range(1, _MOST_LITERALS + 1):
            for chosen, (word, holds) in itertools.product(itertools.combinations(literals, number), _JOINED.items()):
                if {way for way in among if holds(self.flags[way][n] == v for n, v in chosen)} == wanted:
                    return f" {word} ".join(_literal(*one) for one in chosen)
        raise Apart


def _literal(name: str, value: bool) -> str:
    if value:
        return name
    return name.replace(" == ", " != ") if " == " in name else f"not {name}"


def _choices(statements: Iterable[ir.Stmt]) -> Iterable[tuple[str, tuple[ir.Stmt, ...]]]:
    """Every condition on a constexpr, however deep."""
    for statement in statements:
        if isinstance(statement, ir.When):
            for choice in statement.choices:
                yield choice
                yield from _choices(choice[1])
        elif isinstance(statement, ir.For | ir.While | ir.If):
            yield from _choices(statement.body)

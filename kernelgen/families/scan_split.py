"""Scans of few long rows, each divided among programs: reduce, then scan.

A kernel leaves what every part of a row comes to; the next begins with what the parts before its own came to, joined in
a fixed order, and scans its part block by block. A scan of what another scan has made needs a kernel more: what its
parts come to is known when the first is. Nothing is added atomically, so the same inputs give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelgen.families.access import output_groups
from kernelgen.families.forms import SPLIT
from kernelgen.families.kernel import Body
from kernelgen.families.naming import ROW, SCALAR
from kernelgen.families.padding import ancestors
from kernelgen.families.split import Split, dtype_of_memory, stored_parts
from kernelgen.families.values import Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import grid, ir
from kernelgen.tile.carries import PARTS, Carry
from kernelgen.tile.nest import Nest
from kernelgen.tile.scans import Running, behind, carried, is_backwards, last_element, scans_of

_SPLIT, _IS_BEFORE = ir.Name("split"), ir.Name("is_before", (PARTS,))


@dataclass(frozen=True)
class _Scans:
    """What every kernel of the sequence is written from."""

    split: Split
    depths: dict[int, int]
    """How many scans lie on the way to each, itself included."""


def split_scans(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernels in the order of their launches; the last one writes the outputs."""
    scans = _Scans(Split(spec, body, schedule), _depths(body))
    base = name.removesuffix("_kernel").removesuffix(f"_{SPLIT.name}")
    names = [name, *(f"{base}_walk_{depth}_kernel" for depth in range(2, max(scans.depths.values()) + 1))]
    return (*(_totals(scans, own, depth) for depth, own in enumerate(names, 1)), _apply(scans, f"{base}_apply_kernel"))


def _depths(body: Body) -> dict[int, int]:
    depth: list[int] = []
    found = set(scans_of(body))
    for i, value in enumerate(body.lowered.values):
        below = max((depth[a.value] for a in value.args if isinstance(a, Use)), default=0)
        depth.append(below + (i in found))
    return {i: depth[i] for i in found}


def _totals(scans: _Scans, name: str, depth: int) -> ir.Kernel:
    """The kernel that leaves what every part comes to of the scans of one depth."""
    split, body, nest = scans.split, scans.split.body, scans.split.nest()
    own = carried(nest, [i for i in scans_of(body) if scans.depths[i] == depth], "total")
    sources = [nest.builder.source(c.scan) for c in own]
    needed = set[int]().union(*(ancestors(body.lowered, i) for i in sources))
    kept = carried(nest, [i for i in scans_of(body) if i in needed])
    behind(nest, kept)
    once = _once(split, nest, kept, [i for i in sorted(needed) if body.names.levels[i] in (ROW, SCALAR)])
    inside = [*nest.lets(sources, late=False)]
    for c, source in zip(own, sources, strict=True):
        elements = nest.builder.guarded(c.scan, nest.builder.value(source, nest.tile.shape))
        inside += c.accumulate(elements, nest.tile.columns)
    inside += [statement for c in kept for statement in c.end()]
    said = (*_said(body, kept), *(line for c in own for line in c.said("over the part so far")))
    before: tuple[ir.Stmt, ...] = (ir.Remark(said), last_element(nest), *(let for c in own for let in c.begin()))
    left = [part for c in own for part in _left(c)]
    stores, scratch = stored_parts(nest, left)
    split.memory += [s.name for s in scratch]
    made = split.divided(
        nest, name, once, Carry(before, tuple(inside)), stores, scratch, backwards=is_backwards(body),
        is_turned=nest.builder.is_turned and bool(kept),
    )  # fmt: skip
    return replace(made, scratch=scratch)


def _left(c: Running) -> list[tuple[str, str, ir.Expr]]:
    """What a program leaves of its part: the memory of each number, its dtype, and the number."""
    kinds = (dtype_of_memory(c.value.dtype), "int64")  # exponents
    return [(name, kind, value) for (name, value), kind in zip(c.left(), kinds, strict=False)]


def _apply(scans: _Scans, name: str) -> ir.Kernel:
    """The kernel that writes the outputs."""
    split, body, nest = scans.split, scans.split.body, scans.split.nest()
    kept = carried(nest, scans_of(body))
    behind(nest, kept)
    once = _once(split, nest, kept, [i for i, v in enumerate(body.names.levels) if v in (ROW, SCALAR)])
    full = [o for o in body.lowered.outputs if output_groups(o, body.layout.columns)]
    rest = [o for o in body.lowered.outputs if o not in full]
    inside = (
        *nest.lets([*(o.value for o in full), *(c.scan for c in kept)], late=False), *nest.stores(full),
        *(statement for c in kept for statement in c.end()),
    )  # fmt: skip
    before = (ir.Remark(_said(body, kept)), last_element(nest))
    after = grid.first_only(_SPLIT, nest.stores(rest))
    return split.divided(
        nest, name, once, Carry(before, inside), after, backwards=is_backwards(body), is_turned=nest.builder.is_turned
    )


def _said(body: Body, kept: Sequence[Running]) -> tuple[str, ...]:
    order = "from the end of the row to its beginning; the first part is the row's last"
    return (*((order,) if is_backwards(body) else ()), *(line for c in kept for line in c.said()))


def _once(split: Split, nest: Nest, kept: Sequence[Running], rows: Sequence[int]) -> tuple[ir.Stmt, ...]:
    """What a program does before it walks: what the parts before its own came to, and the numbers of its row."""
    found = nest.lets([i for i in rows if nest.builder.is_assigned(i)])
    if not kept:
        return found
    before = ir.Apply("lt", (ir.Range(PARTS, ir.Number(0)), _SPLIT), (PARTS,))

    def read(name: str, other: float | int) -> ir.Load:
        return ir.Load(ir.Pointer(name, ((ir.Name("parts", (PARTS,)), None),), (PARTS,)), _IS_BEFORE, other)

    return (
        *found, replace(split.parts(nest), comment="combined result of the preceding parts"),
        ir.Let((_IS_BEFORE.text,), before), *(statement for c in kept for statement in c.joined(read, PARTS)),
    )  # fmt: skip

"""What kernels over rows and columns are made from, and what their launches pass."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from math import prod

from kernelgen.families.access import Layout
from kernelgen.families.naming import INFINITY, RESERVED, Names, name_values
from kernelgen.families.padding import choose_others, nan_safe
from kernelgen.families.values import Lowered, is_scaled, only_moves
from kernelgen.frontend.graph import Statement
from kernelgen.plan import LoweredPlan, Parameter
from kernelgen.spec.model import ELLIPSIS, Case, OperatorSpec
from kernelgen.tile import ir

LOADS = Parameter(
    "loads", ("default", "evict_first", "evict_last"), "memory_access", "structure",
    "how the caches treat what is read once",
)  # fmt: skip
STORES = Parameter(
    "stores", ("default", "streaming"), "memory_access", "structure", "how the caches treat what is written"
)


@dataclass(frozen=True)
class Body:
    """An operator in the form that its family takes: values, their names, and where inputs are read."""

    lowered: Lowered
    statements: tuple[Statement, ...]
    layout: Layout
    names: Names
    others: tuple[tuple[int, float], ...]
    keeps_nan: frozenset[int]
    exact: bool
    """Moves elements without arithmetic, so results are bit-identical and nothing is converted."""
    any_order: bool = False
    """Floats are added by atomics, in whatever order these come."""
    of_rows: bool = False
    """Whether its elements are what the rows of another kernel left."""
    starts_itself: bool = False
    """The programs of a scatter give its result what is added to, which the wrapper does otherwise."""

    def columns(self) -> frozenset[int]:
        return frozenset(self.layout.columns.axes if self.layout.columns else range(len(self.lowered.space.axes)))


def has_products(body: Body) -> bool:
    """Whether a body has running products of floats."""
    return any(is_scaled(v.op, v.dtype) for v in body.lowered.values)


def body_of(plan: LoweredPlan) -> Body:
    """What the kernels of a plan are printed from; of several steps, the one that is tuned."""
    body = plan.main.body
    assert isinstance(body, Body)
    return body


def elements(body: Body, case: Case, axes: Iterable[int]) -> int:
    """How many elements some axes of the iteration space have."""
    total = 1
    for axis in axes:
        atom = body.lowered.space.axes[axis]
        size = case.size(ELLIPSIS) if atom == ELLIPSIS else case.size(atom)
        total *= prod(size) if isinstance(size, tuple) else size
    return total


def passed(body: Body, names: Iterable[str]) -> tuple[ir.Argument, ...]:
    """What a launch passes, by the names of a kernel's arguments: pointers, strides, and numbers of the wrapper's."""
    views = {f"{a.tensor}_ptr": a.view[0] for a in body.layout.accesses if a.view}
    numbers = {s: e for a in body.layout.all() for s, e in a.strides} | {INFINITY: 'float("inf")'}
    return tuple(
        ir.Argument(name, "pointer", views.get(name, name.removesuffix("_ptr")))
        if name.endswith("_ptr")
        else ir.Argument(name, "number", numbers.get(name, name))
        for name in names
    )


def make_body(
    spec: OperatorSpec,
    lowered: Lowered,
    statements: tuple[Statement, ...],
    layout: Layout,
    fixed: frozenset[int] = frozenset(),
    reserved: Set[str] = RESERVED,
) -> Body:
    """`fixed`: axes along which a program does not move, so that what varies along them alone is scalar. `reserved`:
    what the kernels call values of their own."""
    columns = frozenset(layout.columns.axes if layout.columns else range(len(lowered.space.axes)))
    taken = {f"{t.name}_ptr" for t in (*spec.inputs, *spec.outputs)} | {spec.name, f"{spec.name}_kernel", "reference"}
    taken |= {g.size for g in layout.rows} | {g.index for g in layout.rows}
    taken |= {stride for access in layout.all() for stride, _ in access.strides}
    names = name_values(lowered, statements, columns, taken, fixed, reserved)
    others = choose_others(lowered, names.levels) if lowered.space.inner_axes() else {}
    exact = only_moves(lowered)
    return Body(lowered, statements, layout, names, tuple(sorted(others.items())), nan_safe(lowered), exact)


def at_levels(body: Body, levels: tuple[str, ...]) -> list[int]:
    """The loads at some levels, in the order of the inputs."""
    order = {a.load: i for i, a in enumerate(body.layout.accesses)}
    return sorted((a.load for a in body.layout.accesses if body.names.levels[a.load] in levels), key=order.__getitem__)


def output_values(body: Body) -> list[int]:
    return [o.value for o in body.lowered.outputs]

"""One kernel over rows and columns: what it is made from, and what a backend prints of it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from kernelgen.families.access import Layout
from kernelgen.families.forms import Form
from kernelgen.families.naming import RESERVED, Names, name_values
from kernelgen.families.padding import choose_others, nan_safe
from kernelgen.families.values import Lowered, is_scaled, only_moves
from kernelgen.frontend.graph import Statement
from kernelgen.plan import LoweredPlan, Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import used_names

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


@dataclass(frozen=True)
class Scratch:
    """A number for every part of every row, of torch's `dtype`, which one kernel leaves for the next."""

    name: str
    dtype: str
    shape: str = ""
    """The wrapper's expression for its shape, where it is no number for every part of every row."""
    zeros: bool = False
    """Whether it is zero when the kernel begins."""


@dataclass(frozen=True)
class Passed:
    """A keyword argument of a launch."""

    name: str
    value: str | None = None
    """A number or the wrapper's expression; None: what the table's line says, be it passed alone or with all others."""


WARPS = Passed("num_warps")
"""For a launch that is not passed all that the table says."""


@dataclass(frozen=True)
class KernelText:
    """One kernel over rows and columns, and what its launch needs."""

    name: str
    form: Form
    schedule: Schedule
    """A schedule of this flavour; only its structure matters here."""
    arguments: tuple[str, ...]
    """Pointers, sizes and strides, in order."""
    constexprs: tuple[str, ...]
    body: tuple[ir.Stmt, ...]
    """All that it does."""
    grid: str = ""
    """The wrapper's expression for the grid, where the form does not say it."""
    passed: tuple[Passed, ...] = ()
    """Keyword arguments of the launch beside the constexprs that the table has."""
    sizes: tuple[tuple[str, str], ...] = ()
    """Numbers that its scratch memory and the launches need, with the wrapper's expressions for them."""
    scratch: tuple[Scratch, ...] = ()
    """What it leaves for the kernel that is launched after it."""
    unaligned: tuple[str, ...] = ()
    """The pointers of which Triton does not ask whether 16 divides them."""
    named_sizes: tuple[tuple[str, str], ...] = ()
    """The size names that it mentions and others need not, each with its parameter."""
    fits: str = ""
    """The wrapper's condition for launching it; where that does not hold, the next kernel is launched instead."""

    def launch_grid(self) -> str:
        """The wrapper's expression for its grid."""
        return self.grid or self.form.grid(self.schedule, "row" in used_names(self.body))


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

"""What every family declares, and what holds for one that says nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.frontend.graph import Graph
from kernelgen.plan import Chip, KernelPlan, Parameter, Product, Scalar, Schedule, ScheduleSet, TableRow
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.model import Case, OperatorSpec, Size
from kernelgen.tile.ir import Step

Table = tuple[TableRow, ...]
"""A schedule table: the first row that serves a problem wins, and the last serves all."""


LIBRARY = "library"
"""The variant that is a call of torch's."""


class FirstTable(Protocol):
    def __call__(self, body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None, /) -> Table:
        """The table before anything is measured. `shapes`: rows and columns of what is timed."""


class Starts(Protocol):
    def __call__(self, body: Body, rows: int, columns: int, chip: Chip | None = None, /) -> tuple[Schedule, ...]:
        """The schedules that a search sets out from, for so many rows of about so many columns."""


class Kernels(Protocol):
    def __call__(self, spec: OperatorSpec, body: Body, schedule: Schedule, name: str, /) -> tuple[Step, ...]:
        """The kernels of one schedule's structure in the order of their launches, the first called `name`. Of one that
        descriptors feed, the next is launched instead where tensors do not fit these."""


def always(schedule: Schedule, columns: int, itemsize: int) -> None:
    """What is legal where every schedule makes sense."""


@dataclass(frozen=True)
class Variant:
    """One of a family's ways to lay programs over values: everything that is asked of it."""

    form: Form
    meaning: str
    """A clause for `definition.md`."""
    default: Schedule
    """The schedule to start from: every tunable value by its name. It says what the variant is called."""
    space: tuple[Parameter, ...]
    """The tunable values: choices, the strategy that searches each, a clause for the log."""
    legal: Callable[[Schedule, int, int], str | None]
    """Why a schedule cannot serve rows of so many columns of so many bytes an element; None if it can."""
    kernels: Kernels

    @property
    def name(self) -> str:
        return self.default.variant


def block(name: str, choices: tuple[int, ...], meaning: str) -> Parameter:
    """A block size as a parameter."""
    return Parameter(name, choices, "block_size", "constexpr", meaning)


Refusal = Callable[[Schedule], str | None]
"""Why a schedule cannot be used; None if it can."""


def refuses_nothing(schedule: Schedule) -> None:
    """A Refusal that takes every schedule."""


def _as_it_is(graph: Graph) -> Graph:
    return graph


def _unchanged(plan: KernelPlan, table: Table) -> Table:
    return table


def _nothing(spec: OperatorSpec, body: Body) -> None:
    return None


@dataclass(frozen=True)
class Family:
    """Ways to lay programs over the values of an operator: a module of this package makes one, called FAMILY.

    By the time a family is asked, the reference is a list of values in terms of the inputs, with rows and columns
    found, names chosen and every statement known.
    """

    name: str
    """What `type:` of a spec calls it: the module's own name."""
    takes: Callable[[Graph], bool]
    """Whether it can express a reference. The first family that does has it, or the one that a spec states."""
    every: tuple[Variant, ...]
    """All that it can do, in the order in which a reader would want to know them."""
    variants: Callable[[Body], tuple[str, ...]]
    """The names of those that it can print for some values, the preferred one first."""
    first_table: FirstTable
    starts: Starts

    prepared: Callable[[Graph], Graph] = _as_it_is
    """The graph as this family wants it, before it is lowered."""
    body: Callable[[OperatorSpec, Graph], Body] | None = None
    """Values and layout; None: those of the common lowering."""
    of_spec: Callable[[KernelPlan, Table], Table] = _unchanged
    """The first table, for what the spec says beyond the values: the sizes that are timed, the dtypes of results. The
    plan has no table yet."""
    of_nothing: bool = False
    """Whether its kernels have results without elements to reduce, where torch refuses to take the greatest of none."""
    notes: Callable[[OperatorSpec, Body], tuple[str, ...]] = lambda spec, body: ()
    """What a reviewer should know, for the head of the file."""
    begin: Callable[[Body], str | None] = lambda body: None
    """What a result holds before the kernels: "zeros", what the input of that name holds, or None."""
    widened: Callable[[OperatorSpec, Body], bool] = lambda spec, body: False
    """Whether kernels leave the result in float32, which the wrapper casts at the end."""
    memory_format: Callable[[OperatorSpec, Body, str], str] = lambda spec, body, output: ""
    """The wrapper's expression for the memory format of the output of that name; empty: contiguous."""
    as_torch_lays: Callable[[Body], bool] = lambda body: False
    """Whether what a call of torch's makes is returned as that lays it out, which may be otherwise."""
    too_large: Callable[[OperatorSpec, Body], tuple[str, str] | None] | None = None
    """The condition under which a wrapper refuses sizes, with its message; None: what holds of rows and columns."""
    limits: Callable[[OperatorSpec, Body], tuple[tuple[Size, int], ...]] = lambda spec, body: ()
    """Sizes of which its kernels take no more than so many, whatever memory there is; `too_large` refuses more."""
    longest_row: Callable[[Body], int | None] = lambda body: None
    """The longest row, in elements, that a wrapper lets pass where `too_large` does not say."""
    packed: bool = False
    """Whether the wrapper makes every input contiguous that the kernels read."""
    products: Callable[[OperatorSpec, Body], tuple[Product, ...]] = lambda spec, body: ()
    """The sums of products that its kernels compute: what they cost, and how they are judged, follows from these."""
    sizes: Callable[[OperatorSpec, Body], tuple[NamedSize, ...]] | None = None
    """The named sizes of its problems, which the schedule table may be keyed by, the usual key first. None: the bytes
    of a row, and the rows."""
    key_itemsize: int | None = None
    """The bytes that the schedule table counts for an element of a row; None: those of its dtype."""
    own_helpers: Mapping[str, str] = field(default_factory=dict)
    """Device functions of `helpers.py.jinja` by those that they stand in for."""
    sets: Callable[[Body], Mapping[str, ScheduleSet]] = lambda body: {}
    """Schedules that it names together."""
    room: Callable[[Body, int], Refusal] = lambda body, itemsize: refuses_nothing
    """Why a program of a GPU has no room for a schedule of these values, with elements of so many bytes, beyond what
    the variant says of any. A search asks for thousands of schedules: what is the same of all is found once."""
    precise: Callable[[OperatorSpec, Body, Case], Refusal] = lambda spec, body, case: refuses_nothing
    """Why a schedule would multiply a case less precisely than torch's call does."""
    fits: Callable[[Body, Chip, Schedule, int], str | None] = lambda body, chip, schedule, columns: None
    """Why a core of a chip cannot hold a schedule for rows of so many columns; None if it can."""

    def of(self, variant: str) -> Variant:
        """The variant of a name; KeyError where there is none."""
        return self._by_name[variant]

    @cached_property
    def _by_name(self) -> Mapping[str, Variant]:
        return {known.name: known for known in self.every}

    def legal(self, schedule: Schedule, columns: int, itemsize: int) -> str | None:
        return self.of(schedule.variant).legal(schedule, columns, itemsize)

    def holds(self, body: Body, schedule: Schedule, itemsize: int) -> str | None:
        """The answer of `room` for one schedule."""
        return self.room(body, itemsize)(schedule)

    def default(self, variant: str) -> Schedule:
        return self.of(variant).default

    def kernels(self, spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[Step, ...]:
        return self.of(schedule.variant).kernels(spec, body, schedule, name)


def unknown(schedule: Schedule, among: Iterable[Family]) -> str | None:
    """Why none of the families makes such a schedule, for whatever operator; None where one does: tables come back from
    files that anyone may change."""
    known = [variant for family in among for variant in family.every if variant.name == schedule.variant]
    found = [
        _wrong_value(schedule, dict(variant.default.values), {p.name: p for p in variant.space}) for variant in known
    ]
    if None in found:
        return None
    # where several families have the variant, one that has its parameters as well is meant
    reasons = sorted(filter(None, found), key=lambda why: "no parameter" in why)
    return reasons[0] if reasons else f"there is no variant {schedule.variant!r}"


def _wrong_value(schedule: Schedule, usual: dict[str, Scalar], parameters: dict[str, Parameter]) -> str | None:
    """The first value that a parameter cannot have; None where all are possible.

    A schedule that was made before a parameter was added lacks its value.
    """
    for name, value in schedule.values:
        if name not in usual:
            return f"{schedule.variant} has no parameter {name!r}"
        choices = (*(parameters[name].choices if name in parameters else ()), usual[name])
        if not any(type(c) is type(value) and c == value for c in choices) and not _is_between(value, choices):
            return f"{name} cannot be {str(value)[:60]!r}"
    return None


def _is_between(value: Scalar, choices: Sequence[Scalar]) -> bool:
    """Whether it is a power of two up to the largest choice, as block sizes are that were fitted to an operator."""
    if not all(type(c) is int and c > 0 and c & (c - 1) == 0 for c in (value, *choices)):
        return False
    return int(value) <= max(map(int, choices))

"""The plan: which kernels an operator lowers to, and every tunable decision of them as plain frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from kernelgen.spec.choices import Choice
from kernelgen.spec.model import CUSTOM, Case, OperatorSpec, Size, TensorSpec

Scalar = int | str | bool


@dataclass(frozen=True, order=True)
class Schedule:
    """Every tunable decision of one kernel: the variant of the family's template and its named values.

    `values` is sorted by name, so two equal schedules compare and hash equal.
    """

    variant: str
    values: tuple[tuple[str, Scalar], ...]

    @staticmethod
    def make(variant: str, **values: Scalar) -> Schedule:
        return Schedule(variant, tuple(sorted(values.items())))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Schedule:
        return Schedule.make(data["variant"], **data["values"])

    def to_json(self) -> dict[str, Any]:
        return {"variant": self.variant, "values": dict(self.values)}

    def __getitem__(self, name: str) -> Scalar:
        for known, value in self.values:
            if known == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Scalar | None = None) -> Scalar | None:
        return next((value for known, value in self.values if known == name), default)

    def int(self, name: str) -> int:
        """An integer value; a schedule without it is a fault of the family that made it."""
        value = self[name]
        assert isinstance(value, int)
        return value

    def replace(self, **changes: Scalar) -> Schedule:
        """The same schedule with some values changed."""
        unknown = changes.keys() - dict(self.values).keys()
        assert not unknown, f"{self.variant} has no parameter {sorted(unknown)}"
        return Schedule.make(self.variant, **{**dict(self.values), **changes})

    def __str__(self) -> str:
        return " ".join([self.variant, *(f"{name}={value}" for name, value in self.values)])


@dataclass(frozen=True)
class TableRow:
    """One line of the schedule table: which problems it serves, and how. The first row that serves a problem wins."""

    upto: tuple[tuple[str, int], ...]
    """The largest named sizes that it serves (see `schedule.problem`), sorted by name; none: all problems."""
    schedule: Schedule

    def limit(self, name: str) -> int | None:
        """The most of a named size that it serves; None: any."""
        return dict(self.upto).get(name)

    @staticmethod
    def from_json(data: dict[str, Any]) -> TableRow:
        return table_row(Schedule.from_json(data["schedule"]), **data["upto"])

    def to_json(self) -> dict[str, Any]:
        return {"upto": dict(self.upto), "schedule": self.schedule.to_json()}


def table_row(schedule: Schedule, **upto: int | None) -> TableRow:
    """The row that serves problems up to these named sizes; None: no limit."""
    return TableRow(tuple(sorted((name, limit) for name, limit in upto.items() if limit is not None)), schedule)


@dataclass(frozen=True)
class Chip:
    """What a plan is made for where its schedules depend on it: a processor whose buffers kernels fill themselves."""

    name: str
    """Such as "ascend910b3"."""
    family: str
    """Which variants and schedules it takes: a key of `families.RETARGET`."""
    cores: int
    """Programs that run side by side, each on a core; what generated code takes where no driver says it."""
    buffer_bytes: int
    """The buffer of a core."""


@dataclass(frozen=True)
class Parameter:
    """One axis of a schedule space."""

    name: str
    choices: tuple[Scalar, ...]
    """Legal values, in ascending order where they have one."""
    strategy: str
    """The strategy that searches it: a name of `spec.model.STRATEGIES`."""
    kind: Literal["constexpr", "launch", "structure"]
    """constexpr: a kernel argument; launch: an option of the launch; structure: changes the kernel's text."""
    meaning: str
    """One clause for the log, such as "rows a program handles at once"."""


@dataclass(frozen=True)
class ScheduleSet:
    """Schedules that a family names together, to be looked at side by side."""

    schedules: tuple[Schedule, ...]
    dtypes: tuple[str, ...]
    """Of the cases that they are for."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes by which these cases are told, such as D = 128."""


@dataclass(frozen=True)
class Product:
    """Sums of products that a kernel computes: rows of one operand by columns of another, in every batch."""

    name: str
    """What the reference, or the file, calls the result."""
    batch: tuple[Size, ...]
    rows: tuple[Size, ...]
    columns: tuple[Size, ...]
    summed: tuple[Size, ...]
    """The sizes that each of these is the product of."""
    dtype: str
    """To which operands are rounded before they are multiplied: a dtype or its variable."""
    kept: str = ""
    """The dtype to which rounding operands costs about what the sums are off by, where no operand is rounded; float32:
    which is read as TF32."""
    precision: str = ""
    """How float32 is multiplied; empty: as torch is set."""
    left: Callable[[int, int, int, Callable[[tuple[Size, ...]], int]], int] | None = None
    """How many products of so many rows, columns and summed elements masks leave in a batch, by what sizes are; None:
    all."""
    hides_more: Callable[[Callable[[tuple[Size, ...]], int]], bool] | None = None
    """Whether masks leave out more than that, as values do, such as lengths of sequences; None: they do not."""


@dataclass(frozen=True)
class View:
    """A way of looking at a tensor that moves nothing."""

    op: str
    """A name of `frontend.graph.VIEWS`."""
    sizes: tuple[Size, ...]
    """permute: the order of the dimensions; else the shape."""


@dataclass(frozen=True)
class Operand:
    """A tensor in memory as a call of torch's reads it."""

    tensor: TensorSpec
    views: tuple[View, ...] = ()


@dataclass(frozen=True)
class TorchCall:
    """An operation that no family takes, or a view of what one has left: a statement of the wrapper."""

    result: TensorSpec
    operands: tuple[Operand, ...]
    text: str
    """The call, with `{0}` for the first operand."""
    statement: str
    """The statement of the reference that it stands in; empty where it is but a view."""
    contiguous: bool = False
    """Whether the reference returns the result contiguous."""

    @property
    def function(self) -> str:
        """Such as `torch.nn.functional.linear`."""
        return self.text.partition("(")[0]

    @property
    def is_view(self) -> bool:
        return not self.statement


@dataclass(frozen=True)
class KernelPlan:
    """An operator, or a part of one, lowered to the kernels of one family, with the schedules chosen so far."""

    spec: OperatorSpec
    family: str
    body: object
    """What the family's kernels are printed from: `families.body_of` knows its type."""
    table: tuple[TableRow, ...]
    """Each row serves what none before it does; the last has no limit."""
    notes: tuple[str, ...] = ()
    """What a reviewer should know: algebra that changes rounding, copies a wrapper may make."""
    then: KernelPlan | None = None
    """What reduces the numbers that this one leaves for every row, where the operator reduces twice."""
    chip: Chip | None = None
    """None: any GPU."""
    filled: tuple[str, ...] = ()
    """Sizes of which the reference refuses 0: of no elements there is no greatest and no least."""
    rounded: tuple[tuple[Size, int], ...] = ()
    """Sizes, as shapes have them, along which torch's own places are exact up to so many (`Graph.rounded`)."""

    @property
    def main(self) -> KernelPlan:
        return self

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        return (self,)

    @property
    def calls(self) -> tuple[TorchCall, ...]:
        return ()

    def with_table(self, table: tuple[TableRow, ...]) -> KernelPlan:
        return replace(self, table=table)

    def with_schedule(self, row: int, schedule: Schedule) -> KernelPlan:
        """The plan with the schedule of one row of the table changed."""
        return self.with_table(changed(self.table, row, schedule))


@dataclass(frozen=True)
class StepsPlan:
    """An operator as several steps, one after the other: kernels, and calls of torch's where no family takes an
    operation. One kernel, that of the most bytes, is tuned: the plan's family and table are its."""

    spec: OperatorSpec
    steps: tuple[Step, ...]
    tuned: int
    """Which step is tuned."""
    notes: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    rounded: tuple[tuple[Size, int], ...] = ()

    @property
    def main(self) -> KernelPlan:
        """The kernel that is tuned."""
        step = self.steps[self.tuned]
        assert isinstance(step, KernelPlan)
        return step

    @property
    def family(self) -> str:
        return self.main.family

    @property
    def table(self) -> tuple[TableRow, ...]:
        return self.main.table

    @property
    def chip(self) -> None:
        return None

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        return tuple(step for step in self.steps if isinstance(step, KernelPlan))

    @property
    def calls(self) -> tuple[TorchCall, ...]:
        """The operations that stay calls of torch's."""
        return tuple(s for s in self.working if isinstance(s, TorchCall))

    @property
    def working(self) -> tuple[Step, ...]:
        """The steps that do more than look at memory in another way."""
        return tuple(s for s in self.steps if not (isinstance(s, TorchCall) and s.is_view))

    def with_table(self, table: tuple[TableRow, ...]) -> StepsPlan:
        steps = list(self.steps)
        steps[self.tuned] = self.main.with_table(table)
        return replace(self, steps=tuple(steps))

    def with_schedule(self, row: int, schedule: Schedule) -> StepsPlan:
        return self.with_table(changed(self.table, row, schedule))


@dataclass(frozen=True)
class Alternative:
    """What is launched in one way of calling an operator."""

    choice: Choice
    plan: KernelPlan | StepsPlan
    is_tuned: bool
    """Whether it has the schedule table that is tuned."""


@dataclass(frozen=True)
class ChoicesPlan:
    """An operator of which options and optional inputs decide what is launched. One schedule table serves all that can
    have it: those whose kernels are of the family and the variants of the first, which is tuned."""

    spec: OperatorSpec
    alternatives: tuple[Alternative, ...]
    first: int
    """The alternative whose family and table are the plan's."""
    notes: tuple[str, ...] = ()

    def at(self, case: Case) -> KernelPlan | StepsPlan:
        """What is launched for a case."""
        return next(one.plan for one in self.alternatives if one.choice.serves(case))

    @property
    def main(self) -> KernelPlan:
        return self.alternatives[self.first].plan.main

    @property
    def family(self) -> str:
        return self.main.family

    @property
    def table(self) -> tuple[TableRow, ...]:
        return self.main.table

    @property
    def chip(self) -> None:
        return None

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        return tuple(kernel for one in self.alternatives for kernel in one.plan.kernels)

    @property
    def calls(self) -> tuple[TorchCall, ...]:
        return tuple(call for one in self.alternatives for call in one.plan.calls)

    def with_table(self, table: tuple[TableRow, ...]) -> ChoicesPlan:
        alternatives = (replace(a, plan=a.plan.with_table(table)) if a.is_tuned else a for a in self.alternatives)
        return replace(self, alternatives=tuple(alternatives))

    def with_schedule(self, row: int, schedule: Schedule) -> ChoicesPlan:
        return self.with_table(changed(self.table, row, schedule))


@dataclass(frozen=True)
class WrittenPlan:
    """An operator whose kernel a language model writes: nothing is lowered, and its schedule holds the kernel."""

    spec: OperatorSpec
    table: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return CUSTOM

    @property
    def chip(self) -> None:
        return None

    @property
    def calls(self) -> tuple[TorchCall, ...]:
        return ()

    def with_table(self, table: tuple[TableRow, ...]) -> WrittenPlan:
        return replace(self, table=table)

    def with_schedule(self, row: int, schedule: Schedule) -> WrittenPlan:
        return self.with_table(changed(self.table, row, schedule))


def changed(table: tuple[TableRow, ...], row: int, schedule: Schedule) -> tuple[TableRow, ...]:
    """A table with the schedule of one row changed."""
    return (*table[:row], replace(table[row], schedule=schedule), *table[row + 1 :])


Step = KernelPlan | TorchCall
OnePlan = KernelPlan | StepsPlan
"""What families make of one reference."""
LoweredPlan = OnePlan | ChoicesPlan
"""What families made."""
Plan = LoweredPlan | WrittenPlan


def at(plan: LoweredPlan, case: Case) -> OnePlan:
    """What is launched for a case."""
    return plan.at(case) if isinstance(plan, ChoicesPlan) else plan

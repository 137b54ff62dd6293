"""The plan: which kernels an operator lowers to, and every tunable decision of them as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from kernelgen.spec.model import OperatorSpec, Size, TensorSpec

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
        return dict(self.values)[name]

    def get(self, name: str, default: Scalar | None = None) -> Scalar | None:
        return dict(self.values).get(name, default)

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
    """One line of the schedule table: which problem sizes it serves, and how."""

    max_bytes: int | None
    """The largest key, in bytes, that this row serves (see `families.key_bytes`); None: no limit."""
    schedule: Schedule


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
class Plan:
    """An operator lowered to a family, with the schedules chosen so far."""

    spec: OperatorSpec
    family: str
    body: Any
    """What the family's template is filled with; only the family and its template know its type."""
    table: tuple[TableRow, ...]
    """Rows in ascending order of max_bytes; the last has no limit."""
    notes: tuple[str, ...] = ()
    """What a reviewer should know: algebra that changes rounding, copies a wrapper may make."""
    then: Plan | None = None
    """What reduces the numbers that this one leaves for every row, where the operator reduces twice."""
    chip: Chip | None = None
    """None: any GPU."""
    steps: tuple[Plan | TorchCall, ...] = ()
    """Kernels and calls of torch's in their order, where some operation stays such a call. `body` and `table` are then
    those of the kernel that is tuned."""
    tuned: int = 0
    """Which step that is."""
    filled: tuple[str, ...] = ()
    """Sizes of which the reference refuses 0: of no elements there is no greatest and no least."""

    @property
    def own(self) -> OperatorSpec:
        """What `body` was lowered from: the operator, or what is left of it for the kernel that is tuned."""
        step = self.steps[self.tuned] if self.steps else self
        assert isinstance(step, Plan)
        return step.spec

    @property
    def kernels(self) -> tuple[Plan, ...]:
        """What is lowered to kernels: the plan itself, or its steps with the table of the one that is tuned."""
        if not self.steps:
            return (self,)
        return tuple(
            step.with_table(self.table) if i == self.tuned else step
            for i, step in enumerate(self.steps)
            if isinstance(step, Plan)
        )

    @property
    def calls(self) -> tuple[TorchCall, ...]:
        """The operations that stay calls of torch's."""
        return tuple(s for s in self.working if isinstance(s, TorchCall))

    @property
    def working(self) -> tuple[Plan | TorchCall, ...]:
        """The steps that do more than look at memory in another way."""
        return tuple(s for s in self.steps if not (isinstance(s, TorchCall) and s.is_view))

    def with_table(self, table: tuple[TableRow, ...]) -> Plan:
        return replace(self, table=table)

    def with_schedule(self, row: int, schedule: Schedule) -> Plan:
        """The plan with the schedule of one row of the table changed."""
        rows = list(self.table)
        rows[row] = TableRow(rows[row].max_bytes, schedule)
        return self.with_table(tuple(rows))


Step = Plan | TorchCall

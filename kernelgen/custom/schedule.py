"""A kernel that no family wrote as a schedule: the journal, the manifest and the rounds carry it like any other tunable
decision. A model's is an answer, which we wrap; one that a person edited is the whole file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from kernelgen.custom.form import Answer, Refused, from_json, to_json
from kernelgen.files import parse_json
from kernelgen.plan import Schedule, TableRow, WrittenPlan
from kernelgen.spec.model import OperatorSpec

PROPOSED = "proposed"
"""The variant of a schedule that holds a whole answer."""
ADOPTED = "adopted"
"""The variant of a schedule that holds a whole `_triton.py`, as a person left it."""
FOREIGN = (PROPOSED, ADOPTED)
"""What no family wrote: it has no parameters and serves all sizes."""


def meaning(spec: OperatorSpec) -> str:
    """A hash of what a kernel was written for: the interface and the reference."""
    tensors = [(t.name, t.shape, t.dtype, t.role, t.below) for t in (*spec.inputs, *spec.outputs)]
    more = [(t.name, t.offsets, t.checked) for t in spec.inputs if t.offsets is not None or t.checked]
    text = repr((spec.name, tensors, *more, spec.dtypes, [c.text for c in spec.constraints], spec.reference))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def schedule_of(spec: OperatorSpec, answer: Answer) -> Schedule:
    """The schedule that stands for an answer."""
    text = json.dumps(to_json(answer), sort_keys=True, separators=(",", ":"))
    return Schedule.make(PROPOSED, answer=text, meaning=meaning(spec))


def answer_of(spec: OperatorSpec, schedule: Schedule) -> Answer:
    """The inverse of `schedule_of`, checked again: files may have been changed. Raises Refused."""
    text = schedule.get("answer")
    if schedule.variant != PROPOSED or not isinstance(text, str):
        raise Refused(("this schedule holds no kernel",))
    if schedule.get("meaning") != meaning(spec):
        raise Refused(("the kernel was written for another interface or reference",))
    try:
        data = json.loads(text)
    except ValueError:
        raise Refused(("this schedule holds no JSON",)) from None
    return from_json(data, spec)


def adopted_table(spec: OperatorSpec, source: str) -> tuple[TableRow, ...]:
    """The schedule table of a `_triton.py` that a person edited: one line."""
    return (TableRow((), Schedule.make(ADOPTED, source=source, meaning=meaning(spec))),)


def adopted_source(spec: OperatorSpec, schedule: Schedule) -> str:
    """The inverse of `adopted_table`. Raises Refused where the spec has come to mean something else."""
    if schedule.variant != ADOPTED or schedule.get("meaning") != meaning(spec):
        raise Refused(("the kernel was edited for another interface or reference",))
    return str(schedule["source"])


def misshapen(schedule: Schedule) -> str | None:
    """Why a schedule cannot be what this module made; None if it can. What the kernel says is for `answer_of`."""
    values, held = dict(schedule.values), "answer" if schedule.variant == PROPOSED else "source"
    if {name: type(value) for name, value in values.items()} != {held: str, "meaning": str}:
        return f"{schedule.variant} needs the texts {held} and meaning"
    if not re.fullmatch("[0-9a-f]{16}", str(values["meaning"])):
        return "meaning is no hash of 16 hex digits"
    if schedule.variant == ADOPTED:
        return None
    try:
        parse_json(str(values["answer"]))
    except ValueError as error:
        return f"answer: {error}"
    return None


def is_foreign(table: Iterable[TableRow]) -> bool:
    """Whether a table's kernel is one that no family wrote; it then serves all sizes."""
    return any(row.schedule.variant in FOREIGN for row in table)


def table_of(spec: OperatorSpec, answer: Answer) -> tuple[TableRow, ...]:
    """The schedule table of an answer: one line."""
    return (TableRow((), schedule_of(spec, answer)),)


def plan_of(spec: OperatorSpec, table: tuple[TableRow, ...] = ()) -> WrittenPlan:
    """The plan of a spec that says `family: custom`: nothing is lowered."""
    return WrittenPlan(spec, table)

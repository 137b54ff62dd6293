"""An answer as a schedule: the journal, the manifest and the rounds carry it like any other tunable decision."""

from __future__ import annotations

import hashlib
import json
import re

from kernelgen.custom.form import Answer, Refused, from_json, to_json
from kernelgen.files import parse_json
from kernelgen.plan import Plan, Schedule, TableRow, WrittenPlan
from kernelgen.spec.model import OperatorSpec

PROPOSED = "proposed"
"""The variant of a schedule that holds a whole answer."""


def meaning(spec: OperatorSpec) -> str:
    """A hash of what a kernel was written for: the interface and the reference."""
    tensors = [(t.name, t.shape, t.dtype, t.role, t.below) for t in (*spec.inputs, *spec.outputs)]
    text = repr((spec.name, tensors, spec.dtypes, [c.text for c in spec.constraints], spec.reference))
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


def misshapen(schedule: Schedule) -> str | None:
    """Why a schedule cannot be what `schedule_of` made; None if it can. What the kernel says is for `answer_of`."""
    values = dict(schedule.values)
    if {name: type(value) for name, value in values.items()} != {"answer": str, "meaning": str}:
        return f"{PROPOSED} needs the texts answer and meaning"
    if not re.fullmatch("[0-9a-f]{16}", str(values["meaning"])):
        return "meaning is no hash of 16 hex digits"
    try:
        parse_json(str(values["answer"]))
    except ValueError as error:
        return f"answer: {error}"
    return None


def is_proposed(plan: Plan) -> bool:
    """Whether the plan's kernel is one that no family wrote; it then serves all sizes."""
    return any(row.schedule.variant == PROPOSED for row in plan.table)


def table_of(spec: OperatorSpec, answer: Answer) -> tuple[TableRow, ...]:
    """The schedule table of an answer: one line."""
    return (TableRow((), schedule_of(spec, answer)),)


def plan_of(spec: OperatorSpec, table: tuple[TableRow, ...] = ()) -> WrittenPlan:
    """The plan of a spec that says `family: custom`: nothing is lowered."""
    return WrittenPlan(spec, table)

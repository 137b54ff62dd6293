"""One row a measurement of a configuration, read out of the journal of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kernelgen import journal
from kernelgen.outcomes import Status, evaluation_from_json
from kernelgen.plan import Schedule

DTYPE = re.compile(r"\b(?:b?float|u?int)\d+\w*|\bbool\b")


@dataclass(frozen=True)
class Row:
    """A configuration on one case; strategies are told of by the same rows."""

    run: str
    seq: int
    """The journal's record."""
    round: int
    operator: str
    family: str
    spec: str
    """Hash of the spec."""
    source: str
    """Hash of the kernel's file."""
    variant: str
    schedule: str
    """JSON of the values by name."""
    case: str
    """The case's label: shapes and dtypes."""
    dtype: str
    device: str
    torch: str
    triton: str
    version: str
    """Of kernelgen."""
    time_us: float | None
    """None: the configuration failed."""
    speedup: float | None
    """Over the kernel that was current."""
    low: float | None
    high: float | None
    """The interval of the speedup; None for a first look."""
    status: str
    bottleneck: str
    strategy: str
    kept: bool
    """Whether the round kept this configuration."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return sizes_of(self.case)

    def values(self) -> Schedule:
        return Schedule.make(self.variant, **json.loads(self.schedule))

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Row:
        """Raises ValueError for what is no row."""
        kinds = {field.name: str(field.type) for field in fields(Row)}
        if set(data) != set(kinds):
            raise ValueError(f"a row has {', '.join(kinds)}")
        for name, kind in kinds.items():
            value = data[name]
            right = (
                (isinstance(value, bool) and kind == "bool")
                or (isinstance(value, str) and kind == "str")
                or (isinstance(value, int) and not isinstance(value, bool) and kind == "int")
                or (isinstance(value, int | float | None) and not isinstance(value, bool) and kind == "float | None")
            )
            if not right:
                raise ValueError(f"{name} cannot be {str(value)[:40]!r}")
        row = Row(**data)
        row.values()
        return row

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sizes_of(case: str) -> tuple[int, ...]:
    """The numbers in a case's shapes, in their order."""
    return tuple(int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", DTYPE.sub("", case)))


def named_sizes(case: str) -> dict[str, int]:
    """The sizes in a case's label by name; what leads, `[8, 2048]`, as one of the name "..."."""
    found = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", case)}
    leading = re.match(r"\[([\d, ]*)\]", case)
    return {"...": math.prod(map(int, re.findall(r"\d+", leading[1]))), **found} if leading else found


def of_run(folder: Path) -> Iterator[Row]:
    """What a run measured. Raises JournalError for a damaged journal."""
    return of_records(folder.name, journal.read(folder))


def of_records(run: str, records: Sequence[journal.Record]) -> Iterator[Row]:
    """The same of a run's records by its name. A run that only predicted has none: neither its times nor what failed
    there says anything of a device."""
    begun = next((r.data for r in records if r.kind == "run"), None)
    if begun is None or not any(map(_measured, records)):
        return
    ends = {r.data["round"]: r for r in records if r.kind == "round"}
    choices = {
        (r.data["round"], one["hash"]): (one, r.data["advice"]["strategy"])
        for r in records
        if r.kind == "choice"
        for one in r.data["candidates"]
    }
    told = {
        "run": run, "operator": begun["operator"], "family": begun.get("family", ""), "spec": begun["spec"],
        "device": begun["device"]["device"], "torch": begun["device"]["torch"], "triton": begun["device"]["triton"],
        "version": begun["version"],
    }  # fmt: skip
    known: set[tuple[str, Schedule]] = set()
    for record in records:
        if record.kind != "candidate" or (record.data["round"], record.data["hash"]) not in choices:
            continue
        data = record.data
        chosen, strategy = choices[data["round"], data["hash"]]
        if chosen["row"] is None:
            continue  # another table: of which schedule a time is, its cases say and not this record
        played = ends[data["round"]].data if data["round"] in ends else {}
        schedule = Schedule.from_json(data["table"][chosen["row"]]["schedule"])
        kept = bool(played.get("kept")) and played["table"][chosen["row"]]["schedule"] == schedule.to_json()
        evaluation = evaluation_from_json(data["evaluation"])
        timed = {t.case: t for t in evaluation.speedups("current") if t.source == "measured"}
        before = ends.get(data["round"] - 1)
        if evaluation.status is Status.OK and before and len(before.data["current"]) == len(data["table"]):
            current = Schedule.from_json(before.data["current"][chosen["row"]]["schedule"])
            for case in [case for case in timed if (case, current) not in known]:
                known.add((case, current))
                yield Row(
                    seq=before.seq, round=data["round"], source=before.data["hash"], variant=current.variant,
                    schedule=_text(current), case=case, dtype=_dtypes(case), time_us=timed[case].against_us,
                    speedup=None, low=None, high=None, status=str(Status.OK), bottleneck="", strategy="",
                    kept=False, **told,
                )  # fmt: skip
        for case in data["cases"] if evaluation.status is not Status.OK else timed:
            timing = timed.get(case)
            interval = timing.interval if timing else None
            known.add((case, schedule))
            yield Row(
                seq=record.seq, round=data["round"], source=data["hash"], variant=schedule.variant,
                schedule=_text(schedule), case=case, dtype=_dtypes(case), time_us=timing.time_us if timing else None,
                speedup=timing.speedup if timing else None, low=interval.low if interval else None,
                high=interval.high if interval else None, status=str(evaluation.status),
                bottleneck=played.get("bottleneck", ""), strategy=strategy, kept=kept,
                **told,
            )  # fmt: skip


def _text(schedule: Schedule) -> str:
    return json.dumps(dict(schedule.values), sort_keys=True)


def _dtypes(case: str) -> str:
    return " ".join(dict.fromkeys(DTYPE.findall(case)))


def _measured(record: journal.Record) -> bool:
    """Whether a step has a time that a device took."""
    timings = (record.data.get("evaluation") or {}).get("timings", ())
    return any(one["source"] == "measured" for one in timings)

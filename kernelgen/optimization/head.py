"""The log's head: what a run came to so far, from the records of its journal alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelgen.journal import Record
from kernelgen.log import cell
from kernelgen.optimization.decide import NOTHING_LEFT
from kernelgen.optimization.words import how, shapes_of, targets_text

MARKS = {"reached": "✓", "missed": "✗", "unknown": "not measured"}


def head(records: Sequence[Record], reason: str = "") -> dict[str, Any] | None:
    """What the head's template shows; None before the first round is finished. `reason`: why the run ended."""
    begun = next(r.data for r in records if r.kind == "run")
    rounds = [r.data for r in records if r.kind == "round"]
    if not rounds:
        return None
    entry = rounds[-1]["entry"]
    now = entry["standing"]
    states = [(words, state) for words, state in now["targets"]]
    source = entry["source"]
    title = [f"{now['version']}, {now['speedup']}", now["roofline"], targets_text(states, source)]
    versions, table, same = _parameters(begun["cases"], rounds)
    return {
        "operator": begun["operator"],
        "title": " · ".join(filter(None, title)),
        "device": cell(f"{begun['device']['device']}, {source}: {shapes_of(begun['cases'])}"),
        "targets": [(words, MARKS[state] + (how(source) if state != "unknown" else "")) for words, state in states],
        "rounds": [(data["round"], data["entry"]["row"]) for data in rounds],
        "versions": versions,
        "parameters": table,
        "same": same,
        "next": _ending(entry, reason),
    }


def _ending(entry: dict[str, Any], reason: str) -> str:
    """Where to go on, and why the run stopped if it did."""
    ended = f"Ended: {reason}. " if reason else ""
    if not entry["next"] or reason == NOTHING_LEFT:
        return ended.strip()
    return f"{ended}Next: {'; '.join(entry['next'])}."


Row = tuple[str, str, list[str]]
"""The cases, a parameter's name, and its value in each version."""


def _parameters(cases: list[str], rounds: list[dict[str, Any]]) -> tuple[list[str], list[Row], list[str]]:
    """The versions, the parameters that changed between them by the cases they serve, and those that did not."""
    versions = [data for data in rounds if data["kept"]]
    states = [data["entry"]["standing"] for data in versions]
    groups: dict[str, list[str]] = {}
    for case in cases:
        groups.setdefault(str([state["schedules"][case] for state in states]), []).append(case)
    rows: list[Row] = []
    same: dict[str, list[str]] = {}
    for served in groups.values():
        label = cell(shapes_of(served)) if len(groups) > 1 else "all"
        schedules = [_values(state["schedules"][served[0]]) for state in states]
        fixed = []
        for name in dict.fromkeys(name for schedule in schedules for name in schedule):
            values = [schedule.get(name, "–") for schedule in schedules]
            if len(set(values)) > 1:
                rows.append((label, name, values))
            else:
                fixed.append(f"{name} {values[0]}")
        if fixed:
            same.setdefault(", ".join(fixed), []).append(label)
    if rows:
        measured = " over eager" in states[0]["speedup"]
        results = [s["speedup"].partition(" over ")[0] if measured else s["roofline"] for s in states]
        rows.append(("all", "speedup over eager" if measured else "roofline", results))
    titles = [f"{state['version']}, round {data['round']}" for data, state in zip(versions, states, strict=True)]
    unchanged = [text if len(same) == 1 else f"{' and '.join(labels)}: {text}" for text, labels in same.items()]
    return titles, rows, unchanged


def _values(schedule: dict[str, Any]) -> dict[str, str]:
    """A schedule's decisions by name; a kernel written by a model has its text in one of them."""
    return {"variant": schedule["variant"], **{k: cell(shown(v)) for k, v in schedule["values"].items()}}


def shown(value: Any) -> str:
    """A value short enough for a table."""
    text = str(value)
    return text if len(text) <= 40 else f"{len(text.splitlines())} lines"

"""The largest sizes that a wrapper takes: beyond these an index that kernels keep in int32 would overflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from kernelgen.families import family_of, row_lanes
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body, body_of
from kernelgen.families.pointwise import MAX_GRID_Y
from kernelgen.families.values import axes_of
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.masks import OPERATION
from kernelgen.plan import KernelPlan, Schedule
from kernelgen.schedule.problem import ROW_BYTES, ROWS, TENSOR_BYTES
from kernelgen.spec.model import SCALAR
from kernelgen.wrapper.own_names import with_own

_FIELD = re.compile(r"\{[^}]*\}")
"""What a message shows of a variable."""
_MEMORY = 2**40
"""Bytes that no device holds."""


def too_large(plan: KernelPlan, own: Mapping[str, str]) -> tuple[str, str] | None:
    """The condition under which a wrapper refuses its inputs, and what it says; None where no size is too large. `own`:
    what the wrapper calls its variables."""
    if plan.chip:
        return _too_many(plan, own)
    found = _beyond_int32(plan)
    return (with_own(found[0], own), _FIELD.sub(lambda said: with_own(said[0], own), found[1])) if found else None


def _beyond_int32(plan: KernelPlan) -> tuple[str, str] | None:
    body = body_of(plan)
    family = family_of(plan)
    if family.too_large:
        return family.too_large(plan.spec, body)
    if body.layout.columns is None:
        return None
    tiles = [
        row.schedule.int("BLOCK_SIZE_N")
        for row in plan.table
        if row.limit(TENSOR_BYTES) is None
        and (row.schedule.get("grid") == "2d" or (_form(plan, row.schedule).in_planes and row.limit(ROW_BYTES) is None))
    ]
    far = [row_lanes.LONGEST] if any(row_lanes.is_far(body, row.schedule) for row in plan.table) else []
    parts = len(body.lowered.outputs) // len(plan.spec.outputs)  # of a row, each with as many columns
    longest = family.longest_row(body)
    limits = [longest] if longest else [*(MAX_GRID_Y * tile for tile in tiles), *far]
    bits = min(31 - _furthest(body).bit_length(), 30 if parts == 1 or limits else 27)
    most = str(min(limits)) if limits and min(limits) <= 2**bits else f"2**{bits}"
    bounds = [("M", _most_rows(plan), "rows"), (_plane_rows(plan), "2**26", "rows of a plane")]
    if plan.then is not None:
        bounds, most = [("M", "2**30", "rows")], "2**30"
    found = [*((name, limit, what) for name, limit, what in bounds if name and limit), ("N", most, "columns")]
    if len(found) > 1:
        return _beyond(plan.spec.name, found)
    things = "columns" if body.layout.rows else "elements"
    if most == "2**30" and not body.layout.rows:  # a part begins at most SPLITS blocks, 2**25 elements, after the last
        most = "2**31 - 2**26"
    return f"N > {most}", f"{plan.spec.name}: at most {most} {things}, got {{N}}"


def _furthest(body: Body) -> int:
    """How often the columns, at most, is what a place in int32 comes to that a load or store names."""
    assert body.layout.columns is not None
    columns = set(body.layout.columns.axes)
    places = [index for a in body.layout.all() for index, _ in a.terms if isinstance(index, Expr)]
    return max((_reach(place, columns) for place in places if columns & set(axes_of(place))), default=1) or 1


def _reach(place: Expr, columns: set[int]) -> int:
    match place.op:
        case "axis":
            return int(place.number in columns)
        case "size":
            return prod(atom for atom in place.size if isinstance(atom, int))
        case "+" | "-" | "*":
            left, right = (_reach(arg, columns) for arg in place.args)
            if place.op == "*":
                numbers = [arg.number for arg in place.args if arg.op == "number"]
                return numbers[0] * max(left, right) if numbers else max(left, right)
            return left + right if place.op == "+" else max(left, right)
        case "//" | "%":
            return _reach(place.args[0], columns)
    return 0


def _beyond(name: str, bounds: list[tuple[str, str, str]]) -> tuple[str, str]:
    """The condition under which one of several sizes is beyond its bound, and what is said then."""
    said, got = [f"{limit} {what}" for _, limit, what in bounds], [f"{{{size}}}" for size, _, _ in bounds]
    condition = " or ".join(f"{size} > {limit}" for size, limit, _ in bounds)
    if len({limit for _, limit, _ in bounds}) == 1:
        said = [f"{bounds[0][1]} {bounds[0][2]}", *(what for _, _, what in bounds[1:])]
    return condition, f"{name}: at most {_listed(said)}, got {_listed(got)}"


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _plane_rows(plan: KernelPlan) -> str:
    """The size of the rows of a plane, which are numbered in int32 and multiplied by the steps of windows; empty where
    no kernel takes planes apart, or where that is a number."""
    rows = body_of(plan).layout.rows
    size = rows[-1].size if rows else ""
    return size if size.isidentifier() and any(_form(plan, row.schedule).in_planes for row in plan.table) else ""


def _most_rows(plan: KernelPlan) -> str | None:
    """The rows of which Triton's launcher can count the programs, in an int32; None where no device holds more."""
    found, shorter = list[int](), 1
    for row in plan.table:
        schedule, form = row.schedule, _form(plan, row.schedule)
        tiles = _number(schedule, "ROW_TILES") * _number(schedule, "BLOCK_SIZE_M")
        most = 2**30 * (1 if form.in_planes else tiles) // _number(schedule, "SPLITS")
        reached = min(_MEMORY // shorter, *(row.limit(name) or _MEMORY for name in (ROWS, TENSOR_BYTES)))
        if body_of(plan).layout.rows and not form.is_run and reached > most:
            found.append(most)
        if [name for name, _ in row.upto] == [ROW_BYTES]:
            shorter = row.limit(ROW_BYTES) or shorter
    return f"2**{min(found).bit_length() - 1}" if found else None


def _form(plan: KernelPlan, schedule: Schedule) -> Form:
    return family_of(plan).of(schedule.variant).form


def _number(schedule: Schedule, name: str) -> int:
    value = schedule.get(name)
    return value if isinstance(value, int) else 1


def _too_many(plan: KernelPlan, own: Mapping[str, str]) -> tuple[str, str]:
    """Where every offset is kept in int32, the largest tensor bounds what can be numbered."""
    body = body_of(plan)
    read = {a.tensor for a in body.layout.accesses}
    tensors = [t for t in plan.spec.inputs if t.name in read and t.role != SCALAR]
    names = [t.name for t in (*tensors, *plan.spec.outputs)]
    large = f"{names[0]}.numel() > 2**30"
    if len(names) > 1:
        large = f"any(t.numel() > 2**30 for t in ({', '.join(names)}))"
    if plan.then is not None:  # rows of no element are numbered as well
        large = f"{own['M']} > 2**30 or {large}"
    if _numbers_more(body):
        large = f"{with_own('M * N' if body.layout.rows else 'N', own)} > 2**30 or {large}"
    return large, f"{plan.spec.name}: at most 2**30 elements a tensor, whose offsets are kept in int32"


def _numbers_more(body: Body) -> bool:
    """Whether elements are drawn for by their numbers of which no tensor has as many."""
    every = len(body.lowered.space.axes)
    tensors = [v.axes for v in body.lowered.values if v.op == "load"]
    tensors += [frozenset(a for d in o.index for a in axes_of(d)) for o in body.lowered.outputs]
    return any(v.op == OPERATION for v in body.lowered.values) and all(len(axes) < every for axes in tensors)

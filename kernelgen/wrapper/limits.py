"""The largest sizes that a wrapper takes: beyond these an index that kernels keep in int32 would overflow."""

from __future__ import annotations

from kernelgen.families import module, row_lanes
from kernelgen.families.kernel import Body
from kernelgen.families.pointwise import MAX_GRID_Y
from kernelgen.families.values import axes_of
from kernelgen.frontend.masks import OPERATION
from kernelgen.plan import Plan


def too_large(plan: Plan) -> tuple[str, str] | None:
    """The condition under which a wrapper refuses its inputs, and what it says; None where no size is too large."""
    body: Body = plan.body
    if plan.chip:
        return _too_many(plan)
    if hasattr(module(plan), "too_large"):
        return module(plan).too_large(plan.spec, body)  # type: ignore[no-any-return]
    if body.layout.columns is None:
        return None
    tiles = [
        row.schedule.int("BLOCK_SIZE_N")
        for row in plan.table
        if row.schedule.get("grid") == "2d" or (row.schedule.variant == "planes" and row.max_bytes is None)
    ]
    far = [row_lanes.LONGEST] if any(row_lanes.is_far(body, row.schedule) for row in plan.table) else []
    parts = len(body.lowered.outputs) // len(plan.spec.outputs)  # of a row, each with as many columns
    longest = module(plan).longest_row(body) if hasattr(module(plan), "longest_row") else None
    limits = [longest] if longest else [*(MAX_GRID_Y * tile for tile in tiles), *far]
    most = str(min(limits)) if limits else "2**30" if parts == 1 else "2**27"
    if plan.then is not None:
        return "max(M, N) > 2**30", f"{plan.spec.name}: at most 2**30 rows and columns, got {{M}} and {{N}}"
    things = "columns" if body.layout.rows else "elements"
    if most == "2**30" and not body.layout.rows:  # a part begins at most SPLITS blocks, 2**25 elements, after the last
        most = "2**31 - 2**26"
    return f"N > {most}", f"{plan.spec.name}: at most {most} {things}, got {{N}}"


def _too_many(plan: Plan) -> tuple[str, str]:
    """Where every offset is kept in int32, the largest tensor bounds what can be numbered."""
    body: Body = plan.body
    read = {a.tensor for a in body.layout.accesses}
    names = [t.name for t in (*plan.spec.inputs, *plan.spec.outputs) if t.name in read or t in plan.spec.outputs]
    large = f"{names[0]}.numel() > 2**30"
    if len(names) > 1:
        large = f"any(t.numel() > 2**30 for t in ({', '.join(names)}))"
    if plan.then is not None:  # rows of no element are numbered as well
        large = f"M > 2**30 or {large}"
    if _numbers_more(body):
        large = f"{'M * N' if body.layout.rows else 'N'} > 2**30 or {large}"
    return large, f"{plan.spec.name}: at most 2**30 elements a tensor, whose offsets are kept in int32"


def _numbers_more(body: Body) -> bool:
    """Whether elements are drawn for by their numbers of which no tensor has as many."""
    every = len(body.lowered.space.axes)
    tensors = [v.axes for v in body.lowered.values if v.op == "load"]
    tensors += [frozenset(a for d in o.index for a in axes_of(d)) for o in body.lowered.outputs]
    return any(v.op == OPERATION for v in body.lowered.values) and all(len(axes) < every for axes in tensors)

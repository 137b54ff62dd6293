"""The families: how inputs are read, which schedules are legal, and what a table is keyed by."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from test_frontend import spec_of

from kernelgen import families, frontend, render
from kernelgen.errors import SpecError
from kernelgen.families import pointwise, reduction
from kernelgen.families.looped import passes
from kernelgen.families.values import REVERSE
from kernelgen.plan import Plan, Schedule, TableRow, table_row
from kernelgen.spec import load_spec, shipped_specs
from kernelgen.spec.model import Case, Constraint, OperatorSpec

SPECS = {path.stem: path for path in shipped_specs()}


def lowered(spec: OperatorSpec) -> Plan:
    graph, notes = frontend.trace(spec)
    return families.lower(spec, graph, notes)


@cache
def plan_of(body: str, inputs: str = "x: [..., D] T", outputs: str = "out: [..., D] T") -> Plan:
    return lowered(spec_of(body, inputs, outputs))


@cache
def shipped(name: str) -> Plan:
    return lowered(load_spec(SPECS[name]))


def accesses(plan: Plan) -> dict[str, tuple[tuple[str, str | None], ...]]:
    return {a.tensor: a.terms for a in plan.body.layout.accesses}


def case(dtype: str = "float16", **sizes: int | tuple[int, ...]) -> Case:
    named = {"...": sizes.pop("leading")} | sizes if "leading" in sizes else dict(sizes)
    return Case(tuple(named.items()), (("T", dtype),))


# how inputs are read


def test_one_run_of_elements_where_every_input_has_the_shape_of_the_output() -> None:
    plan = plan_of("return x + y", "x: [..., D] T; y: [..., D] T")
    assert plan.body.layout.columns is None
    assert accesses(plan) == {"x": (("offsets", None),), "y": (("offsets", None),)}


def test_an_input_along_the_columns_makes_rows_and_columns() -> None:
    plan = plan_of("return x + b", "x: [A, B, D] T; b: [D] T", "out: [A, B, D] T")
    rows, columns = plan.body.layout.rows, plan.body.layout.columns
    assert [g.axes for g in rows] == [(0, 1)]
    assert columns.axes == (2,)
    assert accesses(plan)["b"] == (("cols", "stride_bn"),)


def test_a_channel_takes_rows_apart() -> None:
    plan = plan_of("return x * c[:, None, None]", "x: [N0, C, H, W] T; c: [C] T", "out: [N0, C, H, W] T")
    assert [g.axes for g in plan.body.layout.rows] == [(0,), (1,)]
    assert plan.body.layout.columns.axes == (2, 3)
    assert [g.index for g in plan.body.layout.split] == ["c_index"]
    assert dict(accesses(plan)["c"]) == {"c_index": "stride_cc_index"}


def test_a_promise_of_contiguity_spares_the_strides() -> None:
    plan = shipped("broadcast")
    assert all(a.strides == () for a in plan.body.layout.accesses)
    assert accesses(plan)["bias"] == (("cols", None),)


def test_an_input_read_in_two_ways_shares_the_strides_that_are_equal() -> None:
    plan = plan_of("return x + x.T", "x: [A, A] T", "out: [A, A] T")
    straight, turned = (dict(a.terms) for a in plan.body.layout.accesses)
    assert straight == {"rows": "stride_xm", "cols": "stride_xn"}
    assert turned == {"rows": "stride_xn", "cols": "stride_xm"}


def test_levels_follow_what_a_value_varies_along() -> None:
    plan = plan_of(
        "return (x - x.mean(-1, keepdim=True)) * w * s[:, None] + k",
        "x: [A, D] T; w: [D] T; s: [A] T; k: [] T", "out: [A, D] T",
    )  # fmt: skip
    levels = {
        plan.body.lowered.values[a.load].tensor: plan.body.names.levels[a.load] for a in plan.body.layout.accesses
    }
    assert levels == {"x": "full", "w": "column", "s": "row", "k": "scalar"}


def test_columns_alone_are_as_many_as_a_grid_has_programs() -> None:
    """A grid's second axis has 65535, which would refuse a column of a large table."""
    plan = plan_of("return x[:, 1] * 2", "x: [A, 4] T", "out: [A] T")
    assert [(row.schedule["grid"], row.schedule["BLOCK_SIZE_M"]) for row in plan.table] == [("1d", 1)]


REFUSED = {
    "constant scan": (
        "return torch.ones_like(x).cumsum(-1) * x",
        "x: [A, D] T",
        "out: [A, D] T",
        "a scan of a value that does not vary",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_another_iteration_space_is_refused(name: str) -> None:
    body, inputs, outputs, message = REFUSED[name]
    with pytest.raises(SpecError, match=r"^op.yaml:\d+:3: unsupported: ") as error:
        plan_of(body, inputs, outputs)
    assert message in str(error.value)


def test_a_scan_between_two_flips_runs_from_the_end_and_reads_what_lies_beyond_the_row_as_nothing() -> None:
    plan = plan_of("return torch.exp(x).flip(-1).cumsum(-1).flip(-1) - x")
    scans = [v for v in plan.body.lowered.values if v.op == "cumsum"]
    assert [v.attr for v in scans] == [REVERSE]
    assert dict(plan.body.others) == {0: float("-inf")}
    assert not any(v.op == "flip" for v in plan.body.lowered.values)


def test_the_type_of_the_spec_is_held_against_the_family() -> None:
    from dataclasses import replace

    spec = replace(spec_of("return x + 1"), type="reduction")
    with pytest.raises(SpecError, match="type says reduction, but the reference is pointwise"):
        lowered(spec)


def test_a_tensor_may_not_hide_a_function_of_its_file() -> None:
    with pytest.raises(SpecError, match=r"op.yaml:3:5: the generated code needs the name pick_schedule itself"):
        plan_of("return pick_schedule + 1", "pick_schedule: [D] T", "out: [D] T")
    with pytest.raises(SpecError, match=r"op.yaml:3:5: a kernel of the generated code is called op_kernel"):
        render.triton_source(plan_of("return op_kernel + 1", "op_kernel: [D] T", "out: [D] T"))


def test_an_operator_is_not_called_like_a_function_of_its_file() -> None:
    with pytest.raises(SpecError, match="the generated code needs the name num_sms itself; choose another"):
        families.check_names(dataclasses.replace(spec_of("return x + 1"), name="num_sms"))


# walks over long rows


def walks(body: str, outputs: str = "out: [..., D] T") -> int:
    return len(passes(plan_of(body, outputs=outputs).body.lowered)[2])


def test_a_softmax_takes_one_walk_to_reduce() -> None:
    assert walks("return torch.softmax(x, -1)") == 1
    assert walks("return torch.log_softmax(x, -1)") == 1
    assert walks("return torch.logsumexp(x, -1)", "out: [...] T") == 1


def test_a_maximum_that_is_used_elsewhere_is_not_carried_along() -> None:
    kept = "m = x.amax(-1, keepdim=True)\ne = torch.exp(x - m)\nreturn e / e.sum(-1, keepdim=True)"
    assert walks(kept) == 1
    assert walks(f"{kept}, m.squeeze(-1)", "out: [..., D] T; m: [...] T") == 2
    assert walks("e = torch.exp(x - x.amax(-1, keepdim=True))\nreturn e / (e.sum(-1, keepdim=True) + 1e-3)") == 2


def test_moments_take_one_walk_also_where_the_mean_is_used_elsewhere() -> None:
    norm = "m = x.mean(-1, keepdim=True)\nc = x - m\nreturn c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5)"
    assert walks(norm) == 1
    assert walks(f"{norm}, m.squeeze(-1)", "out: [..., D] T; m: [...] T") == 1


# schedules


def test_tiles_may_not_be_much_wider_than_rows() -> None:
    wide = pointwise.default("tile").replace(BLOCK_SIZE_M=1, BLOCK_SIZE_N=1024, num_warps=4)
    assert (
        families.legal(plan_of("return x + b", "x: [A, D] T; b: [D] T", "out: [A, D] T"), wide, case(A=4, D=1000))
        is None
    )
    assert pointwise.FAMILY.legal(wide, 512, 2) is None
    reason = pointwise.FAMILY.legal(wide, 511, 2)
    assert reason is not None
    assert "more than twice the 511 of a row" in reason


PADDING = {"11": (5, 5, 5, 5), "(3, 39)": (19, 19, 1, 1), "(39, 3)": (1, 1, 19, 19)}
POOL = "return F.avg_pool1d(x, 8, stride=1, padding=4)"


@pytest.mark.parametrize(
    ("columns", "lane"),
    [((65536,), 4), ((4096, 65536), 4), ((65534,), 2), ((65536, 4094), 2), ((65535,), None), ((4096, 4095), None)],
)
def test_lanes_of_a_row_have_as_many_columns_as_divide_every_row_that_is_read(
    columns: tuple[int, ...], lane: int | None
) -> None:
    """Whatever the rows that are written have: one more than those that are read."""
    spec = spec_of(POOL, "x: [A, D] T", "out: [A, D + 1] T")
    timed = tuple(case("float32", A=1024, D=length) for length in columns)
    table = lowered(dataclasses.replace(spec, performance=timed)).table
    assert {row.schedule.get("lane_columns") for row in table} == {lane}
    assert {row.schedule.variant for row in table} == {"lanes" if lane else "elements"}


@pytest.mark.parametrize(("window", "variant"), [("11", "columns"), ("(3, 39)", "rows"), ("(39, 3)", "columns")])
def test_narrow_windows_that_are_not_written_out_are_reduced_side_by_side(window: str, variant: str) -> None:
    pool, size = f"F.avg_pool2d(F.pad(x, {PADDING[window]}), {window}, 4)", "(H - 1) // 4 + 1, (W - 1) // 4 + 1"
    spec = spec_of(f"return {pool}", "x: [A, C, H, W] T", f"out: [A, C, {size}] T")
    plan = lowered(dataclasses.replace(spec, performance=(case(A=16, C=64, H=2048, W=2048),)))
    assert plan.table[0].schedule.variant == variant
    assert families.family_of(plan).legal(plan.table[0].schedule, 121, 4) is None


def test_windows_two_apart_of_more_than_a_pair_of_places_have_lanes() -> None:
    spec = spec_of("return F.avg_pool1d(x, 4, stride=2)", "x: [A, D] T", "out: [A, (D - 4) // 2 + 1] T")
    spec = dataclasses.replace(spec, performance=(case(A=4096, D=4096),), constraints=(Constraint("x.shape[1] >= 4"),))
    assert {row.schedule.variant for row in lowered(spec).table} == {"lanes"}


@pytest.mark.parametrize("across", ["x: [A, D, 4] T", "x: [D, A] T"])
def test_rows_that_lie_across_what_is_read_have_no_lanes(across: str) -> None:
    body = POOL.replace("x,", "x[:, :, 1]," if "4" in across else "x.mT,")
    spec = spec_of(body, across, "out: [A, D + 1] T")
    table = lowered(dataclasses.replace(spec, performance=(case(A=4096, D=4096),))).table
    assert "lanes" not in {row.schedule.variant for row in table}


def test_a_search_sets_out_from_lanes_and_changes_their_columns() -> None:
    plan = plan_of(POOL, "x: [A, D] T", "out: [A, D + 1] T")
    cases = [case(A=64, D=2**27)]
    found = families.variants(plan, cases)
    assert [s["lane_columns"] for s in found if s.variant == "lanes"] == [4, 2]
    space = {p.name: p for p in families.space(plan.with_table((TableRow((), found[0]),)), 0, cases)}
    assert space["lane_columns"].choices == (4, 2)
    assert not any(
        p.name == "lane_columns"
        for p in families.space(plan.with_table((TableRow((), pointwise.default("tile")),)), 0, cases)
    )


@pytest.mark.parametrize("window", ["3, 1, 1", "(3, 1), 1, (1, 0)"])
def test_a_search_reaches_walks_that_ask_for_their_lines_early(window: str) -> None:
    """Windows of several lines, also where they have one column: each step of the way is a choice, and legal."""
    plan = plan_of(f"return F.max_pool2d(x, {window})", "x: [A, C, H, D] T", "out: [A, C, H, D] T")
    size, schedule = case(A=4, C=3, H=64, D=64), pointwise.default("planes")
    offered = {p.name: p.choices for p in families.space(plan.with_table((TableRow((), schedule),)), 0, [size])}
    for name, value in (("ROW_TILES", 4), ("unroll", True), ("lines", "ahead"), ("LINES_AHEAD", 3)):
        assert value in offered[name]
        schedule = schedule.replace(**{name: value})
        assert families.legal(plan, schedule, size) is None
    said = families.legal(plan, schedule.replace(LINES_AHEAD=4), size)
    assert said == "lines asked for 4 rows early (LINES_AHEAD) in a walk of 4 (ROW_TILES)"


IMAGE = "x: [A, C, H, D] T"
SHARE = {
    "windows next to one another": ("return F.max_pool2d(x, 3, 1, 1)", IMAGE, "planes", (1, 2, 4)),
    "windows four apart, of which two are a block": ("return F.avg_pool1d(x, 5, 4, 2)", "x: [A, D] T", "lanes", (2,)),
    "windows that every row of a plane shares": (
        "return y + F.avg_pool1d(x, 3, 1, 1)[:, :, None]", "x: [A, C, D] T; y: [A, C, H, D] T", "planes", (1,),
    ),
    "no windows": ("return x.mT + y", f"{IMAGE}; y: [C, D, H] T", "planes", (1,)),
    "columns in pairs": ("return torch.stack((x, y), -1).flatten(-2) + z", f"{IMAGE}; y: [A, C, H, D] T; z: [A, C, 1, D * 2] T", "planes", (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARE)
def test_lanes_of_several_columns_share_what_they_read_or_are_illegal(name: str) -> None:
    """Whether they do is known of the values that they read, which a schedule alone does not show."""
    body, inputs, variant, lanes = SHARE[name]
    out = {"lanes": "[A, (D - 1) // 4 + 1]", "planes": "[A, C, H, D]"}[variant]
    out = {"no windows": "[A, C, D, H]", "columns in pairs": "[A, C, H, D * 2]"}.get(name, out)
    plan = plan_of(body, inputs, f"out: {out} T")
    assert variant in pointwise.variants(plan.body)
    size = case(A=4, C=3, H=64, D=4096)
    reasons = {
        lane: families.legal(plan, pointwise.default(variant).replace(lane_columns=lane), size)
        for lane in ((1, 2, 4) if variant == "planes" else (2, 4))
    }
    assert {lane for lane, reason in reasons.items() if reason is None} == set(lanes)
    said = {"2 columns a lane (lane_columns), which share nothing that is read", "4 columns a lane (lane_columns), which share nothing that is read"}  # fmt: skip
    assert {reason for reason in reasons.values() if reason} <= said
    assert all(families.legal(plan, row.schedule, size) is None for row in plan.table[-1:])


@pytest.mark.parametrize(("step", "most"), [(1, "M > 2**30 or N > 2**30"), (2, f"M > 2**30 or N > {2**28}")])
def test_places_that_lanes_read_are_numbers_of_32_bits(step: int, most: str) -> None:
    plan = plan_of(f"return F.max_pool1d(x, 3, {step}, 1)", "x: [A, D] T", f"out: [A, (D - 1) // {step} + 1] T")
    text = render.triton_source(plan.with_table((TableRow((), pointwise.default("lanes")),)))
    assert f"if {most}:" in text


LEGAL: dict[str, tuple[Schedule, int, str | None]] = {
    "few": (pointwise.default("flat").replace(BLOCK_SIZE=256, num_warps=8), 0, None),
    "many": (pointwise.default("flat").replace(BLOCK_SIZE=8192, num_warps=1), 0, "256 elements per thread"),
    "second axis": (pointwise.default("tile").replace(BLOCK_SIZE_N=512), 2**27, "more than the 65535 programs"),
    "first axis": (pointwise.default("tile").replace(BLOCK_SIZE_N=512, grid="1d"), 2**27, None),
    "row": (reduction.default("row").replace(num_warps=8), 32768, None),
    "long row": (reduction.default("row").replace(num_warps=32), 32769, "rows of 32769 do not fit in registers"),
    "idle lanes": (reduction.default("row").replace(num_warps=4), 100, "1 elements per thread"),
    "block": (reduction.default("looped"), 4096, "a block of 16384 for rows of 4096"),
    "no row": (reduction.default("row").replace(num_warps=1), 0, None),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_schedules(name: str) -> None:
    schedule, columns, reason = LEGAL[name]
    family = pointwise if schedule.variant in ("flat", "tile") else reduction
    found = family.FAMILY.legal(schedule, columns, 2)
    if name == "idle lanes":  # 128 lanes for 4 warps: exactly one element a thread
        assert found is None
        assert family.FAMILY.legal(schedule.replace(num_warps=8), columns, 2) is not None
    elif reason is None:
        assert found is None
    else:
        assert reason in str(found)


def test_parameters_that_would_change_nothing_are_left_out() -> None:
    def names(body: str, inputs: str = "x: [..., D] T") -> set[str]:
        plan = plan_of(body, inputs)
        return {p.name for p in families.space(plan, 0, ())}

    assert "late_loads" in names("return F.rms_norm(x, x.shape[-1:], w, 1e-5)", "x: [..., D] T; w: [D] T")
    assert "late_loads" not in names("return torch.softmax(x, -1)")
    assert "loads" not in names("return b.expand(x.shape).contiguous()", "x: [..., D] T like; b: [D] T")


def test_keys_are_the_bytes_of_a_row_or_of_the_tensor() -> None:
    soft, add = shipped("softmax"), plan_of("return x + y", "x: [..., D] T; y: [..., D] T")
    assert families.problem_of(soft, case(leading=(7, 3), D=1000))["row_bytes"] == 2000
    assert families.problem_of(soft, case("float32", leading=(), D=1000))["row_bytes"] == 4000
    assert families.problem_of(add, case("float32", leading=(7, 3), D=10))["row_bytes"] == 7 * 3 * 10 * 4
    assert families.rows(soft, case(leading=(7, 3), D=1000)) == 21


def test_rows_of_a_table() -> None:
    plan = shipped("softmax").with_table(
        (TableRow((("row_bytes", 4096),), reduction.default("row")), TableRow((), reduction.default("looped")))
    )
    assert [families.row_of(plan, case(leading=(2,), D=d)) for d in (1, 2048, 2049, 10**6)] == [0, 0, 1, 1]


def test_rows_of_a_table_by_several_sizes() -> None:
    row, looped = reduction.default("row"), reduction.default("looped")
    table = (table_row(looped, rows=8), table_row(row, row_bytes=4096, rows=64), table_row(looped))
    plan = shipped("softmax").with_table(table)
    found = {(8, 10**6): 0, (9, 2048): 1, (64, 2048): 1, (65, 2048): 2, (9, 2049): 2}
    assert {(m, d): families.row_of(plan, case(leading=(m,), D=d)) for m, d in found} == found


def test_a_limit_that_no_case_reaches_is_none() -> None:
    """Rows of 64 elements have at most 256 bytes: what is left of the limits of short rows is their number."""
    plan = plan_of("return torch.softmax(x, -1)", "x: [..., 64] T", "out: [..., 64] T")
    assert [dict(row.upto) for row in plan.table] == [{"rows": 512}, {}]


INDEPENDENT = {
    "pointwise": ("return x + b", "x: [A, D] T; b: [D] T", "out: [A, D] T", {"x": 0, "b": None, "out": 0}),
    "rows": ("return torch.softmax(x, -1)", "x: [..., D] T", "out: [..., D] T", {"x": 0, "out": 0}),
    "turned": ("return x.T + y", "x: [A, D] T; y: [D, A] T", "out: [D, A] T", {"x": 1, "y": 0, "out": 0}),
    "square": ("return x + x.T", "x: [A, A] T", "out: [A, A] T", {"x": None, "out": None}),
    "whole": ("return x.sum()", "x: [A, D] T", "out: [] T", {"x": None, "out": None}),
    "like": (
        "return b.expand(x.shape).contiguous()",
        "x: [..., D] T like; b: [D] T",
        "out: [..., D] T",
        {"x": 0, "b": None, "out": 0},
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_dimensions_along_which_results_are_independent(name: str) -> None:
    body, inputs, outputs, wanted = INDEPENDENT[name]
    assert families.independent_dims(plan_of(body, inputs, outputs)) == wanted


def test_a_search_sets_out_in_every_variant_that_has_a_legal_schedule() -> None:
    """Tiles of whole rows in float32 have room for fewer elements at once than in half precision."""
    spec = load_spec(SPECS["linear_softmax"])
    graph, notes = frontend.trace(spec)
    plan = families.lower(spec, graph, notes)
    half = next(case for case in spec.performance if dict(case.dtypes)["T"] == "float16")
    single = dataclasses.replace(half, dtypes=(("T", "float32"),))
    found = {dtype: families.variants(plan, (case,)) for dtype, case in (("half", half), ("single", single))}
    half_boxes, boxes = ([s for s in found[name] if s.variant == "boxes"] for name in ("half", "single"))
    assert boxes
    assert all(families.legal(plan, schedule, single) is None for schedule in boxes)
    assert all(families.legal(plan, schedule, single) is not None for schedule in half_boxes)

"""Strategies propose only what is legal and new, near things first, and split a table where it pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_fakes import CASES, COMPILER, START, legal, make_plan, row_of

from kernelgen.diagnose import Advice, Diagnosis
from kernelgen.plan import Plan, Schedule, TableRow, table_row
from kernelgen.search.dispatch import boundary
from kernelgen.search.explore import BATCH
from kernelgen.search.explore import START as START_POINTS
from kernelgen.spec.model import ON_REQUEST, STRATEGIES, Case
from kernelgen.strategies import Context, History, Observation, Tuning, strategies
from kernelgen.strategies.context import changes

ADVICE = tuple(Advice(s, 1.1, "because") for s in STRATEGIES)
WALKERS = ("grid_config", "block_size", "warp_stage", "memory_access", "data_reuse")


def context(plan: Plan | None = None, history: History | None = None, limit: int = 16) -> Context:
    diagnosis = Diagnosis("latency", CASES[0].label, (), 1.5, ADVICE)
    return Context(plan or make_plan(), CASES, diagnosis, history or History(), COMPILER, limit)


def seen(schedule: Schedule, *gains: float) -> History:
    return History(tuple(Observation(schedule, c.label, g) for c, g in zip(CASES, gains, strict=False)))


def joined(*histories: History) -> History:
    return History(tuple(o for h in histories for o in h.seen), tuple(f for h in histories for f in h.failed))


def test_every_module_is_found_by_its_name() -> None:
    assert set(strategies()) == {*STRATEGIES, *ON_REQUEST, "adopt"}


@pytest.mark.parametrize("name", WALKERS)
def test_proposals_are_legal_new_bounded_and_distinct(name: str) -> None:
    tried = joined(seen(START.replace(num_warps=8), 1, 1, 1), seen(START.replace(BLOCK_SIZE=512), 1, 1, 1))
    for limit in (1, 4, 16, 1000):
        here = context(history=tried, limit=limit)
        proposals = strategies()[name].propose(here)
        assert 0 < len(proposals) <= limit
        assert len({p.table for p in proposals}) == len(proposals)
        for proposal in proposals:
            schedule = proposal.table[0].schedule
            assert schedule not in (START, START.replace(num_warps=8), START.replace(BLOCK_SIZE=512))
            assert all(legal(here.plan, schedule, c) is None for c in CASES)
            assert 1 < proposal.predicted_gain <= 1.1
            assert proposal.what
            assert strategies()[name].explain(START, schedule).startswith(proposal.what)


@pytest.mark.parametrize("name", WALKERS)
def test_nothing_is_left_once_everything_was_seen(name: str) -> None:
    history = History()
    for _ in range(100):
        proposals = strategies()[name].propose(context(history=history))
        if not proposals:
            break
        history = joined(history, *(seen(p.table[0].schedule, 1, 1, 1) for p in proposals))
    assert proposals == ()


def test_a_failure_on_one_case_is_not_tried_again() -> None:
    bad = START.replace(EVICT="evict_first")
    history = History(failed=((bad, CASES[1].label),))
    proposals = strategies()["memory_access"].propose(context(history=history))
    assert [p.table[0].schedule["EVICT"] for p in proposals] == ["evict_last"]


def test_a_schedule_seen_on_some_cases_only_is_still_new() -> None:
    partly = seen(START.replace(EVICT="evict_first"), 1.0)
    assert len(strategies()["memory_access"].propose(context(history=partly))) == 2


def test_near_steps_come_first_and_promise_more() -> None:
    proposals = strategies()["block_size"].propose(context(limit=1000))
    assert [p.table[0].schedule["BLOCK_SIZE"] for p in proposals[:5]] == [128, 512, 1024, 2048, 4096]
    assert [p.predicted_gain for p in proposals[:2]] == [pytest.approx(1.1)] * 2
    singles = [changes(START, p.table[0].schedule).count("->") for p in proposals]
    assert singles == sorted(singles), "single changes before pairs"
    assert {p.table[0].schedule["num_warps"] for p in proposals} == {2, 4, 8}, "warps follow by one step"


def test_rows_take_turns_and_each_changes_only_itself() -> None:
    table = (TableRow((("row_bytes", 1 << 20),), START), TableRow((), START.replace(BLOCK_SIZE=1024)))
    plan = make_plan().with_table(table)
    proposals = strategies()["warp_stage"].propose(context(plan))
    assert [p.row for p in proposals[:4]] == [0, 1, 0, 1]
    for p in proposals:
        assert p.row is not None
        assert p.table[1 - p.row] == table[1 - p.row]


def test_a_row_that_no_case_can_judge_is_left_alone() -> None:
    plan = make_plan().with_table((TableRow((("row_bytes", 16),), START), TableRow((), START)))
    assert {p.row for p in strategies()["warp_stage"].propose(context(plan))} == {1}


def test_a_schedule_must_suit_the_largest_size_of_its_line() -> None:
    def strict(plan: Plan, schedule: Schedule, one: Case) -> str | None:
        size = one.size("N")
        assert isinstance(size, int)
        return "does not fit" if schedule["EVICT"] == "evict_first" and size > 1 << 28 else None

    def choices(plan: Plan) -> set[tuple[int | None, object]]:
        here = replace(context(plan, limit=1000), compiler=replace(COMPILER, legal=strict))
        proposals = strategies()["memory_access"].propose(here)
        return {(p.row, p.table[p.row or 0].schedule["EVICT"]) for p in proposals}

    assert choices(make_plan()) == {(0, "evict_last")}, "the last line serves any size"
    two = make_plan().with_table((TableRow((("row_bytes", 1 << 30),), START), TableRow((), START)))
    assert choices(two) == {(0, "evict_last"), (0, "evict_first")}


def test_no_schedule_serves_less_than_the_current_one_and_more_is_not_asked() -> None:
    def limited(plan: Plan, schedule: Schedule, one: Case) -> str | None:
        size = one.size("N")
        assert isinstance(size, int)
        return "too many programs" if size > 65535 * 64 * schedule.int("BLOCK_SIZE") else legal(plan, schedule, one)

    here = replace(context(limit=1000), compiler=replace(COMPILER, legal=limited))
    assert len(strategies()["warp_stage"].propose(here)) > 5, "its own limit does not keep a line from being changed"
    blocks = {p.table[0].schedule["BLOCK_SIZE"] for p in strategies()["block_size"].propose(here)}
    assert blocks == {512, 1024, 2048, 4096}, "smaller ones would serve less"


def test_grid_config_sets_out_from_every_variant_and_searches_around() -> None:
    current = START.replace(BLOCK_SIZE=1024, num_warps=16)
    proposals = strategies()["grid_config"].propose(context(make_plan().with_schedule(0, current)))
    schedules = [p.table[0].schedule for p in proposals]
    tiled = replace(START, variant="tiled")
    assert schedules[:2] == [START, tiled], "as the family starts them, the current variant too"
    assert [p.predicted_gain for p in proposals[:2]] == [pytest.approx(1.1)] * 2
    around = [{"BLOCK_SIZE": 128}, {"BLOCK_SIZE": 512}, {"num_stages": 2}, {"num_warps": 2}, {"num_warps": 8}]
    steps = {start.replace(**step) for start in (START, tiled) for step in around}
    assert set(schedules[2:]) == steps, "one step in block size, warps or stages"
    assert [s.variant for s in schedules[2:6]] == ["flat", "tiled", "flat", "tiled"], "the variants take turns"
    assert [p.predicted_gain for p in proposals[2:]] == [pytest.approx(1.05)] * (len(proposals) - 2)
    rest = everything("grid_config", context(make_plan().with_schedule(0, current)))
    assert rest == {START, tiled, *steps, replace(current, variant="tiled")}, "and with the current values"


def everything(name: str, here: Context) -> set[Schedule]:
    """What a search comes to that nothing ends."""
    found: set[Schedule] = set()
    going = strategies()[name].search(here)
    assert going is not None
    while proposals := going.propose(replace(here, history=joined(*(seen(s, 1, 1, 1) for s in found)))):
        found |= {p.table[p.row or 0].schedule for p in proposals}
    return found


def test_a_search_goes_on_from_what_was_measured_and_asks_for_nothing_twice() -> None:
    here, asked = context(), []
    going = strategies()["block_size"].search(here)
    assert going is not None
    while proposals := going.propose(replace(here, history=joined(*(seen(s, 1, 1, 1) for s in asked)))):
        assert len(proposals) <= (BATCH if asked else START_POINTS)
        asked += [p.table[0].schedule for p in proposals]
    assert len(asked) == len(set(asked))
    follow = {(s.int("BLOCK_SIZE"), s.int("num_warps")) for s in asked if s["num_stages"] == 1}
    assert (4096, 16) in follow, "warps follow as far as the blocks go"
    assert (512, 16) not in follow, "and no further"


def test_what_was_fastest_on_like_problems_comes_first() -> None:
    best = START.replace(BLOCK_SIZE=4096, num_warps=16, EVICT="evict_last")
    other = replace(START.replace(num_stages=4, REUSE=4), variant="tiled")

    def first(name: str) -> Schedule:
        here = replace(context(), tuning=Tuning(remembered=(best, other)))
        return strategies()[name].propose(here)[0].table[0].schedule

    assert first("block_size") == START.replace(BLOCK_SIZE=4096, num_warps=16), "as far as it is the strategy's"
    assert first("memory_access") == START.replace(EVICT="evict_last")
    assert first("grid_config") == other, "another variant is as it was"


SMALL, LARGE = START.replace(BLOCK_SIZE=64, num_warps=2), START.replace(BLOCK_SIZE=4096, num_warps=16)


def test_dynamic_shape_splits_where_one_schedule_loses() -> None:
    history = joined(seen(START, 1, 1, 1), seen(SMALL, 1.3, 1.1, 0.8), seen(LARGE, 0.7, 0.9, 1.4))
    best = strategies()["dynamic_shape"].propose(context(history=history))[0]
    assert [row.schedule for row in best.table] == [SMALL, LARGE]
    limit = best.table[0].limit("row_bytes")
    assert limit is not None
    plan = make_plan().with_table(best.table)
    assert [row_of(plan, c) for c in CASES] == [0, 0, 1]
    assert best.predicted_gain == pytest.approx((1.3 * 1.1 * 1.4) ** (1 / 3))
    assert best.row is None
    assert "64" in best.what


def test_dynamic_shape_asks_more_than_one_per_cent_of_a_line() -> None:
    dull = joined(seen(START, 1, 1, 1), seen(SMALL, 1.005, 0.9, 0.9), seen(LARGE, 0.9, 0.9, 1.003))
    assert strategies()["dynamic_shape"].propose(context(history=dull)) == ()
    worth = joined(dull, seen(LARGE, 0.9, 0.9, 1.03))
    assert len(strategies()["dynamic_shape"].propose(context(history=worth))[0].table) == 2


def test_dynamic_shape_joins_lines_when_one_schedule_is_as_fast() -> None:
    plan = make_plan().with_table((TableRow((("row_bytes", 1 << 20),), SMALL), TableRow((), LARGE)))
    history = joined(seen(SMALL, 1, 0.9, 0.9), seen(LARGE, 0.9, 1, 1), seen(START, 1.05, 1.05, 1.05))
    best = strategies()["dynamic_shape"].propose(context(plan, history))[0]
    assert best.table == (TableRow((), START),)


def test_dynamic_shape_leaves_lines_that_no_case_judges() -> None:
    low, high = START.replace(num_warps=1), START.replace(BLOCK_SIZE=2048)
    plan = make_plan().with_table(
        (TableRow((("row_bytes", 1024),), low), TableRow((("row_bytes", 1 << 30),), START), TableRow((), high))
    )
    history = joined(seen(START, 1, 1, 1), seen(SMALL, 1.3, 1.1, 0.8), seen(LARGE, 0.7, 0.9, 1.4))
    best = strategies()["dynamic_shape"].propose(context(plan, history))[0]
    assert [row.schedule for row in best.table] == [low, SMALL, LARGE, high]
    assert [row.limit("row_bytes") for row in best.table] == [1024, 1 << 26, 1 << 30, None]


def test_dynamic_shape_tells_few_rows_from_many() -> None:
    """Two cases with rows of one length: only the number of rows can tell them apart."""
    few, many = (Case((("B", b), ("N", 4096)), (("T", "float32"),), f"[{b}, 4096] float32") for b in (8, 16384))
    here = context(make_plan(cases=(few, many)))
    history = History(
        tuple(
            Observation(schedule, one.label, gain)
            for schedule, gains in ((START, (1, 1)), (SMALL, (1.4, 0.7)), (LARGE, (0.8, 1.2)))
            for one, gain in zip((few, many), gains, strict=True)
        )
    )
    best = strategies()["dynamic_shape"].propose(replace(here, cases=(few, many), history=history))[0]
    assert [row.schedule for row in best.table] == [SMALL, LARGE]
    assert [name for name, _ in best.table[0].upto] == ["rows"]
    assert best.table[1].upto == ()
    assert "up to" in best.what
    assert "rows" in best.what


def test_dynamic_shape_cuts_one_line_by_another_size() -> None:
    """Lines for lengths stay as they are; the last one is cut by the rows and keeps its limit."""
    cases = [
        Case((("B", b), ("N", n)), (("T", "float32"),), f"[{b}, {n}] float32")
        for b, n in ((8, 64), (8, 4096), (16384, 4096), (4096, 1 << 20))
    ]
    low, high = START.replace(num_warps=1), START.replace(BLOCK_SIZE=2048)
    table = (table_row(low, row_bytes=1024), table_row(START, row_bytes=65536), table_row(high))
    plan = make_plan(cases=tuple(cases)).with_table(table)
    wins = {low: (1, 0.5, 0.5, 0.5), START: (0.5, 1, 1, 0.5), SMALL: (0.5, 1.4, 0.8, 0.5), high: (0.5, 0.5, 0.5, 1)}
    seen_there = History(
        tuple(Observation(s, c.label, gain) for s, g in wins.items() for c, gain in zip(cases, g, strict=True))
    )
    here = replace(context(plan), cases=tuple(cases), history=seen_there)
    tables = [p.table for p in strategies()["dynamic_shape"].propose(here)]
    cut = table_row(SMALL, row_bytes=65536, rows=tables[0][1].limit("rows"))
    assert tables[0] == (table[0], cut, table[1], table[2])
    assert 8 <= (cut.limit("rows") or 0) < 16384


def test_dynamic_shape_uses_no_schedule_that_failed_or_is_unknown_there() -> None:
    history = joined(
        seen(START, 1, 1, 1), seen(SMALL, 1.5), History(failed=((SMALL, CASES[1].label),)), seen(LARGE, 0.5, 0.5)
    )
    for proposal in strategies()["dynamic_shape"].propose(context(history=history)):
        plan = make_plan().with_table(proposal.table)
        served = {c.label: proposal.table[row_of(plan, c)].schedule for c in CASES}
        assert served[CASES[1].label] != SMALL
        assert served[CASES[2].label] == START


def test_dynamic_shape_has_nothing_to_say_without_history() -> None:
    assert strategies()["dynamic_shape"].propose(context(history=seen(START, 1, 1, 1))) == ()


@pytest.mark.parametrize(("below", "above"), [(1, 2), (1000, 1001), (4096, 8192), (1 << 20, 1 << 26), (3, 1 << 40)])
def test_a_boundary_lies_between(below: int, above: int) -> None:
    assert below <= boundary(below, above) < above


def test_a_boundary_is_a_round_number_where_it_can_be() -> None:
    assert boundary(1000 * 1000, 4000 * 1000) == 1 << 21
    assert boundary(1 << 18, 1 << 24) == 1 << 21


def test_explanations_say_what_a_change_does() -> None:
    explain = strategies()["block_size"].explain
    assert "fewer programs" in explain(START, START.replace(BLOCK_SIZE=1024))
    assert "more programs" in explain(START, START.replace(BLOCK_SIZE=128))
    assert "fewer warps" in strategies()["warp_stage"].explain(START, START.replace(num_warps=1))
    assert "variant flat -> tiled" in strategies()["grid_config"].explain(START, replace(START, variant="tiled"))

"""The loop: what is kept, what is reverted, when it stops, and what the log says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_fakes import CASES, COMPILER, START, FakeEvaluator, make_plan, run, source, table_of, write_kernel

from kernelgen import generation, journal, log
from kernelgen.analysis import Work
from kernelgen.devices.facts import H200
from kernelgen.diagnose import Advice, Seen
from kernelgen.errors import HandEditedError, StaleError
from kernelgen.evaluate import Candidate
from kernelgen.journal import LockedError
from kernelgen.optimization import Interrupted, RoundResult, RunResult, Silent
from kernelgen.optimization.decide import MARGIN, all_reached, decide, overall, show, targets
from kernelgen.optimization.rounds import Choice, most_promising, promise
from kernelgen.outcomes import (
    AccuracyResult,
    CaseTiming,
    Counters,
    Evaluation,
    Interval,
    Status,
    evaluation_from_json,
    to_json,
)  # fmt: skip
from kernelgen.plan import Plan, Schedule, TableRow
from kernelgen.search.explore import BATCH
from kernelgen.spec.model import STRATEGIES, Case, Target
from kernelgen.strategies import Proposal

Twist = Callable[[str, Candidate, Evaluation], Evaluation]


def timing(low: float, estimate: float, high: float, case: str = "a") -> CaseTiming:
    return CaseTiming(case, "measured", 1.0, "current", estimate, estimate, Interval(estimate, low, high))


def predicted(speedup: float, case: str = "a") -> CaseTiming:
    return CaseTiming(case, "predicted", 1.0, "current", speedup, speedup, None)


@pytest.mark.parametrize(
    ("timings", "keep"),
    [
        ([timing(1.02, 1.03, 1.04)], True),
        ([timing(0.99, 1.03, 1.07)], False),  # straddles 1
        ([timing(1.0, 1.01, 1.02)], False),
        ([timing(0.99, 1.03, 1.07), timing(1.02, 1.05, 1.08)], True),  # together beyond doubt
        ([timing(1.20, 1.25, 1.30), timing(0.96, 0.97, 0.98)], False),  # one case is slower
        ([timing(1.20, 1.25, 1.30), timing(0.97, 0.985, 0.999)], True),  # by less than the margin: undecided
        ([predicted(1.02)], True),
        ([predicted(1.009)], False),
        ([predicted(1.2), predicted(0.98)], False),
        ([], False),
    ],
)
def test_only_what_is_faster_beyond_doubt_is_kept(timings: list[CaseTiming], keep: bool) -> None:
    decision = decide(tuple(timings))
    assert decision.keep is keep
    assert decision.why


def test_a_time_that_physics_forbids_is_never_kept() -> None:
    fast = replace(timing(1.9, 2.0, 2.1), time_us=4.0, floor_us=10.0)
    decision = decide((fast,))
    assert not decision.keep
    assert "4.00 µs is impossible: its bytes and operations need 10.00 µs" in decision.why
    assert decide((replace(fast, time_us=6.0),)).keep
    assert decide((replace(fast, source="predicted", interval=None),)).keep


def test_the_interval_of_a_mean_is_narrower_than_of_its_parts() -> None:
    one = overall((timing(0.9, 1.0, 1 / 0.9),))
    four = overall(tuple(timing(0.9, 1.0, 1 / 0.9, str(i)) for i in range(4)))
    assert one
    assert four
    assert one.low == pytest.approx(0.9)
    assert four.low == pytest.approx(0.9**0.5)
    assert show(overall((predicted(1.5),))) == "1.500x"
    assert overall(()) is None


def test_a_target_is_reached_by_the_lower_bound() -> None:
    eager = (timing(0.99, 1.01, 1.03),)
    assert targets(Target(1.0), eager, (), H200)[0].state == "missed"
    assert targets(Target(0.98), eager, (), H200)[0].state == "reached"
    assert targets(Target(1.0), (), (), H200)[0].state == "unknown", "what was not timed is neither"


def test_a_target_that_nothing_was_seen_of_is_unknown_and_not_reached() -> None:
    eager, aim = (timing(1.0, 1.01, 1.02),), Target(1.0, 0.1, 0.5)

    def states(counters: Counters | None, l2_read: bool = True) -> list[str]:
        seen = (Seen(timing(1.0, 1.01, 1.02), Work(1 << 20, 1 << 20, 0), (), counters),)
        return [one.state for one in targets(aim, eager, seen, H200, l2_read)]

    assert states(Counters("ncu", l2_hit=0.6)) == ["reached"] * 3
    assert states(Counters("ncu", l2_hit=0.4)) == ["reached", "reached", "missed"]
    assert states(None) == ["reached", "reached", "unknown"], "not read of this kernel yet"
    assert states(None, l2_read=False) == ["reached", "reached"], "asked for only where counters can be read"
    assert [one.state for one in targets(aim, eager, (), H200)] == ["reached", "unknown", "unknown"]
    assert all_reached(targets(aim, eager, (), H200)) is False
    assert all_reached(()) is False


def folder(root: Path) -> Path:
    return root / "operators" / "toy"


def one_variant() -> Plan:
    """A plan that no round switches to the variant which is slower everywhere: its first round finds something."""
    return make_plan(strategies=tuple(s for s in STRATEGIES if s != "grid_config"))


def log_of(root: Path) -> str:
    return (folder(root) / "optimization_log.md").read_text()


def begin(root: Path, twist: Twist | None = None, measures: bool = True, **changes: object) -> RunResult:
    write_kernel(root, make_plan())
    evaluator = FakeEvaluator(measures=measures)
    if twist:
        evaluator.twist = twist
    return run(root, evaluator, **changes)


def test_a_run_makes_the_kernel_faster_and_touches_only_its_file(tmp_path: Path) -> None:
    others = folder(tmp_path) / "toy_baseline.py"
    write_kernel(tmp_path, make_plan())
    others.write_text("# baseline\n")
    result = begin(tmp_path)
    assert result.start_speedup
    assert result.speedup
    assert result.speedup.low > result.start_speedup.high
    assert [r.number for r in result.rounds] == list(range(len(result.rounds)))
    assert result.reached
    assert others.read_text() == "# baseline\n"
    assert sorted(p.name for p in folder(tmp_path).iterdir()) == [
        "generated.json", "optimization_log.md", "toy_baseline.py", "toy_triton.py",
    ]  # fmt: skip
    text = (folder(tmp_path) / "toy_triton.py").read_text()
    assert text != source(make_plan())
    last = [r for r in journal.read(result.folder) if r.kind == "round"][-1]
    assert journal.source_hash(text) == last.data["hash"]


def sections_of(root: Path) -> list[str]:
    """The log's sections, the start first and the end of the run last."""
    return re.split(r"^## toy · ", log_of(root), flags=re.MULTILINE)[1:]


def head_of(root: Path) -> str:
    """What stands between the head's markers."""
    first, last = log.head_markers("toy")
    return log_of(root).split(first, 1)[1].split(last, 1)[0]


def test_the_log_has_every_field_in_every_round(tmp_path: Path) -> None:
    result = begin(tmp_path)
    sections = sections_of(tmp_path)
    assert len(sections) == len(result.rounds) + 1
    for field in ("- **Machine:** NVIDIA H200, arch sm_90, driver 570.1,", ", torch ", ", triton ", "- **Shapes:** ",
                  "- **Target:** 1.00x over eager; targets met", "2.000x [1.995, 2.005] over eager"):  # fmt: skip
        assert field in sections[0], field
    profiles = 0
    for section in sections[1:-1]:
        for field in (" · v1.", "- **Problem:** ", "- **Idea:** ", "Searched: ", "- **Expected:** at most +",
                      "<details><summary>", "\nNext: ", f"spec {'ab' * 8} · toy_triton.py "):  # fmt: skip
            assert field in section, field
        profiled = "| bandwidth utilisation |" in section
        profiles += profiled
        assert profiled != ("; profile as in round " in section), "a profile that did not change is not repeated"
        for figure in ("| L2 hit rate | 60 % | ncu |", "| occupancy limit |", "| core (SM) utilisation | 30 % | ncu |"):
            assert section.count(figure) == profiled, f"{figure} stands there once"
        assert ("**Kept:**" in section) != ("**No change:**" in section)
    assert profiles == 1 + sum(r.kept for r in result.rounds[1:-1]), "one for each kernel that a round looked at"
    for kept in [s for s in sections[1:-1] if "**Kept:**" in s]:
        assert "```diff\n--- toy_triton.py" in kept
        assert "- **Change:** " in kept
        assert "performance parameters: only `toy_triton.py` changes" in kept
        assert re.search(r"^\*\*Kept:\*\* .*\d\.\d{3}x \[.* over the previous kernel", kept, re.M)
        assert re.search(r"^- \*\*Result:\*\* \d\.\d{3}x \[.*\] over eager.* targets met$", kept, re.M)


def test_the_head_answers_at_once_and_follows_every_round(tmp_path: Path) -> None:
    heads: list[str] = []

    class Reader(Silent):
        def round_ended(self, result: RoundResult) -> None:
            heads.append(head_of(tmp_path))

    write_kernel(tmp_path, make_plan())
    result = run(tmp_path, reporter=Reader())
    assert len(heads) == len(result.rounds)
    for number, head in enumerate(heads):
        assert head.count("\n| ") > number
        assert f"\n| {number} | " in head
        assert f"\n| {number + 1} | " not in head
    last = head_of(tmp_path)
    kept = sum(r.kept for r in result.rounds[1:])
    assert re.match(
        rf"# toy: v1\.{kept}, \d\.\d{{3}}x \[.*\] over eager, .* of roofline \(measured\) · targets met\n", last
    )
    assert str(result.speedup) in last.splitlines()[0]
    assert "Ended: finished 5 rounds. Next: " in last
    for one in result.rounds[1:]:
        row = next(line for line in last.splitlines() if line.startswith(f"| {one.number} | {one.strategy} | "))
        assert row.endswith("| kept |" if one.kept else "| no change |")
    (titles,) = [line for line in last.splitlines() if line.startswith("| cases | parameter |")]
    assert titles.count("|") == 4 + kept
    final = table_of((folder(tmp_path) / "toy_triton.py").read_text())
    blocks = [line.split(" | ")[-1] for line in last.splitlines() if " | BLOCK_SIZE | " in line]
    assert blocks == [f"{row.schedule['BLOCK_SIZE']} |" for row in final]


def test_a_head_goes_above_a_log_without_one_and_changes_nothing_below(tmp_path: Path) -> None:
    write_kernel(tmp_path, make_plan())
    path = folder(tmp_path) / "optimization_log.md"
    old = "# Optimization log\r\n\n## toy · round 1\n\n\udcff a byte that is no UTF-8\n"
    path.write_bytes(old.encode("utf-8", "surrogateescape"))
    run(tmp_path, rounds=1)
    assert path.read_bytes().startswith(log.head_markers("toy")[0].encode())
    assert old.encode("utf-8", "surrogateescape") in path.read_bytes()


def test_what_failed_is_said_with_what_was_measured(tmp_path: Path) -> None:
    def heavy(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        facts = FakeEvaluator().facts(candidate, CASES)
        worse = tuple((label, replace(one, registers=128, occupancy=0.25)) for label, one in facts)
        slower = all_timings(0.90, 0.91, 0.92)(evaluation)
        return replace(slower, facts=worse) if at == "search" else evaluation

    begin(tmp_path, heavy, rounds=1)
    assert re.search(r"^- \*\*Failed:\*\* .*: 0\.910x, at worst 0\.910x on \[\d+\] float32: occupancy limit 75 %"
                     r" -> 25 %, registers 32 -> 128$", log_of(tmp_path), re.M)  # fmt: skip


def test_without_a_gpu_everything_is_predicted_and_nothing_measured(tmp_path: Path) -> None:
    result = begin(tmp_path, measures=False)
    assert result.source == "predicted"
    assert result.speedup is None
    assert any(r.kept for r in result.rounds[1:])
    text = log_of(tmp_path)
    assert "measured" not in text.replace("not measured", "")
    for line in text.splitlines():
        if "µs" in line and line.startswith("| time"):
            assert "predicted" in line
    assert "| case | eager µs | kernel µs (predicted) | speedup | predicted |" in text
    assert "| case | previous µs (predicted) | new µs (predicted) | speedup (predicted) | predicted |" in text
    for repeated in ("DRAM throughput", "achieved occupancy"):
        assert repeated not in text, "where no counter was read they are the bandwidth and the occupancy's limit"


def test_a_speedup_that_nobody_could_time_is_unknown_and_stops_nothing(tmp_path: Path) -> None:
    write_kernel(tmp_path, make_plan())
    plan = make_plan(target=Target(speedup=0.1, bandwidth=0.01))
    result = run(tmp_path, FakeEvaluator(measures=False), plan, rounds=2, stop_at_target=True)
    assert result.reason == "finished 2 rounds"
    assert [one.state for one in result.targets] == ["unknown", "reached"]
    assert not result.reached
    assert to_json(result.targets)[0] == {
        "target": "speedup over eager: not measured, target >= 0.10x", "state": "unknown",
    }  # fmt: skip
    head = head_of(tmp_path)
    assert "1 of 2 targets met (predicted), the rest not measured" in head.splitlines()[0]
    assert "| speedup over eager: not measured, target >= 0.10x | not measured |" in head
    assert re.search(r"\| bandwidth: \d+ % of peak, target >= 1 % \| ✓ \(predicted\) \|", head)


def test_a_log_counts_one_number_of_targets_where_no_counter_can_be_read(tmp_path: Path) -> None:
    """Nothing but a GPU's counters tells how often the L2 hits: without a GPU that is known before the first round."""
    write_kernel(tmp_path, make_plan())
    plan = make_plan(target=Target(speedup=0.1, bandwidth=0.01, l2_hit=0.5))
    run(tmp_path, FakeEvaluator(measures=False), plan, rounds=2)
    assert set(re.findall(r"\d of \d targets", log_of(tmp_path))) == {"1 of 2 targets"}


def test_the_l2_target_counts_once_it_is_read_of_the_kernel(tmp_path: Path) -> None:
    def play(root: Path, least: float) -> RunResult:
        write_kernel(root, make_plan())
        plan = make_plan(target=Target(speedup=0.1, l2_hit=least))
        return run(root, FakeEvaluator(), plan, rounds=50, stop_at_target=True)

    met = play(tmp_path / "met", 0.5)
    assert met.reason == "the targets are met"
    assert len(met.rounds) > 1, "not before a round had the counters read"
    assert not met.rounds[-1].kept, "of the kernel that is current"
    assert play(tmp_path / "missed", 0.7).reason == "no untried candidate is predicted to gain more than 1 %"


def planted(step: str, change: Callable[[Evaluation], Evaluation]) -> Twist:
    """Says something else of every candidate at one step of the rounds."""

    def twist(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        return change(evaluation) if at == step and table_of(candidate.source) != make_plan().table else evaluation

    return twist


def all_timings(low: float, estimate: float, high: float) -> Callable[[Evaluation], Evaluation]:
    def change(evaluation: Evaluation) -> Evaluation:
        timings = [
            replace(t, speedup=estimate, interval=Interval(estimate, low, high)) if t.against == "current" else t
            for t in evaluation.timings
        ]
        return replace(evaluation, timings=tuple(timings))

    return change


WRONG = AccuracyResult("[1000] float32", False, "3 of 1000 elements differ", 1.0, 0.0)

REVERTED: dict[str, tuple[Twist, str]] = {
    "straddles": (planted("final", all_timings(0.90, 1.02, 1.12)), "the 95 % interval reaches down to 0.9"),
    "slower": (planted("final", all_timings(0.90, 0.91, 0.92)), "slower for"),
    "crash at the end": (
        planted("final", lambda e: Evaluation(e.source_hash, Status.CRASHED, "illegal address")),
        "the winner failed when it ran again: crashed: illegal address",
    ),
    "wrong": (
        planted("verify", lambda e: replace(e, status=Status.INCORRECT, message="[1000]: differs", accuracy=(WRONG,))),
        "the winner is not right: [1000]: differs",
    ),
    "no performance": (
        planted("baselines", lambda e: replace(e, status=Status.OUT_OF_MEMORY, message="8 GiB", timings=())),
        "the performance test failed: out_of_memory: 8 GiB",
    ),
    "nothing compiles": (
        planted("search", lambda e: Evaluation(e.source_hash, Status.COMPILE_ERROR, "ptxas | refused")),
        "no candidate worked",
    ),
    "nothing faster": (planted("search", all_timings(0.99, 0.995, 1.0)), "no candidate was faster"),
    "raced out": (planted("search", lambda e: replace(e, timings=e.timings[:-1])), "no candidate was faster"),
}


@pytest.mark.parametrize("name", REVERTED)
def test_what_cannot_be_kept_is_reverted_and_logged(tmp_path: Path, name: str) -> None:
    twist, why = REVERTED[name]
    result = begin(tmp_path, twist, rounds=3)
    assert len(result.rounds) > 1
    assert not any(r.kept for r in result.rounds[1:])
    assert (folder(tmp_path) / "toy_triton.py").read_text() == source(make_plan())
    text = log_of(tmp_path)
    assert text.count("**No change:**") == len(result.rounds) - 1
    assert why in text
    strategies = [r.strategy for r in result.rounds[1:]]
    assert len(set(strategies)) == len(strategies), "no strategy twice on the same kernel"


def test_a_failed_candidate_does_not_end_the_search(tmp_path: Path) -> None:
    def twist(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        if at == "search" and int(candidate.source_hash[-1], 16) % 2:
            return Evaluation(candidate.source_hash, Status.TIMEOUT, "60 s")
        return evaluation

    result = begin(tmp_path, twist)
    assert any(r.kept for r in result.rounds[1:])
    assert "timeout: 60 s" in log_of(tmp_path)


def test_the_winner_is_compared_afresh_before_it_is_verified(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    write_kernel(tmp_path, make_plan())
    run(tmp_path, evaluator, one_variant(), rounds=1)
    steps = [step for step, _ in evaluator.calls if step != "search"]
    assert steps == ["verify", "baselines", "profile", "final", "verify", "baselines"]
    winner = evaluator.calls[-1][1]
    assert evaluator.calls[-3:] == [("final", winner), ("verify", winner), ("baselines", winner)]


def test_a_row_that_got_slower_does_not_cost_the_others_their_gain(tmp_path: Path) -> None:
    table = (replace(make_plan().table[0], upto=(("row_bytes", 1 << 22),)), make_plan().table[0])
    plan = one_variant().with_table(table)

    def twist(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        if at != "final":
            return evaluation
        small = [t for t in evaluation.timings if t.case == CASES[0].label]
        slow = [replace(t, speedup=0.9, interval=Interval(0.9, 0.89, 0.91)) for t in small]
        return replace(evaluation, timings=(*slow, *(t for t in evaluation.timings if t not in small)))

    write_kernel(tmp_path, plan)
    result = run(tmp_path, FakeEvaluator(twist=twist), plan, rounds=1)
    assert result.rounds[1].kept
    after = table_of((folder(tmp_path) / "toy_triton.py").read_text())
    assert after[0].schedule == START
    assert after[1].schedule != START


def test_a_round_ends_where_a_batch_gains_nothing_and_says_why_the_rest_was_left_out(tmp_path: Path) -> None:
    def nothing(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        return all_timings(0.97, 0.98, 0.99)(evaluation) if at == "search" else evaluation

    write_kernel(tmp_path, make_plan())
    strict = replace(COMPILER, legal=lambda plan, schedule, one: "too far" if grown(one, schedule) else None)
    result = run(tmp_path, FakeEvaluator(twist=nothing), one_variant(), rounds=1, compiler=strict)
    records = journal.read(result.folder)
    measured = [r for r in records if r.kind == "candidate"]
    assert 12 <= len(measured) <= 12 + BATCH, "the nearest ones and a batch"
    (space,) = (r.data["rows"] for r in records if r.kind == "space")
    assert space[0]["legal"] > len(measured)
    (pruned,) = (r.data["rows"] for r in records if r.kind == "pruned")
    assert pruned
    assert all(one["what"].startswith("flat(") and "too far" in one["reason"] for one in pruned)


def grown(one: Case, schedule: Schedule) -> bool:
    """Small blocks do not serve what is larger than any case."""
    return "grown" in one.label and schedule["BLOCK_SIZE"] == 128


def test_it_stops_at_the_target_when_asked(tmp_path: Path) -> None:
    assert begin(tmp_path, stop_at_target=True).reason == "the targets are met"
    assert begin(tmp_path, stop_at_target=False, rounds=1).reason == "finished 1 round"


def test_it_starts_no_round_after_the_time_cap(tmp_path: Path) -> None:
    result = begin(tmp_path, max_minutes=1e-9)
    assert [r.number for r in result.rounds] == [0]
    assert "time cap" in result.reason


def test_it_stops_where_nothing_is_left_to_win(tmp_path: Path) -> None:
    result = begin(tmp_path, rounds=50)
    assert result.reason == "no untried candidate is predicted to gain more than 1 %"
    assert result.reason[1:] in log_of(tmp_path)


def test_a_wrong_start_is_not_optimised(tmp_path: Path) -> None:
    def wrong(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, status=Status.INCORRECT, message="differs") if at == "verify" else evaluation

    result = begin(tmp_path, wrong)
    assert not result.works
    assert "does not work: incorrect: differs" in result.reason
    assert [r.number for r in result.rounds] == [0]


def left_out(*labels: str) -> Twist:
    """The device has no memory for some cases."""

    def twist(at: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        timings = tuple(t for t in evaluation.timings if t.case not in labels)
        return replace(evaluation, timings=timings, left_out=tuple((label, "needs 300 GiB") for label in labels))

    return twist


def test_a_case_that_does_not_fit_is_named_and_left_out(tmp_path: Path) -> None:
    result = begin(tmp_path, left_out(CASES[2].label))
    assert any(r.kept for r in result.rounds[1:])
    assert f"- **Left out:** {CASES[2].label}: needs 300 GiB" in log_of(tmp_path)
    tried = [r.data["cases"] for r in journal.read(result.folder) if r.kind == "candidate"]
    assert tried
    assert all(CASES[2].label not in cases for cases in tried)


def test_where_no_case_fits_it_says_so_and_ends(tmp_path: Path) -> None:
    result = begin(tmp_path, left_out(*(c.label for c in CASES)))
    assert result.works
    assert result.reason == f"no performance case could be compared ({CASES[0].label}: needs 300 GiB)"


def test_the_next_run_starts_from_what_the_last_one_kept(tmp_path: Path) -> None:
    first = begin(tmp_path, plan=one_variant(), rounds=1)
    assert first.rounds[1].kept
    before = (folder(tmp_path) / "toy_triton.py").read_text()
    second = run(tmp_path, plan=one_variant(), rounds=1)
    assert second.folder != first.folder
    assert not second.resumed
    assert second.start_speedup == first.speedup
    start = next(r for r in journal.read(second.folder) if r.kind == "run")
    assert start.data["hash"] == journal.source_hash(before)
    assert "baseline · v2.0" in log_of(tmp_path)


def test_a_kernel_changed_by_hand_is_refused_unless_forced(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, make_plan())
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(HandEditedError, match="was changed by hand"):
        run(tmp_path, plan=one_variant(), rounds=1)
    assert path.read_text().endswith("# mine\n")
    assert list((tmp_path / "logs").glob("*/*/journal.jsonl")) == []
    assert run(tmp_path, plan=one_variant(), rounds=1, force=True).rounds[1].kept
    assert "# mine" not in path.read_text()


def test_a_kernel_of_another_generator_is_stale(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, make_plan())
    path.write_text("# printed by an older template\n" + path.read_text())
    generation.record(make_plan(), path.parent)
    with pytest.raises(StaleError, match="no longer matches its spec; run `kernelgen new toy` first"):
        run(tmp_path, rounds=1)


def test_a_second_optimize_is_told_that_the_first_runs(tmp_path: Path) -> None:
    write_kernel(tmp_path, make_plan())
    with journal.locked(tmp_path / "logs" / "toy"), pytest.raises(LockedError, match="pid"):
        run(tmp_path)


@pytest.mark.parametrize(("at", "nth"), [("search", 3), ("final", 1), ("verify", 2), ("baselines", 2)])
def test_ctrl_c_ends_cleanly_and_the_next_call_goes_on(tmp_path: Path, at: str, nth: int) -> None:
    calls = 0

    def interrupt(step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        nonlocal calls
        calls += step == at
        if step == at and calls == nth:
            raise KeyboardInterrupt
        return evaluation

    with pytest.raises(Interrupted) as caught:
        begin(tmp_path, interrupt)
    assert caught.value.exit_code == 130
    stopped = caught.value.result
    assert journal.read(stopped.folder)[-1].kind == "interrupted"
    evaluator = FakeEvaluator()
    result = run(tmp_path, evaluator)
    assert result.resumed
    assert result.folder == stopped.folder
    assert result.rounds[: len(stopped.rounds)] == stopped.rounds
    done = [(r.data["round"], r.data["hash"]) for r in journal.read(result.folder) if r.kind == "candidate"]
    assert len(set(done)) == len(done), "no candidate of a round is evaluated twice"


def test_figures_of_cases_that_a_round_leaves_alone_are_taken_over(tmp_path: Path) -> None:
    """PyTorch is timed again for the cases whose kernel changed; every version has figures of all cases, in order."""
    asked: list[set[str]] = []

    def listening(step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        if step == "baselines":
            asked.append({t.case for t in evaluation.timings})
        return evaluation

    plan = make_plan().with_table((TableRow((("row_bytes", 2**22),), START), TableRow((), START)))
    result = run(tmp_path, FakeEvaluator(twist=listening), plan=plan, rounds=5)
    kept = [r.data for r in journal.read(result.folder) if r.kind == "round" and r.data["kept"]]
    labels = [case.label for case in CASES]
    assert [set(data["gains"]) for data in kept[1:]] == asked[1:]
    assert asked[0] == set(labels)
    assert any(len(one) < len(labels) for one in asked), "no round left a case alone"
    for data in kept:
        timings = evaluation_from_json(data["figures"]).timings
        assert [t.case for t in timings] == [label for label in labels for _ in ("eager", "compile")]
        assert {t.against for t in timings} == {"eager", "compile"}


@given(
    st.lists(st.lists(st.tuples(st.floats(0.9, 1.5), st.booleans()), max_size=8), max_size=6),
)
def test_a_strategy_is_chosen_as_if_all_of_its_kernels_were_printed(drawn: list[list[tuple[float, bool]]]) -> None:
    """The first of those whose fresh proposals promise the most, with no more printed than could be chosen."""
    strategies = [
        [Proposal((), number, "what", f"{is_fresh}", gain) for number, (gain, is_fresh) in enumerate(one)]
        for one in drawn
    ]
    made = [
        (Advice(str(i), max((p.predicted_gain for p in one), default=1.0), ""), tuple(one))
        for i, one in enumerate(strategies)
    ]
    printed: list[str] = []

    def fresh(choice: Choice) -> Choice:
        printed.append(choice[0].strategy)
        left = tuple(p for p in choice[1] if p.reason == "True")
        return replace(choice[0], gain=max((p.predicted_gain for p in left), default=1.0)), left

    whole = [choice for choice in map(fresh, made) if choice[0].gain > 1 + MARGIN]
    printed.clear()
    assert most_promising(made, fresh) == max(whole, key=promise, default=None)
    assert len(printed) == len(set(printed))
    if len(whole) == len(made) > 0 and all(p.reason == "True" for one in strategies for p in one):
        assert len(printed) == sum(promise(c) == max(map(promise, made)) for c in made)

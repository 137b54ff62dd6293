"""Schedules as a space, their short forms, and the search of rounds that the strategy `tune` plays, on a fake device."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import kernelgen, refused
from rounds_fakes import CASES, COMPILER, START, FakeEvaluator, make_plan, microseconds, row_of, run
from rounds_fakes import legal as is_legal

from kernelgen import families, generation
from kernelgen.cli.sets import cases_of
from kernelgen.diagnose import Advice, Diagnosis
from kernelgen.errors import UsageError
from kernelgen.evaluate import Candidate
from kernelgen.journal import read
from kernelgen.optimization.bench import families_compiler
from kernelgen.optimization.state import table_from_json
from kernelgen.outcomes import Evaluation, Status
from kernelgen.plan import Parameter, Plan, Schedule
from kernelgen.search import recorded
from kernelgen.search.explore import BATCH
from kernelgen.spec import find_spec, load_spec
from kernelgen.strategies import Compiler, Context, History, Tuning
from kernelgen.strategies.short import ladder, parse, restriction, short
from kernelgen.strategies.space import Axes, axes_of, meets, space_of, unread
from kernelgen.strategies.tune import check, search

PARAMETERS = (
    Parameter("BLOCK_M", (16, 32, 64), "block_size", "constexpr", "rows"),
    Parameter("BLOCK_N", (16, 32), "block_size", "constexpr", "columns"),
    Parameter("num_warps", (2, 4), "warp_stage", "launch", "warps"),
    Parameter("loads", ("default", "evict_first"), "memory_access", "structure", "caches"),
    Parameter("swap", (False, True), "data_reuse", "structure", "transposed"),
)
TILES = Axes(Schedule.make("tiles", BLOCK_M=32, BLOCK_N=16, num_warps=4, loads="default", swap=False), PARAMETERS)
AXES = {"tiles": TILES, "row": Axes(Schedule.make("row", num_warps=2), PARAMETERS[2:3])}


def context(plan: Plan | None = None, configs: str = "tune", compiler: Compiler = COMPILER) -> Context:
    diagnosis = Diagnosis("latency", CASES[0].label, (), 1.5, (Advice("tune", 1.2, "because"),))
    return Context(plan or make_plan(), CASES, diagnosis, History(), compiler, 24, tuning=Tuning(configs))


def test_every_legal_schedule_is_enumerated_once_and_every_other_has_a_reason() -> None:
    space = space_of(COMPILER, make_plan(), 0, CASES)
    found = space.schedules
    assert len(set(found)) == len(found)
    assert all(is_legal(make_plan(), s, CASES[0]) is None for s in found)
    assert found[space.starts[0]] == START
    whole = 2 * 7 * 3 * 3 * 4 * 5
    assert len(found) + sum(count for _, count in space.pruned) == whole
    assert dict(space.pruned).keys() == {"fewer elements than threads"}
    assert not space.sampled


def test_of_more_than_are_kept_a_sample_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelgen.strategies.space.MOST", 100)
    space = space_of(COMPILER, make_plan(), 0, CASES)
    assert len(space.schedules) == 100
    assert space.sampled
    assert space.schedules[space.starts[0]] == START


KERNEL = """
import triton
@triton.jit
def toy_kernel(x_ptr, BLOCK_SIZE: tl.constexpr, REUSE: tl.constexpr):
    {}
"""


def test_values_that_no_kernel_reads_are_told() -> None:
    parameters = (
        Parameter("BLOCK_SIZE", (1, 2), "block_size", "constexpr", ""),
        Parameter("REUSE", (1, 2), "data_reuse", "constexpr", ""),
        Parameter("num_stages", (1, 2), "warp_stage", "launch", ""),
    )
    assert unread(KERNEL.format("tl.load(x_ptr + BLOCK_SIZE)"), parameters) == {"REUSE", "num_stages"}
    assert unread(KERNEL.format("for i in range(REUSE): tl.load(x_ptr + BLOCK_SIZE)"), parameters) == frozenset()


def test_dead_axes_are_canonical() -> None:
    """The toy's kernel has no loop here: its four numbers of stages are one."""
    compiler = replace(COMPILER, source=lambda plan: KERNEL.format("tl.load(x_ptr + BLOCK_SIZE + REUSE)"))
    space = space_of(compiler, make_plan(), 0, CASES)
    whole = space_of(COMPILER, make_plan(), 0, CASES)
    assert {s["num_stages"] for s in space.schedules} == {START["num_stages"]}
    # EVICT is a constant too that this kernel does not read
    assert len(space.schedules) * 4 * 3 == len(whole.schedules)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("tiles(64, 32): num_warps=2+loads=evict_first+swap",
         TILES.start.replace(BLOCK_M=64, BLOCK_N=32, num_warps=2, loads="evict_first", swap=True)),
        ("tiles(32, 16): num_warps=4+loads=default", TILES.start),
        ("row: num_warps=4", Schedule.make("row", num_warps=4)),
    ],
)  # fmt: skip
def test_short_forms_print_and_parse_back(text: str, schedule: Schedule) -> None:
    assert short(schedule, AXES[schedule.variant].parameters) == text
    assert parse(text, AXES) == schedule
    assert parse(text.replace(" ", ""), AXES) == schedule


def test_every_schedule_of_shipped_families_has_a_short_form_of_its_own() -> None:
    compiler = families_compiler()
    for name in ("softmax", "broadcast", "topk"):
        spec = load_spec(find_spec(name)[0])
        plan = generation.plan_of(spec, Path("nowhere"))
        for row in range(len(plan.table)):
            bound = tuple(c for c in spec.performance if compiler.row_of(plan, c) == row)
            if bound:
                space = space_of(compiler, plan, row, bound)
                for schedule in itertools.islice(space.schedules, 0, None, 997):
                    assert parse(short(schedule, space.axes[schedule.variant].parameters), space.axes) == schedule
                break


SLIPS = {
    "tiles(64): swap": "'tiles(64): swap': tiles has 2 block sizes (BLOCK_M, BLOCK_N), not 1",
    "tile(64, 32)": "'tile(64, 32)': no variant 'tile'; did you mean 'tiles'?",
    "tiles(64, 33)": "'tiles(64, 33)': BLOCK_N cannot be '33'; it can be 16, 32",
    "tiles(64, 32): swop": "'tiles(64, 32): swop': tiles has no axis 'swop'; did you mean 'swap'?",
    "tiles((64": "'tiles((64': not a configuration; a short form looks like tiles(32, 16): num_warps=4+loads=default",
    "row: swap": "'row: swap': row has no axis 'swap'; there are num_warps",
}


@pytest.mark.parametrize("text", SLIPS)
def test_what_is_no_short_form(text: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parse(text, AXES)
    assert str(wrong.value) == SLIPS[text]


def test_restrictions_keep_what_has_one_of_the_values() -> None:
    wanted = restriction("num_warps=2, BLOCK_M=16, BLOCK_M=64", AXES)
    assert meets(TILES.start.replace(BLOCK_M=64, num_warps=2), wanted)
    assert not meets(TILES.start.replace(BLOCK_M=32, num_warps=2), wanted)
    assert not meets(Schedule.make("row", num_warps=2), wanted)
    assert meets(Schedule.make("row", num_warps=2), restriction("variant=row", AXES))


def test_of_values_that_are_asked_for_every_combination_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelgen.strategies.space.MOST", 100)  # of the whole space a sample is drawn
    row = search(context(configs="all,num_warps=2,EVICT=none,EVICT=evict_last,REUSE=1,variant=flat")).rows[0]
    assert row.listed == row.space.schedules
    assert not row.space.sampled
    assert len(row.listed) == 7 * 2 * 4
    assert {(s.variant, s["num_warps"], s["EVICT"]) for s in row.listed} == {
        ("flat", 2, e) for e in ("none", "evict_last")
    }
    with pytest.raises(UsageError, match="'num_warps=3': num_warps cannot be '3'"):
        check(context(configs="all,num_warps=3"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BLOCK_Q=16", "'BLOCK_Q=16': no axis 'BLOCK_Q'; did you mean 'BLOCK_N'?"),
        ("num_warps=3", "'num_warps=3': num_warps cannot be '3'; it can be 2, 4"),
        ("num_warps", "'num_warps': 'num_warps' is no AXIS=VALUE"),
        ("variant=rows", "'variant=rows': no variant 'rows'; did you mean 'row'?"),
    ],
)
def test_what_is_no_restriction(text: str, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        restriction(text, AXES)
    assert str(wrong.value) == message


def test_a_ladder_goes_from_the_plainest_to_the_best_an_axis_a_rung() -> None:
    best = TILES.start.replace(BLOCK_M=64, num_warps=4, loads="evict_first")
    rungs = ladder(TILES, best)
    assert rungs[0] == TILES.start.replace(BLOCK_M=16, BLOCK_N=16, num_warps=2, loads="default")
    assert rungs[-1] == best
    for before, after in itertools.pairwise(rungs):
        assert sum(a != b for a, b in zip(before.values, after.values, strict=True)) == 1


def test_a_search_may_be_restricted() -> None:
    proposals = search(context(configs="BLOCK_SIZE=2048,num_warps=8")).propose(context())
    assert proposals
    for one in proposals:
        assert (one.table[0].schedule["BLOCK_SIZE"], one.table[0].schedule["num_warps"]) == (2048, 8)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ("BLOCK=16", "no axis 'BLOCK'"),
        ("flat(64): num_warps=16+num_stages=1", "illegal: .*fewer elements than threads"),
        ("flit(64)", "no variant 'flit'; did you mean 'flat'"),
    ],
)
def test_configurations_that_do_not_exist_are_refused_before_anything_runs(configs: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(context(configs=configs))


def tuned(root: Path, evaluator: FakeEvaluator | None = None, **changes: object):  # type: ignore[no-untyped-def]
    return run(root, evaluator, make_plan(strategies=("tune",)), rounds=1, **changes)


def best_of_all() -> float:
    space = space_of(COMPILER, make_plan(), 0, CASES)

    def total(schedule: Schedule) -> float:
        product = 1.0
        for case in CASES:
            product *= microseconds(schedule, case)
        return product ** (1 / len(CASES))

    return min(map(total, space.schedules)) / total(START)


def test_a_tuned_kernel_is_nearly_the_best_of_its_space(tmp_path: Path) -> None:
    result = tuned(tmp_path, tuning=Tuning(evaluations=80, patience=20))
    assert [r.kept for r in result.rounds] == [True, True]
    assert result.start_speedup.estimate / result.speedup.estimate <= 1.02 * best_of_all()
    tried = {r.data["hash"] for r in read(result.folder) if r.kind == "candidate"}
    assert len(tried) <= 80 + 6  # of 2088 legal ones


def test_no_candidate_is_measured_twice_but_the_finalists(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    tuned(tmp_path, evaluator)
    assert not any(step == "profile" for step, _ in evaluator.calls), "there is no strategy to choose by counters"
    searched = [name for step, name in evaluator.calls if step == "search"]
    assert len(searched) == len(set(searched))
    finals = [name for step, name in evaluator.calls if step == "final"]
    assert 2 <= len(finals) <= 6


def test_patience_ends_a_search(tmp_path: Path) -> None:
    def flat(step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        same = tuple(replace(t, speedup=1.0, time_us=t.against_us) for t in evaluation.timings)
        return replace(evaluation, timings=same) if step in ("search", "final") else evaluation

    evaluator = FakeEvaluator(twist=flat)
    result = tuned(tmp_path, evaluator, tuning=Tuning(patience=2))
    assert sum(step == "search" for step, _ in evaluator.calls) == 3 * BATCH
    assert [r.kept for r in result.rounds] == [True, False]


def test_shapes_that_want_different_schedules_get_a_table_of_them(tmp_path: Path) -> None:
    """Larger sizes want larger blocks; the toy's formula is 4 to 12 % slower with another shape's best."""
    result = tuned(tmp_path, tuning=Tuning(evaluations=200, patience=30))
    final = [r.data for r in read(result.folder) if r.kind == "round"][-1]
    assert final["kept"]
    table = make_plan().with_table(table_from_json(final["current"])).table
    assert 2 <= len(table) <= len(CASES)
    space = space_of(COMPILER, make_plan(), 0, CASES).schedules
    for one in CASES:
        mine = table[row_of(make_plan().with_table(table), one)].schedule
        assert microseconds(mine, one) <= 1.03 * min(microseconds(s, one) for s in space)


def test_what_fails_is_recorded_and_not_chosen(tmp_path: Path) -> None:
    def large_fails(step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        if candidate.schedule["BLOCK_SIZE"] in (512, 1024):
            return Evaluation(candidate.source_hash, Status.COMPILE_ERROR, "too large")
        return evaluation

    result = tuned(tmp_path, FakeEvaluator(twist=large_fails))
    final = [r.data for r in read(result.folder) if r.kind == "round"][-1]
    assert final["kept"]
    assert final["table"][0]["schedule"]["values"]["BLOCK_SIZE"] not in (512, 1024)


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    seen: list[str] = []

    def interrupt(step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        seen.append(step)
        if step == "search" and seen.count("search") == 30:
            raise KeyboardInterrupt
        return evaluation

    result = tuned(tmp_path, FakeEvaluator(twist=interrupt), tuning=Tuning(patience=20))
    assert seen.count("search") == 30
    assert [r.kept for r in result.rounds] == [True, True]
    assert [r.data["round"] for r in read(result.folder) if r.kind == "stopped"] == [1]


def test_the_journal_says_why_what_was_left_out(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    spaces = [r.data for r in read(result.folder) if r.kind == "space"]
    pruned = [["fewer elements than threads", 432]]
    assert [s["rows"] for s in spaces] == [[{"row": 0, "legal": 2088, "sampled": False, "pruned": pruned}]]


def test_one_schedule_and_a_ladder_can_be_asked_for(tmp_path: Path) -> None:
    wanted = "flat(1024): EVICT=evict_first+REUSE=1+num_stages=2+num_warps=8"
    one = tuned(tmp_path / "one", tuning=Tuning(wanted))
    assert [r.data["what"] for r in read(one.folder) if r.kind == "candidate"][:1] == [wanted]
    steps = tuned(tmp_path / "steps", tuning=Tuning("prog"))
    rungs = [r.data["what"] for r in read(steps.folder) if r.kind == "candidate" and not r.data.get("again")]
    assert len(rungs) >= 2


def test_a_dry_run_shows_the_space_without_a_device(tmp_path: Path) -> None:
    done = kernelgen("tune", "topk", "--dry-run", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["rows"]
    assert rows
    for row in rows:
        assert row["legal"] >= len(row["first"]) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "line", "code"),
    [
        ((), "tune needs a NAME, or --replay to evaluate the search on recorded spaces", 2),
        (("topk", "--effort", "fast"), "--effort fast: must be none, quick, full", 2),
        (
            ("topk", "--configs", "BLOCK=2"),
            "'BLOCK=2': no axis 'BLOCK'; there are variant, BLOCK_SIZE_M, num_warps, BLOCK_SIZE_N",
            2,
        ),
        (
            ("topk", "--device", "cpu"),
            "tune needs a GPU, and none was found: --dry-run prints the search space, --replay evaluates the search",
            3,
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[str, ...], line: str, code: int, tmp_path: Path) -> None:
    assert refused("tune", *arguments, cwd=tmp_path, code=code) == f"error: {line}"


def test_what_a_run_measured_becomes_a_recorded_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "docs" / "benchmarks"))
    tuner = importlib.import_module("tuner")
    configs = "variant=flat,num_warps=2,num_warps=4,num_stages=1,REUSE=1"
    result = tuned(tmp_path, tuning=Tuning(f"all,{configs}"))
    files = tuner.write_spaces("toy", result.folder, configs, tmp_path)
    assert [file["case"] for file in files] == [case.label for case in CASES]
    spaces = [recorded.read(tmp_path / file["file"]) for file in files]
    # with the kernel that was current, which no run measures as a candidate
    assert {file["configurations"] for file in files} == {file["of"] for file in files} == {len(spaces[0].points)}
    assert len(spaces[0].points) == 2 * 7 * 3 - 3, "four warps have more threads than 64 elements"
    assert {axis.name for axis in spaces[0].points.axes} >= {"variant", "num_warps", "EVICT"}


@pytest.mark.parametrize(
    ("name", "count", "dtypes"),
    [
        ("tune", 80, ("float16", "bfloat16")),
        ("prog", 7, ("float16",)),
        ("progall", 56, ("float16",)),
        ("64,64", 32, ("float16", "bfloat16")),
    ],
)
def test_sets_of_attention_have_their_sizes_and_each_short_form_parses_back(
    name: str, count: int, dtypes: tuple[str, ...]
) -> None:
    plan, compiler = generation.plan_of(load_spec(find_spec("attention")[0]), Path("nowhere")), families_compiler()
    named = families.sets(plan)[name]
    cases = cases_of(plan, named)
    assert [case.dtype("T") for case in cases] == list(dtypes)
    assert len(set(named.schedules)) * len(cases) == count
    axes = axes_of(compiler, plan, compiler.row_of(plan, cases[0]), tuple(cases))
    for schedule in named.schedules:
        assert parse(short(schedule, axes[schedule.variant].parameters), axes) == schedule
        assert all(compiler.legal(plan, schedule, case) is None for case in cases)


def test_a_set_is_a_table_and_a_csv_file_and_predicted_without_a_gpu(tmp_path: Path) -> None:
    variables = {"KERNELS": "64,32", "CUDA_VISIBLE_DEVICES": ""}
    done = kernelgen("tune", "attention", "--dtype", "float16", "--device", "cpu", cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert {"duration µs", "cycles", "registers", "L2 hit rate", "TFLOP/s", "TFLOP/s of products"} <= set(
        re.split(r"  +", head.strip())
    )
    with (tmp_path / "logs" / "attention" / "64x32.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(lines) == len(rows) == 8
    assert {row["source"] for row in rows} == {"predicted"}
    assert all(float(row["duration_us"]) > 0 and int(row["registers"]) > 0 for row in rows)
    assert "fastest" not in done.stdout


def test_a_set_without_a_case_is_one_line(tmp_path: Path) -> None:
    assert refused("tune", "attention", "--configs", "prog", "--only", "D=64", cwd=tmp_path) == (
        "error: these configurations are for cases of D = 128 and float16, and none of the chosen cases is one"
    )
    assert refused("tune", "topk", "--csv", "x.csv", cwd=tmp_path) == (
        "error: --csv needs a named set, such as attention's --configs tune"
    )

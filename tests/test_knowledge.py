"""The memory: rows out of journals, the store and its mistakes, what rows say together."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import kernelgen, refused
from rounds_fakes import CASES, START, FakeEvaluator, make_plan, run, write_kernel

from kernelgen.analysis import Work
from kernelgen.cli import knowledge as commands
from kernelgen.devices.facts import H200
from kernelgen.diagnose import BOTTLENECKS, Seen, diagnose
from kernelgen.errors import UsageError
from kernelgen.journal import JournalError, read
from kernelgen.knowledge import shipped
from kernelgen.knowledge.patterns import PRIOR, learnt, nearest, patterns
from kernelgen.knowledge.rows import Row, of_records, of_run, sizes_of
from kernelgen.knowledge.store import Store
from kernelgen.outcomes import CaseTiming
from kernelgen.spec.model import STRATEGIES
from kernelgen.strategies import Tuning

ROOT = Path(__file__).parent.parent

ROW = Row(
    run="r1", seq=7, round=1, operator="softmax", family="reduction", spec="ab", source="cd", variant="rows",
    schedule='{"BLOCK_SIZE_M": 4, "num_warps": 8}', case="[4096, 8192] float16", dtype="float16", device="NVIDIA H200",
    torch="2.11", triton="3.6", version="0.1.0", time_us=50.0, speedup=1.1, low=1.08, high=1.12, status="ok",
    bottleneck="latency", strategy="tune", kept=True,
)  # fmt: skip


def test_a_run_becomes_rows(tmp_path: Path) -> None:
    result = run(tmp_path, plan=make_plan(strategies=("block_size", "warp_stage")), rounds=2)
    rows = list(of_run(result.folder))
    candidates = [r for r in read(result.folder) if r.kind == "candidate"]
    current = [r for r in rows if not r.strategy]
    assert {r.seq for r in rows if r.strategy} <= {c.seq for c in candidates}
    assert {r.strategy for r in rows} <= {"block_size", "warp_stage", ""}
    assert {r.seq for r in current} <= {r.seq for r in read(result.folder) if r.kind == "round"}
    assert START in {r.values() for r in current}, "what a run begins with is known, though no round tries it"
    assert len({(r.case, r.values()) for r in current}) == len(current)
    tried = {(r.case, r.values()) for r in rows if r.strategy}
    assert not tried & {(r.case, r.values()) for r in current}, "a round's own are its rows"
    beside = {t["against_us"] for c in candidates for t in c.data["evaluation"]["timings"]}
    assert {r.time_us for r in current} <= beside
    assert all(r.time_us and r.device == "NVIDIA H200" and r.family == "toy" for r in rows)
    assert any(r.kept for r in rows)
    assert any(not r.kept for r in rows)
    assert {r.values().variant for r in rows} == {START.variant}


def test_predictions_are_no_rows(tmp_path: Path) -> None:
    result = run(tmp_path, FakeEvaluator(measures=False), rounds=1)
    assert [r for r in of_run(result.folder) if r.time_us is not None] == []


def test_what_failed_in_a_run_that_only_predicts_is_no_row_either(tmp_path: Path) -> None:
    records = read(run(tmp_path, plan=make_plan(strategies=("block_size",)), rounds=1).folder)
    failed = json.loads(json.dumps([r.data for r in records]).replace('"status": "ok"', '"status": "crashed"'))
    predicted = json.loads(json.dumps(failed).replace('"measured"', '"predicted"'))
    of = lambda data: list(of_records("r", [replace(r, data=d) for r, d in zip(records, data, strict=True)]))  # noqa: E731
    assert {row.status for row in of(failed)} == {"crashed"}
    assert of(predicted) == []


def test_a_kept_journal_makes_the_rows_that_its_run_does_and_patterns_of_them(tmp_path: Path) -> None:
    plan = make_plan(strategies=("block_size", "warp_stage"))
    measured, predicted = (
        run(tmp_path / name, FakeEvaluator(measures=measures), plan=plan, rounds=2).folder
        for name, measures in (("measured", True), ("predicted", False))
    )
    assert shipped.keep(predicted, tmp_path / "journals") is None
    kept = shipped.keep(measured, tmp_path / "journals")
    assert kept == tmp_path / "journals" / "toy" / f"{measured.name}.jsonl.gz"
    rows = list(shipped.of_path(kept))
    assert rows == list(of_run(measured)) == list(shipped.of_path(tmp_path / "journals"))
    assert [(p.strategy, p.rounds, p.kept) for p in patterns(rows)] == [("block_size", 2, 2)]
    done = kernelgen("knowledge", "rebuild", "journals", str(measured), "--folder", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(shipped.of_file(tmp_path / "nvidia-h200.jsonl.gz")) == sorted(rows, key=lambda r: (r.seq, r.case))
    kept.write_bytes(gzip.compress(gzip.decompress(kept.read_bytes()).replace(b'"crc":', b'"crc":1', 2)))
    with pytest.raises(JournalError, match=r"jsonl\.gz:1: damaged record"):
        list(shipped.of_path(kept))


def test_a_journal_is_kept_where_the_project_says(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = run(tmp_path, rounds=1).folder
    commands.remember(folder)
    assert not (tmp_path / "journals").exists()
    (tmp_path / "pyproject.toml").write_text('[tool.kernelgen]\njournals = "journals"\n')
    commands.remember(folder)
    assert [path.name for path in (tmp_path / "journals" / "toy").iterdir()] == [f"{folder.name}.jsonl.gz"]
    (tmp_path / "pyproject.toml").write_text('[tool.kernelgen]\njournals = "cache/kernelgen/knowledge.sqlite/x"\n')
    commands.remember(folder)
    assert capsys.readouterr().err.startswith("journal not kept: cache/kernelgen/knowledge.sqlite/x/toy/")


def test_rows_are_kept_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "knowledge.sqlite")
    assert store.rows() == []
    failed = replace(ROW, seq=8, time_us=None, speedup=None, low=None, high=None, status="compile_error", kept=False)
    assert store.add([ROW, failed]) == 2
    assert store.add([ROW, failed]) == 0
    assert store.rows() == [ROW, failed]
    assert store.rows(operator="other") == store.rows(device="NVIDIA H100") == []
    assert store.forget(operator="softmax") == 2
    assert store.rows() == []


def test_a_newer_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.sqlite"
    Store(path).add([ROW])
    with sqlite3.connect(path) as opened:
        opened.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    for touch in (Store(path).rows, Store(path).forget, lambda: Store(path).add([ROW])):
        with pytest.raises(
            UsageError, match=r"written by a newer kernelgen \(format 99; this version reads 1\); nothing was"
        ):
            touch()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is no database at all, but some text" * 40, b""])
def test_a_file_that_is_no_store_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "knowledge.sqlite"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a store of measurements") as wrong:
        Store(path).rows()
    assert "\n" not in str(wrong.value)
    assert path.read_bytes() == content


def test_a_damaged_store_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.sqlite"
    Store(path).add(replace(ROW, seq=i) for i in range(2000))
    whole = bytearray(path.read_bytes())
    whole[8192:40960] = b"\xff" * (40960 - 8192)
    path.write_bytes(whole)
    with pytest.raises(UsageError, match="damaged") as wrong:
        Store(path).rows()
    assert "\n" not in str(wrong.value)
    assert path.read_bytes() == bytes(whole)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.sqlite"
    Store(path).add([ROW])
    path.chmod(0o444)
    assert Store(path).rows() == [ROW]
    with pytest.raises(UsageError, match="may not be written"):
        Store(path).add([replace(ROW, seq=9)])


def test_what_the_disk_does_not_let_be_written_is_one_line(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "knowledge.sqlite"
    Store(path).add([ROW])
    really = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, *rest, **more: really(path.replace("mode=rwc", "mode=ro"), *rest, **more)
    )
    with pytest.raises(UsageError, match="may not be written; nothing was changed"):
        Store(path).add([replace(ROW, seq=9)])
    assert Store(path).rows() == [ROW]


def test_patterns_count_rounds_and_take_medians() -> None:
    rows = [
        ROW,
        replace(ROW, seq=8, case="[1, 2] float16", speedup=1.21),
        replace(ROW, run="r2", speedup=1.5),
        replace(ROW, run="r3", kept=False, speedup=0.9),
        replace(ROW, run="r3", seq=9, kept=False, speedup=None, time_us=None, status="compile_error", source="ef"),
        replace(ROW, run="r4", bottleneck=""),
    ]
    (found,) = patterns(rows)
    assert (found.bottleneck, found.strategy, found.rounds, found.kept, found.tried) == ("latency", "tune", 3, 2, 4)
    # of the geometric means of the kept rounds: sqrt(1.1 * 1.21) and 1.5
    assert found.gain == pytest.approx(((1.1 * 1.21) ** 0.5 + 1.5) / 2)
    assert found.failed == (("compile_error", 1),)


def rounds(bottleneck: str, strategy: str, *gains: float) -> list[Row]:
    """A round a gain; 1 is one that kept nothing."""
    return [
        replace(
            ROW, run=f"{bottleneck} {strategy} {i}", bottleneck=bottleneck, strategy=strategy, speedup=g, kept=g > 1
        )
        for i, g in enumerate(gains)
    ]


def test_the_more_rounds_there_were_the_less_the_hand_set_shares_count() -> None:
    pair = ("latency", "warp_stage")
    (few,), (many,) = (learnt(rounds(*pair, *[1.02] * count)).values() for count in (2, 40))
    assert few.gain == many.gain == pytest.approx(1.02)
    assert few.prior_rounds == PRIOR, "one pair says nothing of how pairs differ"
    seen = (Seen(CaseTiming("c", "measured", 100.0, "eager", 100.0, 1.0, None, floor_us=30.0), Work(10**8, 10**8, 10)),)
    alone = diagnose(seen, H200, ("warp_stage",)).ranked[0]
    told = [diagnose(seen, H200, ("warp_stage",), {pair: one}).ranked[0] for one in (few, many)]
    assert alone.gain > told[0].gain > told[1].gain > 1.02
    assert told[1].gain == pytest.approx(1.02, abs=0.02)
    assert (alone.known, told[0].known) == ("", few.words)
    assert few.words == (
        "warp_stage against latency: 2 rounds, 2 kept, median +2.0 % (+2.0 % to +2.0 %); 2 configurations"
    )


def test_how_much_own_rounds_count_follows_from_all_pairs() -> None:
    alike = [r for i in range(5) for r in rounds("latency", f"s{i}", 1.0, 1.2, 1.0, 1.1)]
    apart = [r for i in range(5) for r in rounds("latency", f"s{i}", *[1 + 0.1 * i + d for d in (0, 0.01, 0.02)])]
    one, other = (next(iter(learnt(rows).values())) for rows in (alike, apart))
    assert other.prior_rounds < PRIOR < one.prior_rounds


def test_rounds_that_kept_nothing_gained_nothing() -> None:
    (found,) = learnt(rounds("cache", "data_reuse", 1.0, 1.21, 1.0, 1.0)).values()
    assert (found.rounds, found.gain) == (4, pytest.approx(1.21**0.25))


def test_the_log_has_what_earlier_rounds_came_to_with_counts(tmp_path: Path) -> None:
    measured = learnt([r for s in STRATEGIES for b in BOTTLENECKS for r in rounds(b, s, 1.3, 1.0)])
    write_kernel(tmp_path, make_plan())
    run(tmp_path, rounds=1, measured=measured)
    log = (tmp_path / "operators" / "toy" / "optimization_log.md").read_text()
    assert re.search(r"- \*\*Earlier rounds:\*\* \w+ against [a-z ]+: 2 rounds, 1 kept, median \+30\.0 %", log)


def test_shipped_rows_are_made_again_from_the_committed_measurements(tmp_path: Path) -> None:
    measured = [str(ROOT / "docs/benchmarks" / name) for name in ("small.json", "journals")]
    done = kernelgen("knowledge", "rebuild", *measured, "--folder", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "nvidia-h200.jsonl.gz").read_bytes() == shipped.file_of("NVIDIA H200").read_bytes()
    found = shipped.rows("NVIDIA H200")
    raced = [r for r in found if not r.strategy]
    assert {(r.spec == "", r.kept, r.speedup) for r in raced} == {(True, False, None), (False, False, None)}, (
        "of first schedules and of what was current nothing is made up"
    )
    assert {r.run for r in found if r.strategy} <= {
        p.name.split(".")[0] for p in (ROOT / "docs/benchmarks/journals").glob("*/*")
    }
    assert shipped.rows("NVIDIA H100") == []


def test_a_benchmark_without_schedules_has_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its rows have no schedules"):
        list(shipped.of_path(ROOT / "docs/benchmarks/h200.json"))
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(UsageError, match="has no rows with schedules"):
        list(shipped.of_path(tmp_path / "x.json"))


def test_a_run_goes_on_without_a_store_that_cannot_be_used(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # the settings of this repository would keep its journal
    path = tmp_path / "kernelgen" / "knowledge.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"no database at all, but some text" * 40)
    assert commands.known() == shipped.rows()
    commands.remember(run(tmp_path, rounds=1).folder)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["earlier measurements are not used", "measurements not stored"]
    assert path.read_bytes() == b"no database at all, but some text" * 40


def test_memory_changes_where_a_search_begins_and_not_where_it_ends(tmp_path: Path) -> None:
    plan = make_plan(CASES[2:], strategies=("memory_access",))
    with_it = Tuning(remembered=(START.replace(EVICT="evict_last"),))
    alone, told = (run(tmp_path / name, plan=plan, rounds=2, tuning=t) for name, t in (("a", Tuning()), ("b", with_it)))
    assert alone.speedup == told.speedup
    first = [
        next(r.data for r in read(one.folder) if r.kind == "choice")["candidates"][0]["what"] for one in (alone, told)
    ]
    assert first == ["EVICT none -> evict_first", "EVICT none -> evict_last"]


def test_the_nearest_problem_is_of_the_same_family_and_of_like_sizes() -> None:
    rows = [
        replace(ROW, run="far", case="[4096, 262144] float16"),
        replace(ROW, run="near", case="[4096, 4096] float16"),
        replace(ROW, run="slow", case="[4096, 4096] float16", time_us=70.0),
        replace(ROW, run="alien", family="matmul", case="[4096, 8192] float16"),
        replace(ROW, run="abroad", case="[4096, 4096] float16", device="NVIDIA H100"),
    ]
    found = nearest(rows, "reduction", "softmax", "[4096, 8192] float16", "float16", "NVIDIA H200")
    assert [n.row.run for n in found] == ["near", "abroad", "far"]
    assert found[0].distance == 1.0


def test_sizes_of_a_case() -> None:
    assert sizes_of("x [8, 1024] bfloat16, w [1024] int64") == (8, 1024, 1024)


def test_the_commands(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    lines = tmp_path / "rows.jsonl.gz"
    lines.write_bytes(gzip.compress((json.dumps(ROW.to_json()) + "\n").encode()))
    assert "1 new rows" in kernelgen("knowledge", "import", str(lines), cwd=tmp_path, **cache).stdout
    assert "softmax" in kernelgen("knowledge", "list", cwd=tmp_path, **cache).stdout
    assert "+10.0 %" in kernelgen("knowledge", "patterns", cwd=tmp_path, **cache).stdout
    assert kernelgen("knowledge", "export", "again.jsonl", cwd=tmp_path, **cache).returncode == 0
    assert json.loads((tmp_path / "again.jsonl").read_text()) == ROW.to_json()
    assert "1 rows forgotten" in kernelgen("knowledge", "forget", "--all", cwd=tmp_path, **cache).stdout


def test_suggest_names_the_source_of_what_it_says(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    row = replace(ROW, case="[16384] D=4096 float16", time_us=1.0)  # nearer and faster than all that is shipped
    Store(tmp_path / "cache" / "kernelgen" / "knowledge.sqlite").add([row])
    done = kernelgen("knowledge", "suggest", "softmax", "--on", "NVIDIA H200", cwd=tmp_path, **cache)
    assert "r1" in done.stdout
    assert "rows BLOCK_SIZE_M=4 num_warps=8" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("forget",), "forget what? --operator NAME, --on DEVICE or --all"),
        (("import", "none.jsonl"), "none.jsonl: cannot be read: No such file or directory"),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    assert refused("knowledge", *arguments, cwd=tmp_path) == f"error: {line}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", ":1: not a row of measurements; nothing was imported"),
        ("{", ":1: not a row of measurements: Expecting property name"),
        ('{"run": 1}', ":1: not a row of measurements: a row has run, seq,"),
    ],
)
def test_what_is_no_row_is_not_imported(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    cache = {"XDG_CACHE_HOME": str(tmp_path.parent / "none")}
    assert message in refused("knowledge", "import", "rows.jsonl", cwd=tmp_path, **cache)


def test_sizes_of_one_name_make_problems_near_whatever_else_has_a_size() -> None:
    rows = [replace(ROW, operator="attention_causal", case=f"B=4 H=32 S=4096 D={d} float16") for d in (64, 128)]
    found = nearest(rows, ROW.family, "attention", "B=4 H=32 S=4096 D=64 L=4096 E=64 float16", "float16", ROW.device)
    assert [(one.row.case.split()[3], one.distance) for one in found] == [("D=64", 2.0), ("D=128", 4.0)]


def test_the_fastest_configurations_of_a_problem_are_each_there_once() -> None:
    rows = [
        replace(ROW, schedule=f'{{"BLOCK": {block}}}', time_us=time)
        for block, time in ((64, 3.0), (128, 2.0), (64, 1.0), (256, 4.0))
    ]
    (found,) = nearest(rows, ROW.family, ROW.operator, ROW.case, ROW.dtype, ROW.device)
    assert [(row.schedule, row.time_us) for row in found.fastest] == [
        ('{"BLOCK": 64}', 1.0), ('{"BLOCK": 128}', 2.0), ('{"BLOCK": 256}', 4.0)
    ]  # fmt: skip

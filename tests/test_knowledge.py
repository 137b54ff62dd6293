"""The memory: rows out of journals, the store and its mistakes, what rows say together."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import kernelgen, refused
from rounds_fakes import START, FakeEvaluator, make_plan, run

from kernelgen.errors import UsageError
from kernelgen.journal import read
from kernelgen.knowledge.patterns import nearest, patterns
from kernelgen.knowledge.rows import Row, of_run, sizes_of
from kernelgen.knowledge.store import Store

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
    assert {r.seq for r in rows} <= {c.seq for c in candidates}
    assert {r.strategy for r in rows} <= {"block_size", "warp_stage"}
    assert all(r.time_us and r.device == "NVIDIA H200" and r.family == "toy" for r in rows)
    assert any(r.kept for r in rows)
    assert any(not r.kept for r in rows)
    assert {r.values().variant for r in rows} == {START.variant}


def test_predictions_are_no_rows(tmp_path: Path) -> None:
    result = run(tmp_path, FakeEvaluator(measures=False), rounds=1)
    assert [r for r in of_run(result.folder) if r.time_us is not None] == []


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
            UsageError, match=r"written by a newer kernelgen \(form 99, this one knows 1\); nothing was"
        ):
            touch()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is no database at all, but some text" * 40, b""])
def test_a_file_that_is_no_store_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "knowledge.sqlite"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no store") as wrong:
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
    Store(tmp_path / "cache" / "kernelgen" / "knowledge.sqlite").add([ROW])
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
        ("[]", ":1: no row; nothing was imported"),
        ("{", ":1: no row: Expecting property name"),
        ('{"run": 1}', ":1: no row: a row has run, seq,"),
    ],
)
def test_what_is_no_row_is_not_imported(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    cache = {"XDG_CACHE_HOME": str(tmp_path.parent / "none")}
    assert message in refused("knowledge", "import", "rows.jsonl", cwd=tmp_path, **cache)

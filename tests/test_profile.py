"""Rows of kernels: ncu's CSV read, the same columns worked out, sums, and what the command does where it cannot."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from cli_process import kernelgen, refused
from rounds_fakes import CASES, COMPILER, START, make_plan

from kernelgen.analysis import ProductWork, Work
from kernelgen.cli.profile import gathered, profiled, wanted_of
from kernelgen.devices.facts import H200
from kernelgen.diagnose import Diagnosis
from kernelgen.errors import UsageError
from kernelgen.evaluate import kernels, profile
from kernelgen.evaluate.cuda import CudaEvaluator
from kernelgen.evaluate.kernels import (
    DERIVED,
    NCU,
    SUM,
    TITLES,
    Call,
    KernelRow,
    derived,
    of_ncu,
    parse,
    shown,
    written,
)
from kernelgen.outcomes import StaticFacts, Status
from kernelgen.strategies import Context, History, Tuning
from kernelgen.worker import private
from kernelgen.worker.client import Failed
from kernelgen.worker.once import traced, wait

WORK = Work(4_000_000, 4_000_000, 1_000_000, products=(ProductWork("out", 1, 1024, 1024, 1024, "float16", 2),))
PLAIN = Work(4_000_000, 4_000_000, 1_000_000)
FACTS = StaticFacts("scale_kernel", "sm_90", (512,), 4, 32, 0, 0, 0.75, 3.9, 16, 16, 1, 1)


def line(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    """A line as `ncu --csv --print-units base` prints one: a metric each, thousands with commas."""
    return (
        f'"{number}","4242","python3.12","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(512, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}"'
    )


HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"Section Name","Metric Name","Metric Unit","Metric Value"'
)


def launch(number: int, kernel: str, ns: str) -> Iterator[str]:
    values = {
        "gpu__time_duration.sum": ("ns", ns), "sm__cycles_elapsed.max": ("cycle", "12,345"),
        "launch__registers_per_thread": ("register/thread", "32"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "61.5"),
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "91.5"),
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "40"), "lts__t_sector_hit_rate.pct": ("%", "50.25"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": ("%", "n/a"),
        "l1tex__data_bank_conflicts_pipe_lsu.sum": ("", "1,024"),
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "9.25"),
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "0.5"),
        "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "1.5"),
    }  # fmt: skip
    yield from (line(number, kernel, name, unit, value) for name, (unit, value) in values.items())


def said(*launches: tuple[str, str]) -> str:
    lines = ["==PROF== Connected to process 4242", "==PROF== Disconnected from process 4242", HEAD]
    for number, (kernel, ns) in enumerate(launches):
        lines += launch(number, kernel, ns)
    return "\n".join(lines)


def test_what_ncu_prints_becomes_a_row() -> None:
    (row,) = of_ncu("[4096] float16", "row: num_warps=4", parse(said(("scale_kernel", "10,000"))), WORK)
    assert (row.case, row.configuration, row.kernel, row.source) == (
        "[4096] float16", "row: num_warps=4", "scale_kernel", NCU,
    )  # fmt: skip
    assert (row.duration_us, row.cycles, row.registers, row.bank_conflicts) == (10.0, 12345, 32, 1024)
    assert (row.occupancy, row.dram, row.l2, row.l2_hit) == pytest.approx((0.615, 0.915, 0.4, 0.5025))
    assert row.matrix is None, "n/a is not known"
    assert row.stalls == "long_scoreboard 9.2, wait 1.5"
    assert row.product_tflops == pytest.approx(2 * 1024**3 / 10e-6 / 1e12)
    assert row.tflops == pytest.approx((2 * 1024**3 + 1_000_000) / 10e-6 / 1e12)


def test_several_kernels_are_several_rows_with_their_sum() -> None:
    first, second, whole = of_ncu("c", "x", parse(said(("split_kernel", "10,000"), ("join_kernel", "2,000"))), PLAIN)
    assert [row.kernel for row in (first, second, whole)] == ["split_kernel", "join_kernel", "2 kernels"]
    assert (whole.source, whole.duration_us, whole.cycles) == (SUM, 12.0, 24690)
    assert (first.tflops, whole.product_tflops) == (None, None)
    assert whole.tflops == pytest.approx(1e6 / 12e-6 / 1e12)


def test_the_same_kernel_launched_twice_is_two_rows() -> None:
    assert [row.kernel for row in of_ncu("c", "x", parse(said(("k", "1"), ("k", "2"))), PLAIN)] == [
        "k",
        "k",
        "2 kernels",
    ]


@pytest.mark.parametrize(
    "text", ["", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", HEAD, '"ID"\n"0"']
)
def test_what_has_no_metrics_has_no_rows(text: str) -> None:
    assert parse(text) == []


def test_without_counters_the_columns_that_follow_are_marked() -> None:
    (row,) = derived("c", "x", [FACTS], 10.0, WORK, H200)
    assert (row.source, row.duration_us, row.registers, row.occupancy) == (DERIVED, 10.0, 32, 0.75)
    assert row.dram == pytest.approx(8e6 / (10e-6 * H200.dram_bytes_per_s))
    assert (row.cycles, row.l2_hit, row.stalls, row.bank_conflicts) == (None, None, "", None)
    *parts, whole = derived("c", "x", [FACTS, FACTS], 10.0, PLAIN, H200)
    assert [part.duration_us for part in parts] == [None, None], "one call's time is no kernel's"
    assert (whole.source, whole.duration_us) == (f"{SUM}, {DERIVED}", 10.0)


def test_a_table_and_a_file_have_every_column() -> None:
    rows = of_ncu("c", "x", parse(said(("k", "10,000"))), WORK)
    assert len(shown(rows[0])) == len(TITLES)
    assert shown(rows[0])[list(TITLES).index("occupancy")] == "62%"
    text = io.StringIO()
    csv.writer(text).writerows(written(rows))
    (read,) = csv.DictReader(io.StringIO(text.getvalue()))
    assert tuple(read) == tuple(TITLES)
    assert (read["duration_us"], read["matrix"]) == ("10.0", "")


def test_ncu_is_asked_for_every_kernel_of_the_watched_call(tmp_path: Path) -> None:
    command = kernels.command("ncu", ["a_kernel", "a_kernel", "b.kernel"], tmp_path / "kept.ncu-rep")
    assert command[command.index("-k") + 1] == r"regex:^(a_kernel|b\.kernel)$"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert command[command.index("--export") + 1].endswith("kept.ncu-rep")
    assert "--export" not in kernels.command("ncu", ["a"], None)


def test_counters_are_of_the_first_launch_of_the_kernel_that_is_asked_for() -> None:
    text = said(("other_kernel", "1"), ("scale_kernel(float *, int)", "2"), ("scale_kernel", "3"))
    second = [line for line in text.splitlines() if line.startswith('"1"')]
    text = text.replace("\n".join(second), "\n".join(line.replace('"91.5"', '"77"') for line in second))
    found = profile.parse(text, "scale_kernel")
    assert found is not None
    assert (found.dram_utilisation, found.achieved_occupancy) == (0.77, 0.615)
    assert profile.parse(text, "scale") is None


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profiler that runs what it is given, as ncu does, and prints what the program printed."""
    program = tmp_path / "ncu"
    program.write_text('#!/bin/sh\nwhile [ "$1" != off ]; do shift; done\nshift\n"$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(profile, "ncu", lambda: str(program))
    monkeypatch.setattr(profile, "_refusals", [])
    monkeypatch.setattr(profile, "_answered", set())
    return program


def test_a_profiler_waits_for_its_call_and_ends_with_it(
    ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said.csv").write_text(said(("scale_kernel", "1")))
    waits = (
        "import sys, pathlib, json; from kernelgen.worker.once import wait; path = pathlib.Path(sys.argv[1][1:]);"
        "wait(path, int(sys.argv[2])); print(pathlib.Path(json.loads(path.read_text())['folder'], 'said.csv').read_text())"
    )
    monkeypatch.setattr(profile, "ONCE", (sys.executable, "-c", waits))
    started = profile.standby(tmp_path, dict(os.environ))
    assert started is not None
    counters = started.counters({"folder": str(tmp_path)}, (FACTS,), 20.0)
    assert counters is not None
    assert counters.dram_utilisation == 0.915


def test_a_profiler_that_says_nothing_is_not_started_again(ncu: Path, tmp_path: Path) -> None:
    ncu.write_text("#!/bin/sh\necho ==ERROR== ERR_NVGPUCTRPERM\n")
    started = profile.standby(tmp_path, dict(os.environ))
    assert started is not None
    assert started.counters({}, (FACTS,), 20.0) is None
    assert profile.standby(tmp_path, dict(os.environ)) is None


def test_a_profiler_that_nobody_asks_is_ended(ncu: Path, tmp_path: Path) -> None:
    ncu.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    started = profile.standby(tmp_path, dict(os.environ))
    assert started is not None
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    started.close()
    assert not private.alive(int((tmp_path / "pid").read_text()))


def launches(*names: str) -> tuple[StaticFacts, ...]:
    return tuple(replace(FACTS, kernel=name) for name in names)


@pytest.mark.parametrize(
    ("makes", "counted"),
    [
        ((("a",), ("b", "b"), ("a",)), [["a"], ["b", "b"], ["a"]]),
        ((("a",), ("b", "c"), ("a",)), [["a"]]),  # it launched something else
        ((("a",), ("b", "b"), ("a", "a")), [["a"], ["b", "b"]]),  # it failed at its last launch
        ((("b",), ("a", "b")), []),
        ((("a", "c"),), [["a", "b", "b", "a"]]),  # alone, whatever it launches
    ],
)
def test_calls_of_one_profiler_are_told_apart_by_their_kernels(
    ncu: Path, makes: tuple[tuple[str, ...], ...], counted: list[list[str]]
) -> None:
    text = said(("a", "1"), ("b", "2"), ("b", "3"), ("a", "4"))
    ncu.write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\n")
    found, why = profile.whole_calls([({}, launches(*own)) for own in makes], dict(os.environ), 20.0, None)
    assert [[kernel for kernel, _ in call] for call in found] == counted
    assert why == ""


def test_a_profiler_that_counted_before_is_asked_again_after_one_call_failed(
    ncu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ({}, launches("a"))
    ncu.write_text("#!/bin/sh\necho the call failed\n")
    assert profile.whole_calls([call, call], {}, 20.0, None) == ([], "ncu printed no counters")
    monkeypatch.setattr(profile, "_answered", {str(ncu)})
    assert profile.whole_calls([call], {}, 20.0, None) == ([], "ncu printed no counters")
    ncu.write_text("#!/bin/sh\ncat <<END\n" + said(("a", "1")) + "\nEND\n")
    assert profile.whole_calls([call], dict(os.environ), 20.0, None)[1] == ""
    ncu.write_text(f"#!/bin/sh\necho '{profile.FORBIDDEN}'\n")
    assert profile.whole_calls([call, call], {}, 20.0, None) == ([], profile.FORBIDDEN)
    ncu.write_text("#!/bin/sh\ntouch asked\n")
    assert profile.whole_calls([call], {}, 20.0, None) == ([], profile.FORBIDDEN), "it may not: it is not asked again"


def test_a_program_that_waits_ends_when_nobody_is_left_to_ask_it(tmp_path: Path) -> None:
    asker = subprocess.Popen([sys.executable, "-c", ""])
    asker.wait()
    with pytest.raises(SystemExit):
        wait(tmp_path / "never", asker.pid)


class Run:
    """Says what is told, and why counters are missing."""

    def __init__(self, *answers: tuple[list[KernelRow], str] | Failed | KeyboardInterrupt) -> None:
        self.answers = iter(answers)

    def kernels(self, calls: Sequence[Call]) -> Iterator[tuple[list[KernelRow], str] | Failed]:
        for _, answer in zip(calls, self.answers, strict=False):
            if isinstance(answer, KeyboardInterrupt):
                raise answer
            yield answer


def context(configs: str = "tune") -> Context:
    nothing = Diagnosis("latency", "", (), 1.0, ())
    return Context(make_plan(), CASES, nothing, History(), COMPILER, tuning=Tuning(configs))


def test_a_refusal_is_said_once_and_a_failure_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = wanted_of(context())
    row = KernelRow("c", "x", "k", DERIVED)
    run = Run(
        ([row], profile.reason("ERR_NVGPUCTRPERM")),
        Failed(Status.TIMEOUT, "60 s"),
        ([row], profile.reason("ERR_NVGPUCTRPERM")),
    )
    assert list(profiled(cast(CudaEvaluator, run), wanted, None)) == [row, row]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "counters cannot be read: ncu may not read the counters (ERR_NVGPUCTRPERM); rows marked derived are computed from "
        "time, bytes and the compiled kernel"
    )
    assert lines[1].endswith("timeout: 60 s")


def test_what_was_measured_before_ctrl_c_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    row = KernelRow("c", "x", "k", DERIVED)
    run = Run(([row], ""), ([row, row], ""), KeyboardInterrupt())
    wanted = [*wanted_of(context()), *wanted_of(context())]
    assert gathered(cast(CudaEvaluator, run), wanted[:3]) == ([row, row, row], 130)
    assert "interrupted: 3 rows were measured" in capsys.readouterr().err


def test_the_current_configuration_is_profiled_or_those_that_are_named() -> None:
    assert {label for label, _, _ in wanted_of(context())} == {"flat(256): EVICT=none+REUSE=1+num_stages=1+num_warps=4"}
    few = wanted_of(context("BLOCK_SIZE=4096,num_stages=2,REUSE=1,EVICT=none,variant=flat"))
    assert len(few) == 5 * len(CASES)
    assert all(candidate.schedule["BLOCK_SIZE"] == 4096 for _, candidate, _ in few)
    assert START.replace(BLOCK_SIZE=4096) != START
    with pytest.raises(UsageError, match="are too many to profile: at most 200; narrow them"):
        wanted_of(context("all"))


def test_a_trace_is_one_that_chrome_shows(tmp_path: Path) -> None:
    traced(lambda: torch.ones(8).add(1), str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}


@pytest.mark.parametrize(
    ("arguments", "line", "code"),
    [
        (
            ("softmax", "--device", "cpu"),
            "profile needs an NVIDIA GPU, and none was found; `kernelgen analyze` predicts without one",
            3,
        ),
        (
            ("topk", "--configs", "BLOCK=2"),
            "'BLOCK=2': no axis 'BLOCK'; there are variant, BLOCK_SIZE_M, num_warps, BLOCK_SIZE_N",
            2,
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[str, ...], line: str, code: int, tmp_path: Path) -> None:
    assert refused("profile", *arguments, cwd=tmp_path, code=code) == f"error: {line}"
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_a_kernel_on_a_gpu_has_its_rows_and_a_trace(tmp_path: Path) -> None:
    done = kernelgen(
        "profile", "softmax", "--csv", "rows.csv", "--trace", "trace.json", "--only", "[512] D=131072", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert rows
    assert all(row["source"] in (NCU, DERIVED, SUM, f"{SUM}, {DERIVED}") for row in rows)
    assert float(rows[-1]["duration_us"]) > 0
    assert any(e.get("cat") == "kernel" for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])

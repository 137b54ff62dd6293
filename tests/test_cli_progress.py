"""What `optimize` shows while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgen.cli.progress import Progress, outcome
from kernelgen.optimization.model import Reporter, RoundResult
from kernelgen.outcomes import CaseTiming, Evaluation, Source, Status


def timing(speedup: float, source: Source = "measured") -> CaseTiming:
    return CaseTiming("[7, 3] D=1", source, 1.0, "current", speedup, speedup, None)


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        (Evaluation("0", Status.COMPILE_ERROR, "no"), "compile error"),
        (Evaluation("0", Status.OK), "compiled"),
        (Evaluation("0", Status.OK, timings=(timing(1.0312),)), "1.031x measured"),
        (Evaluation("0", Status.OK, timings=(timing(0.9, "predicted"), timing(1.2))), "0.900x to 1.200x predicted"),
    ],
)
def test_what_became_of_a_candidate(evaluation: Evaluation, words: str) -> None:
    assert outcome(evaluation) == words


def test_a_line_a_round_and_no_markup_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    progress: Reporter = Progress()
    progress.run_started(Path("logs/op/run"), False, 1)
    progress.round_started(0, "start", "", 0)
    progress.round_ended(RoundResult(0, "start", True, "Right in 3 cases."))
    progress.round_started(1, "block_size", "memory bandwidth", 2)
    progress.candidate_done(1, "[red]BLOCK_SIZE[/red] 1024 -> 2048", Evaluation("0", Status.OK, timings=(timing(1.1),)))
    progress.round_ended(RoundResult(1, "block_size", False, "Reverted. Slower for [bold] D=1."))
    progress.round_started(2, "warp_stage", "latency", 2)
    progress.round_ended(RoundResult(2, "warp_stage", True, "Kept. 1.100x"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "run logs/op/run: up to 1 round",
        "Right in 3 cases.",
        "round 1: block_size: Reverted. Slower for [bold] D=1.",
        "round 2: warp_stage: Kept. 1.100x",
    ]


def test_stopping_twice_is_harmless() -> None:
    progress = Progress()
    progress.round_started(1, "block_size", "latency", 1)
    progress.stop()
    progress.stop()

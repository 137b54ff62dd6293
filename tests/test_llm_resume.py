"""A run with a language model, killed after any record: nothing is asked twice, and it ends as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import rounds_fakes
from rounds_fakes import COMPILER, FakeEvaluator, device, make_plan, options, write_kernel

from kernelgen import custom, journal
from kernelgen.llm import Caps, Endpoint, Reply
from kernelgen.optimization import RunResult, optimize
from kernelgen.outcomes import Evaluation, Status
from kernelgen.plan import Schedule
from kernelgen.spec.model import Case

KERNEL = """\
@triton.jit
def toy_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < N) + 1, mask=offsets < N)
"""


def answer(block: int) -> str:
    launch = {
        "kernel": "toy_kernel", "grid": ["cdiv(N, BLOCK_SIZE)"], "arguments": ["x", "out", "N"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": str(block)}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    return json.dumps(
        {"idea": f"blocks of {block}", "kernels": KERNEL, "sizes": [], "scratch": [], "launches": [launch]}
    )


class Scripted:
    """Bad answers first, a better one for each repair; remembers all it was asked."""

    endpoint = Endpoint("scripted", "http://host/v1")

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, messages: Any, most_tokens: int, schema: dict[str, Any], timeout_s: float) -> Reply:
        self.asked.append(json.dumps(list(messages)))
        said = messages[-1]["content"]
        if "This kernel was tried" in said:
            return Reply(answer(4096), 900, 100)
        if "was refused" in said:
            return Reply(answer(64), 900, 100)
        return Reply("nonsense" if "request 2" in said else answer(128 if "request 1" in said else 256), 900, 100)


def microseconds(schedule: Schedule, case: Case) -> float:
    """Blocks of 4096 win, smaller ones lose."""
    if schedule.variant != custom.PROPOSED:
        return 1000.0
    return 500.0 if '\\"value\\":\\"4096\\"' in json.dumps(schedule["answer"]) else 1500.0


@pytest.fixture(autouse=True)
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_fakes, "microseconds", microseconds)


def play(root: Path, client: Scripted, caps: Caps | None = None) -> RunResult:
    plan = make_plan(strategies=("llm",))
    evaluator = FakeEvaluator()
    made = options(root, rounds=1, candidates=4, client=client, caps=caps or Caps())
    return optimize(plan, device(), lambda store: evaluator, made, None, COMPILER)  # type: ignore[arg-type,return-value]


def run_of(root: Path) -> Path:
    (folder,) = journal.runs(root / "logs" / "toy")
    return folder


def test_killed_after_any_record_nothing_is_asked_twice(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_kernel(whole, make_plan())
    first = Scripted()
    result = play(whole, first)
    records = journal.read(run_of(whole))
    assert result.rounds[1].kept
    assert {"asked", "reply", "refused", "checked"} <= {r.kind for r in records}
    asked = {r.data["key"] for r in records if r.kind == "asked"}
    lines = (run_of(whole) / journal.FILE).read_bytes().splitlines(keepends=True)
    for cut in range(2, len(lines)):
        root = tmp_path / f"cut{cut}"
        shutil.copytree(whole, root)
        write_kernel(root, make_plan())  # as it was before the run
        (root / "operators" / "toy" / "generated.json").unlink(missing_ok=True)
        (run_of(root) / journal.FILE).write_bytes(b"".join(lines[:cut]))
        before = journal.read(run_of(root))
        already = [r.data["key"] for r in before if r.kind == "asked"]
        lost = set(already) - {r.data["key"] for r in before if r.kind == "reply"}
        again = Scripted()
        resumed = play(root, again)
        after = journal.read(run_of(root))
        keys = [r.data["key"] for r in after if r.kind == "asked"]
        assert keys[: len(already)] == already
        assert len(keys) == len(set(keys)), f"cut after {cut}: something was asked twice"
        assert len(again.asked) == len(keys) - len(already)
        assert lost or set(keys) == asked, f"cut after {cut}: other questions than without the kill"
        assert [r.data["round"] for r in after if r.kind == "round"] == [0, 1][: len(resumed.rounds)]
        shutil.rmtree(root)


def test_a_cap_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    write_kernel(tmp_path, make_plan())
    client = Scripted()
    result = play(tmp_path, client, Caps(tokens=600))
    assert client.asked == []
    assert result.model == "none used: 0 tokens, no cost"
    assert result.rounds[-1].number == 0


def test_a_candidate_that_computes_something_else_is_no_winner(tmp_path: Path) -> None:
    write_kernel(tmp_path, make_plan())
    plan = make_plan(strategies=("llm",))

    def wrong(step: str, candidate: Any, evaluation: Evaluation) -> Evaluation:
        if step == "verify" and "4096" in candidate.source and custom.PROPOSED in candidate.source:
            return Evaluation(candidate.source_hash, Status.INCORRECT, "a case: error 1.0 over the bound")
        return evaluation

    made = options(tmp_path, rounds=1, candidates=4, client=Scripted())
    result = optimize(plan, device(), lambda store: FakeEvaluator(twist=wrong), made, None, COMPILER)  # type: ignore[arg-type,return-value]
    log = (tmp_path / "operators" / "toy" / "optimization_log.md").read_text()
    assert not result.rounds[1].kept
    assert "incorrect: a case: error 1.0 over the bound" in log
    assert "refused: the answer holds no JSON object" in log

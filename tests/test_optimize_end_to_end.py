"""The rounds with the real compiler, workers and predictions, on the cpu device; and killed there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgen import analysis, devices, generation, journal
from kernelgen.evaluate import evaluator
from kernelgen.optimization import Options, RunResult, optimize
from kernelgen.spec import load_spec

SPEC = """\
name: shift
summary: Add a bias to every row.
inputs:
  - {name: x, shape: [..., D], dtype: T}
  - {name: bias, shape: [D], dtype: T}
outputs:
  - {name: out, shape: [..., D], dtype: T}
dtypes: {T: [float16]}
constraints: []
reference: |
  def shift(x, bias):
      return x + bias
optimization_strategies: [block_size, warp_stage, dynamic_shape]
accuracy: {shapes: [{...: [5], D: 129}]}
performance: {shapes: [{...: [4096], D: 1024}, {...: [64], D: 131072}]}
target: {speedup: 1.0, bandwidth: 0.6}
max_rounds: 2
"""


def play(root: Path, name: str = "cpu") -> RunResult:
    (root / "shift.yaml").write_text(SPEC)
    spec = load_spec(root / "shift.yaml")
    operators = root / "operators"
    plan = generation.plan_of(spec, operators)
    folder = generation.folder_of(spec, operators)
    if not folder.exists():
        generation.new(spec, operators)
    device = devices.find(name)
    options = Options(operators, root / "logs", rounds=2, candidates=6)
    return optimize(
        plan,
        device,
        lambda store: evaluator(device, plan, folder, store, lambda case: analysis.work(plan, case), jobs=2),
        options,
    )


def check(root: Path, result: RunResult) -> None:
    assert result.source == "predicted"
    assert [r.number for r in result.rounds] == list(range(len(result.rounds)))
    assert len(result.rounds) > 1
    folder = root / "operators" / "shift"
    text = (folder / "optimization_log.md").read_text()
    assert "measured" not in text.replace("not measured", "")
    sections = re.findall(r"^<!-- round \S+/(\w+) -->$", text, re.MULTILINE)
    assert sections == [*(str(r.number) for r in result.rounds), "end"]
    spec = load_spec(root / "shift.yaml")
    assert generation.stale(spec, root / "operators") == (), "what a round leaves is what the spec renders to"
    kernel = (folder / "shift_triton.py").read_text()
    kept = [r for r in journal.read(result.folder) if r.kind == "round" and r.data["kept"]]
    assert journal.source_hash(kernel) == kept[-1].data["hash"]


def test_a_run_on_the_cpu_device(tmp_path: Path) -> None:
    result = play(tmp_path)
    check(tmp_path, result)
    records = journal.read(result.folder)
    found = [r.data["evaluation"] for r in records if r.kind == "candidate"]
    assert found
    assert all(e["status"] == "ok" and e["timings"] for e in found)
    assert {t["source"] for e in found for t in e["timings"]} == {"predicted"}


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_measured_and_its_rounds_are_quick(tmp_path: Path) -> None:
    result = play(tmp_path, "cuda")
    assert result.source == "measured"
    assert result.works
    assert result.speedup is not None
    assert result.speedup.low < result.speedup.estimate < result.speedup.high
    text = (tmp_path / "operators" / "shift" / "optimization_log.md").read_text()
    assert "speedup not measured" not in text
    assert "over torch.compile" in text
    rounds = [r for r in journal.read(result.folder) if r.kind == "round" and r.data["round"] > 0]
    assert rounds
    for one in rounds:
        seconds = float(one.data["entry"]["made"].rpartition(" · ")[2].split()[0])
        assert seconds <= 30, one.data["entry"]["title"]


def test_killed_in_a_round_with_its_workers_it_goes_on(tmp_path: Path) -> None:
    """The process group of workers dies with the parent, and the next call goes on from the journal."""
    script = f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += f"from test_optimize_end_to_end import play; play(Path({str(tmp_path)!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    child = subprocess.Popen([sys.executable, "-c", script], env=env)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        runs = journal.runs(tmp_path / "logs" / "shift")
        if runs and any(r.kind == "candidate" for r in journal.read(runs[0])):
            child.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert child.wait() == -signal.SIGKILL
    (begun,) = journal.runs(tmp_path / "logs" / "shift")
    before = journal.read(begun)
    result = play(tmp_path)
    assert result.resumed
    assert result.folder == begun
    assert journal.read(begun)[: len(before)] == before
    check(tmp_path, result)

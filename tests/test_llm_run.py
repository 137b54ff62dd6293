"""The whole path with a language model: a real server, real workers, the interpreter as judge."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer
from pytest_httpserver import HTTPServer

from kernelgen import analysis, custom, devices, generation, journal
from kernelgen.evaluate import evaluator
from kernelgen.llm import Caps, Client, Endpoint, Prices, spent
from kernelgen.optimization import Options, RunResult, optimize
from kernelgen.optimization.bench import families_compiler
from kernelgen.plan import Plan, Schedule, TableRow
from kernelgen.spec import load_spec

KEY = "sk-test-0123456789abcdef"
SPEC = """\
name: shift
summary: Add a bias to every row.
inputs:
  - {name: x, shape: [..., D], dtype: T}
  - {name: bias, shape: [D], dtype: T}
outputs:
  - {name: out, shape: [..., D], dtype: T}
dtypes: {T: [float32]}
reference: |
  def shift(x, bias):
      return x + bias
accuracy: {shapes: [{...: [5], D: 129}]}
performance: {shapes: [{...: [4096], D: 1024}]}
"""
KERNEL = """\
@triton.jit
def shift_kernel(x_ptr, bias_ptr, out_ptr, n_elements, D, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    bias = tl.load(bias_ptr + offsets % D, mask=mask)
    tl.store(out_ptr + offsets, x + bias, mask=mask)
"""


def answer(idea: str, kernels: str = KERNEL, block: int = 1024) -> str:
    launch = {
        "kernel": "shift_kernel", "grid": ["cdiv(n_elements, BLOCK_SIZE)"],
        "arguments": ["x", "bias", "out", "n_elements", "D"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": str(block)}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    sizes = [{"name": "n_elements", "value": "out.numel()"}]
    return json.dumps({"idea": idea, "kernels": kernels, "sizes": sizes, "scratch": [], "launches": [launch]})


GOOD = answer("flat blocks of 1024")
WRONG = answer("never writes the last element", KERNEL.replace("offsets < n_elements", "offsets < n_elements - 1"))
SLOW = answer("tiny blocks", block=32)
CHEAT = answer("copies what torch computed", "import torch\n" + KERNEL)
BROKEN = answer(
    "does not compile",
    KERNEL.replace("tl.store(out_ptr + offsets, x + bias", "tl.store(out_ptr + offsets, x + missing"),
)
MALFORMED = "I am sorry, but here is an outline: { kernels: ..."


def request_of(messages: list[dict[str, str]]) -> int:
    found = re.search(r"This is request (\d) of 4", messages[1]["content"])
    assert found
    return int(found[1])


def first_bad_then_good(messages: list[dict[str, str]]) -> str:
    """Four bad answers; what comes back with a refusal stays bad, the candidate that was wrong is put right."""
    if "This kernel was tried" in messages[-1]["content"]:
        return GOOD if "NaN or infinity" in messages[-1]["content"] else SLOW
    return {1: WRONG, 2: SLOW, 3: CHEAT, 4: MALFORMED}[request_of(messages)]


def slow_plan(root: Path) -> Plan:
    """The operator with a schedule that leaves much to be won, on the disk as if a run had left it so."""
    (root / "shift.yaml").write_text(SPEC)
    generation.new(load_spec(root / "shift.yaml"), root / "operators")
    plan = again(root)
    schedule = plan.table[0].schedule
    plan = plan.with_table((TableRow((), Schedule.make(schedule.variant, **{**dict(schedule.values), **SLOWEST})),))
    path = root / "operators" / "shift" / "shift_triton.py"
    path.write_text(families_compiler().source(plan))
    generation.record(plan, path.parent)
    return plan


SLOWEST: dict[str, Any] = {"BLOCK_SIZE_M": 1, "BLOCK_SIZE_N": 32, "num_warps": 1}


def play(root: Path, client: Client, caps: Caps | None = None, rounds: int = 1) -> RunResult:
    plan = slow_plan(root) if not (root / "shift.yaml").exists() else again(root)
    device = devices.find("cpu")

    def start(store: Path) -> Any:
        return evaluator(device, plan, root / "operators" / "shift", store, partial(analysis.work, plan), jobs=2)

    options = Options(
        root / "operators", root / "logs", rounds=rounds, candidates=8, client=client, caps=caps or Caps()
    )
    return optimize(plan, device, start, options)


def again(root: Path) -> Plan:
    spec = replace(load_spec(root / "shift.yaml"), optimization_strategies=("llm",))
    return generation.plan_of(spec, root / "operators")


@pytest.fixture
def server(httpserver: HTTPServer) -> ModelServer:
    return ModelServer(httpserver)


def client_of(server: ModelServer, **changes: Any) -> Client:
    return Client(Endpoint("local", server.url, KEY, **changes), sleep=lambda seconds: None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_the_good_answer_is_kept_and_every_other_one_explained(server: ModelServer, tmp_path: Path) -> None:
    server.answer = first_bad_then_good
    server.rejects = ("response_format",)
    result = play(tmp_path, client_of(server), Caps(prices=Prices(1.0, 4.0)))
    folder = tmp_path / "operators" / "shift"
    text = (folder / "shift_triton.py").read_text()
    log = (folder / "optimization_log.md").read_text()
    assert result.rounds[1].kept, log
    assert "Flat blocks of 1024." in text
    assert KERNEL in text
    for said in ("never writes the last element", "tiny blocks", "flat blocks of 1024"):
        assert said in log
    assert "only functions with @triton.jit may stand here, not `import`" in log
    assert "the answer holds no JSON object" in log
    assert "incorrect: " in log
    assert "device code written by a language model" in log
    assert re.search(r"local at http\S+; \d+ requests: \d+ tokens read, \d+ written, cost 0\.\d+", log)
    assert result.model.startswith(f"{spent(journal.read(result.folder)).requests} requests")
    # the kernel can be made again from spec and manifest, and nowhere is the key
    assert generation.stale(load_spec(tmp_path / "shift.yaml"), tmp_path / "operators") == ()
    assert custom.is_foreign(again(tmp_path).table)
    assert not any(KEY in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert set(server.keys) == {f"Bearer {KEY}"}

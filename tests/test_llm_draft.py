"""`kernelgen draft`: a spec from words through a real server, repaired, shown, and never run before it is approved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_server import ModelServer
from pytest_httpserver import HTTPServer

from kernelgen.cli import main
from kernelgen.llm import careful
from kernelgen.spec import load_spec, shipped_specs

KEY = "sk-test-0123456789abcdef"
SPEC = """\
name: bias_gelu
summary: A bias added to every channel, then gelu.
inputs:
  - {name: x,    shape: [N, C, H, W], dtype: T}
  - {name: bias, shape: [C],          dtype: T}
outputs:
  - {name: out,  shape: [N, C, H, W], dtype: T}
dtypes: {T: [float16]}
reference: |
  def bias_gelu(x, bias):
      return F.gelu(x + bias[None, :, None, None])
accuracy: {shapes: [{N: 2, C: 3, H: 5, W: 7}]}
"""
WORDS = "fused bias add and gelu over NCHW activations, fp16"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def server(httpserver: HTTPServer) -> ModelServer:
    return ModelServer(httpserver)


def draft(server: ModelServer, *options: str) -> int:
    return main(["draft", WORDS, "--model", "local", "--base-url", server.url, *options])


def test_a_spec_is_repaired_shown_and_written(server: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [
        "no idea",
        json.dumps({"spec": SPEC.replace("[C]", "[K]").replace("F.gelu", "os.system")}),
        f"```yaml\n{SPEC}```",
    ]
    server.answer = lambda messages: answers[len(messages) // 2 - 1]
    assert draft(server, "--yes") == 0
    out = capsys.readouterr()
    assert SPEC in out.out
    assert "3 requests: 3000 tokens read" in out.err
    assert load_spec(Path("specs/bias_gelu.yaml")).reference.strip().endswith("[None, :, None, None])")
    told = server.requests[-1]["messages"][-1]["content"]
    assert "refused" in told
    assert "os" in told
    journals = [path.read_text() for path in Path("logs/drafts").rglob("journal.jsonl")]
    assert len(journals) == 1
    assert KEY not in "".join([*journals, out.out, out.err])


def test_nothing_is_written_unless_somebody_approves(server: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = lambda messages: json.dumps({"spec": SPEC})
    assert draft(server) == 2
    assert "not written; --yes writes it without asking" in capsys.readouterr().err
    assert not Path("specs").exists()
    assert draft(server, "--yes") == 0
    assert draft(server, "--yes") == 2, "it is there already"


def test_after_so_many_answers_it_gives_up(server: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = lambda messages: "no"
    assert draft(server, "--yes") == 4
    assert "no spec in 4 answers" in capsys.readouterr().err
    assert len(server.requests) == 4


def test_a_cap_ends_it(server: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = lambda messages: "no"
    assert draft(server, "--yes", "--max-tokens", "2500") == 4
    assert "cap on tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["draft", "x"], "draft needs a language model: set OPENAI_API_KEY"),
        (["draft", "x", "--base-url", "http://127.0.0.1:9/v1"], "draft needs the name of a language model"),
        (["optimize", "softmax", "--strategy", "llm"], "the strategy llm needs a language model: set OPENAI_API_KEY"),
    ],
)
def test_without_a_model_one_line_says_what_is_missing(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert main(arguments) == 4
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("spec: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {said}")


def test_a_cap_on_cost_needs_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draft", "x", "--model", "m", "--max-cost", "1"]) == 2
    assert "--max-cost needs --price-in and --price-out" in capsys.readouterr().err


@pytest.mark.parametrize("path", shipped_specs(), ids=lambda path: path.stem)
def test_the_shipped_references_are_arithmetic(path: Path) -> None:
    assert careful.findings(load_spec(path).reference) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.load('f')", "torch.save(x, 'f')", "torch.hub.load('r', 'm')", "torch.ops.load_library('x')", "x.tofile('f')",
        "torch.os.system('x')", "F.importlib.import_module('os')", "x.__class__", "torch.utils.cpp_extension.load('x')",
        "x._backward_hooks", "x.numpy()", "x.cuda()", "x.data_ptr()", "torch.set_default_device('cuda')", "torch.compile(x)",
        "torch.from_file('f')", "torch.nn.Module()", "m = torch", "o = torch.os", "f = torch.load", "torch.manual_seed(1)",
        "'{0.__class__}'.format(x)", "x.apply_(abs)", "torch.jit.script(x)", "torch.sys.exit()", "F.torch.load('f')",
    ],
)  # fmt: skip
def test_references_that_reach_outside_are_refused(line: str) -> None:
    assert careful.findings(f"def f(x):\n    {line}\n    return x\n")

"""`family: custom`: an operation that no family lowers, written by a language model behind a real server, judged by the
interpreter before a file is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_process import contents
from model_server import ModelServer
from pytest_httpserver import HTTPServer

from kernelgen import families, frontend, journal
from kernelgen.cli import main
from kernelgen.errors import SpecError, UnsupportedError
from kernelgen.evaluate import Candidate
from kernelgen.optimization import written
from kernelgen.outcomes import Evaluation, Status
from kernelgen.spec import load_spec, parse_spec

KEY = "sk-test-0123456789abcdef"
SPEC = """\
name: rows_sorted
family: custom
summary: Sort every row in ascending order.
inputs:
  - {name: x, shape: [N, D], dtype: T}
outputs:
  - {name: out, shape: [N, D], dtype: T}
dtypes: {T: [int32]}
constraints:
  - x.is_contiguous()
  - x.shape[-1] <= 16
reference: |
  def rows_sorted(x):
      return torch.sort(x, dim=-1).values
accuracy: {shapes: [{N: 5, D: 9}, {N: 1, D: 16}]}
performance: {shapes: [{N: 65536, D: 16}]}
"""
KERNEL = """\
@triton.jit
def rows_sorted_kernel(x_ptr, out_ptr, D, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + row * D + columns, mask=columns < D, other=2147483647)
    # every element goes where as many stand before it
    smaller = (x[None, :] < x[:, None]) | ((x[None, :] == x[:, None]) & (columns[None, :] < columns[:, None]))
    place = tl.sum(smaller.to(tl.int32), axis=1)
    tl.store(out_ptr + row * D + place, x, mask=columns < D)
"""


def answer(kernels: str = KERNEL, idea: str = "the rank of each element is its place") -> str:
    launch = {
        "kernel": "rows_sorted_kernel", "grid": ["N"], "arguments": ["x", "out", "D"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": "next_power_of_2(D)"}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    return json.dumps({"idea": idea, "kernels": kernels, "sizes": [], "scratch": [], "launches": [launch]})


GOOD = answer()
WRONG = answer(KERNEL.replace("(columns[None, :] < columns[:, None])", "(columns[None, :] < 0)"), "ties left alone")
UNCOMPILED = answer(KERNEL.replace("other=2147483647)", "other=missing)"), "a name that is nowhere")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELGEN_VERIFY", "no")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    Path("rows_sorted.yaml").write_text(SPEC)


@pytest.fixture
def server(httpserver: HTTPServer) -> ModelServer:
    return ModelServer(httpserver)


def run(server: ModelServer, *arguments: str) -> int:
    return main([*arguments, "--device", "cpu", "--model", "local", "--base-url", server.url])


def records() -> list[journal.Record]:
    (folder,) = journal.runs(Path("logs/rows_sorted/written"))
    return list(journal.read(folder))


def test_what_is_wrong_is_repaired_and_the_right_kernel_is_labelled_everywhere(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = ["no idea", UNCOMPILED, WRONG, GOOD]
    server.answer = lambda messages: answers[len(messages) // 2 - 1]
    assert run(server, "new", "rows_sorted.yaml") == 0
    said = capsys.readouterr()
    folder = Path("operators/rows_sorted")
    text = (folder / "rows_sorted_triton.py").read_text()
    assert KERNEL in text
    assert text.index("was proposed by a language model") < text.index("import torch")
    assert "written by a language model** (`family: custom`)" in (folder / "definition.md").read_text()
    assert "4 requests: 4000 tokens read" in said.err
    told = [request["messages"][-1]["content"] for request in server.requests]
    assert "There is no kernel of this operator yet" in told[0]
    assert "torch.sort(x, dim=-1)" in told[0]
    assert "holds no JSON object" in told[1]
    assert "missing is neither a parameter nor assigned" in told[2]
    assert "incorrect: N=5 D=9 int32" in told[3]
    assert [r.kind for r in records()].count("reply") == 4
    assert KEY not in "".join([*contents(Path()).values(), said.out, said.err])

    # from here on no model is needed, and the operator is one like any other
    assert main(["new", "rows_sorted.yaml"]) == 0
    assert main(["new", "--check"]) == 0
    assert main(["list", "--json"]) == 0
    assert '"state": "current, by a language model"' in capsys.readouterr().out
    assert len(server.requests) == 4

    # rounds go on from it
    faster = answer(KERNEL.replace("    # every element goes where as many stand before it\n", ""), "without a word")
    server.answer = lambda messages: faster
    assert run(server, "optimize", "rows_sorted.yaml", "--rounds", "1", "--candidates", "1", "--jobs", "1") == 0
    log = (folder / "optimization_log.md").read_text()
    assert "device code written by a language model, behind a wrapper of kernelgen's (family: custom)" in log
    assert "without a word" in log
    assert "finished 1 round" in capsys.readouterr().out
    assert run(server, "optimize", "rows_sorted.yaml", "--strategy", "block_size") == 2
    assert "tunes kernels of a family" in capsys.readouterr().err

    # another reference needs the model again
    monkeypatch.delenv("OPENAI_API_KEY")
    Path("rows_sorted.yaml").write_text(SPEC.replace("dim=-1)", "dim=-1, descending=True)"))
    assert main(["new", "rows_sorted.yaml", "--device", "cpu"]) == 4
    assert main(["new", "--check"]) == 4
    assert "none is there yet for this reference" in capsys.readouterr().err


def test_where_nothing_is_right_nothing_is_written(server: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = lambda messages: WRONG
    assert run(server, "new", "rows_sorted.yaml") == 4
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "rows_sorted: none of 6 kernels was right, and nothing was written; the last: incorrect: " in line
    assert not Path("operators").exists()
    assert len(server.requests) == 6
    assert len([r for r in records() if r.kind == "checked"]) == 1, "the same kernel is judged once"
    server.answer = lambda messages: "no idea"
    assert run(server, "new", "rows_sorted.yaml", "--max-tokens", "3500") == 4, "a new attempt asks anew"
    assert len(server.requests) == 7
    assert "nothing was written: what is left below the cap on tokens" in capsys.readouterr().err


class Judge:
    """Stands in for an evaluator: a kernel is right where its text is the good one's."""

    measures = False

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *of: object) -> None: ...

    def facts(self, made: Candidate, cases: object) -> tuple[()]:
        return ()

    def verify(self, made: Candidate, *, large: bool) -> Evaluation:
        status = Status.OK if KERNEL in made.source else Status.INCORRECT
        return Evaluation(made.source_hash, status, "" if status is Status.OK else "N=5 D=9 int32: wrong")


def test_killed_after_any_record_nothing_is_paid_twice(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies that are there are used, one that was under way is lost, the rest is asked."""
    monkeypatch.setattr(written, "evaluator", lambda *of: Judge())
    answers = ["no idea", WRONG, GOOD]

    def next_one(messages: list[dict[str, str]]) -> str:
        lost = sum(m["content"] == "(no answer)" for m in messages)
        return answers[min(len(messages) // 2 - 1 - lost, 2)]

    server.answer = next_one
    assert run(server, "new", "rows_sorted.yaml") == 0
    (folder,) = journal.runs(Path("logs/rows_sorted/written"))
    file = folder / journal.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    kinds = [r.kind for r in records()]
    assert kinds == ["run", "asked", "reply", "refused", "asked", "reply", "checked", "asked", "reply", "checked",
                     "finished"]  # fmt: skip
    for cut in range(1, len(lines)):
        shutil.rmtree("operators")
        file.write_bytes(b"".join(lines[:cut]) + lines[cut][: len(lines[cut]) // 2])  # the tail is torn
        kept = [r.kind for r in records()]
        before = len(server.requests)
        assert run(server, "new", "rows_sorted.yaml") == 0
        lost = kept.count("asked") - kept.count("reply")
        assert len(server.requests) - before == 3 - kept.count("reply"), f"cut after {cut}: {lost} lost"
        assert KERNEL in Path("operators/rows_sorted/rows_sorted_triton.py").read_text()
        keys = [r.data["key"] for r in records() if r.kind == "asked"]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize("command", [("new", "rows_sorted.yaml"), ("optimize", "rows_sorted.yaml")])
def test_without_a_model_one_line_says_what_is_missing(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    before = contents(Path())
    assert main([*command, "--device", "cpu"]) == 4
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("spec: ")]
    assert len(errors) == 1
    assert "needs a language model: set OPENAI_API_KEY" in errors[0]
    assert contents(Path()) == before
    assert main(["list", "--json"]) == 0
    assert "none yet; a language model writes it" in capsys.readouterr().out


def test_a_reference_that_does_something_else_is_refused_before_anything_is_asked(
    server: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows_sorted.yaml").write_text(SPEC.replace(".values", ".indices"))
    assert run(server, "new", "rows_sorted.yaml") == 2
    assert "rows_sorted.yaml:7:5: outputs declares out as int32 [1, 16] at N=1 D=16 int32" in capsys.readouterr().err
    Path("rows_sorted.yaml").write_text(SPEC.replace("dim=-1", "dim=7"))
    assert run(server, "new", "rows_sorted.yaml") == 2
    assert (
        "rows_sorted.yaml:14:3: the reference fails at N=1 D=16 int32: Dimension out of range"
        in capsys.readouterr().err
    )
    assert server.requests == []


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("family: custum", "spec:2:9: unknown family 'custum'; did you mean 'custom'?"),
        ("family: custom\ntype: scan", "spec:3:7: with 'family: custom' no family writes the kernel"),
        ("family: custom\nbackward: true", "spec:3:11: gradients are derived by families"),
        ("family: custom\ndeterministic: false", "spec:3:16: float atomics are a family's"),
        ("family: custom\noptimization_strategies: [llm, block_size]", "spec:3:32: block_size tunes the kernel of a"),
    ],
)
def test_what_a_family_alone_can_give_is_a_mistake(key: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(SPEC.replace("family: custom", key), "spec")
    assert said in str(caught.value)


def test_no_family_takes_the_operation() -> None:
    spec = load_spec(Path("rows_sorted.yaml"))
    assert spec.optimization_strategies == ("llm",)
    with pytest.raises(UnsupportedError, match="unsupported: nothing left for a kernel"):
        families.lower(spec, *frontend.trace(spec))

"""`kernelgen mcp` as an agent has it: the SDK's own client over stdio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import COMMAND, environment

from kernelgen.cli import main

SPEC = """\
name: double
summary: Twice the input.
inputs:
  - {name: x, shape: [N], dtype: float32}
outputs:
  - {name: out, shape: [N], dtype: float32}
reference: |
  def double(x):
      return x * 2
accuracy: {shapes: [{N: 5}]}
performance: {shapes: [{N: 1024}]}
"""


def session(folder: Path, *calls: tuple[str, dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The names of the tools, and what each call of one came to."""
    mcp = pytest.importorskip("mcp")
    import anyio

    async def talk() -> tuple[list[str], list[Any]]:
        server = mcp.StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], "mcp"], env=environment(), cwd=str(folder)
        )
        async with mcp.Client(mcp.stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            said = [(await client.call_tool(name, arguments)).structured_content for name, arguments in calls]
            return [tool.name for tool in tools], said

    return anyio.run(talk)


def test_an_agent_makes_a_kernel_and_is_told_of_its_mistakes(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    (tmp_path / "bad.yaml").write_text(SPEC.replace("summary", "sumary"))
    names, said = session(
        tmp_path,
        ("new", {"spec": "double.yaml", "verify": False}),
        ("new", {"spec": "bad.yaml"}),
        ("new", {"spec": "--help"}),
        ("check", {"operator": "duoble"}),
        ("report", {"operators": [], "out": "page.html"}),
    )
    assert names == ["new", "check", "optimize", "report"]
    good, bad, odd, missing, page = said
    assert (good["exit_code"], good["document"]["change"]) == (0, "new")
    assert (bad["exit_code"], bad["document"]["errors"][0]["line"]) == (2, 2)
    assert odd["exit_code"] == 2, "no text of an agent's is an option"
    assert "did you mean 'double'" in missing["document"]["errors"][0]["message"]
    assert (tmp_path / page["document"]["file"]).is_file()


def test_an_agent_checks_and_optimises(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(SPEC)
    _, (checked, run) = session(
        tmp_path,
        ("check", {"operator": "softmax"}),
        ("optimize", {"operator": "double", "rounds": 1, "candidates": 2, "device": "cpu"}),
    )
    assert checked["exit_code"] == 2
    assert run["exit_code"] == 0
    assert run["document"]["source"] == "predicted"
    _, (checked,) = session(tmp_path, ("check", {"operator": "double", "only": "N=5", "device": "cpu"}))
    assert [case["passed"] for case in checked["document"]["cases"]] == [True]
    assert "trials" not in checked["document"]["cases"][0]


def test_without_the_sdk_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 2
    assert "pip install 'kernelgen[mcp]'" in capsys.readouterr().err

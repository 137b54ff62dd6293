"""`kernelgen mcp`: a server of the Model Context Protocol over stdio, whose tools are commands of this program."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kernelgen import __version__
from kernelgen.errors import UsageError

COMMAND = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main())"]
LENGTHY = ("trials", "told", "undiscriminated")
"""What a case of an accuracy test says that an agent need not read."""
INSTRUCTIONS = """kernelgen writes Triton kernels from operator specs (YAML with a short PyTorch reference).
Order: write SPEC.yaml, `new`, `check`, `optimize`, `report`. Mistakes come with file, line and column. Figures are
`measured` on a GPU and `predicted` elsewhere. Everything happens in the folder that the server was started in."""


def mcp() -> None:
    """Serve new, check, optimize and report over MCP (stdio).

    Works in the current folder. Needs the extra `mcp`.
    """
    try:
        from mcp.server.mcpserver import MCPServer
    except ModuleNotFoundError:
        raise UsageError("the MCP SDK is not installed: pip install 'kernelgen[mcp]'") from None
    server = MCPServer("kernelgen", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in (new, check, optimize, report):
        server.add_tool(tool)
    server.run("stdio")


async def new(spec: str, force: bool = False, verify: bool = True) -> dict[str, Any]:
    """Write a kernel, its baseline and its tests from a spec: a YAML file, or the name of a shipped one.

    force: write over files that were changed by hand. verify: run the smallest case and compile before writing.
    """
    return await _called("new", [spec], "--verify" if verify else "--no-verify", *(["--force"] if force else []))


async def check(operator: str, only: str = "", device: str = "") -> dict[str, Any]:
    """Run an operator's accuracy test. only: cases with this text in their label. device: cuda, npu or cpu."""
    said = await _called("check", [operator], *_option("--only", only), *_option("--device", device))
    for case in said["document"].get("cases", ()):
        for key in LENGTHY:
            case.pop(key, None)
    return said


async def optimize(
    operator: str, rounds: int = 1, candidates: int = 0, max_minutes: float = 0, device: str = ""
) -> dict[str, Any]:
    """Make an operator's kernel faster in rounds: diagnose, search, verify, keep or revert. Minutes a round.

    candidates, max_minutes: 0 for the default. device: cuda, npu or cpu; by default the best one here.
    """
    return await _called(
        "optimize",
        [operator],
        *_option("--rounds", rounds),
        *_option("--candidates", candidates),
        *_option("--max-minutes", max_minutes),
        *_option("--device", device),
    )


async def report(operators: list[str], out: str = "report.html") -> dict[str, Any]:
    """Write the newest runs of operators as one HTML page that needs no network; no operators: all of them."""
    return await _called("report", operators, "--out", out)


def _option(name: str, value: object) -> list[str]:
    return [f"{name}={value}"] if value else []


async def _called(command: str, positional: list[str], *options: str) -> dict[str, Any]:
    """A command's exit code and document. It has a process of its own: stdout of this one is the protocol's."""
    import anyio

    arguments = [*COMMAND, command, *options, "--json", "--", *positional]
    done = await anyio.run_process(arguments, stdin=subprocess.DEVNULL, check=False)
    text = done.stdout.decode("utf-8", "replace").strip()
    document = json.loads(text) if text else {"error": done.stderr.decode("utf-8", "replace").strip()[-2000:]}
    return {"exit_code": done.returncode, "document": document}

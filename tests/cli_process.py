"""The command line as a user has it: real processes, and what they leave in a folder."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgen.cli import main

REPO = Path(__file__).parent.parent

COMMAND = [sys.executable, "-c", "import sys; from kernelgen.cli import main; sys.exit(main())"]
"""What the console script does, also where kernelgen is not installed."""


def environment(**extra: str) -> dict[str, str]:
    """This process's, without settings of kernelgen's and the interpreter that tests in this process have asked for,
    and with the kernelgen of this checkout before what else is to be found. `new` does not run what it writes: that
    takes seconds, and has tests of its own."""
    path = os.pathsep.join(filter(None, (str(REPO), os.environ.get("PYTHONPATH"))))
    kept = {n: value for n, value in os.environ.items() if not n.startswith("KERNELGEN_") and n != "TRITON_INTERPRET"}
    return {**kept, "PYTHONPATH": path, "KERNELGEN_VERIFY": "no", **extra}


def kernelgen(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a folder."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(**env),
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


def kernelgen_here(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a folder, in this process, which has loaded what a command loads: 0.4 s less. A command that
    ends otherwise than by its exit code needs a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        wanted = environment(**env)
        for name in os.environ.keys() - wanted.keys():
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with its text; an operator's lock, which says nothing, left out."""
    return {
        str(path.relative_to(folder)): path.read_text("utf-8", "replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name != "lock"
    }


def refused(*arguments: str, cwd: Path, code: int = 2, **env: str) -> str:
    """The one line with which a command refuses; checks its exit code and that it printed and wrote nothing else."""
    before = contents(cwd)
    return one_line(kernelgen(*arguments, cwd=cwd, **env), before, cwd, code)


def refused_here(*arguments: str, cwd: Path, code: int = 2, **env: str) -> str:
    """`refused` in this process."""
    before = contents(cwd)
    return one_line(kernelgen_here(*arguments, cwd=cwd, **env), before, cwd, code)


def one_line(done: subprocess.CompletedProcess[str], before: dict[str, str], cwd: Path, code: int) -> str:
    """The one line of a command that refused and left the folder as it was before."""
    assert contents(cwd) == before
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (code, ""), done
    lines = [line for line in done.stderr.splitlines() if not line.startswith("spec: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]

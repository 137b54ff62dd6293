"""A file that is run in a fork of a process that has torch already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgen.importer.isolated import run_forked


def test_a_fork_answers_with_its_exit_code(tmp_path: Path) -> None:
    written = tmp_path / "written"
    assert run_forked(lambda: written.write_text("done") and None, 10.0) == 0
    assert written.read_text() == "done"
    assert run_forked(lambda: 1 // 0 and None, 10.0) == 1
    assert run_forked(lambda: os.kill(os.getpid(), signal.SIGSEGV), 10.0) == -signal.SIGSEGV


def test_a_fork_is_killed_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def work() -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        started.write_text(str(child.pid))
        time.sleep(60)

    with pytest.raises(subprocess.TimeoutExpired):
        run_forked(work, 1.0)
    pid, end = int(started.read_text()), time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]:
        assert time.monotonic() < end, "what the fork started still runs"
        time.sleep(0.05)


def test_a_fork_reads_nothing_that_is_meant_for_its_parent() -> None:
    read, write = os.pipe()
    os.write(write, b"for the parent\n")
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        assert run_forked(lambda: os._exit(len(os.read(0, 5))), 10.0) == 0
        assert os.read(0, 3) == b"for"
    finally:
        os.dup2(before, 0)
        for number in (read, write, before):
            os.close(number)

"""A disk that fills up at any point of `kernelgen optimize`: one clear line, exit code 2, and on it goes when there is room.

A child has a small file system of its own where the machine lets it mount one; elsewhere a limit on the size of files,
which the same calls meet at the same places, takes its part.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rounds_fakes import FakeEvaluator

from kernelgen import evaluate, journal
from kernelgen.analysis import Work
from kernelgen.cli import main
from kernelgen.evaluate import Candidate
from kernelgen.outcomes import CaseTiming, Evaluation, Status
from kernelgen.spec.model import Case

NEW_NAMESPACE, NEW_USER, PRIVATE = 0x20000, 0x10000000, 0x44000
DISK = 4 << 20
COMMAND = ["optimize", "relu", "--device", "cpu", "--rounds", "2", "--candidates", "4"]


@dataclass
class Predicted(FakeEvaluator):
    """Times that follow from a kernel's text: nothing is compiled, and two runs are alike."""

    measures: bool = False

    def work(self, case: Case) -> Work:
        return Work(1 << 20, 1 << 20, 1 << 18)

    def _timed(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        new, old = (100 + int(one.source_hash[:4], 16) / 1000 for one in (candidate, current))
        timings = tuple(
            CaseTiming(case.label, "predicted", new, "current", old, old / new, None, floor_us=10.0) for case in cases
        )
        return Evaluation(candidate.source_hash, Status.OK, timings=timings)


def command() -> tuple[int, str]:
    """`kernelgen optimize` in the working folder: its exit code and what it said on stderr."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(COMMAND)
    return code, said.getvalue()


def in_child(work: Callable[[], None]) -> None:
    """Do some work in a child; what it raises is this process's failure too."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, "what failed is in the child's output"


def mount(folder: Path) -> bool:
    """A small file system over a folder, for this process alone; False where that is not allowed."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(NEW_NAMESPACE | (NEW_USER if user else 0)):
        return False
    try:
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    libc.mount(b"none", b"/", None, PRIVATE, None)
    return libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={DISK}".encode()) == 0


def filled(room: int) -> Callable[[], None]:
    """Leave so many bytes of the working folder's disk; the function that makes room again."""
    free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
    Path("filler").write_bytes(b"x" * (free - room))
    return Path("filler").unlink


def limited(room: int) -> Callable[[], None]:
    """No file may be longer than this."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def outcome(folder: Path) -> tuple[str, list[int]]:
    """The kernel that a run left, and its rounds."""
    (run,) = [found for found in journal.runs(folder / "logs" / "relu") if journal.read(found)]
    rounds = [r.data["round"] for r in journal.read(run) if r.kind == "round"]
    return (folder / "operators" / "relu" / "relu_triton.py").read_text(), rounds


@pytest.mark.parametrize("real", [True, False], ids=["disk", "limit"])
def test_a_full_disk_is_one_line_and_loses_nothing(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "evaluator", lambda *of, **more: Predicted())
    monkeypatch.chdir(tmp_path)
    assert command()[0] == 0
    wanted = outcome(tmp_path)
    assert wanted[1] == [0, 1, 2]
    largest = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    whole = sum(-(-path.stat().st_size // 4096) * 4096 for path in tmp_path.rglob("*") if path.is_file())

    def fill_again_and_again() -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        fill, most, parts = (filled, whole, 8) if real and mount(disk) else (limited, largest, 3)
        full = 0
        for part in range(parts):
            folder = disk / str(part)
            folder.mkdir()
            os.chdir(folder)
            make_room = fill(part * most // parts)
            code, said = command()
            make_room()
            errors = [line for line in said.splitlines() if line.startswith("error: ")]
            assert "Traceback" not in said, said
            assert (code, len(errors)) in ((0, 0), (2, 1)), said
            assert all("cannot write" in line for line in errors), said
            full += code == 2
            if code:
                assert command()[0] == 0
            assert outcome(folder) == wanted
            os.chdir(disk)
            shutil.rmtree(folder)
        assert full > parts // 2, f"the disk was full {full} times of {parts}"

    in_child(fill_again_and_again)

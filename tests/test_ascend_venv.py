"""The environment of the Ascend compiler: one process makes it at a time, and what failed is not taken for whole."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelgen import ascend
from kernelgen.ascend import room_client, venv
from kernelgen.errors import NoDeviceError


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(venv.VARIABLE, str(tmp_path / "venv"))
    return tmp_path / "venv"


def test_two_at_once_make_it_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    started = threading.Barrier(2)

    def slowly(interpreter: str, folder: Path) -> Iterator[str]:
        made.append(interpreter)
        time.sleep(0.3)  # the other is waiting by then
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        (folder / "ready").write_text("triton-ascend 3.2.0\n")
        yield "made"

    def create() -> list[str]:
        started.wait()
        return list(ascend.create())

    monkeypatch.setattr(venv, "_made", slowly)
    with ThreadPoolExecutor(2) as pool:
        said = sorted(future.result() for future in [pool.submit(create), pool.submit(create)])
    assert said == [["another process has made it", "triton-ascend 3.2.0"], ["made", "triton-ascend 3.2.0"]]
    assert len(made) == 1


def test_what_another_left_undone_is_done(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that does not answer is one line of an error, leaves nothing ready, and frees the lock."""
    monkeypatch.setattr(venv, "_run", lambda said, command: target.mkdir(exist_ok=True))

    def silent(python: Path, request: dict[str, object]) -> dict[str, object]:
        raise room_client.RoomError("the Ascend compiler died (1): ImportError")

    monkeypatch.setattr(room_client, "ask", silent)
    for _ in range(2):
        with pytest.raises(NoDeviceError, match="ImportError") as error:
            list(ascend.create())
        assert not isinstance(error.value, ascend.NotInstalled)
        assert ascend.ready() is None


def test_packages_that_cannot_be_had_are_another_error(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the compiler's own tests are skipped for, and pip's line is the reason that they show."""
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for triton-ascend==3.2.0\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ascend.NotInstalled, match="No matching distribution"):
        list(ascend.create())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(venv.VARIABLE, str(tmp_path / "file" / "venv"))
    with pytest.raises(NoDeviceError, match="file"):
        list(ascend.create())

"""One process at a time takes times on a device, and none works beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelgen import devices
from kernelgen.devices.alone import lock_of

GPU = replace(devices.find("cpu"), name="gpu", environment=())
HOLDS = """
import sys, time
from dataclasses import replace
from kernelgen import devices
how, *stays = sys.argv[1:]
with getattr(devices, how)(replace(devices.find("cpu"), environment=())):
    print("holds", flush=True)
    if stays:
        sys.stdin.readline()
    print(time.monotonic(), flush=True)
"""


def _begun(how: str, *stays: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDS, how, *stays],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables},
    )  # fmt: skip


def test_who_takes_times_waits_for_another_process_and_not_for_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = _begun("alone", "stays")
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "holds\n"
        second = _begun("alone")
        out, _ = _begun("alone", CUDA_VISIBLE_DEVICES="1").communicate(timeout=60)
        assert out.startswith("holds"), "another device"
        time.sleep(0.5)
        assert second.poll() is None
    finally:
        first.kill()
        first.communicate()
    out, _ = second.communicate(timeout=60)
    assert out.startswith("holds")


def _held(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    return process


def test_who_takes_times_waits_for_what_works_beside_and_is_passed_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    working = [_held(_begun("beside", "stays")) for _ in range(2)]  # beside each other
    timing = _begun("alone", "stays")
    time.sleep(0.5)
    late = _begun("beside")
    time.sleep(0.5)
    assert (timing.poll(), late.poll()) == (None, None)
    for one in working:
        one.communicate("\n", timeout=60)
    _held(timing)
    assert late.poll() is None
    timed, _ = timing.communicate("\n", timeout=60)
    began, _ = late.communicate(timeout=60)
    assert float(timed) <= float(began.split()[1])


def test_a_device_is_told_by_the_first_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert lock_of(GPU).name == "gpu-0.lock"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert lock_of(GPU).name == "gpu-3.lock"
    shown = replace(GPU, environment=(("CUDA_VISIBLE_DEVICES", "GPU-8f/2"),))
    assert lock_of(shown).name == "gpu-GPU-8f-2.lock"


def test_where_the_cache_cannot_be_written_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with devices.alone(GPU):
        assert not lock_of(GPU).exists()


def test_where_files_cannot_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", flock)
    with devices.alone(GPU):
        assert lock_of(GPU).parent.exists()
    with pytest.raises(OSError, match="of the block"), devices.alone(GPU):
        raise OSError("of the block")

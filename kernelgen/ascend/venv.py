"""The virtual environment that the Ascend compiler lives in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kernelgen.devices import cache_folder
from kernelgen.errors import NoDeviceError
from kernelgen.files import write_atomic

PACKAGES = ("triton-ascend==3.2.0", "ascendnpu-ir==1.2.0", "pybind11>=2.13,<4", "numpy<2.4")
"""triton-ascend declares no dependencies, and its interpreter breaks with numpy 2.4. 3.2.0 is the newest release."""
SUPPORTED = ("3.11", "3.10")
"""Versions of Python that both triton-ascend 3.2.0 and ascendnpu-ir 1.2.0 have wheels for."""
VARIABLE = "KERNELGEN_ASCEND_VENV"
LIMIT_S = 1800
"""220 MB are loaded."""


class NotInstalled(NoDeviceError):
    """The packages cannot be had on this machine: no Python that they are for, or no way to load them."""


def folder() -> Path:
    """Where the environment is: KERNELGEN_ASCEND_VENV, or below the cache folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else cache_folder() / "ascend-venv"


def environment() -> dict[str, str]:
    """What a worker must know to find the environment; torch-npu, where it is installed, is not loaded with torch."""
    return {VARIABLE: str(folder()), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def folders() -> tuple[str, ...]:
    """What a process that asks the compiler must be able to read: the environment, and the Python that it is of."""
    here = folder()
    settings = (here / "pyvenv.cfg").read_text(encoding="utf-8") if (here / "pyvenv.cfg").is_file() else ""
    homes = [line.partition("=")[2].strip() for line in settings.splitlines() if line.startswith("home")]
    return (str(here), str(Path(__file__).parent), *(str(Path(home).parent) for home in homes))


def ready() -> Path | None:
    """The environment's Python; None where `create` has not made it."""
    python = folder() / "bin" / "python"
    return python if (folder() / "ready").is_file() and python.is_file() else None


def require() -> Path:
    """The environment's Python. Raises NoDeviceError where `create` has not made it."""
    python = ready()
    if python is None:
        raise NoDeviceError("the Ascend compiler is not set up: `kernelgen doctor --setup ascend` installs it")
    return python


def create() -> Iterator[str]:
    """Make the environment, or make it again, saying every step.

    Raises NotInstalled where the packages cannot be had, NoDeviceError where what was installed does not work.

    One process makes it at a time. One that had to wait takes what the other has made.
    """
    interpreter = _interpreter()
    target = folder()
    with _alone(target) as waited:
        if waited and ready() is not None:
            yield "another process has made it"
        else:
            yield from _made(interpreter, target)
    yield (target / "ready").read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[bool]:
    """Hold the lock of an environment, which lies beside it; yields whether another process had it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(target.with_name(f"{target.name}.lock"), os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise NoDeviceError(f"{target}: {error}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that holds it, however that ends
            yield True
        else:
            yield False
    finally:
        os.close(lock)


def _made(interpreter: str, target: Path) -> Iterator[str]:
    """Every step of making it. `ready` is written last, so that what was interrupted is never taken for whole."""
    steps = (
        (f"{interpreter} -m venv {target}", [interpreter, "-m", "venv", "--clear", str(target)]),
        (
            f"pip install {' '.join(PACKAGES)}",
            [str(target / "bin" / "pip"), "install", "--quiet", "--no-deps", *PACKAGES],
        ),
    )
    for said, command in steps:
        yield said
        _run(said, command)
    yield "the compiler answers"
    from kernelgen.ascend.room_client import RoomError, ask

    try:
        answer = ask(target / "bin" / "python", {"op": "versions"})
    except RoomError as error:
        raise NoDeviceError(f"{target}: {error}") from None
    write_atomic(target / "ready", " ".join(f"{name} {version}" for name, version in sorted(answer.items())) + "\n")


def _interpreter() -> str:
    """A Python that the wheels are for: the running one if it is."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here in SUPPORTED:
        return sys.executable
    found = next((path for path in (shutil.which(f"python{version}") for version in SUPPORTED) if path), None)
    if found is None:
        wanted = " or ".join(SUPPORTED)
        raise NotInstalled(f"the Ascend compiler needs Python {wanted}, which is not installed")
    return found


def _run(said: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{said}: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = next((line for line in lines if line.startswith("ERROR")), (lines or ["it said nothing"])[-1])
        raise NotInstalled(f"{said}: {last[:300]}")

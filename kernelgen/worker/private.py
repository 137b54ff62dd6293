"""The folder of one run's workers: home, temporary files and compiled kernels that nobody else reads or writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kernelgen.errors import UsageError

PARTS = ("home", "tmp", "triton", "inductor", "cwd")


def make(base: Path) -> Path:
    """A new folder below `base`, readable for this user alone; those of runs that are no more are removed.

    Raises UsageError where it cannot be made.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        for old in base.iterdir():
            owner = old.name.partition("-")[0]
            if owner.isdigit() and not alive(int(owner)):
                shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=base, prefix=f"{os.getpid()}-"))
        for part in PARTS:
            (folder / part).mkdir()
    except OSError as error:
        raise UsageError(f"{base}: cannot write here: {error.strerror}") from None
    return folder


def make_store(base: Path) -> Path:
    """A new folder below `base` that workers read and do not write, removed as that of `make` is."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=base, prefix=f"{os.getpid()}-candidates-"))
    except OSError as error:
        raise UsageError(f"{base}: cannot write here: {error.strerror}") from None


def variables(folder: Path) -> dict[str, str]:
    """The environment that keeps everything a worker writes inside its folder."""
    return {
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
        "TMPDIR": str(folder / "tmp"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_HOME": str(folder / "home"),
        "CUDA_CACHE_PATH": str(folder / "home" / "cuda"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool would outlive a killed worker
    }


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

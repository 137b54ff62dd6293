"""Writing files so that a reader sees the old text or the new text, never half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kernelgen.errors import UsageError


def write_atomic(path: Path, text: str) -> None:
    """Write `text` under a temporary name in the same folder, fsync, rename over `path`, fsync the folder.

    Raises UsageError, naming the path, where the folder cannot be made or written, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot write here: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
        sync_folder(path.parent)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{path}: cannot write: {error.strerror}") from None
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(folder: Path) -> None:
    """Raise UsageError, naming the folder, unless files can be made in it; makes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".writable.")
    except OSError as error:
        raise UsageError(f"{folder}: cannot write here: {error.strerror}") from None
    os.close(handle)
    os.unlink(name)

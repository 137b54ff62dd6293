"""Writing files so that a reader sees the old text or the new text, never half of one; reading them back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelgen.errors import UsageError

AT_ONCE = 16
"""Files on their way to a disk."""


def read_text(path: Path) -> str | None:
    """A file's text; None where there is none. Bytes that are no UTF-8 become surrogates, so that nothing is lost.

    Raises UsageError, naming the path, where it is a folder, a loop of links or may not be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def parse_json(text: str) -> Any:
    """JSON that a program wrote. Raises ValueError, saying why, for anything else: keys twice, nesting without end,
    numbers that are none."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} on line {error.lineno}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {twice[:60]!r} twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def write_atomic(path: Path, text: str) -> None:
    """Write `text` under a temporary name in the same folder, fsync, rename over `path`, fsync the folder.

    What `read_text` read as surrogates is written as the bytes that it was.

    Raises UsageError, naming the path, where the folder cannot be made or written, or the disk is full.
    """
    write_all([(path, text)])


def write_all(files: Sequence[tuple[Path, str]]) -> None:
    """Write several files as `write_atomic` does. They reach the disk side by side and a folder is synced once, which
    takes a disk a small part of the time that they take one after the other. Raises UsageError as it does."""
    written: list[str] = []
    path = Path()
    try:
        for path, text in files:
            written.append(_temporary(path, text))
        if len(written) == 1:
            sync(written[0])
        elif written:
            with ThreadPoolExecutor(min(len(written), AT_ONCE)) as pool:
                list(pool.map(sync, written))
        for (path, _), name in zip(files, written, strict=True):
            os.chmod(name, 0o644)
            os.replace(name, path)
        for folder in dict.fromkeys(path.parent for path, _ in files):
            sync(folder)
    except BaseException as error:
        for name in written:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{path}: cannot write: {error.strerror}") from None
        raise


def _temporary(path: Path, text: str) -> str:
    """A new file in the path's folder with the text, by its name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot write here: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return name


def sync(path: str | Path) -> None:
    """Make durable what was written to a file, or a rename or a new name in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_creatable(folder: Path) -> None:
    """Raise UsageError unless the folder, or the nearest one above it that is there, takes new files; makes none."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"{folder}: cannot write here: {there} is not a folder")
    check_writable(there)


def check_writable(folder: Path) -> None:
    """Raise UsageError, naming the folder, unless files can be made in it; makes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".writable.")
    except OSError as error:
        raise UsageError(f"{folder}: cannot write here: {error.strerror}") from None
    os.close(handle)
    os.unlink(name)

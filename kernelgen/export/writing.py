"""Reading what was generated, and writing what is exported: all files or none."""

from __future__ import annotations

import ast
from pathlib import Path

from kernelgen.errors import UsageError
from kernelgen.files import read_text, write_atomic


def read(path: Path) -> str:
    """A generated file. UsageError where it is not there, cannot be read, or is no Python any more."""
    text = read_text(path)
    if text is None:
        raise UsageError(f"{path}: no such file; `kernelgen new` writes it")
    try:
        text.encode()
        if path.suffix == ".py":
            ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno or 1}: not Python: {error.msg}; `kernelgen new` writes it") from None
    except (ValueError, RecursionError, MemoryError):
        raise UsageError(f"{path}: not the text that was generated; `kernelgen new` writes it") from None
    return text


def check_free(to: Path, force: bool) -> None:
    """Raise UsageError where `to` is a folder with something in it, or a file, and `force` is not set."""
    if force:
        return
    if to.is_dir() and any(to.iterdir()):
        raise UsageError(f"{to} is not empty: choose another folder with --to, or write over it with --force")
    if to.is_file():
        raise UsageError(f"{to} is there already: choose another with --to, or write over it with --force")


def write(texts: dict[Path, str]) -> list[Path]:
    """Write every file and return their paths."""
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)

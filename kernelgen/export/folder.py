"""`kernelgen export`: an operator's files in a folder that runs without kernelgen, the judge beside them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kernelgen.errors import UsageError
from kernelgen.files import read_text, write_atomic

KINDS = ("triton", "baseline", "accuracy", "performance")

_JUDGE = Path(__file__).parents[1] / "judge"

_README = """\
# {name}

A Triton kernel with the tests that judge it, made by kernelgen. It needs PyTorch, Triton and, without a GPU, NumPy
(Triton's interpreter uses it).

    python {name}_accuracy.py       # is it right? against PyTorch and an fp64 reference
    python {name}_performance.py    # how fast is it? against PyTorch eager and torch.compile, on an NVIDIA GPU

Both take `--help`. In your own code `{name}_triton.py` is enough:

    from {name}_triton import {name}
"""


def folder_files(name: str, folder: Path, to: Path) -> dict[Path, str]:
    """The files of the operator `name` of `folder` as they go into the folder `to`."""
    texts = {to / f"{name}_{kind}.py": _alone(read(folder / f"{name}_{kind}.py")) for kind in KINDS}
    texts[to / "README.md"] = _README.format(name=name)
    definition = folder / "definition.md"
    if definition.is_file():
        texts[to / definition.name] = read(definition)
    for path in sorted(_JUDGE.rglob("*.py")):
        texts[to / "judge" / path.relative_to(_JUDGE)] = _alone(path.read_text("utf-8"))
    return texts


def _alone(source: str) -> str:
    """The source with the judge imported from the folder beside it instead of from kernelgen."""
    source = re.sub(r"^(\s*)from kernelgen import judge\b", r"\1import judge", source, flags=re.MULTILINE)
    return re.sub(r"\bkernelgen\.judge\b", "judge", source)


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
        raise UsageError(f"{to} already exists: choose another with --to, or overwrite it with --force")


def write(texts: dict[Path, str]) -> list[Path]:
    """Write every file and return their paths."""
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)

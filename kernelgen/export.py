"""`kernelgen export`: an operator's files in a folder that runs without kernelgen, the judge beside them."""

from __future__ import annotations

import re
from pathlib import Path

from kernelgen.errors import UsageError
from kernelgen.files import write_atomic

KINDS = ("triton", "baseline", "accuracy", "performance")

_JUDGE = Path(__file__).parent / "judge"

_README = """\
# {name}

A Triton kernel with the tests that judge it, made by kernelgen. It needs PyTorch, Triton and, without a GPU, NumPy
(Triton's interpreter uses it).

    python {name}_accuracy.py       # is it right? against PyTorch and an fp64 reference
    python {name}_performance.py    # how fast is it? against PyTorch eager and torch.compile, on an NVIDIA GPU

Both take `--help`. In your own code `{name}_triton.py` is enough:

    from {name}_triton import {name}
"""


def export(name: str, folder: Path, to: Path, *, force: bool = False) -> list[Path]:
    """Write the operator `name` of `folder` into the folder `to` and return what was written.

    Raises UsageError, having written nothing, where `to` already has something in it and `force` is not set.
    """
    if to.is_dir() and any(to.iterdir()) and not force:
        raise UsageError(f"{to} is not empty: choose another folder with --to, or write over it with --force")
    texts = {to / f"{name}_{kind}.py": _alone(_read(folder / f"{name}_{kind}.py")) for kind in KINDS}
    texts[to / "README.md"] = _README.format(name=name)
    definition = folder / "definition.md"
    if definition.is_file():
        texts[to / definition.name] = definition.read_text("utf-8")
    for path in sorted(_JUDGE.rglob("*.py")):
        texts[to / "judge" / path.relative_to(_JUDGE)] = _alone(path.read_text("utf-8"))
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; `kernelgen new` writes it") from None


def _alone(source: str) -> str:
    """The source with the judge imported from the folder beside it instead of from kernelgen."""
    source = re.sub(r"^(\s*)from kernelgen import judge\b", r"\1import judge", source, flags=re.MULTILINE)
    return re.sub(r"\bkernelgen\.judge\b", "judge", source)

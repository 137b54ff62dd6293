"""Names: of the operator, after its file; of what forward reads, after its attribute; of sizes, by their rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import PydanticCustomError

from kernelgen.spec.leaves import identifier
from kernelgen.spec.model import Place
from kernelgen.spec.tree import Text

LETTERS = {1: "N", 2: "MN", 3: "BMN", 4: "BCHW", 5: "BCDHW"}
"""What the dimensions of a tensor of each rank are usually called."""

SPARE = ("K", "L", "P", "Q", "R", "S", "U", "V", "X", "Y", "Z", "G", "E", "I", "J", "O")


def operator_name(path: Path) -> str:
    """`36_RMSNorm_.py` as `rms_norm`; empty where nothing of the file's name is left."""
    stem = re.sub(r"^\d+_", "", path.stem).replace("ReLU", "Relu")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem)
    name = re.sub(r"[^0-9a-z]+", "_", words.lower()).strip("_")
    name = f"op_{name}" if name[:1].isdigit() else name
    return name if usable(name) else ""


def usable(name: str) -> bool:
    """Whether a spec may name something so."""
    try:
        return bool(identifier(Text(name, Place(1, 1))))
    except PydanticCustomError:
        return False


def unique(wanted: str, taken: Iterable[str]) -> str:
    """The name, or one like it that a spec may use and that nothing else has."""
    taken = set(taken)
    base = re.sub(r"[^0-9A-Za-z_]", "_", wanted).strip("_") or "value"
    base = base if base[0].isalpha() else f"value_{base}"
    candidates = [base, f"{base}_in", *(f"{base}_{i}" for i in range(2, 1000))]
    return next(name for name in candidates if usable(name) and name not in taken)


def size_names(rank: int, taken: Iterable[str]) -> Iterator[str]:
    """Names for the sizes of a tensor of this rank from the outermost inwards, then further ones."""
    used = set(taken)
    for letter in LETTERS.get(rank, ""):
        yield letter if letter not in used else spare(used)
    while True:
        yield spare(used)


def spare(taken: set[str]) -> str:
    """A letter that nothing has yet, or a numbered one."""
    found = next(n for n in (*SPARE, *(f"D{i}" for i in range(1, 1000))) if n not in taken)
    taken.add(found)
    return found

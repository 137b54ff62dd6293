"""The nearest right word to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "float8": "float8_e4m3fn",
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "long": "int64",
    "int": "int32",
}


_REFUSED = ("float64", "double", "complex64", "complex128", "cfloat", "cdouble")
"""Dtypes of torch's that no kernel has."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely stands for, or None where nothing is near."""
    words = list(known)
    alias = _ALIASES.get(word.lower().removeprefix("torch."))
    if alias in words:
        return alias
    by_folded = {w.lower(): w for w in reversed(words)}
    close = difflib.get_close_matches(word.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def hint(word: str, known: Iterable[str]) -> str:
    """The tail of a message: `; did you mean 'dtypes'?`, else the known words where they are few, else nothing."""
    words = list(known)
    if word.lower().removeprefix("torch.") in _REFUSED and "float32" in words:
        return (
            "; kernels have no float64 and no complex numbers: use float32, of complex numbers for each of their parts"
        )
    near = nearest(word, words)
    if near is not None:
        return f"; did you mean '{near}'?"
    return f"; known: {', '.join(words)}" if 0 < len(words) <= 12 else ""

"""A name for what is equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def digest(parts: Sequence[str]) -> str:
    """A short hash of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

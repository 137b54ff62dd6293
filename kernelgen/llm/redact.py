"""Keeping keys out of everything that is written or shown."""

from __future__ import annotations

import re

HIDDEN = "***"
_SHAPED = (
    (re.compile(r"\bsk-[A-Za-z0-9_\-*]{6,}"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|api[-_ ]?key\W{1,3})\s*[A-Za-z0-9._\-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=://)[^/\s@]+:[^/\s@]+(?=@)"), HIDDEN),
)
"""What looks like a key even where it is not ours, and credentials in addresses."""


def redact(text: str, key: str | None = None) -> str:
    """The text without `key` and without anything shaped like one."""
    if key and len(key) >= 4:
        text = text.replace(key, HIDDEN)
    for pattern, replacement in _SHAPED:
        text = pattern.sub(replacement, text)
    return text

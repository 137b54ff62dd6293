"""Printing: results on stdout, everything else on stderr, one JSON document where it was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence


def note(line: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    print(line, file=sys.stderr, flush=True)


def emit(document: object) -> None:
    """The one JSON document of a command; paths become text."""
    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, as many as the first row has; the last is never padded."""
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)] if cells else []
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    )

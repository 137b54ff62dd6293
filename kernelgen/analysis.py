"""What an operator must do at the least: bytes moved and operations done for one case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The least a kernel must do for one case, whatever its schedule."""

    bytes_read: int
    bytes_written: int
    flops: int

"""What an import gives back, apart from what makes it: whoever waits for the process that does loads none of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelgen.importer.load import Loaded


@dataclass(frozen=True)
class Imported:
    """A spec that was made from a file."""

    name: str
    text: str
    notes: tuple[str, ...]
    """What its reader should know that the spec does not say."""
    left_out: tuple[Loaded, ...] = ()
    """Those of other modules whose sizes the spec does not take."""

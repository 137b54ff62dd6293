"""Printing: results on stdout, everything else on stderr, one JSON document where it was asked for. And the options
that several commands share: numbers arrive as text, so that `settings` words every mistake the same way."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from kernelgen.cli.names import complete_quartet, complete_spec
from kernelgen.language import LANGUAGES, Language
from kernelgen.settings import Settings


def note(line: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    print(line, file=sys.stderr, flush=True)


EMITTED: list[bool] = []
"""Whether this command has printed its document."""


def emit(document: object) -> None:
    """The one JSON document of a command; paths become text."""
    EMITTED.append(True)
    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, as many as the first row has; the last is never padded."""
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)] if cells else []
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    )


_names = typer.Argument(
    metavar="NAME...", help="Generated operators: names, globs or spec files.", autocompletion=complete_quartet
)
_spec = typer.Argument(metavar="SPEC", help="A spec file, or the name of a shipped one.", autocompletion=complete_spec)

Names = Annotated[list[str] | None, _names]
All = Annotated[bool, typer.Option("--all", help="All operators in operators/.")]
OptionalSpec = Annotated[str | None, _spec]
NameOrSpec = Annotated[
    str, typer.Argument(metavar="NAME|SPEC", help="An operator or its spec.", autocompletion=complete_spec)
]
NamesOrSpecs = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME|SPEC...", help="Operators, globs, or specs.", autocompletion=complete_spec),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite hand-edited or existing files.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]
DeviceName = Annotated[
    str | None, typer.Option("--device", metavar="cuda|npu|cpu", help="Device to use; default: the best one available.")
]
Arch = Annotated[
    str | None,
    typer.Option("--arch", "--target", metavar="sm_90|ascend910b3", help="Architecture to compile and predict for."),
]
Lang = Annotated[
    str | None,
    typer.Option("--lang", metavar="en|zh", help="Language of definition.md and the log; default: unchanged."),
]
Target = Annotated[str | None, typer.Option("--target", metavar="ascend910b3", help="Generate kernels for this NPU.")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="TEXT", help="Only cases whose label contains this.")]
Skip = Annotated[list[str] | None, typer.Option("--skip", metavar="TEXT", help="Skip cases whose label contains this.")]


def spoken(settings: Settings) -> Language | None:
    """The language that was asked for."""
    return next((one for one in LANGUAGES if one == settings.lang), None)


def wanted(label: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether --only and --skip leave a case: as in the quartet's tests a text is found where a word starts, so that
    float16 does not choose bfloat16."""

    def named(texts: Sequence[str]) -> bool:
        return any(re.search(rf"(?<!\w){re.escape(text)}", label) for text in texts)

    return (not only or named(only)) and not named(skip)

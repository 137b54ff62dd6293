"""`kernelgen report`: runs of operators as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.names import LOGS, chosen_quartets
from kernelgen.cli.terminal import Json, Names, emit, note
from kernelgen.errors import KernelgenError, WrongOrSlowError


def report(
    names: Names = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("report.html"),
    json: Json = False,
) -> int:
    """Write the newest run of each operator as one HTML page that needs no network.

    Without a NAME every operator below operators/ is in it, behind an index.
    """
    from kernelgen.files import write_atomic
    from kernelgen.report import page, story

    quartets = chosen_quartets(names or [], every=not names)
    stories, broken = [], []
    for quartet in quartets:
        try:
            stories.append(story(quartet.name, quartet.file("triton"), LOGS / quartet.name))
        except KernelgenError as error:  # a damaged journal: the others are shown all the same
            broken.append(str(error))
            note(f"error: {error}")
    if stories:
        write_atomic(out, page(stories))
    if json:
        emit({"file": str(out) if stories else None, "operators": [s.operator for s in stories], "errors": broken})
    elif stories:
        print(f"{out}: {len(stories)} operator{'s' * (len(stories) != 1)}, {out.stat().st_size / 1024:.0f} KiB")
    return WrongOrSlowError.exit_code if broken else 0

"""`kernelgen report`: runs of operators as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.names import LOGS, chosen_quartets
from kernelgen.cli.terminal import All, Json, Names, emit, note
from kernelgen.errors import KernelgenError, WrongOrSlowError
from kernelgen.settings import resolve


def report(
    names: Names = None,
    every: All = False,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file.")] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FOLDER", help="Also write the charts as PNG; needs the extra `report`."),
    ] = None,
    json: Json = False,
) -> int:
    """Write an HTML report of the newest run of each operator.

    The page is one file that needs no network. Without NAME it has an index of all operators in operators/. If an
    operator did not run here, its newest journal in the folder of the setting `journals` is shown.
    """
    from kernelgen.files import write_atomic
    from kernelgen.report import page, pictures, story

    quartets = chosen_quartets(names or [], every=every or not names)
    journals = Path(given) if (given := resolve({}).journals) else None
    stories, broken = [], []
    for quartet in quartets:
        try:
            kept = journals / quartet.name if journals else None
            stories.append(story(quartet.name, quartet.file("triton"), LOGS / quartet.name, kept))
        except KernelgenError as error:  # a damaged journal: the others are shown all the same
            broken.append(str(error))
            note(f"error: {error}")
    drawn = {png / name: image for one in stories for name, image in pictures(one).items()} if png else {}
    if stories:
        write_atomic(out, page(stories))
    for path, image in drawn.items():
        write_atomic(path, image.decode("utf-8", "surrogateescape"))  # which is written as the bytes that it was
    if json:
        emit({
            "file": str(out) if stories else None, "pictures": [*map(str, drawn)],
            "operators": [s.operator for s in stories], "errors": broken,
        })  # fmt: skip
    elif stories:
        print(f"{out}: {len(stories)} operator{'s' * (len(stories) != 1)}, {out.stat().st_size / 1024:.0f} KiB")
        if png:
            print(f"{png}: {len(drawn)} picture{'s' * (len(drawn) != 1)}{'' if drawn else ', since nothing was timed'}")
    return WrongOrSlowError.exit_code if broken else 0

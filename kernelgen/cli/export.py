"""`kernelgen export`: an operator as a folder that runs without kernelgen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.names import find_quartet
from kernelgen.cli.options import Force, Json, Name
from kernelgen.cli.terminal import emit


def export(
    name: Name,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="By default exported/NAME.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Bundle an operator into a folder that runs without kernelgen."""
    from kernelgen.export import export as bundle

    quartet = find_quartet(name)
    folder = to or Path("exported") / quartet.name
    written = [str(path) for path in bundle(quartet.name, quartet.folder, folder, force=force)]
    if json:
        emit({"folder": str(folder), "written": written})
        return
    print(f"{folder}: {len(written)} files; it needs torch and triton, not kernelgen")
    print(f"  python {folder / quartet.file('accuracy').name}")
    print(f"  python {folder / quartet.file('performance').name}")

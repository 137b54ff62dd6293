"""`kernelgen import`: a spec from a Python file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.terminal import Json, emit, note
from kernelgen.errors import UsageError
from kernelgen.settings import among, checked, positive
from kernelgen.spec.model import PRECISIONS

if TYPE_CHECKING:
    from kernelgen.importer import Imported

PRECISION = "How kernels multiply float32 matrices: a key of the specs. Default: as torch is set at the call."


def _with_precision(made: Imported, precision: str) -> Imported:
    from kernelgen import generation

    text, left_out = generation.with_precision(made.text, f"{made.name}.yaml", precision)
    return replace(made, text=text, notes=(*made.notes, left_out) if left_out else made.notes)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with a Model or a function.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The operator's name.")] = None,
    function: Annotated[
        str | None, typer.Option("--function", metavar="NAME", help="Which function, if the file has several.")
    ] = None,
    blocks: Annotated[
        bool, typer.Option("--blocks/--whole", help="One spec per kind of block, or one for the whole module.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for NAME.yaml.")] = Path(),
    limit_s: Annotated[
        str, typer.Option("--limit-s", metavar="S", help="Time limit for running the file, in seconds.")
    ] = "60",
    precision: Annotated[str | None, typer.Option("--precision", metavar="|".join(PRECISIONS), help=PRECISION)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing spec.")] = False,
    json: Json = False,
) -> None:
    """Make a spec from a Python file with a Model or a function.

    A class Model needs get_inputs() and get_init_inputs(), a function get_inputs() or example_inputs = (...). The file
    is run, in a process of its own with a time limit: import only what you would run. Nothing is unpickled.
    """
    from kernelgen.files import write_atomic
    from kernelgen.importer import import_blocks, import_file

    limit = checked("--limit-s", limit_s, positive())
    if blocks and (name or function):
        raise UsageError("--blocks names its operators after their classes: leave out --name and --function")
    precise = None if precision is None else checked("--precision", precision, among(PRECISIONS))
    specs = import_blocks(file, limit) if blocks else [import_file(file, name, function, limit)]
    if precise:
        specs = [_with_precision(made, precise) for made in specs]
    paths = [out / f"{made.name}.yaml" for made in specs]
    for path in paths:
        if path.exists() and not force:
            raise UsageError(f"{path} already exists: choose another --name, or overwrite it with --force")
    for path, made in zip(paths, specs, strict=True):
        write_atomic(path, made.text)
    for line in dict.fromkeys(line for made in specs for line in made.notes):  # blocks have some in common
        note(f"note: {line}")
    if json:
        found = [{"spec": str(p), "name": m.name, "notes": m.notes} for p, m in zip(paths, specs, strict=True)]
        emit({"specs": found} if blocks else found[0])
        return
    for path in paths:
        print(f"{path}: written; `kernelgen new {path}` makes its kernel")

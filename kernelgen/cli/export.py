"""`kernelgen export`: an operator in a form that runs without kernelgen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.names import Quartet, chosen_quartets, spec_of
from kernelgen.cli.terminal import All, Force, Json, Names, emit, note
from kernelgen.errors import KernelgenError, UsageError, WrongOrSlowError


def export(
    names: Names = None,
    every: All = False,
    form: Annotated[
        str, typer.Option("--format", metavar="folder|kernelbench|custom_op", help="What to write.")
    ] = "folder",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="PATH", help="Output path; default: exported/NAME.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Bundle an operator so that it runs without kernelgen.

    folder: the kernel, its baseline, its tests and the code that runs them. kernelbench: one file with ModelNew, for an
    operator imported from a Model. custom_op: an installable package that registers the operator with torch.library.
    """
    from kernelgen import export as exporting

    if form not in exporting.FORMATS:
        raise UsageError(f"--format: must be one of {', '.join(exporting.FORMATS)}, not {form!r}")
    chosen = chosen_quartets(names or [], every)
    if to is not None and len(chosen) > 1:
        raise UsageError(f"--to names one place, and {len(chosen)} operators are to be exported")
    documents: list[dict[str, object]] = []
    broken = False
    for quartet in chosen:
        name = quartet.name
        target = to or Path("exported") / {"folder": name, "kernelbench": f"{name}.py", "custom_op": f"{name}_op"}[form]
        try:
            written = [str(path) for path in _write(form, quartet, target, force)]
        except KernelgenError as error:
            if len(chosen) == 1:
                raise
            broken = True
            note(f"error: {name}: {error}")
            documents.append({"operator": name, "error": str(error)})
            continue
        documents.append({"folder" if form != "kernelbench" else "file": str(target), "written": written})
        if not json:
            count = "" if form == "kernelbench" else f"{len(written)} files; "
            print(f"{target}: {count}it needs torch and triton, not kernelgen")
            print("".join(f"  {line}\n" for line in _next(form, quartet, target)), end="")
    if json:
        emit(documents[0] if len(documents) == 1 else documents)
    return WrongOrSlowError.exit_code if broken else 0


def _write(form: str, quartet: Quartet, to: Path, force: bool) -> list[Path]:
    from kernelgen import export as exporting
    from kernelgen.cli.new import load

    if form == "folder":
        return exporting.export(quartet.name, quartet.folder, to, force=force)
    spec = load(spec_of(quartet))
    write = exporting.export_kernelbench if form == "kernelbench" else exporting.export_custom_op
    return write(spec, quartet.folder, to, force=force)


def _next(form: str, quartet: Quartet, to: Path) -> list[str]:
    """What to do with it."""
    if form == "folder":
        return [f"python {to / quartet.file(kind).name}" for kind in ("accuracy", "performance")]
    return [f"pip install {to}", f"python -m pytest {to / 'tests'}"] if form == "custom_op" else []

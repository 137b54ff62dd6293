"""`kernelgen list`, `doctor` and `schema`: what there is, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import ROOT, Quartet, no_kernels, quartets, spec_names
from kernelgen.cli.terminal import Json, emit, note, table
from kernelgen.errors import NoDeviceError, UsageError

if TYPE_CHECKING:
    from kernelgen.doctor import Finding


STATES = ("current", "stale", "changed by hand", "none yet", "unknown")


def list_(
    names: Annotated[list[str] | None, typer.Argument(metavar="[GLOB...]", help="Only matching operators.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help=f"Only operators in this state: {', '.join(STATES)}.")
    ] = None,
    json: Json = False,
) -> None:
    """List the specs and the state of their kernels.

    A kernel is current if the hashes of its spec and files are the same as when it was generated.
    `kernelgen new --check` generates again and compares.
    """
    if state is not None and state not in STATES:
        raise UsageError(f"--state {state}: there are {', '.join(STATES)}")
    rows = [
        row
        for name in spec_names()
        for row in [_row(name)]
        if (not names or any(fnmatchcase(row["name"], glob) for glob in names)) and row["state"].startswith(state or "")
    ]
    if json:
        emit(rows)
        return
    if names and not rows:
        raise UsageError(f"no spec matches {' '.join(names)}; `kernelgen list` shows all")
    print(
        table([("operator", "spec", "kernel", ""), *((r["name"], r["spec"], r["state"], r["summary"]) for r in rows)])
    )
    if not any(quartets()):
        note(f"{no_kernels(ROOT)}: `kernelgen new NAME` writes one from a spec of this list")


def _row(name: str) -> dict[str, str]:
    """One spec, and what became of it: from hashes alone, nothing is traced."""
    from kernelgen.errors import KernelgenError
    from kernelgen.manifest import hand_edited, read_manifest
    from kernelgen.spec import find_spec, load_spec, sketch
    from kernelgen.spec.model import CUSTOM

    row = {"name": name, "spec": "-", "state": "-", "summary": ""}
    try:
        path, shipped = find_spec(f"{name}.yaml")
        row["spec"] = "shipped" if shipped else str(path)
        seen = sketch(path)
        folder = ROOT / (seen.folder or seen.name)
        manifest = read_manifest(folder)
        if not shipped and (manifest is None or manifest.sha256 != seen.sha256):
            load_spec(path)  # one that nothing was generated from may have mistakes
        custom = seen.family == CUSTOM
        if manifest is None or not Quartet(seen.name, folder).file("triton").is_file():
            found = "none yet; a language model writes it" if custom else "none yet"
            custom = False
        elif hand_edited(folder):
            found = "changed by hand"
        elif not manifest.sha256:
            found = "unknown"
        else:
            found = "current" if manifest.sha256 == seen.sha256 else "stale"
        found += ", by a language model" if custom else ""
        return {**row, "name": seen.name, "state": found, "summary": seen.summary}
    except KernelgenError as error:
        return {**row, "summary": str(error).partition("\n")[0]}


def doctor(
    setup: Annotated[
        str | None,
        typer.Option("--setup", metavar="ascend", help="Install the Ascend compiler in an environment of its own."),
    ] = None,
    json: Json = False,
) -> int:
    """Check what is missing on this machine, and how to get it."""
    if setup is not None:
        return _set_up(setup)
    from kernelgen.doctor import checks

    findings = checks()
    if json:
        emit([asdict(finding) for finding in findings])
    else:
        print(table((finding.state, finding.name, _found(finding)) for finding in findings))
    # A missing part of a device that is here counts as well: what was installed is half of what is needed.
    return NoDeviceError.exit_code if any(finding.state == "missing" for finding in findings) else 0


def _set_up(what: str) -> int:
    """Install what needs an environment of its own."""
    if what != "ascend":
        raise UsageError(f"--setup {what}: only ascend can be set up")
    from kernelgen import ascend

    for step in ascend.create():
        note(step)
    print(f"the Ascend compiler is in {ascend.folder()}")
    return 0


def _found(finding: Finding) -> str:
    return f"{finding.found}; {finding.remedy}" if finding.remedy else finding.found


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="The command whose --json output is meant.")
    ] = None,
) -> None:
    """Print the JSON Schema of specs, or of --json output."""
    if command is None:
        from kernelgen.spec import json_schema

        emit(json_schema())
        return
    from kernelgen.cli.documents import DOCUMENTS, document_schema

    if command not in DOCUMENTS:
        raise UsageError(f"schema {command}: no such command; {_nearest(command, DOCUMENTS)}")
    emit(document_schema(command))


def docs(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="A page, such as spec or json.")] = None,
) -> None:
    """Print a page of the documentation, or list the pages."""
    pages = {path.stem: path for path in sorted(_docs().glob("*.md"))}
    if page is None:
        print(table((name, path.read_text("utf-8").partition("\n")[0].lstrip("# ")) for name, path in pages.items()))
        return
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in pages:
        raise UsageError(f"docs {page}: no such page; {_nearest(name, pages)}")
    print(pages[name].read_text("utf-8"), end="")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def _docs() -> Path:
    """Where the pages are: in the package as it is installed, in docs/ of a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "docs"
    return inside if inside.is_dir() else package.parent / "docs"

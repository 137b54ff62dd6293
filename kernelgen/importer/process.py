"""The process that runs the user's file: `python -m kernelgen.importer.process REQUEST ANSWER`, both JSON files."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from kernelgen.collecting import without_collecting
from kernelgen.errors import KernelgenError, SpecError
from kernelgen.importer import naming, source
from kernelgen.importer.blocks import specs_of_blocks
from kernelgen.importer.imported import Imported
from kernelgen.importer.load import fault, load
from kernelgen.importer.write import spec_of
from kernelgen.lifeline import die_with_parent


def imported(path: Path, name: str | None, function: str | None) -> Imported:
    """The spec of a file. KernelgenError with one line where there is none."""
    text = source.read(path)
    loaded = load(text, function)
    default = loaded.function.name if loaded.module is None else naming.operator_name(path)
    if not naming.usable(name or default):
        wanted = name or default or path.stem
        raise text.mistake(None, f"the operator cannot be called '{wanted}': choose a name with --name")
    chosen = name or default
    if loaded.module is not None and chosen in {*loaded.scope, *(a.arg for a in loaded.function.args.args)}:
        raise text.mistake(None, f"'{chosen}' is a name of the file already: choose another with --name")
    return spec_of(loaded, chosen)


def blocks(path: Path) -> list[Imported]:
    """The specs of the blocks of a file's module. KernelgenError with one line where there are none."""
    text = source.read(path)
    loaded = load(text, None)
    if loaded.module is None:
        raise text.mistake(loaded.function, "a function has no blocks: import it whole")
    return specs_of_blocks(loaded)


def main(request: Path, answer: Path) -> None:
    """Answer one request; what the user's file prints goes to stderr."""
    logging.disable(logging.CRITICAL)  # torch logs tracebacks of guards that it does not understand
    warnings.simplefilter("ignore")
    asked: dict[str, Any] = json.loads(request.read_text("utf-8"))
    with contextlib.redirect_stdout(sys.stderr), without_collecting():
        try:
            path = Path(asked["path"])
            made = blocks(path) if asked["blocks"] else [imported(path, asked["name"], asked["function"])]
            said: dict[str, Any] = {"specs": [{"name": m.name, "text": m.text, "notes": m.notes} for m in made]}
        except KernelgenError as error:
            said = {"error": str(error), "placed": isinstance(error, SpecError)}
        except Exception as error:
            said = {"error": str(fault(error, asked["path"])), "placed": True}
    answer.write_text(json.dumps(said), "utf-8")


if __name__ == "__main__":
    die_with_parent(os.getppid())  # it is in a session of its own, which the killing of its parent's would miss
    main(Path(sys.argv[1]), Path(sys.argv[2]))

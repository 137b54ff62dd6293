"""`kernelgen export`: an operator in a form that runs without kernelgen."""

from __future__ import annotations

from pathlib import Path

from kernelgen.export.folder import check_free, folder_files, read, write
from kernelgen.spec.model import CUSTOM, OperatorSpec

FORMATS = ("folder", "kernelbench", "custom_op")


def export(name: str, folder: Path, to: Path, *, force: bool = False) -> list[Path]:
    """Write the operator `name` of `folder` into the folder `to`, the judge beside it, and return what was written.

    Raises UsageError, having written nothing, where `to` already has something in it and `force` is not set.
    """
    check_free(to, force)
    return write(folder_files(name, folder, to))


def export_kernelbench(spec: OperatorSpec, folder: Path, to: Path, *, force: bool = False) -> list[Path]:
    """Write one file with `ModelNew`. Raises UsageError where the spec has no module, or where the file is there."""
    from kernelgen.export.kernelbench import check_module, kernelbench_file

    check_module(spec)
    text = kernelbench_file(read(folder / f"{spec.name}_triton.py"), spec)
    check_free(to, force)
    return write({to: text})


def export_custom_op(spec: OperatorSpec, folder: Path, to: Path, *, force: bool = False) -> list[Path]:
    """Write a package that registers the operator with torch.library; raises as `export` does."""
    from kernelgen import generation
    from kernelgen.export.custom_op import custom_op_files
    from kernelgen.wrapper import Layout, layouts

    if spec.family == CUSTOM:  # a language model's, of which nothing is known
        laid = {output.name: Layout(certain=False) for output in spec.outputs}
    else:
        laid = layouts(generation.lowered(spec))
    texts = custom_op_files(read(folder / f"{spec.name}_triton.py"), spec, laid, folder, to)
    check_free(to, force)
    return write(texts)

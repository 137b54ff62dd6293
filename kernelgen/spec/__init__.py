"""The spec room: a YAML file in, a frozen `OperatorSpec` or every mistake in it out.

What reads files needs pydantic and PyYAML, which are imported on the first call: the data types of `spec.model`
are used everywhere, `kernelgen --help` included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelgen.spec.model import OperatorSpec, Sketch


def load_spec(path: Path) -> OperatorSpec:
    """Read a spec file. SpecError carries every mistake in it; a file that cannot be read is a UsageError."""
    from kernelgen.spec import load

    return load.load_spec(path)


def parse_spec(text: str, path_name: str = "<spec>") -> OperatorSpec:
    """The operator that a spec's text declares; `path_name` is how mistakes name the file."""
    from kernelgen.spec import load

    return load.parse_spec(text, path_name)


def find_spec(name_or_path: str) -> tuple[Path, bool]:
    """The spec a user means and whether it is a shipped one; a file in the working folder wins."""
    from kernelgen.spec import load

    return load.find_spec(name_or_path)


def sketch(path: Path) -> Sketch:
    """What a list says of a spec, read without checking it; a file that is no spec has the mistakes of `load_spec`."""
    from kernelgen.spec import load

    return load.sketch(path)


def own_specs() -> list[Path]:
    """The specs below specs/ in the working folder."""
    from kernelgen.spec import load

    return load.own_specs()


def shipped_specs() -> list[Path]:
    """The specs that come with kernelgen, by name."""
    from kernelgen.spec import load

    return load.shipped_specs()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors."""
    from kernelgen.spec import schema

    return schema.json_schema()

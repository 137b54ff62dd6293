"""`generated.json`, beside a quartet: the schedule table that was chosen, and the hash of every file as it was written.

It lies in the user's folder, where editors, merges and disks may change it: all of it is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelgen.errors import DamagedError
from kernelgen.files import parse_json, read_text, write_atomic
from kernelgen.language import Language
from kernelgen.plan import Chip, Scalar, Schedule, TableRow, table_row
from kernelgen.schedule.problem import ROW_BYTES, mistake

MANIFEST = "generated.json"

_LARGEST = 2**63 - 1
"""Sizes are int64 wherever they are compared."""


@dataclass(frozen=True)
class Manifest:
    """What was last generated in a folder."""

    spec: str
    """The name of the spec's file; its path where a search by name would not find it."""
    interface: str
    """`render.interface_hash` of the spec."""
    table: tuple[TableRow, ...]
    files: dict[str, str] = field(default_factory=dict)
    """Every generated file and the first 16 hex digits of its SHA-256."""
    chip: Chip | None = None
    """What the kernels were made for; None: any GPU."""
    language: Language = "en"
    """Of definition.md and the log."""
    sha256: str = ""
    """The first 16 hex digits of the spec's; empty in a manifest from before they were kept."""


def _plain(name: str) -> str:
    if not name.isprintable() or "/" in name:
        raise ValueError("is no name of a file")
    return name


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("is no name of a file")
    return name


def _below(name: str) -> str:
    path = PurePosixPath(name)
    if not name.isprintable() or path.is_absolute() or ".." in path.parts:
        raise ValueError("is no file of this folder")
    return name


def _hex(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise ValueError("is no hash of 16 hex digits")
    return text


_Name = Annotated[str, Field(min_length=1), AfterValidator(_plain)]
_Hash = Annotated[str, AfterValidator(_hex)]
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Row(_Strict):
    upto: dict[str, Annotated[int, Field(ge=0, le=_LARGEST)]]
    variant: str
    values: dict[str, Scalar]

    @model_validator(mode="before")
    @classmethod
    def _of_bytes_alone(cls, data: object) -> object:
        """Tables that were written before sizes had names count the bytes of a row."""
        if not isinstance(data, dict) or "max_bytes" not in data or "upto" in data:
            return data
        limit = data["max_bytes"]
        rest = {name: value for name, value in data.items() if name != "max_bytes"}
        return {**rest, "upto": {} if limit is None else {ROW_BYTES: limit}}


class _Chip(_Strict):
    name: _Name
    family: str
    cores: _Count
    buffer_bytes: _Count


class _File(_Strict):
    spec: Annotated[str, Field(min_length=1), AfterValidator(_printable)]
    language: Language = "en"
    sha256: _Hash | None = None
    chip: _Chip | None = None
    interface: _Hash
    schedules: Annotated[list[_Row], Field(min_length=1)]
    files: dict[Annotated[str, Field(min_length=1), AfterValidator(_below)], _Hash]


def read_manifest(folder: Path) -> Manifest | None:
    """What was last generated in a folder; None where nothing was. Raises DamagedError, one line."""
    path = folder / MANIFEST
    text = read_text(path)
    if text is None:
        return None
    try:
        found = _File.model_validate(parse_json(text))
        table = tuple(table_row(Schedule.make(row.variant, **row.values), **row.upto) for row in found.schedules)
        if wrong := mistake(table):
            raise ValueError(f"schedules: {wrong}")
    except ValidationError as error:
        raise damaged(folder, _said(error)) from None
    except ValueError as error:
        raise damaged(folder, str(error)) from None
    chip = Chip(**found.chip.model_dump()) if found.chip else None
    return Manifest(found.spec, found.interface, table, found.files, chip, found.language, found.sha256 or "")


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the file unless it says the same already."""
    data = {
        "spec": manifest.spec,
        **({"language": manifest.language} if manifest.language != "en" else {}),
        **({"sha256": manifest.sha256} if manifest.sha256 else {}),
        **({"chip": asdict(manifest.chip)} if manifest.chip else {}),
        "interface": manifest.interface,
        "schedules": [{"upto": dict(row.upto), **row.schedule.to_json()} for row in manifest.table],
        "files": dict(sorted(manifest.files.items())),
    }
    text = json.dumps(data, indent=1) + "\n"
    if read_text(folder / MANIFEST) != text:
        write_atomic(folder / MANIFEST, text)


def generated(folder: Path) -> dict[str, str]:
    """The generated files of a folder with their hashes; empty where nothing was generated."""
    manifest = read_manifest(folder)
    return manifest.files if manifest else {}


def hand_edited(folder: Path) -> tuple[str, ...]:
    """The generated files of a folder that are not as they were written."""
    known = generated(folder).items()
    return tuple(n for n, digest in known if (text := read_text(folder / n)) is not None and text_hash(text) != digest)


def text_hash(text: str) -> str:
    """The first 16 hex digits of the SHA-256 of a generated file."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _said(error: ValidationError) -> str:
    """The first mistake, with its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    message = {"model_type": "needs an object", "missing": "is missing", "extra_forbidden": "is unknown"}.get(
        first["type"], first["msg"].removeprefix("Value error, ")
    )
    return f"{place.removeprefix('.')}: {message}" if place else message


def damaged(folder: Path, why: str) -> DamagedError:
    """The one line for a manifest that nobody can have meant."""
    said = " ".join(why.split())[:200]
    return DamagedError(f"{folder / MANIFEST}: damaged ({said}); restore it, or remove it to start from new schedules")

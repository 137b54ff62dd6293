"""A kernel lowered for an NPU, and everything the compiler says of it; each is lowered once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernelgen.ascend import room_client, venv
from kernelgen.ascend.largest import largest_line
from kernelgen.ascend.reading import SLOW
from kernelgen.ascend.room_client import RoomError
from kernelgen.devices import cache_folder
from kernelgen.errors import DamagedError
from kernelgen.files import read_text

ANSWER = "lowered.json"


@dataclass(frozen=True)
class Request:
    """One kernel of a file with the types and constants of one launch."""

    path: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    """Every argument that is not compiled in, in order, as Triton writes types: *fp16, i32 …"""
    constants: tuple[tuple[str, int | float | bool], ...]
    target: str
    """As the compiler calls it: Ascend910B3."""
    options: tuple[tuple[str, int | bool], ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something in a kernel that is wrong or slow on the target."""

    kind: str
    """discrete mask, scalar fallback, int64, inline assembly, overflow, multibuffer, grid, unsupported."""
    line: int
    """Of the kernel's file."""
    text: str

    @property
    def severe(self) -> bool:
        """Whether it makes the kernel wrong or unable to run, rather than slow."""
        return self.kind not in SLOW


@dataclass(frozen=True)
class Lowered:
    """What the compiler says of one kernel."""

    findings: tuple[Finding, ...]
    cores: str
    """aiv: vector cores; aic: cube cores; mix: both."""
    planned: bool
    """Whether every buffer found a place."""
    overflow: tuple[str, int, int] | None
    """The memory that is too small, the bytes that are needed and those that there are."""
    multibuffer_dropped: bool
    ub_bytes: int
    l0c_bytes: int
    l1_bytes: int
    object: Path | None
    """The kernel for this CPU; None where that path does not take it."""
    object_message: str
    """Why there is no object."""
    message: str
    """Why it is not planned, in the compiler's words."""


def lower(request: Request) -> Lowered:
    """Lower one kernel. Raises NoDeviceError where no compiler is set up, RoomError where it refuses the kernel."""
    python = venv.require()
    kept = cache_folder() / "ascend" / _key(request)
    answer = known(kept)
    if answer is None:
        _ask(python, request, kept)
        answer = known(kept)
    if answer is None:
        raise DamagedError(f"{kept / ANSWER}: damaged just after it was written")
    return _read(answer, kept, request)


@dataclass(frozen=True)
class _Found:
    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class _Answer:
    """What the compiler's script says of a kernel."""

    findings: tuple[_Found, ...]
    cores: str
    planned: bool
    overflow: tuple[str, int, int] | None
    multibuffer_dropped: bool
    ub_bytes: int
    l0c_bytes: int
    l1_bytes: int
    object: str
    object_message: str
    message: str
    line: int


@dataclass(frozen=True)
class _Refused:
    refused: str


def known(kept: Path) -> _Answer | _Refused | None:
    """What was kept of a lowering, every field checked; None where there is nothing whole, which is then made anew."""
    text = read_text(kept / ANSWER)
    if text is None:
        return None
    try:
        found: _Answer | _Refused = TypeAdapter(_Answer | _Refused).validate_json(text)
        if isinstance(found, _Refused) or not found.object or (kept / Path(found.object).name).is_file():
            return found
    except (ValidationError, ValueError):
        pass
    shutil.rmtree(kept, ignore_errors=True)
    return None


def _key(request: Request) -> str:
    """What tells two lowerings apart: the file's text, the launch, and what lowers it."""
    here = Path(__file__).parent
    parts = [Path(request.path).read_text(encoding="utf-8"), request.path, json.dumps(asdict(request), sort_keys=True)]
    parts += [(here / name).read_text(encoding="utf-8") for name in ("room.py", "runtime.c")]
    parts.append((venv.folder() / "ready").read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _ask(python: Path, request: Request, kept: Path) -> None:
    """Have the kernel lowered in a folder of its own, which then takes its place whole."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        asked = {
            "op": "lower", "path": request.path, "kernel": request.kernel, "signature": dict(request.signature),
            "constants": dict(request.constants), "target": request.target, "options": dict(request.options),
            "folder": str(folder),
        }  # fmt: skip
        try:
            answer = room_client.ask(python, asked)
        except RoomError as error:
            answer = {"refused": str(error)}
        (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")
        for path in folder.iterdir():
            if path.name not in (ANSWER, "kernel.so"):
                path.unlink() if path.is_file() else shutil.rmtree(path)
        os.replace(folder, kept)
    except OSError:
        if not (kept / ANSWER).is_file():  # another process was not there first
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(answer: _Answer | _Refused, kept: Path, request: Request) -> Lowered:
    if isinstance(answer, _Refused):
        raise RoomError(answer.refused)
    findings = [Finding(one.kind, one.line, one.text) for one in answer.findings]
    overflow = answer.overflow
    text = Path(request.path).read_text(encoding="utf-8")
    start = _line_of(text, request.kernel)
    if overflow:
        memory, needs, has = overflow
        line = largest_line(text, request.kernel, dict(request.constants))
        findings.append(Finding("overflow", line, f"{memory} overflows: {needs} bytes are needed, {has} there are"))
    elif not answer.planned:
        findings.append(Finding("unsupported", answer.line or start, answer.message))
    if answer.multibuffer_dropped:
        findings.append(Finding("multibuffer", start, "no room for second buffers: copies wait for arithmetic"))
    return Lowered(
        findings=tuple(findings), cores=answer.cores, planned=answer.planned, overflow=overflow,
        multibuffer_dropped=answer.multibuffer_dropped, ub_bytes=answer.ub_bytes, l0c_bytes=answer.l0c_bytes,
        l1_bytes=answer.l1_bytes, object=kept / Path(answer.object).name if answer.object else None,
        object_message=answer.object_message, message=answer.message,
    )  # fmt: skip


def _line_of(text: str, kernel: str) -> int:
    """The line that a kernel's definition begins on."""
    return next((i for i, line in enumerate(text.splitlines(), 1) if line.startswith(f"def {kernel}(")), 1)

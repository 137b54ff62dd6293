"""The messages between parent and worker: one JSON object a line, bounded in size, checked before it is believed.

Nothing is ever unpickled: a worker has run code that nobody vouches for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from kernelgen.outcomes import StaticFacts, Status

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of one line; a worker that sends more is broken."""
MAX_TEXT = 2000
"""Characters of an error message."""

OWNERS = ("run", "npu")
"""Roles of processes that own a device, and do one request after the other: on the GPU, and on the NPU."""
ROLES = ("compile", "interpret", "verify", "lowered", "confined", *OWNERS)
"""compile: ahead of time, no GPU needed; interpret: Triton's interpreter on the CPU; verify: both
for the same files; lowered: by the Ascend compiler,
no NPU needed; confined: does nothing but say what it is held to."""


class ProtocolError(Exception):
    """A message that is not of the agreed form."""


@dataclass(frozen=True)
class Request:
    """What the parent asks for; `op` is a name of the role's table of operations."""

    id: int
    op: str
    args: dict[str, Any]
    limit_s: float
    """Wall time after which the work is killed."""


@dataclass(frozen=True)
class Reply:
    """What became of a request."""

    id: int
    status: Status
    result: dict[str, Any]
    """Empty unless the status is OK."""
    message: str = ""
    poisoned: bool = False
    """The process cannot be trusted with more work (a CUDA fault stays for good)."""


def encode(message: Request | Reply) -> bytes:
    """One line."""
    data = {f.name: getattr(message, f.name) for f in fields(message)}
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises ProtocolError on anything but a request."""
    data = _object(line)
    _expect(data, id=int, op=str, args=dict, limit_s=(int, float))
    return Request(data["id"], data["op"], data["args"], float(data["limit_s"]))


def decode_reply(line: bytes) -> Reply:
    """Raises ProtocolError on anything but a reply."""
    data = _object(line)
    _expect(data, id=int, status=str, result=dict, message=str, poisoned=bool)
    try:
        status = Status(data["status"])
    except ValueError:
        raise ProtocolError(f"unknown status {data['status']!r}") from None
    return Reply(data["id"], status, data["result"], data["message"][:MAX_TEXT], data["poisoned"])


def facts_from_json(data: Any) -> StaticFacts:
    """A StaticFacts that a worker sent, every field checked."""
    if not isinstance(data, dict):
        raise ProtocolError("facts are not an object")
    grid = data.get("grid")
    if not isinstance(grid, list) or not all(isinstance(n, int) for n in grid):
        raise ProtocolError("grid is not a list of integers")
    kinds: dict[str, Any] = {"kernel": str, "arch": str, "occupancy": (int, float), "waves": (int, float), "grid": list}
    kinds |= {"buffer_share": (int, float), "overlapped": bool}
    _expect(data, **{f.name: kinds.get(f.name, int) for f in fields(StaticFacts)})
    return StaticFacts(**{**data, "grid": tuple(grid)})


def one_line(text: str) -> str:
    """An error's text as the one line that a log has room for."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines)[:MAX_TEXT]


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_MESSAGE:
        raise ProtocolError(f"a message of {len(line)} bytes")
    try:
        data = json.loads(line)
    except ValueError:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from None
    if not isinstance(data, dict):
        raise ProtocolError("not a JSON object")
    return data


def _expect(data: dict[str, Any], **kinds: Any) -> None:
    if data.keys() != kinds.keys():
        raise ProtocolError(f"fields are {sorted(data)}, not {sorted(kinds)}")
    for name, kind in kinds.items():
        # bool is a subclass of int; a flag where a number belongs is a mistake all the same
        if not isinstance(data[name], kind) or (kind is not bool and isinstance(data[name], bool)):
            raise ProtocolError(f"{name} is a {type(data[name]).__name__}")

"""A worker that forks a child for each request: torch and triton are imported once, no child can hurt the next.

One process with shared memory takes the place of a pool: a fork costs milliseconds where importing torch
costs seconds. Only roles that never touch a GPU can do this; a CUDA context does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from kernelgen.lifeline import die_with_parent
from kernelgen.outcomes import Status
from kernelgen.worker import confine, operations
from kernelgen.worker.protocol import (
    MAX_MESSAGE,
    ProtocolError,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode,
    one_line,
)

CHUNK = 1 << 16
KEPT_ERRORS = 4096
"""Bytes of a child's last output that are kept for the message of a crash."""


@dataclass
class Child:
    """A request at work."""

    request: Request
    pid: int
    result: int
    """The descriptor its reply comes from."""
    errors: int
    """The descriptor its stdout and stderr come from."""
    deadline: float
    answer: bytearray = field(default_factory=bytearray)
    tail: bytes = b""


def serve(role: str, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Fork for each request until `requests` ends; every reply is one write to `replies`."""
    gc.disable()  # what is imported stays: walks over it took an eighth of the time, and would copy it in every child
    table = operations.table(role)
    gc.freeze()
    gc.enable()
    Server(table, requests.fileno(), replies).run()


class Server:
    """The loop: new requests, children's output, deadlines."""

    def __init__(self, table: dict[str, Callable[..., dict[str, Any]]], requests: int, replies: IO[bytes]) -> None:
        self._table = table
        self._requests = requests
        self._replies = replies
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}  # by pid
        self._input = bytearray()

    def run(self) -> None:
        """Until the parent closes its end."""
        self._selector.register(self._requests, selectors.EVENT_READ, None)
        while True:
            now = time.monotonic()
            wait = min((child.deadline - now for child in self._children.values()), default=None)
            for key, _ in self._selector.select(max(wait, 0.0) if wait is not None else None):
                if key.data is None:
                    if not self._take_requests():
                        self._kill_all()
                        return
                elif key.data.pid in self._children:  # not finished by an earlier event of this round
                    self._take_output(key.data, key.fd)
            for child in [c for c in self._children.values() if c.deadline <= time.monotonic()]:
                limit = f"not finished after {child.request.limit_s:g} s"
                self._finish(child, Reply(child.request.id, Status.TIMEOUT, {}, limit))

    def _take_requests(self) -> bool:
        chunk = os.read(self._requests, CHUNK)
        self._input += chunk
        while (end := self._input.find(b"\n")) >= 0:
            line = bytes(self._input[: end + 1])
            del self._input[: end + 1]
            self._fork(decode_request(line))
        return bool(chunk)

    def _fork(self, request: Request) -> None:
        result_read, result_write = os.pipe()
        errors_read, errors_write = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_child(request, server, result_write, errors_write)
        os.setpgid(pid, pid)  # here as well as in the child, whichever comes first
        os.close(result_write)
        os.close(errors_write)
        child = Child(request, pid, result_read, errors_read, time.monotonic() + request.limit_s)
        self._children[pid] = child
        for descriptor in (result_read, errors_read):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, child)

    def _be_child(self, request: Request, server: int, result: int, errors: int) -> None:
        """The child's whole life; never returns into the server's loop."""
        try:
            with contextlib.suppress(PermissionError):
                os.setpgid(0, 0)
            die_with_parent(server)
            confine.hold_group()
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            os.close(self._replies.fileno())
            os.close(self._requests)
            reply = operations.perform(self._table, request)
            data = memoryview(encode(reply))
            while data:
                data = data[os.write(result, data) :]
        finally:
            os._exit(0)

    def _take_output(self, child: Child, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        if descriptor == child.errors:
            if chunk:
                child.tail = (child.tail + chunk)[-KEPT_ERRORS:]
            else:
                self._selector.unregister(descriptor)
        elif chunk:
            child.answer += chunk
            if len(child.answer) > MAX_MESSAGE:
                self._finish(child, Reply(child.request.id, Status.CRASHED, {}, "its answer was too long"))
        else:
            self._finish(child, None)

    def _finish(self, child: Child, reply: Reply | None) -> None:
        """Reply for a child, with what it said itself unless `reply` is given, and clean up after it."""
        if reply is not None:
            self._kill(child)
        _, status = os.waitpid(child.pid, 0)
        if reply is None:
            self._kill(child)  # what it may have left running
            reply = self._answer(child, os.waitstatus_to_exitcode(status))
        del self._children[child.pid]
        for descriptor in (child.result, child.errors):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)
        self._replies.write(encode(reply))

    def _answer(self, child: Child, code: int) -> Reply:
        try:
            reply = decode_reply(bytes(child.answer))
            if reply.id == child.request.id:
                return reply
        except ProtocolError:
            pass
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        last = one_line(child.tail[-400:].decode(errors="replace"))
        return Reply(child.request.id, Status.CRASHED, {}, f"{how}: {last}" if last else how)

    def _kill_all(self) -> None:
        for child in self._children.values():
            self._kill(child)

    @staticmethod
    def _kill(child: Child) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

"""A worker that does one request after the other in its own process: for the GPU, whose context must live on."""

from __future__ import annotations

from typing import IO

from kernelgen.worker import operations
from kernelgen.worker.protocol import decode_request, encode


def serve(role: str, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Until `requests` ends, or the process is spoilt: then nothing more may run in it."""
    table = operations.table(role)
    while line := requests.readline():
        reply = operations.perform(table, decode_request(line))
        replies.write(encode(reply))
        if reply.poisoned:
            return

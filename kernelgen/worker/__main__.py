"""The entry of a worker process: `python -m kernelgen.worker ROLE PARENT_PID [CONFINEMENT]`."""

from __future__ import annotations

import importlib
import json
import os
import sys

from kernelgen.lifeline import die_with_parent
from kernelgen.worker import confine, operations
from kernelgen.worker.protocol import OWNERS, ROLES


def main() -> int:
    """Serve one role until the parent closes our stdin or dies."""
    role, parent = sys.argv[1], int(sys.argv[2])
    assert role in ROLES, role
    die_with_parent(parent)
    # What a candidate or a library prints must not reach the protocol: the pipe moves to a private
    # descriptor, and descriptor 1 becomes stderr.
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if len(sys.argv) > 3:
        wanted = confine.Confinement.from_json(json.loads(sys.argv[3]))
        operations.achieved = confine.confine(wanted).to_json()
    if role in OWNERS:  # the other roles give every child a group of its own first
        confine.hold_group()
    server = importlib.import_module("kernelgen.worker.serve" if role in OWNERS else "kernelgen.worker.forks")
    server.serve(role, requests, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())

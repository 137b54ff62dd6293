"""Which files a process may open, through Linux's landlock (docs.kernel.org/userspace-api/landlock.html)."""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelgen.worker.confine.libc import failure, libc, no_new_privileges

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
"""System calls; the same numbers on every architecture."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
READ = EXECUTE | READ_FILE | READ_DIR
FIRST, REFER = (1 << 13) - 1, 1 << 13
"""What the first version knows: the above but for truncation, and making and removing; the second knows links."""
ALL_NETWORK, ALL_SCOPES = 3, 3
"""Binding and connecting TCP; abstract sockets and signals to processes outside."""
PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


@dataclass(frozen=True)
class Rules:
    """Paths; those that do not exist are left out."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    names: bool = False
    """Whether it may write below /proc/self: CUDA names its threads there, and does not start where it cannot."""


@cache
def abi() -> int:
    """The version that the kernel speaks; 0: none."""
    return max(0, int(libc().syscall(CREATE, None, 0, 1)))


def restrict(rules: Rules) -> str:
    """Hold this process, and all it starts, to the rules for good; "" or why that is not possible here."""
    version = abi()
    if version == 0:
        return "not offered by this kernel"
    handled = FIRST | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = _Ruleset(handled, ALL_NETWORK, ALL_SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc().syscall(CREATE, ctypes.byref(attributes), size, 0)
    if problem := failure(ruleset):
        return problem
    try:
        # names of modules are looked up in the folder that holds the package, which may be a checkout
        _allow(ruleset, str(Path(__file__).resolve().parents[3]), READ_DIR)
        for path in rules.read:
            _allow(ruleset, path, READ)
        for path in rules.write:
            _allow(ruleset, path, handled)
        for path in rules.devices:
            _allow(ruleset, path, READ_FILE | WRITE_FILE | READ_DIR)
        if rules.names:
            # the rule is of this folder as it is in memory: held open, it stays the one that is found by its name
            os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            _allow(ruleset, "/proc/self", READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE)
        return no_new_privileges() or failure(libc().syscall(RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= OF_FILES
        if abi() < 3:
            access &= ~TRUNCATE
        libc().syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(_Beneath(access, handle)), 0)
    finally:
        os.close(handle)

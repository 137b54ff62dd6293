"""System calls that a worker has no business with, refused by a filter.

docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from kernelgen.worker.confine.libc import failure, libc, no_new_privileges

SET_SECCOMP, FILTER = 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets into struct seccomp_data."""
X32 = 0x40000000
UNIX = 1


@dataclass(frozen=True)
class Calls:
    """The numbers of system calls on one architecture."""

    architecture: int
    socket: int
    setpgid: int
    refused: tuple[int, ...]
    """In turn: ptrace, process_vm_readv, process_vm_writev, mount, umount2, pivot_root, chroot, setns, unshare, bpf,
    perf_event_open, kexec_load, init_module, finit_module, delete_module, reboot, add_key, request_key, keyctl,
    userfaultfd, io_uring_setup, io_uring_enter, open_by_handle_at, kcmp, pidfd_getfd, setsid, clock_settime."""


CALLS = {
    "x86_64": Calls(0xC000003E, 41, 109, (
        101, 310, 311, 165, 166, 155, 161, 308, 272, 321, 298, 246, 175, 313, 176, 169, 248, 249, 250, 323, 425, 426,
        304, 312, 438, 112, 227,
    )),
    "aarch64": Calls(0xC00000B7, 198, 154, (
        117, 270, 271, 40, 39, 41, 51, 268, 97, 280, 241, 104, 105, 273, 106, 142, 217, 218, 219, 282, 425, 426,
        265, 272, 438, 157, 112,
    )),
}  # fmt: skip


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def restrict(*, unix_sockets: bool) -> str:
    """Refuse sockets (all, or all but Unix ones), tracing, mounting and the like; "" or why that is not possible."""
    calls = CALLS.get(platform.machine())
    if calls is None:
        return f"not known for {platform.machine()}"
    return _install(calls, calls.refused, sockets=(UNIX,) if unix_sockets else ())


def hold_group() -> None:
    """Refuse to change the process group; where filters are unknown, nothing."""
    calls = CALLS.get(platform.machine())
    if calls is not None:
        _install(calls, (calls.setpgid,), sockets=None)


def _install(calls: Calls, refused: Iterable[int], sockets: tuple[int, ...] | None) -> str:
    program = _program(calls, refused, sockets)
    instructions = (_Instruction * len(program))(*(_Instruction(*one) for one in program))
    filled = _Program(len(program), instructions)
    return no_new_privileges() or failure(libc().prctl(SET_SECCOMP, FILTER, ctypes.byref(filled), 0, 0))


def _program(calls: Calls, refused: Iterable[int], sockets: tuple[int, ...] | None) -> list[tuple[int, int, int, int]]:
    """Berkeley packet filter code; a jump skips so many instructions where the test holds or does not."""
    denied = (RETURN, 0, 0, ERRNO | errno.EPERM)
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, calls.architecture),  # another calling convention has other numbers
        denied,
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        denied,
    ]
    for number in refused:
        code += [(EQUAL, 0, 1, number), denied]
    if sockets is not None:
        code += [(EQUAL, 0, 2 + 2 * len(sockets), calls.socket), (LOAD, 0, 0, FIRST_ARGUMENT)]
        for family in sockets:
            code += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
        code.append((RETURN, 0, 0, ERRNO | errno.EACCES))
    return [*code, (RETURN, 0, 0, ALLOW)]

"""Calls into libc that Python has no functions for."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

NO_NEW_PRIVILEGES = 38


@cache
def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def failure(result: int) -> str:
    """ "" where a call did not return -1, else the error's text."""
    return os.strerror(ctypes.get_errno()) if result == -1 else ""


def no_new_privileges() -> str:
    """What landlock and seccomp ask of whoever is not root; "" or why it failed."""
    return failure(libc().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))

"""Selects the interpreter before any kernel is imported, where there is no GPU."""

import threading
from typing import Any

from kernelgen import judge

judge.prepare()

import triton.language as tl  # noqa: E402
import triton.runtime.interpreter as interpreter  # noqa: E402

_patch, _done = interpreter._patch_lang, set[str]()
_rewriting = threading.Lock()
"""Programs may run side by side: rewriting adds to the globals that others look through, and Python 3.11 cannot parse
in two threads at once (python/cpython issue 106905)."""


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a device function. Triton's own patches the whole language anew at every one, which takes longer than
    most functions: the launch has patched `tl`, and what a call patches in `tl.core` stays so."""
    with _rewriting:
        if tl.core in function.fn.__globals__.values() and function.fn.__module__ not in _done:
            _done.add(function.fn.__module__)
            _patch(function.fn)
        program = function.rewrite()
    return program(*args, **kwargs)


interpreter.InterpretedFunction.__call__ = _call

"""Triton's interpreter with programs that wait for one another: those of a launch are threads of their own."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, interpreter_builder

PAUSE_S = 2e-4
"""How long a program that waits leaves the others alone before it looks again."""
LANGUAGE = tl
"""The interpreter replaces what it finds in the globals of the function that it calls, which is one of this module."""

_own = threading.local()


def run_side_by_side(module: ModuleType) -> None:
    """Let the programs of a generated module wait for one another, which it refuses the interpreter."""
    _install()
    for function in [f for f in vars(module).values() if isinstance(f, InterpretedFunction)]:
        function.rewrite()  # which adds to the globals that others go through
    module.num_waiting = lambda device, options: 2**20  # type: ignore[attr-defined]


@cache
def _install() -> None:
    kind: Any = type(interpreter_builder)
    kind.grid_idx = property(lambda builder: _own.place, lambda builder, place: setattr(_own, "place", place))
    one_by_one, read = GridExecutor.__call__, kind.create_masked_load

    def load(
        builder: Any, ptrs: Any, mask: Any, other: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: bool
    ) -> Any:
        """By the interpreter's own names: a descriptor's tile is loaded by keywords."""
        if is_volatile:
            time.sleep(PAUSE_S)
        return read(builder, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile)

    kind.create_masked_load = load

    def call(executor: Any, *args: Any, **kwargs: Any) -> None:
        waits = any(name.endswith("_words_ptr") for name in executor.arg_names)
        if not waits or "num_waiting" not in executor.fn.__globals__:
            return one_by_one(executor, *args, **kwargs)
        program, threads, errors = executor.fn, list[threading.Thread](), list[BaseException]()
        executor.fn = _started(program, threads, errors)
        try:
            return one_by_one(executor, *args, **kwargs)
        finally:
            executor.fn = program
            if errors:
                raise errors[0]

    GridExecutor.__call__ = call  # type: ignore[method-assign]


def _started(
    program: Callable[..., None], threads: list[threading.Thread], errors: list[BaseException]
) -> Callable[..., None]:
    """Starts the program of a place; with the last one it waits for all of them."""

    def run(place: tuple[int, int, int], args: dict[str, Any]) -> None:
        _own.place = place
        try:
            program(**args)
        except BaseException as error:
            errors.append(error)

    def start(**args: Any) -> None:
        place = _own.place
        threads.append(threading.Thread(target=run, args=(place, args), daemon=True))
        threads[-1].start()
        if place == tuple(size - 1 for size in interpreter_builder.grid_dim):
            for thread in threads:  # where one fails, others may wait for it for ever
                while thread.is_alive() and not errors:
                    thread.join(0.01)

    start.__signature__ = inspect.signature(program)  # type: ignore[attr-defined]
    return start

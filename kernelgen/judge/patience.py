"""How long Triton's interpreter may take for one call: it runs one program after the other, so the first ones tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

CALL_S = 20.0
"""Seconds that one call of a wrapper may take."""
_TELLING_S = 0.5
"""Seconds of programs from which the time of all is told."""


class TooLongError(BaseException):
    """The call would take longer; the message has the figures. No Exception: the interpreter wraps those as faults of
    the kernel."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLongError inside as soon as the programs that have run tell that the call takes longer."""
    from triton.runtime.interpreter import interpreter_builder as builder

    begin = time.perf_counter()
    launch = {"began": begin, "programs": 0, "done": 0}
    set_grid_dim, set_grid_idx = builder.set_grid_dim, builder.set_grid_idx

    def launched(nx: int, ny: int, nz: int) -> None:
        launch.update(began=time.perf_counter(), programs=nx * ny * nz, done=0)
        set_grid_dim(nx, ny, nz)

    def program(x: int, y: int, z: int) -> None:
        now = time.perf_counter()
        if launch["done"] and now - launch["began"] > _TELLING_S:
            estimate = launch["began"] - begin + (now - launch["began"]) / launch["done"] * launch["programs"]
            if estimate > seconds:
                raise TooLongError(
                    f"takes about {estimate:,.0f} s a call in the interpreter, as {launch['done']:,.0f} of "
                    f"{launch['programs']:,.0f} programs tell; the limit is {seconds:g} s"
                )
        launch["done"] += 1
        set_grid_idx(x, y, z)

    builder.set_grid_dim, builder.set_grid_idx = launched, program
    try:
        yield
    finally:
        del builder.set_grid_dim, builder.set_grid_idx

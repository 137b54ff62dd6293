"""The processes of an evaluator: one that compiles, and those that own the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kernelgen.devices import cache_folder
from kernelgen.errors import NoDeviceError
from kernelgen.worker import private
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.confine import Confinement
from kernelgen.worker.process import environment
from kernelgen.worker.protocol import OWNERS

WARM_S = 120.0
"""A process may take so long to import what it will need."""


class Crew:
    """None of them runs before its first request, unless `begin` is called. A context manager: leaving it ends all.

    `readable`: folders that they may read beside their own. `checkers`: how many more own the device to verify side by
    side what the runner would verify alone.
    """

    def __init__(
        self,
        readable: Sequence[Path],
        run_role: str,
        compile_role: str,
        variables: Mapping[str, str],
        run_variables: Mapping[str, str],
        checkers: int = 0,
    ) -> None:
        self.folder = private.make(cache_folder() / "work")
        shared, cwd = {**private.variables(self.folder), **variables}, self.folder / "cwd"
        read, write = tuple(map(str, readable)), (str(self.folder),)
        # one thread each: the children of the fork server are many, and torch's threads would fight over the cores
        self.compiling = Worker(compile_role, {**shared, "OMP_NUM_THREADS": "1"}, cwd, Confinement(read, write))
        own = {**shared, **run_variables}
        running = Confinement(read, write, gpu=run_role in OWNERS)
        self.runner, self.second, *others = (Worker(run_role, own, cwd, running) for _ in range(2 + checkers))
        """`second`: for what is done beside the runner."""
        self.checkers = tuple(others)
        self.profile_environment = environment(own)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def begin(self) -> None:
        """Start them all beside what goes on here. One that cannot work says so at its first request."""
        everyone = (self.compiling, self.runner, self.second, *self.checkers)
        pool = ThreadPoolExecutor(len(everyone), thread_name_prefix="kernelgen-begin")
        for worker in everyone:
            pool.submit(_warm, worker, owns=worker is not self.compiling)
        pool.shutdown(wait=False)

    def close(self) -> None:
        """End every process at once; requests still open fail."""
        for worker in (self.compiling, self.runner, self.second, *self.checkers):
            worker.close()
        private.remove(self.folder)


def _warm(worker: Worker, *, owns: bool) -> None:
    with suppress(Failed, NoDeviceError):
        worker.start()
        if owns:
            worker.call("warm_up", {}, WARM_S)

"""The processes of an evaluator: one that compiles, and those that own the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
        base = cache_folder() / "work"
        self.folder, self.store = private.make(base), private.make_store(base)
        """`store`: for the candidates of an evaluator that does not have its own yet; they read it and cannot write."""
        shared, cwd = {**private.variables(self.folder), **variables}, self.folder / "cwd"
        read, write = (*map(str, readable), str(self.store)), (str(self.folder),)
        # one thread each: the children of the fork server are many, and torch's threads would fight over the cores
        self.compiling = Worker(compile_role, {**shared, "OMP_NUM_THREADS": "1"}, cwd, Confinement(read, write))
        own = {**shared, **run_variables}
        running = Confinement(read, write, gpu=run_role in OWNERS)
        self.runner, self.second, *others = (Worker(run_role, own, cwd, running) for _ in range(2 + checkers))
        """`second`: for what is done beside the runner."""
        self.checkers = tuple(others)
        self.profile_environment = environment(own)
        self._beginning: list[Future[None]] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def begin(self, *, together: bool) -> None:
        """Start them all beside what goes on here; unless `together`, the runner before the others that own the device:
        it may be one process's alone. One that cannot work says so at its first request."""
        pool = ThreadPoolExecutor(3 + len(self.checkers), thread_name_prefix="kernelgen-begin")

        def run() -> None:
            with suppress(Failed, NoDeviceError):
                if not together:
                    self.runner.start()
                compiling = pool.submit(_warm, self.second, compiles=True)
                others = [compiling, *(pool.submit(_warm, worker, compiles=False) for worker in self.checkers)]
                _warm(self.runner, compiles=True)
                wait(others)

        self._beginning = [pool.submit(_start, self.compiling), pool.submit(run)]

    def settle(self) -> None:
        """Wait until none of them is starting any more: until nothing works beside what is to be timed."""
        wait(self._beginning)

    def close(self) -> None:
        """End every process at once; requests still open fail."""
        for worker in (self.compiling, self.runner, self.second, *self.checkers):
            worker.close()
        for folder in (self.folder, self.store):
            private.remove(folder)


def _start(worker: Worker) -> None:
    with suppress(Failed, NoDeviceError):
        worker.start()


def _warm(worker: Worker, *, compiles: bool) -> None:
    with suppress(Failed, NoDeviceError):
        worker.start()
        worker.call("warm_up", {"compiles": compiles}, WARM_S)

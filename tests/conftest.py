"""Which tests are left out where, and how long each takes. No test is about time: a busy machine that draws or runs an
example slowly has found no fault."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from marks import COLLECTED, SLOW

# The search's matrices are small: threads over them cost more than they save, most on a busy machine. Read when numpy is
# imported, by this process and by those that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nor do small tensors gain by threads, which spin while they wait: where other tests have the cores, the judge took 5.8
# seconds of a core instead of 0.4. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch writes every step of a trace down where somebody listens, and pytest listens to every logger that passes nothing
# on: without its handler a trace takes a tenth less.
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]

settings.register_profile("kernelgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelgen")

RUN_BY = {"gpu": "make test-gpu", "slow": "make test-all"}
left_out: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="append what each test takes, its processes included")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, and skip tests that need a GPU where there is none, however pytest was called."""
    config.stash[COLLECTED] = list(items)
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")
    on_a_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_a_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_a_gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: torch.cuda.is_available() is false"))


def pytest_collection_finish() -> None:
    """The search for cycles leaves out what is there for good (torch, Triton, the tests) and goes through the rest more
    seldom: it took a fourteenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _cpu_s()
    result = yield
    if file := item.config.getoption("--cpu-seconds"):
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(f"{_cpu_s() - began:.2f} {item.nodeid}\n")
    return result


def _cpu_s() -> float:
    """What this process took and those that it started, be they there still: a worker that a module's tests share would
    count for the last of them alone."""
    return sum(os.times()[:4]) + sum(_running_s(child) for child in _children(os.getpid()))


def _running_s(process: int) -> float:
    """The same of a process that runs; 0 where the system tells nothing of it."""
    with contextlib.suppress(OSError):
        ticks = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[11:15]
        own = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return own + sum(_running_s(child) for child in _children(process))
    return 0.0


def _children(process: int) -> list[int]:
    found: list[int] = []
    for told in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, told.read_text("utf-8").split())
    return found


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        left_out.update(next(([mark] for mark in RUN_BY if item.get_closest_marker(mark)), []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of pytest-xdist's processes
        session.config.workeroutput["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}) if not left_out else {})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """pytest says nothing of what its processes deselected."""
    for mark, count in sorted(left_out.items()):
        terminalreporter.write_line(f"{count} tests marked {mark} were left out: {RUN_BY[mark]} runs them")

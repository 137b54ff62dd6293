"""Kills at random points of a run, with a model and without: `python tests/kill_runs.py [--kills 500] [--seed N]`.

A run is a child of this process that dies by SIGKILL: just before or just after it makes something durable, or at any
moment. Some deaths leave the beginning of a record behind. The same command is then given again, and killed again, until
the run is at its end. No finished round may be lost, none run twice, and no question reach the model's server twice: that is
a real HTTP server here, which keeps what it was asked. Exit code 1 with the run's folder where anything of it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import rounds_fakes
from model_server import ModelServer
from pytest_httpserver import HTTPServer
from rounds_fakes import COMPILER, FakeEvaluator, device, make_plan, options, write_kernel
from test_llm_resume import answer
from test_llm_resume import microseconds as of_proposed

from kernelgen import journal
from kernelgen.journal import FILE, Record
from kernelgen.llm import Client, Endpoint
from kernelgen.optimization import optimize

ROUNDS = 3
DURABLE = {False: 80, True: 60}
"""About how many things a run makes durable, without a model and with one."""
MOMENTS_S = 0.6
"""About how long a run takes."""
TORN = b'{"crc":17,"data":{"round":2,"headline":"'


@dataclass
class Tally:
    """What happened so far."""

    kills: int = 0
    runs: int = 0
    torn: int = 0
    requests: int = 0
    lost: int = 0
    """Questions whose answer died with the process; they are not asked again."""
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.kills} kills of {self.runs} runs, {self.torn} with a torn tail; {self.requests} requests, none twice, "
            f"{self.lost} answers lost with their process; {len(self.faults)} faults"
        )


def said(messages: list[dict[str, str]]) -> str:
    """A bad answer first, a better one for each repair."""
    last = messages[-1]["content"]
    if "This kernel was tried" in last:
        return answer(4096)
    if "was refused" in last:
        return answer(64)
    return "nonsense" if "request 2" in last else answer(128 if "request 1" in last else 256)


def play(root: Path, url: str | None) -> None:
    """The run, or what is left of it."""
    if url is None:
        optimize(make_plan(), device(), lambda store: FakeEvaluator(), options(root, rounds=ROUNDS), None, COMPILER)  # type: ignore[arg-type,return-value]
        return
    rounds_fakes.microseconds = of_proposed
    client = Client(Endpoint("local", url, None))
    made = options(root, rounds=2, candidates=4, client=client)
    optimize(make_plan(strategies=("llm",)), device(), lambda store: FakeEvaluator(), made, None, COMPILER)  # type: ignore[arg-type,return-value]


def killed(work: Callable[[], None], dice: random.Random, durable: int) -> bool:
    """Do some work in a child that dies somewhere; False where it came to its end first."""
    kind, at, moment = dice.choice(("before", "after", "moment")), dice.randint(1, durable), dice.uniform(0, MOMENTS_S)
    child = os.fork()
    if child == 0:
        code = 1
        real, left = os.fsync, at

        def dying(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == 0 and kind == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            real(handle)
            if left == 0 and kind == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = dying
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    timer = threading.Timer(moment, _kill, (child,)) if kind == "moment" else None
    if timer is not None:
        timer.start()
    _, status = os.waitpid(child, 0)
    if timer is not None:
        timer.cancel()
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError("the run failed; what it said is above")
    return os.WIFSIGNALED(status)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def one_run(root: Path, server: ModelServer | None, dice: random.Random, tally: Tally, most: int) -> None:
    """A run that is killed again and again, at most so often, and what must hold of it. Raises AssertionError."""
    root.mkdir()
    write_kernel(root, make_plan())
    url = server.url if server else None
    before: tuple[Record, ...] = ()
    deaths = 0
    while deaths < most and killed(lambda: play(root, url), dice, DURABLE[server is not None]):
        deaths += 1
        tally.kills += 1
        before = _kept(root, before)
        if before and before[-1].kind == "finished":
            break  # nothing is left but to go: the same command would begin another run
        if before and dice.random() < 0.3:
            tally.torn += 1
            with (_begun(root)[0] / FILE).open("ab") as file:
                file.write(TORN[: dice.randint(1, len(TORN))])
    else:
        if deaths == most:
            play(root, url)
    tally.runs += 1
    records = _kept(root, before)
    assert records[-1].kind == "finished"
    numbers = [r.data["round"] for r in records if r.kind == "round"]
    assert numbers == list(range(len(numbers))), f"rounds {numbers}"
    tried = [(r.data["round"], r.data["hash"]) for r in records if r.kind == "candidate"]
    assert len(set(tried)) == len(tried), "a candidate was judged twice"
    if server is not None:
        _asked(records, server, tally)


def _begun(root: Path) -> list[Path]:
    """The runs with a record: before its first one a run has not begun."""
    return [run for run in journal.runs(root / "logs" / "toy") if journal.read(run)]


def _kept(root: Path, before: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records of the only run there is; none that was there is gone."""
    runs = _begun(root)
    assert len(runs) <= 1, "a second run was begun"
    records = journal.read(runs[0]) if runs else ()
    assert records[: len(before)] == before, "a record was lost"
    return records


def _asked(records: tuple[Record, ...], server: ModelServer, tally: Tally) -> None:
    """No question reached the server twice, and none that the journal does not know of."""
    counts = Counter(json.dumps(request["messages"]) for request in server.requests)
    assert not [n for n in counts.values() if n > 1], "the same question was paid for twice"
    asked = [r.data["key"] for r in records if r.kind == "asked"]
    assert len(asked) == len(set(asked)) >= len(counts), "the server was asked what the journal does not know"
    tally.requests += len(server.requests)
    tally.lost += sum(bool(r.data["error"]) for r in records if r.kind == "reply")
    server.requests.clear()


def main(kills: int, seed: int) -> Tally:
    """So many kills, half of them of runs with a model."""
    dice, tally = random.Random(seed), Tally()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    http = HTTPServer()
    http.start()
    server = ModelServer(http, said)
    try:
        with tempfile.TemporaryDirectory() as folder:
            while tally.kills < kills and not tally.faults:
                root, model = Path(folder) / str(tally.runs), tally.runs % 2 == 1
                try:
                    one_run(root, server if model else None, dice, tally, min(12, kills - tally.kills))
                except AssertionError as fault:
                    tally.faults.append(f"run {tally.runs} of seed {seed}: {fault}")
    finally:
        http.stop()
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    found = main(given.kills, given.seed)
    print(f"seed {given.seed}: {found.line()}", *found.faults, sep="\n")
    sys.exit(1 if found.faults else 0)

"""The rounds of `optimize` as they go, and how far other long commands are, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.outcomes import Evaluation, Status

if TYPE_CHECKING:
    from rich import status

    from kernelgen.optimization.model import RoundResult


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[], None]]:
    """How far a long command is and how long still, on stderr where that is a terminal; call what is given for each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


class Progress:
    """A `Reporter` that prints a line a round, and in a terminal what is being tried.

    rich leaves colour out where NO_COLOR is set, and the moving line where stderr is no terminal.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._moving: status.Status | None = None
        self._title = ""
        self._done = 0
        self._planned = 0

    def run_started(self, folder: Path, resumed: bool, rounds: int) -> None:
        how = "going on with the interrupted run" if resumed else "run"
        self._print(f"{how} {folder}: up to {rounds} round{'' if rounds == 1 else 's'}")

    def round_started(self, number: int, strategy: str, bottleneck: str, candidates: int) -> None:
        self.stop()
        self._done, self._planned = 0, candidates
        self._title = f"round {number}: {strategy} (bottleneck: {bottleneck})" if number else "baseline"
        self._moving = self._console.status(_plain(self._title))
        self._moving.start()

    def candidate_done(self, number: int, what: str, evaluation: Evaluation) -> None:
        self._done += 1
        if self._moving is not None:
            last = f"{self._done} of {self._planned}: {what}: {outcome(evaluation)}"
            self._moving.update(f"{_plain(self._title)}  [dim]{_plain(last)}[/dim]")

    def round_ended(self, result: RoundResult) -> None:
        self.stop()
        colour = "green" if result.kept else "yellow"
        what = f"round {result.number}: {result.strategy}: " if result.number else ""
        self._print(f"{what}[{colour}]{_plain(result.headline)}[/]")

    def stop(self) -> None:
        """End the moving line, whatever happened."""
        if self._moving is not None:
            self._moving.stop()
            self._moving = None

    def _print(self, line: str) -> None:
        self._console.print(line)


class TuneProgress(Progress):
    """The same for a search: the best so far, and the time that is left as far as the evaluations so far say."""

    def __init__(self, evaluations: int) -> None:
        super().__init__()
        self._evaluations = evaluations
        self._began = time.monotonic()
        self._best = (1.0, "the current one")

    def round_started(self, number: int, strategy: str, bottleneck: str, candidates: int) -> None:
        super().round_started(number, strategy, bottleneck, max(candidates, self._evaluations))
        self._began = time.monotonic()

    def candidate_done(self, number: int, what: str, evaluation: Evaluation) -> None:
        self._done += 1
        timings = evaluation.speedups("current")
        least = min((t.speedup for t in timings), default=0.0)
        if evaluation.status is Status.OK and least > self._best[0]:
            self._best = (least, what)
        if self._moving is not None:
            each = (time.monotonic() - self._began) / self._done
            left = each * max(self._planned - self._done, 0)
            best = f"best {self._best[0]:.3f}x: {self._best[1]}"
            line = f"{self._done} of at most {self._planned}; {best}; {left:.0f} s left"
            self._moving.update(f"{_plain(self._title)}  [dim]{_plain(line)}[/dim]")


def outcome(evaluation: Evaluation) -> str:
    """What became of a candidate, in a few words."""
    if evaluation.status is not Status.OK:
        return evaluation.status.value.replace("_", " ")
    timings = evaluation.speedups("current")
    if not timings:
        return "compiled"
    least, most = min(t.speedup for t in timings), max(t.speedup for t in timings)
    span = f"{least:.3f}x" if f"{least:.3f}" == f"{most:.3f}" else f"{least:.3f}x to {most:.3f}x"
    return f"{span} {timings[0].source}"


def _plain(text: str) -> str:
    """Text in which rich must not see markup, such as a case's shape."""
    from rich.markup import escape

    return escape(text)

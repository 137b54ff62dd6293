"""What goes into the loop over rounds and what comes out, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelgen.diagnose import Measured
from kernelgen.errors import KernelgenError
from kernelgen.evaluate import Evaluator
from kernelgen.language import Language
from kernelgen.llm import Caps
from kernelgen.llm.exchange import Asks
from kernelgen.optimization.decide import Judged, all_reached
from kernelgen.outcomes import Evaluation, Interval, Source
from kernelgen.strategies import Tuning

Start = Callable[[Path], Evaluator]
"""Makes the evaluator of a run, given the folder where candidates' sources are stored."""


@dataclass(frozen=True)
class Options:
    """What a user can ask of `optimize`."""

    operators: Path = Path("operators")
    """The folder of the operators' folders."""
    logs: Path = Path("logs")
    """The folder of the operators' runs."""
    rounds: int = 5
    candidates: int = 24
    """The most that a round tries."""
    stop_at_target: bool = False
    max_minutes: float | None = None
    """No round of this call begins after so long."""
    force: bool = False
    """Overwrite a `_triton.py` that was changed by hand."""
    fresh: bool = False
    """Start a new run even where an unfinished one could go on."""
    client: Asks | None = None
    """A language model that may write kernels."""
    caps: Caps = field(default_factory=Caps)
    """Where asking it ends."""
    tuning: Tuning = field(default_factory=Tuning)
    """How far the strategy `tune` goes."""
    measured: Measured = field(default_factory=dict)
    """What rounds of earlier runs came to on this device."""
    language: Language | None = None
    """Of the log; None: that of the operator's definition."""
    adopted: str = ""
    """A `_triton.py` that a person edited: the run's only candidate."""


@dataclass(frozen=True)
class RoundResult:
    """One finished round."""

    number: int
    """Round 0 is the kernel the run started from."""
    strategy: str
    kept: bool
    headline: str
    """One line: what was tried and what became of it."""


@dataclass(frozen=True)
class RunResult:
    """A run as far as it got."""

    folder: Path
    source: Source
    """Whether its figures are measured or predicted."""
    resumed: bool
    rounds: tuple[RoundResult, ...]
    reason: str
    """Why it ended."""
    start_speedup: Interval | None
    """Geometric mean over eager of the kernel the run started from; low and high are the estimate where predicted."""
    speedup: Interval | None
    """The same of the kernel it ended with."""
    targets: tuple[Judged, ...]
    """The spec's targets, each reached, missed or unknown."""
    model: str
    """What a language model was asked and what that cost, in words."""
    works: bool
    """Whether the kernel passes its own accuracy test and runs; False: nothing was optimised."""

    @property
    def reached(self) -> bool:
        return all_reached(self.targets)


class Interrupted(KernelgenError):
    """The user stopped the run; what is known is in the journal and the next `optimize` goes on from it."""

    exit_code = 130

    def __init__(self, result: RunResult) -> None:
        self.result = result
        finished = max((r.number for r in result.rounds), default=0)
        super().__init__(f"interrupted after round {finished}; run the same command again to go on")


class Reporter(Protocol):
    """Who is told how the run goes, as it goes."""

    def run_started(self, folder: Path, resumed: bool, rounds: int) -> None: ...

    def round_started(self, number: int, strategy: str, bottleneck: str, candidates: int) -> None: ...

    def candidate_done(self, number: int, what: str, evaluation: Evaluation) -> None: ...

    def round_ended(self, result: RoundResult) -> None: ...


class Silent:
    """A reporter that tells nobody."""

    def run_started(self, folder: Path, resumed: bool, rounds: int) -> None: ...

    def round_started(self, number: int, strategy: str, bottleneck: str, candidates: int) -> None: ...

    def candidate_done(self, number: int, what: str, evaluation: Evaluation) -> None: ...

    def round_ended(self, result: RoundResult) -> None: ...

"""The rounds' side of kernels that a language model writes: when it is asked, and what is made sure of before timing
counts."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.custom import ADOPTED
from kernelgen.diagnose import Advice, Diagnosis
from kernelgen.evaluate import Candidate
from kernelgen.llm.author import Failure
from kernelgen.llm.prompt import outcome
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import MARGIN
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json, to_json
from kernelgen.strategies import Context, Proposal, strategies
from kernelgen.strategies.llm import NAME

WAVES = 3
"""Times that a round's candidates are written, the first one included."""


def is_authored(strategy: str) -> bool:
    """Whether a strategy's candidates are written by somebody whose every answer costs money, who is asked only when it
    is chosen."""
    return strategy == NAME


def advice(bench: Bench, state: State, diagnosis: Diagnosis) -> Advice | None:
    """What asking promises; None where nobody is there to ask, nothing is to be won, or it failed already.

    Where it is the only strategy it may fail again and again: the rounds and the caps end that.
    """
    found = next((a for a in diagnosis.ranked if a.strategy == NAME), None)
    if found is None or bench.author is None or bench.author.ended or found.gain <= 1 + MARGIN:
        return None
    alone = bench.plan.spec.optimization_strategies == (NAME,)
    return found if alone or NAME not in state.tried else None


def first(bench: Bench, context: Context, number: int) -> tuple[Proposal, ...] | None:
    """The round's first candidates, perhaps none; None where a cap forbade to ask at all."""
    proposals = strategies()[NAME].propose(context)
    asked = any(r.data["round"] == number for r in bench.journal.records("asked"))
    return proposals if proposals or asked else None


def again(bench: Bench, context: Context, tried: list[Tried]) -> tuple[Proposal, ...]:
    """What the author makes of the last candidates, those that failed before those that were slow."""
    if bench.author is None:
        return ()
    order = sorted(tried[-WAVES * 4 :], key=lambda one: (one.evaluation.status is Status.OK, -(one.score or 0.0)))
    return bench.author.repair(context, [Failure(one.proposal, outcome(one.evaluation)) for one in order])


def checked(bench: Bench, tried: Tried) -> Evaluation:
    """A candidate's evaluation once it passed the accuracy test too, if it would be a winner: fast means nothing
    where the results are wrong."""
    found = tried.evaluation
    edited = tried.proposal.table[0].schedule.variant == ADOPTED and found.status is Status.OK
    if (tried.score or 0.0) <= 1 and not edited:  # a person wants to know whether it is right, however fast it is
        return found
    verified = verify(bench, tried.candidate)
    if verified.status is Status.OK:
        return found
    return replace(found, status=verified.status, message=verified.message, timings=())


def verify(bench: Bench, candidate: Candidate) -> Evaluation:
    """The accuracy test of a candidate, which is run once for each source."""
    for record in bench.journal.records("checked"):
        if record.data["hash"] == candidate.source_hash:
            return evaluation_from_json(record.data["evaluation"])
    found = bench.evaluator.verify(candidate)
    bench.journal.append("checked", {"hash": candidate.source_hash, "evaluation": to_json(found)})
    return found

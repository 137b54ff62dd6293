"""The first kernel of an operator that no family can express: written, judged, and repaired within bounds."""

from __future__ import annotations

from collections.abc import Callable

from kernelgen import custom
from kernelgen.custom import Answer, Refused
from kernelgen.devices import Peaks
from kernelgen.errors import LanguageModelError
from kernelgen.journal import Journal
from kernelgen.llm.author import KEPT, answer_of, keep_refusal
from kernelgen.llm.exchange import Asks, Exchange
from kernelgen.llm.ledger import Caps
from kernelgen.llm.prompt import outcome, repair_of_failure, repair_of_refusal, whole
from kernelgen.outcomes import Evaluation, Status
from kernelgen.spec.model import OperatorSpec

TRIES = 6
"""Answers asked for in all."""

Judge = Callable[[Answer], Evaluation]


class NoneRightError(LanguageModelError):
    """None of the answers was a kernel that passed the tests."""


def write(spec: OperatorSpec, device: Peaks, client: Asks, journal: Journal, caps: Caps, judge: Judge) -> Answer:
    """A kernel that `judge` found right. Raises NoneRightError after TRIES, LanguageModelError where a cap ends it."""
    exchange, messages, last = Exchange(client, journal, caps), whole(spec, device), ""
    for _ in range(TRIES):
        answers = exchange.ask([messages], custom.schema())
        if not answers:
            raise LanguageModelError(f"{spec.name}: no kernel, and nothing was written: {exchange.ended}")
        (answered,) = answers
        try:
            answer = answer_of(answered, spec)
        except Refused as refused:
            keep_refusal(journal, answered, refused.reasons)
            last, repair = f"refused: {refused.reasons[0]}", repair_of_refusal(refused.reasons)
        else:
            found = judge(answer)
            if found.status is Status.OK:
                return answer
            last, repair = outcome(found), repair_of_failure(outcome(found))
        messages = [
            *messages,
            {"role": "assistant", "content": answered.text[:KEPT] or "(no answer)"},
            {"role": "user", "content": repair},
        ]
    raise NoneRightError(
        f"{spec.name}: none of {TRIES} kernels was right, and nothing was written; the last: {last[:200]}"
    )

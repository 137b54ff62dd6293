"""From a conversation to proposals: answers are read, refused ones go back for repair, and so do failed candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelgen import custom
from kernelgen.custom import Answer, Refused
from kernelgen.devices import Peaks
from kernelgen.journal import Journal
from kernelgen.llm.decode import decode
from kernelgen.llm.exchange import Answered, Asks, Exchange
from kernelgen.llm.ledger import Caps
from kernelgen.llm.prompt import first, repair_of_failure, repair_of_refusal
from kernelgen.spec.model import OperatorSpec
from kernelgen.strategies import Context, Proposal
from kernelgen.strategies.llm import NAME

WIDTH = 4
"""Answers asked for at a time."""
REPAIRS = 2
"""Times that a refused answer may be corrected."""
CUT = "the answer was cut off before its end: answer shorter"
KEPT = 24_000
"""Characters of an answer that is sent back."""


@dataclass(frozen=True)
class Failure:
    """A candidate that did not win, and why, in words for its author."""

    proposal: Proposal
    outcome: str


class Author:
    """Writes kernels for one run. Everything asked, answered and refused is in the journal."""

    def __init__(self, client: Asks, journal: Journal, caps: Caps, device: Peaks) -> None:
        self._exchange = Exchange(client, journal, caps)
        self._journal, self._device = journal, device

    @property
    def ended(self) -> str:
        """Why nothing more is asked; empty while asking goes on."""
        return self._exchange.ended

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """New kernels for the current one's operator; raises LanguageModelError where the server refuses everything."""
        width = min(WIDTH, context.limit)
        starts = [first(context, self._device, self._journal, index, width) for index in range(width)]
        return self._proposals(context, starts)

    def repair(self, context: Context, failures: Sequence[Failure]) -> tuple[Proposal, ...]:
        """The kernels of candidates that failed, written again with what became of them."""
        starts = []
        for index, one in enumerate(failures[:WIDTH]):
            schedule = one.proposal.table[0].schedule
            starts.append(
                [
                    *first(context, self._device, self._journal, index, WIDTH),
                    {"role": "assistant", "content": str(schedule["answer"])},
                    {"role": "user", "content": repair_of_failure(one.outcome)},
                ]
            )
        return self._proposals(context, starts)

    def _proposals(self, context: Context, conversations: list[list[dict[str, str]]]) -> tuple[Proposal, ...]:
        """Ask, read, and ask again about what was refused, REPAIRS times at most."""
        proposals: dict[str, Proposal] = {}
        for _ in range(1 + REPAIRS):
            again = []
            for answered in self._exchange.ask(conversations, custom.schema()):
                try:
                    made = self._read(context, answered)
                    proposals.setdefault(str(made.table), made)
                except Refused as refused:
                    keep_refusal(self._journal, answered, refused.reasons)
                    if not answered.error:
                        again.append(_again(answered, refused.reasons))
            conversations = again
            if not conversations:
                break
        return tuple(proposals.values())

    def _read(self, context: Context, answered: Answered) -> Proposal:
        """The proposal that an answer makes. Raises Refused."""
        answer = answer_of(answered, context.plan.spec)
        table = custom.table_of(context.plan.spec, answer)
        if context.history.knows(table[0].schedule, context.cases) or table == context.plan.table:
            raise Refused(("this very kernel was tried before",))
        what = answer.idea[:100] or "a kernel without a word about it"
        return Proposal(table, None, f"model: {what}", "a language model proposes it", context.diagnosis.gain(NAME))


def answer_of(answered: Answered, spec: OperatorSpec) -> Answer:
    """The kernel that an answer holds. Raises Refused."""
    if answered.error:
        raise Refused((answered.error,))
    try:
        return custom.parse(decode(answered.text), spec)
    except Refused as refused:
        raise Refused((CUT, *refused.reasons)) if answered.cut else refused from None


def keep_refusal(journal: Journal, answered: Answered, reasons: Sequence[str]) -> None:
    """Keep why an answer came to nothing, once."""
    if all(r.data["key"] != answered.key for r in journal.records("refused")):
        number = len(journal.records("round"))
        journal.append("refused", {"round": number, "key": answered.key, "reasons": list(reasons)[:8]})


def _again(answered: Answered, reasons: Sequence[str]) -> list[dict[str, str]]:
    return [
        *answered.messages,
        {"role": "assistant", "content": answered.text[:KEPT]},
        {"role": "user", "content": repair_of_refusal(reasons)},
    ]


def refusals(journal: Journal, number: int) -> list[str]:
    """Why each answer of a round that became no candidate did not, for the log."""
    return ["; ".join(r.data["reasons"][:3]) for r in journal.records("refused") if r.data["round"] == number]

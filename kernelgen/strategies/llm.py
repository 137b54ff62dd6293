"""llm: a language model writes the whole kernel; it is checked, wrapped, judged and timed like any other candidate."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal

NAME = "llm"


def search(context: Context) -> None:
    """Nothing goes on from what is proposed."""


def propose(context: Context) -> tuple[Proposal, ...]:
    """What the model writes; nothing without a model."""
    return context.author.propose(context) if context.author is not None else ()


def explain(before: Schedule, after: Schedule) -> str:
    whose = "another kernel of the model's" if before.variant == after.variant else "a kernel written by the model"
    return f"{whose} takes the place of the current one for all sizes"

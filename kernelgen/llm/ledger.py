"""What a model may cost, and what it has cost so far by the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelgen.journal import Record

CHARACTERS_A_TOKEN = 3
"""A cautious estimate where a server does not count: code has more tokens than prose."""


@dataclass(frozen=True)
class Prices:
    """Price per 1M tokens, in whatever currency the user thinks in."""

    read: float = 0.0
    written: float = 0.0

    def of(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.read + tokens_out * self.written) / 1e6


@dataclass(frozen=True)
class Caps:
    """Where asking ends; None: nowhere."""

    tokens: int | None = None
    cost: float | None = None
    minutes: float | None = None
    prices: Prices = Prices()


@dataclass(frozen=True)
class Spent:
    """Requests and what they came to."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    lost: int = 0
    """Requests whose answer never came or was lost with the process; their cost is an upper estimate."""

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def line(self) -> str:
        """For the log."""
        if not self.requests:
            return "none used: 0 tokens, no cost"
        lost = f", {self.lost} without an answer" if self.lost else ""
        money = f"cost {self.cost:.4f}" if self.cost else "no price given"
        return f"{self.requests} requests{lost}: {self.tokens_in} tokens read, {self.tokens_out} written, {money}"


def spent(records: Iterable[Record], number: int | None = None) -> Spent:
    """Of a run, or of one of its rounds. A request without a reply counts as the most it can have cost."""
    records = [r for r in records if number is None or r.data.get("round") == number]
    replies = {r.data["key"]: r.data for r in records if r.kind == "reply"}
    total = Spent()
    for asked in (r.data for r in records if r.kind == "asked"):
        bill = replies.get(asked["key"], asked)
        total = Spent(
            total.requests + 1,
            total.tokens_in + bill["tokens_in"],
            total.tokens_out + bill["tokens_out"],
            total.cost + bill["cost"],
            total.lost + bool(bill is asked or bill["error"]),
        )
    return total


def tokens_of(text: str) -> int:
    """About how many tokens a text has, rather too many."""
    return len(text) // CHARACTERS_A_TOKEN + 1


def reached(caps: Caps, now: Spent, minutes: float) -> str:
    """The cap that is reached, in words; "" while none is."""
    if caps.tokens is not None and now.tokens >= caps.tokens:
        return f"the cap of {caps.tokens} tokens is reached"
    if caps.cost is not None and now.cost >= caps.cost:
        return f"the cap on cost of {caps.cost:g} is reached"
    if caps.minutes is not None and minutes >= caps.minutes:
        return f"the time cap of {caps.minutes:g} minutes is reached"
    return ""


def room(caps: Caps, now: Spent, tokens_in: int, most: int) -> int:
    """How many tokens an answer may have so that no cap is passed; at most `most`, 0 or less: none."""
    left = [most]
    if caps.tokens is not None:
        left.append(caps.tokens - now.tokens - tokens_in)
    if caps.cost is not None and caps.prices.written:
        money = caps.cost - now.cost - caps.prices.of(tokens_in, 0)
        left.append(int(money * 1e6 / caps.prices.written))
    return min(left)

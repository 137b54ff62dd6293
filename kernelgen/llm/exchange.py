"""Requests and replies through the journal: written down before they are used, and never paid for twice."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernelgen.errors import KernelgenError
from kernelgen.journal import Journal, source_hash
from kernelgen.llm.client import Endpoint, Messages, Reply, Unanswered
from kernelgen.llm.ledger import Caps, reached, room, spent, tokens_of

MOST_TOKENS = 16_000
"""Of one answer."""
LEAST_TOKENS = 256
"""With less room no kernel can be written, so nothing is asked."""
LOST = "its answer was lost with the process that asked; it is not asked again"


class Asks(Protocol):
    """A client as the exchange sees it."""

    endpoint: Endpoint

    def ask(self, messages: Messages, most_tokens: int, schema: dict[str, Any], timeout_s: float) -> Reply: ...


@dataclass(frozen=True)
class Answered:
    """One request with what came back."""

    key: str
    messages: tuple[dict[str, str], ...]
    text: str
    cut: bool
    error: str
    """Why there is no text."""


class Exchange:
    """Asks one model for one run, within the caps. What the journal has is not asked again."""

    def __init__(self, client: Asks, journal: Journal, caps: Caps) -> None:
        self._client, self._journal, self._caps = client, journal, caps
        self._began = time.monotonic()
        self.ended = ""
        """Why nothing more is asked; empty while asking goes on."""

    def ask(self, conversations: Sequence[Sequence[dict[str, str]]], schema: dict[str, Any]) -> list[Answered]:
        """The answers to conversations that are all asked at once; those that a cap forbids are left out.

        Raises LanguageModelError where the server turns down whatever is asked.
        """
        wanted = {_key(one): tuple(one) for one in conversations}
        replies = self._known(set(wanted))
        waiting: queue.Queue[tuple[str, Reply | BaseException, float]] = queue.Queue()
        asked = [key for key, one in wanted.items() if key not in replies and self._start(key, one, schema, waiting)]
        for key, data in self._collect(len(asked), waiting):
            replies[key] = data
        return [
            Answered(key, wanted[key], replies[key]["text"], replies[key]["cut"], replies[key]["error"])
            for key in wanted
            if key in replies
        ]

    def _known(self, keys: set[str]) -> dict[str, dict[str, Any]]:
        """What the journal has of these requests; one that was under way when its process died is lost."""
        found = {
            r.data["key"]: r.data
            for r in self._journal.records("reply")
            if r.data["key"] in keys and not r.data["free"]
        }
        free = {r.data["key"] for r in self._journal.records("reply") if r.data["free"]}
        for record in self._journal.records("asked"):
            key = record.data["key"]
            if key in keys and key not in found and key not in free:
                bill = {name: record.data[name] for name in ("tokens_in", "tokens_out", "cost")}
                found[key] = self._record(key, {**bill, "text": "", "cut": False, "error": LOST, "seconds": 0.0})
        return found

    def _start(
        self, key: str, messages: tuple[dict[str, str], ...], schema: dict[str, Any], replies: queue.Queue[Any]
    ) -> bool:
        """Ask in a thread, unless a cap forbids it; the journal knows of it first."""
        now, minutes = spent(self._journal.records()), (time.monotonic() - self._began) / 60
        tokens_in = sum(tokens_of(m["content"]) for m in messages)
        most = room(self._caps, now, tokens_in, MOST_TOKENS)
        self.ended = reached(self._caps, now, minutes) or self.ended
        if not self.ended and most < LEAST_TOKENS:
            which = "tokens" if self._caps.tokens is not None else "cost"
            self.ended = f"what is left below the cap on {which} is too little for an answer"
        if self.ended:
            return False
        cost = self._caps.prices.of(tokens_in, most)
        bill = {"tokens_in": tokens_in, "tokens_out": most, "cost": cost}
        self._journal.append("asked", {"round": self._round, "key": key, "model": self._model, **bill})
        left = float("inf") if self._caps.minutes is None else 60 * (self._caps.minutes - minutes)

        def run() -> None:
            began = time.monotonic()
            try:
                found: Reply | BaseException = self._client.ask(messages, most, schema, left)
            except BaseException as error:
                found = error
            replies.put((key, found, time.monotonic() - began))

        threading.Thread(target=run, daemon=True, name="kernelgen-ask").start()
        return True

    def _collect(self, count: int, replies: queue.Queue[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each reply, journaled as it comes; a refusal of the server is raised once all are in."""
        fatal: BaseException | None = None
        for _ in range(count):
            key, found, seconds = replies.get()
            nothing = {"text": "", "cut": False, "tokens_in": 0, "tokens_out": 0, "cost": 0.0, "seconds": seconds}
            if isinstance(found, Reply):
                cost = self._caps.prices.of(found.tokens_in, found.tokens_out)
                data = {
                    "text": found.text, "cut": found.cut, "error": "", "seconds": seconds,
                    "tokens_in": found.tokens_in, "tokens_out": found.tokens_out, "cost": cost,
                }  # fmt: skip
                yield key, self._record(key, data)
            elif isinstance(found, Unanswered):
                yield key, self._record(key, {**nothing, "error": str(found)})
            else:  # nothing was computed, so the same question may be asked again in another run
                self._record(
                    key, {**nothing, "error": str(found) if isinstance(found, KernelgenError) else "fault"}, True
                )
                fatal = found
        if fatal is not None:
            raise fatal

    def _record(self, key: str, data: dict[str, Any], free: bool = False) -> dict[str, Any]:
        return self._journal.append("reply", {"round": self._round, "key": key, "free": free, **data}).data

    @property
    def _round(self) -> int:
        """The round that is being played: as many as are finished, round 0 included."""
        return len(self._journal.records("round"))

    @property
    def _model(self) -> str:
        return self._client.endpoint.describe()


def _key(messages: Sequence[dict[str, str]]) -> str:
    return source_hash(json.dumps(list(messages), sort_keys=True))

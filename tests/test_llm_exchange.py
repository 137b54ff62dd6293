"""Replies through the journal: never paid for twice, never past a cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelgen.errors import LanguageModelError
from kernelgen.journal import Journal, read
from kernelgen.llm import Caps, Endpoint, Prices, Reply, Unanswered, spent
from kernelgen.llm.exchange import LOST, Exchange
from kernelgen.llm.ledger import room, tokens_of


class Fake:
    """A client that says what it is told to."""

    endpoint = Endpoint("fake", "http://host/v1")

    def __init__(self, say: Callable[[str], Reply | BaseException] | None = None) -> None:
        self.say = say or (lambda text: Reply(f"re: {text}", 100, 50))
        self.asked: list[tuple[str, int]] = []

    def ask(self, messages: Any, most_tokens: int, schema: dict[str, Any], timeout_s: float) -> Reply:
        self.asked.append((messages[-1]["content"], most_tokens))
        found = self.say(messages[-1]["content"])
        if isinstance(found, BaseException):
            raise found
        return replace(found, tokens_out=min(found.tokens_out, most_tokens))  # as a server does


def talk(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in texts]


def test_replies_are_in_the_journal_and_not_asked_for_again(tmp_path: Path) -> None:
    fake, journal = Fake(), Journal.open(tmp_path)
    first = Exchange(fake, journal, Caps(prices=Prices(1.0, 2.0))).ask(talk("a", "b"), {})
    assert [one.text for one in first] == ["re: a", "re: b"]
    assert [r.kind for r in journal.records()][:2] == ["asked", "asked"], "known before anything is sent"
    journal.close()
    again = Journal.open(tmp_path)
    assert Exchange(fake, again, Caps()).ask(talk("a", "b"), {}) == first
    assert len(fake.asked) == 2
    total = spent(again.records())
    assert (total.requests, total.tokens_in, total.tokens_out, total.lost) == (2, 200, 100, 0)
    assert total.cost == pytest.approx((200 * 1.0 + 100 * 2.0) / 1e6)


def test_a_request_that_was_under_way_is_lost_and_counted_at_its_most(tmp_path: Path) -> None:
    """The process died between asking and the answer: it may have been paid for, so it is not asked again."""
    journal = Journal.open(tmp_path)
    fake = Fake(lambda text: KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Exchange(fake, journal, Caps()).ask(talk("a"), {})
    journal.close()
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(lines[0])  # only that it was asked reached the disk
    again, healthy = Journal.open(tmp_path), Fake()
    (lost,) = Exchange(healthy, again, Caps()).ask(talk("a"), {})
    assert lost.error == LOST
    assert healthy.asked == []
    assert spent(again.records()).tokens_out == 16_000
    assert spent(again.records()).lost == 1


@pytest.mark.parametrize("cut", range(1, 5))
def test_killed_after_any_record_nothing_is_asked_twice(tmp_path: Path, cut: int) -> None:
    journal = Journal.open(tmp_path)
    fake = Fake()
    Exchange(fake, journal, Caps()).ask(talk("a", "b"), {})
    journal.close()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:cut]))
    again = Journal.open(tmp_path)
    Exchange(fake, again, Caps()).ask(talk("a", "b"), {})
    asked = [r.data["key"] for r in read(tmp_path) if r.kind == "asked"]
    assert len(asked) == len(set(asked))
    assert len(fake.asked) == 2 + (cut == 1)  # the first record says that a was asked; b never was


def test_no_answer_is_an_answer_too(tmp_path: Path) -> None:
    journal, fake = Journal.open(tmp_path), Fake(lambda text: Unanswered("no answer within 5 s"))
    for _ in range(2):
        (one,) = Exchange(fake, journal, Caps()).ask(talk("a"), {})
        assert one.error == "no answer within 5 s"
    assert len(fake.asked) == 1
    assert spent(journal.records()).lost == 1


def test_a_refusal_of_the_server_is_raised_and_may_be_asked_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    with pytest.raises(LanguageModelError):
        Exchange(Fake(lambda text: LanguageModelError("wrong key")), journal, Caps()).ask(talk("a"), {})
    assert [one.text for one in Exchange(Fake(), journal, Caps()).ask(talk("a"), {})] == ["re: a"]


def test_the_cap_on_tokens_ends_it(tmp_path: Path) -> None:
    journal, fake = Journal.open(tmp_path), Fake()
    exchange = Exchange(fake, journal, Caps(tokens=1000))
    for text in "abcdefghij":
        exchange.ask(talk(text), {})
    assert exchange.ended == "what is left below the cap on tokens is too little for an answer"
    assert spent(journal.records()).tokens <= 1000
    assert all(most <= 1000 for _, most in fake.asked)


def test_requests_at_once_do_not_pass_the_cap_together(tmp_path: Path) -> None:
    """What is under way counts at its most."""
    journal, fake = Journal.open(tmp_path), Fake(lambda text: Reply("x", 10, 900))
    exchange = Exchange(fake, journal, Caps(tokens=1000))
    assert len(exchange.ask(talk("a", "b", "c", "d"), {})) == 1
    assert spent(journal.records()).tokens <= 1000


def test_the_cap_on_cost_ends_it(tmp_path: Path) -> None:
    journal, fake = Journal.open(tmp_path), Fake(lambda text: Reply("x", 1, 1000))
    caps = Caps(cost=0.05, prices=Prices(1.0, 10.0))
    exchange = Exchange(fake, journal, caps)
    for text in "abcdefghij":
        exchange.ask(talk(text), {})
    assert exchange.ended
    assert spent(journal.records()).cost <= 0.05
    assert 2 <= len(fake.asked) <= 5


def test_the_cap_on_minutes_ends_it(tmp_path: Path) -> None:
    exchange = Exchange(Fake(), Journal.open(tmp_path), Caps(minutes=1e-9))
    assert exchange.ask(talk("a"), {}) == []
    assert exchange.ended == "the time cap of 1e-09 minutes is reached"


def test_room_never_passes_a_cap() -> None:
    now = spent([])
    assert room(Caps(), now, 100, 500) == 500
    assert room(Caps(tokens=300), now, 100, 500) == 200
    assert room(Caps(cost=1.0, prices=Prices(1.0, 1e6)), now, 0, 500) == 1
    assert tokens_of("x" * 300) >= 100

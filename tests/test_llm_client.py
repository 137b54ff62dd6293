"""The client against a real local server: everything that a server may answer, and what becomes of it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from model_server import ModelServer, completion, error
from pytest_httpserver import HTTPServer
from werkzeug import Response

from kernelgen.custom import Refused
from kernelgen.errors import LanguageModelError
from kernelgen.llm import Client, Endpoint, Unanswered
from kernelgen.llm.client import redact
from kernelgen.llm.decode import decode

KEY = "sk-test-0123456789abcdef"
ASKED = [{"role": "user", "content": "Write a kernel."}]
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@pytest.fixture
def server(httpserver: HTTPServer) -> ModelServer:
    return ModelServer(httpserver, answer=lambda messages: '{"idea": "x"}')


@pytest.fixture
def waits() -> list[float]:
    return []


def ask(server: ModelServer, waits: list[float] | None = None, timeout_s: float = 5.0, **changes: Any) -> Any:
    sleep = (waits if waits is not None else []).append
    return Client(Endpoint("local", server.url, KEY, **changes), sleep=sleep).ask(ASKED, 500, SCHEMA, timeout_s)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_with_what_it_cost(server: ModelServer, stream: bool) -> None:
    server.answer = lambda messages: json.dumps({"idea": "x" * 200})
    reply = ask(server, stream=stream)
    assert json.loads(reply.text) == {"idea": "x" * 200}
    assert (reply.tokens_in, reply.cut) == (1000, False)
    assert reply.tokens_out == len(reply.text) // 4
    (request,) = server.requests
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert request["max_completion_tokens"] == 500


@pytest.mark.parametrize(
    "rejects",
    [("response_format",), ("max_completion_tokens",), ("response_format", "max_completion_tokens", "stream_options")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_server_does_not_know_is_left_out(server: ModelServer, rejects: tuple[str, ...], stream: bool) -> None:
    server.rejects = rejects
    client = Client(Endpoint("local", server.url, KEY, stream))
    assert client.ask(ASKED, 500, SCHEMA, 5.0).text == '{"idea": "x"}'
    assert not set(rejects) & set(server.requests[-1])
    assert "max_tokens" in server.requests[-1] or "max_completion_tokens" in server.requests[-1]
    before = len(server.requests)
    client.ask(ASKED, 500, SCHEMA, 5.0)
    assert len(server.requests) == before + 1, "it has learnt"


def test_a_server_that_does_not_say_what_it_dislikes(server: ModelServer) -> None:
    server.answer = lambda messages: error(400, "bad") if "response_format" in server.requests[-1] else "{}"
    assert ask(server).text == "{}"


def test_requests_at_once_learn_together(server: ModelServer) -> None:
    server.rejects = ("response_format", "max_completion_tokens")
    client = Client(Endpoint("local", server.url, KEY))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(client.ask(ASKED, 9, SCHEMA, 9.0).text)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ['{"idea": "x"}'] * 6


@pytest.mark.parametrize(
    ("status", "headers", "waited"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (429, {"Retry-After": "9999"}, 30.0),
        (500, {}, 2.0),
        (503, {"Retry-After": "soon"}, 2.0),
    ],
)
def test_a_busy_server_is_asked_again(
    server: ModelServer, waits: list[float], status: int, headers: dict[str, str], waited: float
) -> None:
    answers: list[Any] = [error(status, "busy", headers), "{}"]
    server.answer = lambda messages: answers.pop(0)
    assert ask(server, waits).text == "{}"
    assert waits == [waited]


@pytest.mark.parametrize("status", [429, 500])
def test_a_server_that_stays_busy_has_not_answered(server: ModelServer, waits: list[float], status: int) -> None:
    server.answer = lambda messages: error(status, "busy")
    with pytest.raises(Unanswered, match=str(status)):
        ask(server, waits)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_refuses_the_key_ends_it_and_no_key_is_shown(server: ModelServer, status: int) -> None:
    server.answer = lambda messages: error(status, f"Incorrect API key provided: {KEY} (Bearer {KEY})")
    with pytest.raises(LanguageModelError) as caught:
        ask(server)
    assert caught.value.exit_code == 4
    assert KEY not in str(caught.value)
    assert "***" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_no_server_there() -> None:
    waits: list[float] = []
    client = Client(Endpoint("local", "http://127.0.0.1:9/v1", KEY), sleep=waits.append)
    with pytest.raises(LanguageModelError, match=r"cannot reach http://127\.0\.0\.1:9/v1"):
        client.ask(ASKED, 9, SCHEMA, 5.0)
    assert len(waits) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_server_has_not_answered(server: ModelServer, stream: bool) -> None:
    server.seconds = 2.0
    with pytest.raises(Unanswered, match=r"no answer within 0.6 s"):
        ask(server, timeout_s=0.6, stream=stream)
    assert len(server.requests) <= 1, "what may have been paid is not asked for again"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_cut_says_so(server: ModelServer, stream: bool) -> None:
    server.cut = True
    server.answer = lambda messages: "x" * 400
    reply = ask(server, stream=stream)
    assert reply.cut
    assert reply.text == "x" * 200


@pytest.mark.parametrize(
    "response",
    [
        Response("not json", content_type="application/json"),
        Response("<html>", content_type="text/html"),
        Response('{"choices": []}', content_type="application/json"),
        Response('{"choices": null}', content_type="application/json"),
        Response("[]", content_type="application/json"),
    ],
)
def test_a_server_that_speaks_nonsense_has_not_answered(server: ModelServer, response: Response) -> None:
    server.answer = lambda messages: response
    with pytest.raises(Unanswered):
        ask(server)


def test_tokens_are_estimated_where_the_server_does_not_count(server: ModelServer) -> None:
    server.answer = lambda messages: completion("x" * 300, counts=False)
    reply = ask(server)
    assert reply.tokens_out >= 100
    assert reply.tokens_in > 0


def test_a_key_that_the_model_repeats_is_hidden(server: ModelServer) -> None:
    server.answer = lambda messages: json.dumps({"idea": f"my key is {KEY}"})
    assert KEY not in ask(server).text
    endpoint = Endpoint("local", "http://user:secret@host/v1", KEY)
    assert "secret" not in endpoint.describe()
    assert KEY not in repr(endpoint)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key sk-proj-abcdef123456 is wrong", "key *** is wrong"),
        ("Bearer abcdef123456", "Bearer ***"),
        ("http://u:p@host", "http://***@host"),
        ("a plain text", "a plain text"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('<think>{"b": 2}</think>\n{"a": 1}', {"a": 1}),
        ('Here it is:\n```json\n{"a": 1}\n```\nGood luck', {"a": 1}),
        ('```python\ndef f(): pass\n```\nand\n```json\n{"a": 1}\n```', {"a": 1, "kernels": "def f(): pass\n"}),
        ('```json\n{"kernels": "k"}\n```\n```python\nx\n```', {"kernels": "k"}),
        ('Sure! {"a": {"b": 2}} Done.', {"a": {"b": 2}}),
    ],
)
def test_json_is_found_where_it_stands(text: str, found: dict[str, Any]) -> None:
    assert decode(text) == found


@pytest.mark.parametrize("text", ["", "no", "[1]", "{", '{"a": }', "```json\n{\n```", "x" * 500_000, "[" * 100_000])
def test_what_holds_no_json_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        decode(text)

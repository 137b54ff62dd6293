"""A local HTTP server that speaks OpenAI's chat completions: what it answers is up to each test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Answer = Callable[[list[dict[str, str]]], "str | Response"]
"""From the conversation to the text of an answer, or to a whole response."""


@dataclass
class ModelServer:
    """Answers every request with what `answer` makes of its conversation."""

    http: HTTPServer
    answer: Answer = lambda messages: "{}"
    rejects: tuple[str, ...] = ()
    """Parameters that the server refuses, as some do."""
    seconds: float = 0.0
    cut: bool = False
    """Answers end in the middle, and say so."""
    counts: bool = True
    """Whether tokens are counted."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._handle)

    @property
    def url(self) -> str:
        return self.http.url_for("/v1")

    def _handle(self, request: Request) -> Response:
        data = json.loads(request.get_data())
        self.requests.append(data)
        self.keys.append(request.headers.get("Authorization", ""))
        for parameter in self.rejects:
            if parameter in data:
                return error(400, f"Unsupported parameter: {parameter!r}")
        if self.seconds:
            time.sleep(self.seconds)
        said = self.answer(data["messages"])
        if isinstance(said, Response):
            return said
        text = said[: len(said) // 2] if self.cut else said
        return self._stream(data, text) if data.get("stream") else completion(text, self.cut, self.counts)

    def _stream(self, data: dict[str, Any], text: str) -> Response:
        pieces = [text[i : i + 40] for i in range(0, len(text), 40)]
        chunks = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
        if not self.cut:  # a connection that breaks says nothing
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            if data.get("stream_options"):
                chunks.append({"choices": [], "usage": usage(text)})
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "local"}
        lines = [f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks]
        return Response(lines if self.cut else [*lines, "data: [DONE]\n\n"], content_type="text/event-stream")


def usage(text: str) -> dict[str, int]:
    return {"prompt_tokens": 1000, "completion_tokens": len(text) // 4, "total_tokens": 1000 + len(text) // 4}


def completion(text: str, cut: bool = False, counts: bool = True) -> Response:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "length" if cut else "stop",
    }
    data = {"id": "1", "object": "chat.completion", "created": 1, "model": "local", "choices": [choice]}
    return Response(json.dumps(data | ({"usage": usage(text)} if counts else {})), content_type="application/json")


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
    return Response(json.dumps(body), status, headers, content_type="application/json")

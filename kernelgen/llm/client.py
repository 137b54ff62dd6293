"""A language model behind any server that speaks OpenAI's chat completions, through the openai package."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelgen.errors import LanguageModelError
from kernelgen.llm.decode import LONGEST
from kernelgen.llm.ledger import tokens_of

ATTEMPTS = 3
LONGEST_WAIT_S = 30.0
TIMEOUT_S = 300.0
NO_KEY = "none"
"""What is sent to a server of one's own that wants no key."""

Messages = Sequence[Mapping[str, str]]


class Unanswered(Exception):
    """A request that came to nothing although the server exists; the next one may be answered."""


@dataclass(frozen=True)
class Reply:
    """What a model said."""

    text: str
    tokens_in: int
    tokens_out: int
    cut: bool = False
    """It stopped because it had no more room, or the connection broke."""


@dataclass(frozen=True)
class Endpoint:
    """Which model, where."""

    model: str
    base_url: str | None = None
    key: str | None = field(default=None, repr=False)
    stream: bool = False
    timeout_s: float = TIMEOUT_S

    def describe(self) -> str:
        """For the log: no credentials."""
        return redact(f"{self.model} at {self.base_url or 'the default server'}", self.key)


class Client:
    """Asks, retries what is worth it, and learns which features the server lacks. Thread-safe."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        import openai

        self.endpoint = endpoint
        self._sleep = sleep
        self._openai = openai
        try:
            self._client = openai.OpenAI(
                api_key=endpoint.key or NO_KEY, base_url=endpoint.base_url, timeout=endpoint.timeout_s, max_retries=0
            )
        except Exception as error:  # a malformed address; what is raised depends on the package's version
            raise LanguageModelError(self._line(f"--base-url: {error}")) from None
        self._without: set[str] = set()

    def ask(self, messages: Messages, most_tokens: int, schema: dict[str, Any], timeout_s: float) -> Reply:
        """One answer. Raises Unanswered, or LanguageModelError where no request can ever succeed."""
        attempt = 0
        while True:
            without = frozenset(self._without)
            try:
                return self._once(messages, most_tokens, schema, min(timeout_s, self.endpoint.timeout_s))
            except self._openai.BadRequestError as error:
                if not self._do_without(str(error), without):
                    raise LanguageModelError(self._line(f"the server refuses the request: {error}")) from None
            except (
                self._openai.AuthenticationError,
                self._openai.PermissionDeniedError,
                self._openai.NotFoundError,
            ) as error:
                raise LanguageModelError(self._line(f"the server refuses: {error}")) from None
            except self._openai.APITimeoutError:
                raise Unanswered(f"no answer within {min(timeout_s, self.endpoint.timeout_s):g} s") from None
            except self._openai.APIConnectionError as error:
                attempt += 1
                if attempt >= ATTEMPTS:
                    where = self.endpoint.base_url or "the default server"
                    raise LanguageModelError(self._line(f"cannot reach {where}: {error}")) from None
                self._sleep(2.0**attempt)
            except self._openai.APIStatusError as error:
                attempt += 1
                if attempt >= ATTEMPTS or not (error.status_code == 429 or error.status_code >= 500):
                    raise Unanswered(self._line(f"the server answers {error.status_code}: {error}")) from None
                self._sleep(_wait(error.response.headers.get("retry-after"), attempt))
            except Unanswered:
                raise
            except Exception as error:  # what a server that speaks nonsense makes the package raise
                raise Unanswered(self._line(f"no answer of the protocol: {type(error).__name__}: {error}")) from None

    def _once(self, messages: Messages, most_tokens: int, schema: dict[str, Any], timeout_s: float) -> Reply:
        limit = "max_tokens" if "max_completion_tokens" in self._without else "max_completion_tokens"
        request: dict[str, Any] = {"model": self.endpoint.model, "messages": list(messages), limit: most_tokens}
        if "response_format" not in self._without:
            request["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": schema},
            }
        create: Any = self._client.with_options(timeout=timeout_s).chat.completions.create
        sent = sum(tokens_of(m["content"]) for m in messages)
        if self.endpoint.stream:
            if "stream_options" not in self._without:
                request["stream_options"] = {"include_usage": True}
            return self._streamed(create(**request, stream=True), sent)
        answer = create(**request)
        choices = getattr(answer, "choices", None)
        if not choices or choices[0].message is None:
            raise Unanswered("the server's answer has no choices")
        text = (choices[0].message.content or "")[: LONGEST + 1]
        return self._reply(text, getattr(answer, "usage", None), sent, choices[0].finish_reason != "stop")

    def _streamed(self, chunks: Any, sent: int) -> Reply:
        """Chunks put together; a stream that breaks off is an answer that was cut."""
        text, finish, usage = "", None, None
        try:
            for chunk in chunks:
                usage = getattr(chunk, "usage", None) or usage
                for choice in chunk.choices[:1]:
                    text += getattr(choice.delta, "content", None) or ""
                    finish = choice.finish_reason or finish
                if len(text) > LONGEST:
                    break
        except self._openai.APITimeoutError:
            raise
        except Exception as error:  # the transport's own errors, whichever it is
            if not text:
                raise Unanswered(self._line(f"the stream broke: {type(error).__name__}")) from None
        return self._reply(text, usage, sent, finish != "stop")

    def _reply(self, text: str, usage: Any, sent: int, cut: bool) -> Reply:
        tokens_in = getattr(usage, "prompt_tokens", None)
        tokens_out = getattr(usage, "completion_tokens", None)
        return Reply(
            redact(text, self.endpoint.key),
            tokens_in if isinstance(tokens_in, int) and tokens_in >= 0 else sent,
            tokens_out if isinstance(tokens_out, int) and tokens_out >= 0 else tokens_of(text),
            cut,
        )

    def _do_without(self, message: str, without: frozenset[str]) -> bool:
        """Leave out what the server does not know, one thing at a time; False where nothing is left to leave out.

        `without`: what the refused request had left out; another request may have learnt more meanwhile.
        """
        if self._without - without:
            return True
        text = message.lower()
        for feature, words in FEATURES:
            if feature not in self._without and any(word in text for word in words):
                self._without.add(feature)
                return True
        if "response_format" not in self._without:  # some servers do not say what they dislike
            self._without.add("response_format")
            return True
        return False

    def _line(self, text: str) -> str:
        return redact(" ".join(text.split()), self.endpoint.key)[:300]


FEATURES = (
    ("max_completion_tokens", ("max_completion_tokens", "max_tokens")),
    ("stream_options", ("stream_options", "include_usage")),
    ("response_format", ("response_format", "json_schema", "schema", "structured")),
)
"""What servers may lack, each with the words by which they say so."""


def _wait(header: str | None, attempt: int) -> float:
    """How long the server asks to be left alone, within bounds."""
    try:
        asked = float(header) if header else 2.0**attempt
    except ValueError:
        asked = 2.0**attempt
    return min(max(asked, 0.0), LONGEST_WAIT_S)


HIDDEN = "***"
_SHAPED = (
    (re.compile(r"\bsk-[A-Za-z0-9_\-*]{6,}"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|api[-_ ]?key\W{1,3})\s*[A-Za-z0-9._\-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=://)[^/\s@]+:[^/\s@]+(?=@)"), HIDDEN),
)
"""What looks like a key even where it is not ours, and credentials in addresses."""


def redact(text: str, key: str | None = None) -> str:
    """The text without `key` and without anything shaped like one."""
    if key and len(key) >= 4:
        text = text.replace(key, HIDDEN)
    for pattern, replacement in _SHAPED:
        text = pattern.sub(replacement, text)
    return text

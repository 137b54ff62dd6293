"""From a model's text to JSON: whole, or in fenced blocks for servers that know no structured output."""

from __future__ import annotations

import json
import re

from kernelgen.custom import Refused

LONGEST = 400_000
"""Characters; far beyond any kernel."""
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
NO_JSON = "the answer holds no JSON object: answer with one object, or with one fenced block of json and one of python"


def decode(text: str) -> dict[str, object]:
    """The one JSON object of an answer; a python block beside it is its `kernels`. Raises Refused."""
    if len(text) > LONGEST:
        raise Refused((f"the answer is longer than {LONGEST} characters",))
    text = _THOUGHT.sub("", text).strip()
    whole = _object(text)
    if whole is not None:
        return whole
    blocks = _FENCE.findall(text)
    objects = [found for _, body in blocks if (found := _object(body)) is not None]
    kernels = [body for kind, body in blocks if kind.lower() in ("python", "py", "triton")]
    if not objects:
        start, end = text.find("{"), text.rfind("}")
        between = _object(text[start : end + 1]) if start >= 0 else None
        if between is None:
            raise Refused((NO_JSON,))
        objects = [between]
    answer = objects[-1]
    if "kernels" not in answer and kernels:
        answer = {**answer, "kernels": "\n\n".join(body.strip("\n") for body in kernels) + "\n"}
    return answer


def _object(text: str) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

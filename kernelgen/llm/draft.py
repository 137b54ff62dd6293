"""From words to a spec: a model writes it, it is validated without being run, repaired within bounds, and shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kernelgen.custom import Refused
from kernelgen.errors import LanguageModelError, SpecError
from kernelgen.journal import Journal
from kernelgen.llm import careful
from kernelgen.llm.decode import decode
from kernelgen.llm.exchange import Asks, Exchange
from kernelgen.llm.ledger import Caps
from kernelgen.llm.prompt import repair_of_refusal
from kernelgen.render import environment
from kernelgen.spec import parse_spec
from kernelgen.spec.model import OperatorSpec

TRIES = 4
"""Answers asked for in all."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"spec": {"type": "string", "description": "the whole YAML file"}},
    "required": ["spec"],
    "additionalProperties": False,
}
_YAML = re.compile(r"^[ \t]*```[ \t]*(?:ya?ml)?[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Draft:
    """A spec that a model wrote, valid as far as can be said without running it."""

    spec: OperatorSpec
    text: str
    tries: int


def draft(words: str, client: Asks, journal: Journal, caps: Caps) -> Draft:
    """A spec for some words. Raises LanguageModelError where none of the answers is one."""
    system = environment().get_template("prompt_spec.md.jinja").render()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"The operator: {words}"}]
    exchange, reasons = Exchange(client, journal, caps), ["nothing was asked"]
    for number in range(1, TRIES + 1):
        answers = exchange.ask([messages], SCHEMA)
        if not answers:
            raise LanguageModelError(f"no spec: {exchange.ended}")
        (answered,) = answers
        try:
            if answered.error:
                raise Refused((answered.error,))
            text = _text(answered.text)
            return Draft(_valid(text), text, number)
        except Refused as refused:
            reasons = list(refused.reasons)
            journal.append("refused", {"round": 0, "key": answered.key, "reasons": reasons[:8]})
        messages = [
            *messages,
            {"role": "assistant", "content": answered.text or "(no answer)"},
            {"role": "user", "content": repair_of_refusal(reasons)},
        ]
    raise LanguageModelError(f"no spec in {TRIES} answers; the last was refused: {reasons[0][:200]}")


def _text(answer: str) -> str:
    """The YAML of an answer: the field of a JSON object, or a fenced block. Raises Refused."""
    try:
        found = decode(answer).get("spec")
    except Refused:
        found = None
    if not isinstance(found, str):
        blocks = _YAML.findall(answer)
        found = blocks[-1] if blocks else None
    if found is None:
        raise Refused(("the answer holds no spec: answer with a JSON object with the field spec, or a block of yaml",))
    return found.strip("\n") + "\n"


def _valid(text: str) -> OperatorSpec:
    """The spec of a text whose reference is arithmetic alone. Raises Refused with every mistake."""
    try:
        spec = parse_spec(text, "spec.yaml")
    except SpecError as error:
        raise Refused([str(m) for m in error.mistakes]) from None
    found = [f"reference: {line}" for line in careful.findings(spec.reference)]
    if spec.module:
        found.append("module: not in a draft")
    if found:
        raise Refused(found)
    return spec

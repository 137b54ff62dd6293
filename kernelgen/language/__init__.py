"""The log and the definition in another language than English, phrase by phrase.

Journals and data stay English: what is translated is the Markdown that people read. A catalogue has each phrase once,
`{}` for what varies, which is `{0}`, `{1}` of the translation and is translated in turn. Code, names and what a user
wrote stay as they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_LINE = re.compile(r"(?P<lead>#+ |- |<details><summary>|<sub>)?(?P<text>.*?)(?P<tail></summary>|</sub>)?")
_NAMED = re.compile(r"\*\*(?P<name>[^*]+):\*\* (?P<value>.*)")
_CELLS = re.compile(r"(?<!\\)\|")
_GROUP = r"\[[^\]]*\]|\([^()]*\)|`[^`]*`"
"""What is never taken apart."""
_VARIES = {"{}": rf"((?:{_GROUP}|(?! · |; |: |, )[^\[\]()`])+?)", "{*}": "(.+?)", "{#}": r"([\d.]+(?: [kMG]?B| %)?)"}
_SEPARATORS = ((". ", "。"), (" · ", " · "), ("; ", "；"), (": ", "："), (", ", "，"), (" and ", "和"))
"""Where a sentence that is no phrase of the catalogue is taken apart: the first that it has."""
_ENDS = {".": "。", ":": "："}
_TAIL = re.compile(r"(.+?) \(([^()]*)\)")

Phrase = Callable[[str], str]


def translate(markdown: str, language: Language) -> str:
    """A document, or a section of one; English stays as it is."""
    return _document(markdown, _translator(language, None)) if language != "en" else markdown


def untranslated(markdown: str, language: Language) -> list[str]:
    """The parts with at least two English words that the catalogue of a language does not know, in their order."""
    unknown: list[str] = []
    _document(markdown, _translator(language, unknown))
    return [text for text in dict.fromkeys(unknown) if re.search(r"\b[a-z]{2,} [a-z]{2,}\b", text)]


def _document(markdown: str, phrase: Phrase) -> str:
    lines, is_code = [], False
    for line in markdown.split("\n"):
        is_code ^= line.startswith("```")
        plain = is_code or line.startswith(("```", "<!--")) or not line.strip()
        lines.append(line if plain else _line(line, phrase))
    return "\n".join(lines)


def _line(line: str, phrase: Phrase) -> str:
    if line.startswith("|"):
        return "|".join(f" {phrase(c.strip())} " if re.search("[a-z]", c) else c for c in _CELLS.split(line))
    found = _LINE.fullmatch(line)
    assert found is not None
    text = found["text"]
    named = _NAMED.fullmatch(text) if found["lead"] == "- " else None
    said = f"**{phrase(named['name'])}：** {phrase(named['value'])}" if named else phrase(text)
    return f"{found['lead'] or ''}{said}{found['tail'] or ''}"


def catalogue(language: Language) -> dict[str, str]:
    """By what is said in English: what is said in a language."""
    text = (Path(__file__).parent / f"{language}.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("# ")]
    return {english: said.strip() for english, said in zip(lines[::2], lines[1::2], strict=True)}


@functools.cache
def _patterns(language: Language) -> tuple[tuple[re.Pattern[str], str], ...]:
    """The catalogue of a language, what is most said in letters first."""
    ordered = sorted(catalogue(language).items(), key=lambda pair: -len(re.sub(r"\{[*#]?\}", "", pair[0])))
    return tuple((_compiled(text), said) for text, said in ordered)


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile("".join(_VARIES.get(part, re.escape(part)) for part in re.split(r"(\{[*#]?\})", text)))


def _cut(text: str, separator: str) -> tuple[str, str] | None:
    """Before and after a separator that stands outside of brackets and code."""
    hidden = re.sub(_GROUP, lambda found: "\0" * len(found.group()), text)
    at = hidden.find(separator)
    return (text[:at], text[at + len(separator) :]) if at > 0 else None


def _translator(language: Language, unknown: list[str] | None) -> Phrase:
    patterns = _patterns(language)

    def joined(text: str, first: str, mark: str, rest: str, end: str = "") -> str:
        """Both parts translated; what a user wrote, of which nothing is known, keeps its own marks."""
        said = phrase(first), phrase(rest)
        return text if said == (first, rest) else f"{said[0]}{mark}{said[1]}{end}"

    def phrase(text: str) -> str:
        if not re.search("[A-Za-z]", re.sub("`[^`]*`", "", text)):
            return text
        for pattern, said in patterns:
            if found := pattern.fullmatch(text):
                return said.format(*map(phrase, found.groups()))
        if found := _TAIL.fullmatch(text):
            return joined(text, found[1], "（", found[2], "）")
        for separator, mark in _SEPARATORS:
            if parts := _cut(text, separator):
                return joined(text, parts[0], mark, parts[1])
        if text[-1] in _ENDS:
            return joined(text, text[:-1], _ENDS[text[-1]], "")
        if unknown is not None:
            unknown.append(text)
        return text

    return phrase

"""Lines of generated code in the shape that ruff format would give them."""

from __future__ import annotations

import re
from collections.abc import Iterator

LINE = 88
"""ruff format's default line length."""
_SUM = re.compile(r"(\w+ = )(\w+ \+ .*)")
"""What a pointer and offsets are added to."""
_LOOSEST_FIRST = ((" & ",), (" + ", " - "))
"""The operators that a term too long for a line is broken before."""
_CHOICE = re.compile(r"(\w+) = (\w+) (if [\w.]+ == \d+) (else \S.*)")
"""One of two values, by a number."""

_METHODS = re.compile(r"\)(\.\w+\(\w*\))+")
"""What is called of something in brackets."""


def call(target: str, function: str, args: list[str], suffix: str = "") -> str:
    """`target = function(args)suffix`, or the bare call where there is no target."""
    return f"{f'{target} = ' if target else ''}{function}({', '.join(args)}){suffix}"


def fit(line: str, indent: int) -> str:
    """A line at an indentation, its outermost call broken as ruff format breaks it where the line is too long."""
    space = " " * indent
    if len(line) + indent <= LINE or line.startswith("#"):
        return space + line
    sum_of = _SUM.match(line)
    if sum_of:
        return f"{space}{sum_of[1]}(\n{_terms(sum_of[2], indent + 4, '')}\n{space})"
    chosen = _CHOICE.fullmatch(line)
    if chosen:
        target, value = chosen[1], " ".join(chosen.groups()[1:])
        whole = len(value) + indent + 4 <= LINE
        pieces = [fit(piece, indent + 4) for piece in ([value] if whole else chosen.groups()[1:])]
        return "\n".join([f"{space}{target} = (", *pieces, f"{space})"])
    if "(" not in line:
        target, equals, value = line.partition("= ")
        if not equals:
            return space + line
        factors = [value] if len(value) + indent + 4 <= LINE else _parts(value, " * ")
        apart = "".join(f"{space}    {factor.strip()}\n" for factor in factors)
        return f"{space}{target}{equals}(\n{apart}{space})"
    target, equals, value = line.partition(" = ")
    if len(_parts(value, " * ")) > 2 and len(value) + indent + 4 <= LINE:  # of two factors ruff breaks the call
        return f"{space}{target}{equals}(\n{space}    {value}\n{space})"
    start = line.index("(") + 1
    if start + indent > LINE and " = " in line[:start]:
        target, _, value = line.partition(" = ")
        if ", " in target and len(target) + len(" = (") + indent > LINE:
            names = "".join(f"{space}    {name},\n" for name in target.split(", "))
            return f"{space}(\n{names}{space}) = {value}"
        return f"{space}{target} = (\n{fit(value, indent + 4)}\n{space})"
    end = start + closing(line[start:])
    factors = [part.strip() for part in _parts(line[start:end], " @ ")]
    if line[start - 2] == " " and len(factors) > 1 and _METHODS.fullmatch(line[end:]):
        whole = end - start + indent + 4 <= LINE
        pieces = [line[start:end]] if whole else factors
        return "\n".join([f"{space}{line[:start]}", *(f"{space}    {p}" for p in pieces), f"{space}{line[end:]}"])
    if line[start - 2] == " " and line[end:] != ")":  # brackets around the first term of what goes on after them
        target, _, value = line.partition("= ")
        terms = f"\n{space}    ".join(part.strip() for part in _parts(value, " & "))
        return f"{space}{target}= (\n{space}    {terms}\n{space})"
    args = split_top(line[start:end])
    inner = ", ".join(args)
    # a tuple, or a call whose result is used further, is only stable with a line and a comma for every argument
    is_tuple = line[start - 2] == " " and (len(args) > 1 or line[: start - 1].endswith("= "))
    if len(inner) + indent + 4 <= LINE and line[end:] in (")", "):") and not is_tuple:
        return f"{space}{line[:start]}\n{space}    {inner}\n{space}{line[end:]}"
    parts = "".join(f"{_terms(a, indent + 4)},\n" for a in args)
    return f"{space}{line[:start]}\n{parts}{space}{line[end:]}"


def _terms(argument: str, indent: int, comma: str = ",") -> str:
    """An argument, its terms on lines of their own where it is too long, and their factors where a term is."""
    space = " " * indent
    if len(argument) + indent + len(comma) <= LINE:
        return space + argument
    terms = next((parts for signs in _LOOSEST_FIRST if len(parts := _parts(argument, *signs)) > 1), [argument])
    if terms == [argument] and argument[0] in "([" and closing(argument[1:]) == len(argument) - 2:
        entries = "".join(f"{_terms(a, indent + 4)},\n" for a in split_top(argument[1:-1]))
        return f"{space}{argument[0]}\n{entries}{space}{argument[-1]}"
    start = argument.find("(") + 1
    is_call = re.fullmatch(r"[\w.]+", argument[: max(start - 1, 0)]) is not None
    if terms == [argument] and is_call and start + closing(argument[start:]) == len(argument) - 1:
        inner = f"{space}    {argument[start:-1]}"
        apart = [_terms(a, indent + 4) + "," for a in split_top(argument[start:-1])]
        return "\n".join([f"{space}{argument[:start]}", *([inner] if len(inner) <= LINE else apart), f"{space})"])
    lines = [part for t in terms for part in (_parts(t, " * ", " // ") if len(t) + indent + 1 > LINE else [t])]
    return "\n".join(space + line for line in lines)


def _parts(text: str, *signs: str) -> list[str]:
    """Cut before every operator that no bracket encloses."""
    parts, start = [], 0
    for i, depth in _depths(text):
        if depth == 0 and text.startswith(signs, i):
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def closing(text: str) -> int:
    """Where the bracket that encloses `text` closes."""
    return next((i for i, depth in _depths(text) if depth < 0), len(text))


def split_top(text: str) -> list[str]:
    """Split at the commas that no bracket encloses."""
    parts, start = [], 0
    for i, depth in _depths(text):
        if text[i] == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in (*parts, text[start:].strip()) if p]


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """The places outside of strings, each with how many brackets are open behind it."""
    depth, quote = 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
            yield i, depth

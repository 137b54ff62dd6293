"""The JSON of an answer: its fields, a check of decoded data, and the JSON Schema that servers are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 60_000
LONGEST_LIST = 64


@dataclass(frozen=True)
class Field:
    """One field: what it holds and what it is for."""

    kind: str
    """text, integer, number, texts (a list of texts) or objects (a list of objects)."""
    meaning: str
    fields: tuple[tuple[str, Field], ...] = ()
    """Of the objects in a list."""
    least: int = 0
    """Entries of a list."""
    most: int = LONGEST_LIST


Fields = tuple[tuple[str, Field], ...]

NAMED: Fields = (
    ("name", Field("text", "the name")),
    ("value", Field("text", "an expression over sizes, such as cdiv(N, 2)")),
)
SCRATCH: Fields = (
    ("name", Field("text", "the name that launches pass it by")),
    ("shape", Field("texts", "expressions over sizes", least=1, most=4)),
    ("dtype", Field("text", "float32, float16, bfloat16, float64, int32 or int64")),
    ("fill", Field("number", "what every element holds before each call")),
)
LAUNCH: Fields = (
    ("kernel", Field("text", "the name of a function in `kernels`")),
    ("grid", Field("texts", "one to three expressions over sizes and this launch's constexprs", least=1, most=3)),
    ("arguments", Field("texts", "in the order of the kernel's parameters: tensors by name, expressions, or a float")),
    ("constexprs", Field("objects", "every tl.constexpr parameter of the kernel", NAMED)),
    ("num_warps", Field("integer", "1, 2, 4, 8, 16 or 32")),
    ("num_stages", Field("integer", "1 to 8")),
)
FIELDS: Fields = (
    ("idea", Field("text", "one sentence: what this kernel does better, and why")),
    ("kernels", Field("text", "the text of one or more @triton.jit functions, without imports")),
    ("sizes", Field("objects", "names for expressions over sizes, in order; may be empty", NAMED)),
    ("scratch", Field("objects", "memory that several launches share; may be empty", SCRATCH, most=8)),
    ("launches", Field("objects", "what is launched, in order", LAUNCH, least=1, most=8)),
)

_PLAIN = {"text": str, "integer": int, "number": (int, float)}


def problems(data: object, fields: Fields, where: str) -> list[str]:
    """Why decoded JSON is not of the form; empty where it is."""
    if not isinstance(data, dict):
        return [f"{where} is no JSON object"]
    names = [name for name, _ in fields]
    found = [f"{where} has no field {name}" for name in names if name not in data]
    found += [f"{where} has the unknown field {str(name)[:40]!r}" for name in data if name not in names]
    for name, field in fields:
        if name in data:
            found += _field(data[name], field, name if where == "the answer" else f"{where}: {name}")
    return found


def _field(value: Any, field: Field, where: str) -> list[str]:
    if field.kind in _PLAIN:
        kind: Any = _PLAIN[field.kind]
        if not isinstance(value, kind) or isinstance(value, bool):
            return [f"{where} is no {field.kind}"]
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            return [f"{where} is longer than {LONGEST_TEXT} characters"]
        return [] if isinstance(value, str) or abs(value) < 1e38 else [f"{where} is no finite number"]
    if not isinstance(value, list) or not field.least <= len(value) <= field.most:
        return [f"{where} is no list of {field.least} to {field.most} entries"]
    if field.kind == "texts":
        return [] if all(isinstance(one, str) for one in value) else [f"{where} holds something else than texts"]
    return [line for i, one in enumerate(value, start=1) for line in problems(one, field.fields, f"{where} {i}")]


def schema() -> dict[str, Any]:
    """JSON Schema in the subset that servers with structured output take: everything required, nothing else allowed."""
    return _object(FIELDS)


def _object(fields: Fields) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _schema(field) for name, field in fields},
        "required": [name for name, _ in fields],
        "additionalProperties": False,
    }


def _schema(field: Field) -> dict[str, Any]:
    if field.kind in _PLAIN:
        return {"type": {"text": "string"}.get(field.kind, field.kind), "description": field.meaning}
    items = {"type": "string"} if field.kind == "texts" else _object(field.fields)
    return {"type": "array", "items": items, "description": field.meaning}

"""What a single scalar of a spec may be: one function a kind, each taking text and raising PydanticCustomError.

An error carries the place of the very scalar that is wrong, so a bad third entry of a list is reported there.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable

from pydantic_core import PydanticCustomError

from kernelgen.spec.model import CUSTOM, DTYPES, ELLIPSIS, FAMILIES, ON_REQUEST, PRECISIONS, ROLES, STRATEGIES, Size
from kernelgen.spec.nearest import hint
from kernelgen.spec.sizes import check_size, names_in
from kernelgen.spec.tree import Map, Seq, Text, kind, shorten

LARGEST_SIZE = 1 << 40

TAKEN = frozenset({"torch", "triton", "tl", "F", "math", "judge", "reference", "kernelgen", "random_mask"})
"""Names that the generated files give a meaning of their own."""

BUILTINS_IN_USE = frozenset(
    [
        *("ValueError", "all", "any", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min"),
        *("print", "range", "sum", "tuple", "zip"),
    ]
)
"""Python builtins that generated wrappers call; a tensor of that name would hide them."""


_ANY_INT = "unknown dtype 'int'; did you mean 'int32' or 'int64'?"


def fail(value: object, message: str) -> PydanticCustomError:
    """The error for one value, with its place where it has one."""
    # the message travels as a value: pydantic would read braces in a template
    return PydanticCustomError("spec", "{message}", {"message": message, "place": getattr(value, "place", None)})


def text(value: object) -> Text:
    """Any scalar but an empty one, as it was written."""
    if not isinstance(value, Text):
        raise fail(value, f"needs a text, got {_kind(value)}")
    if value.is_null or not value.strip():
        raise fail(value, "needs a text, got nothing")
    return value


def identifier(value: object) -> str:
    """A plain ASCII name that is safe in Python and Triton source."""
    name = _name(value)
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        raise fail(value, f"'{shorten(name)}' is not a name: ASCII letters, digits and underscores, a letter first")
    if keyword.iskeyword(name):
        raise fail(value, f"'{shorten(name)}' is a word of Python; choose another name")
    if name in TAKEN or name in BUILTINS_IN_USE:
        raise fail(value, f"'{shorten(name)}' has a meaning of its own in the generated code; choose another name")
    return name


def folder(value: object) -> str:
    """A relative path below operators/."""
    path = _name(value)
    parts = path.split("/")
    if not all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", part) for part in parts):
        raise fail(
            value,
            f"'{shorten(path)}' is not a folder below operators/: names separated by '/', no '..', no leading '/'",
        )
    return path


def size(value: object) -> Size:
    """One entry of a declared shape: a number from 1, a name, '...', or an expression such as `2 * D`."""
    entry = _name(value)
    if entry == ELLIPSIS:
        return ELLIPSIS
    if re.fullmatch(r"[+-]?[0-9][0-9_]*", entry):
        return bounded(value, 1, LARGEST_SIZE)
    if not re.search(r"[+*/() -]", entry):
        return identifier(value)
    try:
        checked = check_size(entry)
    except ValueError:
        message = "is not a name: ASCII letters, digits and underscores, a letter first"
        raise fail(value, f"'{shorten(entry)}' {message}, or an expression such as 2 * D") from None
    for name in names_in(checked):
        identifier(Text(name, value.place) if isinstance(value, Text) else name)
    return checked


def size_value(value: object) -> int | list[int]:
    """What a case binds a size to: a number from 0, or a list of them for '...'."""
    if isinstance(value, Seq):
        return [bounded(item, 0, LARGEST_SIZE) for item in value]
    return bounded(value, 0, LARGEST_SIZE)


def bounded(value: object, low: int, high: int) -> int:
    """A whole number between two bounds, written in decimal digits."""
    if not isinstance(value, Text) or not re.fullmatch(r"[+-]?[0-9]+", value):
        raise fail(value, f"needs a whole number, got {_kind(value)}")
    # int() of thousands of digits is slow and then refused by Python
    number = int(value) if len(value) < 40 else (-high - 1 if value.startswith("-") else high + 1)
    if number < low:
        raise fail(value, f"must be at least {low}, got {_kind(value)}")
    if number > high:
        raise fail(value, f"must be at most {high}, got {_kind(value)}")
    return number


def number(value: object, high: float = math.inf) -> float:
    """A positive number up to `high`; `1e-3` is what it looks like."""
    if not isinstance(value, Text) or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        raise fail(value, f"needs a number, got {_kind(value)}")
    result = float(value)
    if not 0 < result < math.inf:
        raise fail(value, f"must be above 0, got {_kind(value)}" if result <= 0 else f"is too large: {_kind(value)}")
    if result > high:
        raise fail(value, f"must be at most {high:g}, got {_kind(value)}")
    return result


def any_number(value: object) -> float:
    """A finite number; `1e-3` is what it looks like."""
    if not isinstance(value, Text) or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        raise fail(value, f"needs a number, got {_kind(value)}")
    if not math.isfinite(float(value)):
        raise fail(value, f"is too large: {_kind(value)}")
    return float(value)


SCALARS = ("float", "int", "bool", "str")
"""Types of Python's that an input may be instead of a tensor."""
WORD = "[A-Za-z0-9_.+-]{1,40}"
"""What an option of str may be."""


def scalar(value: object) -> str:
    """A name of SCALARS."""
    return one_of(value, "kind of number", SCALARS)


def plain(value: object) -> Text:
    """One value as it is written; what it is depends on the type beside it."""
    if not isinstance(value, Text) or value.is_null:
        raise fail(value, f"needs one value, got {_kind(value)}")
    return value


def value(kind: str, written: object) -> float | int | bool | str:
    """A value of one of SCALARS."""
    if kind == "bool":
        return flag(written)
    if kind == "float":
        return any_number(written)
    if kind == "str":
        if not re.fullmatch(WORD, plain(written)):
            raise fail(written, f"needs a word, got {_kind(written)}")
        return str(written)
    if not isinstance(written, Text) or not re.fullmatch(r"[+-]?[0-9]{1,9}", written):
        raise fail(written, f"needs a whole number, got {_kind(written)}")
    return int(written)


def one_of(value: object, what: str, known: Iterable[str]) -> str:
    """One of a fixed set of words."""
    word = _name(value)
    if word not in known:
        raise fail(value, f"unknown {what} '{shorten(word)}'{hint(word, known)}")
    return word


def spelt(entry: str) -> str:
    """An entry of a shape in one way of writing it: `8*N` is `8 * N`."""
    try:
        return check_size(entry)
    except ValueError:
        return entry


def dtype_name(value: object) -> str:
    if value == "int":
        raise fail(value, _ANY_INT)
    return one_of(value, "dtype", DTYPES)


def tensor_dtype(value: object) -> str:
    """A dtype, or the name of a variable."""
    if value == "int":
        raise fail(value, _ANY_INT)
    if isinstance(value, str) and value in BUILTINS_IN_USE:
        return one_of(value, "dtype", DTYPES)
    return str(value) if value in DTYPES else identifier(value)


def strategy(value: object) -> str:
    return one_of(value, "strategy", (*STRATEGIES, *ON_REQUEST))


def family(value: object) -> str:
    return one_of(value, "type", FAMILIES)


def custom(value: object) -> str:
    return one_of(value, "family", (CUSTOM,))


def role(value: object) -> str:
    return one_of(value, "role", ROLES)


def precision(value: object) -> str:
    return one_of(value, "precision", PRECISIONS)


def flag(value: object) -> bool:
    """`true` or `false`."""
    return one_of(value, "word", ("true", "false")) == "true"


def _name(value: object) -> str:
    if not isinstance(value, Text) or value.is_null:
        raise fail(value, f"needs a name, got {_kind(value)}")
    return str(value)


def _kind(value: object) -> str:
    return kind(value) if isinstance(value, Text | Seq | Map) else repr(value)

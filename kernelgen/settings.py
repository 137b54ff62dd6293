"""Settings: flag > `KERNELGEN_*` > `[tool.kernelgen]` of the nearest pyproject.toml > default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from kernelgen.errors import UsageError
from kernelgen.language import LANGUAGES

MAX_ROUNDS = 20

Value = TypeVar("Value")


@dataclass(frozen=True)
class Settings:
    """What can be set once for a machine or a project instead of on every command line."""

    device: str | None = None
    """A name that `devices.find` knows; None: the best that this machine has."""
    arch: str | None = None
    """What the cpu device compiles for, such as sm_90; None: its own default."""
    rounds: int | None = None
    """1 to MAX_ROUNDS; None: what the spec says."""
    candidates: int | None = None
    """How many candidates a round tries at most; None: the optimiser's own default."""
    jobs: int | None = None
    """Compile worker processes; None: one a core."""
    max_minutes: float | None = None
    """Wall-clock cap of one `optimize` call."""
    stop_at_target: bool = False
    lang: str | None = None
    """Of definition.md and the log; None: as they are, or English."""
    journals: str | None = None
    """A folder that packed journals of runs that measured are kept in as well, such as one that is committed."""
    verify: bool = True
    """Whether `new` runs a case and compiles the kernels before it writes them."""
    model: str | None = None
    """The language model's name, as its server knows it."""
    base_url: str | None = None
    """Its server; None: what OPENAI_BASE_URL says, or OpenAI's."""
    stream: bool = False
    """Answers come in pieces."""
    max_tokens: int | None = None
    """Of a run, read and written together."""
    max_cost: float | None = None
    """Of a run, in the currency of the prices."""
    price_in: float | None = None
    """Price per 1M tokens that the model reads."""
    price_out: float | None = None
    """Price per 1M tokens that it writes."""


def resolve(
    flags: Mapping[str, object], *, env: Mapping[str, str] | None = None, start: Path | None = None
) -> Settings:
    """The settings in force; a flag of None was not given. Raises UsageError on a bad value, naming where it stands."""
    layers = (
        _from_pyproject(start or Path.cwd()),
        _from_environment(os.environ if env is None else env),
        {name: (f"--{name.replace('_', '-')}", value) for name, value in flags.items() if value is not None},
    )
    values: dict[str, Any] = {}
    for layer in layers:
        for name, (where, value) in layer.items():
            values[name] = checked(where, value, _CHECKS[name])
    return Settings(**values)


def nearest_pyproject(start: Path) -> Path | None:
    """The pyproject.toml of `start` or of the closest folder above it."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return path
    return None


_Layer = dict[str, tuple[str, object]]


def _from_environment(env: Mapping[str, str]) -> _Layer:
    names = {f"KERNELGEN_{field.name.upper()}": field.name for field in fields(Settings)}
    return {field: (name, env[name]) for name, field in names.items() if env.get(name)}


def _from_pyproject(start: Path) -> _Layer:
    path = nearest_pyproject(start)
    if path is None:
        return {}
    try:
        tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError, RecursionError) as error:  # what is no TOML or no UTF-8 is a ValueError
        raise UsageError(f"{path}: cannot be read: {error}") from None
    table = tools.get("kernelgen", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.kernelgen] must be a table, not {table!r}")
    layer: _Layer = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        where = f"{path}: [tool.kernelgen] {key if key.isprintable() else repr(key)}"
        if name not in _CHECKS:
            raise UsageError(f"{where}: no such setting{_did_you_mean(name)}")
        layer[name] = (where, value)
    return layer


def _did_you_mean(name: str) -> str:
    near = get_close_matches(name, _CHECKS, n=1)
    return f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(_CHECKS)}"


def checked(where: str, value: object, check: Callable[[object], Value]) -> Value:
    """The value as its check returns it. Raises UsageError, naming where it stands, for one that the check refuses."""
    try:
        return check(value)
    except ValueError as error:
        raise UsageError(f"{where}: {error}, not {value!r}") from None


def _name(value: object) -> str:
    """Which devices and architectures there are is for `devices.find` to say."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a name")
    return value


def _folder(value: object) -> str:
    if not isinstance(value, str) or not value or Path(value).is_file():
        raise ValueError("must be a folder")
    return value


def _address(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    """A check for a whole number, given as text or as one."""
    bounds = f"a whole number from {low} to {high}" if high else f"a whole number, {low} or more"

    def check(value: object) -> int:
        try:
            number = int(str(value)) if not isinstance(value, bool) else low - 1
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            raise ValueError(f"must be {bounds}")
        return number

    return check


def among(known: Sequence[str]) -> Callable[[object], str]:
    """A check for one of a few words."""

    def check(value: object) -> str:
        if value not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    return check


def positive(unit: str = "") -> Callable[[object], float]:
    """A check for a finite number above 0, given as text or as one."""

    def check(value: object) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise ValueError(f"must be a number{unit} above 0")
        return number

    return check


def _language(value: object) -> str:
    if value not in LANGUAGES:
        raise ValueError(f"must be {' or '.join(LANGUAGES)}")
    return str(value)


def _flag(value: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).lower() not in words:
        raise ValueError("must be true or false")
    return words[str(value).lower()]


_CHECKS: dict[str, Callable[[object], Any]] = {
    "device": _name,
    "arch": _name,
    "rounds": whole(1, MAX_ROUNDS),
    "candidates": whole(1),
    "jobs": whole(1),
    "max_minutes": positive(" of minutes"),
    "stop_at_target": _flag,
    "lang": _language,
    "journals": _folder,
    "verify": _flag,
    "model": _name,
    "base_url": _address,
    "stream": _flag,
    "max_tokens": whole(1),
    "max_cost": positive(),
    "price_in": positive(),
    "price_out": positive(),
}
"""What makes each value right; every field of Settings has one."""

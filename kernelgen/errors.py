"""The mistakes kernelgen reports to its user: one class a kind, one exit code a class.

A failed kernel is not here: it is a typed outcome (`kernelgen.outcomes`). Anything that is neither is a
fault of kernelgen itself and is left to crash loudly.
"""

from __future__ import annotations

from dataclasses import dataclass


class KernelgenError(Exception):
    """A mistake with one clear line for the user; `exit_code` is what the process returns."""

    exit_code = 2


class UsageError(KernelgenError):
    """A flag, a path or a setting is wrong."""


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake in a spec file. `line` and `column` count from 1."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class SpecError(KernelgenError):
    """A spec that does not say what an operator is; carries every mistake found in the file."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        super().__init__("\n".join(str(m) for m in self.mistakes))

    def __reduce__(self) -> tuple[type[SpecError], tuple[list[Mistake]]]:
        """It crosses processes whole."""
        return type(self), (list(self.mistakes),)


class UnsupportedError(SpecError):
    """A right spec whose reference no family can lower; nothing half-right is written."""

    condition = ""
    """On sizes, under which it can, as a constraint says it; empty where none can."""


class GuardError(UnsupportedError):
    """A reference that does one thing where a condition on sizes holds and another elsewhere."""


class PrecisionError(SpecError):
    """What a spec says of products of float32 matrices is said of none, or of some that nothing multiplies so."""


class HandEditedError(KernelgenError):
    """A generated file was changed by hand and would be overwritten."""


class DamagedError(KernelgenError):
    """A file that kernelgen wrote and reads back is no longer what it can have written."""


class StaleError(KernelgenError):
    """A generated file no longer matches its spec."""

    exit_code = 1


class FaultyError(KernelgenError):
    """What was generated is wrong: a fault of kernelgen, seen before the files were written."""

    exit_code = 1


class WrongOrSlowError(KernelgenError):
    """The kernel is wrong, or slower than was asked for."""

    exit_code = 1


class NoDeviceError(KernelgenError):
    """The device or compiler that was asked for is not on this machine."""

    exit_code = 3


class LanguageModelError(KernelgenError):
    """No language model was named, or the server turned the request down; the message never holds a key."""

    exit_code = 4

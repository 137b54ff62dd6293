"""The application: its commands, and how every mistake becomes plain lines and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kernelgen import __version__
from kernelgen.cli import (
    agents,
    analyze,
    draft,
    export,
    gate,
    hardware,
    importing,
    info,
    kernelbench,
    knowledge,
    measure,
    new,
    optimize,
    profile,
    report,
    tune,
    versions,
    watch,
)
from kernelgen.cli.command import Command
from kernelgen.cli.terminal import EMITTED, emit
from kernelgen.errors import (
    DamagedError,
    FaultyError,
    HandEditedError,
    KernelgenError,
    LanguageModelError,
    NoDeviceError,
    SpecError,
    StaleError,
    UnsupportedError,
    UsageError,
    WrongOrSlowError,
)

INTERRUPTED = 130
BESIDE = ("torch", "triton")
"""What kernelgen works with but does not bring along."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk says that takes no more."""

app = typer.Typer(
    help="From a YAML operator spec to a readable, verified and measured Triton kernel.",
    epilog="Exit codes: 0 done, 1 wrong or too slow, 2 usage or spec, 3 no device or compiler, 4 language model, "
    "130 interrupted.",
    rich_markup_mode=None,  # rich's boxes cost more time than the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (
    new.new,
    optimize.optimize,
    tune.tune,
    profile.profile,
    analyze.analyze,
    measure.check,
    measure.bench,
    info.list_,
    hardware.hardware,
    info.doctor,
    info.schema,
    info.docs,
    importing.import_,
    draft.draft,
    kernelbench.kernelbench,
    export.export,
    report.report,
    gate.gate,
    versions.compare,
    versions.restore,
    watch.watch,
    agents.mcp,
):
    app.command(name=_command.__name__.rstrip("_"), cls=Command)(_command)

app.add_typer(knowledge.app, name="knowledge")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kernelgen {__version__}")
        raise typer.Exit


@app.callback()
def _kernelgen(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """From a YAML operator spec to a readable, verified and measured Triton kernel."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the user's mistakes become lines on stderr, faults of ours crash."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    EMITTED.clear()
    as_json = "--json" in arguments
    try:
        # Not standalone: typer would print its own boxes and exit.
        code: int = app(arguments or ["--help"], prog_name="kernelgen", standalone_mode=False) or 0
    except typer.TyperException as error:
        _complain(_usage_line(error))
        _document(as_json, error.exit_code, [_told("usage", _usage_line(error))])
        return error.exit_code
    except KernelgenError as error:
        # A spec's mistakes start with file:line:column, where every editor looks for them.
        _complain(str(error), prefix="" if isinstance(error, SpecError) else "error: ")
        _document(as_json, error.exit_code, _mistakes(error))
        return error.exit_code
    except OSError as error:
        if error.errno not in FULL:
            raise
        line = f"{error.filename or 'a file'}: cannot write: {error.strerror}"
        _complain(line)
        _document(as_json, UsageError.exit_code, [_told("usage", line)])
        return UsageError.exit_code
    except ModuleNotFoundError as error:
        if error.name not in BESIDE:
            raise
        line = f"{error.name} is not installed: `kernelgen doctor` says how to get it"
        _complain(line)
        _document(as_json, NoDeviceError.exit_code, [_told("no device", line)])
        return NoDeviceError.exit_code
    if code == INTERRUPTED:  # typer turned Ctrl-C into it
        _complain("interrupted", prefix="")
    return code


KINDS: tuple[tuple[type[KernelgenError], str], ...] = (
    (UnsupportedError, "unsupported"), (SpecError, "spec"), (HandEditedError, "hand edited"), (DamagedError, "damaged"),
    (StaleError, "stale"), (FaultyError, "fault of kernelgen"), (WrongOrSlowError, "wrong or slow"),
    (NoDeviceError, "no device"), (LanguageModelError, "language model"), (UsageError, "usage"),
)  # fmt: skip
"""What an error is called in JSON: the first class that it is of; else `error`."""


def _mistakes(error: KernelgenError) -> list[dict[str, object]]:
    kind = next((name for known, name in KINDS if isinstance(error, known)), "error")
    if isinstance(error, SpecError):
        return [_told(kind, m.message, m.path, m.line, m.column) for m in error.mistakes]
    return [_told(kind, line) for line in str(error).splitlines()]


def _told(
    kind: str, message: str, file: str | None = None, line: int | None = None, column: int | None = None
) -> dict[str, object]:
    """One mistake; `hint` is the way out that ends its message."""
    _, cut, hint = message.rpartition("; ")
    return {
        "kind": kind, "file": file, "line": line, "column": column, "message": message, "hint": hint if cut else None
    }  # fmt: skip


def _document(wanted: bool, code: int, errors: list[dict[str, object]]) -> None:
    """With --json the mistakes are the command's document, unless it has printed one already."""
    if wanted and not EMITTED:
        emit({"exit_code": code, "errors": errors})


def _usage_line(error: typer.TyperException) -> str:
    line = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{line} (see {context.command_path} --help)" if context else line


def _complain(message: str, prefix: str = "error: ") -> None:
    sys.stdout.flush()
    print(*(f"{prefix}{line}" for line in message.splitlines()), sep="\n", file=sys.stderr)

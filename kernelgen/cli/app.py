"""The application: its commands, and how every mistake becomes plain lines and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kernelgen import __version__
from kernelgen.cli import draft, export, importing, info, kernelbench, measure, new, optimize, report, tune
from kernelgen.errors import KernelgenError, NoDeviceError, SpecError, UsageError

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
    measure.check,
    measure.bench,
    info.list_,
    info.hardware,
    info.doctor,
    info.schema,
    importing.import_,
    draft.draft,
    kernelbench.kernelbench,
    export.export,
    report.report,
):
    app.command(name=_command.__name__.rstrip("_"))(_command)


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
    try:
        # Not standalone: typer would print its own boxes and exit.
        code: int = app(arguments or ["--help"], prog_name="kernelgen", standalone_mode=False) or 0
    except typer.TyperException as error:
        _complain(_usage_line(error))
        return error.exit_code
    except KernelgenError as error:
        # A spec's mistakes start with file:line:column, where every editor looks for them.
        _complain(str(error), prefix="" if isinstance(error, SpecError) else "error: ")
        return error.exit_code
    except OSError as error:
        if error.errno not in FULL:
            raise
        _complain(f"{error.filename or 'a file'}: cannot write: {error.strerror}")
        return UsageError.exit_code
    except ModuleNotFoundError as error:
        if error.name not in BESIDE:
            raise
        _complain(f"{error.name} is not installed: `kernelgen doctor` says how to get it")
        return NoDeviceError.exit_code
    if code == INTERRUPTED:  # typer turned Ctrl-C into it
        _complain("interrupted", prefix="")
    return code


def _usage_line(error: typer.TyperException) -> str:
    line = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{line} (see {context.command_path} --help)" if context else line


def _complain(message: str, prefix: str = "error: ") -> None:
    sys.stdout.flush()
    print(*(f"{prefix}{line}" for line in message.splitlines()), sep="\n", file=sys.stderr)

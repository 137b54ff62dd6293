"""`kernelgen draft`: a spec from words, by a language model, for a person to approve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.model import BaseUrl, MaxCost, MaxTokens, Model, PriceIn, PriceOut, Stream, caps, client
from kernelgen.cli.terminal import Json, emit, note
from kernelgen.errors import UsageError
from kernelgen.settings import Settings, resolve

LOGS = Path("logs") / "drafts"


def draft(
    words: Annotated[str, typer.Argument(metavar="WORDS", help="What the operator does, in one sentence.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for NAME.yaml.")] = Path("specs"),
    yes: Annotated[bool, typer.Option("--yes", help="Write the spec without asking.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing spec.")] = False,
    model: Model = None,
    base_url: BaseUrl = None,
    stream: Stream = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    json: Json = False,
) -> None:
    """Have a language model write a spec, then approve it.

    `kernelgen new` runs the reference on the host, so read it before you approve. The spec is first checked against an
    allow-list; none of it runs before you approve it.
    """
    settings = resolve({name: value for name, value in locals().items() if name in Settings.__dataclass_fields__})
    asked, limits = client(settings, "draft"), caps(settings)
    from kernelgen.files import write_atomic
    from kernelgen.journal import Journal, run_name
    from kernelgen.llm import spent
    from kernelgen.llm.draft import draft as write

    journal = Journal.open(LOGS / run_name(words))
    try:
        made = write(words, asked, journal, limits)
        cost = spent(journal.records()).line()
    finally:
        journal.close()
    path = out / f"{made.spec.name}.yaml"
    if path.exists() and not force:
        raise UsageError(f"{path} already exists: overwrite it with --force")
    if not json:
        print(made.text)
    note(f"{asked.endpoint.describe()}, {cost}")
    if not yes:
        _approve(path)
    write_atomic(path, made.text)
    if json:
        emit({"spec": str(path), "name": made.spec.name, "text": made.text, "answers": made.tries, "cost": cost})
        return
    print(f"{path}: written; `kernelgen new {path}` makes its kernel")


def _approve(path: Path) -> None:
    """Raises UsageError unless a person at the terminal says yes."""
    if not sys.stdin.isatty():
        raise UsageError(f"{path}: not written; --yes writes it without asking")
    note(f"Is this what you mean? Its reference is run by `kernelgen new`. Write {path}? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{path}: not written")

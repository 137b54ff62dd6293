"""The language model of a command: its options, what is missing where there is none, and the first kernel that it
writes for a spec that says `family: custom`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import LOGS
from kernelgen.cli.terminal import note
from kernelgen.errors import LanguageModelError, UsageError
from kernelgen.settings import Settings

if TYPE_CHECKING:
    from kernelgen.llm import Caps, Client

Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="The language model for the strategy llm.")]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="A server that speaks OpenAI's protocol.")
]
Stream = Annotated[bool | None, typer.Option("--stream", help="Stream the model's answers.")]
MaxTokens = Annotated[str | None, typer.Option("--max-tokens", metavar="N", help="Token limit of the run.")]
MaxCost = Annotated[str | None, typer.Option("--max-cost", metavar="X", help="Cost limit of the run.")]
PriceIn = Annotated[str | None, typer.Option("--price-in", metavar="X", help="Price per 1M input tokens.")]
PriceOut = Annotated[str | None, typer.Option("--price-out", metavar="X", help="Price per 1M output tokens.")]

KEY, ADDRESS = "OPENAI_API_KEY", "OPENAI_BASE_URL"


def client(settings: Settings, what: str) -> Client:
    """Raises LanguageModelError, in one line, where `what` has no model to ask."""
    key, base_url = os.environ.get(KEY) or None, settings.base_url or os.environ.get(ADDRESS) or None
    if key is None and base_url is None:
        raise LanguageModelError(f"{what} needs a language model: set {KEY}, or name your own server by --base-url")
    if settings.model is None:
        raise LanguageModelError(f"{what} needs the name of a language model: --model NAME, or KERNELGEN_MODEL")
    from kernelgen.llm import Client, Endpoint

    return Client(Endpoint(settings.model, base_url, key, settings.stream))


def caps(settings: Settings) -> Caps:
    """Where asking ends. Raises UsageError for a cap on cost without prices."""
    from kernelgen.llm import Caps, Prices

    if settings.max_cost is not None and (settings.price_in is None or settings.price_out is None):
        raise UsageError("--max-cost needs --price-in and --price-out, each per 1M tokens")
    prices = Prices(settings.price_in or 0.0, settings.price_out or 0.0)
    return Caps(settings.max_tokens, settings.max_cost, settings.max_minutes, prices)


if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.generation import Written
    from kernelgen.spec.model import OperatorSpec


def needs_model(spec: OperatorSpec, root: Path) -> bool:
    """Whether nothing can be generated before a language model has written the kernel."""
    from kernelgen.generation import is_unwritten

    return is_unwritten(spec, root)


def first_kernel(
    spec: OperatorSpec, root: Path, settings: Settings, device: Device, *, force: bool, dry_run: bool = False
) -> Written:
    """Raises LanguageModelError, with what is missing, where nobody can be asked or nothing right came of it."""
    asked, limits = client(settings, f"{spec.name} (family: custom)"), caps(settings)
    if device.family != "gpu":
        raise UsageError(f"{spec.path}: family: custom is written for GPUs; there is none for {device.name}")
    if dry_run:
        raise UsageError(f"{spec.path}: family: custom: there is no kernel yet; a language model has to write it")
    from kernelgen.optimization.written import first_kernel as write

    note(f"{spec.name}: {asked.endpoint.describe()} writes the kernel; it is tested on {device.name}")
    done, cost = write(spec, device, asked, limits, root, LOGS, force=force)
    note(f"{asked.endpoint.describe()}, {cost}")
    return done

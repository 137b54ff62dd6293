"""A spec that says `family: custom` on the command line: a language model writes its first kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.cli.model import caps, client
from kernelgen.cli.terminal import note
from kernelgen.errors import UsageError
from kernelgen.settings import Settings

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.generate import Written
    from kernelgen.spec.model import OperatorSpec

LOGS = Path("logs")


def needs_model(spec: OperatorSpec, root: Path) -> bool:
    """Whether nothing can be generated before a language model has written the kernel."""
    from kernelgen.generate import is_unwritten

    return is_unwritten(spec, root)


def first_kernel(
    spec: OperatorSpec, root: Path, settings: Settings, device: Device, *, force: bool, dry_run: bool = False
) -> Written:
    """Raises LanguageModelError, with what is missing, where nobody can be asked or nothing right came of it."""
    asked, limits = client(settings, f"{spec.name} (family: custom)"), caps(settings)
    if device.family != "gpu":
        raise UsageError(f"{spec.path}: family: custom is written for GPUs; there is none for {device.name}")
    if dry_run:
        raise UsageError(
            f"{spec.path}: family: custom: nothing is known of the kernel before a language model is asked"
        )
    from kernelgen.optimize.written import first_kernel as write

    note(f"{spec.name}: {asked.endpoint.describe()} writes the kernel; it is judged on {device.name}")
    done, cost = write(spec, device, asked, limits, root, LOGS, force=force)
    note(f"{asked.endpoint.describe()}, {cost}")
    return done

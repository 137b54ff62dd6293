"""What every command is: its options do not take one another for their values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import typer.core

from kernelgen.errors import UsageError

NO_MORE = "--"
"""What follows is no option."""


class Command(typer.core.TyperCommand):
    """Raises UsageError where an option that wants a value is followed by another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for param in self.params if isinstance(param, typer.core.TyperOption)]
        names = {name for option in options for name in (*option.opts, *option.secondary_opts)} | {
            *ctx.help_option_names
        }
        takes = {name for option in options if not option.is_flag for name in option.opts}
        given = args[: args.index(NO_MORE)] if NO_MORE in args else args
        for name, value in pairwise(given):
            if name in takes and value in names:
                raise UsageError(f"{name} needs a value after it, and {value} is another option")
        return super().parse_args(ctx, args)

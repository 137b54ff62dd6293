"""The command line: `kernelgen COMMAND`. One module a command or small group; what they do is done in other rooms."""

from kernelgen.cli.app import app, main

__all__ = ["app", "main"]

"""The host side of a generated file: its input checks, and everything else of the wrapper as lines."""

from __future__ import annotations

from kernelgen.wrapper.checks import checks
from kernelgen.wrapper.launch import file_text

__all__ = ["checks", "file_text"]

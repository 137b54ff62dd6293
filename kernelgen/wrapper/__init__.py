"""The host side of a generated file: its input checks, and everything else of the wrapper as lines."""

from __future__ import annotations

from kernelgen.wrapper.calls import sequence
from kernelgen.wrapper.checks import checks
from kernelgen.wrapper.file import file_text
from kernelgen.wrapper.launch import _allocation as allocation
from kernelgen.wrapper.launch import copied_back, guard, results, size_places
from kernelgen.wrapper.layouts import CONTIGUOUS, Layout, following, layouts
from kernelgen.wrapper.own_names import own_names
from kernelgen.wrapper.ways import one_file

__all__ = [
    "CONTIGUOUS",
    "Layout",
    "allocation",
    "checks",
    "copied_back",
    "file_text",
    "following",
    "guard",
    "layouts",
    "one_file",
    "own_names",
    "results",
    "sequence",
    "size_places",
]

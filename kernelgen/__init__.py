"""kernelgen: from an operator spec to a readable, verified and measured Triton kernel.

The functions of `kernelgen.api` are here by their names, imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelgen.api import bench, check, generate, load_spec, op, optimize

__version__ = "0.1.0"

__all__ = ["__version__", "bench", "check", "generate", "load_spec", "op", "optimize"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kernelgen' has no attribute {name!r}")
    found: object = vars(import_module("kernelgen.api"))[name]
    return found

"""The front end: from a spec's reference to a graph."""

from __future__ import annotations

from kernelgen.frontend.trace import trace

__all__ = ["trace"]

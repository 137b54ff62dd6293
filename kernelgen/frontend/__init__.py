"""The front end: from a spec's reference to a graph."""

from __future__ import annotations

from kernelgen.frontend.runs import check_listed, check_runs
from kernelgen.frontend.trace import trace

__all__ = ["check_listed", "check_runs", "trace"]

"""Runs candidates in worker processes and says what became of them; the same methods on a GPU and without one."""

from __future__ import annotations

from kernelgen.evaluate.base import Evaluator, Limits
from kernelgen.evaluate.candidate import Candidate, source_hash
from kernelgen.evaluate.factory import evaluator
from kernelgen.worker.client import Failed

__all__ = ["Candidate", "Evaluator", "Failed", "Limits", "evaluator", "source_hash"]

"""Runs candidates in worker processes and says what became of them; the same methods on a GPU and without one."""

from __future__ import annotations

from kernelgen.evaluate.base import Evaluator, Limits
from kernelgen.evaluate.candidate import Candidate, source_hash
from kernelgen.evaluate.crew import Crew
from kernelgen.evaluate.factory import begins_early, begun, evaluator
from kernelgen.worker.client import Failed

__all__ = ["Candidate", "Crew", "Evaluator", "Failed", "Limits", "begins_early", "begun", "evaluator", "source_hash"]

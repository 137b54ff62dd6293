"""Selects the interpreter before any kernel is imported, where there is no GPU."""

from kernelgen import judge

judge.prepare()

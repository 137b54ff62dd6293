"""Puts the example quartets on the path and selects the interpreter before any kernel is imported."""

import sys
from pathlib import Path

from kernelgen import judge

sys.path.insert(0, str(Path(__file__).parent / "example"))
judge.prepare()

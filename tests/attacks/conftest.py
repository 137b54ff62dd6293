"""Selects the interpreter before any kernel is imported, where there is no GPU; finds the modules of this folder."""

import sys
from pathlib import Path

from kernelgen import judge

sys.path.insert(0, str(Path(__file__).parent))
judge.prepare()

"""Selects the interpreter before any kernel is imported, where there is no GPU."""

import logging

from kernelgen import judge

judge.prepare()
logging.getLogger("torch.__trace").disabled = True  # pytest would keep every record of every export

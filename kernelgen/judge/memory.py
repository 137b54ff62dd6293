"""What a case needs, and whether it fits: a case that does not is left out and named with its figures."""

from __future__ import annotations

import math

from . import device as devices
from .bounds import PIECE
from .inputs import storage_elements
from .model import Case, Operator
from .oracle import Tiling

INTERPRETER_ELEMENTS = 2**18
"""Most elements in one tensor under Triton's interpreter, which needs about a second for so many."""
TILE_COPIES = 4
"""Times the fp64 inputs and outputs of one tile are held at the worst moment: those of the oracle, and those of the
disturbed one with the step that is under way."""
CALL_COPIES = 4
"""The same beside these where calls of torch's are disturbed: squares of what they read, their errors, and results."""
PIECE_COPIES = 16
"""fp64 temporaries of the errors of one piece of a tile, by group."""


def minimal_bytes(operator: Operator, case: Case) -> tuple[int, int]:
    """The bytes that must be read and written at least: every data input once, every output once."""
    read = sum(math.prod(case.shape(t)) * case.dtype(t).itemsize for t in operator.inputs if not t.like)
    return read, output_bytes(operator, case)


def output_bytes(operator: Operator, case: Case) -> int:
    return sum(math.prod(case.shape(t)) * case.dtype(t).itemsize for t in operator.outputs)


def input_bytes(operator: Operator, case: Case) -> int:
    return sum(storage_elements(case.shape(t), case.layout) * case.dtype(t).itemsize for t in operator.inputs)


SCRAPS = 2**20
"""Flags, counters and what the allocator rounds up."""


def accuracy_bytes(operator: Operator, case: Case) -> int:
    """Inputs, two outputs (the candidate's and PyTorch's) and the fp64 reference of one tile with its temporaries."""
    largest = 0 if operator.exact else Tiling(operator, case).largest()
    copies = TILE_COPIES + (CALL_COPIES if operator.stored else 0)
    tile = copies * largest + PIECE_COPIES * min(largest, 8 * PIECE)
    return input_bytes(operator, case) + 2 * output_bytes(operator, case) + tile + SCRAPS


def accuracy_left_out(operator: Operator, case: Case, device: str) -> str:
    """Why the case cannot be checked on this machine, with figures; "" if it can."""
    if device == "cpu" and not devices.is_npu():
        largest = max(math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs))
        if largest > INTERPRETER_ELEMENTS:
            return f"{largest:,} elements in one tensor; the interpreter takes {INTERPRETER_ELEMENTS:,}"
    return does_not_fit(accuracy_bytes(operator, case), device)


def does_not_fit(needed: int, device: str) -> str:
    free = devices.free_bytes(device)
    return "" if needed <= free else f"needs {gib(needed)}, {gib(free)} free on {device}"


def gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"

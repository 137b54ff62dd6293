"""Products and convolutions that are wrong: what they multiply in the place of their two operands.

The oracle with one of them in the place of a call of torch's is a mutant, as those of mutants.py are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .contractions import Contraction, Precision
from .mutants import rounded

_LOWER = {53: 23, 24: 10, 11: 7, 8: 3, 4: 1}
"""Bits of the mantissa behind its first in the next lower precision, by all bits of the mantissa: float32, TF32,
bfloat16, float8 (e4m3)."""
LAST_BLOCK = 32
"""Elements of the block that a wrong sum leaves out, or half of fewer."""

Pair = tuple[torch.Tensor, torch.Tensor]
Change = Callable[[Contraction, Pair, Precision], Pair]


def lower_precision(called: Contraction, pair: Pair, at: Precision) -> Pair:
    """Operands in the next lower precision: of float32 as TF32, or as bfloat16 where torch reads them as TF32."""
    bits = _LOWER[-round(math.log2(at.kept))]
    return rounded(pair[0], bits), rounded(pair[1], bits)


def without_last_block(called: Contraction, pair: Pair, at: Precision) -> Pair:
    """Sums without their last products."""
    which, dim = called.summed
    length = pair[which].shape[dim]
    return _without_last(pair, which, dim, min(LAST_BLOCK, -(-length // 2)))


def without_last_row(called: Contraction, pair: Pair, at: Precision) -> Pair:
    """A result whose last row, or channel, is not summed."""
    return pair if called.row is None else _without_last(pair, *called.row, 1)


def _without_last(pair: Pair, which: int, dim: int, count: int) -> Pair:
    changed = pair[which].clone()
    if changed.numel():
        changed.narrow(dim, changed.shape[dim] - count, count).zero_()
    return (changed, pair[1]) if which == 0 else (pair[0], changed)


WRONG: dict[str, Change] = {
    "a product in lower precision": lower_precision,
    "a product without its last block": without_last_block,
    "a product without its last row": without_last_row,
}
"""By the names of the mutants that have them."""

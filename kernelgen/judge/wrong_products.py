"""Products and convolutions that are wrong: what their sums are in the place of the right ones.

The oracle with one of them in the place of every sum of products is a mutant, as those of mutants.py are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .contractions import Contraction, Pair, Precision
from .mutants import rounded

_LOWER = {53: 23, 24: 10, 11: 7, 8: 3, 4: 1}
"""Bits of the mantissa behind its first in the next lower precision, by all bits of the mantissa: float32, TF32,
bfloat16, float8 (e4m3)."""
_HALF = {11: torch.float16, 8: torch.bfloat16}
"""Dtypes in which nothing is to be summed, by all bits of their mantissa."""
LAST_BLOCK = 32
"""Elements of the block that a wrong sum leaves out, or half of fewer."""
STEP = 16
"""Products that a matrix unit adds at once, at least (PTX ISA, mma.m16n8k16)."""
_STEPS, _MOST_STEPS = 16, 64
"""A sum of fewer steps rounds hardly more often than its result does; of more, several count as one."""

Change = Callable[[Contraction, Pair, Precision], torch.Tensor | None]
"""What the sums of products of a pair are instead; None where such a sum has nothing of the kind."""


class Wronged:
    """The wrong sums of one oracle."""

    def __init__(self, change: Change | None) -> None:
        """`change`: None for what is added to a sum, which is then added twice."""
        self._change = change
        self._sums: dict[int, torch.Tensor] = {}
        """By where they lie in memory, sums and what single steps made of them, to which nothing is added so far."""
        self._twice: dict[int, torch.Tensor] = {}
        """By where they lie in memory, sums with something added twice."""
        self.made = False
        """Whether there was a sum to get wrong that anything is computed from: no gradient of a linear layer depends on
        what the forward adds."""

    def summed(self, exact: torch.Tensor, called: Contraction, pair: Pair, at: Precision) -> torch.Tensor:
        """In the place of `exact`, what a call that sums the products of a pair gives."""
        if self._change is None:
            return self._off(exact, exact - called.product(*pair)) if called.adds else exact
        wrong = self._change(called, pair, at) if called.length else None
        return exact if wrong is None else self._off(exact, wrong - called.product(*pair))

    def returned(self, sums: torch.Tensor, *, adds: bool = False) -> None:
        """Hear of what a call returns, to which nothing is added so far unless the call `adds` something."""
        if self._change is None:
            (self._twice if adds else self._sums)[_place(sums)] = sums

    def read(self, args: Iterable[Any]) -> None:
        """Hear of what a step computes something from, or what is the result of all."""
        self.made = self.made or any(isinstance(x, torch.Tensor) and _place(x) in self._twice for x in args)

    def after(self, name: str, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """In the place of `result`, what a step gives that is no sum of products."""
        if not isinstance(result, torch.Tensor) or _place(result) not in self._twice:  # no view, and not in place
            self.read(args)
        sums = [x for x in args if isinstance(x, torch.Tensor) and _place(x) in self._sums] if self._sums else []
        if not sums or not isinstance(result, torch.Tensor) or result.numel() != sums[0].numel():
            return result
        if name != "add" or len(sums) > 1 or not isinstance(args[1], torch.Tensor):
            self.returned(result)
            return result
        addend = args[1] * kwargs.get("alpha", 1) if sums[0] is args[0] else args[0]
        if _place(result) == _place(sums[0]):  # in place
            result.copy_(self._off(result, addend))
        else:
            result = self._off(result, addend)
        self.returned(result, adds=True)
        return result

    def _off(self, right: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        self.made = self.made or self._change is not None
        return right + torch.where(error.isfinite(), error, 0)


def _place(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def lower_precision(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor:
    """Operands in the next lower precision: of float32 as TF32, or as bfloat16 where torch reads them as TF32."""
    bits = _LOWER[_mantissa(at)]
    return called.product(rounded(pair[0], bits), rounded(pair[1], bits))


def _mantissa(at: Precision) -> int:
    return -round(math.log2(at.kept))


def lower_sums(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor | None:
    """Of half precision: rounded to the operands' dtype after every step, as an accumulator of that dtype is."""
    which, dim = called.summed
    length = pair[which].shape[dim]
    dtype = _HALF.get(_mantissa(at))
    if dtype is None or at.sum >= at.kept or length < STEP * _STEPS:
        return None
    step = max(STEP, -(-length // _MOST_STEPS))
    total = torch.zeros((), dtype=torch.float64, device=pair[0].device)
    for start in range(0, length, step):
        part = torch.zeros_like(pair[which])
        places = slice(start, min(start + step, length))
        part[(slice(None),) * dim + (places,)] = pair[which][(slice(None),) * dim + (places,)]
        total = (total + called.product(*_with(pair, which, part))).to(dtype).double()
    return total


def without_last_block(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor:
    """Sums without their last products."""
    which, dim = called.summed
    length = pair[which].shape[dim]
    return called.product(*_without_last(pair, which, dim, min(LAST_BLOCK, -(-length // 2))))


def without_last_row(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor | None:
    """A result whose last row, or channel, is not summed."""
    return None if called.row is None else called.product(*_without_last(pair, *called.row, 1))


def of_another_batch(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor | None:
    """Each product with the second operand of the one before it."""
    a, b = pair
    if not called.batch and (other := _of_another_group(b)) is not None:
        return called.product(a, other)
    dim = next((d for d in range(called.batch) if b.shape[d] > 1), None)
    if dim is None:
        return None
    before = b.roll(1, dim)
    return None if torch.equal(before, b) else called.product(a, before)


def _of_another_group(b: torch.Tensor) -> torch.Tensor | None:
    """The matrix before a matrix among several, of which it is a view; None where there is none."""
    several = b._base
    if several is None or several.ndim != 3 or several.shape[1:] != b.shape or several.shape[0] < 2 or not b.numel():
        return None
    if b.stride() != several.stride()[1:] or not several.stride(0):
        return None
    at = (b.storage_offset() - several.storage_offset()) // several.stride(0)
    return several[at - 1]


def without_last_tap(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor | None:
    """A convolution that leaves out the last place of its windows."""
    weight = pair[1]
    if not called.window or math.prod(weight.shape[-called.window :]) < 2:
        return None
    changed = weight.clone()
    changed.flatten(-called.window)[..., -1] = 0
    return called.product(pair[0], changed)


def of_another_channel_group(called: Contraction, pair: Pair, at: Precision) -> torch.Tensor | None:
    """A convolution in groups, each with the weights of the one before it."""
    if called.groups < 2:
        return None
    before = pair[1].roll(pair[1].shape[0] // called.groups, 0)
    return None if torch.equal(before, pair[1]) else called.product(pair[0], before)


def _without_last(pair: Pair, which: int, dim: int, count: int) -> Pair:
    changed = pair[which].clone()
    if changed.numel():
        changed.narrow(dim, changed.shape[dim] - count, count).zero_()
    return _with(pair, which, changed)


def _with(pair: Pair, which: int, changed: torch.Tensor) -> Pair:
    return (changed, pair[1]) if which == 0 else (pair[0], changed)


WRONG: dict[str, Change | None] = {
    "a product in lower precision": lower_precision,
    "a product summed in lower precision": lower_sums,
    "a product without its last block": without_last_block,
    "a product without its last row": without_last_row,
    "a product of another batch": of_another_batch,
    "a convolution without a tap of its windows": without_last_tap,
    "a convolution with the weights of another group": of_another_channel_group,
    "a product with what is added to it twice": None,
}
"""By the names of the mutants that have them."""

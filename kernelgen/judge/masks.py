"""Which factors of a reference's sums of products a mask makes 0, so that a kernel need not read what they weigh.

0 * NaN is NaN, also where a mask made the 0: a kernel that skips what is hidden has a number where PyTorch has NaN. A
factor that is 0 because of what a float input holds hides nothing. The two are told apart by other inputs: what is 0
whatever numbers stand in the place of floats is 0 by a mask. Integers and bools stay, for they may be the mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .contractions import Contraction, Pair

_RANGES = ((0.75, 1.0), (-1.0, -0.75), (-4.0, 4.0))
"""Of numbers in the place of floats: what is 0 below or above some number is so in one of them only."""


def drawn(inputs: Sequence[torch.Tensor], seed: int) -> list[list[torch.Tensor]]:
    """The inputs with other numbers in the place of floats: once for each of _RANGES."""
    found = []
    for low, high in _RANGES:
        generators = {x.device: torch.Generator(x.device).manual_seed(seed) for x in inputs}
        floats = [torch.empty(x.shape, dtype=torch.float64, device=x.device) for x in inputs]
        numbers = [x.uniform_(low, high, generator=generators[x.device]) for x in floats]
        found.append([n if x.dtype.is_floating_point else x for x, n in zip(inputs, numbers, strict=True)])
    return found


def hidden(runs: Sequence[Sequence[Pair]]) -> list[Pair]:
    """Which elements of the operands are hidden, sum by sum, by the operands of several runs: those that are 0 in each
    run that does not make them NaN."""
    return [(_always([a for a, _ in pairs]), _always([b for _, b in pairs])) for pairs in zip(*runs, strict=True)]


def _always(operands: Sequence[torch.Tensor]) -> torch.Tensor:
    zero, nan = torch.stack([x == 0 for x in operands]), torch.stack([x.isnan() for x in operands])
    return (zero | nan).all(0) & zero.any(0)


def sums_of_the_seen(
    exact: torch.Tensor, called: Contraction, pair: Pair, mask: Pair, *, nan: bool = False
) -> torch.Tensor:
    """The sums of products of a pair without those of which a factor is 0 and hidden; `exact`: with them. `nan`:
    without those as well of which a hidden factor is NaN, as torch has weights in rows with NaN."""
    hides_a, hides_b = _hides(pair, mask, nan)
    meets = _meet(hides_a, ~pair[1].isfinite()) or _meet(~pair[0].isfinite(), hides_b)
    if not meets and not bool((pair[0].isnan() & hides_a).any() or (pair[1].isnan() & hides_b).any()):
        return exact
    a, b = pair = without_hidden(pair, mask, nan=nan)
    no_a, no_b = a == 0, b == 0

    def some(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not _meet(x, y):
            return torch.zeros_like(exact, dtype=torch.bool)
        return called.product(x.double(), y.double()) != 0

    def infinite(b: torch.Tensor) -> torch.Tensor:
        positive = some(a.isposinf(), b > 0) | some(a > 0, b.isposinf())
        return positive | some(a.isneginf(), b < 0) | some(a < 0, b.isneginf())

    is_nan = some(a.isnan(), ~hides_b) | some(~hides_a, b.isnan())
    is_nan |= some(a.isinf(), no_b & ~hides_b) | some(no_a & ~hides_a, b.isinf())
    above, below = infinite(b), infinite(-b)
    if called.negates:
        above, below = below, above
    finite = called.product(*(torch.where(x.isfinite(), x, 0) for x in pair))
    total = torch.where(above, math.inf, torch.where(below, -math.inf, finite))
    return torch.where(is_nan | (above & below), math.nan, total)


def without_hidden(pair: Pair, mask: Pair, *, nan: bool = False) -> Pair:
    """The factors of a pair with 0 for those that are hidden, which then have no gradient."""
    hides_a, hides_b = _hides(pair, mask, nan)
    return torch.where(hides_a, 0.0, pair[0]), torch.where(hides_b, 0.0, pair[1])


def _hides(pair: Pair, mask: Pair, nan: bool) -> Pair:
    hides_a, hides_b = (((x == 0) | (x.isnan() & nan)) & hides for x, hides in zip(pair, mask, strict=True))
    return hides_a, hides_b


def _meet(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(x.any()) and bool(y.any())

"""What overflows float32 on the way to a result: PyTorch and kernels go on with infinity there, of which 1 / sqrt is 0,
where an oracle in float64 has a number. Of a sum it depends on the order: of 3e38 + 2e38 - 4e38 the first two are
infinite, the outer two are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from .bounds import CAP
from .contractions import GRADIENTS, PRODUCTS, Contraction, Gradient, contraction, gradient
from .eager import EagerMode
from .model import Case, Function, Operator
from .oracle import STEPWISE, Noise, Tiling, in_float64, steps

_MOST = torch.finfo(torch.float32).max
_INFINITE = 2.0**500
"""In an infinite operand's place where the parts of a sum are added up: its products are finite in float64."""
_MOVED = 2.0**-16
"""Relative to what is added up, more than a disturbed sum is off by."""
_SUMS = frozenset(["sum", "mean"])

PARTIAL = (math.inf, -math.inf, math.nan)
"""What a sum may be beside its value where what its positive, its negative, or both parts come to overflows: some order
has these first. NaN is a sum of parts that were infinite."""
_EACH = 60
"""Of two sums that can each be four things an honest kernel's two are drawn in all but one of 48 such series."""
Partial = int | torch.Generator
"""Which of PARTIAL every sum is that can be so; a generator draws it, or the value, for every element of every sum."""


class _InRange(EagerMode):  # type: ignore[no-untyped-call]
    """Makes every float64 result of a step infinite that float32 does not have, also where torch takes several in one;
    and a mean of which the sum is."""

    def __init__(self, partial: Partial | None = None) -> None:
        """`partial`: what sums are that overflow on the way; None: none does, be it added up in whichever order."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._partial = partial
        self.depends = False
        """Whether a sum was something else for it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in STEPWISE:
            with self:
                return steps().get(func, func)(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, torch.Tensor)]
        memory = {a.untyped_storage().data_ptr() for a in given}

        def limited(x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float64 or x.untyped_storage().data_ptr() in memory:
                return x
            terms = given[0].numel() / max(x.numel(), 1) if func.overloadpacket is torch.ops.aten.mean else 1.0
            return torch.where(x.abs() * terms > _MOST, x * torch.inf, x)

        result = func(*args, **(kwargs or {}))
        if self._partial is not None:
            result = self._added_up(func, args, kwargs or {}, result)
        return tree_map_only(torch.Tensor, limited, result)

    def _added_up(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The result of a step, of which sums are what they can be that overflow on the way."""
        name = func.overloadpacket.__name__
        if name == GRADIENTS:
            calls = [gradient(Gradient(func, n), args[:-1]) if args[-1][n] else None for n in (0, 1)]
            found = [x if c is None else self._of_products(c, args, x) for c, x in zip(calls, result, strict=False)]
            return (*found, result[2])
        if name in PRODUCTS:
            return self._of_products(contraction(func, name, args, kwargs), args, result)
        if name not in _SUMS or result.dtype != torch.float64:
            return result
        terms = args[0].numel() / max(result.numel(), 1) if name == "mean" else 1.0
        above, below = (terms * func(x, *args[1:], **kwargs) for x in _parts(args[0]))
        return self._overflown(result, above, below)

    def _of_products(self, called: Contraction, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        if result.dtype != torch.float64:
            return result
        with _disable_current_modes():
            (a, less_a), (b, less_b) = (_parts(args[place]) for place in called.places)
            alike = called.product(a, b) + called.product(less_a, less_b)  # all of one sign
            unlike = called.product(a, less_b) + called.product(less_a, b)
            added = (result - (alike - unlike)).nan_to_num_(0.0, 0.0, 0.0)
            # of numbers that are far beyond float32 so may be what a sum is off by
            added = torch.where(added.abs() > _MOVED * (alike.abs() + unlike.abs()), added, 0.0)
            terms = torch.stack([alike, -unlike, added])  # a negative factor of all turns their signs
            return self._overflown(result, terms.clamp(min=0).sum(0), (-terms).clamp(min=0).sum(0))

    def _overflown(self, right: torch.Tensor, above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
        """Sums whose positive parts come to `above`, and whose negative ones to minus `below`."""
        over, under = above > _MOST, below > _MOST
        possible = over & right.isfinite(), under & right.isfinite(), over & under & ~right.isnan()
        drawn: Any = self._partial
        if isinstance(drawn, torch.Generator):
            with _disable_current_modes():
                choice = torch.randint(len(PARTIAL) + 1, right.shape, generator=drawn, device=drawn.device)
                drawn = choice.to(right.device)
        self.depends = self.depends or any(bool(where.any()) for where in possible)
        for n, where in enumerate(possible):
            right = torch.where(where & (drawn == n), PARTIAL[n], right)
        return right


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is positive, and what is negative without its sign, be it infinite; else 0."""
    numbers = x.nan_to_num(0.0, _INFINITE, -_INFINITE)
    return numbers.clamp(min=0), (-numbers).clamp(min=0)


def in_range(function: Function, mode: _InRange | None = None) -> Function:
    """The function, whose float64 results are infinite beyond float32 at every step."""

    def limited(*arguments: torch.Tensor) -> Any:
        with mode or _InRange():
            return function(*arguments)

    return limited


def results(function: Function, cut: Sequence[torch.Tensor], noise: Noise) -> Iterator[tuple[torch.Tensor, ...]]:
    """What the function gives in float64 where steps overflow float32. First no sum overflows on the way, then all that
    can in one way, then each by itself."""
    yield in_float64(in_range(function), cut, noise, spelled_out=True)
    depends = False
    for partial in (*range(len(PARTIAL)), *[noise.generator] * _EACH):
        mode = _InRange(partial)
        yield in_float64(in_range(function, mode), cut, noise, spelled_out=True)
        depends = depends or mode.depends
        if not depends and partial == len(PARTIAL) - 1:
            return


def excused(
    operator: Operator,
    case: Case,
    arguments: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """Candidate and PyTorch with the oracle's number wherever a step overflows and they have what follows from it; None
    where that is nowhere."""
    results = [x.clone() for x in got], [x.clone() for x in eager]
    tiling, any_excused = Tiling(operator, case), False
    for box in tiling.boxes():
        cut = [tiling.cut(t, x, box) for t, x in zip(operator.inputs, arguments, strict=True)]
        right, limited = in_float64(operator.pure, cut), in_float64(in_range(operator.pure), cut)
        for i, tensor in enumerate(operator.outputs):
            if not got[i].dtype.is_floating_point:
                continue
            overflown = right[i].isfinite() & ~torch.isclose(
                right[i], limited[i], rtol=CAP[got[i].dtype], atol=0.0, equal_nan=True
            )
            for outputs in results:
                part = tiling.cut(tensor, outputs[i], box)
                like_limited = torch.isclose(part.double(), limited[i], rtol=CAP[part.dtype], atol=0.0, equal_nan=True)
                follows = overflown & like_limited
                any_excused |= bool(follows.any())
                part.copy_(torch.where(follows, right[i].to(part.dtype), part))
    return results if any_excused else None

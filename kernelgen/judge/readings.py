"""Honest readings of a reference beside the oracle: where NaN and infinities may be as well, because PyTorch itself
or its documented formulas have them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from .bounds import misplaced
from .model import Operator
from .oracle import in_float64
from .stored import Storing

_LARGE = 2.0**14
"""In place of an infinite gradient: no less than other elements are, and finite in float16."""


def read_otherwise(
    operator: Operator,
    cut: Sequence[torch.Tensor],
    output: int,
    got: torch.Tensor,
    eager: torch.Tensor,
    ref: torch.Tensor,
) -> torch.Tensor:
    """The oracle `ref` of one output, float64, with what another reading has in the places where the NaN and infinities
    of the candidate `got` are neither its nor PyTorch's."""
    if ref.device.type == "cpu":
        ref = _one_by_one(operator, cut, output, got, eager, ref)
    else:
        ref = _on_host(operator, cut, output, got, ref)
    ref = _spelled_out(operator, cut, output, got, eager, ref)
    ref = _added_first(operator, cut, output, got, ref)
    return _gone(operator, cut, output, got, eager, ref)


def the_other_way(
    operator: Operator,
    rounded: Callable[[torch.Tensor], torch.Tensor],
    cut: Sequence[torch.Tensor],
    stored: Storing | None = None,
) -> tuple[torch.Tensor, ...] | None:
    """What the operator's other way gives, with `rounded` of what lies in memory on it; None if it has none for these
    sizes: it takes the maximum of every row, of which there is none without keys."""
    if operator.also is None:
        return None
    try:
        return in_float64(partial(operator.also, rounded), cut, stored=stored)
    except IndexError:
        return None


def _on_host(
    operator: Operator, cut: Sequence[torch.Tensor], output: int, got: torch.Tensor, ref: torch.Tensor
) -> torch.Tensor:
    """The oracle by PyTorch's CPU kernels, if the candidate's NaN and infinities are where they have them.

    A fused CUDA kernel of PyTorch may spread them differently from the formula it stands for: F.rms_norm makes a
    whole row NaN where one element is infinite. Either is an honest reading of the reference.
    """
    other = in_float64(operator.pure, [x.cpu() for x in cut])[output].to(ref.device)
    return ref if bool(misplaced(got, other, other).any()) else other


def _spelled_out(
    operator: Operator,
    cut: Sequence[torch.Tensor],
    output: int,
    got: torch.Tensor,
    eager: torch.Tensor,
    ref: torch.Tensor,
) -> torch.Tensor:
    """The oracle with what the documented formulas give in the candidate's doubtful places."""
    other = in_float64(operator.pure, cut, spelled_out=True)[output]
    return torch.where(misplaced(got, eager, ref), other, ref)


def _one_by_one(
    operator: Operator,
    cut: Sequence[torch.Tensor],
    output: int,
    got: torch.Tensor,
    eager: torch.Tensor,
    ref: torch.Tensor,
) -> torch.Tensor:
    """The oracle with what PyTorch's loops over single elements give in the candidate's doubtful places.

    On a CPU its loops over vector registers treat NaN otherwise than those over single elements, which take what is
    left over and agree with CUDA (the gradients of elu and hardswish). Elements that do not lie side by side are
    taken one by one.
    """
    wide = [x.double() if x.dtype.is_floating_point else x for x in cut]
    other = in_float64(operator.pure, [torch.stack((x, x), dim=-1)[..., 0] for x in wide])[output]
    return torch.where(misplaced(got, eager, ref), other, ref)


def _added_first(
    operator: Operator, cut: Sequence[torch.Tensor], output: int, got: torch.Tensor, ref: torch.Tensor
) -> torch.Tensor:
    """The oracle with the infinities that an infinite incoming gradient g makes where it is multiplied last.

    Of x - tanh(x) autograd adds g - g * t to NaN, a kernel that computes g * (1 - t) has an infinity: right if a large
    g in place of the infinite one gives a result of that sign.
    """
    if not operator.terms:
        return ref
    given = zip(operator.inputs, cut, strict=True)
    large = [torch.where(x.isinf(), x.sign() * _LARGE, x) if t.name in operator.terms else x for t, x in given]
    other = in_float64(operator.pure, large)[output]
    taken = ref.isnan() & got.isinf() & (got.sign() == other.sign())
    return torch.where(taken, got.to(ref.dtype), ref)


def _gone(
    operator: Operator,
    cut: Sequence[torch.Tensor],
    output: int,
    got: torch.Tensor,
    eager: torch.Tensor,
    ref: torch.Tensor,
) -> torch.Tensor:
    """The oracle with what the operator's other way gives in the candidate's doubtful places: a weight that a mask
    hides is 0 there, of a row too whose weights are NaN."""
    other = the_other_way(operator, lambda x: x, cut)
    if other is None:
        return ref
    return torch.where(misplaced(got, eager, ref) & ~misplaced(got, eager, other[output]), other[output], ref)

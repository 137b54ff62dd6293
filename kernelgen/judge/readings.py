"""Honest readings of a reference beside the oracle: where NaN and infinities may be as well, because PyTorch itself
or its documented formulas have them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch

from . import outside, overflow
from .bounds import CAP, difference, finite, misplaced, otherwise
from .choices import Part
from .eager import InOrder
from .model import Operator
from .oracle import Noise, as_tuple, in_float64
from .stored import Storing

_LARGE = 2.0**14
"""In place of an infinite gradient: no less than other elements are, and finite in float16."""


def in_doubt(part: Part) -> torch.Tensor:
    """Where the candidate's NaN and infinities are neither the oracle's nor PyTorch's."""
    return misplaced(part.got, part.eager, part.ref)


LOOSEST = max(CAP.values())


def undecidable(part: Part) -> torch.Tensor:
    """Where an error may decide between NaN, infinity and a number. Of what is stored or added on the way one that is
    no error of the result decides between infinity and a large number, too; and where PyTorch has no number, between
    the oracle's and another: of -inf a relu makes 0. What follows from it is another number in PyTorch as well."""
    doubtful = otherwise(part.got, part.eager, part.ref)
    if not part.got.dtype.is_floating_point or bool(finite(part.eager).all()):
        return doubtful
    got, eager = part.got.double(), part.eager.double()
    near = partial(torch.isclose, rtol=CAP[part.got.dtype], atol=0.0)
    alike = ~finite(part.eager) | near(got, eager)
    return doubtful | (alike & finite(part.got) & part.ref.isfinite() & ~near(got, part.ref))


def read_in_steps(
    operator: Operator, cut: Sequence[torch.Tensor], part: Part, noise: Noise, doubtful: torch.Tensor
) -> torch.Tensor:
    """Where the candidate is what follows if convolutions multiply zeros beyond their edges, or do not, each by itself;
    and if a step, or a sum in some order, overflows float32: a number too, such as exp(-inf). Of places that are
    undecidable: a number that is neither PyTorch's nor the oracle's, where both have one, is not asked for."""
    got, found = part.got, torch.zeros_like(part.ref, dtype=torch.bool)
    ways = outside.results(operator.pure, cut, noise.generator), overflow.results(operator.pure, cut, noise)
    for outputs in chain(*ways):
        read = outputs[part.output].to(got.dtype).double()
        found |= torch.isclose(got.double(), read, rtol=CAP[got.dtype], atol=0.0, equal_nan=True)
        if bool(found[doubtful].all()):
            break
    return found


def as_right(part: Part, taken: torch.Tensor) -> Part:
    """The part with the candidate's own value as its oracle in some places. A number is no error there of oracles that
    are disturbed either: what they are off by says what others may be."""
    ref = torch.where(taken, part.got.to(part.ref.dtype), part.ref)
    number = taken & ref.isfinite()
    probes, stored = ([torch.where(number, ref, x) for x in given] for given in (part.probes, part.stored))
    return replace(part, ref=ref, probes=probes, stored=stored)


def settled_by(part: Part, other: torch.Tensor, most: float = LOOSEST, terms: float = 0.0) -> torch.Tensor:
    """Where another reading settles what is in doubt: its NaN and infinities are the candidate's, and a number beside
    which the candidate's is an error of more than `most`, relative to the largest, is left to the next reading.
    `terms`: the largest of what results are differences of, where none of them is larger."""
    right = ~misplaced(part.got, part.eager, other)
    largest = max(float(torch.where(other.isfinite(), other, 0.0).abs().max()) if other.numel() else 0.0, terms)
    return in_doubt(part) & right & (difference(part.got, other) <= most * largest)


def taken_where_right(part: Part, other: torch.Tensor, most: float = LOOSEST, terms: float = 0.0) -> Part:
    """The part with another reading as its oracle where that settles what is in doubt."""
    return replace(part, ref=torch.where(settled_by(part, other, most, terms), other, part.ref))


def read_otherwise(operator: Operator, cut: Sequence[torch.Tensor], part: Part) -> Part:
    """The part with what another reading of the reference has, as its oracle in float64, where it is in doubt; `cut`:
    the inputs of its tile."""
    if part.ref.device.type != "cpu":
        part = _on_host(operator, cut, part)
    part = _in_its_place(part, in_float64(operator.pure, cut, spelled_out=True)[part.output])
    part = _added_first(operator, cut, part)
    # a weight that a mask hides is 0 on the other way, of a row too whose weights are NaN
    other = the_other_way(operator, lambda x: x, cut)
    if other is None:
        return part
    read = taken_where_right(part, other[part.output])
    # and one that is rounded to 0 in the inputs' dtype makes NaN of an infinite value
    given = _as_given(operator, cut)
    if given is None:
        return read
    own = given[part.output]
    return _by_its_error(part, taken_where_right(read, own.to(read.ref.dtype)), own)


def _by_its_error(before: Part, part: Part, given: torch.Tensor) -> Part:
    """The part with what the operator's other way gives in the inputs' dtype in PyTorch's place, wherever another
    reading made a number of what is none in PyTorch: its error says what the candidate's may be."""
    made = ~before.eager.isfinite() & part.ref.isfinite() & ~before.ref.isfinite() & given.isfinite()
    return replace(part, eager=torch.where(made, given.to(part.eager.dtype), part.eager))


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


def _as_given(operator: Operator, cut: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
    """What the operator's other way gives in the inputs' own dtype; None as in `the_other_way`."""
    if operator.also is None:
        return None
    try:
        with torch.no_grad(), InOrder():
            return as_tuple(operator.also(lambda x: x, *cut))
    except IndexError:
        return None


def _in_its_place(part: Part, other: torch.Tensor) -> Part:
    """The part with another reading as its oracle where it is in doubt, whether that settles it or not."""
    return replace(part, ref=torch.where(in_doubt(part), other, part.ref))


def _on_host(operator: Operator, cut: Sequence[torch.Tensor], part: Part) -> Part:
    """The oracle by PyTorch's CPU kernels, if the candidate's NaN and infinities are where they have them.

    A fused CUDA kernel of PyTorch may spread them differently from the formula it stands for: F.rms_norm makes a
    whole row NaN where one element is infinite. Either is an honest reading of the reference.
    """
    other = in_float64(operator.pure, [x.cpu() for x in cut])[part.output].to(part.ref.device)
    return part if bool(misplaced(part.got, other, other).any()) else replace(part, ref=other)


def _added_first(operator: Operator, cut: Sequence[torch.Tensor], part: Part) -> Part:
    """The oracle with the infinities that an infinite incoming gradient g makes where it is multiplied last.

    Of x - tanh(x) autograd adds g - g * t to NaN, a kernel that computes g * (1 - t) has an infinity: right if a large
    g in place of the infinite one gives a result of that sign.
    """
    if not operator.terms:
        return part
    given = zip(operator.inputs, cut, strict=True)
    large = [torch.where(x.isinf(), x.sign() * _LARGE, x) if t.name in operator.terms else x for t, x in given]
    other = in_float64(operator.pure, large)[part.output]
    got, ref = part.got, part.ref
    taken = ref.isnan() & got.isinf() & (got.sign() == other.sign())
    return replace(part, ref=torch.where(taken, got.to(ref.dtype), ref))

"""How much error is too much: the bound, from PyTorch's own error and the oracle's own sensitivity.

An element with fp64 reference r and error e passes if

    e <= f * K * max(ulps(T) * ulp_T(r),  2**-23 * S,  E(g),  BACKWARD * P(g),  R(g))    and
    e <= f * max(CAP(T) * max(|r|, S),  K * BACKWARD * P(g),  K * R(g),  K * ulps(T) * ulp_T(r))

T: dtype of the output, in CAP(T) the least precise of it and of what the reference casts to; S: largest |r|, or the
largest element of the operator's terms if that is larger; g: the binade of r; E(g), P(g), R(g): the largest error of
PyTorch, of the disturbed oracle and of the oracle whose calls of torch's round what lies in memory and sum as wrongly
as honest ones may (contractions.py has the formula), or that is off by the worst order of its sums (0 where neither
is), among elements up to binade g (at least POOL of them); f: the operator's tolerance_factor.

Integers and bools that floats decide pass if every one lies between the least and the greatest of what the oracle,
PyTorch and the disturbed oracles have in its place (`beyond`), and if no more than f * K times as many differ from the
oracle as of PyTorch or of the disturbed oracles together. docs/measuring.md gives the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .guards import told

K = 2.0
"""How many times PyTorch's own error is still accepted."""
BACKWARD = 4.0
"""A kernel whose result is exact for inputs that differ by so many times the disturbance (an ulp of fp32) is honest:
a mean of equal elements summed one after the other was seen to be off by 3 ulp."""
POOL = 256
"""Binades with few elements say little about PyTorch's error: at least so many elements speak for it."""
PIECE = 2**23
"""Elements whose errors are told at once: what that takes beside the tile stays below 1 GiB."""
_SPAN = 20
"""Binades told apart below the largest element of a tile; smaller ones, of which fp32 noise relative to the largest
element is the measure anyway, count as one group."""
_FACTOR = 128.0
"""What is flushed may be multiplied afterwards: exp(x) is below the normal range from x = -88, of which mish has x
times as much."""
_COMPUTE = 2.0**-23
"""The ulp of fp32, in which kernels compute: noise of this size relative to the largest element is no fault."""

ULPS = {torch.float8_e4m3fn: 0.5, torch.float16: 0.5, torch.bfloat16: 0.5, torch.float32: 8.0, torch.float64: 4.0}
"""Correctly rounded half-precision results are within 0.5 ulp; fp32 results carry the errors of the hardware's
approximate exp2, log2, rsqrt and division, about 2 ulp each, and of sums: rows of equal elements, whose rounding does
not average out, were seen to cost a right rms_norm 8.2 ulp. The next lower precision, tf32, is 8192 ulp away."""
CAP = {torch.float8_e4m3fn: 0.1, torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-10}
"""No error of PyTorch, however large, excuses more than this (relative to the larger of |r| and S)."""


@dataclass
class _Group:
    count: int = 0
    most: float = 0.0
    """Largest candidate error."""
    got: float = 0.0
    """The same beyond the floors."""
    eager: float = 0.0
    probe: float = 0.0
    stored: float = 0.0


@dataclass
class Tally:
    """What is known of one output after some of its tiles; constant size, whatever the output's size."""

    dtype: torch.dtype
    factor: float = 1.0
    casts: frozenset[torch.dtype] = frozenset()
    """What the reference casts to on the way, which caps the error as if the output were of it."""
    groups: dict[int, _Group] = field(default_factory=dict)
    scale: float = 0.0
    piece: int = PIECE
    """Elements whose errors are told at once."""
    max_error: float = 0.0
    eager_error: float = 0.0
    relative_error: float = 0.0
    """Largest error over its element of the oracle, where that is not 0."""
    squared: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sums of the squares of the errors, and of the oracle's finite elements."""
    elements: int = 0
    misplaced: int = 0
    """Elements whose NaN or infinity is not where PyTorch (or the oracle, rounded) has it."""
    unsteady: int = 0
    """Elements that a second call of PyTorch has otherwise, as calls that add in any order do where sums overflow."""
    differing: list[int] = field(default_factory=lambda: [0, 0, 0])
    """For integers: elements that differ from the oracle in the candidate, PyTorch and the disturbed oracles."""
    wrong: int = 0
    """For integers: elements that are `beyond` what the oracles and PyTorch have."""
    furthest: float = 0.0
    """How far, at most."""

    def add(
        self,
        got: torch.Tensor,
        eager: torch.Tensor,
        ref: torch.Tensor,
        probes: list[torch.Tensor],
        stored: Sequence[torch.Tensor] = (),
    ) -> None:
        """Take in one tile: the candidate, PyTorch's result, the oracle, disturbed oracles, and oracles with what calls
        of torch's store and are off by."""
        pieces = [torch.split(x.reshape(-1), self.piece) for x in (got, eager, ref, *probes, *stored)]
        for got_, eager_, ref_, *others in zip(*pieces, strict=True):
            self._add(got_, eager_, ref_, others[: len(probes)], others[len(probes) :])

    def _add(
        self,
        got: torch.Tensor,
        eager: torch.Tensor,
        ref: torch.Tensor,
        probes: list[torch.Tensor],
        stored: list[torch.Tensor],
    ) -> None:
        if not ref.numel():
            return
        self.elements += ref.numel()
        finite = torch.isfinite(ref)
        size = torch.where(finite, ref, 0).double().abs()
        error = _error(got, eager, ref)
        eager_error = difference(eager, ref)
        probe, rounded = _furthest(probes, ref), _furthest(stored, ref)
        relative = torch.where(size > 0, error / size, 0).max()
        largest = (size.max(), error.max(), eager_error.max(), relative)
        sums = (misplaced(got, eager, ref).sum(), error.square().sum(), size.square().sum(), finite.sum())
        *most, out_of_place, squared_error, squared_size, count = told([x.double() for x in (*largest, *sums)])
        known = (self.scale, self.max_error, self.eager_error, self.relative_error)
        self.scale, self.max_error, self.eager_error, self.relative_error = map(max, known, most)
        self.misplaced += int(out_of_place)
        self.squared[0] += squared_error
        self.squared[1] += squared_size
        if not self.dtype.is_floating_point:
            for i, e in enumerate((error, eager_error, torch.maximum(probe, rounded))):
                self.differing[i] += int((e != 0).sum())
            away = beyond(got, (ref, eager, *probes, *stored))
            self.wrong += int((away > 0).sum())
            self.furthest = max(self.furthest, float(away.max()))
            return
        exponent = _exponent(ref)
        unexcused = torch.where(error > self._floor(exponent), error, 0)
        binade, errors = _binade(exponent), torch.stack([error, unexcused, eager_error, probe, rounded])
        if count < ref.numel():  # NaN and infinities speak for no element's error
            binade, errors = binade[finite], errors[:, finite]
        if binade.numel():
            self._group(binade, errors)

    @property
    def l2_error(self) -> float:
        """The norm of the errors over that of the oracle; 0 where that is 0."""
        error, size = self.squared
        return math.sqrt(error / size) if size else 0.0

    def _floor(self, exponent: torch.Tensor) -> torch.Tensor:
        """The error that is accepted whatever PyTorch's error is, of numbers with an `_exponent`."""
        floor = self._ulps(exponent).clamp_(min=_COMPUTE * self.scale)
        # results below the normal range may be flushed to zero, as GPUs do in fp32
        flushed = _FACTOR * torch.finfo(self.dtype).tiny if self.dtype != torch.float16 else 0.0
        return floor.mul_(K * self.factor).clamp_(min=flushed)

    def _ulps(self, exponent: torch.Tensor) -> torch.Tensor:
        info = torch.finfo(self.dtype)
        ulp = torch.exp2((exponent - 1).double()).mul_(info.eps)
        return ulp.clamp_(min=info.tiny * info.eps).mul_(ULPS[self.dtype])

    def _group(self, binade: torch.Tensor, errors: torch.Tensor) -> None:
        binade, errors = binade.reshape(-1), errors.reshape(5, -1)
        lowest = int(binade.min())
        counts = torch.bincount(binade - lowest).tolist()
        present = [offset for offset, count in enumerate(counts) if count]
        largest = torch.stack([torch.where(binade == lowest + offset, errors, 0).amax(1) for offset in present])
        for offset, (most, got, eager, probe, stored) in zip(present, largest.tolist(), strict=True):
            group = self.groups.setdefault(lowest + offset, _Group())
            group.count += counts[offset]
            group.most = max(group.most, most)
            group.got = max(group.got, got)
            group.eager = max(group.eager, eager)
            group.probe = max(group.probe, probe)
            group.stored = max(group.stored, stored)

    def bounds(self) -> dict[int, float]:
        """The largest error accepted in each binade, beyond the floors of single elements."""
        binades = sorted(self.groups)
        seen, pooled = 0, 0
        for pooled in binades:  # the smallest binade up to which POOL elements lie
            seen += self.groups[pooled].count
            if seen >= POOL:
                break
        result = {}
        for binade in binades:
            pool = [self.groups[b] for b in binades if b <= max(binade, pooled)]
            eager, honest = max(g.eager for g in pool), max(max(BACKWARD * g.probe, g.stored) for g in pool)
            largest = max(math.ldexp(1.0, min(binade, 1023)), self.scale)
            cap = max(CAP[d] for d in (self.dtype, *self.casts)) * largest
            result[binade] = self.factor * min(K * max(eager, honest), max(cap, K * honest))
        return result

    @property
    def eager_is_far(self) -> bool:
        """PyTorch's own error is larger than any that is excused."""
        return self.dtype.is_floating_point and self.eager_error > CAP[self.dtype] * self.scale

    def complaint(self) -> str:
        """Why the output is wrong; "" if it is right."""
        if self.misplaced > K * self.unsteady:
            return f"{self.misplaced} of {self.elements} elements have NaN or infinity in the wrong place"
        for binade, bound in sorted(self.bounds().items(), reverse=True):
            group = self.groups[binade]
            if group.got > bound:
                size = f"elements of about {math.ldexp(1.0, min(binade, 1023)):.0e}"
                return f"error {group.got:.2e} over the bound {bound:.2e} for {size} (eager {group.eager:.2e})"
        if self.wrong:
            return f"{self.wrong} of {self.elements} integers are wrong (off by {self.furthest:g} at most)"
        if self.differing[0] > self._may_differ:
            return f"{self.differing[0]} of {self.elements} integers differ (eager {self.differing[1]})"
        return ""

    @property
    def _may_differ(self) -> float:
        """So many integers may differ from the oracle."""
        return self.factor * K * max(self.differing[1:])

    def share(self) -> float:
        """The largest error over the bound of its element: 0 to 1 where the output is right."""
        if not self.dtype.is_floating_point:
            return math.inf if self.wrong else _over(self.differing[0], self._may_differ)
        shares = [0.0]
        for binade, bound in self.bounds().items():
            # within a binade all elements have one floor
            size = torch.tensor(math.ldexp(0.5, min(binade, 1023)), dtype=torch.float64)
            shares.append(_over(self.groups[binade].most, max(bound, float(self._floor(_exponent(size))))))
        return max(shares)

    def limits(self, ref: torch.Tensor) -> torch.Tensor:
        """The largest error that each float may have, once all tiles are in."""
        exponent = _exponent(ref)
        limit, binade = self._floor(exponent), _binade(exponent)
        for which, bound in self.bounds().items():
            limit = torch.where(binade == which, limit.clamp(min=bound), limit)
        return limit

    def rejects(
        self,
        other: torch.Tensor,
        eager: torch.Tensor,
        ref: torch.Tensor,
        limits: torch.Tensor | None,
        oracles: Sequence[torch.Tensor] = (),
    ) -> bool:
        """Whether another result in the candidate's place would be wrong. `limits`: those of `ref`, of floats;
        `oracles`: of integers, the disturbed ones."""
        if limits is None:
            if bool((beyond(other, (ref, eager, *oracles)) > 0).any()):
                return True
            return int((other != ref).sum()) > self._may_differ
        return bool(misplaced(other, eager, ref).any()) or bool((_error(other, eager, ref) > limits).any())

    def score(
        self, got: torch.Tensor, eager: torch.Tensor, ref: torch.Tensor, oracles: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """Error over bound, element by element, once all tiles are in; infinite where NaN or infinity is misplaced. Of
        integers how far each is `beyond`, and of those that are not their errors, below 1."""
        error = _error(got, eager, ref)
        if not self.dtype.is_floating_point:
            return beyond(got, (ref, eager, *oracles)) + error / (1 + error)
        score = torch.where(error > 0, error / self.limits(ref), 0.0)
        return torch.where(misplaced(got, eager, ref), math.inf, score)


def beyond(got: torch.Tensor, allowed: Sequence[torch.Tensor]) -> torch.Tensor:
    """How far each integer lies outside of what is allowed in its place, in float64 and at least 1; 0 between the least
    and the greatest of these, and, where they are more than neighbours, up to half of what lies between them outside:
    sums of what floats decide, such as counts, have any value near by."""
    least, greatest = allowed[0], allowed[0]
    for other in allowed[1:]:
        least, greatest = torch.where(other < least, other, least), torch.where(other > greatest, other, greatest)
    below, above = ((a.double() - b.double()).clamp(min=1.0) for a, b in ((least, got), (got, greatest)))
    away = torch.where(got < least, below, torch.where(got > greatest, above, 0.0))
    return torch.where(away > ((greatest.double() - least.double()) / 2).floor(), away, 0.0)


def _over(error: float, bound: float) -> float:
    return error / bound if bound else math.inf if error else 0.0


def difference(value: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """|value - ref| in float64 (at least 1 for integers that differ).

    0 where either is not finite: the positions of those are compared on their own.
    """
    error = (value.double() - ref.double()).abs_()
    if not ref.dtype.is_floating_point:  # float64 does not tell neighbouring large integers apart
        return torch.where(value != ref, error.clamp_(min=1.0), 0.0)
    return error.nan_to_num_(0.0, 0.0, 0.0)


def _furthest(others: Sequence[torch.Tensor], ref: torch.Tensor) -> torch.Tensor:
    """The largest difference of each element in any of the others; 0 where there are none."""
    furthest = torch.zeros(ref.shape, dtype=torch.float64, device=ref.device)
    for other in others:
        furthest = torch.maximum(furthest, difference(other, ref))
    return furthest


def misplaced(got: torch.Tensor, eager: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Where the candidate's NaN, +Inf, -Inf or finiteness is neither PyTorch's nor that of the rounded oracle.

    The second is accepted because PyTorch may overflow between two steps where a kernel in fp32 does not. Where an
    error alone decides between infinity and a large number, `_error` says how large it is.
    """
    wrong = otherwise(got, eager, ref)
    return wrong & ~_overflows_nearby(got, ref) if bool(wrong.any()) else wrong


def unsteady(eager: torch.Tensor, again: torch.Tensor) -> int:
    """How many elements are NaN or infinite in one of two results of PyTorch and not so in the other."""
    return int((_kind(eager) != _kind(again)).sum()) if eager.dtype.is_floating_point else 0


def _error(got: torch.Tensor, eager: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """The candidate's `difference` from the oracle, also where only one of them overflows."""
    error = difference(got, ref)
    wrong = otherwise(got, eager, ref)
    if bool(wrong.any()):
        nearby = wrong & _overflows_nearby(got, ref)
        error = torch.where(nearby, (_without_infinity(got) - ref.double()).abs(), error)
    return error


def otherwise(got: torch.Tensor, eager: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Where the candidate's NaN and infinities are neither PyTorch's nor the rounded oracle's, be that for an error."""
    if not got.dtype.is_floating_point:
        return torch.zeros(got.shape, dtype=torch.bool, device=got.device)
    stored = ref.to(got.dtype)
    if bool((finite(got) & finite(eager) & finite(stored)).all()):  # as nearly everywhere, a sixth of the time
        return torch.zeros(got.shape, dtype=torch.bool, device=got.device)
    kind = _kind(got)
    return (kind != _kind(eager)) & (kind != _kind(stored))


def _overflows_nearby(got: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Where one of the two is infinite as it is stored, and both are large numbers of one sign before that."""
    if got.dtype.itemsize == 1:  # float8_e4m3fn has no infinity
        return torch.zeros(got.shape, dtype=torch.bool, device=got.device)
    half, value = torch.finfo(got.dtype).max / 2, _without_infinity(got)
    large = (value.abs() >= half) & (ref.abs() >= half) & ref.isfinite()
    return large & (value.sign() == ref.sign()) & (got.isinf() != ref.to(got.dtype).isinf())


def _without_infinity(x: torch.Tensor) -> torch.Tensor:
    """In float64, with the number that would follow the largest in the place of infinity."""
    info = torch.finfo(x.dtype)
    beyond = info.max + info.max * info.eps / 2
    return x.double().nan_to_num(math.nan, beyond, -beyond)


def finite(x: torch.Tensor) -> torch.Tensor:
    """Where the elements of a tensor of any dtype are neither NaN nor infinite."""
    return torch.isfinite(x.float() if x.dtype.itemsize == 1 else x)  # of float8 torch does not tell


def _kind(x: torch.Tensor) -> torch.Tensor:
    x = x.float() if x.dtype.itemsize == 1 else x
    return torch.isnan(x).to(torch.int8) + torch.isposinf(x).to(torch.int8) * 2 + torch.isneginf(x).to(torch.int8) * 3


def _exponent(ref: torch.Tensor) -> torch.Tensor:
    """e with 2**(e-1) <= |r| < 2**e, as int64; zeros and what is not finite count as the smallest."""
    numbers = torch.where(torch.isfinite(ref), ref, 0).double()
    return torch.where(numbers == 0, -1074, torch.frexp(numbers).exponent.long())


def _binade(exponent: torch.Tensor) -> torch.Tensor:
    return exponent.clamp(min=int(exponent.max()) - _SPAN) if exponent.numel() else exponent

"""Are the numbers right? The candidate's outputs against the fp64 oracle, or against PyTorch bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .bounds import Tally, misplaced
from .casts import narrowed
from .inputs import derive_seed
from .model import Case, Operator, Worst
from .mutants import LARGEST, Reject, Suite, bounded
from .oracle import Box, Noise, Tiling, in_float64
from .selections import Selections

_LARGE = 2.0**14
"""In place of an infinite gradient: no less than other elements are, and finite in float16."""
_SETTLING = 8
"""Disturbed oracles that must agree on NaN and infinities before a candidate is held to them."""
_PROBES = 8
"""Disturbed oracles where there are few elements: by chance two disturbances may cancel in all that are sensitive."""
_ROUNDING = 2.0**-24
"""Of float32, relative to the result."""
_MANY = 2**22
"""Elements beyond which one disturbed oracle does, if many results speak for it; else there is one at least in which
equal elements are disturbed alike."""
_CHUNK = 2**22
"""Elements compared at once where results must be bit-identical."""

Visit = Callable[[int, Box, torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor | None], None]
"""Output's position, box, and of that box: the candidate, PyTorch, the oracle, disturbed oracles, and the oracle that
rounds what is stored between kernels and calls of torch's, or is off by the worst order of its sums."""


@dataclass(frozen=True)
class Outcome:
    """What the comparison found."""

    complaint: str = ""
    max_error: float = 0.0
    eager_error: float = 0.0
    worst: Worst | None = None


@dataclass(frozen=True)
class _Run:
    operator: Operator
    case: Case
    arguments: Sequence[torch.Tensor]
    got: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    seed: int
    mutants: Mutants | None

    @property
    def stored(self) -> torch.dtype | None:
        name = self.operator.stored
        return getattr(torch, self.case.dtypes.get(name, name)) if name else None


@dataclass(frozen=True)
class Mutants:
    """The suite of a case, and the inputs' distribution in one of its trials."""

    suite: Suite
    distribution: str


def check(
    operator: Operator,
    case: Case,
    arguments: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    seed: int,
    verbose: bool,
    mutants: Mutants | None = None,
) -> Outcome:
    """Compare; `verbose` also finds the worst element where all is well. `mutants` are held against the same bound."""
    run = _Run(operator, case, arguments, got, eager, seed, mutants)
    if operator.exact:
        return _check_bits(run)
    scale = _terms(operator, arguments)
    casts = _casts(run)
    tallies = [Tally(case.dtype(t), operator.tolerance_factor, casts, scale=scale) for t in operator.outputs]
    whole: list[torch.Tensor] = []
    keep = mutants is not None and _fits_one_tile(run)

    def visit(
        i: int,
        box: Box,
        got: torch.Tensor,
        eager: torch.Tensor,
        ref: torch.Tensor,
        probes: list[torch.Tensor],
        stored: torch.Tensor | None,
    ) -> None:
        tallies[i].add(got, eager, ref, probes, stored)
        if keep:
            whole.append(ref)

    _tiles(run, visit, probe=True)
    if whole:
        _mutate(run, whole, [bounded(t, e, ref) for t, e, ref in zip(tallies, eager, whole, strict=True)])
    complaints = [
        f"{t.name}: {c}" for t, tally in zip(operator.outputs, tallies, strict=True) if (c := tally.complaint())
    ]
    return Outcome(
        "; ".join(complaints),
        max(t.max_error for t in tallies),
        max(t.eager_error for t in tallies),
        _worst(run, tallies) if complaints or verbose else None,
    )


def _casts(run: _Run) -> frozenset[torch.dtype]:
    """What the reference casts to, as a first tile shows."""
    tiling = Tiling(run.operator, run.case)
    box = next(tiling.boxes(), None)
    if box is None or not any(run.case.dtype(t).is_floating_point for t in run.operator.outputs):
        return frozenset()
    cut = [tiling.cut(t, x, box) for t, x in zip(run.operator.inputs, run.arguments, strict=True)]
    return narrowed(run.operator.reference, cut)


def _fits_one_tile(run: _Run) -> bool:
    tiling, elements = Tiling(run.operator, run.case), sum(math.prod(run.case.shape(t)) for t in run.operator.outputs)
    return (not tiling.extents or tiling.cost <= tiling.tile_bytes) and 0 < elements <= LARGEST


def _mutate(run: _Run, right: Sequence[torch.Tensor], rejects: Sequence[Reject]) -> None:
    assert run.mutants is not None
    rounded = [r.to(run.case.dtype(t)) for t, r in zip(run.operator.outputs, right, strict=True)]
    run.mutants.suite.judge(run.operator, run.mutants.distribution, run.arguments, rounded, rejects)


def _terms(operator: Operator, arguments: Sequence[torch.Tensor]) -> float:
    """The largest finite element of the inputs that results are differences of; 0 where there are none."""
    found = [x for t, x in zip(operator.inputs, arguments, strict=True) if t.name in operator.terms and x.numel()]
    return max((float(torch.where(torch.isfinite(x), x, 0).abs().max()) for x in found), default=0.0)


def _tiles(run: _Run, visit: Visit, *, probe: bool) -> None:
    """Call `visit` for every output of every tile; a tile's memory is freed before the next one is computed."""
    operator, tiling = run.operator, Tiling(run.operator, run.case)
    probes = _probes(run) if probe else 0
    device = run.arguments[0].device.type if run.arguments else "cpu"
    generator = torch.Generator(device).manual_seed(derive_seed(run.seed, "probe"))
    for box in tiling.boxes():
        cut = [tiling.cut(t, x, box) for t, x in zip(operator.inputs, run.arguments, strict=True)]
        gots, eagers = (
            [tiling.cut(t, x, box) for t, x in zip(operator.outputs, outputs, strict=True)]
            for outputs in (run.got, run.eager)
        )
        refs, eagers, selections = _selected_alike(operator, cut, gots, eagers)
        noises = [Noise(generator, alike=n % 2 > 0) for n in range(probes)]
        moved = [in_float64(operator.reference, cut, noise, Selections(taken=selections.taken)) for noise in noises]
        stored = in_float64(operator.reference, cut, stored=run.stored) if run.stored and probe else None
        stored = _worst_order(operator, cut, refs) if operator.any_order and probe else stored
        for i, (got, eager) in enumerate(zip(gots, eagers, strict=True)):
            if bool(misplaced(got, eager, refs[i]).any()):
                if device == "cpu":
                    refs[i] = _one_by_one(operator, cut, i, got, eager, refs[i])
                else:
                    refs[i] = _on_host(operator, cut, i, got, refs[i])
                refs[i] = _spelled_out(operator, cut, i, got, eager, refs[i])
                refs[i] = _added_first(operator, cut, i, got, refs[i])
                refs[i] = _settled(operator, cut, i, got, eager, refs[i], generator)
            probed = [m[i] for m in moved]
            if selections.found and not refs[i].dtype.is_floating_point:
                got, eager, *probed = selections.settled(refs[i], (got, eager, *probed))
            visit(i, box, got, eager, refs[i], probed, stored[i] if stored else None)


def _selected_alike(
    operator: Operator, cut: Sequence[torch.Tensor], got: list[torch.Tensor], eager: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], Selections]:
    """The oracle, PyTorch's results and the selections that a candidate is held to.

    Of equal scores a topk may take one or the other, and what is computed from the places it took follows. So where the
    candidate's places are an output and as right as the reference's, the oracle computes the other outputs from them,
    and PyTorch counts as exact wherever its own places lead elsewhere.
    """
    found = Selections()
    refs = in_float64(operator.reference, cut, selections=found)
    own, places, theirs = (found.as_right(refs, outputs) for outputs in (refs, got, eager))
    if not own or len(refs) == 1:
        return list(refs), eager, found

    def selecting(taken: Mapping[int, torch.Tensor]) -> tuple[Sequence[torch.Tensor], Selections]:
        alike = Selections(taken=taken)
        return in_float64(operator.reference, cut, selections=alike), alike

    right, alike = selecting(places)
    if all(torch.equal(places[n], theirs[n]) for n in places):
        return list(right), eager, alike
    other, _ = selecting(theirs)
    same = [(r == o) | (r.isnan() & o.isnan()) for r, o in zip(right, other, strict=True)]
    return list(right), [torch.where(s, e, r.to(e.dtype)) for s, e, r in zip(same, eager, right, strict=True)], alike


def _probes(run: _Run) -> int:
    """How many disturbed oracles there are: all that few results need, and no more than many elements allow, since
    each moves every element of every step."""
    if not any(x.dtype.is_floating_point for x in run.arguments):
        return 0
    results = sum(math.prod(run.case.shape(t)) for t in run.operator.outputs)
    if results + sum(x.numel() for x in run.arguments) > _MANY:
        return min(_PROBES, max(1, 2**10 // max(results, 1)))
    return min(_PROBES, max(2, 2**17 // max(results, 1)))


def _worst_order(
    operator: Operator, cut: Sequence[torch.Tensor], refs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The oracle, off by what a sum of n elements in float32 is in the worst order: n - 1 roundings of the sum of their
    sizes. The reference itself says what that sum is, and with ones in the place of elements how many there are."""
    sizes = in_float64(operator.reference, [x.abs() if x.dtype.is_floating_point else x for x in cut])
    counts = in_float64(operator.reference, [torch.ones_like(x) if x.dtype.is_floating_point else x for x in cut])
    return tuple(r + _ROUNDING * (n - 1) * s for r, n, s in zip(refs, counts, sizes, strict=True))


def _on_host(
    operator: Operator, cut: Sequence[torch.Tensor], output: int, got: torch.Tensor, ref: torch.Tensor
) -> torch.Tensor:
    """The oracle by PyTorch's CPU kernels, if the candidate's NaN and infinities are where they have them.

    A fused CUDA kernel of PyTorch may spread them differently from the formula it stands for: F.rms_norm makes a
    whole row NaN where one element is infinite. Either is an honest reading of the reference.
    """
    other = in_float64(operator.reference, [x.cpu() for x in cut])[output].to(ref.device)
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
    other = in_float64(operator.reference, cut, spelled_out=True)[output]
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
    other = in_float64(operator.reference, [torch.stack((x, x), dim=-1)[..., 0] for x in wide])[output]
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
    other = in_float64(operator.reference, large)[output]
    taken = ref.isnan() & got.isinf() & (got.sign() == other.sign())
    return torch.where(taken, got.to(ref.dtype), ref)


def _settled(
    operator: Operator,
    cut: Sequence[torch.Tensor],
    output: int,
    got: torch.Tensor,
    eager: torch.Tensor,
    ref: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """The oracle with the candidate's value where inputs that differ by an ulp of fp32 decide between NaN, infinity
    and a number: (x - mean) * inf is NaN or an infinity of either sign where x is the mean but for rounding. It is the
    documented formula that decides, which is what the oracle was replaced by where the candidate was in doubt."""
    undecided = torch.zeros_like(ref, dtype=torch.bool)
    for _ in range(_SETTLING):
        moved = in_float64(operator.reference, cut, Noise(generator), spelled_out=True)[output]
        undecided |= misplaced(moved.to(got.dtype), ref.to(got.dtype), ref)
    return torch.where(undecided & misplaced(got, eager, ref), got.to(ref.dtype), ref)


def _worst(run: _Run, tallies: Sequence[Tally]) -> Worst | None:
    """The element whose error is largest in terms of its bound: a second pass, only where it is shown."""
    tiling = Tiling(run.operator, run.case)
    found: list[tuple[float, Worst]] = []

    def visit(i: int, box: Box, got: torch.Tensor, eager: torch.Tensor, ref: torch.Tensor, *_: object) -> None:
        if not ref.numel():
            return
        score = tallies[i].score(got, eager, ref).reshape(-1)
        place = int(score.argmax())
        if not found or float(score[place]) > found[-1][0]:
            tensor = run.operator.outputs[i]
            local = unravel(place, ref.shape)
            worst = Worst(
                tensor.name, tiling.index(tensor, local, box), float(ref[local]), float(got[local]), float(eager[local])
            )
            found.append((float(score[place]), worst))

    _tiles(run, visit, probe=False)
    return found[-1][1] if found else None


def _check_bits(run: _Run) -> Outcome:
    if run.mutants is not None and _fits_one_tile(run):
        _mutate(run, run.eager, [lambda other, e=e: first_difference(other, e) is not None for e in run.eager])  # type: ignore[misc]
    for tensor, got, eager in zip(run.operator.outputs, run.got, run.eager, strict=True):
        place = first_difference(got, eager)
        if place is not None:
            index = unravel(place, got.shape)
            worst = Worst(tensor.name, index, float(eager[index]), float(got[index]), float(eager[index]))
            complaint = f"{tensor.name}{list(index)} is {worst.got}, not {worst.expected}; bit-identical is wanted"
            return Outcome(complaint, max_error=abs(worst.got - worst.expected), worst=worst)
    return Outcome()


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """The flat position of the first element with other bits; NaNs count as equal whatever their payload."""
    for start, (x, y) in enumerate(
        zip(torch.split(a.contiguous().view(-1), _CHUNK), torch.split(b.contiguous().view(-1), _CHUNK), strict=True)
    ):
        differs = _bits(x) != _bits(y)
        if x.dtype.is_floating_point:
            differs &= ~(torch.isnan(x.float()) & torch.isnan(y.float()))
        if bool(differs.any()):
            return start * _CHUNK + int(differs.to(torch.uint8).argmax())
    return None


def _bits(x: torch.Tensor) -> torch.Tensor:
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(words[x.dtype.itemsize])


def unravel(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of a flat position (row-major)."""
    index = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        index.append(rest)
    return tuple(reversed(index))

"""Are the numbers right? The candidate's outputs against the fp64 oracle, or against PyTorch bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import torch

from . import memory
from .bits import first_difference, unravel
from .bounds import BACKWARD, CAP, PIECE, POOL, K, Tally, otherwise, unsteady
from .casts import decide, narrowed, rounding
from .choices import Measure, Oracle, Part, remark, selected_alike, undoubted
from .contractions import Errors, Pair
from .inputs import derive_seed
from .known import Known
from .masks import drawn, hidden
from .model import Case, Function, Operator, Worst
from .mutants import LARGEST, Reject, Suite, bounded
from .oracle import PROBE, TILE_BYTES, Noise, Tiling, in_float64, worst_order
from .overflow import excused
from .readings import LOOSEST, as_right, in_doubt, read_in_steps, read_otherwise, settled_by, the_other_way, undecidable
from .selections import Selection
from .stored import Storing
from .wrong_products import WRONG, Change, Wronged

_SETTLING = 32
"""Disturbed oracles that must agree on NaN and infinities before a candidate is held to them."""
_PROBES = 8
"""Disturbed oracles where there are few elements: by chance two disturbances may cancel in all that are sensitive."""
_NEAR, _AGAIN = 8.0, 4
"""A candidate that is over its bound by no more is held once more to one for which so many times as many oracles are
disturbed: of eight the furthest may fall short of what an honest kernel is off by. One with sums of products is held
once more however far it is off: where a step decides between two results, as the sign of a large number before a
sigmoid does, eight oracles may all fall on one side."""
_SUMS_AGAIN, _SUMMED = 32, 2**29
"""Of so many oracles the sums of products are off then, and of fewer where all their results were more elements than
this: with eight, one in nine of results that jump with a sum was called wrong."""
_FAR = 0.9 * K
"""Sums are off by so many times what honest ones are in most of these, and what the result then differs by counts as so
many times less: one that follows its sums evenly has the bound that it had, and one that jumps shows it. Less than K
times, so that a jump leaves room for what is rounded after it."""
_COUNTED = 32
"""Disturbed oracles for integers that a candidate has otherwise than the first ones: of two neighbours that rounding
decides between, each oracle has either, and that all have the same one is as likely as so many equal tosses of a coin.
"""
_MANY_DRAWS = 32
"""Of what sums of products are off by, for few elements of which these alone tell what is accepted."""
_MANY = 2**22
"""Elements beyond which two disturbed oracles do, of which one disturbs equal elements alike, if many results speak for
them."""

Visit = Callable[[Part], None]


@dataclass(frozen=True)
class Outcome:
    """What the comparison found."""

    complaint: str = ""
    max_error: float = 0.0
    eager_error: float = 0.0
    bound_share: float = 0.0
    relative_error: float = 0.0
    l2_error: float = 0.0
    worst: Worst | None = None
    remark: str = ""
    """What is to be said of a pass."""
    selects: bool = False
    """The reference selects, compares or counts."""
    eager_is_far: bool = False
    """PyTorch's own error is larger than any that is excused."""


@dataclass(frozen=True)
class _Run:
    operator: Operator
    case: Case
    arguments: Sequence[torch.Tensor]
    got: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    seed: int
    mutants: Mutants | None
    device: str
    """Where PyTorch's results and the candidate's are from; these tensors may lie on the host."""
    known: Known = field(default_factory=Known)
    unsteady: Sequence[int] = ()
    """Of each output, how many elements PyTorch itself has now NaN or infinite and now otherwise; () for none."""
    rounds: bool = False
    """The reference rounds where it casts, in oracles as well. Inputs that lie between two numbers are cast alike by
    every kernel, so that they are not disturbed."""

    @property
    def products(self) -> Storing | None:
        """How sums of products are treated, by calls of torch's if there are any; None where there are no sums."""
        name = self.operator.stored or self.operator.multiplied
        dtype = getattr(torch, self.case.dtypes.get(name, name)) if name else None
        if dtype is None:
            return None
        ours = not self.operator.stored
        multiplies, as_tf32 = bool(self.operator.multiplied), self.operator.as_tf32
        return Storing(dtype, device=self.device, ours=ours, multiplies=multiplies, as_tf32=as_tf32, known=self.known)


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
    again: Callable[[], Sequence[torch.Tensor]] | None = None,
) -> Outcome:
    """Compare; `verbose` also finds the worst element where all is well. `mutants` are held against the same bound.
    `again`: another call of PyTorch's, if some of its calls are the candidate's too."""
    device = got[0].device.type
    if memory.quick_on_host(operator, case, device):
        arguments, got, eager = ([x.cpu() for x in tensors] for tensors in (arguments, got, eager))
    run = _Run(operator, case, arguments, got, eager, seed, mutants, device)
    if operator.exact:
        return _check_bits(run)
    outcome = _checked(run, verbose, again)
    if outcome.complaint and outcome.eager_is_far and (both := excused(operator, case, arguments, got, eager)):
        held = _checked(replace(run, got=both[0], eager=both[1], mutants=None), verbose, again)
        return held if not held.complaint else outcome
    return outcome


def _checked(run: _Run, verbose: bool, again: Callable[[], Sequence[torch.Tensor]] | None) -> Outcome:
    casts = _casts(run)
    run = run if _fits_one_tile(run) else replace(run, mutants=None)
    if run.mutants is None or casts:  # most keep to PyTorch's error: what widens that takes some twenty oracles more
        outcome = _held(replace(run, mutants=None), casts, verbose, draws=0)
        if outcome.eager_is_far and (rounded := _as_cast(run)):
            run = replace(run, operator=rounded, rounds=True)
            outcome = _held(replace(run, mutants=None), casts, verbose, draws=0)
        if run.mutants is None and not outcome.complaint and not outcome.selects:
            return outcome
    outcome = _held(run, casts, verbose, draws=1)
    near = outcome.bound_share <= _NEAR and _elements(run) <= _MANY
    if outcome.complaint and (run.products or near or _counts(run)):
        closer = replace(run, mutants=None)
        if again is not None:
            pairs = zip(run.eager, again(), strict=True)
            closer = replace(closer, unsteady=[unsteady(one, two.to(one.device)) for one, two in pairs])
        held = _held(closer, casts, verbose, draws=_AGAIN)
        return held if not held.complaint else outcome
    return outcome


def _held(run: _Run, casts: frozenset[torch.dtype], verbose: bool, *, draws: int) -> Outcome:
    """The candidate against its bound, for which so many times the usual number of oracles are disturbed; with none by
    PyTorch's error alone, which accepts no more than with them."""
    operator, case = run.operator, run.case
    scale, wider = _terms(operator, run.arguments), 1 if draws else memory.wider(operator, case, run.got[0].device.type)
    tallies = [
        Tally(case.dtype(t), operator.tolerance_factor, casts, scale=scale, unsteady=n, piece=wider * PIECE)
        for t, n in zip(operator.outputs, run.unsteady or [0] * len(operator.outputs), strict=True)
    ]
    whole: list[Part] = []
    named: dict[int, Selection] = {}
    misnamed: dict[int, str] = {}
    undecided = [0] * len(operator.outputs)
    selects: list[bool] = []
    tiling = Tiling(operator, case, wider * TILE_BYTES)
    keep = draws > 0 and run.mutants is not None

    def visit(part: Part) -> None:
        i = part.output
        if part.selection is not None:
            named[i] = part.selection
            if i not in misnamed and (complaint := part.selection.complaint(part.got)):
                index, said = complaint
                misnamed[i] = f"{list(tiling.index(operator.outputs[i], index, part.box))} {said}"
            part = replace(part, got=part.selection.settled(part.got))
        undecided[i] += part.undecided
        selects.append(part.selects)
        tallies[i].add(part.got, part.eager, part.ref, part.probes, part.stored)
        if keep:
            whole.append(part)

    _tiles(run, tiling, visit, casts, draws=draws)
    if whole:
        rejects = [
            bounded(t, e, p.ref, (*p.probes, *p.stored)) for t, e, p in zip(tallies, run.eager, whole, strict=True)
        ]
        for i, selection in named.items():
            rejects[i] = lambda other, s=selection: not bool(s.right(other).all())  # type: ignore[misc]
        _mutate(run, [part.ref for part in whole], rejects, named)
    complaints = [
        f"{t.name}{misnamed[i]}" if i in misnamed else f"{t.name}: {c}"
        for i, (t, tally) in enumerate(zip(operator.outputs, tallies, strict=True))
        if (c := tally.complaint()) or i in misnamed
    ]
    return Outcome(
        "; ".join(complaints),
        *_errors(tallies),
        _worst(run, tallies, casts, draws) if verbose or (draws and complaints) else None,
        remark([t.name for t in operator.outputs], undecided, [t.elements for t in tallies]),
        any(selects) or not all(case.dtype(t).is_floating_point for t in operator.outputs),
        any(t.eager_is_far for t in tallies),
    )


def _errors(tallies: Sequence[Tally]) -> tuple[float, float, float, float, float]:
    """Of all outputs the largest: in the order of `Outcome`'s figures."""
    return (
        max(t.max_error for t in tallies),
        max(t.eager_error for t in tallies),
        max(t.share() for t in tallies),
        max(t.relative_error for t in tallies),
        max(t.l2_error for t in tallies),
    )


def _casts(run: _Run) -> frozenset[torch.dtype]:
    """What the reference casts to, as a first tile shows."""
    cut = _first_cut(run)
    if not cut or not any(run.case.dtype(t).is_floating_point for t in run.operator.outputs):
        return frozenset()
    return narrowed(run.operator.pure, cut)


def _first_cut(run: _Run) -> list[torch.Tensor]:
    """The inputs of a first tile."""
    tiling = Tiling(run.operator, run.case)
    box = next(tiling.boxes(), None)
    given = zip(run.operator.inputs, run.arguments, strict=True)
    return [] if box is None else [tiling.cut(t, x, box) for t, x in given]


def _as_cast(run: _Run) -> Operator | None:
    """The operator whose reference rounds where it casts, in oracles as well; None where that does not decide what its
    results are, as a first tile shows."""
    cut, operator = _first_cut(run), run.operator
    rounded = replace(operator, reference=rounding(operator.reference, cut))
    return rounded if decide(in_float64(operator.pure, cut), in_float64(rounded.pure, cut)) else None


def _nearly(casts: frozenset[torch.dtype]) -> float:
    """Relative to a score, what rounding it as the reference does may move it by."""
    return max((2 * torch.finfo(dtype).eps for dtype in casts), default=0.0)


def _slack(run: _Run, output: int, casts: frozenset[torch.dtype]) -> float:
    """Relative to the largest element, what no kernel may be off by."""
    dtype = run.case.dtype(run.operator.outputs[output])
    return max(CAP[d] for d in (dtype, *casts)) if dtype.is_floating_point else 0.0


def _fits_one_tile(run: _Run) -> bool:
    tiling, elements = Tiling(run.operator, run.case), _results(run)
    return (not tiling.extents or tiling.cost <= tiling.tile_bytes) and 0 < elements <= LARGEST


def _mutate(
    run: _Run, right: Sequence[torch.Tensor], rejects: Sequence[Reject], named: Mapping[int, Selection]
) -> None:
    assert run.mutants is not None
    rounded = [r.to(run.case.dtype(t)) for t, r in zip(run.operator.outputs, right, strict=True)]

    def wrongly(change: Change | None, products: Storing) -> Sequence[torch.Tensor] | None:
        wrong = Wronged(change)
        outputs = in_float64(run.operator.pure, run.arguments, stored=replace(products, wrong=wrong))
        wrong.read(outputs)
        return [o.to(r.dtype) for o, r in zip(outputs, rounded, strict=True)] if wrong.made else None

    products = run.products
    called = {name: partial(wrongly, change, products) for name, change in WRONG.items()} if products else {}
    run.mutants.suite.judge(run.operator, run.mutants.distribution, run.arguments, rounded, rejects, named, called)


def _terms(operator: Operator, arguments: Sequence[torch.Tensor]) -> float:
    """The largest finite element of the inputs that results are differences of; 0 where there are none."""
    found = [x for t, x in zip(operator.inputs, arguments, strict=True) if t.name in operator.terms and x.numel()]
    return max((float(torch.where(torch.isfinite(x), x, 0).abs().max()) for x in found), default=0.0)


def _tiles(run: _Run, tiling: Tiling, visit: Visit, casts: frozenset[torch.dtype], *, draws: int) -> None:
    """Call `visit` for every output of every tile; a tile's memory is freed before the next one is computed."""
    operator, probes = run.operator, draws * _probes(run)
    generator = torch.Generator(run.got[0].device).manual_seed(derive_seed(run.seed, "probe"))
    for box in tiling.boxes():
        cut = [tiling.cut(t, x, box) for t, x in zip(operator.inputs, run.arguments, strict=True)]
        gots, eagers = (
            [tiling.cut(t, x, box) for t, x in zip(operator.outputs, outputs, strict=True)]
            for outputs in (run.got, run.eager)
        )
        storing = _storing(run, _summed(run, probes, draws), generator, again=draws > 1) if draws else ()
        counted = _counted(run, probes, again=draws > 1)
        measure = Measure(operator.pure, cut, generator, probes, storing, _nearly(casts), not run.rounds, counted)
        oracle = selected_alike(measure, gots, eagers)
        stored = [_as_near(s, oracle.refs, how) for s, how in zip(oracle.stored, storing, strict=True)]
        stored += _other_way(operator, cut, storing, oracle.refs)
        stored += _rounded_anew(operator, oracle) if casts and draws > 1 else []
        stored += [worst_order(operator.pure, cut, oracle.refs)] if operator.any_order and draws else []
        for i, (got, eager) in enumerate(zip(gots, oracle.eagers, strict=True)):
            if i in oracle.named:
                right = oracle.refs[i]
                visit(Part(i, box, got, right.to(eager.dtype), right, [], [], oracle.named[i], selects=True))
                continue
            ref, got = oracle.refs[i], oracle.in_order(i, got)
            own = [s[i] for s in stored]
            probed = oracle.probes_of(i) if ref.dtype.is_floating_point else oracle.counted_of(i)
            part = Part(i, box, got, eager, ref, probed, own, selects=bool(oracle.found))
            if bool(in_doubt(part).any()):
                part = _unseen(run, oracle, storing, read_otherwise(operator, cut, part))
            if bool(undecidable(part).any()):
                part = _settled(run, cut, part, generator)
            visit(undoubted(part, oracle.alternatives_of(i), _slack(run, i, casts)))


def _probes(run: _Run) -> int:
    """How many disturbed oracles there are: all that few results need, and no more than many elements allow, since
    each moves every element of every step. Of integers floats may be made on the way."""
    if not any(x.dtype.is_floating_point for x in (*run.arguments, *run.eager)):
        return 0
    enough = 2**10 if _elements(run) > _MANY else 2**17
    return min(_PROBES, max(2, enough // max(_results(run), 1)))


def _counts(run: _Run) -> bool:
    """Whether floats decide what integers or bools some output has."""
    return bool(_probes(run)) and not all(x.dtype.is_floating_point for x in run.eager)


def _counted(run: _Run, probes: int, *, again: bool) -> list[float]:
    """By how many ulps of fp32 each step is off in each oracle that is disturbed for integers: by all that is accepted
    of a float. What decides for a candidate once more may be of the inputs' dtype, as PyTorch's own steps are."""
    accepted = K * BACKWARD * run.operator.tolerance_factor
    if not again or not probes:
        return [accepted] * probes
    narrow = [torch.finfo(x.dtype).eps / PROBE for x in run.arguments if x.dtype.is_floating_point]
    steps = [max(narrow)] * _PROBES if max(narrow, default=1.0) > 1.0 else []
    return [accepted] * _COUNTED + steps


def _summed(run: _Run, probes: int, draws: int) -> int:
    """Of how many oracles the sums of products are off."""
    again = min(_SUMS_AGAIN, _SUMMED // max(_results(run), 1)) if draws > 1 else 0
    return max(probes, 2 * draws, again)


def _results(run: _Run) -> int:
    return sum(math.prod(run.case.shape(t)) for t in run.operator.outputs)


def _elements(run: _Run) -> int:
    return _results(run) + sum(x.numel() for x in run.arguments)


def _storing(run: _Run, draws: int, generator: torch.Generator, *, again: bool) -> Sequence[Storing]:
    """What sums of products do in each oracle: what they read, and what calls return, is stored; the sums are off.
    Where a candidate is held to them once more, the sums are off by more in most, and in others what is stored is off
    by any rounding, and not by that of the oracle's own values."""
    products = run.products
    if products is None:
        return ()
    times = [_FAR if again and n // 2 % _AGAIN else 1.0 for n in range(draws)]
    errors = [Errors(generator, n % 2 > 0, known=run.known, times=t) for n, t in enumerate(times)]
    # a kernel's own products may be torch's at some sizes: its schedule table says where
    called, own = replace(products, called=True), products.ours or products.multiplies
    ways = [called, replace(called, whole=True)] if own else [called]
    stored = [replace(products, errors=drawn) for drawn in errors]
    anyhow = [replace(s, anyhow=generator) for s in stored * again if s.errors and s.errors.times == 1.0]
    # its call may add in one step what PyTorch adds in another, and rounds the sum, or what is added to before
    if again and own:
        rounding = replace(products, ours=False, anyhow=generator)
        apart = [replace(rounding, apart=True, turned=turned) for turned in (1.0, -1.0, 0.0, 0.0)]
        anyhow += [rounding] * _AGAIN + apart
    return [products, *ways, *stored, *anyhow]


def _as_near(results: tuple[torch.Tensor, ...], refs: Sequence[torch.Tensor], how: Storing) -> tuple[torch.Tensor, ...]:
    """The results of an oracle whose sums are off by more, as near as they count."""
    if how.errors is None or how.errors.times == 1.0:
        return results
    times = how.errors.times
    return tuple(
        torch.where(r.isfinite() & x.isfinite(), r + (x - r) / times, x) if r.dtype.is_floating_point else x
        for x, r in zip(results, refs, strict=True)
    )


def _other_way(
    operator: Operator, cut: Sequence[torch.Tensor], storing: Sequence[Storing], refs: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """The oracles that go the operator's other way, with what lies in memory on it and what its sums are off by."""
    for how in storing:
        found = None if how.called else the_other_way(operator, how.rounded, cut, how)
        if found is not None:
            yield _as_near(found, refs, how)


def _rounded_anew(operator: Operator, oracle: Oracle) -> Iterator[tuple[torch.Tensor, ...]]:
    """Disturbed oracles that round where the reference casts. What a kernel casts is off by an ulp of fp32 and may go
    to the other neighbour, and what follows may amplify that: exp(x).half() + w near 0, times what others are."""
    rounded = replace(operator, reference=rounding(operator.reference, oracle.measure.cut))
    measure = replace(oracle.measure, reference=rounded.pure)
    for n in range(_PROBES):
        noise = Noise(measure.generator, alike=n % 2 > 0, inputs=False)
        yield measure.disturbed(noise, oracle.taken)[0]


def _unseen(run: _Run, oracle: Oracle, storing: Sequence[Storing], part: Part) -> Part:
    """A part with what its oracles are, in the candidate's doubtful places, where what a mask hides is left out of sums
    of products: of a weight of 0 and an infinite or NaN value the product is NaN, which a kernel that skips it never
    sees. Only where that is what the candidate has, and none of it where no sum has a mask. A reading that is near by
    goes before one that is not: of all that a mask hides each leaves out some."""
    if run.products is None:
        return part
    for most in (CAP[part.got.dtype], LOOSEST):
        if bool(in_doubt(part).any()):
            part = _unseen_within(run, oracle, storing, part, most)
    return part


def _unseen_within(run: _Run, oracle: Oracle, storing: Sequence[Storing], part: Part, most: float) -> Part:
    """The same by readings from which the candidate is off by no more than `most`: the operator's other way, if it has
    one, is the kernel's own, and goes first."""
    cut = oracle.measure.cut
    if the_other_way(run.operator, lambda x: x, cut) is not None:
        assert run.operator.also is not None
        for how in _hiding(run, partial(run.operator.also, lambda x: x), cut):
            part = _seen_the_other_way(run, cut, storing, part, how, most)
    if bool(in_doubt(part).any()):
        for how in _hiding(run, run.operator.pure, cut):
            part = _seen_alone(run, oracle, storing, part, how, most)
    return part


def _hiding(run: _Run, function: Function, cut: Sequence[torch.Tensor]) -> Iterator[Storing]:
    """How sums of products may leave out what a mask hides in a function; none where no sum has a mask."""
    assert run.products is not None
    masks = _masks(run, function, cut)
    if any(bool(mask.any()) for pair in masks for mask in pair):
        for nan, flushed in product((False, True), repeat=2):
            yield replace(run.products, dtype=torch.float64, hidden=masks, hides_nan=nan, flushed=flushed)


def _seen_alone(
    run: _Run, oracle: Oracle, storing: Sequence[Storing], part: Part, exactly: Storing, most: float
) -> Part:
    """A part with what the oracle without hidden factors says of the candidate's doubtful places, where that settles
    them."""
    measure, taken, i = oracle.measure, oracle.taken, part.output
    ref = measure.as_stored(exactly, taken)[0][i] if bool(in_doubt(part).any()) else part.ref
    settled = settled_by(part, ref, most, _terms(run.operator, run.arguments))
    if not bool(settled.any()):
        return part
    noises = (Noise(measure.generator, alike=n % 2 > 0) for n in range(len(part.probes)))
    probes = [measure.disturbed(noise, taken, exactly)[0][i] for noise in noises]
    # PyTorch's own error says nothing there: of few elements more oracles have to
    more = min(POOL // int(settled.sum()), _MANY_DRAWS * _probes(run) // _PROBES)
    assert run.products is not None
    drawn_on = [replace(run.products, errors=Errors(measure.generator, known=run.known))] * more
    stored = [measure.as_stored(_hiding_as(how, exactly), taken)[0][i] for how in (*storing, *drawn_on)]
    return replace(
        part,
        ref=torch.where(settled, ref, part.ref),
        probes=[torch.where(settled, new, old) for new, old in zip(probes, part.probes, strict=True)],
        stored=[torch.where(settled, new, part.ref) for new in stored]
        + [torch.where(settled, ref, old) for old in part.stored],
    )


def _seen_the_other_way(
    run: _Run, cut: Sequence[torch.Tensor], storing: Sequence[Storing], part: Part, exactly: Storing, most: float
) -> Part:
    """The same by the operator's other way, and by what that is off by: neither PyTorch nor the oracles that go the
    reference's own way have a number there."""
    other = the_other_way(run.operator, lambda x: x, cut, exactly)
    if other is None:
        return part
    i, ref = part.output, other[part.output]
    settled = settled_by(part, ref, most, _terms(run.operator, run.arguments))
    if not bool(settled.any()):
        return part
    ways = (_hiding_as(how, exactly) for how in storing if not how.called)
    found = [the_other_way(run.operator, how.rounded, cut, how) for how in ways]
    stored = [torch.where(settled, outputs[i], part.ref) for outputs in found if outputs is not None]
    return replace(
        part,
        ref=torch.where(settled, ref, part.ref),
        stored=stored + [torch.where(settled, ref, old) for old in part.stored],
    )


def _hiding_as(how: Storing, other: Storing) -> Storing:
    """The same with what another leaves out of sums."""
    return replace(how, hidden=other.hidden, hides_nan=other.hides_nan, flushed=other.flushed)


def _masks(run: _Run, function: Function, cut: Sequence[torch.Tensor]) -> list[Pair]:
    """Which factors of each of a function's sums of products a mask makes 0."""
    assert run.products is not None
    noted = []
    for inputs in drawn(cut, derive_seed(run.seed, "masks")):
        pairs: list[Pair] = []
        in_float64(function, inputs, stored=replace(run.products, dtype=torch.float64, noted=pairs))
        noted.append(pairs)
    return hidden(noted)


def _settled(run: _Run, cut: Sequence[torch.Tensor], part: Part, generator: torch.Generator) -> Part:
    """A part whose oracle has the candidate's value where inputs that differ by an ulp of fp32 decide between NaN,
    infinity and a number: (x - mean) * inf is NaN or an infinity of either sign where x is the mean but for rounding.
    It is the documented formula that decides, which is what the oracle was replaced by where the candidate was in
    doubt. What sums of products are off by decides as well, and what is stored of them."""
    got, ref = part.got, part.ref
    ways = _stored_ways(run, generator)
    undecided, doubtful = torch.zeros_like(ref, dtype=torch.bool), otherwise(got, part.eager, ref)
    for n in range(_SETTLING):
        how = ways[n % len(ways)]
        called = how is not None and how.called
        if how is not None and called:  # which may give something else the next time
            how = replace(how, known=Known())
        moved = in_float64(run.operator.pure, cut, Noise(generator), stored=how, spelled_out=True)[part.output]
        stored = moved.to(got.dtype)
        differing = otherwise(stored, ref, ref)
        undecided |= differing & ~otherwise(got, stored, stored) if called else differing
        if bool(undecided[doubtful].all()):
            break
    taken = undecided & doubtful
    left = undecidable(part) & ~taken
    if bool(left.any()):
        taken |= left & read_in_steps(run.operator, cut, part, Noise(generator), left)
    return as_right(part, taken)


def _stored_ways(run: _Run, generator: torch.Generator) -> Sequence[Storing | None]:
    """What lies in memory may be infinite where a kernel's own sum is not, and where a sum is that something is added
    to; and so may be what torch's call stores, whose parts of a sum may be of its dtype."""
    if run.products is None:
        return (None,)
    kept = replace(run.products, errors=Errors(generator, known=run.known, times=_FAR))
    stored = replace(kept, ours=False)
    called = replace(run.products, ours=False, called=True)
    ways = [kept, stored, replace(stored, apart=True, anyhow=generator), called, replace(called, whole=True)]
    return [way for n, way in enumerate(ways) if way not in ways[:n]]


def _worst(run: _Run, tallies: Sequence[Tally], casts: frozenset[torch.dtype], draws: int) -> Worst | None:
    """The element whose error is largest in terms of its bound: a second pass, only where it is shown. Of floats the
    tallies know the bound; integers are held to the oracles once more, drawn from the same seed."""
    tiling = Tiling(run.operator, run.case)
    found: list[tuple[float, Worst]] = []

    def visit(part: Part) -> None:
        got, eager, ref = part.got, part.eager, part.ref
        if not ref.numel():
            return
        if part.selection is not None:
            got = part.selection.settled(got)
        score = tallies[part.output].score(got, eager, ref, (*part.probes, *part.stored)).reshape(-1)
        place = int(score.argmax())
        if not found or float(score[place]) > found[-1][0]:
            tensor = run.operator.outputs[part.output]
            local = unravel(place, ref.shape)
            at = tiling.index(tensor, local, part.box)
            worst = Worst(tensor.name, at, float(ref[local]), float(got[local]), float(eager[local]))
            found.append((float(score[place]), worst))

    _tiles(run, tiling, visit, casts, draws=draws if _counts(run) else 0)
    return found[-1][1] if found else None


def _check_bits(run: _Run) -> Outcome:
    if run.mutants is not None and _fits_one_tile(run):
        _mutate(run, run.eager, [lambda other, e=e: first_difference(other, e) is not None for e in run.eager], {})  # type: ignore[misc]
    for tensor, got, eager in zip(run.operator.outputs, run.got, run.eager, strict=True):
        place = first_difference(got, eager)
        if place is not None:
            index = unravel(place, got.shape)
            worst = Worst(tensor.name, index, float(eager[index]), float(got[index]), float(eager[index]))
            complaint = f"{tensor.name}{list(index)} is {worst.got}, not {worst.expected}; bit-identical is wanted"
            return Outcome(complaint, max_error=abs(worst.got - worst.expected), worst=worst)
    return Outcome()

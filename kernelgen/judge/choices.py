"""What a candidate is held to where its reference selects: of equal scores one or another may be taken.

Places that are an output are held against what they name (`selections.py`), and the other outputs are then those that
follow from the places the candidate took. Where no output says what was taken, whatever some right choice gives is
right, and elements that no choice tried here gives are left out: another one might.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from .eager import InOrder
from .model import Function
from .oracle import Box, Noise, in_float64
from .selections import Selection, Selections, enriched
from .stored import Storing

Taken = Mapping[int, torch.Tensor]
"""Places by the number of the selection."""


@dataclass(frozen=True)
class Part:
    """What is held against each other of one output in one tile."""

    output: int
    """The output's position."""
    box: Box
    got: torch.Tensor
    eager: torch.Tensor
    ref: torch.Tensor
    """The oracle."""
    probes: list[torch.Tensor]
    """Disturbed oracles."""
    stored: list[torch.Tensor]
    """Oracles with what calls of torch's store and are off by, or one that is off by the worst order of its sums."""
    selection: Selection | None = None
    """Where the output is the places of one, which are judged by what they name."""
    undecided: int = 0
    """Elements that follow from which of equals are selected, and of which no choice that was tried gives the
    candidate's: they are left out, with the oracle's in their place."""
    selects: bool = False
    """Whether the reference selects at all."""


@dataclass(frozen=True)
class Measure:
    """How the oracles of one tile are computed."""

    reference: Function
    cut: Sequence[torch.Tensor]
    generator: torch.Generator
    probes: int
    """Disturbed oracles."""
    stored: Sequence[Storing]
    """What calls of torch's do, in each oracle that says what that costs."""
    nearly: float
    """Relative to a score, what the reference's own casts may move it by."""
    moves_inputs: bool = True
    """Whether disturbed oracles have other inputs as well."""
    counted: Sequence[float] = ()
    """By how many ulps of fp32 each step is off in each of the disturbed oracles for what is no float."""
    listens: bool = True
    """Whether the reference may select: where it was heard not to, its operations need not be listened to again."""
    unread: frozenset[int] = frozenset()
    """Operations of whose places nothing follows: see Selections."""

    def listened(self) -> tuple[Measure, tuple[torch.Tensor, ...], list[Selection]]:
        """The same, of which it is known what the reference selects, with the oracle and the selections."""
        heard = Selections()
        outputs = in_float64(self.reference, self.cut, selections=heard)
        unread = heard.never_read(outputs)
        if unread:  # by what was seen; whatever reads them otherwise comes to something else with other places
            others = in_float64(self.reference, self.cut, selections=Selections(shifted=unread))
            same = all(bool(_alike(x, y).all()) for x, y in zip(outputs, others, strict=True))
            unread = unread if same else frozenset()
        found = [selection for n, selection in enumerate(heard.found) if n not in unread]
        return replace(self, listens=bool(found), unread=unread), outputs, found

    def exactly(self, taken: Taken) -> tuple[tuple[torch.Tensor, ...], list[Selection]]:
        heard = Selections(taken=taken, unread=self.unread)
        return in_float64(self.reference, self.cut, selections=heard), heard.found

    def disturbed(
        self, noise: Noise, taken: Taken, storing: Storing | None = None
    ) -> tuple[tuple[torch.Tensor, ...], list[Selection]]:
        heard = Selections(taken=taken, unread=self.unread) if self.listens else None
        return in_float64(self.reference, self.cut, noise, heard, storing), heard.found if heard else []

    def as_stored(self, storing: Storing, taken: Taken) -> tuple[tuple[torch.Tensor, ...], list[Selection]]:
        heard = Selections(taken=taken, unread=self.unread) if self.listens else None
        found = in_float64(self.reference, self.cut, selections=heard, stored=storing)
        return found, heard.found if heard else []

    def as_given(self) -> list[Selection]:
        """What PyTorch selects in the inputs' own dtype."""
        heard = Selections(unread=self.unread)
        with torch.no_grad(), InOrder(), heard:
            self.reference(*self.cut)
        return heard.found


@dataclass
class Oracle:
    """What one tile of a candidate is held to."""

    measure: Measure
    refs: Sequence[torch.Tensor]
    eagers: Sequence[torch.Tensor]
    found: list[Selection]
    moved: list[tuple[torch.Tensor, ...]]
    """Disturbed oracles."""
    stored: list[tuple[torch.Tensor, ...]]
    named: dict[int, Selection] = field(default_factory=dict)
    """By the position of an output that holds places, the selection that they are of."""
    said: frozenset[int] = frozenset()
    """The numbers of these selections."""
    _counted: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    _alternatives: list[tuple[torch.Tensor, ...]] | None = None

    @property
    def taken(self) -> Taken:
        return {n: selection.places for n, selection in enumerate(self.found)}

    def probes_of(self, output: int) -> list[torch.Tensor]:
        return [moved[output] for moved in self.moved]

    def counted_of(self, output: int) -> list[torch.Tensor]:
        """Disturbed oracles for what is no float: every kernel reads the same inputs, and what is equal is equal to all
        of them, so that x >= y differs from x > y."""
        if not self._counted:
            ulps = self.measure.counted
            noises = [Noise(self.measure.generator, alike=True, inputs=False, ulps=u) for u in ulps]
            self._counted = [self.measure.disturbed(noise, self.taken)[0] for noise in noises]
        return [counted[output] for counted in self._counted]

    def in_order(self, output: int, got: torch.Tensor) -> torch.Tensor:
        """An output of the candidate; sorted, where it is what a topk with sorted=False selected and no output says in
        which order."""
        for n, selection in enumerate(self.found):
            if selection.ordered or n in self.said or got.numel() != selection.places.numel():
                continue
            if bool(_alike(selection.values().reshape(-1), self.refs[output].reshape(-1)).all()):
                return selection.in_order(got)
        return got

    def alternatives_of(self, output: int) -> list[torch.Tensor]:
        """What an output is by other right choices among equals, where no output says which were made."""
        if self._alternatives is None:
            self._alternatives = [self.measure.exactly(taken)[0] for taken in self._choices()]
        return [made[output] for made in self._alternatives]

    def _choices(self) -> list[Taken]:
        """Other right choices, PyTorch's in the inputs' own dtype among them."""
        silent = [n for n in range(len(self.found)) if n not in self.said]
        if not silent:
            return []
        given = self.measure.as_given()
        made: list[dict[int, torch.Tensor]] = []
        for n in silent:
            selection = self.found[n]
            others = selection.others()
            if n < len(given) and given[n].places.shape == selection.places.shape:
                others.append(selection.legal(given[n].places))
            for number, places in enumerate(others):
                made += [dict(self.taken)] if number == len(made) else []
                made[number][n] = places
        return [taken for taken in made if any(not torch.equal(taken[n], self.found[n].places) for n in silent)]


def selected_alike(measure: Measure, gots: Sequence[torch.Tensor], eagers: Sequence[torch.Tensor]) -> Oracle:
    """The oracles by the places that the candidate took, wherever an output says so and they are right; PyTorch counts
    as exact wherever its own places lead elsewhere."""
    measure, refs, found = measure.listened()
    numbers = {i: n for i, ref in enumerate(refs) if (n := _number(found, ref)) is not None}
    if len(numbers) == len(refs) and all(found[n].exact for n in numbers.values()):
        return Oracle(measure, refs, eagers, found, [], [], {i: found[n] for i, n in numbers.items()})
    by_theirs, _ = _led(measure, found, numbers, eagers)
    led, selected = _led(measure, found, numbers, gots)
    if any(not torch.equal(led[n], s.places) for n, s in enumerate(found)):
        refs, found = measure.exactly(led)
    oracle = _oracle(measure, refs, eagers, found, led)
    oracle.refs = own = list(refs)
    for i, n in numbers.items():
        places = selected[n]
        oracle.found[n] = replace(oracle.found[n], places=places, eager=eagers[i].reshape(places.shape))
        own[i] = places.reshape(refs[i].shape).to(refs[i].dtype)
    # small results may be equal to places of a selection that another output holds
    oracle.named.update({i: oracle.found[n] for i, n in numbers.items()})
    oracle.said = frozenset(numbers.values())
    if len(oracle.named) == len(refs):
        return oracle
    taken = _taken(oracle, gots)
    silent = [n for n in led if n not in oracle.said]
    alike = all(torch.equal(led[n], by_theirs[n]) for n in silent)
    theirs = _taken(oracle, eagers) if alike else by_theirs
    if any(not torch.equal(taken[n], led[n]) for n in led):
        right, found = measure.exactly(taken)
        named, said = oracle.named, oracle.said
        oracle = _oracle(measure, right, eagers, found, taken)
        oracle.named, oracle.said = named, said
        oracle.refs = [own[i] if i in named else r for i, r in enumerate(right)]
    if any(not torch.equal(taken[n], theirs[n]) for n in taken):
        other, _ = measure.exactly(theirs)
        same = [_alike(r, o) for r, o in zip(oracle.refs, other, strict=True)]
        oracle.eagers = [torch.where(s, e, r.to(e.dtype)) for s, e, r in zip(same, eagers, oracle.refs, strict=True)]
    return oracle


def _led(
    measure: Measure, found: Sequence[Selection], numbers: Mapping[int, int], outputs: Sequence[torch.Tensor]
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """What every selection is to return for the later ones to find what the outputs say of them: where a router selects
    groups and then experts of these, an output names the experts alone. Beside it what they select then on their own.

    An output's own places in rows where they are right; of a selection that no output holds, row by row, the first of
    its right choices that leads to what the next output says.
    """
    taken = {n: selection.places for n, selection in enumerate(found)}
    selected = dict(taken)
    said = {n: outputs[i] for i, n in numbers.items()}
    if not said or all(bool(found[n].right(o.reshape(found[n].places.shape)).all()) for n, o in said.items()):
        return taken | {n: o.reshape(found[n].places.shape).to(taken[n].dtype) for n, o in said.items()}, selected

    def rows_right(heard: Sequence[Selection], n: int) -> torch.Tensor:
        selection = heard[n]
        return _rows(selection.right(said[n].reshape(selection.places.shape)), selection)

    for n in range(len(found)):
        before = {m: taken[m] for m in range(n)}
        heard = measure.exactly(before)[1]
        taken[n] = selected[n] = heard[n].places
        following = min((m for m in said if m > n), default=None)
        if n in said:
            taken[n] = heard[n].legal(said[n].reshape(heard[n].places.shape))
        elif following is not None and not bool((good := rows_right(heard, following)).all()):
            for places in heard[n].others():
                better = rows_right(measure.exactly({**before, n: places})[1], following) & ~good
                taken[n] = _by_rows(better, places, taken[n], heard[n])
                good |= better
    return taken, selected


def _rows(right: torch.Tensor, selection: Selection) -> torch.Tensor:
    """Whether all places of a row are right."""
    return right.reshape(selection.row(selection.places).shape).movedim(selection.dim, -1).all(-1)


def _by_rows(where: torch.Tensor, places: torch.Tensor, others: torch.Tensor, selection: Selection) -> torch.Tensor:
    """`places` in the rows of a selection that `where`, of a later one's rows, speaks of: those along the dimensions
    that both begin with; `others` in the rest."""
    rows = selection.row(others).movedim(selection.dim, -1).shape[:-1]
    shared = 0
    while shared < min(len(rows), where.ndim) and rows[shared] == where.shape[shared]:
        shared += 1
    kept = where.reshape(*where.shape[:shared], -1).all(-1)
    kept = kept.reshape(*kept.shape, *[1] * (len(rows) - shared)).expand(rows).unsqueeze(-1)
    chosen = torch.where(kept.movedim(-1, selection.dim), selection.row(places), selection.row(others))
    return chosen.reshape(others.shape)


def _oracle(
    measure: Measure,
    refs: Sequence[torch.Tensor],
    eagers: Sequence[torch.Tensor],
    found: list[Selection],
    taken: Taken,
) -> Oracle:
    """An oracle with the disturbed ones beside it, all of which select alike."""
    alike = [n % 2 > 0 for n in range(measure.probes)]
    noises = [Noise(measure.generator, alike=a, inputs=measure.moves_inputs) for a in alike]
    moved = [measure.disturbed(noise, taken) for noise in noises]
    stored = [measure.as_stored(storing, taken) for storing in measure.stored]
    rich = enriched(found, [m[1] for m in moved], alike, [s[1] for s in stored], measure.nearly)
    return Oracle(measure, refs, eagers, rich, [m[0] for m in moved], [s[0] for s in stored])


def _number(found: Sequence[Selection], output: torch.Tensor) -> int | None:
    """The number of the selection whose places an output of the reference is; None if it is none's."""
    if output.dtype.is_floating_point or output.dtype == torch.bool or not output.numel():
        return None
    for n, selection in enumerate(found):
        places = selection.places.reshape(-1)
        if output.numel() == len(places) and bool((output.reshape(-1) == places).all()):
            return n
    return None


def _taken(oracle: Oracle, outputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What every selection of the oracle is to return: the places that an output holds, in the rows where they are
    right, else the oracle's own."""
    taken = dict(oracle.taken)
    for i, selection in oracle.named.items():
        number = next(n for n, other in enumerate(oracle.found) if other is selection)
        taken[number] = selection.legal(outputs[i].reshape(selection.places.shape))
    return taken


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _distance(value: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """|value - ref|: 0 for what is the same, NaN and infinities included, and infinite where only one is a number. What
    is beyond the numbers of the value's dtype is infinite in it."""
    ref = torch.where(ref.to(value.dtype).isinf(), ref.to(value.dtype), ref) if value.is_floating_point() else ref
    away = (value.double() - ref.double()).abs().nan_to_num(torch.inf, torch.inf)
    return torch.where(_alike(value.double(), ref.double()), 0.0, away)


def undoubted(part: Part, alternatives: Sequence[torch.Tensor], slack: float) -> Part:
    """A part whose oracle is, element by element, that of the right choice which is nearest to the candidate.

    Elements of which all choices are further than `slack`, relative to the largest, from the candidate are undecided.
    """
    doubtful = torch.zeros_like(part.ref, dtype=torch.bool)
    nearest, eager = part.ref, part.eager
    for other in alternatives:
        doubtful |= ~_alike(other, part.ref)
        nearer = _distance(part.got, other) < _distance(part.got, nearest)
        nearest = torch.where(nearer, other, nearest)
    if not bool(doubtful.any()):
        return part
    size = torch.where(torch.isfinite(nearest.double()), nearest.double().abs(), 0.0).max()
    far = doubtful & (_distance(part.got, nearest) > slack * size)
    led = doubtful & (_distance(eager, nearest) > slack * size)
    chosen = ~_alike(nearest, part.ref)
    return replace(
        part,
        ref=nearest,
        got=torch.where(far, nearest.to(part.got.dtype), part.got),
        eager=torch.where(led, nearest.to(eager.dtype), eager),
        probes=[torch.where(chosen, nearest, probe) for probe in part.probes],
        stored=[torch.where(chosen, nearest, stored) for stored in part.stored],
        undecided=int(far.sum()),
    )


def remark(outputs: Sequence[str], undecided: Sequence[int], elements: Sequence[int]) -> str:
    """What is to be said of the elements of outputs that were left out."""
    return "; ".join(
        f"{output}: {count} of {all_} elements follow from which of equals are selected: not decided"
        for output, count, all_ in zip(outputs, undecided, elements, strict=True)
        if count
    )

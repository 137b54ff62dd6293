"""Places of selected elements: judged by what they name, and by what torch says of equals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from .bounds import BACKWARD, K
from .eager import EagerMode

NEARLY = 2.0**-20
"""Eight ulp of float32: what the arithmetic before a selection may cost two scores that are next to each other."""
FLUSHED = 2.0**-125
"""Computed scores below it are equal: GPUs may flush what is below 2**-126 to zero, as in a softmax of large inputs."""

Choice = Literal["first", "last", "in order", "any"]
_CHOICES: Mapping[str, tuple[Choice, bool]] = {
    "argmax": ("first", False),
    "argmin": ("first", False),
    "max": ("first", False),
    "min": ("first", False),
    "cummax": ("last", False),
    "cummin": ("last", False),
    "topk": ("any", True),
    "sort": ("any", True),
    "kthvalue": ("any", False),
    "median": ("any", False),
    "nanmedian": ("any", False),
    "mode": ("any", False),
}
"""By operation, which of equals torch takes, and whether a row has several places, none of them twice.

torch documents the first for argmax, argmin, max and min ("If there are multiple maximal values then the indices of the
first maximal value are returned"), and the order of a sort that is `stable`. It leaves topk open ("the indices of tied
elements are not guaranteed to be stable"), a sort that is not stable, median and kthvalue, and says nothing of mode. Of
cummax and cummin it says nothing either; its kernels take the last on every device."""


@dataclass(frozen=True)
class Selection:
    """One operation of a reference that returns places: what it selected among, along which dimension, and what it
    found."""

    scores: torch.Tensor
    dim: int
    places: torch.Tensor
    exact: bool = True
    """Whether the scores are an input's elements, or integers: no kernel computes them otherwise."""
    choice: Choice = "any"
    several: bool = True
    """Whether a row has several places, none of them twice: a topk or a sort."""
    running: bool = False
    """Whether every element has a place of its own, up to itself: cummax and cummin."""
    descending: bool = True
    """Whether the greatest come first, where there are several."""
    ordered: bool = True
    """Whether several have to stand in their order: not of a topk with sorted=False."""
    moved: tuple[tuple[torch.Tensor, float], ...] = ()
    """The scores of other oracles, each with how many times what it differs by is accepted."""
    alike: tuple[torch.Tensor, ...] = ()
    """The scores of those in which equal elements were disturbed alike."""
    eager: torch.Tensor | None = None
    """The places that PyTorch names in the inputs' dtype."""
    nearly: float = NEARLY
    """Relative to a score, what another may differ by to count as equal, if they are computed."""

    def row(self, places: torch.Tensor) -> torch.Tensor:
        """Places in the form in which they gather from the scores."""
        if self.places.ndim == self.scores.ndim:
            return places.reshape(self.places.shape).long()
        return places.reshape([1 if d == self.dim else n for d, n in enumerate(self.scores.shape)]).long()

    def right(self, places: torch.Tensor) -> torch.Tensor:
        """Which of other places are as right as the reference's own: inside the row, none of them twice, and of a score
        that is equal, or nearly so if it is computed; of equals the one that torch takes, where it says which."""
        own, found = self.row(self.places), self.row(places)
        if not self.ordered:
            order = self._ranks().gather(self.dim, found.clamp(0, self.scores.shape[self.dim] - 1)).argsort(self.dim)
            good = replace(self, ordered=True).right(found.gather(self.dim, order)).reshape(found.shape)
            return torch.empty_like(good).scatter_(self.dim, order, good).reshape(places.shape)
        inside = (found >= 0) & (found < self.scores.shape[self.dim])
        if self.running:
            inside &= found <= _positions(found, self.dim)
        good = (found == own) | self._as_good(own, torch.where(inside, found, 0), found)
        good &= inside
        return (good & ~_repeated(found, self.dim) if self.several else good).reshape(places.shape)

    def _ranks(self) -> torch.Tensor:
        """The number of every element in the order of the scores."""
        return self.scores.sort(dim=self.dim, descending=self.descending, stable=True).indices.argsort(self.dim)

    def in_order(self, values: torch.Tensor) -> torch.Tensor:
        """Selected values as the reference has them, if they are those of this selection in whatever order."""
        rows = values.reshape(self.row(self.places).shape)
        return rows.sort(self.dim, self.descending).values.reshape(values.shape)

    def values(self) -> torch.Tensor:
        return self.scores.gather(self.dim, self.row(self.places))

    def _as_good(self, own: torch.Tensor, other: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Whether the scores of other places are those of the reference's own and torch has no say."""
        at, over = (self.scores.gather(self.dim, p) for p in (own, other))
        tied = _equal(at, over)
        if self.exact:
            # kernels compute in float32, and compare in it
            return _equal(_narrow(at), _narrow(over)) if self.choice == "any" else torch.zeros_like(tied)
        at, over = at.double(), over.double()
        size = at.abs()
        near = tied | _equal(at.float(), over.float()) | _close(at, over, self.nearly)
        near |= torch.maximum(size, over.abs()) < FLUSHED
        for scores, factor in self.moved:
            spread = sum((scores.gather(self.dim, p).double() - x).abs() for p, x in ((own, at), (other, over)))
            near |= (at - over).abs() <= factor * spread
        if self.eager is not None:
            near |= self.row(self.eager) == found
        return near & ~self._held(tied, own, other)

    def _held(self, tied: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Where computed scores are equal whatever rounding does: they stay so where equal elements are disturbed
        alike, and PyTorch in the inputs' dtype takes the oracle's place."""
        if self.choice == "any" or not self.alike or self.eager is None:
            return torch.zeros_like(tied)
        held = tied & (self.row(self.eager) == own)
        for scores in self.alike:
            held &= _equal(scores.gather(self.dim, own), scores.gather(self.dim, other))
        return held

    def settled(self, places: torch.Tensor) -> torch.Tensor:
        """`places` with the reference's own wherever one of them is as right."""
        own = self.places.reshape(places.shape)
        return torch.where(self.right(places), own, places.to(own.dtype)).to(places.dtype)

    def others(self) -> list[torch.Tensor]:
        """Other places that are as right, as far as there are any: of equals the first, the last and, where there are
        several, the one after each, so that every place that is free is another one in some of them."""
        if self.running:
            return []
        if self.several:
            return [self.legal(self._like(places)) for places in self._turned()]
        whole = _positions(self.scores, self.dim).expand(self.scores.shape)
        own = self.row(self.places)
        good = ((whole == own) | self._as_good(own.expand(whole.shape), whole, whole)).to(torch.uint8)
        last = whole.shape[self.dim] - 1 - good.flip(self.dim).argmax(self.dim, keepdim=True)
        return [self._like(places) for places in (good.argmax(self.dim, keepdim=True), last)]

    def _turned(self) -> list[torch.Tensor]:
        """The places of a whole row as they are sorted, cut to as many as are selected: equals in the order of the row,
        in the reverse order, and each in the place of the one before it."""
        ranked, order = _narrow(self.scores).sort(dim=self.dim, descending=self.descending, stable=True)
        size, count = ranked.shape[self.dim], self.row(self.places).shape[self.dim]
        head, tail = ranked.narrow(self.dim, 0, size - 1), ranked.narrow(self.dim, 1, size - 1)
        same = _equal(head, tail)
        if not self.exact:
            same |= _close(head, tail, self.nearly)
            same |= torch.maximum(head.abs(), tail.abs()) < FLUSHED
        no = torch.zeros_like(ranked.narrow(self.dim, 0, 1), dtype=torch.bool)
        at = _positions(ranked, self.dim).expand(ranked.shape)
        start = torch.where(torch.cat((no, same), self.dim), 0, at).cummax(self.dim).values
        ends = torch.where(torch.cat((same, no), self.dim), size - 1, at)
        end = ends.flip(self.dim).cummin(self.dim).values.flip(self.dim)
        # among nearly equal ones too, the first is the one that stands first in the row
        order = order.gather(self.dim, (start * size + order).argsort(dim=self.dim))
        turned = (at, start + end - at, torch.where(at == end, start, at + 1))
        return [order.gather(self.dim, place).narrow(self.dim, 0, count) for place in turned]

    def legal(self, places: torch.Tensor) -> torch.Tensor:
        """`places` in the rows where all of them are right, the reference's own in the others."""
        good = self.right(places).reshape(self.row(self.places).shape)
        rows = good.all(self.dim, keepdim=True)
        chosen = torch.where(rows, self.row(places), self.row(self.places))
        return chosen.reshape(self.places.shape)

    def complaint(self, places: torch.Tensor) -> tuple[tuple[int, ...], str] | None:
        """The index of the first wrong one of other places and what is wrong with it; None if all are right."""
        wrong = ~self.right(places)
        if not bool(wrong.any()):
            return None
        at = int(wrong.reshape(-1).to(torch.uint8).argmax())
        own, found = (int(p.reshape(-1)[at]) for p in (self.places, places))
        of = f"; {count} of {places.numel()} places are wrong" if (count := int(wrong.sum())) > 1 else ""
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), places.shape)) if places.ndim else ()
        return index, f"names {found}, {self._fault(at, own, found)}{of}"

    def _fault(self, at: int, own: int, found: int) -> str:
        size = self.scores.shape[self.dim]
        if not 0 <= found < size:
            return f"which lies outside the {size} elements"
        places = self.row(self.places)
        both = [self.scores.gather(self.dim, torch.full_like(places, p)).reshape(-1)[at] for p in (own, found)]
        mine, theirs = (float(x) for x in both)
        if own == found:
            return "which another place of the row names too"
        if bool(_equal(*both)):
            said = {"first": "of equals the first is right", "last": "of equals the last is right"}
            why = said.get(
                self.choice, "equals stay in order" if self.choice == "in order" else "one of them is named twice"
            )
            return f"PyTorch {own}, which holds {mine:.6g} too: {why}"
        return f"which holds {theirs:.6g}, PyTorch {own}, which holds {mine:.6g}"

    def mutants(self) -> Mapping[str, Callable[[], torch.Tensor]]:
        """Wrong places by what is wrong with them; they equal the right ones where nothing is tied."""
        made: dict[str, Callable[[], torch.Tensor]] = {"the next place": self._next}
        if self.choice == "first":
            made |= {
                "the second of equals": lambda: self._of_equals(1),
                "the last of equals": lambda: self._of_equals(-1),
            }
        elif self.choice == "last":
            made |= {"the first of equals": lambda: self._of_equals(0)}
        elif self.choice == "in order":
            made |= {"equals out of order": self._swapped}
        if self.several:
            made |= {"one place for all": lambda: self._like(self.row(self.places).narrow(self.dim, 0, 1))}
        return made

    def _like(self, places: torch.Tensor) -> torch.Tensor:
        return places.expand(self.row(self.places).shape).reshape(self.places.shape)

    def _next(self) -> torch.Tensor:
        return (self.places + 1) % max(self.scores.shape[self.dim], 1)

    def _of_equals(self, which: int) -> torch.Tensor:
        """The place of the first, second or last element that equals the selected one."""
        own = self.row(self.places)
        if self.running:
            return self._like(_first_equals(self.scores, own, self.dim))
        equal = _equal(self.scores, self.scores.gather(self.dim, own))
        number = equal.long().cumsum(self.dim)
        last = number.narrow(self.dim, equal.shape[self.dim] - 1, 1)
        wanted = last if which < 0 else last.clamp(max=which + 1)
        return self._like((equal & (number == wanted)).to(torch.uint8).argmax(self.dim, keepdim=True))

    def _swapped(self) -> torch.Tensor:
        """Every second place exchanged with the next one, where the two hold equals."""
        own = self.row(self.places)
        length = own.shape[self.dim] // 2 * 2
        left = torch.arange(0, length, 2, device=own.device)
        right = left + 1
        a, b = own.index_select(self.dim, left), own.index_select(self.dim, right)
        equal = _equal(self.scores.gather(self.dim, a), self.scores.gather(self.dim, b))
        made = own.index_copy(self.dim, left, torch.where(equal, b, a))
        return made.index_copy(self.dim, right, torch.where(equal, a, b)).reshape(self.places.shape)


def _equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element; NaN equals NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def _close(a: torch.Tensor, b: torch.Tensor, relative: float) -> torch.Tensor:
    """Element by element; nothing is close to an infinity."""
    return a.isfinite() & ((a - b).abs() <= relative * a.abs())


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype.is_floating_point else x


def _positions(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Where each element stands along a dimension."""
    shape = [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
    return torch.arange(x.shape[dim], device=x.device).reshape(shape)


def _first_equals(scores: torch.Tensor, places: torch.Tensor, dim: int) -> torch.Tensor:
    """For every place of a running extreme, the first one that led to this value."""
    values = scores.gather(dim, places)
    begins = torch.ones_like(values, dtype=torch.bool)
    if values.shape[dim] > 1:
        rest = ~_equal(values.narrow(dim, 1, values.shape[dim] - 1), values.narrow(dim, 0, values.shape[dim] - 1))
        begins.narrow(dim, 1, values.shape[dim] - 1).copy_(rest)
    return torch.where(begins, _positions(values, dim), 0).cummax(dim).values


def _repeated(places: torch.Tensor, dim: int) -> torch.Tensor:
    """Which places stand more than once along a dimension."""
    ascending, order = places.sort(dim)
    equal = ascending.diff(dim=dim) == 0
    none = torch.zeros_like(ascending.narrow(dim, 0, 1), dtype=torch.bool)
    marked = torch.cat((none, equal), dim) | torch.cat((equal, none), dim)
    return torch.zeros_like(marked).scatter_(dim, order, marked)


def _selection(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Selection | None:
    """What an operation selected, if it does."""
    name = func.overloadpacket.__name__
    if name not in _CHOICES or not args[0].numel() or not args[0].ndim:
        return None
    declared = func._schema.arguments
    given = dict(zip([a.name for a in declared], args, strict=False)) | dict(kwargs)
    named = {a.name: a.default_value for a in declared}
    if "dim" not in named:  # the extreme of a whole tensor, whose place nobody asks for
        return None
    choice, several = _CHOICES[name]
    if given.get("stable"):
        choice = "in order"
    descending = bool(given.get("largest", given.get("descending", name == "topk")))
    ordered = bool(given.get("sorted", True))
    scores, dim = args[0], given.get("dim", named["dim"])
    places = result if isinstance(result, torch.Tensor) else result[1]
    if dim is None:
        scores, dim = scores.reshape(-1), 0
        places = places.reshape(())
    running = name.startswith("cum")
    return Selection(
        scores, dim % scores.ndim, places, choice=choice, several=several, running=running, descending=descending,
        ordered=ordered,
    )  # fmt: skip


@dataclass
class Selections(EagerMode):
    """Hears of every operation that returns places while a reference runs; a topk is sorted, whatever it says."""

    found: list[Selection] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    """Where the reference's inputs lie."""
    taken: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Places that a selection is to return instead of its own, by the number of what is found."""
    unread: frozenset[int] = frozenset()
    """Numbers of operations, of all that return places, whose places nothing follows from: they are not recorded, and
    `found` and `taken` count the others alone."""
    shifted: frozenset[int] = frozenset()
    """Numbers of operations, of all, that return the places behind their own, with their own values."""
    read: set[int] = field(default_factory=set)
    """Numbers of operations, of all, whose places another operation was seen to take."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._returned: list[torch.Tensor] = []
        """The places of every operation that returned some."""

    def never_read(self, outputs: Sequence[torch.Tensor]) -> frozenset[int]:
        """Numbers of operations whose places were not seen to be read and are no output; of a first run, which records
        all. Not of what may come in any order, which the places say. What reads memory by itself is not seen."""
        given = {n for n, places in enumerate(self._returned) if any(x is places for x in outputs)}
        ordered = {n for n, selection in enumerate(self.found) if selection.ordered}
        return frozenset(ordered - self.read - given)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operands = tree_leaves((args, kwargs))
        self.read |= {n for n, places in enumerate(self._returned) if any(x is places for x in operands)}
        sorts = func is torch.ops.aten.topk.default
        result = func(*(args[:4] if sorts else args), **(kwargs or {}))
        found = _selection(func, args, kwargs or {}, result)
        if found is None:
            return result
        number = len(self._returned)
        if number in self.shifted:
            behind = (found.places + 1) % max(found.scores.shape[found.dim], 1)
            result = behind if isinstance(result, torch.Tensor) else (result[0], behind)
        self._returned.append(result if isinstance(result, torch.Tensor) else result[1])
        if number in self.unread:
            return result
        if len(self.found) in self.taken:
            own = self.taken[len(self.found)].reshape(found.places.shape)
            found = replace(found, places=own)
            values = found.scores.gather(found.dim, found.row(own)).reshape(own.shape)
            given = own.reshape((result if isinstance(result, torch.Tensor) else result[1]).shape)
            result = given if isinstance(result, torch.Tensor) else (values, given)
            self._returned[-1] = given
        in_memory = args[0].untyped_storage().data_ptr() in self.given
        self.found.append(replace(found, exact=in_memory or not args[0].dtype.is_floating_point))
        return result


def enriched(
    found: Sequence[Selection],
    disturbed: Sequence[Sequence[Selection]],
    alike: Sequence[bool],
    stored: Sequence[Sequence[Selection]],
    nearly: float,
) -> list[Selection]:
    """Selections with what the same ones of disturbed oracles, and of those with what calls of torch's are off by, tell
    of their scores."""
    result = []
    for n, selection in enumerate(found):
        if selection.exact:
            result.append(selection)
            continue
        others = [(run[n].scores, a) for run, a in zip(disturbed, alike, strict=True) if n < len(run)]
        moved = [(scores, K * BACKWARD) for scores, _ in others]
        moved += [(run[n].scores, K) for run in stored if n < len(run)]
        # calls of torch's may round equal rows differently
        held = () if stored else tuple(scores for scores, a in others if a)
        result.append(replace(selection, moved=tuple(moved), alike=held, nearly=max(nearly, NEARLY)))
    return result

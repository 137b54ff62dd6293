"""Places of selected elements: of equal elements any is right, in whatever order, and torch takes one or the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .eager import EagerMode

NEARLY = 2.0**-20
"""Eight ulp of float32: what the arithmetic before a selection may cost two scores that are next to each other."""
FLUSHED = 2.0**-125
"""Computed scores below it are equal: GPUs may flush what is below 2**-126 to zero, as in a softmax of large inputs."""


@dataclass(frozen=True)
class Selection:
    """One topk of a reference, or the greatest or least of what it computed: what it selected among, along which
    dimension, and the places that it found."""

    scores: torch.Tensor
    dim: int
    places: torch.Tensor
    exact: bool = True
    """Whether the scores are an input's elements, which no kernel computes."""
    several: bool = True
    """Whether it is a topk."""

    def settled(self, places: torch.Tensor) -> torch.Tensor:
        """`places` with the reference's own wherever one of them is as right: inside the row, the only one of its
        place, and of a score that is equal in float32, in which kernels compute, or nearly so if it is computed."""
        if self.places.ndim < self.scores.ndim:  # a dimension that is not kept
            whole = Selection(self.scores, self.dim, self.places.unsqueeze(self.dim), self.exact)
            return whole.settled(places.unsqueeze(self.dim)).squeeze(self.dim)
        scores, found = self.scores.float(), places.long()
        inside = (found >= 0) & (found < scores.shape[self.dim])
        own, other = (scores.gather(self.dim, p) for p in (self.places, torch.where(inside, found, 0)))
        same = (own == other) | (own.isnan() & other.isnan())
        if not self.exact:
            same |= (own - other).abs() <= NEARLY * own.abs()
            same |= torch.maximum(own.abs(), other.abs()) < FLUSHED
        return torch.where(inside & same & ~_repeated(found, self.dim), self.places, found).to(places.dtype)


def _holds(output: torch.Tensor, selection: Selection) -> bool:
    """Whether an output of the reference is the places of a selection."""
    alike = not output.dtype.is_floating_point and output.shape == selection.places.shape
    return alike and bool((output == selection.places).all())


def _repeated(places: torch.Tensor, dim: int) -> torch.Tensor:
    """Which places stand more than once along a dimension."""
    ascending, order = places.sort(dim)
    equal = ascending.diff(dim=dim) == 0
    none = torch.zeros_like(ascending.narrow(dim, 0, 1), dtype=torch.bool)
    marked = torch.cat((none, equal), dim) | torch.cat((equal, none), dim)
    return torch.zeros_like(marked).scatter_(dim, order, marked)


def _selected(name: str, args: tuple[Any, ...], result: Any) -> tuple[int, torch.Tensor | None]:
    """The dimension that an operation selects along and the places that it found, if it selects."""
    if name == "topk":
        return args[2] if len(args) > 2 else -1, result[1]
    if name not in ("argmax", "argmin", "max", "min") or len(args) < 2 or not isinstance(args[1], int):
        return 0, None
    return args[1], result if name.startswith("arg") else result[1]


@dataclass
class Selections(EagerMode):
    """Hears of every topk while a reference runs, and of every arg reduction of what it computed: of inputs, every
    kernel finds the same extreme, of which the first place is wanted."""

    found: list[Selection] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    """Where the reference's inputs lie."""
    taken: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Places that a topk is to return instead of its own, by the number of what is found."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        several = func.overloadpacket.__name__ == "topk"
        if several and len(self.found) in self.taken:
            own = self.taken[len(self.found)]
            result = args[0].gather(args[2] if len(args) > 2 else -1, own), own
        dim, places = _selected(func.overloadpacket.__name__, args, result)
        if places is not None and args[0].ndim:
            exact = args[0].untyped_storage().data_ptr() in self.given
            if not exact or several:
                self.found.append(Selection(args[0], dim, places, exact, several))
        return result

    def as_right(self, refs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """For every topk whose places an output holds, those that another result holds if these are as right, and else
        the reference's own."""
        return {
            n: other.long() if bool((selection.settled(other) == right).all()) else selection.places
            for n, selection in enumerate(self.found)
            for right, other in zip(refs, others, strict=True)
            if selection.several and _holds(right, selection)
        }

    def settled(self, right: torch.Tensor, others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Other results beside the right one, an output of the reference, as far as that holds places it selected."""
        for selection in self.found:
            if _holds(right, selection):
                return [selection.settled(other) for other in others]
        return list(others)

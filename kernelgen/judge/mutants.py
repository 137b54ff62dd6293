"""Could this test fail? Wrong results that it must reject, made from the right one and held against the same bound.

A case that accepts a mutant cannot tell it from a right result. docs/measuring.md lists the mutants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import torch

from .bounds import Tally
from .model import CaseReport, Operator, Tensor
from .selections import Selection

LARGEST = 2**24
"""Cases with more output elements are not mutated: their smaller siblings speak for them."""
LAST_TILE = 128
"""Elements of the tile that is wrong, or half of a smaller output."""
LOWER = {torch.float64: 23, torch.float32: 10, torch.float16: 7, torch.bfloat16: 3, torch.float8_e4m3fn: 1}
"""Bits of the mantissa in the next lower precision: fp32, tf32, bfloat16, float8 (e4m3)."""

ADVICE = {
    "zeros": "inputs whose results are not all zero would",
    "copy": "inputs that the operator changes would (negative ones, or larger ones)",
    "first element": "a shape with several results that differ would",
    "last tile": "a shape with several results that differ would",
    "one element": "results that are not drowned in one far larger one would",
    "a product": "longer sums of products, or larger results of them, would",
    "precision": "shorter rows would: an average over many elements hides how precise each is; so would results that "
    "the lower precision cannot hold",
    "former call": "inputs that change the results from call to call would",
    "equals": "inputs of which several are equal would",
    "place": "rows of several elements would",
    "as allocated": "results that are no NaN would",
}
"""What would tell a mutant, by the words that its name has."""

Reject = Callable[[torch.Tensor], bool]
Made = tuple[str, Callable[[], torch.Tensor] | None]
"""A mutant's name and how it is made; None where its very form would give it away."""
ANY = "any"
"""The inputs that tell what its form gives away."""


@dataclass
class Suite:
    """What the trials of one case have told apart so far."""

    open: list[str] = field(default_factory=list)
    """Mutants that no trial has rejected yet."""
    told: dict[str, str] = field(default_factory=dict)
    """By mutant, the distribution of the inputs that told it."""
    _former: list[torch.Tensor] = field(default_factory=list)

    def judge(
        self,
        operator: Operator,
        distribution: str,
        arguments: Sequence[torch.Tensor],
        right: Sequence[torch.Tensor],
        rejects: Sequence[Reject],
        places: Mapping[int, Selection],
        called: Mapping[str, Callable[[], Sequence[torch.Tensor] | None]] = MappingProxyType({}),
    ) -> None:
        """Hold the mutants of one trial's right outputs, that are still open, against its bound.

        `places`: by the position of an output that is the places of a selection, that selection. `called`: by name, how
        the outputs are made whose sums of products are wrong, None where none can be so; one that is rejected will do.
        """
        for name, outputs in called.items():
            if name in self.told or not any(r.numel() for r in right):
                continue
            if (made := outputs()) is not None:
                self._hold(name, distribution, any(r(o) for r, o in zip(rejects, made, strict=True)))
        for i, (tensor, output) in enumerate(zip(operator.outputs, right, strict=True)):
            if not output.numel():
                continue
            former = self._former[i] if self._former else None
            of = f" of {tensor.name}" if len(right) > 1 else ""
            for mutant, make in _mutants(operator, tensor, arguments, output, former, places.get(i)):
                name = mutant + of
                if name in self.told:
                    continue
                if make is None:
                    self.told[name] = ANY
                else:
                    self._hold(name, distribution, rejects[i](make()))
        self._former = [output.clone() for output in right]

    def _hold(self, name: str, distribution: str, rejected: bool) -> None:
        if rejected:
            self.told[name] = distribution
            if name in self.open:
                self.open.remove(name)
        elif name not in self.open:
            self.open.append(name)


def bounded(tally: Tally, eager: torch.Tensor, ref: torch.Tensor, oracles: Sequence[torch.Tensor]) -> Reject:
    """Whether a result is outside a tally's bound; all of the output must be in the tally. `oracles`: disturbed."""
    limits = tally.limits(ref) if ref.dtype.is_floating_point else None
    return lambda other: tally.rejects(other, eager, ref, limits, oracles)


def _mutants(
    operator: Operator,
    declared: Tensor,
    arguments: Sequence[torch.Tensor],
    right: torch.Tensor,
    former: torch.Tensor | None,
    selection: Selection | None,
) -> Iterator[Made]:
    """The name of each mutant that this output has, and how it is made."""
    count = right.numel()
    uniform = declared.uniform and bool(torch.isclose(right, right.reshape(-1)[0], 0, 0, equal_nan=True).all())
    yield "zeros", lambda: torch.zeros_like(right)
    for tensor, argument in zip(operator.inputs, arguments, strict=True):
        if tensor.like:
            continue
        fits = argument.numel() == count
        yield f"a copy of {tensor.name}", partial(_copy, argument, right) if fits else None
    if count > 1 and not uniform:
        yield "the first element repeated", lambda: right.reshape(-1)[:1].expand(count).reshape(right.shape)
    if count > 1:
        yield "a wrong last tile", lambda: _wrong_tile(right, unwritten=uniform)
    yield "one wrong element", lambda: _wrong_element(right)
    if right.dtype in LOWER:
        yield "a lower precision", lambda: lowered(right)
    if former is not None:
        yield "a former call's output", lambda: former
    yield "memory as allocated", lambda: _unwritten(right)
    for name, made in selection.mutants().items() if selection is not None else ():
        yield name, lambda made=made: made().reshape(right.shape).to(right.dtype)  # type: ignore[misc]


def _copy(argument: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return argument.reshape(right.shape).to(right.dtype)


def _wrong_tile(right: torch.Tensor, *, unwritten: bool) -> torch.Tensor:
    """The last tile repeats the first one, or is as allocated where all tiles are alike."""
    flat = right.reshape(-1).clone()
    length = min(LAST_TILE, flat.numel() // 2)
    flat[-length:] = _unwritten(flat[:length]) if unwritten else flat[:length].clone()
    return flat.reshape(right.shape)


def _wrong_element(right: torch.Tensor) -> torch.Tensor:
    """One element is off by an eighth of the largest."""
    flat = right.reshape(-1).clone()
    place = flat.numel() // 3
    if flat.dtype == torch.bool:
        flat[place] = ~flat[place]
        return flat.reshape(right.shape)
    largest = float(flat.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
    step = max(largest / 8, 1.0) if not flat.dtype.is_floating_point else largest / 8 or 1.0
    value = float(flat[place])
    wrong = (value - step if value > 0 else value + step) if math.isfinite(value) else 0.0
    flat[place] = wrong if flat.dtype.is_floating_point else int(wrong)
    return flat.reshape(right.shape)


def _unwritten(right: torch.Tensor) -> torch.Tensor:
    """What the judge puts into memory before a call: all bits set."""
    size = right.numel() * right.dtype.itemsize
    return torch.full((size,), 0xFF, dtype=torch.uint8, device=right.device).view(right.dtype).reshape(right.shape)


def lowered(right: torch.Tensor) -> torch.Tensor:
    """In the mantissa of the next lower precision; bfloat16 that loses nothing by it, in the range of float8 too.

    Levels of float8 times powers of two are such results: it is their range that float8 cannot hold.
    """
    made = rounded(right, LOWER[right.dtype])
    if right.dtype != torch.bfloat16 or not torch.equal(made.nan_to_num(), right.nan_to_num()):
        return made
    level = torch.finfo(torch.float8_e4m3fn)
    held = right.float().clamp(level.min, level.max).to(torch.float8_e4m3fn).to(right.dtype)
    return torch.where(torch.isfinite(right), held, right)


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x with so many bits of mantissa, to nearest."""
    mantissa, exponent = torch.frexp(x.double())
    scaled = torch.round(mantissa * 2.0 ** (bits + 1)) * 2.0 ** -(bits + 1)
    return torch.where(torch.isfinite(x.double()), torch.ldexp(scaled, exponent), x.double()).to(x.dtype)


def complaints(reports: Sequence[CaseReport]) -> list[str]:
    """A line for each mutant that some case could not tell: which cases, and what could."""
    tried = [r for r in reports if r.told or r.undiscriminated]
    names = dict.fromkeys(name for r in tried for name in r.undiscriminated)
    return [f"weak case: cannot detect {name} {_where(name, tried)}" for name in names]


def _where(name: str, tried: Sequence[CaseReport]) -> str:
    blind = [r.case.label for r in tried if name in r.undiscriminated]
    other = next((r for r in tried if name in r.told), None)
    if other is None:
        return f"in any of {len(blind)} cases; {_advice(name)}"
    more = f" and {len(blind) - 1} more of {len(tried)} cases" if len(blind) > 1 else ""
    return f"in {blind[0]}{more}; detected by {other.told[name]} inputs at {other.case.label}"


def _advice(name: str) -> str:
    return next(advice for words, advice in ADVICE.items() if words in name)

"""Cases: every listed shape times every dtype, and a few shapes for specs that list none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernelgen.spec import constraints
from kernelgen.spec.model import ELLIPSIS, Case, Constraint, Place, SizeValue, TensorSpec

Sizes = tuple[tuple[str, SizeValue], ...]

_ACCURACY_LENGTHS = (1, 7, 64, 129)
"""For each of these, one derived test case in which every size has about that length."""

_PERFORMANCE_ELEMENTS = 1 << 24


def derived_accuracy(symbols: Sequence[str]) -> tuple[Sizes, ...]:
    """Small test shapes for a spec without `accuracy`: ones, primes, a power of two and one above it."""
    cases = []
    for length in _ACCURACY_LENGTHS:
        # neighbours in length, so that two sizes that were confused are not equal by chance
        free = iter(range(length, length + len(symbols)))
        cap = {1: 64, 2: 64}.get(len(symbols), 9)
        cases.append(
            tuple((s, (min(length, 5), 3) if s == ELLIPSIS else min(length, cap) + next(free) - length) for s in symbols)
        )
    return tuple(dict.fromkeys(cases))


def derived_performance(symbols: Sequence[str]) -> tuple[Sizes, ...]:
    """One large shape for a spec without `performance`: some 16 million elements over all sizes together."""
    length = 1 << round(24 / max(len(symbols), 1))
    return (tuple((s, (length,) if s == ELLIPSIS else length) for s in symbols),)


def bind(shapes: Sequence[Sizes], bindings: Sequence[tuple[tuple[str, str], ...]]) -> tuple[Case, ...]:
    """Every shape with every dtype binding; dtypes vary fastest."""
    return tuple(Case(sizes, dtypes, label(sizes, dtypes)) for sizes in shapes for dtypes in bindings)


def label(sizes: Sizes, dtypes: tuple[tuple[str, str], ...]) -> str:
    """`[512, 512] D=512 float16`; names of dtype variables only where there are several."""
    shown = [str(list(value)) if isinstance(value, tuple) else f"{name}={value}" for name, value in sizes]
    shown += [dtype if len(dtypes) == 1 else f"{name}={dtype}" for name, dtype in dtypes]
    return " ".join(shown) or "the only case"


def limit(
    bindings: Sequence[tuple[tuple[str, str], ...]], limits: Mapping[str, Sequence[str]]
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The bindings in which every limited variable has one of its listed dtypes."""
    return tuple(b for b in bindings if all(value in limits.get(name, (value,)) for name, value in b))


def violations(
    case: Case, inputs: Sequence[TensorSpec], conditions: Sequence[Constraint]
) -> Iterator[tuple[Constraint, str]]:
    """Each constraint that a case breaks, with the reason."""
    tensors = {t.name: constraints.Layout(case.shape(t.shape), case.dtype(t.dtype)) for t in inputs}
    for condition in conditions:
        reason = constraints.broken(condition.text, tensors)
        if reason is not None:
            yield condition, reason


def no_place() -> Place:
    return Place(1, 1)

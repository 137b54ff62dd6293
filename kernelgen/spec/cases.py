"""Cases: every listed shape times every dtype, and a few shapes for specs that list none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernelgen.spec.choices import combinations
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.model import ELLIPSIS, Case, Given, OperatorSpec, Place, SizeValue
from kernelgen.spec.sizes import follows, names_in
from kernelgen.spec.tree import Finding

Sizes = tuple[tuple[str, SizeValue], ...]
Binding = tuple[tuple[str, str], ...]

_ACCURACY_FILLINGS = ((1, 0), (300, 1), (4096, 0), (20_000, 1))
"""For each of these, one derived test case whose sizes multiply to about the first number; the second tells each
size from the one before, so that two that were confused are not equal by chance."""

_PERFORMANCE_ELEMENTS = 1 << 24


def derived_accuracy(symbols: Sequence[str]) -> tuple[Sizes, ...]:
    """Small test shapes for a spec without `accuracy`."""
    cases = [_filled(symbols, elements, step) for elements, step in _ACCURACY_FILLINGS]
    scalar = tuple((name, () if name == ELLIPSIS else value) for name, value in cases[1])
    return tuple(dict.fromkeys([scalar, *cases]))


def derived_performance(symbols: Sequence[str]) -> tuple[Sizes, ...]:
    """One large shape for a spec without `performance`."""
    return (_filled(symbols, _PERFORMANCE_ELEMENTS, step=0),)


def _filled(symbols: Sequence[str], elements: int, step: int) -> Sizes:
    """About equal sizes that multiply to about `elements`."""
    length = round(elements ** (1 / max(len(symbols), 1)))
    values = [length + step * i for i in range(len(symbols))]
    return tuple((name, (n,) if name == ELLIPSIS else n) for name, n in zip(symbols, values, strict=True))


def rounded(sizes: Sizes, divisors: Mapping[str, int]) -> Sizes:
    """The sizes, those that are to be divisible made so by adding what lacks."""
    return tuple(
        (name, -(-value // divisors.get(name, 1)) * divisors.get(name, 1) if isinstance(value, int) else value)
        for name, value in sizes
    )


def label(sizes: Sizes, dtypes: Binding, given: Given = ()) -> str:
    """`[512, 512] D=512 float16 causal=True without bias`; dtype variables are named only where there are several."""
    shown = [str(list(value)) if isinstance(value, tuple) else f"{name}={value}" for name, value in sizes]
    shown += [dtype if len(dtypes) == 1 else f"{name}={dtype}" for name, dtype in dtypes]
    shown += [f"without {name}" if value is None else f"{name}={value}" for name, value in given]
    return " ".join(shown) or "the only case"


def limited(bindings: Sequence[Binding], limits: Mapping[str, Sequence[str]]) -> tuple[Binding, ...]:
    """The bindings in which every limited variable has one of its listed dtypes."""
    return tuple(b for b in bindings if all(value in limits.get(name, (value,)) for name, value in b))


def admitted(
    spec: OperatorSpec, shapes: Sequence[tuple[Place, Sizes]], bindings: Sequence[Binding], *, derived: bool = False
) -> tuple[tuple[Case, ...], list[Finding]]:
    """The cases that the constraints admit, and a finding for each shape that is admitted with no dtypes at all.
    Each is called in every way that the operator can be. `derived`: no spec lists the shapes."""
    ways = combinations(spec)
    cases: list[Case] = []
    findings: list[Finding] = []
    for place, sizes in shapes:
        bound = [Case(sizes, d, label(sizes, d, way), derived, way, place) for d in bindings for way in ways]
        fitting = [case for case in bound if not any(_violations(spec, case))]
        cases += fitting
        if not fitting:
            findings += [(place, message) for message in _violations(spec, bound[0])]
    return tuple(cases), findings


def admits(spec: OperatorSpec, sizes: Sizes) -> bool:
    """Whether the constraints hold for sizes, with the first dtype of every variable, in some way of calling."""
    cases = (Case(sizes, spec.dtype_bindings()[0], given=way) for way in combinations(spec))
    return any(not any(_violations(spec, case)) for case in cases)


def usual_sizes(spec: OperatorSpec) -> dict[str, SizeValue]:
    """A size for every name that the inputs' shapes have, and for "...": such as the constraints admit, if any of the
    spec's own are."""
    names = dict.fromkeys(name for t in spec.inputs for entry in t.shape for name in names_in(entry))
    usual: dict[str, SizeValue] = {name: (3,) if name == ELLIPSIS else 129 for name in names}
    known = (dict(case.sizes) for case in (*spec.accuracy, *spec.performance))
    return next((one for one in (usual, *known) if admits(spec, tuple(one.items()))), usual)


def turning(numbers: Iterable[int]) -> tuple[int, ...]:
    """Sizes beyond the small ones about which a condition in which these numbers stand may turn: those next to each of
    them, and one beyond their product, as of N // 100 > 50. Beyond 2**24 are limits of torch's, as quantile has one."""
    own = sorted({abs(n) for n in numbers} - {0, 1})
    near = {n + step for n in own for step in (-1, 0, 1)} | {math.prod(own) + 1}
    return tuple(sorted(n for n in near if 128 < n <= 1 << 24))


def _impossible(spec: OperatorSpec, case: Case) -> Iterator[str]:
    """A message for each size of an input that follows from others and is none."""
    for tensor in spec.inputs:
        for entry in filter(follows, tensor.shape):
            try:
                (size,) = case.shape((entry,))
            except ZeroDivisionError:
                yield f"the size '{entry}' of {tensor.name} divides by zero for these sizes"
                continue
            if size < 0:
                yield f"the size '{entry}' of {tensor.name} is {size} for these sizes"


def _violations(spec: OperatorSpec, case: Case) -> Iterator[str]:
    """A message for each constraint that a case breaks."""
    if impossible := list(_impossible(spec, case)):
        yield from impossible
        return
    tensors: dict[str, object] = {t.name: Layout(case.shape(t.shape), case.dtype(t.dtype)) for t in spec.tensors}
    tensors |= dict(case.given)
    for constraint in spec.constraints:
        reason = broken(constraint.text, tensors)
        if reason is not None:
            yield f"the constraint '{constraint.text}' {reason} for these sizes"

"""Is the reference worth being judged against? What a kernel could get away with because of the spec itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from . import guards, inputs
from .eager import InOrder
from .model import Case, Operator
from .oracle import as_tuple

LEAST = 16
"""Output elements below which everything looks constant."""
MOST = 2**20
"""Elements of the largest tensor that is worth the time."""

Outputs = tuple[torch.Tensor, ...]


def reference_lint(operator: Operator, cases: Sequence[Case], device: str, seed: int) -> list[str]:
    """One line for each way in which the reference makes cheating easy; empty for a sound one.

    Looked at on the smallest listed case that is large enough, with every distribution of the inputs; what is found
    there counts if no larger case denies it.
    """
    fit = _cases(operator, cases)
    if not fit:
        return []
    case, found = fit[0], list[str]()
    try:
        if not _repeats(operator, case, seed, device):
            return [f"reference: two calls on the same inputs differ ({case.label})"]
        found = _findings(operator, case, device, seed)
        for case in fit[1:]:  # with one key, attention depends on no query
            if not found:
                break
            again = _findings(operator, case, device, seed)
            found = [line for line in found if line in again]
        # a copy that fits in one case only, as a row that is expanded once, is no copy
        copies = [set(_identity(operator, one, seed, device)) for one in (fit[0], fit[-1])]
        return [f"reference: {line}" for line in [*found, *sorted(copies[0] & copies[1])]]
    except (RuntimeError, ValueError, IndexError) as error:  # the case itself will say so
        return [f"reference: cannot be computed at {case.label}: {str(error).splitlines()[0]}"]


def _cases(operator: Operator, cases: Sequence[Case]) -> list[Case]:
    """The cases with enough results to look at that are worth their time, the smallest first."""

    def size(case: Case) -> int:
        return max(math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs))

    def results(case: Case) -> int:
        return min(math.prod(case.shape(t)) for t in operator.outputs)

    fit = [case for case in cases if size(case) <= MOST and results(case)]
    # where everything is reduced to a number, many elements of the inputs have to do
    large = [case for case in fit if results(case) >= LEAST] or [case for case in fit if size(case) >= LEAST] or fit
    return sorted(large, key=size)


def _findings(operator: Operator, case: Case, device: str, seed: int) -> list[str]:
    operator = operator.at(case)
    made = [_made(operator, case, distribution, seed, device) for distribution in inputs.DISTRIBUTIONS]
    results = [_run(operator, arguments) for arguments in made]
    lines = _constant(operator, results)
    for position, tensor in enumerate(operator.inputs):
        if not tensor.like and _insensitive(operator, case, made, results, position, seed, device):
            lines.append(
                f"no result depends on the values of {tensor.name}; declare `role: like` if only its shape matters"
            )
    return lines


def _made(operator: Operator, case: Case, distribution: str, seed: int, device: str) -> list[torch.Tensor]:
    return [b.view for b in inputs.make(operator, case, distribution=distribution, seed=seed, device=device)]


def _run(operator: Operator, arguments: Sequence[torch.Tensor]) -> Outputs:
    with torch.no_grad(), InOrder():
        return tuple(output.clone() for output in as_tuple(operator.pure(*arguments)))


def _repeats(operator: Operator, case: Case, seed: int, device: str) -> bool:
    operator = operator.at(case)
    arguments = _made(operator, case, "normal", seed, device)
    first, again = (guards.fingerprints(_run(operator, arguments)) for _ in range(2))
    return first == again


def _constant(operator: Operator, results: Sequence[Outputs]) -> list[str]:
    """Outputs whose elements are all the same, whatever the inputs."""
    lines = []
    for i, tensor in enumerate(operator.outputs):
        values = torch.cat([result[i].double().reshape(-1) for result in results])
        numbers = values[~values.isnan()]
        if len(values) >= LEAST and len(numbers) and bool((numbers == numbers[0]).all()):
            lines.append(f"{tensor.name} is {float(numbers[0]):g} everywhere, whatever the inputs")
    return lines


def _insensitive(
    operator: Operator,
    case: Case,
    made: Sequence[list[torch.Tensor]],
    results: Sequence[Outputs],
    position: int,
    seed: int,
    device: str,
) -> bool:
    """Other values of one input change nothing, with any distribution."""
    for distribution, arguments, result in zip(inputs.DISTRIBUTIONS, made, results, strict=True):
        other = _made(operator, case, distribution, inputs.derive_seed(seed, "lint"), device)[position]
        changed = _run(operator, [*arguments[:position], other, *arguments[position + 1 :]])
        if guards.fingerprints(changed) != guards.fingerprints(result):
            return False
    return True


def _identity(operator: Operator, case: Case, seed: int, device: str) -> list[str]:
    """Outputs that equal an input on ordinary inputs."""
    operator = operator.at(case)
    arguments = _made(operator, case, "normal", seed, device)
    return [
        f"{output.name} equals {tensor.name} on normal inputs: a copy would pass them"
        for output, got in zip(operator.outputs, _run(operator, arguments), strict=True)
        for tensor, x in zip(operator.inputs, arguments, strict=True)
        if not tensor.like and got.shape == x.shape and got.dtype == x.dtype and torch.equal(got, x)
    ]

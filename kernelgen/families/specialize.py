"""Kernels that are compiled for every row length: what Triton then knows as a constant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from kernelgen.families.kernel import Passed
from kernelgen.plan import Parameter, Schedule

SPECIALIZE = Parameter(
    "specialize", (False, True), "grid_config", "structure",
    "a kernel compiled for every row length: no masks where blocks fit it, walks unrolled",
)  # fmt: skip


def specialized(
    schedule: Schedule,
    arguments: Sequence[str],
    constexprs: tuple[str, ...],
    also: Collection[str] = (),
    strides: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Passed, ...]]:
    """The arguments and the constexprs of a kernel and what its launch passes beside these: where one is compiled for
    every row length, that is a constexpr, and so are the sizes and strides that `also` names. `strides`: the wrapper's
    expressions for these."""
    if not schedule.get("specialize"):
        return tuple(arguments), constexprs, ()
    compiled = tuple(a for a in arguments if a == "N" or a in also)
    passed = tuple(Passed(name, strides.get(name, name)) for name in compiled if name != "N")
    return tuple(a for a in arguments if a not in compiled), (*compiled, *constexprs), passed

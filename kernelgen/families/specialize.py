"""Kernels that are compiled for every row length: what Triton then knows as a constant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from kernelgen.plan import Parameter, Schedule
from kernelgen.tile import ir

SPECIALIZE = Parameter(
    "specialize", (False, True), "grid_config", "structure",
    "a kernel compiled for every row length: no masks where blocks fit it, walks unrolled",
)  # fmt: skip


def specialized(
    schedule: Schedule,
    arguments: Sequence[str],
    constexprs: Sequence[str | ir.Given],
    also: Collection[str] = (),
    strides: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[str, ...], tuple[ir.Given, ...]]:
    """The arguments and the constexprs of a kernel: where one is compiled for every row length, that is a constexpr,
    and so are the sizes and strides that `also` names. `constexprs`: those that it has anyway, names alone where the
    table's line says them; `strides`: the wrapper's expressions for these."""
    given = tuple((c, None) if isinstance(c, str) else c for c in constexprs)
    if not schedule.get("specialize"):
        return tuple(arguments), given
    compiled = tuple(a for a in arguments if a == "N" or a in also)
    known = tuple((name, strides.get(name, name)) for name in compiled)
    return tuple(a for a in arguments if a not in compiled), (*known, *given)

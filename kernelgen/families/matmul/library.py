"""Torch's own product, where it is faster, and what follows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kernelgen.families.matmul import row_parts
from kernelgen.families.matmul.kernels import after, left_by
from kernelgen.families.matmul.lowering import UNSCALED, ProductBody
from kernelgen.families.matmul.writer import Writer, extents_of, tiled_by_blocks
from kernelgen.families.values import Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

LIBRARY_CALL = "torch.matmul"


def by_library(
    spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str, made: Collection[str] = ()
) -> tuple[ir.Step, ...]:
    """Torch's product, then what follows it. `made`: factors that the wrapper has made itself."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    calls = [f"{body.library}({', '.join(_operands(writer, dot, made))})" for dot in body.dots]
    if not body.is_library:
        following = after(spec, body, schedule, name.replace("_kernel", "_after_kernel"))
        left = (left_by(writer, dot) for dot in body.dots)
        last = (row_parts.joined(spec, body, schedule, f"{spec.name}_join_kernel"),) if body.in_parts else ()
        return *map(ir.LibraryCall, [body.library] * len(calls), calls, left), following, *last
    return (ir.LibraryCall(body.library, calls[0], out=writer.shaped(body.layout.stores[0][1])),)


def _operands(writer: Writer, dot: int, made: Collection[str]) -> list[str]:
    """What torch's function for a product is called with."""
    body, operands = writer.body, []
    for number, wanted in zip(body.factors_of(dot), (["m", "k"], ["k", "n"]), strict=True):
        access = writer.reads[number]
        host = access.tensor if access.tensor in made else f"{writer.shaped(access)}.detach()"
        operands.append(host if extents_of(body, access)[-2:] == wanted else f"{host}.mT")
    if body.called not in body.dots:
        added = writer.reads[_added_load(body, body.called)]
        host = f"{writer.shaped(added)}.detach()"
        operands.insert(0, f"{host}.mT" if extents_of(body, added) == ["n", "m"] else host)
    return operands


@dataclass(frozen=True)
class Library:
    """What torch has for a product."""

    function: str
    value: int
    """The value that it computes."""
    is_all: bool
    """Whether that is all there is."""


def library(spec: OperatorSpec, body: ProductBody) -> Library | None:
    """Torch's function for the product of factors that lie in memory as two tensors with the same dimensions of a
    batch, what is added to it included: torch rounds the sum, and a product that was rounded before would be worse."""
    unlike = body.lowered.values[body.dot].attr == UNSCALED or "float8" in body.factor.dtype
    if unlike or spec.precision:  # torch rounds to the factors' dtype, has no product of float8
        return None
    by_load = {a.load: a for a in body.layout.accesses}
    factors = {*body.firsts, *body.seconds}
    if not factors <= by_load.keys() or not body.extent("m").runs:
        return None
    batch = ["batch"] * len(body.extent("batch").runs)
    single = all(len(e.runs) == 1 for e in body.layout.extents if e.runs and e.name != "batch")
    if not single or any(extents_of(body, by_load[i])[:-2] != batch for i in factors):
        return None
    added = None if batch or len(body.dots) > 1 else _sum(spec, body)
    stored, access = body.layout.stores[0]
    in_order = extents_of(body, access) == [e.name for e in body.layout.extents if e.name != "k" for _ in e.runs]
    same = next(o.dtype for o in spec.outputs if o.name == stored.name) == body.factor.dtype
    value = body.dot if added is None else added
    is_all = len(body.layout.stores) == len(body.dots) == 1 and in_order and same and stored.value == value
    return Library(LIBRARY_CALL if added is None else "torch.addmm", value, is_all)


def _sum(spec: OperatorSpec, body: ProductBody) -> int | None:
    """The sum of the product with a tensor of its dtype, where nothing else needs the product."""
    users = [i for i, v in enumerate(body.lowered.values) if Use(body.dot) in v.args]
    load = _added_load(body, users[0]) if len(users) == 1 else -1
    access = next((a for a in body.layout.accesses if a.load == load), None)
    if access is None or any(s.value == body.dot for s, _ in body.layout.stores):
        return None
    dtype = next(t.dtype for t in spec.inputs if t.name == access.tensor)
    fits = extents_of(body, access) in (["n"], ["m", "n"], ["n", "m"]) and dtype == body.factor.dtype
    return users[0] if fits else None


def _added_load(body: ProductBody, number: int) -> int:
    """What a value adds to the product, a load; -1 where it is no such sum."""
    value = body.lowered.values[number]
    others = [a.value for a in value.args if isinstance(a, Use) and a.value != body.dot]
    return others[0] if value.op == "add" and len(others) == 1 else -1

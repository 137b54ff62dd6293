"""Torch's own product, where it is faster, and what follows it."""

from __future__ import annotations

from kernelgen.families.matmul.kernels import Writer, extents_of, joined, memory_of, reduces, tiled_by_blocks
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.values import Stored, Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

LIBRARY_CALL = "torch.matmul"


def by_library(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """Torch's product, then what follows it."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    operands = []
    for number, wanted in zip(writer.factors(), (["m", "k"], ["k", "n"]), strict=True):
        access = writer.reads[number]
        host = f"{writer.host(access.tensor)}.detach()"
        operands.append(host if extents_of(body, access)[-2:] == wanted else f"{host}.mT")
    if not body.is_library:
        return (
            ir.LibraryCall(body.library, f"{body.library}({', '.join(operands)})", memory_of(spec)),
            joined(spec, body, schedule, name.replace("_kernel", "_after_kernel"), "1"),
        )
    stored, access = body.layout.stores[0]
    added = _addend(body, stored)
    if added is not None:
        operands.insert(0, f"{body.lowered.values[added].tensor}.detach()")
    sizes = ", ".join(writer.run_size(str(index)) for index, _ in access.terms)
    out = f"{access.tensor}.view({sizes})" if writer.is_merged(access.tensor, access) else access.tensor
    return (ir.LibraryCall(body.library, f"{body.library}({', '.join(operands)})", out=out),)


def library(spec: OperatorSpec, body: ProductBody) -> tuple[str, bool]:
    """Torch's function for the product of factors that lie in memory as two tensors with the same dimensions of a
    batch, and whether that is all there is, a bias included."""
    by_load = {a.load: a for a in body.layout.accesses}
    first, second = (a.value for a in body.lowered.values[body.dot].args if isinstance(a, Use))
    if not {first, second} <= by_load.keys() or not body.extent("m").runs or reduces(body):
        return "", False
    sides = [extents_of(body, by_load[i]) for i in (first, second)]
    batches = [["batch"] * len(body.extent("batch").runs)] * 2
    single = all(len(e.runs) == 1 for e in body.layout.extents if e.runs and e.name != "batch")
    if not single or [side[:-2] for side in sides] != batches:
        return "", False
    stored, access = body.layout.stores[0]
    in_order = extents_of(body, access) == [e.name for e in body.layout.extents if e.name != "k" for _ in e.runs]
    same = next(o.dtype for o in spec.outputs if o.name == stored.name) == body.factor.dtype
    if len(body.layout.stores) == 1 and in_order and same:
        if stored.value == body.dot:
            return LIBRARY_CALL, True
        added = _addend(body, stored)
        dtypes = {t.name: t.dtype for t in spec.inputs}
        if (
            added is not None
            and not batches[0]
            and dtypes.get(str(body.lowered.values[added].tensor)) == body.factor.dtype
        ):
            return "torch.addmm", True
    return LIBRARY_CALL, False


def _addend(body: ProductBody, stored: Stored) -> int | None:
    """The load of a bias of the columns, where an output is its sum with the product."""
    value = body.lowered.values[stored.value]
    if value.op != "add" or Use(body.dot) not in value.args:
        return None
    others = [a.value for a in value.args if isinstance(a, Use) and a.value != body.dot]
    access = next((a for a in body.layout.accesses if others == [a.load]), None)
    return access.load if access and extents_of(body, access) == ["n"] else None

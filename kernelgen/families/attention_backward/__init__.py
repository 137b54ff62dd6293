"""The gradients of attention: neither weights nor what they get are ever in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families.attention import LONGEST_WITH_GRADIENTS, limits, sizes_of, too_large
from kernelgen.families.attention.writer import boxable, multiplied_as, multiplied_dtype, reached, said_of_products
from kernelgen.families.attention_backward import kernels, lowering, schedules
from kernelgen.families.attention_backward.lowering import GradientBody
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body
from kernelgen.frontend.graph import Graph
from kernelgen.plan import Chip, Product, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "attention_backward"


def _own(body: Body) -> GradientBody:
    assert isinstance(body, GradientBody)
    return body


def _body(spec: OperatorSpec, graph: Graph) -> GradientBody:
    body = lowering.body(spec, graph)
    return replace(body, boxed=boxable(spec, body, body.factors()), precision=multiplied_as(spec, body))


def build(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """The kernel of a schedule; of boxes also the one that needs no descriptors."""
    own = _own(body)
    if schedule.variant == schedules.BOXES:
        plain = kernels.walked(spec, own, schedule, f"{spec.name}_pointers_kernel")
        return kernels.walked(spec, own, schedule, name, own.boxed), replace(plain, when_unfit=True)
    return (kernels.walked(spec, own, schedule, name),)


def _too_large(spec: OperatorSpec, body: Body) -> tuple[str, str]:
    return too_large(spec, body, LONGEST_WITH_GRADIENTS)


def _first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    return reached(_own(body), schedules.first_table(_own(body)))


def _starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    return schedules.starts(_own(body))


def _notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    own = _own(body)
    said = ["the weights are recomputed block by block from the logsumexp that the forward saved"]
    if own.rounds():
        said.append("results that are multiplied again are rounded first, as in the reference")
    return (*said, *said_of_products(spec, own))


def _products(spec: OperatorSpec, body: Body) -> tuple[Product, ...]:
    own = _own(body)
    of = {
        name: tuple(own.lowered.space.axes[a] for a in own.extent(name).axes)
        for name in ("batch", "shared", "m", "n", "d", "e")
    }
    batch, dtype, how = of["batch"] + of["shared"], multiplied_dtype(own), multiplied_as(spec, own)
    found = []
    for i in (*own.inner, *own.outer):
        own_axes = own.lowered.values[i].axes
        if i in own.inner:
            found.append(Product(own.names.of[i], batch, of["m"], of["n"], of["d"], dtype, precision=how))
        else:
            head = of["d"] if own_axes & set(own.extent("d").axes) else of["e"]
            found.append(Product(own.names.of[i], batch, of[own.kept], head, of[own.walked], dtype, precision=how))
    return tuple(found)


FAMILY = Family(
    NAME, lowering.takes, schedules.every(build), lambda body: schedules.variants(_own(body)), _first_table, _starts,
    body=_body, notes=_notes, too_large=_too_large, sizes=sizes_of, products=_products,
    limits=lambda spec, body: limits(body, LONGEST_WITH_GRADIENTS),
)  # fmt: skip

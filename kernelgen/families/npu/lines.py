"""Loads, indices and signatures of a kernel whose lanes count in int32 and whose masks are whole intervals."""

from __future__ import annotations

import math
from dataclasses import replace

from kernelgen.families.access import ROWS
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.build import COMPARISONS
from kernelgen.frontend.indices import Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.nest import Nest
from kernelgen.tile.places import Places, taken_apart


class PackedPlaces(Places):
    """Places that are read from memory are int32 like all others: the wrapper bounds what there is to number."""

    def loaded(self, i: int) -> ir.Expr:
        name, dtype = ir.Name(self.names.of[i], self.shape_of(i)), self.lowered.values[i].dtype
        narrow = dtype == "int32" or counts(self.lowered, i)
        return name if narrow else ir.Cast(name, "int32", is_tensor=True)

    def wide(self, expr: Expr) -> ir.Expr:
        return self.place(expr)


class PackedNest(Nest):
    """Kernels whose lanes count in int32."""

    places_type = PackedPlaces
    may_turn = False

    def __init__(self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule) -> None:
        super().__init__(spec, body, form, schedule)
        self.builder.by_rows = False  # triton-ascend 3.2.0 crashes on the exact division of two scalars

    def load(self, i: int, shape: ir.Shape) -> ir.Expr:
        found = super().load(i, shape)
        return ir.Cast(found, "int32", is_tensor=True) if counts(self.body.lowered, i) else found

    def row_indices(self) -> tuple[ir.Stmt, ...]:
        groups, rows = self.body.layout.rows, self.index(ROWS)
        return tuple(
            ir.Let((groups[position].index,), taken_apart(groups, position, rows))
            for position in range(len(groups) - 1, -1, -1)
            if groups[position] in self.body.layout.split
        )

    def wide_strides(self) -> tuple[ir.Stmt, ...]:
        return ()


def every(count: ir.Expr, name: str, inside: tuple[ir.Stmt, ...], comment: str) -> ir.For:
    """What one program a core does: every num_programs-th of the tiles that are counted."""
    return ir.For(name, ir.Program(0), count, ir.Programs(0), inside, comment=comment)


def counts(lowered: Lowered, i: int) -> bool:
    """Whether an int64 that is loaded is only compared, as the number of a class is with those of the columns, or only
    says where something else is read: it is then an int32 from the start, as those that it meets are."""
    value = lowered.values[i]
    consumers = [v.op for v in lowered.values if Use(i) in v.args]
    stored = any(o.value == i for o in lowered.outputs)
    loaded = value.op == "load" and value.dtype == "int64"
    return loaded and not stored and all(op in COMPARISONS or op == "load" for op in consumers)


def walked(kernel: ir.Kernel, schedule: Schedule, tiles: str, *, sizes: tuple[str, ...]) -> ir.Kernel:
    """A kernel's text as one program a core runs it; `tiles`: the wrapper's short expression for how many there are."""
    named = {"M", "N", "n_elements"}
    first = next((i for i, a in enumerate(kernel.arguments) if a.name in named), len(kernel.arguments))
    others = tuple(a for a in kernel.arguments if a.name not in named)
    counted = (ir.Argument(size, "number", size) for size in sizes)
    return replace(
        kernel,
        schedule=schedule,
        arguments=(*others[:first], *counted, *others[first:]),
        grid=(tiles if tiles == "1" else f"min({tiles}, num_cores())" if tiles else "num_cores()",),
    )


def column_elements(columns: int) -> int:
    """The lanes that hold a row: a power of two, as ranges of Triton are."""
    return 1 << max(columns - 1, 0).bit_length()


def floor_power(value: float) -> int:
    """The largest power of two that is not above a value of at least one."""
    return 1 << int(math.log2(max(value, 1)))

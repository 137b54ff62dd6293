"""Loads, indices and signatures of a kernel whose lanes count in int32 and whose masks are whole intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families import index_text
from kernelgen.families.access import ROWS
from kernelgen.families.forms import Form
from kernelgen.families.index_text import IndexText
from kernelgen.families.kernel import Body, KernelText, Lines, Passed
from kernelgen.families.line import call
from kernelgen.families.naming import COLUMN, FULL, mentions
from kernelgen.families.triton_text import Text, number
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.build import COMPARISONS
from kernelgen.frontend.indices import Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.nest import Nest
from kernelgen.tile.places import Places, taken_apart


class PackedIndexText(IndexText):
    """Places that are read from memory are int32 like all others: the wrapper bounds what there is to number."""

    def _text(self, expr: Expr, consumer: str) -> Text:
        if expr.op == "value":
            name, dtype = self.names.of[expr.number], self.lowered.values[expr.number].dtype
            narrow = dtype == "int32" or counts(self.lowered, expr.number)
            return Text(name if narrow else f"{name}.to(tl.int32)")
        return super()._text(expr, consumer)

    def wide(self, expr: Expr, consumer: str) -> Text:
        return self.text(expr, consumer)


class PackedLines(Lines):
    """Writes loads without narrowed masks: a lane that must not be read reads the tensor's first element instead.

    The hardware copies intervals. A mask that is not one is dropped by the compiler, which loads everything and selects
    afterwards, also from beyond the tensor.
    """

    index_type = PackedIndexText

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, helpers: dict[str, None]
    ) -> None:
        super().__init__(spec, body, form, schedule, helpers)
        self.writer.turned = False
        self.writer.by_rows = False  # triton-ascend 3.2.0 crashes on the exact division of two scalars

    def load(self, i: int, other: float) -> str:
        value, level = self.body.lowered.values[i], self.level(i)
        if not value.conditions and not self._steps(i):
            return super().load(i, other) + (".to(tl.int32)" if counts(self.body.lowered, i) else "")
        access, name = self.access[i], self.body.names.of[i]
        within = " & ".join(self.index_text.condition(c, level) for c in value.conditions)
        if len(value.conditions) == 1 and not self.two_d:
            within = within.removeprefix("(").removesuffix(")")
        offset = self.offset(access, level if self.form.has_rows else FULL) or "0"
        mask = self.mask(level)
        args = [f"{access.tensor}_ptr + {name}_offsets", *([f"mask={mask}"] if mask else [])]
        fill = None if value.fill is None else number(value.fill).text
        if fill is None and self.body.lowered.space.inner_axes() and level in (FULL, COLUMN):
            # what reduces or scans the row sees every lane
            fill = number(other).text if value.dtype == "float" else "0"
            args += [f"other={fill}"] if mask else []
        widen = value.dtype == "float" and not self.body.exact and self._narrow(access.tensor)
        chosen = f"{name}_within" if value.conditions else f"{mask}"
        cast = ".to(tl.float32)" if widen else ".to(tl.int32)" if counts(self.body.lowered, i) else ""
        lines = [
            *([f"{name}_within = {within}"] if value.conditions else []),
            call(f"{name}_offsets", "tl.where", [chosen, offset, "0"]),
            call(name, "tl.load", args, cast),
        ]
        if value.conditions and fill is not None:
            lines.append(call(name, "tl.where", [f"{name}_within", name, fill]))
        return "\n".join(lines)

    def _steps(self, i: int) -> bool:
        """Whether the columns that a load reads are some apart. triton-ascend 3.2.0 loses such a load where its rows
        are no interval either (it copies each row, and drops the copy), so it is told the place of every element."""
        found = [e for e in self.body.lowered.values[i].index if isinstance(e, Expr)]
        return any(self.index_text.level(e) == COLUMN and _has_product(e) for e in found)

    def _narrow(self, tensor: str) -> bool:
        return next(t for t in self.spec.inputs if t.name == tensor).dtype != "float32"

    def row_indices(self, used: Sequence[str] | None = None) -> list[str]:
        """The indices of single row groups, taken from the row number from the innermost outwards; `used`: lines that
        must mention them."""
        groups, wanted = self.body.layout.rows, self.body.layout.split
        lines = []
        for position in range(len(groups) - 1, -1, -1):
            index = groups[position].index
            if groups[position] in wanted and (used is None or mentions("\n".join(used), index)):
                lines.append(f"{index} = {index_text.taken_apart(groups, position, 'rows' if self.two_d else 'row')}")
        return lines

    def wide_strides(self) -> tuple[str, ...]:
        return ()


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


def _has_product(expr: Expr) -> bool:
    return expr.op == "*" or any(_has_product(arg) for arg in expr.args)


def walked(
    kernel: KernelText, schedule: Schedule, tiles: str, *, sizes: tuple[str, ...], passed: tuple[Passed, ...] = ()
) -> KernelText:
    """A kernel's text as one program a core runs it; `tiles`: the wrapper's short expression for how many there are."""
    named = {"M", "N", "n_elements"}
    first = next((i for i, a in enumerate(kernel.arguments) if a in named), len(kernel.arguments))
    others = tuple(a for a in kernel.arguments if a not in named)
    arguments = (*others[:first], *sizes, *others[first:])
    return replace(
        kernel,
        schedule=schedule,
        arguments=arguments,
        grid="(1,)" if tiles == "1" else f"(min({tiles}, num_cores()),)" if tiles else "(num_cores(),)",
        passed=passed,
        general=tuple(a for a in arguments if not a.endswith("_ptr") and not a.startswith("stride_")),
    )


def column_elements(columns: int) -> int:
    """The lanes that hold a row: a power of two, as tl.arange wants it."""
    return 1 << max(columns - 1, 0).bit_length()


def floor_power(value: float) -> int:
    """The largest power of two that is not above a value of at least one."""
    return 1 << int(math.log2(max(value, 1)))


__all__ = ["COLUMN", "PackedLines", "column_elements", "floor_power", "walked"]

"""Kernels of the IR as Triton."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from kernelgen.families.helpers import with_called
from kernelgen.families.line import LINE, fit
from kernelgen.families.triton_text import ATOM, PRODUCT, SUM, Text, number, operation, triton_dtype
from kernelgen.tile import ir

_REDUCTIONS = {"sum": "tl.sum", "max": "_nan_max", "min": "_nan_min", "prod": "tl.reduce"}
_WHOLE = {"cdiv": "tl.cdiv", "whole_min": "min"}


class Printer:
    """Prints one kernel; `helpers` collects the device functions that it calls."""

    def __init__(self, kernel: ir.Kernel, helpers: dict[str, None]) -> None:
        self.kernel = kernel
        self.helpers = helpers
        self.kinds = {a.name: a.kind for a in kernel.arguments}

    def source(self) -> str:
        """The function, from its decorator on, without a line break at its end."""
        arguments = [f"    {a.name}," for a in self.kernel.arguments]
        constexprs = [f"    {name}: tl.constexpr," for name, _ in self.kernel.constexprs]
        body = self.block(self.kernel.body, 4)
        return "\n".join(["@triton.jit", f"def {self.kernel.name}(", *arguments, *constexprs, "):", *body])

    def block(self, statements: Iterable[ir.Stmt], indent: int) -> list[str]:
        lines: list[str] = []
        for statement in statements:
            lines += self.statement(statement, indent)
        return lines

    def statement(self, statement: ir.Stmt, indent: int) -> list[str]:
        match statement:
            case ir.Let():
                return self._let(statement, indent)
            case ir.For():
                return self._loop(statement, indent)
            case ir.Store():
                args = [self._pointer(statement.pointer), self._spread(statement.value, statement.pointer.shape).text]
                args += [f"mask={self.text(statement.mask).text}"] if statement.mask else []
                return [fit(f"tl.store({', '.join(args)})", indent)]
            case ir.StoreBox():
                value = self._boxed(statement.box, self.text(statement.value))
                return [fit(f"{statement.box.tensor}.store({self._offsets(statement.box)}, {value})", indent)]

    def _let(self, let: ir.Let, indent: int) -> list[str]:
        """An assignment below the statement that it comes from, where that says something else."""
        line = f"{', '.join(let.names)} = {self.text(let.value).text}"
        said = re.sub(r"\W", "", let.comment.removeprefix("return "))
        same = said in (re.sub(r"\W", "", line), re.sub(r"\W", "", line.partition(" = ")[2]))
        comment = [] if same or not let.comment else textwrap.wrap(let.comment, LINE - indent - 4)
        return [*(f"{' ' * indent}# {text}" for text in comment), fit(line, indent)]

    def _loop(self, loop: ir.For, indent: int) -> list[str]:
        ends = [self.text(e).text for e in (loop.start, loop.stop, loop.step)]
        bounds = ends[1] if ends[0] == "0" and ends[2] == "1" else ", ".join(ends)
        head = f"tl.range({bounds}, flatten=True)" if loop.flatten else f"range({bounds})"
        comment = [f"{' ' * indent}# {loop.comment}"] if loop.comment else []
        return [*comment, f"{' ' * indent}for {loop.index} in {head}:", *self.block(loop.body, indent + 4)]

    def text(self, expr: ir.Expr) -> Text:
        match expr:
            case ir.Name():
                return Text(expr.text)
            case ir.Number():
                return number(expr.value)
            case ir.Apply():
                return self._apply(expr)
            case ir.Cast():
                arg = self.text(expr.arg)
                if not expr.shape:
                    return Text(f"tl.cast({arg.text}, {self._dtype(expr.dtype)})")
                return Text(f"{arg.within(ATOM)}.to({self._dtype(expr.dtype)})")
            case ir.Range():
                return Text(f"{self.text(expr.start).within(SUM)} + tl.arange(0, {expr.axis.block})", SUM)
            case ir.Program():
                return Text(f"tl.program_id({expr.dimension})")
            case ir.Zeros():
                return Text(f"tl.zeros({self._extents(expr.shape)}, {triton_dtype(expr.dtype)})")
            case ir.Reduce():
                return self._reduce(expr)
            case ir.Dot():
                precision = f", input_precision={expr.precision}" if expr.precision else ""
                a, b, carry = (self.text(e).text for e in (expr.a, expr.b, expr.carry))
                return Text(f"tl.dot({a}, {b}, {carry}{precision})")
            case ir.Transposed():
                return Text(f"{self.text(expr.arg).within(ATOM)}.T")
            case ir.Pointer():
                return Text(self._pointer(expr), SUM)
            case ir.Load():
                return self._load(expr)
            case ir.Box():
                loaded = f"{expr.tensor}.load({self._offsets(expr)})"
                flat = len(expr.offsets) > len(expr.shape)
                return Text(f"{loaded}.reshape({', '.join(a.block for a in expr.shape)})" if flat else loaded)
            case ir.Call():
                self.helpers[expr.helper] = None
                return Text(f"_{expr.helper}({', '.join(self.text(a).text for a in expr.args)})")

    def _spread(self, expr: ir.Expr, shape: ir.Shape) -> Text:
        """An operand among values of more axes."""
        text = self.text(expr)
        if len(shape) < 2 or not expr.shape or expr.shape == shape:
            return text
        places = ", ".join(":" if axis in expr.shape else "None" for axis in shape)
        return Text(f"{text.within(ATOM)}[{places}]")

    def _apply(self, expr: ir.Apply) -> Text:
        args = tuple(self._spread(a, expr.shape) for a in expr.args)
        if expr.op in _WHOLE:
            return Text(f"{_WHOLE[expr.op]}({', '.join(a.text for a in args)})")
        text, helpers = operation(expr.op, args)
        self.helpers.update(dict.fromkeys(helpers))
        return text

    def _reduce(self, expr: ir.Reduce) -> Text:
        function, more = _REDUCTIONS[expr.op], ""
        if function.startswith("_"):
            self.helpers[function[1:]] = None
        if expr.op == "prod":
            self.helpers["multiply"], more = None, ", combine_fn=_multiply"
        axis = expr.arg.shape.index(expr.axis)
        inner = self.text(expr.arg).text
        order = f"{inner}, axis={axis}{more}" if not more else f"{inner}, {axis}{more}"
        return Text(f"{function}({order})")

    def _load(self, load: ir.Load) -> Text:
        args = [self._pointer(load.pointer)]
        if load.mask is not None:
            args += [f"mask={self._spread(load.mask, load.shape).text}", f"other={load.other}"]
        args += [f'eviction_policy="{load.policy}"'] if load.policy else []
        return Text(f"tl.load({', '.join(args)})")

    def _pointer(self, pointer: ir.Pointer) -> str:
        parts = [f"{pointer.tensor}_ptr"]
        for index, stride in pointer.terms:
            factor = self._spread(index, pointer.shape)
            parts.append(factor.within(SUM) if stride is None else f"{factor.within(PRODUCT)} * {_factor(stride)}")
        return " + ".join(parts)

    def _offsets(self, box: ir.Box) -> str:
        return f"[{', '.join(self.text(o).text for o in box.offsets)}]"

    def _boxed(self, box: ir.Box, value: Text) -> str:
        """A value in the shape of a box."""
        ones = len(box.offsets) - len(box.shape)
        if not ones:
            return value.text
        return f"{value.within(ATOM)}.reshape({', '.join([*['1'] * ones, *(a.block for a in box.shape)])})"

    def _extents(self, shape: ir.Shape) -> str:
        blocks = [a.block for a in shape]
        return f"({blocks[0]},)" if len(blocks) == 1 else f"({', '.join(blocks)})"

    def _dtype(self, dtype: ir.Dtype) -> str:
        if isinstance(dtype, str):
            return triton_dtype(dtype)
        return (
            f"{dtype.tensor}_ptr.dtype.element_ty"
            if f"{dtype.tensor}_ptr" in self.kinds
            else f"{dtype.tensor}_desc.dtype"
        )


def _factor(stride: str) -> str:
    return f"({stride})" if " " in stride and not re.fullmatch(r"[\w* ]+", stride) else stride


def sources(kernels: Sequence[ir.Kernel]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The text of every kernel by its name, and the device functions that they call, in the order of the file."""
    helpers: dict[str, None] = {}
    texts = {kernel.name: Printer(kernel, helpers).source() for kernel in kernels}
    return texts, with_called(helpers)

"""Kernels of the IR as Triton."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from kernelgen.backends import scatters
from kernelgen.backends.triton_text import (
    ATOM,
    BITAND,
    PRODUCT,
    SUM,
    Text,
    growing_call,
    number,
    operation,
    scan_call,
    triton_dtype,
)
from kernelgen.families.helpers import with_called
from kernelgen.families.line import LINE, fit
from kernelgen.families.naming import INFINITY
from kernelgen.families.values import REVERSE
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.tile import ir
from kernelgen.tile.walk import assigned_names, parts_of

_WHOLE = {"cdiv": "tl.cdiv", "whole_min": "min", "whole_max": "max"}
_COMBINED = {"prod": "multiply", "log_add_exp": "log_add_exp"}
"""What elements are joined with where Triton has no reduction for it."""
_WIDEST = LINE - 8
"""Beyond that a line is cut in parts that have names."""


class Printer:
    """Prints one kernel; `helpers` collects the device functions that it calls."""

    def __init__(self, kernel: ir.Kernel, helpers: dict[str, None]) -> None:
        self.kernel = kernel
        self.helpers = helpers
        self.kinds = {a.name: a.kind for a in kernel.arguments}
        self.taken = {*self.kinds, *assigned_names(kernel.body)}
        self.cut: dict[ir.Part, str] = {}
        """The parts of a long line that have lines of their own, and what they are called."""
        self.texts: dict[ir.Part, Text] = {}
        """Those that have none, as they are written out, while their lengths are compared."""

    def source(self) -> str:
        """The function, from its decorator on, without a line break at its end."""
        said = {INFINITY: "  # an argument: as a constant in float16 ptxas 12.8 to 13.1 may lose its sign"}
        arguments = [f"    {a.name},{said.get(a.name, '')}" for a in self.kernel.arguments]
        remark = {"N": "  # compiled for each row length"}
        constexprs = [f"    {name}: tl.constexpr,{remark.get(name, '')}" for name, _ in self.kernel.constexprs]
        body = self.block(self.kernel.body, 4)
        return "\n".join([self.decorator(), f"def {self.kernel.name}(", *arguments, *constexprs, "):", *body])

    def decorator(self) -> str:
        if not self.kernel.unaligned:
            return "@triton.jit"
        why = "# with several columns per thread, loads of adjacent threads would not coalesce\n"
        names = [f'"{name}"' for name in self.kernel.unaligned]
        said = f"do_not_specialize_on_alignment=[{', '.join(names)}]"
        if len(said) + 4 > LINE:
            said = "".join(["do_not_specialize_on_alignment=[\n", *(f"        {name},\n" for name in names), "    ]"])
        elif len(said) + len("@triton.jit()") <= LINE:
            return f"{why}@triton.jit({said})"
        return f"{why}@triton.jit(\n    {said}\n)"

    def block(self, statements: Iterable[ir.Stmt], indent: int) -> list[str]:
        """Statements; a remark stands apart from what comes before it."""
        lines: list[str] = []
        before: ir.Stmt | None = None
        for statement in statements:
            apart = isinstance(statement, ir.Remark) and statement.apart
            if apart and before is not None and not isinstance(before, ir.Remark):
                lines.append("")
            lines += self.statement(statement, indent)
            before = statement
        return lines

    def statement(self, statement: ir.Stmt, indent: int) -> list[str]:
        match statement:
            case ir.Remark():
                return [f"{' ' * indent}# {line}" for line in statement.lines]
            case ir.Let():
                return self._said(statement.comment, self._let(statement), indent, statement.aside)
            case ir.Update():
                return self._said(statement.comment, self._updated(statement), indent, statement.aside)
            case ir.For():
                return self._loop(statement, indent)
            case ir.If() | ir.While():
                word = "if" if isinstance(statement, ir.If) else "while"
                head = fit(f"{word} {self.text(statement.condition).text}:", indent)
                return [head, *self.block(statement.body, indent + 4)]
            case ir.When():
                return self._when(statement, indent)
            case ir.Scatter():
                return scatters.body(statement, indent, self.helpers)
            case ir.Barrier():
                return self._said("", ["tl.debug_barrier()"], indent, statement.aside)
            case ir.Do():
                return [fit(self.text(statement.call).text, indent)]
            case ir.Store():
                args = [self._pointer(statement.pointer), self._stored(statement.value, statement.pointer.shape)]
                if statement.mask is not None:
                    args.append(f"mask={self._spread(statement.mask, statement.pointer.shape).text}")
                args += ['cache_modifier=".cs"'] if statement.streams else []
                return [fit(f"tl.store({', '.join(args)})", indent)]
            case ir.StoreBox():
                value = self._boxed(statement.box, self.text(statement.value))
                return [fit(f"{statement.box.tensor}.store({self._offsets(statement.box)}, {value})", indent)]

    def _said(self, comment: str, lines: list[str], indent: int, aside: str = "") -> list[str]:
        """Lines below the statement that they come from, where that says something else."""
        said = re.sub(r"\W", "", comment.removeprefix("return "))
        same = any(said in (re.sub(r"\W", "", t), re.sub(r"\W", "", t.partition(" = ")[2])) for t in lines)
        above = [] if same or not comment else textwrap.wrap(comment, min(LINE - 8, LINE - indent - 2))
        if aside and len(lines) == 1 and indent + len(f"{lines[0]}  # {aside}") <= LINE:
            lines = [f"{lines[0]}  # {aside}"]
        elif aside:
            above.append(aside)
        return [*(f"{' ' * indent}# {text}" for text in above), *(fit(line, indent) for line in lines)]

    def _let(self, let: ir.Let) -> list[str]:
        if isinstance(let.value, ir.Tuple) and len(let.names) > 1:
            return [f"{', '.join(let.names)} = {', '.join(self.text(item).text for item in let.value.items)}"]
        return self._assigned(", ".join(let.names), let.value, let.names[0])

    def _assigned(self, target: str, value: ir.Expr, stem: str) -> list[str]:
        """An assignment. Of one that is too long for a line, parts get lines of their own, and names: those of the
        reference first, then reductions, else the longest."""
        text = self.text(value).text
        if len(f"{target} = {text}") <= _WIDEST or not (parts := parts_of(value, self.cut)):
            return [f"{target} = {text}"]
        part = next((part for part in parts if part.is_variable), None) or self._longest(parts, len(text))
        label = part.name or self._label(f"{stem}_{part.noun}")
        first = self._assigned(label, part.value, label)
        self.cut[part] = label
        return [*first, *self._assigned(target, value, stem)]

    def _longest(self, parts: Sequence[ir.Part], whole: int) -> ir.Part:
        """The longest of those that have a name, or else of all, if it is shorter than the whole."""
        for part in reversed(parts):  # a part's own parts are behind it
            self.texts[part] = self.text(part)
        lengths = [(len(self.texts[part].text), part) for part in parts]
        self.texts = {}
        shorter = [(length if length < whole else 0, part) for length, part in lengths]
        return max([found for found in shorter if found[0] and found[1].name] or shorter, key=lambda found: found[0])[1]

    def _label(self, wanted: str) -> str:
        """A name for a part of a line that nothing else has."""
        label, number = wanted, 2
        while label in self.taken:
            label, number = f"{wanted}_{number}", number + 1
        self.taken.add(label)
        return label

    def _updated(self, update: ir.Update) -> list[str]:
        line = f"{update.name} {OPERATIONS[update.op].sign}= {self.text(update.value).text}"
        whole = ir.Apply(update.op, (ir.Name(update.name, update.value.shape), update.value), update.value.shape)
        fits = len(line) <= _WIDEST or not parts_of(update.value, self.cut)
        return [line] if fits else self._assigned(update.name, whole, update.name)

    def _stored(self, value: ir.Expr, shape: ir.Shape) -> str:
        """A value in the shape in which it is stored."""
        text = self._spread(value, shape).text
        return f"tl.broadcast_to({text}, {self._extents(shape)})" if len(shape) > 1 and value.shape != shape else text

    def _loop(self, loop: ir.For, indent: int) -> list[str]:
        ends = [self.text(e).text for e in (loop.start, loop.stop, loop.step)]
        ends = ends[: 3 - (ends[2] == "1")]
        bounds = ", ".join(ends[1:] if len(ends) == 2 and ends[0] == "0" else ends)
        head = f"tl.range({bounds}, flatten=True)" if loop.flatten else f"range({bounds})"
        head = f"tl.range({bounds}, num_stages={loop.stages})" if loop.stages else head
        head = f"tl.static_range({bounds})" if loop.unroll else head
        comment = [f"{' ' * indent}# {loop.comment}"] if loop.comment else []
        before = dict(self.cut)  # what a turn names is not known after the loop, nor in another one
        body = self.block(loop.body, indent + 4)
        self.cut = before
        return [*comment, fit(f"for {loop.index} in {head}:", indent), *body]

    def _when(self, when: ir.When, indent: int) -> list[str]:
        lines: list[str] = []
        before = dict(self.cut)
        for condition, body in when.choices:
            word = "elif" if lines else "if"
            lines.append(fit(f"{word} {condition}:" if condition else "else:", indent))
            lines += self.block(body, indent + 4)
            self.cut = dict(before)
        return lines

    def text(self, expr: ir.Expr) -> Text:
        match expr:
            case ir.Name():
                return Text(expr.text)
            case ir.Number():
                return number(expr.value)
            case ir.Size():
                return Text(expr.text, SUM if " " in expr.text else ATOM)
            case ir.Part():
                own = self.texts.get(expr)
                return Text(self.cut[expr]) if expr in self.cut else own or self.text(expr.value)
            case ir.Apply():
                return self._apply(expr)
            case ir.Cast():
                arg = self.text(expr.arg)
                if not expr.shape and not expr.is_tensor:
                    return Text(f"tl.cast({arg.text}, {self._dtype(expr.dtype)})")
                return Text(f"{arg.within(ATOM)}.to({self._dtype(expr.dtype)})")
            case ir.Range() if expr.start == ir.Number(0):
                return Text(f"tl.arange(0, {expr.axis.block})")
            case ir.Range():
                return Text(f"{self.text(expr.start).within(SUM)} + tl.arange(0, {expr.axis.block})", SUM)
            case ir.Program():
                return Text(f"tl.program_id({expr.dimension})")
            case ir.Programs():
                return Text(f"tl.num_programs({expr.dimension})")
            case ir.Zeros():
                return Text(f"tl.zeros({self._extents(expr.shape)}, {triton_dtype(expr.dtype)})")
            case ir.Full():
                value = self.text(expr.value).text
                return Text(f"tl.full({self._extents(expr.shape)}, {value}, {self._dtype(expr.dtype)})")
            case ir.Paired() | ir.Unpaired() | ir.Split() | ir.Join() | ir.Tuple() | ir.Item():
                return self._of_several(expr)
            case ir.Contiguous():
                width = f"{8 * expr.size} // {expr.tensor}_ptr.dtype.element_ty.primitive_bitwidth"
                return Text(f"tl.max_contiguous({self.text(expr.arg).text}, {width})")
            case ir.Reduce():
                return self._reduce(expr)
            case ir.Scan():
                return self._scan(expr)
            case ir.Dot():
                precision = f", input_precision={expr.precision}" if expr.precision else ""
                promoted = f", max_num_imprecise_acc={expr.promoted}" if expr.promoted else ""
                operands = ", ".join(self.text(e).text for e in (expr.a, expr.b, expr.carry) if e is not None)
                return Text(f"tl.dot({operands}{precision}{promoted})")
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
                return self._called("", expr.helper, expr.args, own=False)
            case ir.Limit():
                self.helpers[expr.helper] = None
                return Text(f"_{expr.helper}({self._dtype(expr.dtype)})")

    def _of_several(self, expr: ir.Paired | ir.Unpaired | ir.Split | ir.Join | ir.Tuple | ir.Item) -> Text:
        """What is put together of values, or taken apart."""
        match expr:
            case ir.Paired():
                parts = ", ".join(self._stored(part, expr.of) for part in (expr.even, expr.odd))
                return Text(f"tl.reshape(tl.join({parts}), {expr.shape[-1].mask}.shape)")
            case ir.Unpaired():
                return Text(f"tl.split(tl.reshape({self.text(expr.pairs).text}, {self._extents(expr.shape, '2')}))")
            case ir.Split():
                (count,) = (axis.block for axis in expr.arg.shape[-1:])
                return self._called("tl.split", f"split_{count}", [expr.arg], int(count) == 2)
            case ir.Join():
                return self._called("tl.join", f"join_{len(expr.parts)}", expr.parts, len(expr.parts) == 2)
            case ir.Tuple():
                items = ", ".join(self.text(item).text for item in expr.items)
                return Text(f"({items}{',' if len(expr.items) == 1 else ''})")
            case ir.Item():
                return Text(f"{expr.name.text}[{self.text(expr.number).text}]")

    def _called(self, function: str, helper: str, args: Sequence[ir.Expr], own: bool) -> Text:
        """A call of a function of Triton's own, or of a device function."""
        if not own:
            function, self.helpers[helper] = f"_{helper}", None
        return Text(f"{function}({', '.join(self.text(a).text for a in args)})")

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
        function, args = f"tl.{expr.op}", [self.text(expr.arg).text]
        if expr.op in ("argmax", "argmin", "size_max") or (expr.op in ("max", "min") and expr.keeps_nan):
            helper = expr.op if expr.op not in ("max", "min") else f"nan_{expr.op}"
            function, self.helpers[helper] = f"_{helper}", None
        if expr.numbers is not None:
            args.append(self._spread(expr.numbers, expr.arg.shape).text)
        if expr.op in _COMBINED:
            function, self.helpers[_COMBINED[expr.op]] = "tl.reduce", None
            args.append(f"combine_fn=_{_COMBINED[expr.op]}")
        return Text(f"{function}({', '.join([*args, f'axis={expr.arg.shape.index(expr.axis)}'])})")

    def _scan(self, expr: ir.Scan) -> Text:
        inner, axis = self.text(expr.arg).text, f"axis={expr.shape.index(expr.axis)}"
        direction = REVERSE if expr.reverse else None
        if expr.after:
            before = tuple(self.text(e).text for e in expr.after)
            text, helpers = growing_call((inner, *before, axis), direction)
        elif not expr.is_turned:
            text, helpers = scan_call(expr.op, expr.dtype, (inner, axis), direction, pairs=expr.in_pairs)
        else:
            text, helpers = scan_call(expr.op, expr.dtype, (f"_turned({inner})", axis), None)
            text, helpers = Text(f"_turned({text.text})"), ("from_end", "turned", *helpers)
        self.helpers.update(dict.fromkeys(helpers))
        return text

    def _load(self, load: ir.Load) -> Text:
        pointer = self._pointer(load.pointer)
        parts = _together([*([load.mask] if load.mask is not None else []), *load.within], load.shape)
        if load.within and load.mask is not None and len(load.shape) != len(_moving(load.pointer)):
            pointer = f"tl.broadcast_to({pointer}, {self.text(load.mask).text}.shape)"
        args = [pointer]
        if parts:
            binding = BITAND if len(parts) > 1 else 0
            args.append(f"mask={' & '.join(self._spread(part, load.shape).within(binding) for part in parts)}")
            other = load.other if load.fill is None else load.fill
            args += [f"other={self.constant(other).text}"] if other is not None else []
        args += [f'eviction_policy="{load.policy}"'] if load.policy else []
        return Text(f"tl.load({', '.join(args)})")

    def constant(self, value: ir.Expr | float | int | bool) -> Text:
        """A number, or what stands for one."""
        return number(value) if isinstance(value, int | float) else self.text(value)

    def _pointer(self, pointer: ir.Pointer) -> str:
        found = self._spread(pointer.base, pointer.shape).text if pointer.base else f"{pointer.tensor}_ptr"
        for index, stride in pointer.terms:
            sign = "-" if _is_negative(index) else "+"
            factor = self._spread(_size_of(index), pointer.shape)
            if stride is None:
                term = factor.within(SUM + (sign == "-"))
            else:
                term = _factor(stride) if factor.text == "1" else f"{factor.within(PRODUCT)} * {_factor(stride)}"
            found += f" {sign} {term}"
        return found

    def _offsets(self, box: ir.Box) -> str:
        return f"[{', '.join(self.text(o).text for o in box.offsets)}]"

    def _boxed(self, box: ir.Box, value: Text) -> str:
        """A value in the shape of a box."""
        ones = len(box.offsets) - len(box.shape)
        if not ones:
            return value.text
        return f"{value.within(ATOM)}.reshape({', '.join([*['1'] * ones, *(a.block for a in box.shape)])})"

    def _extents(self, shape: ir.Shape, *more: str) -> str:
        blocks = [*(a.block for a in shape), *more]
        return f"({blocks[0]},)" if len(blocks) == 1 else f"({', '.join(blocks)})"

    def _dtype(self, dtype: ir.Dtype) -> str:
        if isinstance(dtype, str):
            return triton_dtype(dtype)
        if isinstance(dtype, ir.DtypeOf):
            return f"{self.text(dtype.value).within(ATOM)}.dtype"
        return (
            f"{dtype.tensor}_ptr.dtype.element_ty"
            if f"{dtype.tensor}_ptr" in self.kinds
            else f"{dtype.tensor}_desc.dtype"
        )


def _moving(pointer: ir.Pointer) -> set[ir.Axis]:
    """The axes along which its places differ."""
    return {axis for index, _ in pointer.terms for axis in index.shape} | {
        *(pointer.base.shape if pointer.base else ())
    }


def _together(conditions: Sequence[ir.Expr], shape: ir.Shape) -> list[ir.Expr]:
    """Conditions of a tile, of which neighbours along the same axes are one, which is spread over the tile once."""
    found: list[ir.Expr] = []
    for part in conditions:
        if found and part.shape == found[-1].shape != shape and len(shape) > 1:
            found[-1] = ir.Apply("and", (found[-1], part), part.shape)
        else:
            found.append(part)
    return found


def _is_negative(index: ir.Expr) -> bool:
    return (isinstance(index, ir.Number) and index.value < 0) or (isinstance(index, ir.Apply) and index.op == "neg")


def _size_of(index: ir.Expr) -> ir.Expr:
    """An index without its sign."""
    if isinstance(index, ir.Number):
        return ir.Number(abs(index.value))
    return index.args[0] if isinstance(index, ir.Apply) and index.op == "neg" else index


def _factor(stride: str) -> str:
    return f"({stride})" if " " in stride and not re.fullmatch(r"[\w* ]+", stride) else stride


def sources(kernels: Sequence[ir.Kernel]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The text of every kernel by its name, and the device functions that they call, in the order of the file."""
    helpers: dict[str, None] = {}
    texts = {kernel.name: Printer(kernel, helpers).source() for kernel in kernels}
    return texts, with_called(helpers)

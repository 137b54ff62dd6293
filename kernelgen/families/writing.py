"""The statements of a kernel: values as lines, in which order, under which comment.

Comments quote the reference's statement unless the line says the same.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kernelgen.families.folding import choice, is_counted, is_number, is_size
from kernelgen.families.index_text import IndexText
from kernelgen.families.line import LINE
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR, Names, spread
from kernelgen.families.padding import harmless, neutral
from kernelgen.families.quotients import SMALL, at_least
from kernelgen.families.triton_text import (
    ATOM,
    Text,
    growing_call,
    number,
    operation,
    scan_call,
    scan_join,
    triton_dtype,
)
from kernelgen.families.values import REVERSE, Length, Lowered, Operand, Use, Value
from kernelgen.frontend.build import COMPARISONS
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS, SCANS, Statement
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.masks import OPERATION
from kernelgen.frontend.operations import NOUNS


@dataclass(frozen=True)
class Mode:
    """How the levels of values map to Triton's ranks in one variant of a template."""

    two_d: bool
    """Full values are [rows, columns]; otherwise a row value is a scalar and a full one is a vector."""
    axis: int = 0
    """The axis that reductions run over."""


@dataclass
class Writer:
    """Writes the lines of one kernel. `load` gives the lines of a load; `helpers` collects what the lines call."""

    lowered: Lowered
    names: Names
    mode: Mode
    statements: Sequence[Statement]
    load: Callable[[int, float], str]
    others: dict[int, float]
    helpers: dict[str, None]
    keeps_nan: frozenset[int] = frozenset()
    """Maxima and minima whose NaN reaches the outputs some other way, so that a plain tl.max serves."""
    substitutes: dict[int, Text] | None = None
    """Texts that stand for values written out on a line of their own."""
    index_text: IndexText | None = None
    """What writes the places that a place counts."""
    named: frozenset[int] | None = None
    """The values that get a line of their own, where the variant needs more than the names say."""

    turned: bool = False
    """Whether the columns of a block are numbered from its end, so that scans from the end are ones from the start."""
    by_rows: bool = True
    """Whether an exact quotient by a number of the row is made of one division a row."""
    carries: dict[int, str] = field(default_factory=dict)
    """For scans over rows that are walked in blocks: what holds the result at the end of the block before."""
    lost: dict[int, tuple[str, str]] = field(default_factory=dict)
    """For sums among these: what holds that which rounding took from it, and the block's own sums."""
    scales: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """For products of floats: what holds the exponent, and the block's own mantissas and exponents."""
    growing: dict[int, tuple[str, str]] = field(default_factory=dict)
    """For plain products of floats: what holds the most that elements before the block multiply to, and the same up to
    each element of it."""

    def __post_init__(self) -> None:
        self.quoted: set[int] = set()
        self.labels: dict[str, int] = {}
        """What the parts of long lines are called, and which value each name stands for."""

    def is_assigned(self, i: int) -> bool:
        return i in (self.names.assigned if self.named is None else self.named)

    def lines(self, targets: Iterable[int], done: set[int], *, late: bool = True) -> list[str]:
        """Assign everything the targets need that is not in `done`, which is added to. `late`: loads at first use."""
        needed = sorted(self.needs(targets, done))
        order = needed if late else sorted(needed, key=lambda i: (not self._is_plain_load(i), i))
        lines: list[str] = []
        for i in order:
            value = self.lowered.values[i]
            if not self.is_assigned(i):
                continue
            done.add(i)
            if value.op == "iota":  # the template has made it
                continue
            made = self._assignment(i)
            statement = value.statement
            if statement is not None and statement not in self.quoted and value.op != "load":
                self.quoted.add(statement)
                lines += self._comment(statement, made)
            lines += made
        return lines

    def _is_plain_load(self, i: int) -> bool:
        return self.lowered.values[i].op == "load" and not self.lowered.values[i].args

    def needs(self, targets: Iterable[int], done: set[int]) -> set[int]:
        """The values that the targets depend on, themselves included, short of those that are done."""
        found: set[int] = set()
        todo = [t for t in targets if t not in done]
        while todo:
            i = todo.pop()
            if i in found or i in done:
                continue
            found.add(i)
            todo += [a.value for a in self.lowered.values[i].args if isinstance(a, Use)]
        return found

    def _comment(self, statement: int, made: list[str]) -> list[str]:
        text = self.statements[statement].text
        if re.sub(r"\W", "", text.replace("return ", "")) in {
            re.sub(r"\W", "", m.split(" = ", 1)[-1]) for m in made
        } | {re.sub(r"\W", "", m) for m in made}:
            return []
        return [f"# {line}" for line in textwrap.wrap(text, LINE - 8)]

    def _assignment(self, i: int) -> list[str]:
        value, name = self.lowered.values[i], self.names.of[i]
        if value.op == "load":
            return self.load(i, self.others.get(i, 0.0)).splitlines()
        text = self._whole(i)
        if i in self.lost or i in self.scales:
            return self._carried(i, text)
        if i in self.growing:
            name = f"{name}, {self.growing[i][1]}"
        line = f"{name} = {text.text}"
        first = value.args[0] if value.args else None
        if value.op == "add" and isinstance(first, Use) and self.names.of.get(first.value) == name:
            line = f"{name} += {text.text.removeprefix(f'{name} + ')}"
        if len(line) > LINE - 8:
            return self._long(name, i, text, self.names.of[i])
        return [line]

    def _carried(self, i: int, text: Text) -> list[str]:
        """The sums or products of a block, then those of the row."""
        if i in self.lost:
            lost, block = self.lost[i]
            made, result = block, f"{self.carries[i]} + ({lost} + {block})"
        else:
            scale, block, exponents = self.scales[i]
            made = f"{block}, {exponents}"
            result = f"_products_after({self.carries[i]}, {scale}, {made})"
            self.helpers["products_after"] = None
        line = f"{made} = {text.text}"
        lines = [line] if len(line) <= LINE - 8 else self._long(made, i, text, block)
        return [*lines, f"{self.names.of[i]} = {result}"]

    def _long(self, name: str, i: int, text: Text, stem: str | None = None) -> list[str]:
        """Where one line is too long: a part of it gets a line of its own, one that has a name if there is one, else
        one that begins with the stem."""
        parts = self._inlined(i)
        if not parts:
            return [f"{name} = {text.text}"]
        own = [j for j in parts if self.lowered.values[j].name]
        part = (
            own[0]
            if own
            else max(parts, key=lambda j: len(self._whole(j).text) if len(self._whole(j).text) < len(text.text) else 0)
        )
        label = self.names.of.get(part) or self._label(
            part, f"{stem or name}_{NOUNS.get(self.lowered.values[part].op, 'part')}"
        )
        first = f"{label} = {self._whole(part).text}"
        saved = self.substitutes
        lines = [first] if len(first) <= LINE - 8 else self._long(label, part, self._whole(part))
        self.substitutes = {**(saved or {}), part: Text(label)}
        rest = self._whole(i)
        lines += (
            [f"{name} = {rest.text}"] if len(f"{name} = {rest.text}") <= LINE - 8 else self._long(name, i, rest, stem)
        )
        self.substitutes = saved
        return lines

    def _label(self, part: int, wanted: str) -> str:
        """A name for a part of a line that no other part has."""
        candidates = (wanted, *(f"{wanted}_{n}" for n in range(2, len(self.labels) + 3)))
        taken = self.names.of.values()
        label = next(c for c in candidates if c not in taken and self.labels.get(c, part) == part)
        self.labels[label] = part
        return label

    def _whole(self, i: int) -> Text:
        op = self.lowered.values[i].op
        return self.reduction(i) if op in REDUCTIONS else self.scan(i) if op in SCANS else self.expression(i)

    def _inlined(self, i: int) -> list[int]:
        """The values written out within a value, nearest first."""
        found: list[int] = []
        todo = [i]
        while todo:
            for arg in self.lowered.values[todo.pop(0)].args:
                if (
                    isinstance(arg, Use)
                    and not self.is_assigned(arg.value)
                    and arg.value not in (self.substitutes or {})
                    and self.lowered.values[arg.value].op != "const"
                ):
                    found.append(arg.value)
                    todo.append(arg.value)
        return found

    def operand(self, arg: Operand, consumer: str) -> Text:
        """An operand as the consumer's level needs it."""
        if isinstance(arg, Length):
            return (
                Text("N")
                if any(isinstance(a, str) for a in arg.dim)
                else number(math.prod(a for a in arg.dim if isinstance(a, int)))
            )
        if not isinstance(arg, Use):
            return number(arg)
        value = self.lowered.values[arg.value]
        if self.substitutes and arg.value in self.substitutes:
            text = self.substitutes[arg.value]
        elif value.op == "const":
            constant = value.args[0]
            assert isinstance(constant, int | float)
            return number(constant)
        elif self.is_assigned(arg.value):
            text = Text(self.names.of[arg.value])
        else:
            text = self._whole(arg.value)
        own = self.names.levels[arg.value]
        if self.mode.two_d and consumer == FULL and own in (ROW, COLUMN):
            return Text(f"{text.within(ATOM)}{spread(own)}")
        return text

    def expression(self, i: int) -> Text:
        """A value written out in terms of named values."""
        value = self.lowered.values[i]
        consumer = self.names.levels[i]
        args = tuple(self.operand(a, consumer) for a in value.args)
        if value.op == "const":
            return args[0]
        if value.op == "place":
            return self._iota(i)
        if value.op == "convert":
            return self._convert(value, args[0])
        if value.op == "round" and is_number(self.lowered.values, value.args[0]):
            return Text(f"tl.cast({args[0].text}, {rounding(value)}).to(tl.float32)")
        if value.op == "round":
            return Text(f"{args[0].within(ATOM)}.to({rounding(value)}).to(tl.float32)")
        if value.op == "div_rn":
            args = (args[0], self._as_float(value.args[1], args[1]))
        op = value.op
        if self._is_by_rows(value, consumer):
            op = "quotient" if at_least(self.lowered.values, value.args[1]) >= SMALL else "lifted_quotient"
        if op == "where":
            return choice(self.lowered.values, value, args)
        text, helpers = operation(op, args)
        self.helpers.update(dict.fromkeys(helpers))
        return text

    def _as_float(self, arg: Operand, text: Text) -> Text:
        """A divisor of tl.div_rn, which takes floats alone; a size may be compiled in, and has no method then."""
        return Text(f"tl.cast({text.text}, tl.float32)") if is_counted(self.lowered.values, arg) else text

    def _is_by_rows(self, value: Value, level: str) -> bool:
        """Whether it is an exact quotient whose divisor is the same for a whole row, or for all elements."""
        divisor = value.args[1] if value.op == "div_rn" and self.by_rows else None
        if not isinstance(divisor, Use) or self.lowered.values[divisor.value].op == "const":
            return False
        return level in (FULL, COLUMN) and self.names.levels[divisor.value] in (ROW, SCALAR)

    def _iota(self, i: int) -> Text:
        """A counted place; in int32 where it is only compared, else in its own dtype."""
        assert self.index_text is not None
        value = self.lowered.values[i]
        counted = value.index[0]
        assert isinstance(counted, Expr)
        consumers = [v.op for v in self.lowered.values if Use(i) in v.args]
        if OPERATION in consumers:  # a number among all elements
            return self.index_text.wide(counted, self.names.levels[i])
        text = self.index_text.text(counted, self.names.levels[i])
        stored = any(o.value == i for o in self.lowered.outputs)
        if not stored and all(op in (*COMPARISONS, "convert") for op in consumers):
            return text
        if self.names.levels[i] == SCALAR:
            return self.index_text.size(counted.size, wide=True) if counted.op == "size" else text
        return Text(f"{text.within(ATOM)}.to({triton_dtype(value.dtype)})")

    def _convert(self, value: Value, text: Text) -> Text:
        if value.dtype == "bool":
            return Text(f"{text.within(41)} != 0", 40)
        if is_size(self.lowered.values, value.args[0]):
            return Text(f"tl.cast({text.text}, {triton_dtype(value.dtype)})")
        return Text(f"{text.within(ATOM)}.to({triton_dtype(value.dtype)})")

    def reduction(self, i: int) -> Text:
        """A reduction of a whole row that is in registers."""
        return self.reduce_text(i, self.guarded(i))

    def guarded(self, i: int, *, neutral_alone: bool = False) -> str:
        """The operand of a reduction or of a scan from the end, with the lanes beyond the row made neutral where they
        do not leave it as it is, or are not neutral."""
        source = self.source(i)
        # what varies along the columns alone is reduced alone: a vector also where rows are walked together
        level = COLUMN if self.names.levels[source] == COLUMN else FULL
        inner = self.operand(Use(source), level)
        if harmless(self.lowered, self.names.levels, i, self.others, neutral_alone=neutral_alone):
            return inner.text
        outside = neutral(self.lowered, i)
        mask = "col_mask" if self.mode.two_d and level == COLUMN else "mask"
        value = self.lowered.values[i]
        if value.op in SCANS and value.dtype == "int64" and self.lowered.values[source].op != "load":
            inner = Text(f"{inner.within(ATOM)}.to(tl.int64)")  # places are counted in int32
        return f"tl.where({mask}, {inner.text}, {number(outside).text})"

    def source(self, i: int) -> int:
        """The value that a reduction or a scan runs over."""
        source = self.lowered.values[i].args[0]
        assert isinstance(source, Use)
        return source.value

    def scan(self, i: int) -> Text:
        """A scan of a row or block that is in registers, joined with what came before the block unless something is
        kept of what rounding takes from that."""
        value, source = self.lowered.values[i], self.source(i)
        level = self.names.levels[source]
        inner = self.guarded(i) if value.attr == REVERSE else self.operand(Use(source), level).text
        axis = 0 if level == COLUMN else self.mode.axis
        if i in self.growing:
            carried = (self.carries[i], self.growing[i][0])
            text, helpers = growing_call((inner, *carried, f"axis={axis}"), value.attr)
        elif self.turned:
            text, helpers = scan_call(value.op, value.dtype, (f"_turned({inner})", f"axis={axis}"), None)
            text, helpers = Text(f"_turned({text.text})"), ("from_end", "turned", *helpers)
        else:
            args, pairs = (inner, f"axis={axis}"), i in self.scales
            text, helpers = scan_call(value.op, value.dtype, args, value.attr, pairs=pairs)
        if i in self.carries and not any(i in beside for beside in (self.lost, self.scales, self.growing)):
            text, more = operation(scan_join(value.op, value.dtype), (Text(self.carries[i]), text))
            helpers = (*helpers, *more)
        self.helpers.update(dict.fromkeys(helpers))
        return text

    def numbers(self, i: int) -> str:
        """The numbers of the columns, in the shape of what an arg reduction runs over."""
        return "cols[None, :]" if self.mode.two_d and self.names.levels[self.source(i)] == FULL else "cols"

    def reduce_text(self, i: int, inner: str, numbers: str | None = None) -> Text:
        """A reduction of a block; `numbers`: those of its elements, for an arg reduction."""
        value = self.lowered.values[i]
        function = f"tl.{value.op}"
        if value.op in ARG_REDUCTIONS:
            function, inner = f"_{value.op}", f"{inner}, {numbers or self.numbers(i)}"
            self.helpers[value.op] = None
        if value.op == "prod":
            function, inner = "tl.reduce", f"{inner}, combine_fn=_multiply"
            self.helpers["multiply"] = None
        if value.op in ("max", "min") and value.dtype == "float" and i not in self.keeps_nan:
            of_sizes = value.op == "max" and self.lowered.values[self.source(i)].op == "abs"
            helper = "size_max" if of_sizes else f"nan_{value.op}"
            function = f"_{helper}"
            self.helpers[helper] = None
        axis = 0 if self.names.levels[self.source(i)] == COLUMN else self.mode.axis
        # Triton reduces short integers as int32
        narrow = f".to(tl.{value.dtype})" if value.dtype in ("int8", "uint8", "int16") else ""
        return Text(f"{function}({inner}, axis={axis}){narrow}")


def rounding(value: Value) -> str:
    """The Triton dtype of a rounding: a fixed one, or that of the pointer that carries the dtype variable."""
    assert value.attr is not None
    return value.attr if value.attr.endswith("element_ty") else triton_dtype(value.attr)

"""Index expressions and conditions as Triton text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kernelgen.families.access import COLS, Group, Layout
from kernelgen.families.naming import COLUMN, FULL, RESERVED, ROW, SCALAR, Names, spread, unique
from kernelgen.families.triton_text import ATOM, COMPARE, PRODUCT, SUM, Text, number
from kernelgen.families.values import Lowered, Value, expressions
from kernelgen.frontend.graph import Dim, same_size
from kernelgen.frontend.indices import Condition, Expr, leaves
from kernelgen.spec.sizes import is_expression, renamed

_BINDING = {"+": SUM, "-": SUM, "*": PRODUCT, "//": PRODUCT, "%": PRODUCT}


def products(expr: Expr) -> Iterator[Expr]:
    """The products in an expression."""
    if expr.op == "*":
        yield expr
    for arg in expr.args:
        yield from products(arg)


def taken_apart(groups: Sequence[Group], position: int, number: str) -> str:
    """The index of one of several groups, from the `number` of an element of them all."""
    inner = [g.size for g in groups[position + 1 :]]
    divisor = inner[0] if len(inner) == 1 else f"({' * '.join(inner)})"
    quotient = f"{number} // {divisor}" if inner else number
    return quotient + (f" % {groups[position].size}" if position else "")


class IndexText:
    """Writes expressions at a level: what varies along rows or columns alone is broadcast where a tile is meant."""

    def __init__(self, lowered: Lowered, names: Names, layout: Layout, *, two_d: bool) -> None:
        self.lowered = lowered
        self.names = names
        self.two_d = two_d
        self.sizes = dict(layout.sizes)
        self.run = lowered.space.axes if layout.columns is None else ()
        self.variables = self.variables_of(layout)
        self.named: dict[Expr, str] = {}
        if not lowered.space.inner_axes():
            self._name_places()

    def variables_of(self, layout: Layout) -> dict[int, tuple[str, str]]:
        """What every axis that stands alone is called, and its level."""
        if layout.columns is None:  # one run of elements, whose only axis is the whole of it
            return {0: ("offsets", FULL)}
        columns = layout.columns.axes
        rows = {g.axes[0]: (g.index, ROW) for g in layout.rows if len(g.axes) == 1}
        return dict.fromkeys(columns, (COLS, COLUMN)) | rows

    def written(self, value: Value) -> tuple[Expr, ...]:
        """The expressions that a value's lines write out, and what a number is added to in them."""
        found = expressions(value)
        return (*found, *(e.args[0] for e in found if e.op == "+" and e.args[1].op == "number"))

    def _name_places(self) -> None:
        """A name for every place along rows or columns that is written more than once."""
        read = [(expr, self._place_name(value, expr)) for value in self.lowered.values for expr in self.written(value)]
        written = [(e, self._variable(e)) for o in self.lowered.outputs for e in o.index if isinstance(e, Expr)]
        counts = Counter(expr for expr, _ in (*read, *written))
        # what is stored in parts is called after what counts it
        labels = dict((*reversed(read), *written))
        used = {*RESERVED, *self.names.of.values(), *(name for name, _ in self.variables.values())}
        for expr, count in counts.items():
            plain = all(leaf.op != "value" for leaf in leaves(expr))
            if count > 1 and expr.args and plain and self.level(expr) in (ROW, COLUMN):
                self.named[expr] = unique(labels[expr], used)

    def _place_name(self, value: Value, expr: Expr) -> str:
        """The variable that a place is counted from, with the tensor that is read there."""
        variable = self._variable(expr)
        return f"{value.tensor}_{'w' if variable == COLS else variable}" if value.tensor else f"{variable}_place"

    def _variable(self, expr: Expr) -> str:
        return next((self.variables[leaf.number][0] for leaf in leaves(expr) if leaf.op == "axis"), "place")

    def lines(self, used: Sequence[str]) -> list[str]:
        """The named places that lines of a kernel mention."""
        named, self.named = self.named, {}
        made = [
            f"{name} = {self._text(expr, self.level(expr)).text}"
            for expr, name in named.items()
            if re.search(rf"\b{name}\b", "\n".join(used))
        ]
        self.named = named
        return made

    def level(self, expr: Expr) -> str:
        found = {self._leaf_level(leaf) for leaf in leaves(expr)} - {SCALAR}
        return FULL if len(found) > 1 else next(iter(found), SCALAR)

    def _leaf_level(self, leaf: Expr) -> str:
        if leaf.op == "axis":
            return self.variables[leaf.number][1]
        return self.names.levels[leaf.number] if leaf.op == "value" else SCALAR

    def text(self, expr: Expr, consumer: str) -> Text:
        """An expression where a value of level `consumer` needs it."""
        own = self.level(expr)
        if self.two_d and consumer == FULL and own in (ROW, COLUMN):
            return Text(self._text(expr, own).within(ATOM) + spread(own))
        return self._text(expr, consumer)

    def wide(self, expr: Expr, consumer: str) -> Text:
        """An expression that may pass 2**31: rows are counted in int64, columns where they are multiplied."""
        factors = {leaf.number for product in products(expr) for leaf in leaves(product) if leaf.op == "axis"}
        saved = self.variables
        for axis in factors:
            name, level = saved[axis]
            if level == COLUMN:
                self.variables = {**self.variables, axis: (f"{name}.to(tl.int64)", level)}
        text = self.text(expr, consumer)
        self.variables = saved
        return text

    def _text(self, expr: Expr, consumer: str) -> Text:
        if expr in self.named:
            return Text(self.named[expr])
        match expr.op:
            case "number":
                return number(expr.number)
            case "size":
                return self.size(expr.size)
            case "axis":
                return Text(self.variables[expr.number][0])
            case "value":
                name, dtype = self.names.of[expr.number], self.lowered.values[expr.number].dtype
                return Text(name if dtype == "int64" else f"{name}.to(tl.int64)")
        left, right = (self.text(arg, consumer) for arg in expr.args)
        binding = _BINDING[expr.op]
        # a + (b + c) would be another rounding of floats, of integers it is the same sum
        tight = binding + (0 if expr.op == "+" else 1)
        return Text(f"{left.within(binding)} {expr.op} {right.within(tight)}", binding)

    def size(self, dim: Dim, *, wide: bool = False) -> Text:
        """A size in terms of the kernel's parameters. `wide`: a product in int64, because it may pass 2**31."""
        if self.run and same_size(dim, self.run):
            return Text("n_elements")
        factors = [renamed(a, self.sizes) if isinstance(a, str) else str(a) for a in dim]
        if len(factors) == 1:
            return Text(factors[0], SUM if isinstance(dim[0], str) and is_expression(dim[0]) else ATOM)
        shown = [f"({f})" if isinstance(a, str) and is_expression(a) else f for a, f in zip(dim, factors, strict=True)]
        if wide:
            shown[0] = f"tl.cast({factors[0]}, tl.int64)"
        return Text(" * ".join(shown), PRODUCT)

    def condition(self, condition: Condition, consumer: str) -> str:
        levels = {self.level(condition.left), self.level(condition.right)} - {SCALAR}
        own = next(iter(levels)) if len(levels) == 1 else consumer
        left, right = (self.text(side, own).within(COMPARE + 1) for side in (condition.left, condition.right))
        suffix = spread(own) if self.two_d and consumer == FULL and own in (ROW, COLUMN) else ""
        return f"({left} {condition.op} {right}){suffix}"

    def mask(self, mask: str | None, conditions: Sequence[Condition], consumer: str) -> str | None:
        """A mask narrowed by conditions."""
        parts = [*([mask] if mask else []), *(self.condition(c, consumer) for c in conditions)]
        if len(parts) == 1 and not mask:
            return parts[0].removeprefix("(").removesuffix(")")
        return " & ".join(parts) or None

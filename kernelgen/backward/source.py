"""Nodes of a graph as the PyTorch function that computes them: the reference of a backward part.

Statements follow the graph's order; a value gets a variable where it has a name that helps, is used twice, or would
make a line too long. Casts that the forward makes in between are left out: gradients are computed in float32
throughout.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from kernelgen.backward.convolution import convolves
from kernelgen.backward.differentiate import NOUNS
from kernelgen.backward.gathers import read
from kernelgen.backward.moves import MOVES
from kernelgen.backward.moves_text import move_text
from kernelgen.backward.sizes import Sizes
from kernelgen.backward.tape import Shape, Tape, needed
from kernelgen.families.line import fit
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import CALL, DOT, REDUCTIONS, SCATTERS, VIEWS, Arg, Node, Ref, SizeOf, broadcast
from kernelgen.frontend.indices import Expr
from kernelgen.frontend.masks import OPERATION
from kernelgen.frontend.operations import LIMITS, OPERATIONS
from kernelgen.spec.model import ELLIPSIS

LINE = 84
"""A statement's width within the function."""

_COUNTED: dict[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "//": ast.FloorDiv, "%": ast.Mod,
}  # fmt: skip
_UNARY: dict[str, type[ast.unaryop]] = {"neg": ast.USub, "logical_not": ast.Invert, "invert": ast.Invert}
_ALONG = {-1: "columns", -2: "rows"}
"""What the numbers along a dimension are called."""
_PLAIN = ("full", "round", *VIEWS)
"""What is written wherever it is used."""
_ROOTS = {"sqrt": "0.5", "rsqrt": "-0.5"}
"""The powers that roots of sizes are written as."""
_REDUCED = {"sum": "sum", "max": "amax", "min": "amin", "argmax": "argmax", "argmin": "argmin"}


class Source:
    """Writes statements; `given` says which nodes are inputs of the function, and what those are called."""

    def __init__(
        self,
        tape: Tape,
        sizes: Sizes,
        given: Mapping[int, str],
        reserved: Iterable[str],
        narrow: Iterable[int] = (),
        kinds: Mapping[str, str] | None = None,
        as_called: Iterable[int] = (),
    ) -> None:
        """`narrow`: what is given in a dtype in which it is multiplied, and in float32 used otherwise; `kinds`: the
        dtypes that products round to, as they are written; `as_called`: outputs in the dtype of a call of torch's."""
        self.as_called = frozenset(as_called)
        self.tape, self.sizes, self.given = tape, sizes, given
        self.narrow = set(narrow)
        self.kinds = kinds or {}
        self.variables: dict[int, str] = {}
        self.outputs: frozenset[int] = frozenset()
        self.used = {*given.values(), *reserved}
        self.lines: list[str] = []
        self.shapes: dict[int, Shape] = {}

    def write(self, outputs: Mapping[int, str]) -> None:
        """The statements that assign the outputs, by node, to variables of the given names."""
        self.outputs = frozenset(outputs)
        order = needed(self.tape, outputs, self.given)
        uses = self._uses(order)
        self.used |= set(outputs.values())
        for i in order:
            node = self.tape.nodes[i]
            plain = self._is_plain(i)
            if i in outputs:
                self._assign(i, outputs[i])
                self.narrow |= {i} if self._is_rounded(i) else set()
            elif node.op == "round" and i in self.tape.kept and self._is_rounded(i):
                self._assign(i, self._unique(self._name(i)))
                self.narrow.add(i)
            elif not plain and node.op == "reshape" and self._is_narrow(Ref(i)):
                self._assign(i, self._unique(f"{self.given[self._root(i)]}_heads"))
            elif not plain and (uses[i] > 1 or (node.name and uses[i] and node.op not in ("iota",))):
                self._assign(i, self._unique(self._name(i)))

    def _is_rounded(self, i: int) -> bool:
        """Whether an output is in the dtype in which products multiply it."""
        node = self.tape.nodes[i]
        return (node.op == "round" or i in self.as_called) and str(node.attrs[0]) in self.kinds

    def _is_plain(self, i: int) -> bool:
        """Whether a value is written wherever it is used: one that only looks at another, unless that is long."""
        node = self.tape.nodes[i]
        long = node.op == "reshape" and sum(dim != () for dim in node.shape) > 3
        return node.op in _PLAIN and not long and i not in self.tape.kept

    def _uses(self, order: list[int]) -> Counter[int]:
        """How often values are written, those of views being written where the views are."""
        uses: Counter[int] = Counter()
        for i in reversed(order):
            node = self.tape.nodes[i]
            count = max(uses[i], 1) if self._is_plain(i) and i not in self.outputs else 1
            for arg in node.args:
                if isinstance(arg, Ref):
                    uses[arg.node] += count
        return uses

    def _name(self, i: int) -> str:
        node = self.tape.nodes[i]
        if node.op == "place" and _counted(node).op == "axis":
            return _ALONG.get(_counted(node).number, "place")
        if node.op in _ROOTS and not node.shape:
            return node.name or "scale"
        return node.name or self.tape.hints.get(i) or NOUNS.get(node.op, node.op)

    def _unique(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.used:
            name, number = f"{wanted}_{number}", number + 1
        self.used.add(name)
        return name

    def _assign(self, i: int, name: str) -> None:
        if name != self.given.get(i):
            text = self._text(i)
            while len(f"{name} = {text}") > LINE and (part := self._longest_part(i, len(text))) is not None:
                self._assign(part, self._unique(self._name(part)))
                text = self._text(i)
            made = self._expression(i)
            if len(f"{name} = {text}") > LINE and isinstance(made, ast.BinOp) and isinstance(made.left, ast.Constant):
                # what cannot have a name of its own is made first, and then scaled
                self.lines.append(f"{name} = {_unparsed(made.right)}")
                text = _unparsed(ast.BinOp(made.left, made.op, ast.Name(name)))
            if len(f"{name} = {text}") > LINE and isinstance(made, ast.Call) and self.tape.nodes[i].op in SCATTERS:
                rows = self._unique("rows")
                self.lines.append(f"{rows} = {_unparsed(made.args[-1])}")
                text = _unparsed(ast.Call(made.func, [*made.args[:-1], ast.Name(rows)], []))
            self.lines.append(f"{name} = {text}")
        self.variables[i] = name

    def _longest_part(self, i: int, length: int) -> int | None:
        """The longest value written out within another that is at most two thirds of it."""
        inner = [n for n in needed(self.tape, [i], {**self.given, **self.variables}) if n != i]
        inner = [n for n in inner if self.tape.nodes[n].op not in _PLAIN]
        inner = [n for n in inner if not self._leads(self.tape.nodes[n])]
        texts = {n: len(self._text(n)) for n in inner}
        fitting = [n for n in inner if 12 < texts[n] <= length * 2 // 3] or [n for n in inner if texts[n] > 12]
        return max(fitting, key=texts.__getitem__, default=None)

    def _leads(self, node: Node) -> bool:
        """Whether a node is a sum over leading dimensions, which has no dimensions in their place."""
        source = node.args[0] if node.op in REDUCTIONS else None
        shape = self.tape.node(source).shape if isinstance(source, Ref) else ()
        return shape[:1] == ((ELLIPSIS,),) and -len(shape) in node.attrs

    def _whole(self, ref: Ref, made: ast.expr | None = None) -> ast.expr:
        """A value, or what is made of it in another dtype, in its own shape, where what it repeats would not do."""
        shape, made = self.tape.node(ref).shape, made or self._arg(ref)
        if self._shown(ref.node) == shape:
            return made
        return _method(made, "expand", ast.parse(self.sizes.whole(shape), mode="eval").body)

    def _shown(self, i: int) -> Shape:
        """The shape of what is written of a value: steps element by element leave repeating to what reads them."""
        node = self.tape.nodes[i]
        if i in self.given or (node.op == "expand" and i in self.outputs):
            return node.shape
        operands = [a.node for a in node.args if isinstance(a, Ref)]
        if not operands:
            return node.shape
        if node.op in ("expand", "round", "convert"):
            return self._shown(operands[0])
        if i not in self.shapes:
            each = node.op in OPERATIONS and OPERATIONS[node.op].kind == "map"
            self.shapes[i] = broadcast(*map(self._shown, operands)) if each else node.shape
        return self.shapes[i]

    def _text(self, i: int) -> str:
        return _unparsed(self._expression(i))

    def value(self, i: int) -> ast.expr:
        name = self.variables.get(i) or self.given.get(i)
        return ast.Name(name) if name else self._expression(i)

    def _arg(self, arg: Arg) -> ast.expr:
        if isinstance(arg, Ref):
            return _method(self.value(arg.node), "float") if self._is_narrow(arg) else self.value(arg.node)
        if isinstance(arg, SizeOf):
            return ast.parse(self.sizes.number(arg.dim), mode="eval").body
        if isinstance(arg, float) and not math.isfinite(arg):
            size = ast.Attribute(ast.Name("math"), "nan" if math.isnan(arg) else "inf")
            return ast.UnaryOp(ast.USub(), size) if arg < 0 else size
        return ast.Constant(arg) if arg >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-arg))

    def _is_narrow(self, ref: Ref) -> bool:
        """Whether a value is an input in the dtype in which it is multiplied, or a view of one."""
        node = self.tape.node(ref)
        if ref.node in self.narrow or node.op not in VIEWS:
            return ref.node in self.narrow
        (source,) = (a for a in node.args if isinstance(a, Ref))
        return self._is_narrow(source)

    def _root(self, i: int) -> int:
        """The input that views look at."""
        while i not in self.narrow:
            (i,) = (a.node for a in self.tape.nodes[i].args if isinstance(a, Ref))
        return i

    def _seen(self, ref: Ref) -> ast.expr:
        """What a view looks at, in its own dtype."""
        return self.value(ref.node) if self._is_narrow(ref) else self._arg(ref)

    def _product(self, node: Node) -> ast.expr:
        """A product of factors in the dtype that the reference multiplies, in float32 from there on."""
        operands, _, result = node.equation.partition("->")
        labels = operands.split(",")
        refs = [a for a in node.args if isinstance(a, Ref)]
        factors = [self._factor(a) for a in refs]
        shapes = [self.tape.node(a).shape for a in refs]
        if labels[0][:1] not in result and shapes[0][:1] == ((ELLIPSIS,),):  # sums over rows, of whatever dimensions
            of_rows = [[ast.parse(e, mode="eval").body for e in self.sizes.rows(shape)] for shape in shapes]
            factors = [_method(f, "reshape", *sizes) for f, sizes in zip(factors, of_rows, strict=True)]
        leading, row, column = result[:-2], result[-2:-1], result[-1:]
        if row not in labels[0]:
            labels, factors = labels[::-1], factors[::-1]
        (summed, *more) = [c for c in labels[0] if c not in result]
        sides = [(labels[0], f"{row}{summed}"), (labels[1], f"{summed}{column}")]
        if more or any(sorted(own) != sorted(leading + last) or own[:-2] != leading for own, last in sides):
            made: ast.expr = ast.Call(
                ast.Attribute(ast.Name("torch"), "einsum"),
                [ast.Constant(f"{','.join(labels)}->{result}"), *factors],
                [],
            )
        else:
            left, right = (
                factor if own.endswith(last) else ast.Attribute(factor, "mT")
                for factor, (own, last) in zip(factors, sides, strict=True)
            )
            made = ast.BinOp(left, ast.MatMult(), right)
        return _method(made, "float") if self.narrow else made

    def _factor(self, ref: Ref) -> ast.expr:
        node = self.tape.node(ref)
        if node.op != "round" or not isinstance(node.args[0], Ref) or self._is_narrow(ref):
            return self._seen(ref)
        dtype = self.kinds.get(str(node.attrs[0]))
        return _method(self._arg(node.args[0]), "to", ast.Name(dtype)) if dtype else self._arg(node.args[0])

    def _expression(self, i: int) -> ast.expr:
        node = self.tape.nodes[i]
        op, args = node.op, node.args
        if op in ("round", "expand") and not (op == "expand" and i in self.outputs):
            made = self._seen(args[0]) if op == "expand" and isinstance(args[0], Ref) else self._arg(args[0])
            is_stored = (i in self.outputs or i in self.tape.kept) and op == "round" and self._is_rounded(i)
            return _method(made, "to", ast.Name(self.kinds[str(node.attrs[0])])) if is_stored else made
        if op in VIEWS:
            return self._view(node)
        if op == DOT:
            return self._product(node)
        if op == CALL:
            return self._call(i, node)
        if op in _ROOTS and isinstance(args[0], Ref) and self._is_number(self.tape.node(args[0])):
            return ast.BinOp(self._arg(args[0]), ast.Pow(), ast.parse(_ROOTS[op], mode="eval").body)
        if op in REDUCTIONS:
            return self._reduction(i)
        mean = self._mean(node)
        if mean is not None:
            return mean
        known = OPERATIONS[op]
        if known.sign:
            return _signed(known.sign, self._arg(args[0]), self._arg(args[1]))
        if op in _UNARY:
            return ast.UnaryOp(_UNARY[op](), self._arg(args[0]))
        if op in ("int_maximum", "convert") and self._is_number(node):
            return self._arg(args[0])  # a count short of a correction, which torch's gradient does not bound either
        if op in ("maximum", "minimum", "int_maximum", "int_minimum") and self._is_bound(args[1]):
            bound = ast.keyword("min" if op.endswith("maximum") else "max", self._arg(args[1]))
            return ast.Call(ast.Attribute(self._arg(args[0]), "clamp"), [], [bound])
        if known.kind == "map" and known.torch is not None:
            module, _, function = (known.torch or op).rpartition(".")
            shown = [self._arg(a) for a in args]
            if op == "fmod" and not isinstance(args[0], Ref):  # which takes no number there
                shown[0] = ast.Call(ast.Attribute(ast.Name("torch"), "full_like"), [shown[1], shown[0]], [])
            return ast.Call(ast.Attribute(ast.Name(module or "torch"), function), shown, [])
        if op in MOVES:
            operands = [a for a in args if isinstance(a, Ref)]
            shape = self.tape.node(operands[0]).shape
            return move_text(node, [self._whole(a) for a in operands], shape, lambda p: self._place(node, p))
        if op == "cumsum":
            return _method(self._arg(args[0]), op, _number(int(node.attrs[0])))
        if op in SCATTERS:
            return self._scatter(node)
        if op == "index":
            return self._read(node)
        if op == "convert":
            return _method(self._arg(args[0]), "float") if node.dtype == "float" else self._to(node)
        if op == "iota":
            return ast.parse(self.sizes.counted(node, int(node.attrs[0])), mode="eval").body
        if op == "place":
            return self._place(node, _counted(node))
        if op == OPERATION:
            return self._mask(node)
        if op == "full":
            return self._zeros(node) if i in self.tape.kept else self._arg(args[0])
        if op in LIMITS and str(node.attrs[0]) in self.kinds:
            return ast.parse(f"torch.finfo({self.kinds[str(node.attrs[0])]}).{LIMITS[op]}", mode="eval").body
        raise Refused(f"the gradient of what {node.op} gave")

    def _is_bound(self, arg: Arg) -> bool:
        """Whether it is a number, which torch takes as the bound of a clamp."""
        return not isinstance(arg, Ref) or self.tape.node(arg).op in LIMITS

    def _call(self, i: int, node: Node) -> ast.expr:
        """A call of torch's, as a search or a convolution is, of what the forward calls it with."""
        multiplies = convolves(node)
        as_they_are = multiplies and str(node.attrs[0]) in self.kinds

        def operand(found: re.Match[str]) -> str:
            arg = node.args[int(found[1])]
            if not isinstance(arg, Ref) or not multiplies:
                return _unparsed(self._arg(arg))
            rounded = self.tape.node(arg)
            inner = Ref(rounded.operands[0]) if rounded.op == "round" else arg
            if found.string.startswith(".shape", found.end()):  # whatever it is rounded to
                return _unparsed(self._whole(inner, self.value(inner.node)))
            return _unparsed(self._whole(arg, self._factor(arg) if as_they_are else None))

        text = re.sub(r"\{(\d+)\}", operand, str(node.attrs[1])).replace("torch.nn.functional.", "F.")
        made = ast.parse(text, mode="eval").body
        is_stored = i in self.outputs and self._is_rounded(i)
        return _method(made, "float") if as_they_are and not is_stored else made

    def _scatter(self, node: Node) -> ast.expr:
        """What is added to zeros: rows by an index of one dimension, or every element by its own."""
        zeros, *args = node.args
        value = [self._flat(a) if node.op == "index_add" else self._arg(a) for a in args]
        return _method(self._arg(zeros), node.op, _number(int(node.attrs[0])), *value)

    def _zeros(self, node: Node) -> ast.expr:
        like = ast.parse(f"torch.zeros_like({self.sizes.like(node.shape)}, dtype=torch.float32)", mode="eval")
        return like.body

    def _flat(self, arg: Arg) -> ast.expr:
        """With one dimension in the place of all that lead."""
        assert isinstance(arg, Ref)
        shape, inner = self.tape.node(arg).shape, arg
        while self.tape.node(inner).op == "reshape" and self._is_inlined(inner):
            (inner,) = (a for a in self.tape.node(inner).args if isinstance(a, Ref))
        if inner == arg and shape[0] != (ELLIPSIS,):
            return self._arg(arg)
        return _method(self._arg(inner), "reshape", *(ast.parse(e, mode="eval").body for e in self.sizes.rows(shape)))

    def _read(self, node: Node) -> ast.expr:
        """What indices read, once more."""
        found = read(self.tape, node)
        source, index = self._arg(found.source), self._arg(found.index)
        if found.dim is not None:
            return _method(source, "gather", _number(found.dim), index)
        if self.tape.rank(found.index) != self.tape.rank(found.source) == 1:
            return ast.Subscript(source, index)
        if self.tape.rank(found.source) == 2:
            return ast.Call(ast.Attribute(ast.Name("F"), "embedding"), [index, source], [])
        return _method(source, "index_select", _number(0), index)

    def _place(self, node: Node, expr: Expr) -> ast.expr:
        """What a place counts, in terms of the numbers along its dimensions."""
        if expr.op == "axis":
            return ast.parse(self.sizes.counted(node, expr.number), mode="eval").body
        if expr.op in ("number", "size"):
            return _number(expr.number) if expr.op == "number" else self._arg(SizeOf(expr.size))
        left, right = (self._place(node, arg) for arg in expr.args)
        return ast.BinOp(left, _COUNTED[expr.op](), right)

    def _is_number(self, node: Node) -> bool:
        """Whether a value is made of sizes alone."""
        if node.op == "place":
            return _counted(node).op == "size"
        if any(isinstance(a, SizeOf) for a in node.args):
            return True
        below = [self.tape.node(a) for a in node.args if isinstance(a, Ref)]
        return bool(below) and node.op in ("convert", "int_maximum") and all(self._is_number(b) for b in below)

    def _to(self, node: Node) -> ast.expr:
        return _method(self._arg(node.args[0]), "to", ast.Attribute(ast.Name("torch"), node.dtype))

    def _mask(self, node: Node) -> ast.expr:
        """The forward's random numbers once more, from its seed."""
        seed, _, probability = node.args
        shape = ast.parse(self.sizes.whole(node.shape), mode="eval").body
        return ast.Call(ast.Name(OPERATION), [self._arg(seed), shape, self._arg(probability)], [])

    def _mean(self, node: Node) -> ast.expr | None:
        """A sum that is divided by how many it is of."""
        if node.op != "div" or not isinstance(node.args[0], Ref) or not isinstance(node.args[1], SizeOf):
            return None
        i = node.args[0].node
        total = self.tape.nodes[i]
        if total.op != "sum" or not self._is_inlined(node.args[0]):
            return None
        source = total.args[0]
        assert isinstance(source, Ref)
        whole = self.tape.size(source, tuple(int(d) for d in total.attrs))
        return self._reduction(i, "mean") if whole == node.args[1] else None

    def _reduction(self, i: int, method: str | None = None, *, keep: bool = True) -> ast.expr:
        node = self.tape.nodes[i]
        source = node.args[0]
        assert isinstance(source, Ref)
        if node.op not in _REDUCED:
            raise Refused(f"the gradient of {node.op}")
        shape = self.tape.node(source).shape
        value, dims = self._arg(source), [int(d) for d in node.attrs]
        # an expression that only repeats what varies less is as short as what it repeats
        if shape and shape[0] == (ELLIPSIS,):
            if self._leads(node):
                if keep:
                    raise Refused("a sum over the leading dimensions that is used again")
                value = _method(value, "reshape", *(ast.parse(e, mode="eval").body for e in self.sizes.rows(shape)))
                dims = [d + len(shape) for d in dims]
        elif dims != [-1]:
            dims = [d + len(shape) for d in dims]
        shown: list[ast.expr] = [_number(d) for d in dims]
        which = shown[0] if len(shown) == 1 else ast.Tuple(shown)
        kept = [ast.keyword("keepdim", ast.Constant(True))] if keep else []
        return ast.Call(ast.Attribute(value, method or _REDUCED[node.op]), [], [ast.keyword("dim", which), *kept])

    def _is_inlined(self, ref: Ref) -> bool:
        return ref.node not in self.variables and ref.node not in self.given

    def _view(self, node: Node) -> ast.expr:
        source = node.args[0]
        assert isinstance(source, Ref)
        while node.op == "reshape" and self._is_inlined(source) and self.tape.node(source).op == "reshape":
            further = self.tape.node(source).args[0]
            assert isinstance(further, Ref)
            source = further
        before, after = self.tape.node(source).shape, node.shape
        if node.op == "expand":
            while self.tape.node(source).op == "expand" and self._is_inlined(source):
                (source,) = (a for a in self.tape.node(source).args if isinstance(a, Ref))
            return _method(self._seen(source), "expand", ast.parse(self.sizes.whole(after), mode="eval").body)
        if node.op == "permute":
            return self._permuted(node, source)
        inner = self.tape.node(source)
        if inner.op == "sum" and self._is_inlined(source):
            gone = {int(d) for d in inner.attrs}
            if after == tuple(d for i, d in enumerate(before) if i - len(before) not in gone):
                return self._reduction(source.node, keep=False)
        seen = self._seen(source)
        return self._resized(seen if (ELLIPSIS,) in before else self._whole(source, seen), before, after)

    def _resized(self, value: ast.expr, before: Shape, after: Shape) -> ast.expr:
        """Sizes of one that come or go, or a reshape to sizes that are written out."""
        if (ELLIPSIS,) not in before:
            entries = [ast.parse(e, mode="eval").body for e in self.sizes.each(after)]
            return _method(value, "reshape", *entries or [ast.Tuple([])])
        if [d for d in before if d] != [d for d in after if d] or len(before) == len(after):
            raise Refused("the gradient of a reshape of leading dimensions")
        method, longer, shorter = "unsqueeze", list(after), list(before)
        if len(before) > len(after):
            method, longer, shorter = "squeeze", list(before), list(after)
        for back in range(1, len(longer) + 1):
            if longer[-back] == () and (back > len(shorter) or shorter[-back] != ()):
                value = _method(value, method, _number(-back))
                shorter.insert(len(shorter) - back + 1, ())
        return value

    def _permuted(self, node: Node, source: Ref) -> ast.expr:
        order = [int(d) for d in node.attrs]
        moved, seen = [i for i, d in enumerate(order) if i != d], self._whole(source, self._seen(source))
        if len(moved) == 2:
            return _method(seen, "transpose", *(_number(i - len(order)) for i in moved))
        if (ELLIPSIS,) in node.shape:
            raise Refused("the gradient of a permutation of leading dimensions")
        return _method(seen, "permute", *(_number(d) for d in order))


def _counted(node: Node) -> Expr:
    assert node.indexing is not None
    return node.indexing.places[0]


def _unparsed(expression: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Expression(expression))).replace("'", '"')


def _method(value: ast.expr, name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(value, name), list(args), [])


def _signed(sign: str, left: ast.expr, right: ast.expr) -> ast.expr:
    made = ast.parse(f"left {sign} right", mode="eval").body
    if isinstance(made, ast.Compare):
        return ast.Compare(left, made.ops, [right])
    assert isinstance(made, ast.BinOp)
    return ast.BinOp(left, made.op, right)


def _number(n: int) -> ast.expr:
    return ast.Constant(n) if n >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-n))


def laid_out(statement: str) -> str:
    """One statement of a function's body, indented."""
    return fit(_spaced(statement), 4)


def _spaced(statement: str) -> str:
    """Spaces beside the colons of slices that do not begin and end at names or numbers."""
    spaces: set[int] = set()
    for node in ast.walk(ast.parse(statement)):
        if not isinstance(node, ast.Slice) or node.step is not None or all(map(_is_simple, (node.lower, node.upper))):
            continue
        if node.lower is not None and node.lower.end_col_offset is not None:
            spaces.add(node.lower.end_col_offset)
        if node.upper is not None:
            spaces.add(node.upper.col_offset)
    return "".join(f" {char}" if i in spaces else char for i, char in enumerate(statement))


def _is_simple(end: ast.expr | None) -> bool:
    operand = end.operand if isinstance(end, ast.UnaryOp) else end
    return operand is None or isinstance(operand, ast.Name | ast.Constant)

"""Builds a graph node by node; knows shapes and dtypes, nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

from kernelgen.frontend.graph import CALL, DOT, Arg, Convolution, Dim, Node, Ref, SizeOf, broadcast
from kernelgen.frontend.indices import Condition, Expr, Indexing, axis, number, size
from kernelgen.frontend.operations import OPERATIONS

COMPARISONS = tuple(name for name, known in OPERATIONS.items() if known.is_comparison)
BOOLEAN = tuple(name for name, known in OPERATIONS.items() if known.dtype == "bool")
_OF_BITS = ("ordered", "from_ordered")
"""Operations whose operand is of another class of value than the result."""
_INTEGER_RANK = ("bool", "uint8", "int8", "int16", "int32", "int64")


_INTEGERS = {
    "uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1),
}  # fmt: skip
"""The least and the greatest number of every integer dtype."""


def converted(value: float, dtype: str) -> float | int | bool:
    """A number in a class of value: `float`, `bool` or an integer dtype, in which it wraps around."""
    if dtype in ("float", "bool"):
        return float(value) if dtype == "float" else bool(value)
    low, high = _INTEGERS[dtype]
    return (int(value) - low) % (high - low + 1) + low


class Refused(Exception):
    """An operation, or a form of one, that no family lowers; the message completes "…: unsupported: "."""

    def __init__(self, message: str, condition: str = "") -> None:
        """`condition`: the constraint on sizes under which it is lowered."""
        super().__init__(message)
        self.condition = condition


class Builder:
    """The nodes so far, and the statement of the reference that the next ones belong to."""

    def __init__(self, *, elastic: bool = False, sizes: Sequence[Mapping[str, int]] = (), whole: bool = False) -> None:
        """`elastic`: "..." stands for any number of dimensions, so that one of one element may have more elsewhere.
        `sizes`: those of the spec's cases, by their names. `whole`: depthwise convolutions stay convolutions."""
        self.elastic, self.sizes, self.whole = elastic, sizes, whole
        self.nodes: list[Node] = []
        self.statement: int | None = None
        self.notes: dict[str, None] = {}
        self.held: set[int] = set()
        self.numbers: dict[Any, Ref] = {}
        """torch's symbols for inputs that are numbers."""
        self.deviations: set[int] = set()
        self.shortcuts: list[tuple[int, str, tuple[Ref, ...]]] = []
        self.filled: dict[str, None] = {}
        self.rounded: dict[Dim, int] = {}

    def state(self) -> tuple[Any, ...]:
        """What `back_to` goes back to."""
        parts = (self.notes, self.held, self.deviations, self.shortcuts, self.filled, self.rounded, self.nodes)
        return tuple(map(copy, parts))

    def back_to(self, state: tuple[Any, ...]) -> None:
        """Forget all that was added since, and what was said of it."""
        found = map(copy, state)
        self.notes, self.held, self.deviations, self.shortcuts, self.filled, self.rounded, self.nodes = found

    def note(self, text: str) -> None:
        """Keep something that a reviewer of the kernel should know, once."""
        self.notes[text] = None

    def hold(self, ref: Ref) -> Ref:
        """A value on which the result does not depend, although it is computed with it: no gradient flows there."""
        self.held.add(ref.node)
        return ref

    def deviation(self, ref: Ref) -> Ref:
        """A composite's difference from a mean, whose sum torch's derivative of the composite takes for zero."""
        self.deviations.add(ref.node)
        return ref

    def shortcut(self, result: Ref, name: str, *operands: Ref) -> Ref:
        """A result whose gradient follows from its operands by a rule of its own."""
        self.shortcuts.append((result.node, name, operands))
        return result

    def fill(self, x: Ref, dims: tuple[int, ...]) -> None:
        """Dimensions of which torch refuses to reduce no elements: their sizes are not 0."""
        shape = self.node(x).shape
        self.filled |= dict.fromkeys(atom for d in dims for atom in shape[d] if isinstance(atom, str))

    def node(self, ref: Ref) -> Node:
        return self.nodes[ref.node]

    def rank(self, ref: Ref) -> int:
        return len(self.node(ref).shape)

    def _add(self, node: Node) -> Ref:
        self.nodes.append(node)
        return Ref(len(self.nodes) - 1)

    def rename(self, ref: Ref, name: str) -> None:
        self.nodes[ref.node] = replace(self.node(ref), name=name)

    def input(self, name: str, shape: tuple[Dim, ...], dtype: str) -> Ref:
        return self._add(Node("input", (), shape, dtype, name, None, (name,)))

    def full(self, value: float | int | bool, shape: tuple[Dim, ...], dtype: str) -> Ref:
        if not isinstance(value, int | float):
            raise Refused(f"the number {value}")
        return self._add(Node("full", (value,), shape, dtype, None, self.statement))

    def map(
        self, op: str, *args: Arg, name: str | None = None, dtype: str | None = None, attrs: tuple[str, ...] = ()
    ) -> Ref:
        """An element-by-element operation; shapes broadcast, dtypes promote as torch promotes them."""
        for value in args:
            if not isinstance(value, Ref | SizeOf | int | float):
                raise Refused(f"the number {value}")
        kind = dtype or self._dtype(op, args)
        args = self._operands(op, args, kind)
        known = OPERATIONS[op]
        op = (known.of_bools if kind == "bool" else known.of_integers if kind != "float" else "") or op
        if kind == "bool" and op in ("sub", "neg"):
            raise Refused(f"{op} of booleans")
        shape = broadcast(*(self.node(a).shape for a in args if isinstance(a, Ref)))
        return self._add(Node(op, args, shape, kind, name, self.statement, attrs))

    def _operands(self, op: str, args: tuple[Arg, ...], kind: str) -> tuple[Arg, ...]:
        """The operands in the class of value that the operation works on."""
        if (op in BOOLEAN and op not in COMPARISONS) or op in _OF_BITS:
            return args
        first = args[:1] if op == "where" else ()
        rest = args[len(first) :]
        common = self._promoted(rest) if op in COMPARISONS else kind
        for value in rest:
            low, high = _INTEGERS.get(common, (0, 0))
            if common in _INTEGERS and isinstance(value, int) and not low <= value <= high:
                raise Refused(f"the number {value} among values of {common}")
        return (*first, *(self._operand(a, common) for a in rest))

    def _operand(self, arg: Arg, dtype: str) -> Arg:
        """An operand in a class of value; a whole number among floats stays as it is written."""
        if isinstance(arg, Ref):
            return self.convert(arg, dtype)
        return arg if dtype == "float" or isinstance(arg, SizeOf) else converted(arg, dtype)

    def _dtype(self, op: str, args: tuple[Arg, ...]) -> str:
        return OPERATIONS[op].dtype or self._promoted(args[1:] if op == "where" else args)

    def _promoted(self, values: tuple[Arg, ...]) -> str:
        """The class that torch promotes values to."""
        kinds = [self.node(a).dtype if isinstance(a, Ref) else _scalar_dtype(a) for a in values]
        if "float" in kinds:
            return "float"
        # Neither a Python integer nor a tensor of no dimensions widens the integer dtype of one that has dimensions.
        integers = [node for a in values if isinstance(a, Ref) and (node := self.node(a)).dtype != "bool"]
        tensor_kinds = [n.dtype for n in integers if n.shape] or [n.dtype for n in integers]
        strong = tensor_kinds or [k for k in kinds if k != "bool"]
        if "uint8" in strong and "int8" in strong:
            strong.append("int16")
        return max(strong or ["bool"], key=_INTEGER_RANK.index)

    def reduce(self, op: str, x: Ref, dims: tuple[int, ...], name: str | None = None) -> Ref:
        """A reduction that keeps its dimensions with size one; `dims` are counted from the end."""
        node = self.node(x)
        rank = len(node.shape)
        long = [d for d in dims if node.shape[d] != ()]
        still = tuple(d for d in long if not self._varies(x, d)) if op in ("sum", "max", "min") else ()
        if still:
            x, rest = self._of_equals(op, x, still), tuple(d for d in dims if d not in still)
            return self.reduce(op, x, rest, name) if set(rest) & set(long) else x
        shape = tuple(() if i - rank in dims else d for i, d in enumerate(node.shape))
        dtype = OPERATIONS[op].dtype or node.dtype
        return self._add(Node(op, (x,), shape, dtype, name, self.statement, tuple(sorted(dims))))

    def _of_equals(self, op: str, x: Ref, dims: tuple[int, ...]) -> Ref:
        """A reduction of rows whose elements are all the same."""
        node, rank = self.node(x), self.rank(x)
        shape = tuple(() if i - rank in dims else d for i, d in enumerate(node.shape))
        count = self.size(x, dims)
        if node.op == "full":
            (value,) = node.args
            assert isinstance(value, int | float)
            if op == "sum" and all(isinstance(atom, int) for atom in count.dim):
                return self.full(value * prod(a for a in count.dim if isinstance(a, int)), shape, node.dtype)
            one = self.full(value, shape, node.dtype)
        else:
            one = self.index(x, shape, tuple(number(0) if d == () else axis(i - rank) for i, d in enumerate(shape)))
        if op != "sum":
            return one
        return self.map("mul", one, self.convert(self.place((), size(count.dim)), node.dtype))

    def _varies(self, x: Ref, dim: int) -> bool:
        """Whether a value may differ along a dimension that is counted from the end."""
        node = self.node(x)
        if node.op == "full" or len(node.shape) + dim < 0 or node.shape[dim] == ():
            return False
        if node.op in ("expand", "convert", "round") or OPERATIONS[node.op].kind == "map":
            return any(self._varies(a, dim) for a in node.args if isinstance(a, Ref))
        return True

    def select(self, op: str, x: Ref, count: int) -> Ref:
        """So many of the elements of every row, or their places; rows run along the last dimension."""
        node = self.node(x)
        shape = (*node.shape[:-1], (count,) if count > 1 else ())
        dtype = OPERATIONS[op].dtype or node.dtype
        return self._add(Node(op, (x,), shape, dtype, None, self.statement, (-1,)))

    def sort(self, op: str, x: Ref) -> Ref:
        """All elements of every row in order, or their places; rows run along the last dimension."""
        node = self.node(x)
        return self._add(Node(op, (x,), node.shape, OPERATIONS[op].dtype or node.dtype, None, self.statement, (-1,)))

    def longest(self, dim: Dim) -> int:
        """The largest that a size is in the cases of the spec; 0 where none says."""
        numbers = prod(atom for atom in dim if isinstance(atom, int))
        names = [atom for atom in dim if isinstance(atom, str)]
        found = [numbers * prod(sizes[name] for name in names) for sizes in self.sizes if set(names) <= sizes.keys()]
        return max(found, default=0 if names else numbers)

    def scatter(self, op: str, args: tuple[Ref, ...], shape: tuple[Dim, ...], dtype: str, dim: int) -> Ref:
        """What `args` add up to: see graph.SCATTERS."""
        return self._add(Node(op, args, shape, dtype, None, self.statement, (dim,)))

    def iota(self, x: Ref, dim: int) -> Ref:
        """The numbers 0, 1, ... along one dimension of x, which is counted from the end; the others have size one."""
        shape = self.node(x).shape
        own = tuple(d if i - len(shape) == dim else () for i, d in enumerate(shape))
        return self._add(Node("iota", (), own, "int64", None, self.statement, (dim,)))

    def scan(self, op: str, x: Ref, dim: int) -> Ref:
        """A running total along one dimension, counted from the end."""
        node = self.node(x)
        return self._add(Node(op, (x,), node.shape, node.dtype, None, self.statement, (dim,)))

    def place_of(self, dim: Dim, operands: Sequence[Arg]) -> str:
        """Where an operand's shape has a size, in a call's text: `{0}.shape[1]`; "" where none has."""
        shapes = [self.node(x).shape if isinstance(x, Ref) else () for x in operands]
        found = ((i, d) for i, shape in enumerate(shapes) for d, own in enumerate(shape) if own == dim)
        return next((f"{{{i}}}.shape[{d}]" for i, d in found), "")

    def size(self, x: Ref, dims: tuple[int, ...]) -> SizeOf:
        """The number of elements along some dimensions."""
        shape = self.node(x).shape
        return SizeOf(tuple(atom for d in dims for atom in shape[d]))

    def round(self, x: Ref, dtype: str) -> Ref:
        node = self.node(x)
        return self._add(Node("round", (x,), node.shape, "float", None, self.statement, (dtype,)))

    def convert(self, x: Ref, dtype: str) -> Ref:
        """To another class of value: `float`, `bool` or an integer dtype."""
        node = self.node(x)
        if node.dtype == dtype:
            return x
        value = node.args[0] if node.op == "full" else None
        if isinstance(value, int) or (isinstance(value, float) and dtype in ("float", "bool")):
            return self.full(converted(value, dtype), node.shape, dtype)
        return self._add(Node("convert", (x,), self.node(x).shape, dtype, None, self.statement))

    def index(
        self,
        x: Ref,
        shape: tuple[Dim, ...],
        places: tuple[Expr, ...],
        conditions: tuple[Condition, ...] = (),
        fill: float | int | bool | None = None,
        values: tuple[Ref, ...] = (),
        flips: tuple[int, ...] = (),
    ) -> Ref:
        """`x` read at `places`, one for each of its dimensions, in terms of the dimensions of `shape` and of `values`,
        integers that broadcast to it; `fill` where a condition does not hold. `flips`: what it flips, if no more."""
        dtype = self.node(x).dtype
        return self._add(
            Node("index", (x, *values), shape, dtype, None, self.statement, flips, Indexing(places, conditions, fill))
        )

    def torch_call(
        self,
        operands: tuple[Arg, ...],
        shape: tuple[Dim, ...],
        attrs: tuple[str, ...],
        equation: str = "",
        kind: str = "float",
        convolution: Convolution | None = None,
    ) -> Ref:
        """An operation that may stay a call of torch's; `equation`: of a product; `kind`: the class of its result;
        `convolution`: what it is, if one."""
        made = Node(CALL, operands, shape, kind, None, self.statement, attrs, None, equation, convolution)
        return self._add(made)

    def dot(self, first: Ref, second: Ref, equation: str) -> Ref:
        """A product: `equation` has a letter for every dimension, and what the result lacks is summed over."""
        operands, _, result = equation.partition("->")
        sizes: dict[str, Dim] = {}
        for labels, x in zip(operands.split(","), (first, second), strict=True):
            for label, dim in zip(labels, self.node(x).shape, strict=True):
                sizes[label] = sizes.get(label) or dim
        shape = tuple(sizes[label] for label in result)
        return self._add(Node(DOT, (first, second), shape, "float", None, self.statement, equation=equation))

    def place(self, shape: tuple[Dim, ...], counted: Expr, dtype: str = "int64") -> Ref:
        """A number for every element that follows from its place alone."""
        return self._add(Node("place", (), shape, dtype, None, self.statement, (), Indexing((counted,))))

    def view(self, op: str, x: Ref, shape: tuple[Dim, ...], attrs: tuple[int, ...] = ()) -> Ref:
        node = self.node(x)
        if op in ("expand", "reshape") and node.shape == shape:
            return x
        return self._add(Node(op, (x,), shape, node.dtype, None, self.statement, attrs))


def _scalar_dtype(value: Arg) -> str:
    if isinstance(value, bool):
        return "bool"
    return "float" if isinstance(value, float) else "int64"

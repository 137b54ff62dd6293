"""Numbers in kernels: operations of numbers alone, worked out."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families.values import Length, Operand, Unlowerable, Use, Value, constant_of
from kernelgen.frontend.build import converted
from kernelgen.frontend.graph import Node
from kernelgen.frontend.operations import evaluate, evaluate_whole


def constant(node: Node, value: float | int | bool) -> Value:
    """A number that stands for a node everywhere."""
    return Value("const", (value,), node.dtype, frozenset(), None, node.statement)


def folded(node: Node, args: Sequence[float | int | bool | None]) -> Value:
    """An operation of numbers alone as the number that it gives; a whole number wraps around as torch's does. Raises
    Unlowerable where it is not worth knowing."""
    known = _folded(node.op, tuple(a for a in args if a is not None), node.dtype)
    if known is None:
        raise Unlowerable(f"{node.op} of constants (write the result as a number)", node.statement)
    return constant(node, known)


def _folded(op: str, args: tuple[float | int | bool, ...], dtype: str) -> float | int | bool | None:
    if dtype == "float":
        return evaluate(op, tuple(map(float, args)))
    made = evaluate_whole(op, args)
    if made is None or (dtype != "bool" and not abs(made) < 2**63):  # nor is NaN a whole number
        return None
    return converted(made, dtype)


def is_counted(values: Sequence[Value], arg: Operand) -> bool:
    """Whether an operand is a size or a place, which Triton may know as a Python number."""
    return isinstance(arg, Length) or (isinstance(arg, Use) and values[arg.value].op == "place")


def is_number(values: Sequence[Value], arg: Operand) -> bool:
    """Whether an operand is a number that stands in the kernel's text."""
    return constant_of(values, arg) is not None


def is_size(values: Sequence[Value], arg: Operand) -> bool:
    """Whether an operand is a size, the same for all elements."""
    return is_counted(values, arg) and not (isinstance(arg, Use) and values[arg.value].axes)

"""Gradients of convolutions, by their input or by their weight, as calls of torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.export import dims
from kernelgen.frontend.graph import Atom, Convolution, Dim, Ref
from kernelgen.frontend.rule import Refused

OPERATION = "aten.convolution_backward.default"
"""What torch.nn.grad.conv2d_input and its like are in a trace: the operand whose elements do not matter is one of a
shape without memory."""


CALLED = "torch.nn.grad.conv"
"""Of such a call torch may add in any order, so that two calls differ in the last bits."""


def written(name: str, rank: int, windows: Convolution, sizes: Sequence[str] = ()) -> str:
    """`torch.nn.grad.conv2d_input({0}.shape, {1}, {2}, padding=1)`, or `conv2d_weight({1}, {0}.shape, {2}, padding=1)`:
    `{0}` has the shape of the result, `{1}` is the other operand of the convolution, `{2}` its result's gradient. Where
    nothing has that shape, `sizes` are those of it, and the others are `{0}` and `{1}`."""
    shape, other, grad = (f"({', '.join(sizes)})", "{0}", "{1}") if sizes else ("{0}.shape", "{1}", "{2}")
    if name == "input":
        return f"{CALLED}{rank}d_input({shape}, {other}, {grad}{options(windows, f'{other}.shape[0]')})"
    return f"{CALLED}{rank}d_weight({other}, {shape}, {grad}{options(windows, sizes[0] if sizes else f'{shape}[0]')})"


def options(windows: Convolution, channels: str = "{1}.shape[0]") -> str:
    """The arguments after the tensors of a convolution, each with a comma before it. `channels`: how many the weight
    has first, which are the groups where their number is not known."""
    given = {"stride": windows.stride, "padding": windows.padding, "dilation": windows.dilation}
    usual = {"stride": 1, "padding": 0, "dilation": 1}
    words: list[tuple[str, object]] = [
        (name, value[0] if len(set(value)) == 1 else value) for name, value in given.items()
    ]
    words += [("groups", windows.groups or channels)] if windows.groups != 1 else []
    return "".join(f", {name}={value}" for name, value in words if value != usual.get(name))


def gradient(
    b: Builder, node: Any, values: Mapping[Any, Any], symbols: Mapping[Any, Atom]
) -> tuple[Ref | None, Ref | None, Ref | None]:
    """The results of a traced `convolution_backward`: the gradient of the input or of the weight, whichever it asks
    for. Raises Refused where it asks for several, or of a convolution that torch.nn.grad does not know."""
    grad, given, weight, _, stride, padding, dilation, transposed, _, groups, asked = node.args
    if transposed or sorted(asked) != [False, False, True] or asked[2]:
        raise Refused("aten.convolution_backward of several gradients, or transposed (use torch.nn.grad)")
    name, shown, other = ("input", given, weight) if asked[0] else ("weight", weight, given)
    shape = dims(shown.meta["val"].shape, dict(symbols))
    rank = len(shape) - 2
    numbers = [tuple(each) * (rank if len(each) == 1 else 1) for each in (stride, padding, dilation)]
    if not isinstance(groups, int):
        own, known = (groups.meta["val"], 1), dict(symbols)
        groups = 0 if dims(own, known) == dims(weight.meta["val"].shape[:2], known) else groups
    if not all(isinstance(n, int) for each in (*numbers, (groups,)) for n in each):
        raise Refused(f"torch.nn.grad.conv{rank}d_{name} whose {_NOT_NUMBERS}")
    windows = Convolution(numbers[0], numbers[1], numbers[1], numbers[2], groups)
    _check(f"conv{rank}d_{name}", windows, *(node.meta["val"].shape[2:] for node in (given, weight, grad)))
    operands: tuple[Ref, ...] = (_value(values, other), _value(values, grad))
    dtype = str(grad.meta["val"].dtype).removeprefix("torch.")
    if str(other.meta["val"].dtype).removeprefix("torch.") != dtype:
        raise Refused(f"torch.nn.grad.conv{rank}d_{name} of operands of different dtypes (cast them to one)")
    like = next((Ref(i) for i, n in enumerate(b.nodes) if n.op == "input" and n.shape == shape), None)
    sizes = [] if like else [_size(b, dim, operands, f"conv{rank}d_{name}") for dim in shape]
    text = written(name, rank, windows, sizes)
    operands = (like, *operands) if like else operands
    made = b.torch_call(operands, shape, (dtype, text, "gradient"))
    return (made, None, None) if asked[0] else (None, made, None)


_NOT_NUMBERS = "stride, padding, dilation or groups are no numbers"


def _check(function: str, windows: Convolution, given: Any, window: Any, grad: Any) -> None:
    """Refuse a gradient that is of no result of the convolution, at the sizes of the trace: torch says so when it runs,
    and not before. `given`, `window`, `grad`: sizes in space."""
    sizes = ([_traced(n) for n in each] for each in (given, window, grad))
    how = windows.stride, windows.padding, windows.dilation
    for n, k, m, stride, padding, dilation in zip(*sizes, *how, strict=True):
        made = (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        if made != m:
            raise Refused(f"torch.nn.grad.{function} of a gradient of {m} places (the convolution of {n} gives {made})")


def _traced(size: Any) -> int:
    """What a size is in the trace."""
    return int(size.node.hint if type(size).__name__ == "SymInt" else size)


def _size(b: Builder, dim: Dim, operands: Sequence[Ref], function: str) -> str:
    """A size of the result as a number, or as an operand has it."""
    numbers = [a for a in dim if isinstance(a, int)]
    found = str(prod(numbers)) if len(numbers) == len(dim) else b.place_of(dim, operands)
    if not found:
        raise Refused(f"torch.nn.grad.{function} of a shape that no input has (add one with `role: like`)")
    return found


def _value(values: Mapping[Any, Any], node: Any) -> Ref:
    found = values.get(node)
    if not isinstance(found, Ref):
        raise Refused("elements of torch.empty that are never written")
    return found

"""Gradients of convolutions, by their input or by their weight, as calls of torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def written(name: str, rank: int, windows: Convolution) -> str:
    """`torch.nn.grad.conv2d_input({0}.shape, {1}, {2}, padding=1)`, or `conv2d_weight({1}, {0}.shape, {2}, padding=1)`:
    `{0}` has the shape of the result, `{1}` is the other operand of the convolution, `{2}` its result's gradient."""
    first = "{0}.shape, {1}" if name == "input" else "{1}, {0}.shape"
    return f"{CALLED}{rank}d_{name}({first}, {{2}}{options(windows)})"


def options(windows: Convolution) -> str:
    """The arguments after the tensors of a convolution, each with a comma before it."""
    given = {"stride": windows.stride, "padding": windows.padding, "dilation": windows.dilation}
    usual = {"stride": 1, "padding": 0, "dilation": 1}
    words = [(name, value[0] if len(set(value)) == 1 else value) for name, value in given.items()]
    words += [("groups", windows.groups)] if windows.groups > 1 else []
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
    if not all(isinstance(n, int) for each in (*numbers, (groups,)) for n in each):
        raise Refused(f"torch.nn.grad.conv{rank}d_{name} whose {_NOT_NUMBERS}")
    windows = Convolution(numbers[0], numbers[1], numbers[1], numbers[2], groups)
    _check(f"conv{rank}d_{name}", windows, *(node.meta["val"].shape[2:] for node in (given, weight, grad)))
    operands = (_of_shape(b, shape, f"conv{rank}d_{name}"), _value(values, other), _value(values, grad))
    dtype = str(grad.meta["val"].dtype).removeprefix("torch.")
    if str(other.meta["val"].dtype).removeprefix("torch.") != dtype:
        raise Refused(f"torch.nn.grad.conv{rank}d_{name} of operands of different dtypes (cast them to one)")
    made = b.torch_call(operands, shape, (dtype, written(name, rank, windows), "gradient"))
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


def _of_shape(b: Builder, shape: Sequence[Dim], function: str) -> Ref:
    """An input of a shape."""
    for i, node in enumerate(b.nodes):
        if node.op == "input" and node.shape == tuple(shape):
            return Ref(i)
    raise Refused(f"torch.nn.grad.{function} of a shape that no input has (add one with `role: like`)")


def _value(values: Mapping[Any, Any], node: Any) -> Ref:
    found = values.get(node)
    if not isinstance(found, Ref):
        raise Refused("elements of torch.empty that are never written")
    return found

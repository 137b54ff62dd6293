"""What a convolution multiplies beyond the edges of its input: zeros, of which an infinite factor makes NaN, or none.

PyTorch's kernels do either, by dtype, device and whether a gradient is asked for; a kernel may have one convolution of
its own and leave another to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from .contractions import GRADIENTS, padding_of_output, zeros_around
from .eager import EagerMode
from .model import Function
from .oracle import TRANSPOSED, in_float64

_ALL = 6
"""Of so many convolutions every choice is tried: a layer and its gradients are three. Of more, 64 that are drawn."""
_Sums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Sums of products of two tensors, in which what lies beyond their edges has no part."""


class _AsCalled(TorchFunctionMode):
    """Keeps transposed convolutions from being given zeros before their edges are seen."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in TRANSPOSED:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


class _Edges(EagerMode):  # type: ignore[no-untyped-call]
    """Computes every convolution as chosen, and every gradient of one by its input or weight."""

    def __init__(self, multiplied: Sequence[bool]) -> None:
        """`multiplied`: whether zeros are, of one convolution after the other; of those that are missing they are
        not."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._multiplied = multiplied
        self.count = 0
        """How many there were."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in ("convolution", GRADIENTS) or args[0].dtype != torch.float64:
            return func(*args, **(kwargs or {}))
        first, rank = (4 if name == GRADIENTS else 3), args[0].ndim - 2
        # one number may stand for all dimensions of space
        windows = (a * rank if isinstance(a, list) and len(a) == 1 else a for a in args[first:])
        args = (*args[:first], *windows)
        with _disable_current_modes():
            if name == GRADIENTS:
                by_bias = func(*args[:10], [False, False, args[10][2]])[2]
                asked = zip((self._by_input, self._by_weight), args[10], strict=False)
                return (*(by(*args[:10]) if wanted else None for by, wanted in asked), by_bias)
            x, weight, bias, *rest = args
            sums = self._convolved(x, weight, *rest)
            return sums if bias is None else sums + bias.reshape(-1, *(1 for _ in weight.shape[2:]))

    def _next(self) -> bool:
        self.count += 1
        return self.count <= len(self._multiplied) and self._multiplied[self.count - 1]

    def _convolved(
        self, x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, transposed: bool,
        left: Any, groups: int,
    ) -> torch.Tensor:  # fmt: skip
        if self._next():
            around, padding = (
                zeros_around(weight.shape[2:], stride, padding, dilation) if transposed else _edges(padding)
            )
            x = torch.nn.functional.pad(x, around)
        rest = stride, padding, dilation, transposed, left, groups
        return _of_what_exists(lambda a, b: torch.ops.aten.convolution(a, b, None, *rest), x, weight)

    def _by_input(
        self, grad: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any,
        dilation: Any, transposed: bool, left: Any, groups: int,
    ) -> torch.Tensor:  # fmt: skip
        """A convolution of the other kind."""
        if transposed:
            found = self._convolved(grad, weight, stride, padding, dilation, False, left, groups)
            for dim, size in enumerate(given.shape[2:], 2):  # padding of the output may have room for another window
                found = found.narrow(dim, 0, size)
            return found
        left = padding_of_output(given, grad, weight, stride, padding, dilation)
        return self._convolved(grad, weight, stride, padding, dilation, True, left, groups)

    def _by_weight(
        self, grad: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any,
        dilation: Any, transposed: bool, left: Any, groups: int,
    ) -> torch.Tensor:  # fmt: skip
        if self._next():
            around, padding = _edges(padding)
            wide = torch.nn.functional.pad(grad if transposed else given, around)
            grad, given = (wide, given) if transposed else (grad, wide)
        rest = None, stride, padding, dilation, transposed, left, groups, [False, True, False]

        def sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.ops.aten.convolution_backward(a, b, weight, *rest)[1]
            return found

        return _of_what_exists(sums, grad, given)


def _edges(padding: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many zeros lie around, the last dimension first, and the padding that is left."""
    return [p for p in reversed(padding) for _ in range(2)], [0 for _ in padding]


def _of_what_exists(sums: _Sums, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sums of products in which nothing but the elements of both is multiplied: what torch's kernels add beyond the
    edges adds nothing to sums of finite numbers, of which ones and zeros say where there are NaN and infinities."""

    def some(*pairs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        found = [sums(one.double(), other.double()) > 0.5 for one, other in pairs]
        return torch.stack(found).any(0)

    one, other = torch.ones_like(a), torch.ones_like(b)
    nan = some((a.isnan(), other), (one, b.isnan()), (a == 0, b.isinf()), (a.isinf(), b == 0))
    up, down, rises, falls = a == torch.inf, a == -torch.inf, b == torch.inf, b == -torch.inf
    above = some((up, b > 0), (down, b < 0), (a > 0, rises), (a < 0, falls))
    below = some((up, b < 0), (down, b > 0), (a > 0, falls), (a < 0, rises))
    found = sums(*(torch.where(x.isfinite(), x, 0.0) for x in (a, b)))
    found = torch.where(above, torch.inf, torch.where(below, -torch.inf, found))
    return torch.where(nan | (above & below), torch.nan, found)


def results(
    function: Function, cut: Sequence[torch.Tensor], generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, ...]]:
    """What the function gives in float64 with all that each of its convolutions may do beyond its edges; nothing where
    it has none."""
    edges = _Edges(())
    first = in_float64(_as_called(function, edges), cut, spelled_out=True)
    if not edges.count:
        return
    yield first
    every = [*product((False, True), repeat=edges.count)][1:] if edges.count <= _ALL else []
    drawn = torch.randint(2, (0 if every else 2**_ALL, edges.count), generator=generator, device=generator.device)
    for multiplied in (*every, *drawn.bool().tolist()):
        yield in_float64(_as_called(function, _Edges(multiplied)), cut, spelled_out=True)


def _as_called(function: Function, edges: _Edges) -> Function:
    def convolved(*arguments: torch.Tensor) -> Any:
        with _AsCalled(), edges:
            return function(*arguments)

    return convolved

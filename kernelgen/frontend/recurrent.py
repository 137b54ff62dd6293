"""Recurrent layers of torch as operations of their own: a trace would take them apart, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelgen.frontend.operations import RECURRENT

_REST = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_ONE = f"(Tensor x, Tensor h, Tensor[] weights, {_REST}) -> (Tensor, Tensor)"


@torch.library.custom_op(
    "kernelgen_reference::lstm",
    mutates_args=(),
    schema=f"(Tensor x, Tensor[] h, Tensor[] weights, {_REST}) -> (Tensor, Tensor, Tensor)",
)
def _lstm(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
    return torch.lstm(x, h, weights, *rest)


@_lstm.register_fake
def _(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
    _check(4, x, h[0], weights, rest)
    return _outputs(x, h[0], rest), torch.empty_like(h[0]), torch.empty_like(h[1])


@torch.library.custom_op("kernelgen_reference::gru", mutates_args=(), schema=_ONE)
def _gru(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
    return torch.gru(x, h, weights, *rest)


@torch.library.custom_op("kernelgen_reference::rnn_tanh", mutates_args=(), schema=_ONE)
def _rnn_tanh(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
    return torch.rnn_tanh(x, h, weights, *rest)


@torch.library.custom_op("kernelgen_reference::rnn_relu", mutates_args=(), schema=_ONE)
def _rnn_relu(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
    return torch.rnn_relu(x, h, weights, *rest)


def _of_one_state(gates: int) -> Any:
    def made(x: Any, h: Any, weights: Any, *rest: Any) -> Any:
        _check(gates, x, h, weights, rest)
        return _outputs(x, h, rest), torch.empty_like(h)

    return made


_gru.register_fake(_of_one_state(3))
_rnn_tanh.register_fake(_of_one_state(1))
_rnn_relu.register_fake(_of_one_state(1))


def _check(gates: int, x: Any, h: Any, weights: Any, rest: Any) -> None:
    """The sizes that torch itself asks for: weights are [gates * hidden, in], [gates * hidden, hidden], and biases."""
    has_biases, layers, _, _, bidirectional, batch_first = rest
    hidden, directions = h.shape[-1], 2 if bidirectional else 1
    each = 4 if has_biases else 2

    def require(holds: Any) -> None:
        torch._check(
            holds,
            lambda: (
                "of a recurrent layer: h is [layers * directions, batch, hidden], weights are "
                f"[{gates} * hidden, in] and [{gates} * hidden, hidden]"
            ),
        )  # type: ignore[no-untyped-call]

    if len(weights) != layers * directions * each:  # projections
        return
    require(h.shape[0] == layers * directions)
    require(h.shape[1] == x.shape[0 if batch_first else 1] if x.ndim == 3 else True)
    for i in range(0, len(weights), each):
        width = x.shape[-1] if i < directions * each else directions * hidden
        for weight in weights[i : i + each]:
            require(weight.shape[0] == gates * hidden)
        require(weights[i].shape[1] == width)
        require(weights[i + 1].shape[1] == hidden)


def _outputs(x: Any, h: Any, rest: Any) -> Any:
    """The hidden states of all steps, [..., directions * hidden]."""
    directions = 2 if rest[4] else 1
    return x.new_empty((*x.shape[:-1], directions * h.shape[-1]))


OPERATIONS: dict[str, Any] = dict(zip(RECURRENT, (_lstm, _gru, _rnn_tanh, _rnn_relu), strict=True))
"""By the names of torch's functions."""


def whole(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call is one of torch's recurrent functions, on padded sequences."""
    return getattr(func, "__name__", "") in OPERATIONS and len(args) == 9 and isinstance(args[3], bool)


def called(func: Any, args: tuple[Any, ...]) -> Any:
    """Such a call as one operation."""
    state = list(args[1]) if isinstance(args[1], tuple | list) else args[1]
    return OPERATIONS[func.__name__](args[0], state, *args[2:])


class Whole(TorchFunctionMode):
    """Within it a recurrent layer is one operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return called(func, args) if whole(func, args) else func(*args, **(kwargs or {}))

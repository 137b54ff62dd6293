"""Complex numbers of a reference, as its rotary embeddings make them, traced as two real tensors each.

`torch.view_as_complex`, `torch.complex` and `torch.polar` make a pair; `torch.view_as_real`, `.real`, `.imag` and `abs`
end it. In between pairs are multiplied, added and moved as tensors are.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelgen.frontend.rule import Refused

_MOVES = (
    *("view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "permute", "flatten", "unflatten"),
    *(
        "contiguous",
        "movedim",
        "repeat",
        "repeat_interleave",
        "roll",
        "flip",
        "chunk",
        "split",
        "unbind",
        "select",
        "narrow",
    ),
)
"""Methods that do to both parts what they do to a tensor."""
_SUPPORTED = "supported: +, -, *, conj, abs, real, imag, what moves elements, and torch.view_as_real"


class Pair:
    """A complex tensor by its real and its imaginary part."""

    def __init__(self, real: Any, imag: Any) -> None:
        self.real, self.imag = torch.broadcast_tensors(real, imag)  # type: ignore[no-untyped-call]
        self.shape, self.ndim, self.device = self.real.shape, self.real.ndim, self.real.device

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name not in _MOVES:
            raise Refused(f"{name} of complex numbers ({_SUPPORTED})")

        def moved(*args: Any, **kwargs: Any) -> Any:
            made = [getattr(part, name)(*args, **kwargs) for part in (self.real, self.imag)]
            several = isinstance(made[0], tuple | list)
            return tuple(map(Pair, *made)) if several else Pair(*made)

        return moved

    def __getitem__(self, index: Any) -> Pair:
        return Pair(self.real[index], self.imag[index])

    def __mul__(self, other: Any) -> Pair:
        if not isinstance(other, Pair):  # torch multiplies by the imaginary part 0 of it too: of infinity that is NaN
            return Pair(self.real * other - self.imag * 0.0, self.real * 0.0 + self.imag * other)
        real = self.real * other.real - self.imag * other.imag
        return Pair(real, self.real * other.imag + self.imag * other.real)

    def __add__(self, other: Any) -> Pair:  # torch adds 1 + 0i times it: of infinity that is NaN
        real, imag = _scaled(other)
        return Pair(self.real + real, self.imag + imag)

    def __radd__(self, other: Any) -> Pair:
        return self + other if isinstance(other, float | int) else Pair(other + _scaled(self)[0], _scaled(self)[1])

    def __neg__(self) -> Pair:
        return Pair(-self.real, -self.imag)

    def __sub__(self, other: Any) -> Any:
        real, imag = _scaled(other)
        return Pair(self.real - real, self.imag - imag)

    def __rsub__(self, other: Any) -> Any:
        real, imag = _scaled(self)
        return Pair(other - real, -imag)

    __rmul__ = __mul__

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> Any:
        return self.ndim

    def conj(self) -> Pair:
        return Pair(self.real, -self.imag)

    def abs(self) -> Any:
        return torch.hypot(self.real, self.imag)


def _scaled(x: Any) -> tuple[Any, Any]:
    """The parts of a number or tensor, real or complex, times 1 + 0i."""
    return (x.real - x.imag * 0.0, x.imag + x.real * 0.0) if isinstance(x, Pair) else (x, x * 0.0)


def view_as_complex(x: Any) -> Pair:
    if x.shape[-1] != 2:
        raise Refused(f"torch.view_as_complex of {x.shape[-1]} numbers: the last dimension must be 2")
    return Pair(x[..., 0], x[..., 1])


_MAKES: dict[Any, Any] = {
    torch.view_as_complex: view_as_complex,
    torch.complex: Pair,
    torch.polar: lambda abs, angle: Pair(abs * torch.cos(angle), abs * torch.sin(angle)),
}
_OF_PAIRS: dict[str, Any] = {
    "view_as_real": lambda x: torch.stack((x.real, x.imag), -1),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "sub": lambda a, b: a - b if isinstance(a, Pair) else b.__rsub__(a),
    "mul": Pair.__mul__,
    "add": lambda a, b: a + b if isinstance(a, Pair) else b.__radd__(a),
    "neg": Pair.__neg__,
    "conj": Pair.conj,
    "abs": Pair.abs,
}


def is_complex(func: Any, args: Any) -> bool:
    """Whether a call makes complex numbers, or is of some."""
    return func in _MAKES or any(isinstance(a, Pair) for a in args)


def called(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function of torch's returns that makes pairs, or is given some."""
    if func in _MAKES:
        return _MAKES[func](*args, **kwargs)
    name = func.__name__.strip("_")
    if name not in _OF_PAIRS:
        raise Refused(f"{name} of complex numbers ({_SUPPORTED})")
    if not isinstance(args[0], Pair) and name == "mul":
        args = args[::-1]
    return _OF_PAIRS[name](*args, **kwargs)

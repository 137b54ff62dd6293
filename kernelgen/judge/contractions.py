"""How wrong a sum of products may honestly be: of a product of matrices, a convolution, an attention.

Of r = sum of K products p_k = a_k * b_k, computed at a precision, the error is taken for a random number

    e = N(0, 1) * sqrt(2/3 o**2 * sum(p_k**2)  +  u**2 * (K/2 * sum(p_k**2) + (K/3 + q * K**2/48) * r**2))
        +  t * (c - m * k * 0.09 (1 + 3/n) * u * r  +  N'(0, 1) * m * K/(4.4 n) * u * sqrt(sum(p_k**2)))

u: the unit roundoff of the sum, 2**-24 in float32, also for operands in float16 and bfloat16 (2**-53 in float64);
o: that of an operand as it is multiplied, 2**-11 where torch is set to TF32, 2**-8 where it is set to bfloat16, 0
where all bits of the operands are multiplied (a kernel's own products follow the setting of CUDA's); t: 1 in every
second oracle, where bits are cut off instead of rounded; c: what the sum changes by where the operands' are, as by
matrix units that read float32 from memory; m: 1 where matrix units add, n products at once; k: how many products of a
sum are not 0, as nothing is cut off where 0 is added; q: 1 where the products of a sum are equal, 0 elsewhere.

Where they come from. A rounding is uniform within +-o, o**2/3 in the mean of squares, and a product has two of them.
Cut off, an operand loses o * 0.72 on average (1/m over the mantissas 1 <= m < 2), a product twice that: all shrink
alike, and equal operands by the same. Matrix units cut off partial sums too (Fasi, Higham, Mikaitis, Pranesh,
"Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021). They add n products at once, 16 of
operands of two bytes and 8 of TF32, 32 bytes of each (PTX ISA, shapes of wgmma and mma.sync), every product cut off two
bits behind the last of the sum, and then the sum: (n/8 + 3/8) of its last place, which is 2 u * 0.72 of r/2 in the
mean, k/n times. That it is two bits is inferred: on an H200 two convolutions of 4099 channels in TF32, each before a
group norm, were off by 1.2e-4 and 3.6e-4; computed step by step with two bits, on a CPU, they are off by as much, with
one bit by 2.0e-4 and 5.9e-4, with three by 0.9e-4 and 2.5e-4. What is lost does not average out in a mean of many such
sums; at the edge of an image, where a window has zeros, k is less, and a norm of edge and middle shows it. Terms of
random signs leave partial sums that wander and are cut off on the way: of those that end near 0 the sum has K**3/12 *
mean(p**2) in the mean of squares, which makes u * 0.72/n * K * sqrt(1/12) of sqrt(sum(p**2)), K/77 where n is 16; 120
such sums of 32768 products came to K/68.
Each of the K partial sums is rounded, by u at most; the kth of terms of random signs around the mean r/K has the square
k * mean(p**2) + (k/K * r)**2, which is summed over k. That errors add up in the square is the probabilistic
bound sqrt(K) * u of Higham and Mary ("A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput.
41, 2019); the sizes of the partial sums stand in it in the place of their largest, sum(|p_k|), which for terms of
random signs is sqrt(K) times too much.
Of equal products all additions within a binade of the sum round alike: their errors add up, and not their squares. The
binade [2**j, 2**(j+1)) has 2**j / p additions, each off by the same number within +-u * 2**j, which is together
u**2/3 * (4**j / p)**2 in the mean of squares. All binades up to that of r come to u**2 * K**2 * r**2 / 48 within a
tenth, wherever in its own r is; 4000 such sums in float32, of 64 to 16384 products, came to 0.73 of that. Products
count as equal where they differ by less than the sum is rounded by, u * r, in the mean of squares. Of R runs of equal
products, eight at least in each, as two halves of equal elements make, each run's errors add up: K/R * u of a partial
sum, which is g/R * sum(|p_k|) at the end of run g, and sum(|p_k|)**2 is at most K * sum(p_k**2). That comes to
less than u**2 * K**2/(12 R) * K * sum(p_k**2).

A library may be worse than this: some convolutions in float16 add parts of a sum in float16. What a call of torch's is
off by is therefore measured as well (stored.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .bounds import POOL, K
from .known import Known

LOOSEST = 64.0
"""What is accepted of a product in float32 is at most so many times the largest error that torch's own has there, over
POOL results or more: torch sums in blocks, and the errors of one sum after the other were seen to be 40 times theirs
(4099 products, H200). A product of integers may be exact."""

_RUN = 8
"""Equal products that count as a run, in the mean."""

GRADIENTS = "convolution_backward"
"""Of a convolution, by its input, its weight and its bias, of which the first two are sums of products."""
PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "linear", "convolution", GRADIENTS])
"""What sums of products arrive as at the dispatcher."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""Of the two operands of a sum of products."""

_FLOAT32 = 2.0**-24
_SET = {"tf32": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of an operand, by what torch calls the precision of products of float32; any other is float32's own."""


@dataclass(frozen=True)
class Precision:
    """At which a call of torch's multiplies and adds."""

    kept: float
    """Unit roundoff of an operand's dtype, or of what the call reads of it."""
    operand: float = 0.0
    """What an operand loses as it is read: `kept`, or 0 where that is all of its bits."""
    sum: float = _FLOAT32
    """Unit roundoff of the sum."""
    together: int = 16
    """Products that matrix units add before they cut off a partial sum."""


def precision(name: str, dtype: torch.dtype, device: str, *, as_tf32: bool = False) -> Precision:
    """That of a call on operands of a dtype, as torch is set, or of TF32. `device`: whose setting counts."""
    own = torch.finfo(dtype).eps / 2
    if dtype == torch.float64:
        return Precision(own, sum=own)
    setting = "tf32" if as_tf32 else _float32_precision(name in ("convolution", GRADIENTS), device)
    read = _SET.get(setting, 0.0) if dtype == torch.float32 else 0.0
    return Precision(read or own, read, together=8 if read and setting == "tf32" else 16)


def _float32_precision(convolves: bool, device: str) -> str:
    backends: Any = torch.backends
    try:
        if device == "cuda":
            return str((backends.cudnn.conv if convolves else backends.cuda.matmul).fp32_precision)
        return str((backends.mkldnn.conv if convolves else backends.mkldnn.matmul).fp32_precision)
    except AttributeError:  # torch before 2.9, as an NPU's is
        allowed = backends.cudnn.allow_tf32 if convolves else backends.cuda.matmul.allow_tf32
        return "tf32" if allowed and device == "cuda" else ""


@dataclass(frozen=True)
class Contraction:
    """A call as it arrives at the dispatcher: sums of products of the elements of two tensors."""

    places: tuple[int, int]
    """Where the two stand among the call's arguments."""
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The sums alone, of other tensors in their place."""
    length: int
    """Products in a sum, at most."""
    summed: tuple[int, int]
    """Which of the two, 0 or 1, and along which dimension of it the last elements are the last of every sum."""
    row: tuple[int, int] | None
    """The same of the last row, or channel, of the result; None for a single sum."""
    adds: bool = False
    """Whether the call adds something to the sums."""
    batch: int = 0
    """Leading dimensions of both, of whose every place there is a product."""
    negates: bool = False
    """Whether the sums are multiplied by a negative number."""
    times: float = 1.0
    """The size of what the sums are multiplied by."""
    window: int = 0
    """How many of the last dimensions of the second operand are the places of a window."""
    groups: int = 1
    """Of a convolution, in so many parts along the first dimension of the second operand."""
    key: str = ""
    """What `product` does to two tensors, among all that are computed in a case."""


def contraction(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Contraction:
    """What a call of PRODUCTS sums."""
    if name == "convolution":
        weight, rest = args[1], args[3:]
        transposed, groups = rest[3], rest[5]
        channels = weight.shape[0] // groups if transposed else weight.shape[1]
        summed = 0 if transposed else 1 if channels > 1 else weight.ndim - 1
        row = (1, 1 if transposed else 0)
        length = channels * math.prod(weight.shape[2:])
        return Contraction(
            (0, 1), lambda a, b: func(a, b, None, *rest), length, (1, summed), row, args[2] is not None,
            window=weight.ndim - 2, groups=groups, key=f"convolution{rest}",
        )  # fmt: skip
    place = 1 if name in ("addmm", "baddbmm", "addmv") else 0
    multiply = torch.nn.functional.linear if name == "linear" else torch.matmul
    alpha = kwargs.get("alpha", 1)
    found = of_matrices(args[place], (place, place + 1), lambda a, b: alpha * multiply(a, b))
    key = f"{alpha} {'linear' if name == 'linear' else 'matmul'}"
    found = replace(found, key=key, negates=alpha < 0, times=abs(alpha))
    if name == "linear":
        return replace(found, batch=0, adds=len(args) > 2 and args[2] is not None)
    return replace(found, adds=place == 1)


@dataclass(frozen=True)
class Gradient:
    """One of the results of `convolution_backward`, with its arguments but the last."""

    func: Any
    which: int
    """0: by the input, 1: by the weight, 2: by the bias."""

    def __call__(self, *args: Any) -> torch.Tensor:
        found: torch.Tensor = self.func(*args, [n == self.which for n in range(3)])[self.which]
        return found


def _of_shape(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What a gradient does not read but for its shape, of the dtype of what it reads."""
    return like.new_empty(()).expand(x.shape)


def gradient(one: Gradient, args: Sequence[Any]) -> Contraction:
    """What a gradient of a convolution by its input or weight sums."""
    grad, given, weight, rest = args[0], args[1], args[2], args[3:10]
    transposed, groups = rest[4], rest[6]
    if one.which == 1:
        length = grad.shape[0] * min(math.prod(grad.shape[2:]), math.prod(given.shape[2:]))
        last = 0 if grad.shape[0] > 1 else grad.ndim - 1
        row = (1, 1) if transposed else (0, 1)
        return Contraction(
            (0, 1), lambda g, x: one(g, x, _of_shape(weight, g), *rest), length, (0, last), row, key=f"by weight {rest}"
        )
    summed = 1 if transposed else 0
    channels = weight.shape[summed] // (1 if transposed else groups)
    return Contraction(
        (0, 2), lambda g, w: one(g, _of_shape(given, g), w, *rest), channels * math.prod(weight.shape[2:]), (1, summed),
        (1, 0 if transposed else 1), window=weight.ndim - 2, groups=groups, key=f"by input {rest}",
    )  # fmt: skip


def zeros_around(
    window: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]]:
    """How many zeros lie around an input that all windows of a transposed convolution reach into, as `F.pad` takes
    them, and the padding with which that gives the same."""
    beyond = [(size - 1) * gap // step + 1 for size, gap, step in zip(window, dilation, stride, strict=True)]
    around = [n for n in reversed(beyond) for _ in range(2)]
    return around, [p + n * step for p, n, step in zip(padding, beyond, stride, strict=True)]


def padding_of_output(
    given: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any
) -> list[int]:
    """Of the transposed convolution that gives the gradient of a convolution's input, which has the input's shape."""
    reach = zip(given.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in reach]


def multiplied(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """How many products a call sums, at most; 0 of a call that is none of PRODUCTS."""
    name = func.overloadpacket.__name__.strip("_")
    if name not in PRODUCTS:
        return 0
    if name == GRADIENTS:
        asked = [n for n in (0, 1) if args[-1][n]]
        return sum(gradient(Gradient(func, n), args[:-1]).length * result[n].numel() for n in asked)
    return contraction(func, name, args, kwargs).length * int(result.numel())


def of_matrices(
    given: torch.Tensor,
    places: tuple[int, int] = (0, 1),
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul,
) -> Contraction:
    """A product whose left operand, `given`, is a matrix, several, or a vector."""
    row = (0, given.ndim - 2) if given.ndim > 1 else None
    batch = max(given.ndim - 2, 0)
    return Contraction(places, product, given.shape[-1], (0, given.ndim - 1), row, batch=batch, key="1 matmul")


@dataclass(frozen=True)
class Errors:
    """Draws the errors of sums for one oracle."""

    generator: torch.Generator
    truncating: bool = False
    """Whether the operands' bits are cut off."""
    known: Known = field(default_factory=Known)
    times: float = 1.0
    """So many times what honest sums are off by."""

    def of(self, called: Contraction, a: torch.Tensor, b: torch.Tensor, at: Precision) -> torch.Tensor:
        """What the sums of products of a and b, in float64, may be off by; 0 where that is not finite."""
        exact, spread, largest, squares, alike = self.known.of(
            f"spread {called.key} {at}", (a, b), lambda: _spread(called, a, b, at)
        )
        drawn = torch.empty_like(exact).normal_(generator=self.generator)
        if bool(alike.any()):  # equal sums of equal products round alike, and a sum of them does not average that out
            with _disable_current_modes():
                _, of_equals = torch.unique(exact[alike], return_inverse=True)
            drawn[alike] = drawn[alike][of_equals]
        error = drawn * spread
        if self.truncating:
            error += self.known.of(f"cut {called.key} {at}", (a, b), lambda: (_cut(called, a, b, at, exact),))[0]
            if at.kept > at.sum:
                wandered = torch.empty_like(exact).normal_(generator=self.generator)
                error += wandered * squares.sqrt() * (at.sum * called.length / (4.4 * at.together))
        error = torch.where(error.isfinite(), error, 0)
        found, most = _largest(error), float(largest)
        return error * (self.times * (most / found if found > most else 1.0))


def _spread(called: Contraction, a: torch.Tensor, b: torch.Tensor, at: Precision) -> tuple[torch.Tensor, ...]:
    """The sums of products of a and b, the spread of their errors, the most that is accepted of these, the sums of the
    squares of the products, and which sums are of equal products."""
    exact, squares = called.product(a, b), called.product(a * a, b * b)
    per_product = at.operand**2 * 2 / 3 + at.sum**2 * called.length / 2
    variance = squares * per_product + exact * exact * (at.sum**2 * called.length / 3)
    uneven = squares - exact * exact / max(called.length, 1)
    alike = (at.sum * exact) ** 2 * called.length
    are_alike = uneven <= alike
    variance += torch.where(are_alike, alike * (called.length / 48), 0)
    runs, even = _runs(called, a, b), are_alike
    if runs is not None:
        in_runs = (runs * _RUN <= called.length) & ~are_alike
        variance += torch.where(in_runs, at.sum**2 * _added(called, a, b) ** 3 / (12 * runs) * squares, 0)
        even = are_alike | in_runs
    most = math.inf
    # sums of equal products in pairs are exact: torch's own error tells nothing of others there
    if at == Precision(_FLOAT32) and exact.numel() >= POOL and not bool(even.any()):
        most = LOOSEST / K * _largest(called.product(a.float(), b.float()).double() - exact)
    return exact, variance.clamp_(min=0).sqrt_(), torch.tensor(most, dtype=torch.float64), squares, are_alike


def _cut(called: Contraction, a: torch.Tensor, b: torch.Tensor, at: Precision, exact: torch.Tensor) -> torch.Tensor:
    """What the sums change by where bits are cut off: of operands, and of partial sums in matrix units."""
    lost = torch.zeros_like(exact)
    if at.operand:
        kept = -(2 ** round(24 + math.log2(at.operand)))
        low = (x.float().view(torch.int32).bitwise_and(kept).view(torch.float32).double() for x in (a, b))
        lost = called.product(*low) - exact
    if at.kept <= at.sum:
        return lost
    return lost - _added(called, a, b) * 0.09 * (1 + 3 / at.together) * at.sum * exact


def _added(called: Contraction, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many products of each sum are not 0."""
    return called.product((a != 0).double(), (b != 0).double()).abs() / (called.times or 1.0)


def _runs(called: Contraction, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """How many runs of equal products each sum has, or values if that is fewer: a product is rounded alike wherever it
    is added to a number of that size; None where neither is known."""
    convolves = b.ndim > 2 and not called.batch
    if called.window or convolves or called.summed != (0, a.ndim - 1) or called.length < _RUN:
        return None
    dims = a.ndim - 1, -1 if "linear" in called.key else max(b.ndim - 2, 0)
    with _disable_current_modes():  # these sorts are none of the reference's
        given = a, b, a.sort(dims[0]).values, b.sort(dims[1]).values
    counts = [_changes(x, d) for x, d in zip(given, dims * 2, strict=True)]
    if a.ndim > 1 and b.ndim > 1:
        counts = [count.unsqueeze(-2 if n % 2 else -1) for n, count in enumerate(counts)]
    own, other, more, others = counts
    return torch.minimum(1 + own + other, (1 + more) * (1 + others))


def _changes(x: torch.Tensor, dim: int) -> torch.Tensor:
    """How often elements along a dimension differ from the one before them."""
    return (x.diff(dim=dim) != 0).sum(dim).double()


def _largest(errors: torch.Tensor) -> float:
    return float(errors.abs().nan_to_num_(0.0, 0.0, 0.0).max()) if errors.numel() else 0.0

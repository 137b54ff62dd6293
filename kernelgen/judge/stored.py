"""What products do to a result that is exact otherwise: calls of torch's store tensors, and all round and sum.

An operator with calls of torch's (products of matrices, convolutions, attention) writes what a call reads, and the call
writes what it computes, in the dtype of the operator: that rounding is no fault of the kernels around it. Nor is what
their long sums are off by at the precision that torch is set to (contractions.py). The oracle is computed again with
both, through all that follows them, and what its result then differs by is accepted like PyTorch's own error. A kernel
that sums products itself rounds what it multiplies, and has no reason to round what it sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from . import device as devices
from .contractions import (
    GRADIENTS,
    PRODUCTS,
    Contraction,
    Errors,
    Gradient,
    Pair,
    Precision,
    contraction,
    gradient,
    of_matrices,
    precision,
)
from .eager import EagerMode
from .known import Known
from .masks import sums_of_the_seen, without_hidden
from .wrong_products import Wronged

_UNTAGGED = frozenset(["hardswish", "log_sigmoid_forward"])
"""What works element by element although torch does not tag it so, of the functions that were looked at."""
_TF32_BITS = 13
"""Bits of a float32's mantissa that the matrix units leave out."""


@dataclass(frozen=True)
class Storing:
    """How one oracle is to treat sums of products."""

    dtype: torch.dtype
    """What lies in memory around calls of torch's, or is multiplied by the kernel."""
    errors: Errors | None = None
    """Of the sums; None: the sums are exact."""
    device: str = "cpu"
    """Where calls of torch's are made, be the oracle computed on the host: "cuda", or "cpu"."""
    called: bool = False
    """Calls give what torch gives in that dtype on that device."""
    whole: bool = False
    """Calls add what the reference has them add, before they round; otherwise a kernel adds it to what they stored.
    What a kernel makes of that element by element is stored too, step by step as PyTorch stores it, unless it is the
    kernel that sums: it stores one of these for the next one."""
    apart: bool = False
    """What a call adds to its sums is added to what it stored, as by a kernel, where `called` does not say so."""
    turned: float = 0.0
    """What `apart` rounds, the sums and what is added to them, is rounded up (1) or down (-1) by half an ulp."""
    wrong: Wronged | None = None
    """What they are in a mutant."""
    ours: bool = False
    """They are the kernel's own: the sums are not rounded."""
    multiplies: bool = False
    """Some are: float32 is multiplied as CUDA's products are set to."""
    as_tf32: bool = False
    """float32 is multiplied as TF32, whatever torch is set to."""
    noted: list[Pair] | None = None
    """Where the operands of every sum of products are noted, and 0 for what is minus infinity in those of a sum."""
    hidden: Sequence[Pair] = ()
    """Of every sum of products, which factors of 0 leave out what they are multiplied with, be that infinite or NaN; of
    every other, where a mask adds minus infinity (masks.py)."""
    hides_nan: bool = False
    """Of hidden factors, those that are NaN as well."""
    flushed: bool = False
    """Sums of products read 0 in the place of what is below float32's normal numbers, as GPUs' exponentials give."""
    known: Known = field(default_factory=Known)
    """Sums of one case."""
    anyhow: torch.Generator | float | None = None
    """Draws which way each number is rounded, by half an ulp, which is as far as rounding goes: a kernel stores what
    differs from the oracle's by what was rounded before, so that where few results follow from it, one rounding says
    little about another. A number says it of all, as `turned`."""

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """A float64 as memory holds it."""
        if self.anyhow is not None and x.dtype == torch.float64:
            with _disable_current_modes():  # what is added here is no sum of the reference's
                return _rounded_anyhow(x, self.dtype, self.anyhow)
        with torch._C.DisableTorchFunction():  # the rounding is meant, which the oracle's modes undo
            return x.to(self.dtype).double() if x.dtype == torch.float64 else x


def _rounded_anyhow(x: torch.Tensor, dtype: torch.dtype, way: torch.Generator | float) -> torch.Tensor:
    """Off by half an ulp, up or down at random or as it says; what is infinite in the dtype is so."""
    info, known = torch.finfo(dtype), x.detach()
    if isinstance(way, torch.Generator):
        drawn = torch.rand(x.shape, generator=way, dtype=torch.float64, device=way.device).to(x.device) - 0.5
    else:
        drawn = torch.full_like(known, way)
    ulp = torch.exp2(torch.frexp(known).exponent.double() - 1).clamp(min=info.tiny) * info.eps
    moves = known.isfinite() & (known != 0) & (known.abs() <= info.max)
    # half an ulp above the largest number everything is infinite
    overflows = known.abs() >= info.max / (1 - info.eps / 2) * (1 - info.eps / 4)
    beyond = torch.where(overflows, known.sign() * math.inf, 0.0)
    return x + torch.where(moves, drawn.sign() * 0.5 * ulp, beyond)  # used once: its gradient is no sum


class Stored(EagerMode):
    """Rounds what calls read and return to a dtype, and disturbs their sums; what lies in the inputs' memory is of that
    dtype already.
    """

    def __init__(self, storing: Storing, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype, self._ours, self._called, self._known = storing.dtype, storing.ours, storing.called, storing.known
        self._errors, self._wrong, self._rounded = storing.errors, storing.wrong, storing.rounded
        self._noted, self._hidden = storing.noted, iter(storing.hidden)
        multiplies = storing.ours or storing.multiplies
        self._multiplies, self._as_tf32 = multiplies, storing.as_tf32
        self._calls_on, self._set_for = storing.device, "cuda" if multiplies else storing.device
        self._inputs = {x.untyped_storage().data_ptr() for x in inputs}
        self._adds_itself = not storing.whole and self._multiplies
        self._apart, self._anyhow = storing.apart, storing.anyhow is not None
        self._rounded_apart = replace(storing, anyhow=storing.turned).rounded if storing.turned else storing.rounded
        self._stores_steps = storing.whole and not storing.ours
        self._product: torch.Tensor | None = None
        """A call's result, and what was made of it element by element so far."""
        self._attends = False
        self._flushes, self._hides_nan = storing.flushed, storing.hides_nan

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__.strip("_"), kwargs or {}
        if name not in PRODUCTS or self._attends:
            adds = name == "add" and not self._attends
            result = self._added(func, args, kwargs) if adds else func(*args, **kwargs)
            steps = self._stores_steps and (torch.Tag.pointwise in func.tags or name in _UNTAGGED)
            if steps and any(x is self._product for x in args):
                self._store_step(result)
            return result if self._wrong is None else self._wrong.after(name, result, args, kwargs)
        at = precision(name, self._dtype, self._set_for, as_tf32=self._as_tf32)
        if self._wrong is not None:
            self._wrong.read(args)
        args, kwargs = tree_map_only(torch.Tensor, lambda x: self._read(x, at), (args, kwargs))
        if name == GRADIENTS:
            return tuple(self._gradient(Gradient(func, n), args[:-1], at) if args[-1][n] else None for n in range(3))
        return self._multiplied(func, contraction(func, name, args, kwargs), args, kwargs, at)

    def _gradient(self, one: Gradient, args: tuple[Any, ...], at: Precision) -> torch.Tensor:
        """One of the gradients of a convolution; by its bias it is a sum like any other."""
        return one(*args) if one.which == 2 else self._multiplied(one, gradient(one, args), args, {}, at)

    def _multiplied(
        self, func: Any, called: Contraction, args: tuple[Any, ...], kwargs: dict[str, Any], at: Precision
    ) -> torch.Tensor:
        """What a call of the reference gives that sums products."""
        a, b = (args[place] for place in called.places)
        if self._called:
            next(self._hidden, None)  # torch sums what a mask hides as well
            if not (self._adds_itself and called.adds):
                self._product = self._own(func, args, kwargs)
                return self._product
            return self._own(called.product, (a, b), {}, called.key) + self._adds(func, args, kwargs, called)
        if self._apart and called.adds:
            (result,) = self._known.of(f"product {called.key}", (a, b), lambda: (called.product(a, b),))
            stored = self._written(self._off(result.clone(), called, a, b, at), called, self._rounded_apart)
            total = stored + self._adds(func, args, kwargs, called)
            return self._rounded_apart(total) if self._anyhow else total  # a kernel may save it for gradients
        result = self._exact(func, args, kwargs)
        return self._written(self._off(result, called, a, b, at), called) if result.dtype == torch.float64 else result

    def attended(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """softmax(query @ key.mT * scale + mask) @ value as one call computes it: the scores are never stored, the
        weights are rounded as they are multiplied. Without dropout, which no oracle has."""
        at = precision("matmul", self._dtype, self._set_for)
        if self._wrong is not None:
            self._wrong.read((query, key, value, attn_mask))
        query, key, value = (self._read(x, at) for x in (query, key, value))
        self._attends = True
        try:
            if self._called and all(x.numel() for x in (query, key, value)):  # see eager.InOrder
                given = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
                next(self._hidden, None), next(self._hidden, None)
                if any(x.requires_grad for x in (query, key, value)):
                    self._hidden = iter(())  # of torch's gradient it is not known which sums come in which order
                return self._own(torch.nn.functional.scaled_dot_product_attention, (query, key, value), given)
            if not key.shape[-2]:  # sums of nothing, which have gradients
                nothing = query[..., :0].sum() + key.sum() + value.sum()
                return nothing.expand((*query.shape[:-1], value.shape[-1]))
            if enable_gqa:
                key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
            usual = query.shape[-1] ** -0.5 if query.shape[-1] else math.inf
            scores = self._summed(query, key.mT, at) * (usual if scale is None else scale)
            if is_causal:
                causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
                scores = torch.where(causal, scores, -math.inf)
            if attn_mask is not None:
                kept = attn_mask.dtype == torch.bool
                scores = torch.where(attn_mask, scores, -math.inf) if kept else scores + attn_mask
            # a row that sees no key is 0, and so is its gradient
            unseen = (scores.amax(-1, keepdim=True) == -math.inf) & (attn_mask is not None)
            scores = torch.where(unseen, 0.0, scores)
            powers = torch.exp(scores - scores.amax(-1, keepdim=True))
            multiplied = self._rounded(powers) if self._dtype.itemsize < 4 else _flushed(powers)
            weights = torch.where(unseen, 0.0, multiplied / powers.sum(-1, keepdim=True))
            return self._written(self._summed(weights, value, at), of_matrices(weights))
        finally:
            self._attends = False

    def _store_step(self, result: Any) -> None:
        step = result if isinstance(result, torch.Tensor) else result[0]  # beside it is what a gradient wants
        if step.dtype == torch.float64:
            step.copy_(self._rounded(step))
            self._product = step

    def _added(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A sum, in which minus infinity that is added by a mask hides what it is added to, be that infinite or NaN.
        Autograd adds in place, or not, as it finds memory that nothing else holds."""
        operands = args[:2]
        if not all(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in operands):
            return func(*args, **kwargs)
        if self._noted is not None:
            first, second = ((x != -math.inf).double() for x in operands)
            self._noted.append((first, second))
        mask = next(self._hidden, None)
        total = func(*args, **kwargs)
        if mask is None:
            return total
        seen = torch.where(mask[0] | mask[1], -math.inf, total)
        return total.copy_(seen) if func.overloadpacket is torch.ops.aten.add_ else seen

    def _adds(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], called: Contraction) -> torch.Tensor:
        """What a call adds to its sums of products, be these infinite."""
        nothing = (torch.zeros_like(x) if n in called.places else x for n, x in enumerate(args))
        return self._exact(func, tuple(nothing), kwargs)

    def _exact(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        rest = [x for x in (*args, *kwargs.items()) if not isinstance(x, torch.Tensor)]
        (result,) = self._known.of(f"{func} {rest}", operands, lambda: (func(*args, **kwargs),))
        return result.clone()  # what follows may write to it

    def _own(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], named: str = "") -> torch.Tensor:
        """What a call gives in the dtype that is stored, where the kernel's calls run. `named`: which call it is, where
        its function does not say."""

        def lowered(*operands: torch.Tensor) -> torch.Tensor:
            left = iter(operands)
            given, options = tree_map_only(torch.Tensor, lambda _: next(left), (args, kwargs))
            result: torch.Tensor = func(*given, **options)
            return result

        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        narrow = [x.to(self._dtype) if x.dtype == torch.float64 else x for x in operands]
        rest = [x for x in tree_leaves((args, kwargs)) if not isinstance(x, torch.Tensor)]
        what = f"own {named or func} {rest}"
        # what has a gradient is of these very tensors, equal ones have others
        known = Known() if any(x.requires_grad for x in narrow) else self._known
        (result,) = known.of(what, narrow, lambda: (devices.on(self._calls_on, lowered)(*narrow),))
        return result.double() if result.dtype.is_floating_point else result.clone()

    def _summed(self, a: torch.Tensor, b: torch.Tensor, at: Precision) -> torch.Tensor:
        return self._off(torch.matmul(a, b), of_matrices(a), a, b, at)

    def _off(
        self, exact: torch.Tensor, called: Contraction, a: torch.Tensor, b: torch.Tensor, at: Precision
    ) -> torch.Tensor:
        """The sums of products of a and b with what they are off by."""
        if self._wrong is not None:
            exact = self._wrong.summed(exact, called, (a, b), at)
        if self._noted is not None:
            self._noted.append((a.detach().clone(), b.detach().clone()))
        mask = next(self._hidden, None)
        if mask is not None:
            pair = a.detach(), b.detach()
            seen = sums_of_the_seen(exact.detach(), called, pair, mask, nan=self._hides_nan)
            if exact.requires_grad:
                exact = called.product(*without_hidden((a, b), mask, nan=self._hides_nan))
            exact = _Replaced.apply(exact, seen)  # type: ignore[no-untyped-call]
        if self._errors is None:
            return exact
        with torch.no_grad():  # autograd looks at attention's products later; errors have no gradient
            errors = self._errors.of(called, a.detach(), b.detach(), at)
        return exact + errors

    def _read(self, x: torch.Tensor, at: Precision) -> torch.Tensor:
        if x.dtype != torch.float64:
            return x
        if x.untyped_storage().data_ptr() not in self._inputs:
            x = _flushed(x) if self._flushes else x
            disturbs = self._ours and self._errors is not None and x.ndim
            x = _flushed(self._scaled(x)) if disturbs else self._rounded(x)
        # where sums are disturbed, what operands lose is among the errors
        return tf32(x) if at.operand and self._errors is None else x

    def _written(
        self, sums: torch.Tensor, called: Contraction, rounded: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        result = sums if self._ours else (rounded or self._rounded)(sums)
        if self._wrong is not None:
            self._wrong.returned(result, adds=called.adds)
        return result

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Rounded as a multiple of it is, one a row: kernels multiply weights before they are divided by their sum. No
        number is infinite for that: such weights are 1 at most."""
        assert self._errors is not None
        of_rows = x.new_empty((*x.shape[:-1], 1)).uniform_(1, 2, generator=self._errors.generator)
        scaled = self._rounded(x * of_rows) / of_rows
        return torch.where(scaled.isfinite(), scaled, self._rounded(x))


class _Replaced(torch.autograd.Function):
    """Other values of a tensor, with its gradient: that of a sum is the same whatever it comes to, be that infinite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def _flushed(x: torch.Tensor) -> torch.Tensor:
    """With zeros where a float32 is below its normal numbers, as GPUs' exponentials have them: such a weight of an
    infinite value is NaN there."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x)


class Attention(TorchFunctionMode):
    """Hands attention to `stored`, before torch takes it apart or not."""

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        self._stored = stored

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            with torch._C.DisableTorchFunction():  # its roundings are meant, which the oracle's other modes undo
                return self._stored.attended(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Numbers in float64 as the matrix units read float32: 10 bits of the mantissa, rounded to nearest."""
    bits = x.float().view(torch.int32).add(2 ** (_TF32_BITS - 1)).bitwise_and(-(2**_TF32_BITS))
    return bits.view(torch.float32).double()

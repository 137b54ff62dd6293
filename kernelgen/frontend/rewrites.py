"""Functions of torch that fix sizes when they are traced, written in terms of others that do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kernelgen.frontend import complexes, recurrent, sampling
from kernelgen.frontend.rule import Refused


class Rewrites(TorchFunctionMode):
    """While a reference is traced.

    `writes`: it has operations that write to their operands. What contiguous() returns is then another tensor in the
    trace too, in the same memory: a call with other strides would have it copied. `numbers`: those that a call gives,
    each with the tensor that stands for it in the trace.
    """

    def __init__(self, *, writes: bool = False, numbers: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__()
        self.writes, self.numbers = writes, numbers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if complexes.is_complex(func, args):
            return complexes.called(func, args, kwargs or {})
        if func in _WITH_EPS and (made := self._with_eps(func, args, kwargs or {})) is not None:
            return made
        if func in (torch.take_along_dim, torch.Tensor.take_along_dim):
            return _take_along_dim(*args, **(kwargs or {}))
        if func in (torch.bincount, torch.Tensor.bincount):
            return _bincount(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor):
            return _tensor(func, *args, **(kwargs or {}))
        if func in (functional.cross_entropy, functional.nll_loss):
            return _class_losses(func, *args, **(kwargs or {}))
        if func is torch.Tensor.fill_diagonal_ and args[0].ndim == 2 and not (args[2:] or (kwargs or {}).get("wrap")):
            return _fill_diagonal(*args, **(kwargs or {}))
        if func is functional.one_hot:
            return _one_hot(func, *args, **(kwargs or {}))
        if func is functional.gaussian_nll_loss:
            return _gaussian_nll_loss(*args, **(kwargs or {}))
        if func is torch.Tensor.__getitem__:
            return func(args[0], _with_tables(args[1], args[0].device))
        if func is torch.Tensor.contiguous and self.writes:
            made = func(*args, **(kwargs or {}))
            return made.view(made.shape)
        if func in (torch.max_pool1d, functional.max_pool1d) and not (kwargs or {}).get("return_indices"):
            return _max_pool1d(*args, **{k: v for k, v in (kwargs or {}).items() if k != "return_indices"})
        if func is functional.grid_sample:
            return sampling.grid_sample(*args, **(kwargs or {}))
        if func is functional.multi_margin_loss:
            return _multi_margin_loss(*args, **(kwargs or {}))
        if func is torch.cdist:
            return _cdist(*args, **(kwargs or {}))
        if func in (torch.kron, torch.Tensor.kron):
            return _kron(*args, **(kwargs or {}))
        if func is functional.embedding_bag and (made := _equal_bags(*args, **(kwargs or {}))) is not None:
            return made
        if recurrent.whole(func, args):
            return recurrent.called(func, args)
        return func(*args, **(kwargs or {}))

    def _with_eps(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A norm whose eps is a number that the call gives, which torch would fix; None where it is not."""
        names = ("input", *_WITH_EPS[func])
        given = dict(zip(names, args, strict=False)) | kwargs
        eps = next((tensor for number, tensor in self.numbers if number is given.get("eps")), None)
        if eps is None:
            return None
        operation = getattr(torch.ops.kernelgen_reference, func.__name__)
        return operation(*(eps if name == "eps" else given.get(name) for name in names))


_WITH_EPS: dict[Any, tuple[str, ...]] = {
    functional.layer_norm: ("normalized_shape", "weight", "bias", "eps"),
    functional.rms_norm: ("normalized_shape", "weight", "eps"),
    functional.group_norm: ("num_groups", "weight", "bias", "eps"),
}
"""Norms by what they take after the input."""


@torch.library.custom_op(
    "kernelgen_reference::layer_norm", mutates_args=(),
    schema="(Tensor x, SymInt[] shape, Tensor? weight, Tensor? bias, Tensor eps) -> Tensor",
)  # fmt: skip
def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
    return functional.layer_norm(x, shape, weight, bias, eps.item())


@torch.library.custom_op(
    "kernelgen_reference::rms_norm", mutates_args=(),
    schema="(Tensor x, SymInt[] shape, Tensor? weight, Tensor eps) -> Tensor",
)  # fmt: skip
def rms_norm(x: Any, shape: Any, weight: Any, eps: Any) -> Any:
    return functional.rms_norm(x, shape, weight, eps.item())


@torch.library.custom_op(
    "kernelgen_reference::group_norm", mutates_args=(),
    schema="(Tensor x, int groups, Tensor? weight, Tensor? bias, Tensor eps) -> Tensor",
)  # fmt: skip
def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: Any) -> Any:
    return functional.group_norm(x, groups, weight, bias, eps.item())


for _norm in (layer_norm, rms_norm, group_norm):
    _norm.register_fake(lambda x, *_: torch.empty_like(x))


def _cdist(x: Any, y: Any, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """Distances by differences for any number of rows. Beyond 25 torch multiplies matrices, which is less exact."""
    mode = None if compute_mode == "use_mm_for_euclid_dist_if_necessary" else compute_mode
    return torch.cdist(x, y, p, mode or "donot_use_mm_for_euclid_dist")


def _multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Its kernels add what is above zero, which a NaN is not; torch's decomposition takes a maximum."""
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    rows, index = input.reshape(-1, input.shape[-1]), target.reshape(-1, 1)
    short = margin - rows.gather(1, index) + rows
    counts = (short > 0) & (torch.arange(rows.shape[1], device=input.device) != index)
    lost = short if p == 1 else short * short
    loss = torch.where(counts, lost if weight is None else lost * weight[index], 0.0).mean(-1).reshape(target.shape)
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def _kron(input: Any, other: Any) -> Any:
    """Every element of one times all of the other, of which torch makes sizes numbers."""
    rank = max(input.ndim, other.ndim)
    sides = [(*(1,) * (rank - x.ndim), *x.shape) for x in (input, other)]
    one = input.reshape([size for n in sides[0] for size in (n, 1)])
    two = other.reshape([size for n in sides[1] for size in (1, n)])
    return (one * two).reshape([n * m for n, m in zip(*sides, strict=True)])


def _tensor(func: Any, data: Any, **kwargs: Any) -> Any:
    """A number that has its value in the trace, on whatever device."""
    if isinstance(data, list | tuple):
        return _table(func, data, kwargs.get("dtype"), kwargs.get("device"))
    if not isinstance(data, int | float):
        return func(data, **kwargs)
    return torch.full((), data, dtype=kwargs.get("dtype"), device=kwargs.get("device"))


_MOST_NUMBERS = 16
"""The longest table that is written out: every number costs a comparison."""


def _table(func: Any, data: Any, dtype: Any, device: Any) -> Any:
    """Some numbers, each chosen by its place."""
    numbers, shape = data, []
    while isinstance(numbers, list | tuple) and numbers and isinstance(numbers[0], list | tuple):
        shape.append(len(numbers))
        numbers = [x for row in numbers for x in row]
    count = len(numbers)
    if not 0 < count <= _MOST_NUMBERS or not all(isinstance(x, int | float) for x in numbers):
        raise Refused(f"a tensor of more than {_MOST_NUMBERS} numbers (make it an input with role: constant)")
    dtype = dtype or func(numbers).dtype
    place = torch.arange(count, device=device)
    made = torch.full((count,), numbers[-1], dtype=dtype, device=device)
    for i in reversed(range(count - 1)):
        if numbers[i] != numbers[i + 1]:
            made = torch.where(place <= i, torch.full((), numbers[i], dtype=dtype, device=device), made)
    return made.reshape(*shape, -1) if shape else made


def _with_tables(index: Any, device: Any) -> Any:
    """An index whose lists of places are tensors."""
    if isinstance(index, tuple):
        return tuple(_with_tables(i, device) for i in index)
    if isinstance(index, list) and index and all(type(i) is int for i in index):
        return _table(torch.tensor, index, torch.int64, device)
    return index


def _one_hot(func: Any, tensor: Any, num_classes: Any = -1) -> Any:
    """With a size for the number of classes, of which torch makes a number."""
    if not isinstance(num_classes, torch.SymInt):
        return func(tensor, num_classes)
    classes: Any = num_classes  # for torch's stubs a size is no number
    return (tensor.unsqueeze(-1) == torch.arange(classes, device=tensor.device)).long()


def _gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Without torch's look at the variances, which may be negative here."""
    if not isinstance(var, torch.Tensor):
        var = torch.full((), var, dtype=input.dtype, device=input.device)
    if var.ndim and var.ndim == input.ndim - 1:
        var = var.unsqueeze(-1)
    kept = var.clamp(min=eps)
    loss = 0.5 * (torch.log(kept) + (input - target) ** 2 / kept)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _class_losses(func: Any, input: Any, target: Any, weight: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """The loss of every row as an operation whose result has a shape, which torch 2.13 loses of two dimensions; and one
    with weights and smoothing, for which torch fixes how many classes there are."""
    how, ignored = kwargs.get("reduction", "mean"), kwargs.get("ignore_index", -100)
    smoothing = kwargs.get("label_smoothing", 0.0)
    fixes = weight is not None and smoothing > 0 and how in _REDUCTIONS and not target.is_floating_point()
    is_lost = how == "none" and input.ndim <= 2
    if rest or not (fixes or is_lost) or any(kwargs.get(old) is not None for old in ("size_average", "reduce")):
        return func(input, target, weight, *rest, **kwargs)
    reduction = _REDUCTIONS.index(how)
    if func is functional.nll_loss:
        return nll_loss(input, target, weight, reduction, ignored)
    return cross_entropy_loss(input, target, weight, reduction, ignored, smoothing)


_REDUCTIONS = ("none", "mean", "sum")
"""In the order of torch's enumeration."""
_LOSS = "(Tensor x, Tensor target, Tensor? weight, int reduction, int ignored"


@torch.library.custom_op("kernelgen_reference::nll_loss", mutates_args=(), schema=f"{_LOSS}) -> Tensor")
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    return functional.nll_loss(x, target, weight, ignore_index=ignored, reduction=_REDUCTIONS[reduction])


@torch.library.custom_op(
    "kernelgen_reference::cross_entropy_loss", mutates_args=(), schema=f"{_LOSS}, float smoothing) -> Tensor"
)
def cross_entropy_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float) -> Any:
    how = _REDUCTIONS[reduction]
    return functional.cross_entropy(x, target, weight, ignore_index=ignored, reduction=how, label_smoothing=smoothing)


for _loss in (nll_loss, cross_entropy_loss):
    _loss.register_fake(lambda x, target, _, reduction, *__: x.new_empty(() if reduction else target.shape))


def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        input, indices, dim = input.flatten(), indices.flatten(), 0
    dim %= input.ndim
    sizes = [(a, b) for a, b in zip(input.shape, indices.shape, strict=True)]
    source = [a if d == dim or not _is_one(a) else b for d, (a, b) in enumerate(sizes)]
    taken = [b if d == dim or not _is_one(b) else a for d, (a, b) in enumerate(sizes)]
    from_start = torch.where(indices < 0, indices + input.shape[dim], indices)  # negative ones count from the end
    return input.expand(source).gather(dim, from_start.expand(taken))


def _max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """As a pool over planes of one line: torch 2.13 fixes the length that it takes a window of one dimension over."""
    size, step, before, apart = (_number(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
    lines = torch.max_pool2d(input.unsqueeze(-2), (1, size), (1, step), (0, before), (1, apart), ceil_mode)
    return lines.squeeze(-2)


def _equal_bags(input: Any, weight: Any, offsets: Any = None, *rest: Any, **given: Any) -> Any:
    """Bags of one length, whose number a trace cannot tell from where they begin; None of others."""
    refused = ("max_norm", "scale_grad_by_freq", "include_last_offset", "padding_idx")
    if input.ndim != 2 or offsets is not None or rest or any(given.get(name) not in (None, False) for name in refused):
        return None
    rows = functional.embedding(input, weight)
    if given.get("per_sample_weights") is not None:
        rows = rows * given["per_sample_weights"].unsqueeze(-1)
    mode = given.get("mode", "mean")
    return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _fill_diagonal(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    """In place, as torch's; of a matrix."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    return x.masked_fill_(rows[:, None] == columns, fill_value)


def _bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    return bincount(input, weights, minlength)


@torch.library.custom_op(
    "kernelgen_reference::bincount",
    mutates_args=(),
    schema="(Tensor x, Tensor? weights, SymInt minlength) -> Tensor",
)
def bincount(x: torch.Tensor, weights: torch.Tensor | None, minlength: int) -> torch.Tensor:
    """As many bins as a reference asks for: a trace does not know how many more torch would return."""
    return torch.bincount(x, weights, minlength)[:minlength].clone()


@bincount.register_fake
def _(x: torch.Tensor, weights: torch.Tensor | None, minlength: int) -> torch.Tensor:
    kinds = {None: torch.int64, torch.float32: torch.float32}
    dtype = kinds.get(weights if weights is None else weights.dtype, torch.float64)
    return torch.empty(minlength, dtype=dtype, device=x.device)


def _is_one(size: Any) -> bool:
    """Whether a traced size is declared as 1."""
    return isinstance(size, int) and size == 1

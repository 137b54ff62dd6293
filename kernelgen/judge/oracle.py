"""The fp64 reference, computed tile by tile so that it never takes more memory than one tile needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import device as devices
from . import walks
from .contractions import padding_of_output, zeros_around
from .eager import EagerMode, InOrder, LastWrites, OneByOne
from .finfo import of_stored_dtypes
from .model import Case, Function, Operator, Tensor
from .selections import Selections
from .stored import Attention, Stored, Storing

TILE_BYTES = 64 * 2**20
"""fp64 bytes of one tile's inputs and outputs together."""
PROBE = 2.0**-23
"""Relative size of the disturbance by which the oracle's own sensitivity is probed: one ulp of fp32."""
_LEAST = torch.finfo(torch.float32).tiny
_STEP = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
"""Between two denormals of fp32."""

Box = tuple[tuple[int, int], ...]
"""Start and length in each row dimension."""

_LOWER = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn})
_LOWERING = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
_CASTS = {torch.Tensor.to, torch.Tensor.type}


_RMS_NORMS = {torch.rms_norm, torch.nn.functional.rms_norm}
_NAN_TO_NUM = {torch.nan_to_num, torch.nan_to_num_, torch.Tensor.nan_to_num, torch.Tensor.nan_to_num_}
_GROUPED_MM = getattr(torch, "_grouped_mm", None)  # which F.grouped_mm calls, since torch 2.10


class _Raise(TorchFunctionMode):
    """Turns every cast to a lower float dtype into a cast to float64: the reference then loses no precision. What torch
    does not have in float64 is computed by its formula. `limits`: those of the dtype of what nan_to_num takes next."""

    def __init__(self, limits: Callable[[], torch.finfo]) -> None:
        super().__init__()
        self._limits = limits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (*_LOWERING, *_CASTS) and _is_integer(args[0]):
            # beyond 2**24 float32 has some of the integers alone: which one is what the cast says, and no error
            made = func(*args, **(kwargs or {}))
            if made.dtype is torch.float32:
                return made.double()
        if func in _LOWERING:
            return _recast(args[0], torch.Tensor.double(args[0]))
        if func is _GROUPED_MM:
            return _by_groups(*args, **(kwargs or {}))
        if func in _RMS_NORMS:
            args, kwargs = (), _with_eps(args, kwargs or {})
        if func in _NAN_TO_NUM:
            return _finite(func, self._limits, *args, **(kwargs or {}))
        raised = {k: _raise(v) for k, v in (kwargs or {}).items()}
        result = func(*(_raise(a) for a in args), **raised)
        if func not in _CASTS:
            return result
        narrow = any(x is torch.float8_e4m3fn for x in (*args, *(kwargs or {}).values()))
        return _in_float8_range(result) if narrow else _recast(args[0], result)


def _is_integer(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_floating_point() and not x.is_complex()


def _with_eps(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of torch.rms_norm, whose eps is by default that of the dtype in which it computes: float32's for
    every dtype of a spec, where a float64 input would get a smaller one."""
    given = {**dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)), **kwargs}
    return given if given.get("eps") is not None else {**given, "eps": torch.finfo(torch.float32).eps}


def _finite(
    func: Any, limits: Callable[[], torch.finfo], input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Any:
    """torch.nan_to_num of what is float64 here alone: without limits given, what its own dtype has no numbers for is
    infinite."""
    if not input.is_floating_point():
        return func(input)
    own = limits()
    result = func(input, nan, posinf, neginf)
    return result.clamp_(own.min if neginf is None else -math.inf, own.max if posinf is None else math.inf)


def _by_groups(x: torch.Tensor, matrices: torch.Tensor, *, offs: torch.Tensor, **_: Any) -> torch.Tensor:
    """F.grouped_mm of rows, group by group; rows behind the last are 0."""
    ends = offs.tolist()
    parts = [x[start:end] @ matrix for start, end, matrix in zip([0, *ends], ends, matrices, strict=False)]
    return torch.cat([*parts, x.new_zeros(len(x) - sum(map(len, parts)), matrices.shape[-1])])


class _SpelledOut(TorchFunctionMode):
    """Fused operations as the formula that torch documents for them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.group_norm:
            return _group_norm(*args, **(kwargs or {}))
        if func is torch.nn.functional.grid_sample:
            return _grid_sample(*args, **(kwargs or {}))
        if func in TRANSPOSED:
            return _transposed(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", *aligned: Any, **given: Any
) -> Any:
    """What lies at no place is outside, where torch's kernels for CPUs multiply zeros by a weight that is NaN."""
    outside = torch.where(grid.isfinite(), grid, 1e4) if padding_mode == "zeros" else grid
    return torch.nn.functional.grid_sample(input, outside, mode, padding_mode, *aligned, **given)


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - E[x]) / sqrt(Var[x] + eps) * weight + bias, where torch's kernels add what a mean of E[x] contributes to
    the bias and so turn an infinite weight into NaN."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(groups, dim=-1, correction=0, keepdim=True)
    normal = ((groups - mean) / torch.sqrt(variance + eps)).reshape(input.shape)
    channels = (-1, *(1 for _ in input.shape[2:]))
    normal = normal if weight is None else normal * weight.reshape(channels)
    return normal if bias is None else normal + bias.reshape(channels)


TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _transposed(
    convolve: Any, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Of an input with zeros around it, as other convolutions have them: an infinite weight of one makes NaN. torch's
    kernels differ in how many of these they multiply."""
    window = weight.shape[2:]

    def each(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * len(window) if len(values) == 1 else values

    strides = each(stride)
    around, cut = zeros_around(window, strides, each(padding), each(dilation))
    wide = torch.ops.aten.constant_pad_nd.default(input, around)
    return convolve(wide, weight, bias, strides, cut, output_padding, groups, dilation)


class _BackwardSpelledOut(EagerMode):  # type: ignore[no-untyped-call]
    """Gradients of convolutions by their input as transposed convolutions, these by their formula."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten.convolution_backward.default or args[7] or not args[10][0]:
            return func(*args, **(kwargs or {}))
        grad, given, weight, _, stride, padding, dilation, _, _, groups, asked = args
        rest = (None, None, None)
        if any(asked[1:]):
            rest = func(*args[:10], [False, *asked[1:]])
        left = padding_of_output(given, grad, weight, stride, padding, dilation)
        convolve = torch.ops.aten.convolution.default

        def spread(wide: Any, weight: Any, bias: Any, stride: Any, cut: Any, left: Any, groups: Any, gaps: Any) -> Any:
            return convolve(wide, weight, bias, stride, cut, gaps, True, left, groups)

        return (_transposed(spread, grad, weight, None, stride, padding, left, groups, dilation), *rest[1:])


class _ByColumns(EagerMode):  # type: ignore[no-untyped-call]
    """On a GPU, convolutions of large images by torch's own kernels, a product of matrices for every image, where there
    is the memory for its columns. In float64 cuDNN takes 1.1 to 8 times as long with ten that were tried, and with
    many small images an eightieth of the time (H200, torch 2.11)."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten.convolution.default or (columns := _columns(*args)) < _COLUMNS:
            return func(*args, **(kwargs or {}))
        of_bytes = columns * args[0].dtype.itemsize
        with nullcontext() if 4 * of_bytes > devices.free_bytes("cuda") else devices.without_cudnn():
            return func(*args, **(kwargs or {}))


def _columns(x: Any, weight: Any, bias: Any, stride: Any, pad: Any, gaps: Any, transposed: bool, *rest: Any) -> int:
    """Elements of the matrix that has a column of an image's elements for every place of a window; 0 where none is made
    on a GPU in float64."""
    if x.device.type != "cuda" or x.dtype != torch.float64 or not weight.shape[0]:
        return 0
    found: int = math.prod(weight.shape[1:]) * rest[-1] * math.prod(x.shape[2:])
    return found if transposed else found // math.prod(stride)


_COLUMNS = 2**21
"""So many elements of columns are a large image's. cuDNN won at 1.1 million, and lost at 2.9."""


def _in_float8_range(x: torch.Tensor) -> torch.Tensor:
    """What does not fit into float8 as this torch casts it: to the largest number, or before torch 2.12 to NaN."""
    return torch.where(x.abs() > torch.finfo(torch.float8_e4m3fn).max, x.to(torch.float8_e4m3fn).double(), x)


def _recast(x: torch.Tensor, raised: torch.Tensor) -> torch.Tensor:
    """A tensor of its own for what a cast gives, as torch has it wherever the dtype is another one."""
    return raised.view_as(raised) if raised is x else raised


def _raise(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOWER else value


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The outputs of a wrapper or reference, whether it returns one tensor or several."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


@dataclass(frozen=True)
class Noise:
    """Moves elements by an ulp of fp32, or several, up or down at random."""

    generator: torch.Generator
    alike: bool = False
    """Whether equal elements move alike. Rounding does that to them, and what it costs a sum of them does not average
    out; where each moves on its own, differences between them show instead."""
    inputs: bool = True
    """Whether inputs are moved too, which every kernel reads as they are."""
    ulps: float = 1.0

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        where = self.generator.device  # a number that a call gives lies on the host
        if self.alike:
            odd = torch.randint(2**62, (), generator=self.generator, device=where) | 1
            falls = x.view(torch.int64) * odd.to(x.device) < 0
        else:
            drawn = torch.empty(x.shape, dtype=torch.bool, device=where).random_(0, 2, generator=self.generator)
            falls = drawn.to(x.device)
        by = self.ulps * PROBE
        factor = torch.where(falls, 1 - by, 1 + by).double()
        # denormals are a step apart, however small they are: what rises, rises by one too, which changes no normal
        # number. Nobody asks whether there are any, for which a GPU would be waited for at every step
        return torch.addcmul(x * factor, x.sign(), (factor - 1).clamp_(min=0.0), value=_STEP / PROBE)


class _Disturb(EagerMode):
    """Moves every float64 result of a step, of an automatic gradient's too, also where torch takes several in one."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noise = noise

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in STEPWISE:
            with self:
                return steps().get(func, func)(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_")
        if name in _SELECTING or (name in _ROUNDING and not kwargs):
            return result
        off = walks.error(func, args, kwargs or {}, result)
        result = result if off is None else result + off
        memory = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(result, tuple | list):
            return type(result)(self._moved(x, memory) for x in result)
        moved = self._moved(result, memory)
        if moved is not result and name in _OF_INTEGERS and not self._noise.inputs:
            return torch.where(_are_integers((*args, result)), result, moved)
        return moved

    def _moved(self, x: Any, memory: set[int]) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float64 or x.untyped_storage().data_ptr() in memory:
            return x
        # GPUs may flush what is below float32's normal numbers
        return self._noise.moved(torch.where(x.abs() < _LEAST, 0.0, x) if self._noise.alike else x)


@functools.cache
def steps() -> Mapping[Any, Callable[..., Any]]:
    """Operations of STEPWISE, step by step."""
    from torch._decomp import get_decompositions  # takes a while, and not every judgement asks for gradients

    known = (getattr(torch.ops.aten, name, None) for name in STEPWISE)
    return get_decompositions([operation for operation in known if operation is not None])


_NORMS = (
    "native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm", "batch_norm", "cudnn_batch_norm",
)  # fmt: skip
STEPWISE = frozenset(
    [
        *_NORMS, *(f"{norm}_backward" for norm in _NORMS), "_native_batch_norm_legit", "gelu", "gelu_backward",
        "_log_softmax", "_log_softmax_backward_data", "_softmax_backward_data", "logsumexp",
    ]
)  # fmt: skip
"""Differences of terms of which a kernel rounds every one: of two nearly equal elements a norm gives -1 and 1, but for
what rounding took from their mean; of a row of one element gradients are zero, but fma(grad, weight, -mean) is what
rounding took from grad * weight; gelu has 1 + erf(x), which is 0 in float64 where an error function of what is left of
1 has 1e-20; a log-softmax has log(1 + 1e-14), which is 0 in float32."""

_SELECTING = frozenset([
    "abs", "amax", "amin", "arange", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd",
    "cummax", "cummin", "embedding", "empty", "empty_like", "flip", "full", "full_like", "gather", "index",
    "index_select", "kthvalue", "lift_fresh", "lift_fresh_copy", "masked_fill", "max", "maximum", "median", "min",
    "minimum", "mode", "nanmedian", "neg",
    "new_full", "new_zeros", "ones", "ones_like", "relu", "repeat", "roll", "scalar_tensor", "select_backward",
    "slice_backward", "sort", "stack", "to_copy", "topk", "tril", "triu", "where", "zeros", "zeros_like",
])  # fmt: skip
"""Operations whose float results are some of their operands' elements, which no kernel computes."""


_ROUNDING = frozenset(["ceil", "floor", "floor_divide", "heaviside", "round", "sign", "trunc"])
"""Operations whose results are integers, which no kernel has otherwise; what it rounds may be off."""
_OF_INTEGERS = frozenset(["add", "mul", "rsub", "sub"])
"""Operations that give of integers the same in every kernel. What is cast to an integer afterwards would lose one where
a disturbance takes from it."""
_ROUNDED = 2.0**-24
"""What float32 rounds by, relative to the result."""
_INTEGERS = 2.0**24
"""Up to which float32 has all of them."""


def _are_integers(operands: Sequence[Any]) -> torch.Tensor:
    """Where all operands are integers that float32 has."""
    found = torch.tensor(True)
    for x in operands:
        value = torch.as_tensor(x, dtype=torch.float64)
        found = found.to(value.device) & (value.trunc() == value) & (value.abs() <= _INTEGERS)
    return found


def in_float64(
    function: Function,
    inputs: Sequence[torch.Tensor],
    noise: Noise | None = None,
    selections: Selections | None = None,
    stored: Storing | None = None,
    spelled_out: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The function of the inputs, upcast exactly, with all float arithmetic in float64.

    `selections` hears of every operation that returns places.

    `noise`: every input and the result of every step is moved by one ulp of fp32. What the result
    moves by is what the formula itself does to the rounding errors of any kernel that computes in fp32: 1 - x * x / y
    is sensitive where x * x is close to y, although not to x.
    `stored`: what calls of torch's read and return is rounded, and their sums are disturbed.
    `spelled_out`: fused operations are computed by the formula that torch documents for them.
    """
    raised = [x.double() if x.dtype.is_floating_point else x for x in inputs]
    if noise is not None and noise.inputs:
        raised = [noise.moved(x) if x.dtype.is_floating_point else x for x in raised]
    if selections is not None:
        selections.given.update(x.untyped_storage().data_ptr() for x in raised)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        disturbed = _Disturb(noise) if noise else nullcontext()
        rounded = Stored(stored, raised) if stored else None
        spelled = _SpelledOut() if spelled_out else nullcontext()
        attended = Attention(rounded) if rounded else nullcontext()
        heard, calls = selections or nullcontext(), rounded or nullcontext()
        alike = OneByOne() if selections else InOrder()  # selections hear what is asked for
        limits = of_stored_dtypes(function, inputs)
        gradients = _BackwardSpelledOut() if spelled_out else nullcontext()  # type: ignore[no-untyped-call]
        large = any(x.is_cuda and x.numel() >= _COLUMNS // 64 for x in raised)
        convolved = _ByColumns() if large else nullcontext()  # type: ignore[no-untyped-call]
        with (
            torch.no_grad(), convolved, limits as own, _Raise(own), LastWrites(), alike, spelled, attended, heard,
            disturbed, calls, gradients,
        ):  # fmt: skip
            return as_tuple(function(*raised))
    finally:
        torch.set_default_dtype(before)


def worst_order(
    function: Function, cut: Sequence[torch.Tensor], refs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The oracle, off by what a sum of n elements in float32 is in the worst order: n - 1 roundings of the sum of their
    sizes. The reference itself says what that sum is, and with ones in the place of elements how many there are."""
    sizes = in_float64(function, [x.abs() if x.dtype.is_floating_point else x for x in cut])
    counts = in_float64(function, [torch.ones_like(x) if x.dtype.is_floating_point else x for x in cut])
    return tuple(r + _ROUNDED * (n - 1) * s for r, n, s in zip(refs, counts, sizes, strict=True))


class Tiling:
    """How one case is cut: the boxes, and a cut of a tensor to a box."""

    def __init__(self, operator: Operator, case: Case, tile_bytes: int = TILE_BYTES) -> None:
        self._case = case
        tensors = (*operator.inputs, *operator.outputs)
        cuttable = [t for t in tensors if t.rows is not None]
        extents = {tuple(case.shape(t)[d] for d in case.row_dims(t)) for t in cuttable}
        whole = not cuttable or any(t.rows is None for t in operator.outputs)
        if len(extents) > 1 and not whole:
            raise ValueError(f"{operator.name}: the rows of its tensors differ in {case.label}: {sorted(extents)}")
        self.extents: tuple[int, ...] = () if whole else extents.pop()
        # the bytes of whole inputs are needed beside every tile and cannot be made fewer
        self.cost = sum(8 * math.prod(case.shape(t)) for t in (tensors if whole else cuttable))
        self.tile_bytes = tile_bytes

    def boxes(self) -> Iterator[Box]:
        return _boxes(self.extents, self.cost, self.tile_bytes)

    def largest(self) -> int:
        """The fp64 bytes of the largest tile."""
        return min(self.cost, max(self.tile_bytes, self.cost // max(math.prod(self.extents), 1)))

    def cut(self, tensor: Tensor, data: torch.Tensor, box: Box) -> torch.Tensor:
        """The part of `data` that belongs to the box; all of it for a tensor without rows."""
        if tensor.rows is None:
            return data
        for (start, length), dim in zip(box, self._case.row_dims(tensor), strict=False):
            data = data.narrow(dim, start, length)
        return data

    def index(self, tensor: Tensor, local: Sequence[int], box: Box) -> tuple[int, ...]:
        """Where an element of a cut stands in the whole tensor."""
        place = list(local)
        for (start, _), dim in zip(box, self._case.row_dims(tensor), strict=False):
            place[dim] += start
        return tuple(place)


def _boxes(extents: tuple[int, ...], cost: int, budget: int) -> Iterator[Box]:
    if not extents or cost <= budget:
        yield tuple((0, extent) for extent in extents)
        return
    first, rest = extents[0], extents[1:]
    per_row = cost // first
    step = max(1, budget // max(per_row, 1))
    for start in range(0, first, step):
        length = min(step, first - start)
        for box in _boxes(rest, per_row * length, budget):
            yield ((start, length), *box)

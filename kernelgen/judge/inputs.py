"""Inputs: what values they hold, how they lie in memory, and the guard bands around them."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .model import Case, Layout, Operator, Tensor
from .searched import searched

GUARD_BYTES = 256
"""Before and after every input; a multiple of every alignment that Triton specialises on."""
GUARD_BYTE = 0xFF
"""Reads as NaN in every float dtype, so a read outside an input shows in the results as well."""

DISTRIBUTIONS = ("normal", "specials", "large", "equal rows", "zero-one", "uniform")
"""In the order in which trials take them: the most telling first, for cases that get few trials."""
TIES = ("ties", "one value")
"""Beside these for operators that select, compare or count: of equals one has to be taken."""
_GREATEST = (math.inf, math.nan, -math.inf)
"""What stands in the place of the greatest of few values in some rows."""
_WHOLE = (1.0, -math.inf)
"""What some rows consist of."""

_FINITE = {"specials": "normal", "ties": "zero-one"}
"""What fills an input that is finite in the place of what is not."""

_LARGE = 2.0**14
"""The spread of large floats: squares and cubes of these are finite in float32."""
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Buffer:
    """One input inside its guarded storage."""

    view: torch.Tensor
    """What the kernel is given."""
    flat: torch.Tensor
    """All bytes: guard, elements, guard."""
    body: tuple[int, int]
    """First byte of the elements and the byte after the last."""


def secret_seed() -> int:
    """A seed that no kernel can know beforehand."""
    return int.from_bytes(os.urandom(6), "little")


def derive_seed(base: int, *words: object) -> int:
    """An independent seed for each use of `base` (splitmix64 over a checksum of the words)."""
    z = (base + 0x9E3779B97F4A7C15 * (1 + zlib.crc32(repr(words).encode()))) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


def make(operator: Operator, case: Case, *, distribution: str, seed: int, device: str) -> tuple[Buffer, ...]:
    """Fresh guarded inputs; the same arguments give the same values. Those that the reference searches rise, and are
    finite."""

    def draw() -> list[torch.Tensor]:
        found = _made(operator, case, frozenset(), "normal", derive_seed(seed, "searched"), device)
        return [buffer.view for buffer in found]

    rising = searched(operator.reference, operator.pure, draw)
    return _made(operator, case, rising, distribution, seed, device)


def _made(
    operator: Operator, case: Case, rising: frozenset[int], distribution: str, seed: int, device: str
) -> tuple[Buffer, ...]:
    buffers = []
    for position, tensor in enumerate(operator.inputs):
        buffer, target = _allocated(tensor, case, device)
        if tensor.number is not None:
            target.fill_(_number(tensor.number, distribution, derive_seed(seed, position)))
        elif not tensor.like:  # a `like` input keeps its NaNs: nothing may read it
            generator = torch.Generator(device).manual_seed(derive_seed(seed, position))
            is_finite = tensor.finite or position in rising
            kind = _FINITE.get(distribution, distribution) if is_finite else distribution
            fill(tensor, case, target, kind, generator, operator.large)
            if position in rising and target.ndim:
                target.copy_(target.sort(-1).values)
        buffers.append(buffer)
    return tuple(buffers)


def without_memory(operator: Operator, case: Case) -> list[torch.Tensor]:
    """Inputs on the device meta: shapes, dtypes, strides and alignment as `make` has them, and no elements. Numbers are
    on the host, their defaults."""
    found = []
    for tensor in operator.inputs:
        buffer, target = _allocated(tensor, case, "meta")
        if tensor.number is not None:
            target.fill_(tensor.number)
        found.append(buffer.view)
    return found


def _allocated(tensor: Tensor, case: Case, device: str) -> tuple[Buffer, torch.Tensor]:
    """As `allocate` has it; a number is on the host."""
    equal = case.layout == "expanded" and tensor.offsets is not None  # offsets are 0 first and the total last
    layout = "contiguous" if equal else case.layout
    return allocate(case.shape(tensor), case.dtype(tensor), layout, device if tensor.number is None else "cpu")


def _number(default: float, distribution: str, seed: int) -> float:
    """The default for the first and most telling inputs; else one of its order, between half of it and twice. Of a
    whole number a whole one."""
    if distribution in ("normal", "specials"):
        return default
    found = (default or 1.0) * 2 ** (2 * (seed % 1024) / 1024 - 1)
    return found if isinstance(default, float) else round(found)


def storage_elements(shape: Sequence[int], layout: Layout) -> int:
    """How many elements the storage behind one input holds."""
    count = math.prod(shape)
    if layout == "sliced" and shape:
        return 2 * count
    if layout == "expanded" and shape and shape[0]:
        return count // shape[0]
    return count


def allocate(shape: tuple[int, ...], dtype: torch.dtype, layout: Layout, device: str) -> tuple[Buffer, torch.Tensor]:
    """A guarded buffer, all bytes GUARD_BYTE, and the part of it to fill (smaller than the view if expanded)."""
    start = GUARD_BYTES + (dtype.itemsize if layout == "offset" else 0)
    stop = start + storage_elements(shape, layout) * dtype.itemsize
    words = -(-(stop + GUARD_BYTES) // 8)
    flat = torch.full((words,), -1, dtype=torch.int64, device=device).view(torch.uint8)
    body = flat[start:stop].view(dtype)
    if layout == "transposed" and len(shape) >= 2:
        view = target = body.view(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    elif layout == "sliced" and shape:
        view = target = body.view(*shape[:-1], 2 * shape[-1])[..., ::2]
    elif layout == "expanded" and shape and shape[0]:
        target = body.view(1, *shape[1:])
        view = target.expand(shape)
    else:
        view = target = body.view(shape)
    return Buffer(view, flat, (start, stop)), target


def fill(
    tensor: Tensor,
    case: Case,
    target: torch.Tensor,
    distribution: str,
    generator: torch.Generator,
    large: float = _LARGE,
) -> None:
    """Fill `target` in place, whatever its strides, without a temporary of its size; indices are uniform. `large`: the
    spread of large floats."""
    if tensor.offsets is not None:
        total = math.prod(case.dims(tensor.offsets))
        offsets = target.new_empty(len(target) + 1) if tensor.is_ends else target
        _fill_offsets(offsets, total, distribution, generator)
        target.copy_(offsets[tensor.is_ends :])
    elif tensor.below is not None:
        target.random_(0, max(math.prod(case.dims(tensor.below)), 1), generator=generator)
    elif target.dtype == torch.float8_e4m3fn:  # torch has no random numbers of it
        wide = torch.empty(target.shape, dtype=torch.float32, device=target.device)
        _fill_float(wide, distribution, generator, large)
        target.copy_(wide.clamp_(-448, 448))
    elif target.dtype.is_floating_point:
        _fill_float(target, distribution, generator, large)
    elif target.dtype == torch.bool:
        target.random_(0, 2, generator=generator)
    else:
        _fill_integer(target, distribution, generator)


def _fill_float(target: torch.Tensor, distribution: str, generator: torch.Generator, large: float) -> None:
    if distribution == "uniform":
        target.uniform_(0, 1, generator=generator)
    elif distribution == "zero-one":
        target.random_(0, 2, generator=generator)
    elif distribution == "large":
        # far beyond where exp overflows, with squares and cubes that stay finite in fp32
        target.normal_(0, min(large, 2.0**10 if target.dtype == torch.float16 else large), generator=generator)
    elif distribution == "equal rows" and target.ndim >= 2:
        row = torch.empty((*target.shape[:-1], 1), dtype=target.dtype, device=target.device)
        target.copy_(row.normal_(0, 1, generator=generator).expand(target.shape))
    elif distribution == "ties":
        _fill_ties(target, generator)
    elif distribution == "one value":
        target.copy_(torch.empty((), dtype=target.dtype, device=target.device).normal_(0, 1, generator=generator))
    else:
        target.normal_(0, 1, generator=generator)
    if distribution == "specials":
        tiny = torch.finfo(target.dtype).tiny
        _scatter(target, (math.nan, math.inf, -math.inf, 0.0, -0.0, tiny), generator)


def _fill_offsets(target: torch.Tensor, total: int, distribution: str, generator: torch.Generator) -> None:
    """Where parts of `total` elements begin and end: cut anywhere, into equal parts, or one part that has them all,
    beside which others are empty."""
    if distribution in ("zero-one", "one value"):
        target.random_(0, 2, generator=generator).mul_(total)
    elif distribution == "equal rows":
        steps = torch.arange(len(target), device=target.device)
        target.copy_(steps * total // max(len(target) - 1, 1))
    else:
        target.random_(0, total + 1, generator=generator)
    target.copy_(target.sort().values)
    target[:1], target[1:][-1:] = 0, total


def _fill_ties(target: torch.Tensor, generator: torch.Generator) -> None:
    """Few values, whose sums and products are exact; in some rows the greatest is infinite or NaN, some repeat one."""
    target.random_(-2, 3, generator=generator)
    if not target.numel() or not target.ndim:
        return
    kinds = torch.randint(0, 8, (*target.shape[:-1], 1), generator=generator, device=target.device)
    for kind, value in enumerate(_GREATEST):
        target.masked_fill_((target == 2) & (kinds == kind), value)
    for kind, value in enumerate(_WHOLE, len(_GREATEST)):
        target.masked_fill_(kinds == kind, value)


def _fill_integer(target: torch.Tensor, distribution: str, generator: torch.Generator) -> None:
    limits = torch.iinfo(target.dtype)
    if distribution == "zero-one":
        target.random_(0, 2, generator=generator)
    elif distribution == "large":
        target.random_(limits.min // 2, limits.max // 2, generator=generator)
    elif distribution == "equal rows" and target.ndim >= 2:
        row = torch.empty((*target.shape[:-1], 1), dtype=target.dtype, device=target.device)
        target.copy_(row.random_(max(limits.min, -8), 9, generator=generator).expand(target.shape))
    elif distribution == "ties":
        target.random_(max(limits.min, -1), 2, generator=generator)
    elif distribution == "one value":
        target.fill_(int(torch.randint(max(limits.min, -8), 9, (), generator=generator, device=target.device)))
    else:
        target.random_(max(limits.min, -8), 9, generator=generator)
    if distribution == "specials":
        _scatter(target, (limits.min, limits.max, 0), generator)


def _scatter(target: torch.Tensor, values: Sequence[float], generator: torch.Generator) -> None:
    """Put the values, in turn, at random places: so few that some rows stay free of them."""
    if not target.numel() or not target.ndim:
        return
    rows = target.numel() // target.shape[-1]
    count = min(max(rows // 4, 3), 4096)
    places = tuple(torch.randint(0, size, (count,), generator=generator, device=target.device) for size in target.shape)
    chosen = list(itertools.islice(itertools.cycle(values), count))
    target[places] = torch.tensor(chosen, dtype=target.dtype, device=target.device)

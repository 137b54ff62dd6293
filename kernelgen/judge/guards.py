"""Guards around a call: fingerprints of memory, guard bands, poisoned outputs. docs/measuring.md lists their limits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .inputs import GUARD_BYTE, Buffer

POISONS = (0xFF, 0x5A)
"""The bytes that outputs hold before the first and the second call: NaN in every float dtype, and a finite number."""

_CHUNK, _CHUNK_ON_GPU = 2**20, 2**22
"""Words hashed at once: the temporaries of a fingerprint stay at a few times 8 MiB, or 32 on a GPU, where a launch
takes longer than hashing a small part."""
_M_PERTURB = -6
_SMALL = 2**24
_ODD = 0x1E3779B97F4A7C15


def told(numbers: Sequence[torch.Tensor]) -> list[Any]:
    """Numbers that lie on a device, which is asked once for all: each question waits for all that it was given before,
    and for its turn where several processes share it."""
    if len({number.device for number in numbers}) == 1:
        return list(torch.stack(list(numbers)).tolist())
    return [number.item() for number in numbers]


def fingerprint(tensor: torch.Tensor) -> int:
    """A checksum of every bit of a tensor that depends on positions.

    Words are weighted with odd numbers modulo 2**64, which is invertible: a change of one word is always seen,
    a change of many is missed by chance once in 2**64.
    """
    return fingerprints((tensor,))[0]


def fingerprints(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(told([_checksum(t) for t in tensors]))


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.contiguous().view(-1)
    if data.storage_offset() * data.itemsize % 8 or data.stride(0) != 1:  # one element may have any stride
        data = data.clone(memory_format=torch.contiguous_format)
    data = data.view(torch.uint8)
    whole = data.numel() // 8 * 8
    words, tail = data[:whole].view(torch.int64), data[whole:].to(torch.int64)
    length = _chunk(data)
    weights = torch.arange(1, 2 * min(length, max(words.numel(), 8)), 2, device=data.device).mul_(_ODD)
    total = (tail * weights[: tail.numel()]).sum()
    for chunk in torch.split(words, length):
        total = total * _ODD + (chunk * weights[: chunk.numel()]).sum()
    return total


def _chunk(tensor: torch.Tensor) -> int:
    return _CHUNK_ON_GPU if tensor.is_cuda else _CHUNK


def written_beside(buffers: Sequence[Buffer]) -> list[bool]:
    """Of each input, whether something was written right before or right after it."""
    bands = [(b.flat[: b.body[0]], b.flat[b.body[1] :]) for b in buffers]
    return told([(before != GUARD_BYTE).any() | (after != GUARD_BYTE).any() for before, after in bands])


@contextmanager
def poison(sizes: Sequence[int], byte: int, device: str) -> Iterator[Callable[[torch.Tensor], bool]]:
    """Memory that is allocated inside holds `byte`; yields a test of whether it did so for an output.

    On a GPU, blocks of these sizes in bytes are filled and freed, and the caching allocator hands them out next.
    On the host, glibc's malloc is told to fill what it hands out (mallopt, M_PERTURB).
    """
    if device == "cuda":
        # several of small ones: a wrapper may allocate other tensors of this size before its output
        blocks = [
            torch.full((size,), byte, dtype=torch.uint8, device=device)
            for size in sizes
            for _ in range(0 if not size else 3 if size <= _SMALL else 1)
        ]
        ranges = [span(block) for block in blocks]
        del blocks
        yield lambda output: not output.numel() or any(a <= output.data_ptr() < b for a, b in ranges)
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_PERTURB, 0x100 | (byte ^ 0xFF))  # malloc writes the complement; bit 8 tells 0 from "off"
    try:
        reached = bool((torch.empty(max(sizes, default=0), dtype=torch.uint8) == byte).all())
        yield lambda output: reached
    finally:
        if mallopt is not None:
            mallopt(_M_PERTURB, 0)


def overwrite(tensor: torch.Tensor, byte: int) -> None:
    """Overwrite the bytes of a tensor that nobody needs any more."""
    _memory(tensor).fill_(byte)


def spoil(tensor: torch.Tensor, byte: int, generator: torch.Generator) -> None:
    """Overwrite about every second element of a tensor, at random: a call that finds a former result in its output's
    place, and leaves what seems to be right there, leaves these too."""
    memory, size = _memory(tensor), tensor.dtype.itemsize
    elements = memory[: len(memory) // size * size].view(-1, size)
    for part in torch.split(elements, _chunk(tensor)):
        chosen = torch.empty((len(part), 1), dtype=torch.bool, device=part.device).random_(0, 2, generator=generator)
        part.masked_fill_(chosen, byte)


def apart(outputs: Sequence[Any], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs that may be overwritten between two calls: those that are no part of an argument."""
    spans = [(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in arguments]
    tensors = [o for o in outputs if isinstance(o, torch.Tensor) and o.numel()]
    return [o for o in tensors if not any(start <= o.data_ptr() < stop for start, stop in spans)]


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The two share memory."""
    (a_start, a_stop), (b_start, b_stop) = span(a), span(b)
    return max(a_start, b_start) < min(a_stop, b_stop)

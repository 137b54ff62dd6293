"""Guards around a call: fingerprints of memory, guard bands, poisoned outputs. docs/measuring.md lists their limits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .inputs import GUARD_BYTE, Buffer

POISONS = (0xFF, 0x5A)
"""The bytes that outputs hold before the first and the second call: NaN in every float dtype, and a finite number."""

_CHUNK = 2**20
"""Words hashed at once; the temporaries of a fingerprint stay at a few times 8 MiB."""
_ODD = 0x1E3779B97F4A7C15


def fingerprint(tensor: torch.Tensor) -> int:
    """A checksum of every bit of a tensor that depends on positions.

    Words are weighted with odd numbers modulo 2**64, which is invertible: a change of one word is always seen,
    a change of many is missed by chance once in 2**64.
    """
    data = tensor.contiguous().view(-1)
    data = (data if data.storage_offset() * data.itemsize % 8 == 0 else data.clone()).view(torch.uint8)
    whole = data.numel() // 8 * 8
    words, tail = data[:whole].view(torch.int64), data[whole:].to(torch.int64)
    weights = torch.arange(1, 2 * min(_CHUNK, max(words.numel(), 8)), 2, device=data.device).mul_(_ODD)
    total = (tail * weights[: tail.numel()]).sum()
    for chunk in torch.split(words, _CHUNK):
        total = total * _ODD + (chunk * weights[: chunk.numel()]).sum()
    return int(total.item())


def fingerprints(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(fingerprint(t) for t in tensors)


def guards_intact(buffer: Buffer) -> bool:
    """Nothing was written right before or right after the input."""
    start, stop = buffer.body
    return all(bool((band == GUARD_BYTE).all()) for band in (buffer.flat[:start], buffer.flat[stop:]))


def poison_free_memory(sizes: Sequence[int], byte: int, device: str) -> set[int]:
    """Fill blocks of these sizes in bytes and free them, so that the allocator hands them out next.

    Returns their addresses: an output that lies at one of them was poisoned beforehand.
    """
    blocks = [torch.full((size,), byte, dtype=torch.uint8, device=device) for size in sizes if size]
    addresses = {block.data_ptr() for block in blocks}
    while blocks:  # the last one taken is given back first, as an allocator's free list expects
        blocks.pop()
    return addresses


def overwrite(tensor: torch.Tensor, byte: int) -> None:
    """Overwrite the bytes of a tensor that nobody needs any more."""
    storage = tensor.untyped_storage()
    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).fill_(byte)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The two share memory."""
    (a_start, a_stop), (b_start, b_stop) = span(a), span(b)
    return max(a_start, b_start) < min(a_stop, b_stop)

"""The random numbers that a reference may draw, in plain PyTorch: a baseline carries this function with it.

A trace sees one operation, which the table of `masks.py` lowers to Triton's own Philox.
"""

import torch


def random_mask(
    seed: torch.Tensor,
    shape: torch.Size,
    probability: float,
) -> torch.Tensor:
    """True with `probability`, the same for the same `seed`, a zero-dimensional int64 tensor.

    Philox 4x32-10 (Salmon et al., 2011): element i, counted row by row, compares word i % 4
    of tl.randint4x(seed, i // 4). A product wraps in int64; its 64 bits are right.
    """
    count = torch.Size(shape).numel()
    counter = torch.arange((count + 3) // 4, device=seed.device)
    low = 0xFFFFFFFF  # the lower 32 bits
    c0, c1 = counter & low, counter >> 32
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = seed & low, seed >> 32 & low
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (b >> 32 & low) ^ c1 ^ k0, b & low
        c2, c3 = (a >> 32 & low) ^ c3 ^ k1, a & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    words = torch.stack((c0, c1, c2, c3), dim=-1).reshape(-1)[:count]
    return (words < round(probability * 2**32)).reshape(shape)


traced = torch.library.custom_op(
    "kernelgen_reference::random_mask",
    random_mask,
    mutates_args=(),
    schema="(Tensor seed, SymInt[] shape, float probability) -> Tensor",
)
"""What stands under the name in a reference that is traced."""


@traced.register_fake
def _(seed: torch.Tensor, shape: torch.Size, probability: float) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device=seed.device)

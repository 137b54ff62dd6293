"""What is asked of Helion in peers.py and tuner.py: it makes and tunes the kernels from these. (It reads annotations as
they are, so this module has none postponed.)"""

import helion
import helion.language as hl
import torch

SETTINGS = {"autotune_effort": "quick", "autotune_random_seed": 0, "autotune_progress_bar": False}


@helion.kernel(**SETTINGS)
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[tile, :] = (powers / torch.sum(powers, dim=1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel(**SETTINGS)
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(values * values, dim=1, keepdim=True) + 1e-6)
        out[tile, :] = (values * scale).to(x.dtype) * weight[:]
    return out


@helion.kernel(**SETTINGS)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows, summed = a.size()
    _, columns = b.size()
    out = torch.empty([rows, columns], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([rows, columns]):
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(summed):
            total = torch.addmm(total, a[tile_m, tile_k], b[tile_k, tile_n])
        out[tile_m, tile_n] = total
    return out

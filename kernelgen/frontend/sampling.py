"""grid_sample of planes as torch's kernels compute it: what lies outside is not read, and adds nothing."""

from __future__ import annotations

from typing import Any

import torch


def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Any:
    if input.ndim != 4 or mode not in ("bilinear", "nearest"):  # torch's decomposition
        return torch.nn.functional.grid_sample(input, grid, mode, padding_mode, align_corners)
    count, channels, height, width = input.shape
    x = _place(grid[..., 0], width, padding_mode, bool(align_corners))
    y = _place(grid[..., 1], height, padding_mode, bool(align_corners))
    n = torch.arange(count, device=input.device).view(-1, 1, 1, 1)
    c = torch.arange(channels, device=input.device).view(1, -1, 1, 1)

    def part(column: Any, row: Any, weight: Any = None) -> Any:
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        row, column = (torch.where(inside, place, 0.0).long().unsqueeze(1) for place in (row, column))
        value = input[n, c, row, column]
        return torch.where(inside.unsqueeze(1), value if weight is None else value * weight.unsqueeze(1), 0.0)

    if mode == "nearest":
        return part(x.round(), y.round())
    left, top = x.floor(), y.floor()
    right, below = left + 1, top + 1
    return (
        part(left, top, (right - x) * (below - y))
        + part(right, top, (x - left) * (below - y))
        + part(left, below, (right - x) * (y - top))
        + part(right, below, (x - left) * (y - top))
    )


def _place(coordinate: Any, size: Any, padding: str, aligned: bool) -> Any:
    """The place of a coordinate from -1 to 1, along so many elements. NaN is the first place, if it is put inside."""
    place = (coordinate + 1) * ((size - 1) / 2) if aligned else ((coordinate + 1) * size - 1) / 2
    if padding == "zeros":
        return place
    if padding == "reflection":
        first, span = (0.0, size - 1) if aligned else (-0.5, size)
        beyond = (place - first).abs()
        rest, turns = torch.fmod(beyond, span), (beyond / span).floor()
        even = turns - 2 * (turns / 2).floor() == 0
        place = torch.where(even, rest + first, span + first - rest)
    return torch.where(place.isnan(), 0.0, place).clamp(0, size - 1)

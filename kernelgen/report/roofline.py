"""The roofline of a run as SVG. Colours are the page's, so that it is right on light, dark and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from kernelgen.report.story import Point

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
"""Pixels of the margins; the picture keeps its size of text on a narrow screen."""


def roofline(points: Sequence[Point], bandwidth: float) -> str:
    """FLOP/s over FLOP/byte, both logarithmic: the memory's slope, each ceiling of arithmetic, a dot a case."""
    least = 10 ** math.floor(math.log10(min(p.intensity for p in points) / 2))
    most = 10 ** math.ceil(math.log10(max([p.intensity for p in points] + [p.ceiling / bandwidth for p in points]) * 2))
    top = 10 ** math.ceil(math.log10(max(p.ceiling for p in points)))
    bottom = min(least * bandwidth, min(p.rate for p in points))
    bottom = 10 ** math.floor(math.log10(bottom))

    def x(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(intensity / least) / math.log(most / least)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(rate / bottom) / math.log(top / bottom)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" class="roofline" '
        'aria-label="Roofline: FLOP/s over FLOP per byte">'
    ]
    for power in range(round(math.log10(least)), round(math.log10(most)) + 1):
        at = x(10.0**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(round(math.log10(bottom)), round(math.log10(top)) + 1):
        at = y(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_rate(10.0**power)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">FLOP per byte</text>')
    parts.append(f'<text x="4" y="{HEIGHT - 6}">FLOP/s</text>')
    for ceiling in sorted({p.ceiling for p in points}):
        knee = ceiling / bandwidth
        path = f"M{x(least):.1f},{y(max(least * bandwidth, bottom)):.1f}L{x(knee):.1f},{y(ceiling):.1f}H{WIDTH - RIGHT}"
        parts.append(f'<path class="roof" d="{path}"/>')
    for p in points:
        title = f"{p.case}: {_rate(p.rate)}FLOP/s at {p.intensity:.3g} FLOP per byte"
        place = f'cx="{x(p.intensity):.1f}" cy="{y(p.rate):.1f}"'
        parts.append(f'<circle {place} r="4"><title>{escape(title)}</title></circle>')
    return "\n".join([*parts, "</svg>"])


def _rate(value: float) -> str:
    """A number with its SI prefix: `10 T`."""
    for prefix, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= unit:
            return f"{value / unit:.3g} {prefix}"
    return f"{value:.3g} "

"""A roofline as an SVG: what a device can do at every intensity, by its data sheet and as measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from kernelgen.devices import Peaks
    from kernelgen.devices.ceilings import Ceilings

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 440, 70, 40, 190, 50
FLOP_PER_BYTE = (2**-4, 2**13)
KINDS = (("float32", "fp32"), ("tf32", "tf32"), ("float16", "fp16, bf16"), ("float8_e4m3fn", "fp8"))
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")


def picture(facts: Peaks, found: Ceilings | None) -> str:
    """Slopes of the bandwidths, flats of the arithmetic; dashed by the data sheet, drawn through as measured."""
    measured = {kind: found.best(f"matrix {kind}") for kind, _ in KINDS} if found else {}
    dram = found.dram if found else None
    own = found is None or found.device == facts.name
    flats = [facts.product_flops(kind) for kind, _ in KINDS] if own else []
    flats += [rate for rate in measured.values() if rate]
    top = max(flats, default=1e12) * 2
    slope = (facts.dram_bytes_per_s if own else 0) or dram or 1e9
    bottom = min(slope, dram or slope) * FLOP_PER_BYTE[0] / 2

    def x(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _log(intensity, *FLOP_PER_BYTE)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _log(rate, bottom, top)

    def line(bandwidth: float, flat: float, colour: str, dashed: bool) -> str:
        ridge = min(max(flat / bandwidth, FLOP_PER_BYTE[0]), FLOP_PER_BYTE[1])
        points = [(FLOP_PER_BYTE[0], bandwidth * FLOP_PER_BYTE[0]), (ridge, flat), (FLOP_PER_BYTE[1], flat)]
        path = " ".join(f"{x(i):.1f},{y(r):.1f}" for i, r in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}"{DASHED if dashed else ""}/>'

    parts = [*_axes(x, y, bottom, top)]
    for (kind, label), colour in zip(KINDS, COLOURS, strict=True):
        if own:
            parts.append(line(facts.dram_bytes_per_s, facts.product_flops(kind), colour, dashed=True))
        rate = measured.get(kind)
        if rate and (dram or slope):
            parts.append(line(dram or slope, rate, colour, dashed=False))
        shown = rate or (facts.product_flops(kind) if own else None)
        if shown:
            said = f"{label}: {shown / 1e12:.3g} TFLOP/s{'' if rate else ' (data sheet)'}"
            parts.append(_text(WIDTH - RIGHT + 8, y(shown) + 4, said, colour=colour))
    name = facts.name if own or found is None else found.device
    bandwidth = f"{dram / 1e12:.3g} TB/s measured" if dram else f"{slope / 1e12:.3g} TB/s, data sheet"
    when = f", measured {found.date}" if found else ", not measured"
    parts.append(_text(LEFT, TOP - 16, f"{name}: DRAM {bandwidth}{when}; dashed: data sheet"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


DASHED = ' stroke-dasharray="5 4" opacity="0.6"'


def _axes(x: Callable[[float], float], y: Callable[[float], float], bottom: float, top: float) -> list[str]:
    parts = []
    for power in range(-4, 14, 3):
        at = x(2.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{2.0**power:g}", "middle"))
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, at + 4, f"{10.0 ** (power - 12):g}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "FLOP a byte", "middle"))
    parts.append(_text(8, TOP - 2, "TFLOP/s"))
    return parts


def _text(x: float, y: float, said: str, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(said)}</text>'


def _log(value: float, low: float, high: float) -> float:
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

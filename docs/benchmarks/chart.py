"""The measured rows as a chart, which `measure.py --table` writes as h200.svg beside h200.json.

Every row is one bar pair, the share of the floor that the generated kernel and the best of PyTorch's three reach.
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

LABEL, WIDTH, ROW, BAR, TOP, FOOT = 330, 420, 26, 9, 46, 40
"""Pixels: the labels' width, the length of 100 %, a row's height, a bar's, and the margins."""
MOST = 1.3
"""The share at which a bar is cut; a kernel may write faster than torch's fill, which is the floor of a broadcast."""
OURS, TORCH, GRID, INK = "#1a7f5a", "#b8bfc6", "#e4e7ea", "#24292e"


def shares(row: dict[str, Any]) -> tuple[float, float] | None:
    """The kernel's share of the floor and the best torch's, in one comparison; None where nothing was measured."""
    if not row["comparisons"]:
        return None
    best = min(row["comparisons"].values(), key=lambda c: float(c["speedup"]))
    kernel = row["floor_us"] / best["b_us"]
    return kernel, kernel / best["speedup"]


def chart(data: dict[str, Any]) -> str:
    """The whole picture as SVG text."""
    rows = [(row, found) for row in data["rows"] if (found := shares(row))]
    height = TOP + ROW * len(rows) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + int(WIDTH * MOST) + 70}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="13">Share of the roofline on {escape(data["device"])}, float16</text>',
        f'<rect x="10" y="29" width="10" height="9" fill="{OURS}"/><text x="25" y="37">generated kernel</text>',
        f'<rect x="130" y="29" width="10" height="9" fill="{TORCH}"/>'
        '<text x="145" y="37">the best of eager, torch.compile and max-autotune</text>',
    ]
    for percent in range(0, int(100 * MOST) + 1, 25):
        x = LABEL + WIDTH * percent / 100
        parts.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{height - FOOT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - FOOT + 15}" text-anchor="middle">{percent} %</text>')
    for number, (row, (kernel, torch)) in enumerate(rows):
        y = TOP + ROW * number + 3
        label = f"{row['operator']}  {row['case'].removesuffix(' float16')}"
        parts.append(f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        for share, color, offset in ((kernel, OURS, 0), (torch, TORCH, BAR)):
            width = WIDTH * min(share, MOST)
            parts.append(f'<rect x="{LABEL}" y="{y + offset}" width="{width:.1f}" height="{BAR}" fill="{color}"/>')
        end = LABEL + WIDTH * min(max(kernel, torch), MOST) + 6
        parts.append(f'<text x="{end:.1f}" y="{y + 12}">{kernel / torch:.2f}x</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"

"""Scans on a vector processor: whole rows in the buffer, one or several, or rows walked in blocks."""

from __future__ import annotations

from kernelgen.families import cooperative, scan
from kernelgen.families.kernel import Body, KernelText
from kernelgen.families.npu import reduction
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.held import row_elements
from kernelgen.families.npu.lines import PackedLines, walked
from kernelgen.families.npu.space import HELPERS, VARIANTS
from kernelgen.plan import Chip, Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NAME = "scan"
TEMPLATE = "npu_kernels.py.jinja"
PACKED = True
MEANINGS = VARIANTS
OWN_HELPERS = HELPERS
KEY_ITEMSIZE = reduction.KEY_ITEMSIZE
default = reduction.default
legal = reduction.legal
fits = reduction.fits


def variants(body: Body) -> tuple[str, ...]:
    """Those of a GPU; a core has whole rows."""
    return tuple(v for v in scan.variants(body) if v not in ("split", cooperative.VARIANT))


def first_table(body: Body, chip: Chip) -> tuple[tuple[int | None, Schedule], ...]:
    """Several short rows a tile, then one, then blocks of a row, as large as the buffer allows."""
    most = tile_elements(body, chip, whole_rows=True)
    several = default("rows").replace(BLOCK_SIZE_M=max(1, min(most // 256, 16)))
    rows = [(KEY_ITEMSIZE * 256, several)] if body.layout.rows else []
    longest = KEY_ITEMSIZE * row_elements(body, chip)
    return (*rows, (longest, default("row")), (None, default("looped").replace(BLOCK_SIZE_N=most)))


def starts(body: Body, chip: Chip, columns: int) -> tuple[Schedule, ...]:
    """Where a search sets out: the variants that the family has, at the largest tile that fits."""
    return tuple(s for s in reduction.starts(body, chip, columns) if s.variant in variants(body))


def space(variant: str) -> tuple[Parameter, ...]:
    return reduction.space(variant)


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel for one schedule's structure."""
    plain = scan.default(schedule.variant)
    if schedule.variant == "looped":
        plain = plain.replace(NUM_STAGES=1)
    (text,) = scan.kernels(spec, body, plain, name, helpers, PackedLines)
    passed = reduction.WHOLE if schedule.variant in ("row", "rows") else ()
    tiles = reduction.TILES if schedule.variant == "rows" else "M"
    sizes = ("M", "N") if body.layout.rows else ("N",)
    return (walked(text, schedule, tiles if body.layout.rows else "1", sizes=sizes, passed=passed),)

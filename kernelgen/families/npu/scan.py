"""Scans on a vector processor: whole rows in the buffer, one or several, or rows walked in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families import cooperative, scan
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body, KernelText
from kernelgen.families.npu import reduction
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.held import row_elements
from kernelgen.families.npu.lines import PackedLines, walked
from kernelgen.families.npu.space import HELPERS, VARIANTS
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec

NAME = "scan"
KEY_ITEMSIZE = reduction.KEY_ITEMSIZE
default = reduction.default
legal = reduction.legal
fits = reduction.fits


def variants(body: Body) -> tuple[str, ...]:
    """Those of a GPU; a core has whole rows."""
    return tuple(v for v in scan.variants(body) if v not in ("split", cooperative.VARIANT))


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """Several short rows a tile, then one, then blocks of a row, as large as the buffer allows."""
    assert chip is not None, "a family for a chip"
    most = tile_elements(body, chip, whole_rows=True)
    several = default("rows").replace(BLOCK_SIZE_M=max(1, min(most // 256, 16)))
    rows = [table_row(several, row_bytes=KEY_ITEMSIZE * 256)] if body.layout.rows else []
    longest = KEY_ITEMSIZE * row_elements(body, chip)
    walk = default("looped").replace(BLOCK_SIZE_N=most)
    return (*rows, table_row(default("row"), row_bytes=longest), table_row(walk))


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: the variants that the family has, at the largest tile that fits."""
    return tuple(s for s in reduction.starts(body, rows, columns, chip) if s.variant in variants(body))


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


FAMILY = Family(
    f"npu_{NAME}", scan.takes, variants, VARIANTS, default, first_table, starts, space, legal, kernels,
    packed=True, key_itemsize=KEY_ITEMSIZE, template="npu_kernels.py.jinja", own_helpers=HELPERS, fits=fits,
)  # fmt: skip

"""Scans on a vector processor: whole rows in the buffer, one or several, or rows walked in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.families import scan
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body
from kernelgen.families.npu import reduction
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.held import row_elements
from kernelgen.families.npu.lines import PackedNest
from kernelgen.families.npu.space import HELPERS
from kernelgen.plan import Chip, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "scan"
KEY_ITEMSIZE = reduction.KEY_ITEMSIZE
FORMS = reduction.FORMS
default = reduction.default
fits = reduction.fits


def variants(body: Body) -> tuple[str, ...]:
    """Those of a GPU; a core has whole rows."""
    return tuple(v for v in scan.variants(body) if v in FORMS)


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


def _kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel for one schedule's structure."""
    form, plain = FORMS[schedule.variant], scan.default(schedule.variant)
    if form.walks:
        nest = PackedNest(spec, body, form, plain.replace(NUM_STAGES=1))
        text = reduction.in_blocks(nest, scan.walked_rows(nest), name)
    else:
        text = reduction.in_registers(spec, body, plain, name)
    return (reduction.one_program_a_core(text, schedule, body),)


FAMILY = Family(
    f"npu_{NAME}", scan.takes, tuple(reduction.variant(form, _kernels) for form in FORMS.values()), variants,
    first_table, starts,
    packed=True, key_itemsize=KEY_ITEMSIZE, own_helpers=HELPERS, fits=fits,
)  # fmt: skip

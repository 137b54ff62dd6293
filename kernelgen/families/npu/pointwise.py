"""Pointwise on a vector processor: blocks of one run of elements, or tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families import pointwise
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body, KernelText
from kernelgen.families.npu.budget import tile_elements
from kernelgen.families.npu.lines import PackedLines, column_elements, walked
from kernelgen.families.npu.space import HELPERS, MULTIBUFFER, VARIANTS, block
from kernelgen.plan import Chip, Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec

NAME = "pointwise"


def variants(body: Body) -> tuple[str, ...]:
    return ("flat",) if body.layout.columns is None else ("tile",)


def default(variant: str) -> Schedule:
    if variant == "flat":
        return Schedule.make("flat", BLOCK_SIZE=2048, multibuffer=True)
    return Schedule.make("tile", BLOCK_SIZE_M=4, BLOCK_SIZE_N=512, multibuffer=True)


def first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    """The largest blocks that fit: each is one copy in and one out. Short rows are taken several at a time."""
    assert chip is not None, "a family for a chip"
    elements = tile_elements(body, chip, whole_rows=False)
    if variants(body) == ("flat",):
        return (table_row(default("flat").replace(BLOCK_SIZE=elements)),)
    if pointwise.is_turned(body):  # square: it is read along its rows and written along its columns
        side = 1 << (elements.bit_length() // 2)
        return (table_row(default("tile").replace(BLOCK_SIZE_M=max(1, elements // side), BLOCK_SIZE_N=side)),)
    # 256 columns fill the vector unit's widest access; what varies along the columns is read once for many rows
    short, long = min(256, elements), min(2048, elements)
    tile = default("tile")
    return (
        table_row(tile.replace(BLOCK_SIZE_N=short, BLOCK_SIZE_M=max(1, elements // short)), row_bytes=2 * short),
        table_row(tile.replace(BLOCK_SIZE_N=long, BLOCK_SIZE_M=max(1, elements // long))),
    )


def starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    """Where a search sets out: the first table's schedules."""
    return tuple(row.schedule for row in first_table(body, (), chip))


def space(variant: str) -> tuple[Parameter, ...]:
    if variant == "flat":
        return (block("BLOCK_SIZE", 256, 65536, "elements of a block"), MULTIBUFFER)
    return (
        block("BLOCK_SIZE_M", 1, 256, "rows of a tile"),
        block("BLOCK_SIZE_N", 16, 32768, "its columns"),
        MULTIBUFFER,
    )


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule cannot serve rows of `columns` elements; None if it can."""
    if schedule.variant == "tile" and schedule.int("BLOCK_SIZE_N") > 2 * max(column_elements(columns), 256):
        return f"columns of a tile more than twice the {columns} of a row"
    return None


def fits(body: Body, chip: Chip, schedule: Schedule, columns: int) -> str | None:
    """Why the buffer cannot hold a tile; None if it is planned to."""
    rows = 1 if schedule.variant == "flat" else schedule.int("BLOCK_SIZE_M")
    size = rows * schedule.int("BLOCK_SIZE" if schedule.variant == "flat" else "BLOCK_SIZE_N")
    most = tile_elements(body, chip, whole_rows=False)
    return f"a tile of {size} elements, of which the buffer holds {most}" if size > most else None


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel for one schedule's structure."""
    plain = pointwise.default(schedule.variant)
    (text,) = pointwise.kernels(spec, body, plain, name, helpers, PackedLines)
    if schedule.variant == "flat":
        blocks = 'triton.cdiv(n_elements, options["BLOCK_SIZE"])'
        return (walked(text, schedule, blocks, sizes=("n_elements",)),)
    text = replace(text, constexprs=("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
    return (walked(text, schedule, "", sizes=("M", "N")),)


FAMILY = Family(
    f"npu_{NAME}", pointwise.takes, variants, VARIANTS, default, first_table, starts, space, legal, kernels,
    packed=True, template="npu_kernels.py.jinja", own_helpers=HELPERS, fits=fits,
)  # fmt: skip

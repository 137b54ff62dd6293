"""How the programs of a kernel lie over rows and columns, and how a family offers that as a variant.

A form says how programs find their elements, with the grid that this needs. A variant is a family's use of
one: what it means, its schedules, and what makes its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.plan import Schedule

Grid = Callable[[Schedule, bool], tuple[str, ...]]
"""The wrapper's expressions for the grid of a schedule; whether the kernel mentions its row."""


@dataclass(frozen=True)
class Form:
    """The frame of a kernel."""

    name: str
    """The macro that prints it, and of the first kernel of a variant the variant's name."""
    grid: Grid = lambda schedule, rows: ()
    """Empty: the kernel says it itself."""
    two_d: bool = False
    """Values that vary along both are [rows, columns]; otherwise a program has a single row, or a run of elements."""
    is_run: bool = False
    """One run of elements, with a mask for them."""
    has_rows: bool = True
    """Whether elements have a row and a column at all."""
    whole: bool = False
    """A program holds whole rows: a block is the power of two from the length of a row on."""
    walks: bool = False
    """A program goes over its rows in blocks."""
    divided: bool = False
    """Several programs share a row, of which each has a part."""
    in_planes: bool = False
    """A program stays within a plane, whose rows it counts."""
    turns: bool = False
    """Whether columns may be numbered from the end, so that a scan from there is one from the start."""

    @property
    def several(self) -> bool:
        """Whether a program has elements of several rows."""
        return self.two_d or (self.is_run and self.has_rows)


def _tiles(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    """One program a tile, in a grid of two dimensions or of one."""
    walked = ' * options["ROW_TILES"]' if schedule.int("ROW_TILES") > 1 else ""
    down, across = f'cdiv(M, options["BLOCK_SIZE_M"]{walked})', 'cdiv(N, options["BLOCK_SIZE_N"])'
    return (f"{down} * {across}",) if schedule["grid"] == "1d" else (down, across)


def _elements(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    return ('cdiv(n_elements, options["BLOCK_SIZE"])',)


def _a_row(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    return ("M",) if rows else ("1",)


def _some_rows(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    return ('cdiv(M, options["BLOCK_SIZE_M"])',)


def _parts(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    return ("M", 'options["SPLITS"]') if rows else ('options["SPLITS"]',)


def _parts_of_some_rows(schedule: Schedule, rows: bool) -> tuple[str, ...]:
    return 'cdiv(M, options["BLOCK_SIZE_M"])', 'options["SPLITS"]'


FLAT = Form("flat", _elements, is_run=True, has_rows=False)
ELEMENTS = Form("elements", _elements, is_run=True)
TILE = Form("tile", _tiles, two_d=True)
LANES = Form("lanes", two_d=True)
PLANES = Form("planes", two_d=True, in_planes=True)
ROW = Form("row", _a_row, whole=True, turns=True)
ROWS = Form("rows", _some_rows, two_d=True, whole=True)
LOOPED = Form("looped", _a_row, walks=True, turns=True)
LOOPED_ROWS = Form("looped_rows", _some_rows, two_d=True, walks=True)
COLUMNS = Form("columns", _some_rows, two_d=True, walks=True)
SPLIT = Form("split", _parts, walks=True, divided=True, turns=True)
SPLIT_COLUMNS = Form("split_columns", _parts_of_some_rows, two_d=True, walks=True, divided=True)
PARTIALS = Form("partials", divided=True)
COOPERATIVE = Form("cooperative", divided=True)
PRINTED = Form("printed")
"""Of lines that say everything themselves."""

WHOLE_ROWS = {form.name: form for form in (ROW, ROWS)}
WALKED = {form.name: form for form in (LOOPED, LOOPED_ROWS, COLUMNS)}
"""By the names of the variants that one program a row, or several rows a program, make."""

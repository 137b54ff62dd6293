"""Scatters that add floats by atomics, where a spec says `deterministic: false`.

A program owns rows of the result, starts them and adds what names their places; or it reads a tile of what is added, in
whatever rows. Each element is one atomic."""

from __future__ import annotations

from kernelgen.families import scatter_blocks
from kernelgen.families.family import Variant, always, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.scatter_facts import arguments, kernel, one_kernel, told
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NOTE = (
    "not deterministic (`deterministic: false`): atomics add floats in no fixed order, so two calls may differ in the "
    "last bits"
)
LINE, ROWS, TILE = "atomics", "atomic_rows", "atomic_tiles"
"""The variants for one run of elements that scatter, and for rows of them."""


def variants(body: Body) -> tuple[str, ...]:
    return (ROWS if body.starts_itself else TILE,) if body.layout.rows else (LINE,)


def start(body: Body) -> Schedule:
    """Lanes lie along what is contiguous in what is added."""
    (name,) = variants(body)
    schedule = next(variant.default for variant in OF_ROWS if variant.name == name)
    return schedule.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=8) if body.lowered.values[-1].attr == "0" else schedule


line = one_kernel("atomics", ("BLOCK_SIZE",), 'cdiv(N, options["BLOCK_SIZE"])', ("N",))
"""A run of elements, each of which has an index."""


def of_rows(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel, of which a program owns BLOCK_SIZE_M rows that scatter along their last dimension."""
    scatter = told(spec, body, "atomic_rows")
    tensors = arguments(scatter, scatter.base, scatter.index, scatter.source, scatter.out)
    constexprs = "BLOCK_SIZE_M", "BLOCK_SIZE_N", scatter_blocks.STARTED
    return (kernel(body, name, schedule, tensors, constexprs, scatter, scatter_blocks.GRID),)


_WARPS = Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program")
OF_ROWS = (
    Variant(
        PRINTED,
        "BLOCK_SIZE_M rows per program, initialized, then added to by BLOCK_SIZE_N columns, one atomic per element",
        Schedule.make(ROWS, BLOCK_SIZE_M=1, BLOCK_SIZE_N=256, num_warps=1),
        (
            block("BLOCK_SIZE_M", (1, 2, 4, 8), "rows per program"),
            block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024), "columns at once"),
            _WARPS,
        ),
        always, of_rows,
    ),
    Variant(
        PRINTED, "BLOCK_SIZE_M rows by BLOCK_SIZE_N columns of the source per program, one atomic per element",
        Schedule.make(TILE, BLOCK_SIZE_M=1, BLOCK_SIZE_N=1024, num_warps=4),
        (
            block("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64, 128), "rows per program"),
            block("BLOCK_SIZE_N", (8, 16, 64, 128, 256, 512, 1024), "columns per program"),
            _WARPS,
        ),
        always,
        one_kernel(
            "atomic_tiles", ("BLOCK_SIZE_M", "BLOCK_SIZE_N"),
            'cdiv(M, options["BLOCK_SIZE_M"]) * cdiv(N, options["BLOCK_SIZE_N"])',
        ),
    ),
)  # fmt: skip

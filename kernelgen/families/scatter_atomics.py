"""Scatters that add floats by atomics, where a spec says `deterministic: false`.

A program owns rows of the result, starts them and adds what names their places; or it reads a tile of what is added, in
whatever rows. Each element is one atomic."""

from __future__ import annotations

from kernelgen.families import scatter_blocks
from kernelgen.families.family import Variant, block
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body, KernelText
from kernelgen.families.scatter_text import Made, limit, loaded, one_kernel, quoted, tensors, widened
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NOTE = (
    "not deterministic (`deterministic: false`): atomics add floats in whatever order they come, so that two calls may "
    "differ in their last bits"
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


def line(spec: OperatorSpec, body: Body) -> Made:
    """A run of elements, each of which has an index."""
    index, source = tensors(body)[-2:]
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, 0)
    lines = [
        "# a program adds a run of elements, in whatever order atomics come",
        "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        *loaded(body, index, "offsets", "offsets < N", size),
        f"is_place = {index} >= 0",
        f"is_place &= {index} < {size}",
        f"{source} = tl.load({source}_ptr + offsets, mask=is_place){widened(spec, source)}",
        *quoted(body),
        f'tl.atomic_add({out}_ptr + {index}, {source}, mask=is_place, sem="relaxed")',
    ]
    sizes = ["N", *([size] if not size.isdigit() else [])]
    grid = '(cdiv(N, options["BLOCK_SIZE"]),)'
    return (f"{index}_ptr", f"{source}_ptr", f"{out}_ptr", *sizes), ("BLOCK_SIZE",), lines, grid


def of_rows(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel, of which a program owns BLOCK_SIZE_M rows that scatter along their last dimension."""
    *base, index, source = tensors(body)
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, -1)
    lines = [
        "# a program owns rows, and adds to them in whatever order atomics come",
        "rows = tl.program_id(0).to(tl.int64) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)",
        "is_row = (rows < M)[:, None]",
        *scatter_blocks.started(spec, body),
        "# other threads add to the rows than started them",
        "tl.debug_barrier()",
        "for start in range(0, N, BLOCK_SIZE_N):",
        "    cols = start + tl.arange(0, BLOCK_SIZE_N)",
        "    mask = is_row & (cols < N)[None, :]",
        "    offsets = rows[:, None] * N + cols[None, :]",
        *(f"    {line}" for line in loaded(body, index, "offsets", "mask", size)),
        f"    is_place = {index} >= 0",
        f"    is_place &= {index} < {size}",
        f"    {source} = tl.load({source}_ptr + offsets, mask=is_place){widened(spec, source)}",
        f"    pointers = {out}_ptr + rows[:, None] * {size} + {index}",
        *(f"    {line}" for line in quoted(body)),
        f'    tl.atomic_add(pointers, {source}, mask=is_place, sem="relaxed")',
    ]
    arguments = [f"{t}_ptr" for t in (*base, index, source, out)]
    sizes = ["M", "N", *([size] if not size.isdigit() else [])]
    made = KernelText(
        name, PRINTED, schedule, (*arguments, *sizes), ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_V"), (),
        tuple(lines), grid=scatter_blocks.GRID, passed=(scatter_blocks.STARTED,),
    )  # fmt: skip
    return (made,)


def tile(spec: OperatorSpec, body: Body) -> Made:
    """A tile of rows and columns, of which every element has an index."""
    scatter = body.lowered.values[-1]
    index, source = tensors(body)[-2:]
    along_last = scatter.attr == "-1"
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, -1 if along_last else 0)
    offsets = "rows[:, None] * N + cols[None, :]" if along_last else "cols[None, :].to(tl.int64) * M + rows[:, None]"
    place = f"rows[:, None] * {size} + {index}" if along_last else f"{index} * M + rows[:, None]"
    checks = ["mask = (rows < M)[:, None] & (cols < N)[None, :]", f"offsets = {offsets}"]
    checks += loaded(body, index, "offsets", "mask", size)
    checks += [f"is_place = {index} >= 0", f"is_place &= {index} < {size}"]
    lines = [
        "# a program adds a tile to where the index says, in whatever order atomics come",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "first = (tl.program_id(0) // num_tiles_n).to(tl.int64) * BLOCK_SIZE_M",
        "rows = first + tl.arange(0, BLOCK_SIZE_M)",
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        *checks,
        f"{source} = tl.load({source}_ptr + offsets, mask=is_place){widened(spec, source)}",
        *quoted(body),
        f'tl.atomic_add({out}_ptr + {place}, {source}, mask=is_place, sem="relaxed")',
    ]
    needed = ["M", "N", *([size] if not size.isdigit() else [])]
    grid = '(cdiv(M, options["BLOCK_SIZE_M"]) * cdiv(N, options["BLOCK_SIZE_N"]),)'
    arguments = (f"{index}_ptr", f"{source}_ptr", f"{out}_ptr", *needed)
    return arguments, ("BLOCK_SIZE_M", "BLOCK_SIZE_N"), lines, grid


_WARPS = Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program")
OF_ROWS = (
    Variant(
        PRINTED,
        "BLOCK_SIZE_M rows a program, which starts them and takes BLOCK_SIZE_N columns at a time, an atomic each",
        Schedule.make(ROWS, BLOCK_SIZE_M=1, BLOCK_SIZE_N=256, num_warps=1),
        (
            block("BLOCK_SIZE_M", (1, 2, 4, 8), "rows a program"),
            block("BLOCK_SIZE_N", (64, 128, 256, 512, 1024), "columns at once"),
            _WARPS,
        ),
        kernels=of_rows,
    ),
    Variant(
        PRINTED, "BLOCK_SIZE_M rows by BLOCK_SIZE_N columns of what is added a program, an atomic an element",
        Schedule.make(TILE, BLOCK_SIZE_M=1, BLOCK_SIZE_N=1024, num_warps=4),
        (
            block("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64, 128), "rows a program"),
            block("BLOCK_SIZE_N", (8, 16, 64, 128, 256, 512, 1024), "columns a program"),
            _WARPS,
        ),
        kernels=one_kernel(tile),
    ),
)  # fmt: skip

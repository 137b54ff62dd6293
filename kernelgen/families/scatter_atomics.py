"""Scatters that add floats by atomics, where a spec says `deterministic: false`.

A program reads a tile of what is added, and each element is one atomic."""

from __future__ import annotations

from kernelgen.families.kernel import Body
from kernelgen.families.scatter_text import Made, limit, loaded, quoted, tensors, widened
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NOTE = (
    "not deterministic (`deterministic: false`): atomics add floats in whatever order they come, so that two calls may "
    "differ in their last bits"
)
LINE, TILE = "atomics", "atomic_tiles"
"""The variants for one run of elements that scatter, and for rows of them."""
DEFAULT = Schedule.make(TILE, BLOCK_SIZE_M=1, BLOCK_SIZE_N=1024, num_warps=4)
MEANINGS = {TILE: "BLOCK_SIZE_M rows by BLOCK_SIZE_N columns of what is added a program, an atomic an element"}


def variants(body: Body) -> tuple[str, ...]:
    return (TILE,) if body.layout.rows else (LINE,)


def start(body: Body) -> Schedule:
    """Lanes lie along what is contiguous in what is added."""
    scatter = body.lowered.values[-1]
    if scatter.op == "scatter_add" and scatter.attr == "0":
        return DEFAULT.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=8)
    return DEFAULT


def space() -> tuple[Parameter, ...]:
    """Of tiles; a run of elements has that of bins."""
    return (
        Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16, 32, 64, 128), "block_size", "constexpr", "rows a program"),
        Parameter("BLOCK_SIZE_N", (8, 16, 64, 128, 256, 512, 1024), "block_size", "constexpr", "columns a program"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program"),
    )


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
    grid = '(triton.cdiv(N, options["BLOCK_SIZE"]),)'
    return (f"{index}_ptr", f"{source}_ptr", f"{out}_ptr", *sizes), ("BLOCK_SIZE",), lines, grid


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
    grid = '(triton.cdiv(M, options["BLOCK_SIZE_M"]) * triton.cdiv(N, options["BLOCK_SIZE_N"]),)'
    arguments = (f"{index}_ptr", f"{source}_ptr", f"{out}_ptr", *needed)
    return arguments, ("BLOCK_SIZE_M", "BLOCK_SIZE_N"), lines, grid


MAKERS = {LINE: line, TILE: tile}
"""By the name of the variant."""

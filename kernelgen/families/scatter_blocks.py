"""scatter_add by programs that own rows: what every element of a block adds is found by comparing it with all others.

All elements of a block that name one place come to the same sum, in the same order, and store the same number: one
barrier between what a block reads and what it stores, another before the next block reads, and no element has to be the
first. The block after it is on its way meanwhile. Indices are compared in 32 bits, once they are in range.
"""

from __future__ import annotations

from math import prod

from kernelgen.families.access import Layout
from kernelgen.families.family import Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body, KernelText, Passed
from kernelgen.families.scatter_text import at_most, limit, quoted, tensors, widened, wraps, zero
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

NAME = "blocks"
DEFAULT = Schedule.make(NAME, BLOCK_SIZE_M=1, BLOCK_SIZE_N=32, num_warps=1)
LONGER = 4
"""Up to so many elements of the result for each that is added, a program starts its rows itself. Rows that are longer
are copied faster by a kernel of their own, to which rows that are few make no difference."""

GRID = '(cdiv(M, options["BLOCK_SIZE_M"]),)'
STARTED = Passed("BLOCK_SIZE_V", '1024 * options["num_warps"] // options["BLOCK_SIZE_M"]')
"""What is passed to kernels that start their rows: 32 places a thread at a time."""


def starts_itself(spec: OperatorSpec, layout: Layout, source: str) -> bool:
    """Whether a program copies what its rows are added to, or zeros them, and the wrapper does not: by the cases that
    are timed. A single row would be copied by one program."""
    shape = next(t.shape for t in spec.inputs if t.name == source)
    sizes = [(prod(case.shape(spec.outputs[0].shape)), prod(case.shape(shape))) for case in spec.performance]
    return bool(layout.rows) and all(out <= LONGER * added for out, added in sizes)


def started(spec: OperatorSpec, body: Body) -> list[str]:
    """The lines that start the rows of a program: `rows[:, None]` by BLOCK_SIZE_V places at a time."""
    *base, _, _ = tensors(body)
    out, along_last = spec.outputs[0].name, body.lowered.values[-1].attr == "-1"
    size = limit(body, spec.outputs[0].shape, -1 if along_last else 0)
    offsets = f"rows[:, None] * {size} + places[None, :]" if along_last else "places[None, :] * M + rows[:, None]"
    first = "start + tl.arange(0, BLOCK_SIZE_V)" + ("" if along_last else ".to(tl.int64)")
    start, value = [], zero(body)
    if base:
        start, value = [f"    {out} = tl.load({base[0]}_ptr + offsets, mask=mask){widened(spec, base[0])}"], out
    return [
        f"for start in range(0, {size}, BLOCK_SIZE_V):",
        f"    places = {first}",
        f"    mask = is_row & (places < {size})[None, :]",
        f"    offsets = {offsets}",
        *start,
        f"    tl.store({out}_ptr + offsets, {value}, mask=mask)",
    ]


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel, of which a program owns BLOCK_SIZE_M rows."""
    *base, index, source = tensors(body)
    along_last, out, itself = body.lowered.values[-1].attr == "-1", spec.outputs[0].name, body.starts_itself
    size, wrapping = limit(body, spec.outputs[0].shape, -1 if along_last else 0), wraps(body, index)
    offsets, pointers = "rows[:, None] * N + cols[None, :]", f"{out}_ptr + rows[:, None] * {size} + place"
    if not along_last:
        offsets, pointers = "cols[None, :] * M + rows[:, None]", f"{out}_ptr + place.to(tl.int64) * M + rows[:, None]"
    if not body.layout.rows:
        offsets, pointers = "cols[None, :]", f"{out}_ptr + place"
    lanes = f"tl.arange(0, BLOCK_SIZE_N){'' if along_last else '.to(tl.int64)'}"
    read = [
        "mask = is_row & (cols < N)[None, :]",
        f"offsets = {offsets}",
        f"next_{index} = tl.load({index}_ptr + offsets, mask=mask, other={size if wrapping else -1})",
        f"next_{source} = tl.load({source}_ptr + offsets, mask=mask, other={zero(body)})",
    ]
    own = f"next_{index}"
    if wrapping:
        own = f"tl.where(next_{index} < 0, next_{index} + {size}, next_{index})"
    lines = [
        "# a program owns rows that scatter on their own",
        "rows = tl.program_id(0).to(tl.int64) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)",
        "is_row = (rows < M)[:, None]",
        *(started(spec, body) if itself else []),
        f"cols = {lanes}",
        *read,
        *(["# other threads read the rows than started them", "tl.debug_barrier()"] if itself else []),
        "for start in range(BLOCK_SIZE_N, N + BLOCK_SIZE_N, BLOCK_SIZE_N):",
        f"    {index} = {own}",
        f"    {source} = next_{source}{widened(spec, source)}",
        "    # the next block is on its way while this one is added",
        f"    cols = start + {lanes}",
        *(f"    {line}" for line in read),
        f"    is_place = {index} >= 0",
        f"    is_place &= {index} < {size}",
        f"    place = tl.where(is_place, {index}, -1).to(tl.int32)",
        "    # all that name a place come to the sum of what the block adds there, and store the same",
        "    is_same = place[:, :, None] == place[:, None, :]",
        f"    total = tl.sum(tl.where(is_same, {source}[:, :, None], {zero(body)}), axis=1)",
        f"    pointers = {pointers}",
        *(f"    {line}" for line in quoted(body)),
        f"    {out} = tl.load(pointers, mask=is_place) + total",
        "    tl.debug_barrier()",
        f"    tl.store(pointers, {out}, mask=is_place)",
        "    # the next block reads what this one wrote",
        "    tl.debug_barrier()",
    ]
    arguments = [f"{t}_ptr" for t in (*(base if itself else ()), index, source, out)]
    sizes = ["M", "N", *([size] if not size.isdigit() else [])]
    blocks = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", *(["BLOCK_SIZE_V"] if itself else []))
    made = KernelText(
        name, PRINTED, schedule, (*arguments, *sizes), blocks, (), tuple(lines), grid=GRID,
        passed=(STARTED,) if itself else (),
    )  # fmt: skip
    return (made,)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    return at_most(schedule.int("BLOCK_SIZE_M") * schedule.int("BLOCK_SIZE_N") ** 2, schedule)


SPACE = (
    Parameter("BLOCK_SIZE_M", (1, 2, 4, 8, 16), "block_size", "constexpr", "rows a program"),
    Parameter("BLOCK_SIZE_N", (16, 32, 64, 128), "block_size", "constexpr", "elements of a block of the row"),
    Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps a program"),
)
VARIANT = Variant(
    PRINTED,
    "BLOCK_SIZE_M rows a program, walked in blocks in which what names one place is added up first",
    DEFAULT,
    SPACE,
    legal,
    kernels,
)
